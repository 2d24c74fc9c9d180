//! The request of `/v1/completions`: a raw prompt and options.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::sampling::Common;

/// Tokens generated for a client that gives no limit, as OpenAI has it.
pub(crate) const DEFAULT_MAX_TOKENS: usize = 16;

/// A prompt as it was sent.
#[derive(Debug, PartialEq)]
pub(crate) enum Prompt {
    /// Text; special tokens in it are recognised.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

/// A completion request.
#[derive(Debug)]
pub(crate) struct CompletionRequest {
    pub(crate) common: Common,
    pub(crate) prompt: Prompt,
    /// Fields that a lenient server did not look at.
    pub(crate) ignored: Vec<String>,
}

impl CompletionRequest {
    /// `vocabulary_size` bounds the ids of a prompt.
    pub(crate) fn parse(
        map: Map<String, Value>,
        lenient: bool,
        vocabulary_size: usize,
    ) -> Result<CompletionRequest, ApiError> {
        let mut fields = Fields::new(map, lenient);
        let prompt = take_prompt(&mut fields, vocabulary_size)?;
        let common = Common::take(&mut fields)?;
        fields.unsupported("echo", |v| v == false, "only false")?;
        fields.unsupported("best_of", |v| v.as_u64() == Some(1), "only 1")?;
        fields.unsupported("suffix", |v| v == "", "text is continued, not filled in")?;
        fields.unsupported("logprobs", |v| v == false, "no log probabilities yet")?;
        Ok(CompletionRequest { common, prompt, ignored: fields.finish()? })
    }
}

fn take_prompt(fields: &mut Fields, vocabulary_size: usize) -> Result<Prompt, ApiError> {
    let mut value = fields.take("prompt").unwrap_or_default();
    // A list of one prompt is that prompt.
    if let Value::Array(items) = &mut value
        && items.len() == 1
        && !items[0].is_number()
    {
        value = items.swap_remove(0);
    }
    match value {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(items) if items.iter().all(Value::is_number) => {
            let ids = items.iter().enumerate().map(|(index, item)| {
                let id = item.as_u64().filter(|&id| id < vocabulary_size as u64);
                id.map(|id| id as u32).ok_or_else(|| {
                    let reason = format!("{item} is no token id, expected 0 to {}", vocabulary_size - 1);
                    ApiError::bad_field(format!("prompt[{index}]"), reason)
                })
            });
            Ok(Prompt::Tokens(ids.collect::<Result<_, _>>()?))
        }
        Value::Array(_) => Err(ApiError::bad_field(
            "prompt",
            "expected one prompt, found several; send a string or an array of token ids, one prompt a request",
        )),
        other => Err(fields.wrong("prompt", "a string or an array of token ids", &other)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn prompt(value: Value) -> Result<Prompt, Option<String>> {
        let map = Map::from_iter([("prompt".to_owned(), value)]);
        CompletionRequest::parse(map, false, 10).map(|r| r.prompt).map_err(|e| e.param)
    }

    #[test]
    fn one_prompt_as_text_or_ids() {
        assert_eq!(prompt(json!("a")), Ok(Prompt::Text("a".to_owned())));
        assert_eq!(prompt(json!(["a"])), Ok(Prompt::Text("a".to_owned())));
        assert_eq!(prompt(json!([1, 9])), Ok(Prompt::Tokens(vec![1, 9])));
        assert_eq!(prompt(json!([7])), Ok(Prompt::Tokens(vec![7])));
        assert_eq!(prompt(json!([[7, 8]])), Ok(Prompt::Tokens(vec![7, 8])));
        let refused = |at: &str| Err(Some(at.to_owned()));
        assert_eq!(prompt(json!([1, 10])), refused("prompt[1]"));
        assert_eq!(prompt(json!([-1, 1])), refused("prompt[0]"));
        assert_eq!(prompt(json!([1.5, 1])), refused("prompt[0]"));
        for other in [json!(["a", "b"]), json!([[1], [2]]), json!(7), json!(null), json!({"a": 1})] {
            assert_eq!(prompt(other), refused("prompt"));
        }
    }
}
