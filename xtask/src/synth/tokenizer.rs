//! A plain byte-level tokenizer of any vocabulary size, and a ChatML template, as the files of a model.
//!
//! Ids 0 to 255 are bytes. The last ids are the control tokens. What lies between can be generated, never encoded.

use serde_json::{Map, Value, json};

const CONTROL: [&str; 5] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"];

const TEMPLATE: &str = "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}\
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

/// The character that stands for a byte in byte-level vocabularies: itself where it can be seen, else one from U+0100 on.
fn byte_char(byte: u8, hidden: &mut u32) -> char {
    let seen = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if seen {
        return char::from(byte);
    }
    *hidden += 1;
    char::from_u32(0xff + *hidden).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Names and contents of the files.
pub(super) fn files(vocab: usize) -> Vec<(&'static str, String)> {
    let first_control = vocab.saturating_sub(CONTROL.len());
    let (mut map, mut hidden) = (Map::new(), 0);
    for byte in 0..=255u8 {
        map.insert(byte_char(byte, &mut hidden).to_string(), json!(byte));
    }
    for id in 256..first_control {
        map.insert(format!("w{id}"), json!(id));
    }
    let control = |(i, text): (usize, &&str)| {
        json!({"id": first_control + i, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": i < 3})
    };
    let added: Vec<Value> = CONTROL.iter().enumerate().map(control).collect();
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let words =
        json!({"type": "Split", "pattern": {"Regex": "\\s+|\\S+"}, "behavior": "Isolated", "invert": false});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [words, byte_level]}, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": map, "merges": []},
    });
    let ends = json!({"eos_token_id": [first_control + 2, first_control], "do_sample": false});
    vec![
        ("tokenizer.json", tokenizer.to_string()),
        ("tokenizer_config.json", json!({"eos_token": "<|im_end|>"}).to_string()),
        ("generation_config.json", ends.to_string()),
        ("chat_template.jinja", TEMPLATE.to_owned()),
    ]
}
