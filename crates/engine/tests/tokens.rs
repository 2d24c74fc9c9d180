//! Token ids and text against cases that were computed with the Python package. Cases outside the repository are used
//! where they lie beside it.

mod common;

use common::{rows, shared_tokenizer};
use spinetail_engine::text::{Detokenizer, SpecialTokens, Tokens, decode};

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
