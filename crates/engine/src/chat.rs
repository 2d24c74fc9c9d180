//! Conversations: messages to prompts, and prompts to positions worth coming back to.

use serde_json::{Map, Value};

use crate::engine::Engine;
use crate::error::EngineError;
use crate::text::{ChatInput, Message, SpecialTokens, TextError};

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
    /// The tokens of a raw text; special tokens in it are recognised.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, EngineError> {
        Ok(self.text()?.tokens().encode(text, SpecialTokens::Recognise).map_err(TextError::from)?)
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
        let (prompt, tokens) = text.prompt(&input)?;
        input.add_generation_prompt = false;
        // Where the template cannot end without the assistant's turn, there is simply no mark.
        let history = text.prompt(&input).map(|(_, ids)| ids).unwrap_or_default();
        let shared = history.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
        Ok(ChatPrompt {
            opens_thinking: prompt.opens_thinking(),
            text: prompt.text().to_owned(),
            mark_at: Some(shared).filter(|&s| 0 < s && s < tokens.len()),
            tokens,
        })
    }
}
