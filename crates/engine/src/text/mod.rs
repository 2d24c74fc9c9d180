//! The text half of the engine: tokens, chat templates, reasoning, stops and sampling.
//!
//! Everything here turns text into token ids or logits into text. Must not know about HTTP, the command line, the
//! environment, or how logits are computed; files come as bytes, by name.

mod bpe;
mod detokenizer;
mod error;
mod jinja;
mod messages;
mod prompt;
mod protect;
mod template;
mod tojson;
mod tokenizer;
mod tokenizer_json;

pub use detokenizer::{Detokenizer, decode};
pub use error::{TemplateError, TokenizerError};
pub use messages::{Content, Function, Message, Part, ToolCall};
pub use prompt::Prompt;
pub use template::{ChatInput, ChatTemplate, TemplateFiles};
pub use tokenizer::{SpecialTokens, Tokenizer, Tokens};
