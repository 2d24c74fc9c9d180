//! The request of `/v1/chat/completions`: JSON to messages and options.

use serde_json::{Map, Value, json};
use spinetail_engine::text::{Content, Function, Message, Part, ToolCall};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::sampling::Common;

/// A chat request.
#[derive(Debug)]
pub(crate) struct ChatRequest {
    pub(crate) common: Common,
    pub(crate) messages: Vec<Message>,
    /// Further arguments of the model's chat template.
    pub(crate) kwargs: Map<String, Value>,
    /// Fields that a lenient server did not look at.
    pub(crate) ignored: Vec<String>,
}

impl ChatRequest {
    pub(crate) fn parse(map: Map<String, Value>, lenient: bool) -> Result<ChatRequest, ApiError> {
        let mut fields = Fields::new(map, lenient);
        let Some(given) = fields.array("messages")? else {
            return Err(ApiError::bad_field("messages", "expected an array of messages, found nothing"));
        };
        let mut messages = Vec::with_capacity(given.len());
        for (index, message) in given.into_iter().enumerate() {
            messages.push(take_message(&mut fields, &format!("messages[{index}]"), message)?);
        }
        let common = Common::take(&mut fields)?;
        let kwargs = fields.object("chat_template_kwargs")?.unwrap_or_default();
        refuse_unsupported(&mut fields)?;
        Ok(ChatRequest { common, messages, kwargs, ignored: fields.finish()? })
    }
}

fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    let is_empty = |v: &Value| v == &json!([]);
    fields.unsupported("tools", is_empty, "tool calls in the history are, new ones are not yet")?;
    fields.unsupported("functions", is_empty, "it is an old name of tools")?;
    fields.unsupported("tool_choice", |_| false, "there are no tools to choose from yet")?;
    fields.unsupported("function_call", |_| false, "it is an old name of tool_choice")?;
    fields.unsupported("parallel_tool_calls", Value::is_boolean, "expected true or false")?;
    let is_text = |v: &Value| v == &json!({"type": "text"});
    fields.unsupported("response_format", is_text, "only {\"type\": \"text\"} yet")?;
    fields.unsupported("logprobs", |v| v == false, "only false")?;
    fields.unsupported("top_logprobs", |v| v.as_u64() == Some(0), "only 0")?;
    fields.unsupported("modalities", |v| v == &json!(["text"]), "only [\"text\"]")
}

/// Parses what is within a field, which sees the same leniency.
fn within<T>(
    outer: &mut Fields,
    path: &str,
    value: Value,
    parse: impl FnOnce(&mut Fields) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let Value::Object(map) = value else {
        return Err(ApiError::bad_field(path, "expected an object"));
    };
    let mut fields = outer.within(map, path);
    let parsed = parse(&mut fields)?;
    outer.absorb(fields.finish()?);
    Ok(parsed)
}

fn take_message(outer: &mut Fields, at: &str, value: Value) -> Result<Message, ApiError> {
    within(outer, at, value, |fields| {
        let Some(role) = fields.string("role")? else {
            return Err(ApiError::bad_field(fields.name("role"), "expected a string, found nothing"));
        };
        let thoughts = take_thoughts(fields)?;
        // What clients copy from an answer into history without meaning anything by it.
        fields.unsupported("annotations", |v| v == &json!([]), "only an empty array")?;
        Ok(Message {
            role,
            content: take_content(fields, &format!("{at}.content"))?,
            reasoning_content: thoughts,
            tool_calls: take_calls(fields, at)?,
            tool_call_id: fields.string("tool_call_id")?,
            name: fields.string("name")?,
            other: Map::new(),
        })
    })
}

/// Two names are in use for the same.
fn take_thoughts(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let thoughts = fields.string("reasoning_content")?;
    let other = fields.string("reasoning")?;
    if thoughts.is_some() && other.is_some() && thoughts != other {
        let reason = "contradicts reasoning_content, which is another name for it; give one of them";
        return Err(ApiError::bad_field(fields.name("reasoning"), reason));
    }
    Ok(thoughts.or(other))
}

fn take_content(fields: &mut Fields, at: &str) -> Result<Option<Content>, ApiError> {
    match fields.take("content") {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(Content::Text(text))),
        Some(Value::Array(items)) => {
            let mut parts = Vec::with_capacity(items.len());
            for (index, item) in items.into_iter().enumerate() {
                parts.push(take_part(fields, &format!("{at}[{index}]"), item)?);
            }
            Ok(Some(Content::Parts(parts)))
        }
        Some(other) => Err(fields.wrong("content", "a string or an array of parts", &other)),
    }
}

fn take_part(outer: &mut Fields, at: &str, value: Value) -> Result<Part, ApiError> {
    within(outer, at, value, |fields| {
        let kind = fields.string("type")?;
        if let Some(kind) = kind.as_deref().filter(|&kind| kind != "text") {
            let reason = format!("parts of type {kind:?} are not supported; only \"text\" is");
            return Err(ApiError::bad_field(fields.name("type"), reason));
        }
        Ok(Part { kind, text: fields.string("text")?, other: Map::new() })
    })
}

fn take_calls(fields: &mut Fields, at: &str) -> Result<Option<Vec<ToolCall>>, ApiError> {
    let Some(items) = fields.array("tool_calls")? else { return Ok(None) };
    let mut calls = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        calls.push(take_call(fields, &format!("{at}.tool_calls[{index}]"), item)?);
    }
    Ok(Some(calls))
}

fn take_call(outer: &mut Fields, at: &str, value: Value) -> Result<ToolCall, ApiError> {
    within(outer, at, value, |fields| {
        // Deltas of a stream, put together by a client, may still have their index.
        fields.harmless(&["index"]);
        let id = fields.string("id")?;
        let kind = fields.string("type")?;
        let Some(function) = fields.take("function") else {
            return Err(ApiError::bad_field(fields.name("function"), "expected an object, found nothing"));
        };
        let function = within(fields, &format!("{at}.function"), function, |fields| {
            let Some(name) = fields.string("name")? else {
                return Err(ApiError::bad_field(fields.name("name"), "expected a string, found nothing"));
            };
            Ok(Function { name, arguments: fields.take("arguments").unwrap_or_default() })
        })?;
        Ok(ToolCall { id, kind, function })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: Value) -> Result<ChatRequest, ApiError> {
        let Value::Object(map) = value else { panic!("an object") };
        ChatRequest::parse(map, false)
    }

    fn param(value: Value) -> String {
        parse(value).unwrap_err().param.unwrap()
    }

    #[test]
    fn harmless_fields_and_nulls_pass() {
        let request = parse(json!({
            "model": "pip", "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}], "name": null},
                {"role": "assistant", "content": null, "refusal": null, "annotations": [], "audio": null,
                 "function_call": null, "tool_calls": [
                    {"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "c", "content": "1"}],
            "user": "u", "metadata": {"a": "b"}, "store": false, "service_tier": "auto", "stream_options": null,
            "tools": [], "response_format": {"type": "text"}, "logprobs": false, "n": 1, "parallel_tool_calls": true,
            "temperature": null, "tool_choice": null, "something_new": null
        }))
        .unwrap();
        assert_eq!(request.messages.len(), 3);
        assert!(request.ignored.is_empty());
    }

    #[test]
    fn what_is_refused_is_named() {
        let user = json!([{"role": "user", "content": "hi"}]);
        assert_eq!(param(json!({})), "messages");
        assert_eq!(param(json!({"messages": "hi"})), "messages");
        assert_eq!(param(json!({"messages": ["hi"]})), "messages[0]");
        assert_eq!(param(json!({"messages": [{"content": "hi"}]})), "messages[0].role");
        assert_eq!(param(json!({"messages": [{"role": "user", "content": 1}]})), "messages[0].content");
        let image = json!([{"type": "image_url", "image_url": {"url": "data:"}}]);
        assert_eq!(
            param(json!({"messages": [{"role": "user", "content": image}]})),
            "messages[0].content[0].type"
        );
        assert_eq!(param(json!({"messages": [{"role": "user", "content": "a", "x": 1}]})), "messages[0].x");
        for (field, value) in [
            ("tools", json!([{"type": "function"}])),
            ("tool_choice", json!("auto")),
            ("response_format", json!({"type": "json_object"})),
            ("n", json!(2)),
            ("logprobs", json!(true)),
            ("stop", json!(7)),
            ("max_tokens", json!(0)),
            ("max_completion_tokens", json!(-1)),
            ("stream", json!("yes")),
            ("stream_options", json!({"include_usage": true})),
            ("logit_bias", json!([1])),
            ("reasoning_effort", json!("high")),
            ("frequency_penaltee", json!(1)),
            ("seed", json!(1e30)),
        ] {
            assert_eq!(param(json!({"messages": user, field: value})), field);
        }
        let both = json!({"messages": user, "max_tokens": 1, "max_completion_tokens": 2});
        assert_eq!(param(both), "max_completion_tokens");
        let options = json!({"messages": user, "stream": true, "stream_options": {"x": 1}});
        assert_eq!(param(options), "stream_options.x");
    }
}
