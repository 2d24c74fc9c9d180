//! Raw completions.

use serde_json::{Value, json};
use spinetail_engine::text::SpecialTokens;

use crate::client::{Reply, post};
use crate::server::{TestServer, engine, open, shared};

const PROMPT: &str = "<|im_start|>user\nWhat is the capital of Spain?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
const MADRID: &str = "The capital of Spain is Madrid.";

fn complete(server: &TestServer, body: &Value) -> Reply {
    post(server.address, "/v1/completions", body)
}

fn text(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    reply.json()["choices"][0]["text"].as_str().unwrap().to_owned()
}

/// In a raw prompt special tokens are what they are.
#[test]
fn text_and_ids_are_the_same_prompt() {
    let engine = engine();
    let ids = engine.text().unwrap().tokens().encode(PROMPT, SpecialTokens::Recognise).unwrap();
    let server = TestServer::start(engine, |_| {});
    let from_text = complete(&server, &json!({"prompt": PROMPT, "temperature": 0}));
    assert_eq!(text(&from_text), MADRID);
    let json = from_text.json();
    assert_eq!(
        (&json["object"], &json["usage"]["prompt_tokens"]),
        (&json!("text_completion"), &json!(ids.len()))
    );
    assert!(json["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(text(&complete(&server, &json!({"prompt": ids, "temperature": 0}))), MADRID);
    assert_eq!(
        text(&complete(&server, &json!({"prompt": [PROMPT], "temperature": 0, "echo": false}))),
        MADRID
    );
}

#[test]
fn streamed() {
    let server = TestServer::pip();
    let body = json!({"prompt": PROMPT, "temperature": 0, "stream": true, "stop": ["drid"]});
    let chunks = complete(&server, &body).chunks();
    let said: String = chunks.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(said, "The capital of Spain is Ma");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
    assert!(chunks.iter().all(|chunk| chunk["object"] == "text_completion"));
}

#[test]
fn sixteen_tokens_unless_said_otherwise() {
    let server = TestServer::pip();
    let reply = complete(
        &server,
        &json!({"prompt": "Once upon a time", "temperature": 0, "logit_bias": {"6111": -100, "6113": -100}}),
    );
    assert_eq!(reply.json()["usage"]["completion_tokens"], 16);
    assert_eq!(reply.json()["choices"][0]["finish_reason"], "length");
}

#[test]
fn refused_by_name() {
    let server = TestServer::pip();
    for (body, param) in [
        (json!({}), "prompt"),
        (json!({"prompt": ["a", "b"]}), "prompt"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": [0, 6144]}), "prompt[1]"),
        (json!({"prompt": "a", "echo": true}), "echo"),
        (json!({"prompt": "a", "suffix": "b"}), "suffix"),
        (json!({"prompt": "a", "logprobs": 3}), "logprobs"),
        (json!({"prompt": "a", "best_of": 2}), "best_of"),
        (json!({"prompt": "a", "messages": []}), "messages"),
    ] {
        let reply = complete(&server, &body);
        assert_eq!((reply.status, reply.param().as_deref()), (400, Some(param)), "{body}");
    }
    let long = complete(&server, &json!({"prompt": vec![17; 4097]}));
    assert_eq!((long.status, long.param().as_deref()), (400, Some("prompt")));
    assert_eq!(long.code(), "context_length_exceeded");
}

/// Case A11 over HTTP, with the variant that names least: each of the two tokens ends an answer, and shows nowhere.
#[test]
fn every_end_token() {
    let source = shared().join("models/pip");
    if !source.exists() {
        println!("skipped: {} is absent", source.display());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    copy(&source, folder.path());
    let file = |name: &str| folder.path().join(name);
    std::fs::remove_file(file("generation_config.json")).unwrap();
    let config = std::fs::read_to_string(file("config.json")).unwrap();
    let changed = config.replace("\"eos_token_id\": 6113", "\"eos_token_id\": 6111");
    assert_ne!(config, changed);
    std::fs::remove_file(file("config.json")).unwrap();
    std::fs::write(file("config.json"), changed).unwrap();
    let server = TestServer::start(open(folder.path()), |_| {});
    for (id, name) in [("6111", "<|endoftext|>"), ("6113", "<|im_end|>")] {
        // A bias makes it certain which token comes; anything after it would be seen.
        let body = json!({"prompt": "The", "temperature": 0, "logit_bias": {id: 100}});
        let reply = complete(&server, &body);
        assert_eq!(text(&reply), "", "{name}");
        assert_eq!(reply.json()["choices"][0]["finish_reason"], "stop");
        assert_eq!(reply.json()["usage"]["completion_tokens"], 1);
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        assert!(!String::from_utf8_lossy(&complete(&server, &streamed).body).contains(name));
    }
}

/// A model's folder whose files can be replaced: the large ones are the same files.
pub(crate) fn copy(from: &std::path::Path, to: &std::path::Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if std::fs::hard_link(entry.path(), &target).is_err() {
            std::fs::copy(entry.path(), &target).unwrap();
        }
    }
}
