//! Answers in OpenAI's JSON: whole, and as the chunks of a stream.
//!
//! Must not know where text comes from or how bytes travel.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use spinetail_engine::text::{FinishReason, ReasoningSplitter, Split};

use crate::queue::Outcome;

/// Which of the two endpoints an answer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Completion,
}

/// Tokens of a request and its answer.
#[derive(Debug, Clone, Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Debug, Clone, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

#[derive(Debug, Clone, Serialize)]
struct CompletionDetails {
    reasoning_tokens: usize,
}

/// A whole answer or a chunk of one.
#[derive(Serialize)]
struct Body<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice>,
    /// Outer `None`: no such key. Inner: null, which clients that asked for usage find in all chunks but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
struct Choice {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Delta>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Always null: there are none yet, and clients expect the key.
    logprobs: Option<Value>,
    finish_reason: Option<FinishReason>,
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
    content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    refusal: Option<String>,
}

#[derive(Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
}

/// One answer in the making: gathers or passes on what the engine says.
pub(crate) struct Reply {
    endpoint: Endpoint,
    id: String,
    created: u64,
    model: Arc<str>,
    include_usage: bool,
    splitter: Option<ReasoningSplitter>,
    reasoning_tokens: usize,
    begun: bool,
}

impl Reply {
    /// `opens_thinking` says whether a chat prompt ends inside a think block.
    pub(crate) fn new(
        endpoint: Endpoint,
        model: Arc<str>,
        opens_thinking: bool,
        include_usage: bool,
    ) -> Reply {
        let (prefix, splitter) = match endpoint {
            Endpoint::Chat => ("chatcmpl", Some(ReasoningSplitter::new(opens_thinking))),
            Endpoint::Completion => ("cmpl", None),
        };
        let created = crate::ids::unix_seconds();
        let id = format!("{prefix}-{}", crate::ids::random());
        Reply { endpoint, id, created, model, include_usage, splitter, reasoning_tokens: 0, begun: false }
    }

    /// Takes the text of one token apart.
    pub(crate) fn part(&mut self, text: String) -> Split {
        let Some(splitter) = &mut self.splitter else {
            return Split { content: text, ..Split::default() };
        };
        self.reasoning_tokens += usize::from(splitter.is_thinking());
        splitter.push(&text)
    }

    /// What was held back, at the end.
    pub(crate) fn rest(&mut self) -> Split {
        self.splitter.as_mut().map(ReasoningSplitter::finish).unwrap_or_default()
    }

    /// The whole answer.
    pub(crate) fn whole(&self, text: Split, outcome: &Outcome) -> String {
        let mut choice = self.choice(Some(outcome.finish));
        match self.endpoint {
            Endpoint::Chat => {
                let reasoning_content = Some(text.reasoning).filter(|thoughts| !thoughts.is_empty());
                let content = text.content;
                choice.message =
                    Some(Message { role: "assistant", content, reasoning_content, refusal: None });
            }
            Endpoint::Completion => choice.text = Some(text.content),
        }
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion",
            Endpoint::Completion => "text_completion",
        };
        self.json(object, vec![choice], Some(Some(self.usage(outcome))))
    }

    /// The chunks of a piece of text; none if nothing was released.
    pub(crate) fn chunks(&mut self, text: Split, out: &mut Vec<String>) {
        self.begin(out);
        if !text.reasoning.is_empty() {
            let delta = Delta { reasoning_content: Some(text.reasoning), ..Delta::default() };
            out.push(self.chunk(delta, None));
        }
        if !text.content.is_empty() {
            let delta = Delta { content: Some(text.content), ..Delta::default() };
            out.push(self.chunk(delta, None));
        }
    }

    /// The chunks after the last piece of text.
    pub(crate) fn last_chunks(&mut self, outcome: &Outcome, out: &mut Vec<String>) {
        self.begin(out);
        out.push(self.chunk(Delta::default(), Some(outcome.finish)));
        if self.include_usage {
            out.push(self.json(self.chunk_object(), Vec::new(), Some(Some(self.usage(outcome)))));
        }
    }

    /// The first delta of a chat says who speaks.
    fn begin(&mut self, out: &mut Vec<String>) {
        if !self.begun && self.endpoint == Endpoint::Chat {
            let delta = Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
            out.push(self.chunk(delta, None));
        }
        self.begun = true;
    }

    fn chunk(&self, delta: Delta, finish: Option<FinishReason>) -> String {
        let mut choice = self.choice(finish);
        match self.endpoint {
            Endpoint::Chat => choice.delta = Some(delta),
            Endpoint::Completion => choice.text = Some(delta.content.unwrap_or_default()),
        }
        self.json(self.chunk_object(), vec![choice], self.include_usage.then_some(None))
    }

    fn chunk_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completion => "text_completion",
        }
    }

    fn choice(&self, finish_reason: Option<FinishReason>) -> Choice {
        Choice { index: 0, message: None, delta: None, text: None, logprobs: None, finish_reason }
    }

    fn json(&self, object: &'static str, choices: Vec<Choice>, usage: Option<Option<Usage>>) -> String {
        let body = Body { id: &self.id, object, created: self.created, model: &self.model, choices, usage };
        // Strings and numbers only: nothing here can fail to be written.
        serde_json::to_string(&body).unwrap_or_default()
    }

    fn usage(&self, outcome: &Outcome) -> Usage {
        Usage {
            prompt_tokens: outcome.prompt_tokens,
            completion_tokens: outcome.completion_tokens,
            total_tokens: outcome.prompt_tokens + outcome.completion_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens: outcome.cached_tokens },
            completion_tokens_details: CompletionDetails {
                // Text that was held back to the end comes with its token a second time.
                reasoning_tokens: self.reasoning_tokens.min(outcome.completion_tokens),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(chunks: &[String]) -> Vec<Value> {
        chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect()
    }

    fn outcome() -> Outcome {
        Outcome { finish: FinishReason::Stop, prompt_tokens: 5, cached_tokens: 2, completion_tokens: 3 }
    }

    /// Case A14, without the network.
    #[test]
    fn chunks_of_a_chat() {
        for include_usage in [false, true] {
            let mut reply = Reply::new(Endpoint::Chat, "m".into(), true, include_usage);
            let mut out = Vec::new();
            for piece in ["Hm", "</think>", "\n\nYes"] {
                let split = reply.part(piece.to_owned());
                reply.chunks(split, &mut out);
            }
            reply.last_chunks(&outcome(), &mut out);
            let chunks = parsed(&out);
            assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
            assert_eq!(chunks[1]["choices"][0]["delta"]["reasoning_content"], "Hm");
            assert_eq!(chunks[2]["choices"][0]["delta"], serde_json::json!({"content": "Yes"}));
            assert_eq!(chunks[3]["choices"][0]["delta"], serde_json::json!({}));
            assert_eq!(chunks[3]["choices"][0]["finish_reason"], "stop");
            assert_eq!(chunks.len(), if include_usage { 5 } else { 4 });
            for chunk in &chunks[..4] {
                assert_eq!(chunk.get("usage"), include_usage.then_some(&Value::Null));
            }
            if include_usage {
                assert_eq!(chunks[4]["choices"], serde_json::json!([]));
                assert_eq!(chunks[4]["usage"]["total_tokens"], 8);
                assert_eq!(chunks[4]["usage"]["completion_tokens_details"]["reasoning_tokens"], 2);
            }
        }
    }

    #[test]
    fn a_completion_has_text() {
        let mut reply = Reply::new(Endpoint::Completion, "m".into(), false, false);
        let mut out = Vec::new();
        let split = reply.part("<think>a".to_owned());
        reply.chunks(split, &mut out);
        reply.last_chunks(&outcome(), &mut out);
        let chunks = parsed(&out);
        assert_eq!(chunks[0]["choices"][0]["text"], "<think>a");
        assert_eq!(chunks[1]["choices"][0]["text"], "");
        assert_eq!(chunks[1]["choices"][0]["finish_reason"], "stop");
    }
}
