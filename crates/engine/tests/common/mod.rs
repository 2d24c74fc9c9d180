//! Where the tests find tokenizers, templates and cases.

#![allow(dead_code)] // each test binary uses its own part
#![allow(clippy::print_stdout, clippy::unwrap_used)] // not marked as tests, but only used by them

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use serde_json::Value;
use spinetail_engine::text::{ChatTemplate, TemplateFiles, Tokenizer};

/// The folder of cases and tokenizers beside the repository.
pub(crate) fn shared() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared")
}

/// The lines of a JSON-lines file beside the repository, or a note that the test is skipped.
pub(crate) fn rows(name: &str) -> Option<Vec<Value>> {
    let path = shared().join(name);
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("skipped: {} is absent", path.display());
        return None;
    };
    Some(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// Folder of a tokenizer by the name that the cases give it. The small model is in the repository; its checkpoint
/// beside the repository has the same files.
pub(crate) fn folder(name: &str) -> PathBuf {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pip.qpack");
    match name {
        "pip" if shipped.join("tokenizer.json").exists() => shipped,
        "pip" => shared().join("models/pip"),
        "next" => shared().join("tokenizers/qwen3"),
        _ => shared().join("tokenizers").join(name),
    }
}

/// One of the tokenizers beside the repository, loaded once a process.
pub(crate) fn shared_tokenizer(name: &str) -> Arc<Tokenizer> {
    static LOADED: OnceLock<Mutex<HashMap<String, Arc<Tokenizer>>>> = OnceLock::new();
    let mut loaded = LOADED.get_or_init(Mutex::default).lock().unwrap();
    let load = || {
        let file = std::fs::read(folder(name).join("tokenizer.json")).unwrap();
        let config = std::fs::read(folder(name).join("tokenizer_config.json")).ok();
        Arc::new(Tokenizer::from_json(&file, config.as_deref()).unwrap())
    };
    loaded.entry(name.to_owned()).or_insert_with(load).clone()
}

/// One of the chat templates beside the repository, by the name that the cases give it.
pub(crate) fn chat_template(name: &str) -> ChatTemplate {
    let read = |file: &str| std::fs::read(folder(name).join(file)).ok();
    let jinja = read(if name == "next" { "qwen3-next.jinja" } else { "chat_template.jinja" });
    let config = read("tokenizer_config.json");
    let files = TemplateFiles { jinja: jinja.as_deref(), tokenizer_config: config.as_deref(), json: None };
    ChatTemplate::from_files(files).unwrap()
}

/// The tokenizer of the small model, or a note that the test is skipped.
pub(crate) fn pip_tokenizer() -> Option<Arc<Tokenizer>> {
    if folder("pip").join("tokenizer.json").exists() {
        return Some(shared_tokenizer("pip"));
    }
    println!("skipped: the small model is absent");
    None
}

/// The template of the small model, or a note that the test is skipped.
pub(crate) fn pip_template() -> Option<ChatTemplate> {
    if folder("pip").join("chat_template.jinja").exists() {
        return Some(chat_template("pip"));
    }
    println!("skipped: the small model is absent");
    None
}

/// A template from its source.
pub(crate) fn template_of(source: &str) -> ChatTemplate {
    ChatTemplate::from_files(TemplateFiles { jinja: Some(source.as_bytes()), ..TemplateFiles::default() })
        .unwrap()
}

/// A message as JSON.
pub(crate) fn message(role: &str, content: &str) -> Value {
    serde_json::json!({"role": role, "content": content})
}
