"""Writes pip_tokens.jsonl: exact ids of the small model's tokenizer, from the Python package `tokenizers` 0.23.

    python pip_tokens.py PATH/TO/tokenizer.json > pip_tokens.jsonl
"""

import json
import random
import sys

from tokenizers import Tokenizer

TEXTS = [
    "", " ", "a", "\n", "\r\n", " \n \n", "\t\tif (x < 10) {\r\n\t\t\treturn y;\r\n\t\t}\r\n",
    "The quick brown fox jumps over the lazy dog.", "it's I'M we'LL they'd 'S x'", "1234567890 3.14 1,000 ½ ² ٣ 四",
    "😀👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇪🇸🇫🇷 ☎︎ ☎️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿", "你好,世界!这是一个测试。 日本語のテキスト、カタカナ 한국어 텍스트",
    "e\u0301 é a\u0323\u0302 a\u0302\u0323 q\u0307\u0323 \u1112\u1161\u11ab \u0958 \u212b \ufb01 \u0344",
    "\u0301leading mark", "x \u0301 y", "שָׁלוֹם العَرَبِيَّة हिन्दी ไทย தமிழ் ქართული ᏣᎳᎩ", "Zalgo: z̸̡͉̑a̷͕̐l̵̢̛g̴̺͝o̶̱͑",
    "def f(x: int) -> str:\n    return f\"{x!r:>10}\"  # ünïcode\n\n\nclass A(B):\n    pass\n",
    "fn main() { let v: Vec<_> = (0..10).map(|i| i * i).collect(); println!(\"{v:?}\"); }",
    "SELECT * FROM t WHERE a >= 1 AND b != 'x' -- note\n;", "{\"k\": [1, 2.5e-3, null, true], \"é\": \"\\u00e9\"}",
    "https://example.org/a/b?c=d&e=%20#f user@example.org C:\\dir\\file.txt /usr/bin/env", "a" * 300, " " * 70 + "x",
    "\u00a0\u2003\u3000 nbsp\u200b\u200czero\ufeff", "\u0000\u0001\u001f\u007f\u0080\u0085", "\ufffd \ufffe \U0010fffd \U000e0001",
    "A\u2028B\u2029C\u0085D\u000bE\u000cF", "  two  spaces   three    four\n\n\n   end   ", "!!!???...---===***", "x" * 64 + "\n" * 64,
    "< |im_end|> <|im_end| > <|im_end <|IM_END|> <think > </ think> <|endoftext", "ǅ İ ı ß ẞ ﬀ Ω Ω K K",
]


def main():
    tokenizer = Tokenizer.from_file(sys.argv[1])
    added = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    texts = TEXTS + ["".join(added), " ".join(added), "\u0301".join(added), "a".join(added), "\n".join(added)]
    rng = random.Random(7)
    alphabet = [c for text in TEXTS for c in text if text != "a" * 300]
    for _ in range(40):
        pieces = rng.choices(alphabet, k=rng.randrange(4, 60)) + rng.choices(added, k=rng.randrange(0, 3))
        rng.shuffle(pieces)
        texts.append("".join(pieces))
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        print(json.dumps({"text": text, "ids": ids}, separators=(",", ":")))


if __name__ == "__main__":
    main()
