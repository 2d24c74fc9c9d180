//! Messages as clients send them, and the one form that templates get.
//!
//! Clients write arguments as a JSON string or as a map, content as a string, a list or null, `developer` for `system`.
//! Here all of it becomes what Hugging Face would pass to the template; what cannot be is refused, naming the field.
//! Must not know any particular template.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::TemplateError;

/// One message of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text, parts of text, or nothing.
    #[serde(default)]
    pub content: Option<Content>,
    /// What the assistant thought.
    #[serde(default, alias = "reasoning", skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Tools that the assistant called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// The call that a tool's message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of who speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Fields that only some templates know; they are passed on.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Content of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// One string.
    Text(String),
    /// A list of parts; only text is supported.
    Parts(Vec<Part>),
}

/// A part of a message's content.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// `text`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Whatever else it has.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A tool that the assistant called.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Identifies the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The function and its arguments.
    pub function: Function,
}

/// The function of a tool call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Its arguments: a map, or a JSON object in a string.
    #[serde(default)]
    pub arguments: Value,
}

impl Message {
    /// A message with one string.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: Some(Content::Text(content.into())), ..Message::default() }
    }

    /// The texts of its content.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        let (text, parts) = match &self.content {
            Some(Content::Text(text)) => (Some(text), &[][..]),
            Some(Content::Parts(parts)) => (None, &parts[..]),
            None => (None, &[][..]),
        };
        text.into_iter().chain(parts.iter().filter_map(|part| part.text.as_ref())).map(String::as_str)
    }
}

/// A message in the form for templates.
#[derive(Debug, Clone)]
pub(super) struct Normal {
    /// Place in the request of the (first) message that this one is made of.
    pub(super) index: usize,
    pub(super) role: &'static str,
    pub(super) fields: Map<String, Value>,
}

/// Brings messages into the form for templates; `lists` says whether the template knows content as a list.
pub(super) fn normalize(messages: &[Message], lists: bool) -> Result<Vec<Normal>, TemplateError> {
    if messages.is_empty() {
        return Err(refused("messages".to_owned(), "expected at least one message"));
    }
    let mut normal = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        normal.push(one(index, message, lists)?);
    }
    Ok(merge_leading_system(normal))
}

fn one(index: usize, message: &Message, lists: bool) -> Result<Normal, TemplateError> {
    let at = format!("messages[{index}]");
    let role = match message.role.as_str() {
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        "tool" => "tool",
        other => {
            let reason = format!("expected system, developer, user, assistant or tool, found {other:?}");
            return Err(refused(format!("{at}.role"), &reason));
        }
    };
    let mut fields = Map::new();
    fields.insert("role".to_owned(), role.into());
    fields.insert("content".to_owned(), content(&at, role, message.content.as_ref(), lists)?);
    let mut set = |key: &str, value: Option<&String>| {
        if let Some(value) = value {
            fields.insert(key.to_owned(), value.as_str().into());
        }
    };
    set("reasoning_content", message.reasoning_content.as_ref());
    set("tool_call_id", message.tool_call_id.as_ref());
    set("name", message.name.as_ref());
    if let Some(calls) = message.tool_calls.as_ref().filter(|calls| !calls.is_empty()) {
        let calls =
            calls.iter().enumerate().map(|(call, it)| tool_call(&format!("{at}.tool_calls[{call}]"), it));
        fields.insert("tool_calls".to_owned(), Value::Array(calls.collect::<Result<_, _>>()?));
    }
    for (key, value) in &message.other {
        fields.entry(key.as_str()).or_insert_with(|| value.clone());
    }
    Ok(Normal { index, role, fields })
}

/// Null becomes the empty string for those who may have nothing to say: half of the templates would print `None`, or
/// fail to add it to a string.
fn content(at: &str, role: &str, content: Option<&Content>, lists: bool) -> Result<Value, TemplateError> {
    let parts = match content {
        None if matches!(role, "assistant" | "tool") => return Ok("".into()),
        None => return Err(refused(format!("{at}.content"), "expected text, found null")),
        Some(Content::Text(text)) => return Ok(text.as_str().into()),
        Some(Content::Parts(parts)) => parts,
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        match (part.kind.as_deref(), &part.text) {
            (None | Some("text"), Some(text)) => texts.push(text.as_str()),
            (kind, _) => {
                let found = kind.map_or("no type".to_owned(), |k| format!("type {k:?}"));
                let reason = format!("expected a part of type \"text\" with a text, found {found}");
                return Err(refused(format!("{at}.content[{index}]"), &reason));
            }
        }
    }
    if lists {
        return Ok(texts.into_iter().map(|text| serde_json::json!({"type": "text", "text": text})).collect());
    }
    Ok(texts.concat().into())
}

fn tool_call(at: &str, call: &ToolCall) -> Result<Value, TemplateError> {
    if call.kind.as_deref().is_some_and(|kind| kind != "function") {
        return Err(refused(format!("{at}.type"), "expected \"function\""));
    }
    let arguments = arguments(&call.function.arguments)
        .map_err(|reason| refused(format!("{at}.function.arguments"), &reason))?;
    let mut fields = Map::new();
    if let Some(id) = &call.id {
        fields.insert("id".to_owned(), id.as_str().into());
    }
    fields.insert("type".to_owned(), "function".into());
    fields.insert(
        "function".to_owned(),
        serde_json::json!({"name": call.function.name, "arguments": Value::Object(arguments)}),
    );
    Ok(Value::Object(fields))
}

/// Arguments as a map, keys in the order in which the client wrote them.
fn arguments(given: &Value) -> Result<Map<String, Value>, String> {
    let parsed = match given {
        Value::Object(map) => return Ok(map.clone()),
        Value::Null => return Ok(Map::new()),
        Value::String(text) if text.trim().is_empty() => return Ok(Map::new()),
        Value::String(text) => serde_json::from_str(text)
            .map_err(|error| format!("expected a JSON object, found a string that is not JSON ({error})"))?,
        other => other.clone(),
    };
    let found = match parsed {
        Value::Object(map) => return Ok(map),
        Value::Array(_) => "an array",
        Value::String(_) => "a string",
        Value::Number(_) => "a number",
        Value::Bool(_) => "a boolean",
        Value::Null => "null",
    };
    Err(format!("expected a JSON object, found {found}"))
}

/// System messages at the beginning become one: templates know at most one, and clients send several.
fn merge_leading_system(mut messages: Vec<Normal>) -> Vec<Normal> {
    let leading = messages.iter().take_while(|message| message.role == "system").count();
    if leading < 2 {
        return messages;
    }
    let texts: Vec<String> =
        messages[..leading].iter().map(|message| text_of(&message.fields["content"])).collect();
    let said: Vec<&str> = texts.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
    messages.drain(1..leading);
    messages[0].fields["content"] = said.join("\n\n").into();
    messages
}

/// Content as one string, whichever form it has.
fn text_of(content: &Value) -> String {
    match content {
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        other => other.as_str().unwrap_or_default().to_owned(),
    }
}

pub(super) fn refused(param: String, reason: &str) -> TemplateError {
    TemplateError::Refused { param, reason: reason.to_owned() }
}
