//! A prompt that remembers which special tokens in it are a client's words.
//!
//! Must not know how the marks came about (`protect`) or how ids are made from them (`tokenizer`).

use std::ops::Range;

/// A rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    text: String,
    from_messages: Vec<Range<usize>>,
}

impl Prompt {
    /// A prompt in which `from_messages` (byte ranges, ascending, apart from each other) came from message strings and
    /// hold the text of special tokens, which must not be taken for the tokens.
    pub fn new(text: String, from_messages: Vec<Range<usize>>) -> Prompt {
        Prompt { text, from_messages }
    }

    /// The text, as a person would read it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether any byte of this range came from a message's special-token text.
    pub fn is_from_message(&self, range: Range<usize>) -> bool {
        let after = self.from_messages.partition_point(|marked| marked.end <= range.start);
        self.from_messages.get(after).is_some_and(|marked| marked.start < range.end)
    }
}
