//! Conversations: messages to prompts, and prompts to positions worth coming back to.

use serde_json::{Map, Value};

use crate::engine::Engine;
use crate::error::EngineError;
use crate::text::{ChatInput, Message, TextError, TokenizerError};

/// A conversation as token ids.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ChatPrompt {
    /// The prompt's text, as a person would read it.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Where the last message ends, if the prompt goes on after it in a way that later prompts will not repeat. To be
    /// given to [`Session::answer`](crate::Session::answer).
    pub mark_at: Option<usize>,
    /// Whether the answer begins inside a think block.
    pub opens_thinking: bool,
}

impl Engine {
    /// The tokens of a raw text; special tokens in it are recognised. One of some more tokens than the context has is
    /// encoded all the same, so that the error can say how many there are; one of many more is refused early.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, EngineError> {
        self.text()?.encode(text, self.most_tokens()).map_err(|e| self.too_long(e))
    }

    /// Texts of more tokens are not encoded to their end.
    pub(crate) fn most_tokens(&self) -> usize {
        2 * self.inner.context as usize
    }

    /// What a text that was refused for its length is refused for.
    fn too_long(&self, e: TextError) -> EngineError {
        match e {
            TextError::Tokenizer(TokenizerError::TooManyTokens { least, .. }) => {
                EngineError::TextTooLong { least, context: self.inner.context as usize }
            }
            e => e.into(),
        }
    }

    /// Renders a conversation that the assistant is to answer. `kwargs` are further arguments of the template, such as
    /// `enable_thinking`.
    pub fn render_chat(
        &self,
        messages: &[Message],
        tools: Option<&[Value]>,
        kwargs: &Map<String, Value>,
    ) -> Result<ChatPrompt, EngineError> {
        let text = self.text()?;
        let mut input = ChatInput { messages, tools, kwargs, add_generation_prompt: true };
        let limit = self.most_tokens();
        let (prompt, tokens) = text.prompt(&input, limit).map_err(|e| self.too_long(e))?;
        input.add_generation_prompt = false;
        // Where the template cannot end without the assistant's turn, there is simply no mark.
        let history = text.prompt(&input, limit).map(|(_, ids)| ids).unwrap_or_default();
        let shared = history.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
        Ok(ChatPrompt {
            opens_thinking: prompt.opens_thinking(),
            text: prompt.text().to_owned(),
            mark_at: Some(shared).filter(|&s| 0 < s && s < tokens.len()),
            tokens,
        })
    }
}
