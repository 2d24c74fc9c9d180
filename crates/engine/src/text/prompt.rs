//! A prompt that remembers which special tokens in it are a client's words.
//!
//! Must not know how the marks came about (`protect`) or how ids are made from them (`tokenizer`).

use std::ops::Range;

/// A rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    text: String,
    marks: Vec<usize>,
}

impl Prompt {
    /// A prompt in which every special token counts as one: for text that a program wrote.
    pub fn trusted(text: String) -> Prompt {
        Prompt { text, marks: Vec::new() }
    }

    /// A prompt with byte offsets, ascending, that lie within the text of special tokens which came from a message.
    pub(super) fn with_marks(text: String, marks: Vec<usize>) -> Prompt {
        Prompt { text, marks }
    }

    /// The text, as a person would read it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether what stands in this range came from a message, wholly or in part, and so is text and no token.
    pub(super) fn is_from_message(&self, range: &Range<usize>) -> bool {
        let next = self.marks.partition_point(|&mark| mark <= range.start);
        self.marks.get(next).is_some_and(|&mark| mark < range.end)
    }

    /// Whether the prompt ends in a think block that it has opened and not closed: generation starts inside it.
    pub fn opens_thinking(&self) -> bool {
        self.text.trim_end().ends_with("<think>")
    }
}
