//! Splits generated text into thoughts and answer, as it comes.
//!
//! Must not let a thought appear as answer, not even when the generation is cut short, nor a tag in either. Tool calls
//! are left in the answer.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// Text that is ready, by kind; either may be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Split {
    /// The next part of the thoughts.
    pub reasoning: String,
    /// The next part of the answer.
    pub content: String,
}

/// Where in the generated text we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing but white space so far; a think block may begin.
    Start,
    /// In a think block that has said nothing yet.
    Opened,
    Thinking,
    /// Behind a think block, before the answer: its line breaks belong to the format.
    Closed,
    Answering,
}

/// Splits one generation.
#[derive(Debug, Clone)]
pub struct ReasoningSplitter {
    state: State,
    /// Text that is not decided: part of a tag, or white space that may be the end of the thoughts.
    held: String,
}

impl ReasoningSplitter {
    /// `opened` says whether the prompt has opened the think block already
    /// ([`Prompt::opens_thinking`](super::Prompt::opens_thinking)).
    pub fn new(opened: bool) -> ReasoningSplitter {
        ReasoningSplitter { state: if opened { State::Opened } else { State::Start }, held: String::new() }
    }

    /// Whether the generation is in the think block.
    pub fn is_thinking(&self) -> bool {
        matches!(self.state, State::Opened | State::Thinking)
    }

    /// Takes a piece of generated text.
    pub fn push(&mut self, text: &str) -> Split {
        self.held.push_str(text);
        let mut split = Split::default();
        while self.step(&mut split) {}
        split
    }

    /// At the end of the generation, what was held back after all: a tag that was cut is part of where it stands.
    pub fn finish(&mut self) -> Split {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Opened | State::Thinking => {
                Split { reasoning: held.trim_end().to_owned(), ..Split::default() }
            }
            State::Start | State::Closed | State::Answering => Split { content: held, ..Split::default() },
        }
    }

    /// Moves on by one decision; `false` if more text is needed for the next.
    fn step(&mut self, split: &mut Split) -> bool {
        match self.state {
            State::Start => {
                let begun = self.held.trim_start();
                if begun.starts_with(OPEN) {
                    self.drop_through(OPEN);
                    self.state = State::Opened;
                } else if OPEN.starts_with(begun) {
                    return false;
                } else {
                    self.state = State::Answering;
                }
            }
            State::Opened => {
                self.drop_front(char::is_whitespace);
                if self.held.starts_with(OPEN) {
                    // Some models repeat the tag that the prompt has.
                    self.drop_through(OPEN);
                } else if self.held.starts_with(CLOSE) {
                    self.drop_through(CLOSE);
                    self.state = State::Closed;
                } else if OPEN.starts_with(&self.held) || CLOSE.starts_with(&self.held) {
                    return false;
                } else {
                    self.state = State::Thinking;
                }
            }
            State::Thinking => {
                if let Some(end) = self.held.find(CLOSE) {
                    split.reasoning.push_str(self.held[..end].trim_end());
                    self.drop_through(CLOSE);
                    self.state = State::Closed;
                } else {
                    let cut = self.held.len() - partial(&self.held, CLOSE);
                    let ready = self.held[..cut].trim_end().len();
                    split.reasoning.push_str(&self.held[..ready]);
                    self.held.drain(..ready);
                    return false;
                }
            }
            State::Closed => {
                self.drop_front(|c| matches!(c, '\n' | '\r'));
                if self.held.is_empty() {
                    return false;
                }
                self.state = State::Answering;
            }
            State::Answering => {
                split.content.push_str(&std::mem::take(&mut self.held));
                return false;
            }
        }
        true
    }

    fn drop_through(&mut self, tag: &str) {
        let end = self.held.find(tag).map_or(0, |at| at + tag.len());
        self.held.drain(..end);
    }

    fn drop_front(&mut self, is_dropped: impl Fn(char) -> bool) {
        let kept = self.held.trim_start_matches(is_dropped).len();
        self.held.drain(..self.held.len() - kept);
    }
}

/// Length of the longest end of `text` that `tag` begins with.
fn partial(text: &str, tag: &str) -> usize {
    (1..tag.len()).rev().find(|&n| text.ends_with(&tag[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(opened: bool, pieces: &[&str]) -> (String, String) {
        let mut splitter = ReasoningSplitter::new(opened);
        let mut whole = (String::new(), String::new());
        for piece in pieces {
            let split = splitter.push(piece);
            whole.0.push_str(&split.reasoning);
            whole.1.push_str(&split.content);
        }
        let rest = splitter.finish();
        (whole.0 + &rest.reasoning, whole.1 + &rest.content)
    }

    fn pair(reasoning: &str, content: &str) -> (String, String) {
        (reasoning.to_owned(), content.to_owned())
    }

    /// Case A15: cut while thinking, and whole.
    #[test]
    fn thoughts_and_answer() {
        let thoughts = "The question is about Spain. Spain is in Europe. Its capital is Madrid.";
        let text = format!("{thoughts}\n</think>\n\nThe capital of Spain is Madrid.");
        assert_eq!(run(true, &[&text]), pair(thoughts, "The capital of Spain is Madrid."));
        assert_eq!(run(true, &["The question is about Spain. Spain", " is"]).1, "");
        assert_eq!(run(true, &["Spain is", " \n"]), pair("Spain is", ""));
        assert_eq!(run(true, &["\n</think>\n\n", "Yes"]), pair("", "Yes"));
        assert_eq!(run(true, &["<think>\nHm</think>Yes"]), pair("Hm", "Yes"));
        assert_eq!(run(true, &["a \n</thin"]), pair("a \n</thin", ""));
        assert_eq!(run(true, &["a </thinker> b\n\n</think>c"]), pair("a </thinker> b", "c"));
    }

    #[test]
    fn a_model_may_open_the_block_itself() {
        assert_eq!(run(false, &["\n", "<thi", "nk>\nHm\n</think>\n\n  Yes"]), pair("Hm", "  Yes"));
        assert_eq!(run(false, &["  Yes <think> no </think>"]), pair("", "  Yes <think> no </think>"));
        assert_eq!(run(false, &["<thi"]), pair("", "<thi"));
    }

    /// Thoughts are released while they come, and only what may be the end of them is held back.
    #[test]
    fn releases_early() {
        let mut splitter = ReasoningSplitter::new(true);
        assert_eq!(splitter.push("Spain is").reasoning, "Spain is");
        assert_eq!(splitter.push(" ").reasoning, "");
        assert_eq!(splitter.push("in <").reasoning, " in");
        assert_eq!(splitter.push("b").reasoning, " <b");
        assert!(splitter.is_thinking());
        assert_eq!(splitter.push("</think>").reasoning, "");
        assert!(!splitter.is_thinking());
    }

    proptest! {
        /// The way in which text is cut into pieces makes no difference.
        #[test]
        fn any_cut_gives_the_same(
            parts in prop::collection::vec("(<think>|</think>|</thi|[ \n]|[aé<])", 0..12),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
            opened in any::<bool>()
        ) {
            let text = parts.concat();
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            at.retain(|&i| text.is_char_boundary(i));
            at.extend([0, text.len()]);
            at.sort_unstable();
            let pieces: Vec<&str> = at.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            prop_assert_eq!(run(opened, &pieces), run(opened, &[&text]));
        }
    }
}
