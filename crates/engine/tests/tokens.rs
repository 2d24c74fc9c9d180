//! Token ids and text against cases that were computed with the Python package. Cases outside the repository are used
//! where they lie beside it.

#![allow(clippy::print_stdout, clippy::unwrap_used)] // helpers are not marked as tests

mod common;

use common::{folder, pip_tokenizer, rows, shared_tokenizer};
use proptest::prelude::*;
use spinetail_engine::text::{Detokenizer, Prompt, SpecialTokens, Tokens, decode};

/// Case A01: exact ids for all three tokenizers.
#[test]
fn ids_of_the_python_package() {
    let Some(rows) = rows("cases/tokens.jsonl") else { return };
    for row in &rows {
        let tokenizer = shared_tokenizer(row["tokenizer"].as_str().unwrap());
        let text = row["text"].as_str().unwrap();
        let ids = tokenizer.encode(text, SpecialTokens::Recognise).unwrap();
        assert_eq!(serde_json::json!(ids), row["ids"], "{} {}", row["name"], row["tokenizer"]);
    }
    assert_eq!(rows.len(), 72);
}

/// Case A03: what each id releases, and what is left unfinished at the end.
#[test]
fn text_is_released_in_whole_characters() {
    let Some(rows) = rows("cases/decode.jsonl") else { return };
    for row in &rows {
        let tokenizer = shared_tokenizer(row["tokenizer"].as_str().unwrap());
        let ids: Vec<u32> = serde_json::from_value(row["ids"].clone()).unwrap();
        let mut detokenizer = Detokenizer::showing_special();
        let released: Vec<String> =
            ids.iter().map(|&id| detokenizer.push(&*tokenizer, id).unwrap()).collect();
        assert_eq!(serde_json::json!(released), row["released"], "{}", row["name"]);
        assert_eq!(serde_json::json!(detokenizer.unfinished()), row["unfinished_bytes"], "{}", row["name"]);
        assert_eq!(decode(&*tokenizer, &ids, true).unwrap(), row["text"].as_str().unwrap());
    }
}

/// Ids of `tests/data/pip_tokens.jsonl`, which Python wrote (the script lies beside it): emoji, CJK, code, combining
/// marks, every special token. Each text comes back from its ids in the normal form that the tokenizer gives it.
#[test]
fn ids_of_the_committed_corpus() {
    let Some(tokenizer) = pip_tokenizer() else { return };
    let mut rows = 0;
    for line in include_str!("data/pip_tokens.jsonl").lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = row["text"].as_str().unwrap();
        let ids = tokenizer.encode(text, SpecialTokens::Recognise).unwrap();
        assert_eq!(serde_json::json!(ids), row["ids"], "{text:?}");
        assert_eq!(tokenizer.encode_prompt(&Prompt::trusted(text.to_owned())).unwrap(), ids);
        let back = decode(&*tokenizer, &ids, true).unwrap();
        assert_eq!(tokenizer.encode(&back, SpecialTokens::Recognise).unwrap(), ids);
        rows += 1;
    }
    assert!(rows > 70);
}

/// As text, special tokens are letters; the others, which templates write into history, stay tokens.
#[test]
fn special_tokens_as_text() {
    let Some(tokenizer) = pip_tokenizer() else { return };
    let as_text = |text: &str| tokenizer.encode(text, SpecialTokens::AsText).unwrap();
    let ids = as_text("a<|im_end|>b<think>");
    assert!(!ids.contains(&6113));
    assert_eq!(ids.last(), Some(&6135));
    assert_eq!(decode(&*tokenizer, &ids, false).unwrap(), "a<|im_end|>b<think>");
    assert_eq!(tokenizer.special_texts().len(), 17);
    assert_eq!(tokenizer.vocabulary_size(), 6144);
    assert_eq!(
        (tokenizer.id("<|im_end|>"), tokenizer.id("The"), tokenizer.id("no token")),
        (Some(6113), Some(300), None)
    );
    assert!(tokenizer.is_special(6113) && !tokenizer.is_special(6135) && !tokenizer.is_special(300));
}

#[test]
fn special_tokens_are_shown_or_left_out() {
    let Some(tokenizer) = pip_tokenizer() else { return };
    let ids = [300, 6113, 6135];
    assert_eq!(decode(&*tokenizer, &ids, true).unwrap(), "The<|im_end|><think>");
    assert_eq!(decode(&*tokenizer, &ids, false).unwrap(), "The<think>");
    assert!(decode(&*tokenizer, &[6144], true).is_err());
}

/// Runs of white space beyond what the splitting pattern can look back over are an error, and not a wrong split.
#[test]
fn endless_white_space_is_an_error() {
    let Some(tokenizer) = pip_tokenizer() else { return };
    let spaces = |n| tokenizer.encode(&(" ".repeat(n) + "x"), SpecialTokens::AsText);
    assert!(spaces(500_000).is_ok());
    assert!(spaces(4_000_000).unwrap_err().to_string().contains("white-space"));
    let long_word = "ab".repeat(500_000);
    let ids = tokenizer.encode(&long_word, SpecialTokens::AsText).unwrap();
    assert_eq!(decode(&*tokenizer, &ids, true).unwrap(), long_word);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// The stock implementation gives the same ids for any text.
    #[test]
    fn ids_of_the_stock_crate(
        parts in prop::collection::vec("(\\PC{0,12}|[a-z ]{0,30}|[ \n\r\t]{0,9}|<\\|?(im_end|think|im_start)\\|?>|[\u{300}-\u{36f}א-תあ-ん가-힣😀-😎]{0,6}|[ab]{0,80})", 0..8)
    ) {
        static STOCK: std::sync::OnceLock<tokenizers::Tokenizer> = std::sync::OnceLock::new();
        if let Some(ours) = pip_tokenizer() {
            let file = || tokenizers::Tokenizer::from_file(folder("pip").join("tokenizer.json")).unwrap();
            let text = parts.concat();
            let expected = STOCK.get_or_init(file).encode(text.as_str(), false).unwrap();
            prop_assert_eq!(ours.encode(&text, SpecialTokens::Recognise).unwrap(), expected.get_ids());
        }
    }
}
