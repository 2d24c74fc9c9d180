//! The text half of the engine: tokens, chat templates, reasoning, stops and sampling.
//!
//! Everything here turns text into token ids or logits into text. Must not know about HTTP, the command line, the
//! environment, or how logits are computed; files come as bytes, by name.

mod bpe;
mod defaults;
mod detokenizer;
mod error;
mod jinja;
mod messages;
mod model;
mod prompt;
mod protect;
mod reasoning;
mod sampling;
mod stops;
mod template;
mod tojson;
mod tokenizer;
mod tokenizer_json;

pub use defaults::SamplingDefaults;
pub use detokenizer::{Detokenizer, decode};
pub use error::{ParamError, SampleError, TemplateError, TextError, TokenizerError};
pub use messages::{Content, Function, Message, Part, ToolCall};
pub use model::{ReadFile, TextModel};
pub use prompt::Prompt;
pub use reasoning::{ReasoningSplitter, Split};
pub use sampling::{Sampler, SamplingParams, parse_logit_bias};
pub use stops::{FinishReason, StopStep, StopStrings};
pub use template::{ChatInput, ChatTemplate, TemplateFiles};
pub use tokenizer::{SpecialTokens, Tokenizer, Tokens};
