//! When an answer ends: end tokens, stop strings, the limit.
//!
//! Must not release a character of a stop string, however it is spread over tokens, and must release everything else.

use serde::{Deserialize, Serialize};

use super::error::ParamError;

const MAX_STRINGS: usize = 64;
const MAX_STRING_BYTES: usize = 4096;

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// The model ended it, or a stop string was found.
    Stop,
    /// The limit of tokens or the end of the context was reached.
    Length,
}

/// Finds stop strings in text that comes in pieces.
#[derive(Debug, Clone, Default)]
pub struct StopStrings {
    strings: Vec<String>,
    /// Text that may be the beginning of a stop string.
    held: String,
    stopped: bool,
}

/// What a piece of text led to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that can be shown now.
    pub text: String,
    /// Whether a stop string was found; nothing is released after it.
    pub stopped: bool,
}

impl StopStrings {
    /// An empty list has no effect; an empty string would stop every answer before it begins and is refused.
    pub fn new(strings: Vec<String>) -> Result<StopStrings, ParamError> {
        let refuse = |reason: String| Err(ParamError { param: "stop", reason });
        if strings.len() > MAX_STRINGS {
            return refuse(format!("expected at most {MAX_STRINGS} strings, found {}", strings.len()));
        }
        if strings.iter().any(String::is_empty) {
            return refuse("expected strings that are not empty, found an empty one".to_owned());
        }
        if let Some(long) = strings.iter().map(String::len).find(|&length| length > MAX_STRING_BYTES) {
            return refuse(format!("expected at most {MAX_STRING_BYTES} bytes a string, found {long}"));
        }
        Ok(StopStrings { strings, ..StopStrings::default() })
    }

    /// Takes the text of one token. Of several stop strings in the text so far the one that begins first counts.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.stopped {
            return StopStep { text: String::new(), stopped: true };
        }
        self.held.push_str(text);
        if let Some(start) = self.strings.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.held.truncate(start);
            self.stopped = true;
            return StopStep { text: std::mem::take(&mut self.held), stopped: true };
        }
        let rest = self.held.split_off(self.held.len() - self.held_bytes());
        StopStep { text: std::mem::replace(&mut self.held, rest), stopped: false }
    }

    /// At the end of the answer, what was held back after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Length of the longest end of the text with which a stop string begins.
    fn held_bytes(&self) -> usize {
        let longest = |stop: &String| {
            let most = (stop.len() - 1).min(self.held.len());
            (1..=most)
                .rev()
                .find(|&n| stop.as_bytes().starts_with(&self.held.as_bytes()[self.held.len() - n..]))
        };
        // Where the bytes agree and the stop string's begin a character, so do the text's.
        self.strings.iter().filter_map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool, usize) {
        let mut stops = StopStrings::new(stops.iter().map(|&s| s.to_owned()).collect()).unwrap();
        let mut text = String::new();
        for (at, piece) in pieces.iter().enumerate() {
            let step = stops.push(piece);
            text.push_str(&step.text);
            if step.stopped {
                assert_eq!(stops.finish(), "");
                return (text, true, at + 1);
            }
        }
        text.push_str(&stops.finish());
        (text, false, pieces.len())
    }

    /// Case A10.
    #[test]
    fn across_tokens() {
        let pieces = ["The", " capital", " of", " Spain", " is", " Mad", "rid", "."];
        assert_eq!(run(&["drid"], &pieces), ("The capital of Spain is Ma".to_owned(), true, 7));
        assert_eq!(run(&["Madrid!"], &pieces), ("The capital of Spain is Madrid.".to_owned(), false, 8));
        assert_eq!(run(&["."], &pieces), ("The capital of Spain is Madrid".to_owned(), true, 8));
        assert_eq!(run(&["Spain is", "capital of S"], &pieces), ("The ".to_owned(), true, 4));
        assert_eq!(run(&[], &pieces), ("The capital of Spain is Madrid.".to_owned(), false, 8));
        // "ri" is whole first, but both are in one token's text, and "drid" begins first.
        assert_eq!(run(&["ri", "drid"], &pieces).0, "The capital of Spain is Ma");
        let mut stops = StopStrings::new(vec!["drid".to_owned()]).unwrap();
        assert_eq!(stops.push(" Mad").text, " Ma");
    }

    #[test]
    fn an_empty_string_is_refused() {
        assert_eq!(StopStrings::new(vec!["a".to_owned(), String::new()]).unwrap_err().param, "stop");
        assert!(StopStrings::new(vec!["é".repeat(4000)]).is_err());
    }

    proptest! {
        /// As searching the whole text after every piece; what is released never runs ahead of the result.
        #[test]
        fn as_the_naive_search(
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
            pieces in prop::collection::vec("[abcé]{0,3}", 0..20)
        ) {
            let mut expected = String::new();
            let mut found = false;
            for piece in &pieces {
                expected.push_str(piece);
                if let Some(start) = stops.iter().filter_map(|stop| expected.find(stop.as_str())).min() {
                    expected.truncate(start);
                    found = true;
                    break;
                }
            }
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (text, stopped, _) = run(&stops, &pieces);
            prop_assert_eq!((text, stopped), (expected, found));
        }

        /// Nothing is held back that no stop string begins with.
        #[test]
        fn holds_back_no_more_than_needed(stop in "[ab]{1,4}", text in "[abc]{0,12}") {
            prop_assume!(!text.contains(&stop));
            let mut stops = StopStrings::new(vec![stop.clone()]).unwrap();
            let released = stops.push(&text).text;
            let held = &text[released.len()..];
            prop_assert!(held.is_empty() || stop.starts_with(held));
        }
    }
}
