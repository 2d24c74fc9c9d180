//! A model's text half from its folder: end tokens, defaults, and what is missing.

#![allow(clippy::print_stdout, clippy::unwrap_used)] // helpers are not marked as tests

mod common;

use std::collections::HashMap;

use common::{folder, shared};
use serde_json::{Map, Value, json};
use spinetail_engine::text::{ChatInput, Message, TextError, TextModel, TokenizerError, decode};

/// The small model's files, with changes; `None` removes one.
fn pip(changes: &[(&str, Option<Value>)]) -> Option<Result<TextModel, TextError>> {
    let folder = folder("pip");
    if !folder.join("chat_template.jinja").exists() {
        println!("skipped: the small model is absent");
        return None;
    }
    let changes: HashMap<&str, Option<Value>> = changes.iter().cloned().collect();
    Some(TextModel::load(&|name| {
        Ok(match changes.get(name) {
            Some(change) => change.as_ref().map(|value| value.to_string().into_bytes()),
            None => std::fs::read(folder.join(name)).ok(),
        })
    }))
}

/// A file of the small model.
fn json_of(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(folder("pip").join(name)).unwrap()).unwrap()
}

/// Case A11: whichever file is incomplete, both tokens end an answer.
#[test]
fn every_end_token() {
    let Some(whole) = pip(&[]) else { return };
    assert_eq!(whole.unwrap().end_tokens(), [6111, 6113]);
    let mut generation = json_of("generation_config.json");
    generation["eos_token_id"] = json!(6113);
    let mut config = json_of("config.json");
    config["eos_token_id"] = json!(6111);
    let mut tokenizer_config = json_of("tokenizer_config.json");
    tokenizer_config["eos_token"] = json!({"content": "<|im_end|>"});
    let d = pip(&[
        ("generation_config.json", None),
        ("config.json", Some(config.clone())),
        ("tokenizer_config.json", Some(tokenizer_config)),
    ]);
    assert_eq!(d.unwrap().unwrap().end_tokens(), [6111, 6113]);
    let b = pip(&[("generation_config.json", Some(generation)), ("config.json", Some(config.clone()))]);
    assert_eq!(b.unwrap().unwrap().end_tokens(), [6111, 6113]);
    let nested = json!({"model_type": "qwen3_5_moe", "text_config": {"eos_token_id": [6111]}});
    let changes =
        [("generation_config.json", None), ("config.json", Some(nested)), ("tokenizer_config.json", None)];
    // The template alone names the end of a turn.
    assert_eq!(pip(&changes).unwrap().unwrap().end_tokens(), [6111, 6113]);
}

#[test]
fn a_conversation_becomes_ids() {
    let Some(model) = pip(&[]) else { return };
    let model = model.unwrap();
    let messages = [Message::new("user", "What is the capital of Spain?")];
    let prompt = |kwargs: Value| {
        let kwargs = kwargs.as_object().unwrap();
        model.prompt(
            &ChatInput { messages: &messages, tools: None, kwargs, add_generation_prompt: true },
            usize::MAX,
        )
    };
    assert!(prompt(json!({})).unwrap().0.opens_thinking());
    assert!(!prompt(json!({"enable_thinking": false})).unwrap().0.opens_thinking());
    assert_eq!(prompt(json!({"messages": []})).unwrap_err().param(), Some("chat_template_kwargs.messages"));
    assert_eq!(model.defaults().params(false).top_p, 0.9);
}

/// The reference's conversations, prompts and answers: text and ids, both ways.
#[test]
fn prompts_and_answers_of_the_reference() {
    let Some(model) = pip(&[]) else { return };
    let model = model.unwrap();
    let Ok(rows) = std::fs::read(shared().join("models/pip/reference.json")) else {
        println!("skipped: the reference answers are absent");
        return;
    };
    let rows: Vec<Value> = serde_json::from_slice(&rows).unwrap();
    for row in &rows {
        let messages: Vec<Message> = serde_json::from_value(row["messages"].clone()).unwrap();
        let kwargs = json!({"enable_thinking": row["enable_thinking"]});
        let tools = row["tools"].as_array().map(Vec::as_slice);
        let kwargs = kwargs.as_object().unwrap();
        let input = ChatInput { messages: &messages, tools, kwargs, add_generation_prompt: true };
        let (prompt, ids) = model.prompt(&input, usize::MAX).unwrap();
        assert_eq!(prompt.text(), row["prompt"].as_str().unwrap());
        assert_eq!(json!(ids), row["prompt_ids"]);
        let output: Vec<u32> = serde_json::from_value(row["output_ids"].clone()).unwrap();
        assert_eq!(decode(model.tokens(), &output, true).unwrap(), row["output"].as_str().unwrap());
    }
}

#[test]
fn a_missing_tokenizer_is_named() {
    let error = TextModel::load(&|_| Ok(None)).unwrap_err();
    assert!(matches!(error, TextError::Tokenizer(TokenizerError::Missing { .. })));
    assert!(error.to_string().contains("tokenizer.json"));
    let error = TextModel::load(&|_| Err(std::io::Error::other("disk on fire"))).unwrap_err();
    assert!(error.to_string().contains("disk on fire"));
}

#[test]
fn without_a_template_raw_prompts_still_work() {
    let Some(model) = pip(&[("chat_template.jinja", None), ("tokenizer_config.json", None)]) else { return };
    let model = model.unwrap();
    assert!(model.template().is_err());
    let kwargs = Map::new();
    let messages = [Message::new("user", "hi")];
    let input = ChatInput { messages: &messages, tools: None, kwargs: &kwargs, add_generation_prompt: true };
    assert!(model.prompt(&input, usize::MAX).unwrap_err().to_string().contains("no chat template"));
}
