//! What can go wrong between text and tokens.
//!
//! One enum per family of operations. A message says what was expected, what was found and what to do; where a
//! client's request is at fault, `param` names the field in the request's own words, so that a server can pass it on.

/// A tokenizer file that cannot be used, or text that cannot be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A file is not the JSON that it should be.
    #[error("{file} is not readable as JSON: {reason}; fetch the model's tokenizer files again")]
    Json {
        /// Name of the file.
        file: &'static str,
        /// What the parser said.
        reason: String,
    },
    /// The file is well formed but asks for something that this tokenizer does not do.
    #[error(
        "{file}: {found} is not supported, expected {expected}; this model needs another tokenizer than a byte-level BPE"
    )]
    Unsupported {
        /// Name of the file.
        file: &'static str,
        /// The setting as it stands in the file.
        found: String,
        /// What would be understood.
        expected: &'static str,
    },
    /// The file contradicts itself.
    #[error("{file}: {reason}; the file is damaged or of another model, fetch it again")]
    Inconsistent {
        /// Name of the file.
        file: &'static str,
        /// The contradiction.
        reason: String,
    },
    /// Something from outside is larger than the bound set for it.
    #[error("{what} is {found} large, the limit is {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        found: usize,
        /// The bound.
        limit: usize,
    },
    /// A text of more tokens than it may have.
    #[error("the text has at least {least} tokens, where at most {limit} are taken; shorten it")]
    TooManyTokens {
        /// Tokens that it certainly has.
        least: usize,
        /// The bound.
        limit: usize,
    },
    /// The splitting pattern gave up on this text.
    #[error(
        "the text cannot be split into words ({reason}); shorten runs of more than a million white-space characters"
    )]
    Split {
        /// What the pattern engine said.
        reason: String,
    },
    /// An id that no token has.
    #[error("there is no token with the id {id}, the vocabulary has ids below {size}")]
    UnknownId {
        /// The id.
        id: u32,
        /// One past the largest id.
        size: usize,
    },
    /// A file that every model needs is absent.
    #[error("the model has no {file}; fetch it from where the model came from")]
    Missing {
        /// Name of the file.
        file: &'static str,
    },
}

/// A chat template that cannot be used, or messages that cannot be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The model has no chat template.
    #[error(
        "the model has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json); add one, or \
         send a raw prompt"
    )]
    Missing,
    /// A template file is not readable.
    #[error("{file}: {reason}; fetch the model's tokenizer files again")]
    Unreadable {
        /// Name of the file.
        file: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The template is not valid Jinja, or uses something that is not supported.
    #[error("the chat template does not compile: {reason}")]
    Syntax {
        /// What the template engine said, with the line.
        reason: String,
    },
    /// The messages, tools or template arguments of a request are at fault.
    #[error("{param}: {reason}")]
    Refused {
        /// The field, as `messages[2].content`.
        param: String,
        /// Why: the template's own words where it raised an exception.
        reason: String,
    },
    /// The template failed in a way that is not the request's fault as far as can be told.
    #[error("the chat template failed: {reason}")]
    Failed {
        /// What the template engine said, with the line.
        reason: String,
    },
    /// The template does not come to an end within the work that a request of this size is worth.
    #[error("the chat template did not finish within its limit of {limit} steps; it loops, or is made to")]
    OutOfFuel {
        /// The limit for this request.
        limit: u64,
    },
}

impl TemplateError {
    /// The field of the request that is at fault, if one is.
    pub fn param(&self) -> Option<&str> {
        match self {
            TemplateError::Refused { param, .. } => Some(param),
            _ => None,
        }
    }
}

/// A sampling parameter or stop string that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{param}: {reason}")]
#[non_exhaustive]
pub struct ParamError {
    /// The field of the request, as `temperature`.
    pub param: &'static str,
    /// What was expected and found.
    pub reason: String,
}

/// Logits that no token can be drawn from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// A logit is NaN or plus infinity: the model's arithmetic went wrong before sampling.
    #[error(
        "the logit of token {id} is not a number; the model's weights or arithmetic are at fault, not the sampling"
    )]
    NotANumber {
        /// The first such token.
        id: u32,
    },
    /// Every token is ruled out.
    #[error("no token is allowed here: all logits are minus infinity")]
    NothingAllowed,
    /// There are fewer logits than tokens.
    #[error(
        "the model gave {found} logits, the tokenizer has {expected} tokens; model and tokenizer do not belong together"
    )]
    TooFew {
        /// Number of logits.
        found: usize,
        /// Size of the vocabulary.
        expected: usize,
    },
}

/// The text half of a model cannot be loaded or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file cannot be read.
    #[error("cannot read {file}: {source}")]
    Read {
        /// Name of the file.
        file: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The tokenizer's files, or text that it cannot encode.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The conversation, or the template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The model's chat template is missing or does not compile.
    #[error("{reason}")]
    NoTemplate {
        /// What was found when the model was loaded.
        reason: String,
    },
}

impl TextError {
    /// The field of the request that is at fault, if one is.
    pub fn param(&self) -> Option<&str> {
        match self {
            TextError::Template(error) => error.param(),
            _ => None,
        }
    }
}
