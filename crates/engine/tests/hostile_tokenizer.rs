//! Tokenizer files that are damaged, hostile or of another kind: an error with the reason, never a panic.

#![allow(clippy::unwrap_used)] // helpers are not marked as tests

use serde_json::{Map, Value, json};
use spinetail_engine::text::{SpecialTokens, Tokenizer, TokenizerError, Tokens};

/// The character that stands for a byte in GPT-2's alphabet.
fn letter(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(0x100 + before).unwrap()
}

/// A complete small tokenizer: all bytes, three merges, two added tokens.
fn small() -> Value {
    let mut vocab: Map<String, Value> =
        (0..=u8::MAX).map(|byte| (letter(byte).to_string(), json!(byte))).collect();
    vocab.insert("ab".to_owned(), json!(256));
    vocab.insert("abc".to_owned(), json!(257));
    vocab.insert("Ġab".to_owned(), json!(258));
    let added = |id: u32, content: &str, special: bool| {
        json!({"id": id, "content": content, "special": special, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false})
    };
    let pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\s+(?!\S)|\s+";
    json!({
        "version": "1.0",
        "added_tokens": [added(260, "<|end|>", true), added(261, "<tool>", false)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}),
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}),
        ]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["a b", ["ab", "c"], ["Ġ", "ab"]]},
    })
}

fn load(file: &Value) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_json(file.to_string().as_bytes(), None)
}

fn changed(pointer: &str, value: Value) -> Result<Tokenizer, TokenizerError> {
    let mut file = small();
    *file.pointer_mut(pointer).unwrap() = value;
    load(&file)
}

#[test]
fn the_small_one_works() {
    let tokenizer = load(&small()).unwrap();
    let ids = |text: &str| tokenizer.encode(text, SpecialTokens::Recognise).unwrap();
    assert_eq!(ids("abc ab<|end|>\u{e9}"), [257, 258, 260, 0xC3, 0xA9]);
    assert_eq!(ids("e\u{301}"), [0xC3, 0xA9]);
    assert_eq!((tokenizer.vocabulary_size(), tokenizer.bytes(259)), (262, None));
    assert!(format!("{tokenizer:?}").contains("262"));
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    for (pointer, value, named) in [
        ("/normalizer", json!({"type": "NFKC"}), "normalizer"),
        ("/post_processor", json!({"type": "TemplateProcessing"}), "post_processor"),
        ("/decoder", json!({"type": "Metaspace"}), "decoder"),
        ("/pre_tokenizer", json!({"type": "Whitespace"}), "pre_tokenizer"),
        ("/pre_tokenizer", Value::Null, "pre_tokenizer"),
        ("/pre_tokenizer/pretokenizers/0/behavior", json!("Removed"), "pre_tokenizer"),
        ("/pre_tokenizer/pretokenizers/0/invert", json!(true), "pre_tokenizer"),
        ("/pre_tokenizer/pretokenizers/1/use_regex", json!(true), "pre_tokenizer"),
        ("/model/type", json!("Unigram"), "Unigram"),
        ("/added_tokens/0/lstrip", json!(true), "lstrip"),
        ("/added_tokens/0/content", json!(""), "empty"),
        ("/added_tokens/0/id", json!(u32::MAX), "4294967295"),
    ] {
        let error = changed(pointer, value).unwrap_err();
        assert!(matches!(error, TokenizerError::Unsupported { .. }), "{pointer}: {error}");
        assert!(error.to_string().contains(named), "{pointer}: {error}");
    }
    for (key, value) in
        [("byte_fallback", json!(true)), ("dropout", json!(0.1)), ("unk_token", json!("<unk>"))]
    {
        let mut file = small();
        file["model"][key] = value;
        assert!(load(&file).unwrap_err().to_string().contains(key));
    }
}

#[test]
fn damage_is_an_error() {
    for (pointer, value) in [
        ("/model/merges", json!(["a z", "nothere b"])),
        ("/model/merges", json!(["nospace"])),
        ("/model/merges", json!([["a"]])),
        ("/model/merges", json!([7])),
        ("/model/vocab", json!({"a": 0})),
        ("/model/vocab/a", json!(4_000_000_000_u32)),
        ("/model/vocab/a", json!(-1)),
        ("/model/vocab/a", json!(98)),
        ("/pre_tokenizer/pretokenizers/0/pattern/Regex", json!("(unclosed")),
        ("/pre_tokenizer/pretokenizers/0/pattern/Regex", json!("a".repeat(5000))),
        ("/added_tokens/1/id", json!(260)),
    ] {
        assert!(changed(pointer, value.clone()).is_err(), "{pointer} {value}");
    }
    let mut file = small();
    file["model"]["vocab"]["\u{4e00}"] = json!(300);
    assert!(load(&file).unwrap_err().to_string().contains("byte-level alphabet"));
    let text = small().to_string();
    for cut in (0..text.len()).step_by(97).filter(|&at| text.is_char_boundary(at)) {
        assert!(Tokenizer::from_json(&text.as_bytes()[..cut], None).is_err());
    }
    assert!(Tokenizer::from_json(b"\xff\xfe", None).is_err());
    assert!(Tokenizer::from_json(text.as_bytes(), Some(b"7")).is_err());
}

/// The list of `tokenizer_config.json` counts too, and must not contradict the other one.
#[test]
fn added_tokens_of_both_files() {
    let with = |decoder: Value| {
        let config = json!({"added_tokens_decoder": decoder}).to_string();
        Tokenizer::from_json(small().to_string().as_bytes(), Some(config.as_bytes()))
    };
    let both =
        with(json!({"261": {"content": "<tool>", "special": true}, "270": {"content": "<new>"}})).unwrap();
    assert!(both.is_special(261));
    assert_eq!((both.id("<new>"), both.vocabulary_size()), (Some(270), 271));
    assert!(with(json!({"261": {"content": "<other>"}})).is_err());
    assert!(with(json!({"x": {"content": "<other>"}})).is_err());
}
