"""Writes pip_prompts.jsonl: conversations and the prompts that Jinja2 makes of them with the small model's template.

    python pip_prompts.py PATH/TO/chat_template.jinja > pip_prompts.jsonl

Set up as in transformers: sandboxed, trimmed blocks, `tojson` without escaping. The conversations are already in the
form that a template gets (arguments as maps, content as strings).
"""

import json
import random
import sys

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

SNIPPETS = [
    "Hi", " padded ", "\n\nlines\n\n", "", "é 你好 👩‍👩‍👧", "<think>\nhm\n</think>\n\nyes", "</think>", "a</think>\n\nb</think>\nc",
    "<tool_response>\nx\n</tool_response>", "\u00a0nbsp\u2028", "\x1f unit", "tab\tquote\" back\\slash", "<|im_end|> <b>&'", "{{ messages }}{% if %}",
]
VALUES = [
    0, -1, 1.0, 0.1, 1e16, 1.5e-7, 123456789012345678, True, False, None, "", "text", "é<&>'\"\\\n\u2028", [], {}, [1, [2, {"a": None}]],
    {"z": 1, "a": {"k": "v"}}, 3.141592653589793, -0.0, 1e22, "\x00\x1f\x7f", "007",
]


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
    return env


def conversation(rng):
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": rng.choice(SNIPPETS)})
    for _ in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": rng.choice(SNIPPETS)})
        answer = {"role": "assistant", "content": rng.choice(SNIPPETS)}
        if rng.random() < 0.3:
            answer["reasoning_content"] = rng.choice(SNIPPETS)
        if rng.random() < 0.5:
            calls = []
            for i in range(rng.randrange(1, 3)):
                arguments = {rng.choice("abcdé") + str(j): rng.choice(VALUES) for j in range(rng.randrange(4))}
                calls.append({"id": f"c{i}", "type": "function", "function": {"name": f"f{i}", "arguments": arguments}})
            answer["tool_calls"] = calls
            messages.append(answer)
            messages += [{"role": "tool", "tool_call_id": c["id"], "content": rng.choice(SNIPPETS)} for c in calls]
        else:
            messages.append(answer)
    if rng.random() < 0.7:
        messages.append({"role": "user", "content": rng.choice(SNIPPETS)})
    return messages


def main():
    template = environment().from_string(open(sys.argv[1], encoding="utf-8").read())
    rng = random.Random(11)
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 24):
        tools = None
        if rng.random() < 0.4:
            schema = {"type": "object", "properties": {"p": {"default": rng.choice(VALUES), "enum": [rng.choice(VALUES)]}}}
            tools = [{"type": "function", "function": {"name": "f0", "description": rng.choice(SNIPPETS), "parameters": schema}}]
        row = {"messages": conversation(rng), "tools": tools, "kwargs": rng.choice([{}, {"enable_thinking": False}])}
        row["expected"] = template.render(
            messages=row["messages"], tools=tools, documents=None, add_generation_prompt=True, **row["kwargs"]
        )
        print(json.dumps(row, separators=(",", ":")))


if __name__ == "__main__":
    main()
