//! Keeps a client's words from acting as control tokens.
//!
//! A message may contain the text `<|im_end|>`; rendered into a prompt it would end the turn. Before rendering, a mark
//! (one private-use character that occurs nowhere in the request) is put behind the first character of every such
//! text; templates pass it through, and `trim`, `split` or `startswith` see the same first and last characters as
//! without it. After rendering the marks are taken out and their places remembered in the [`Prompt`]: a special token
//! with a mark inside is text.
//!
//! Pieces count as well as wholes: a string that ends in `<|im_` could be completed by the next list part or by the
//! template's own `>`, so the beginning of a token at the end of a string is marked, and so is the end of a token at
//! the beginning of a string. Must not change what the prompt says.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::prompt::Prompt;

/// Marks are taken from the last private-use plane, from its top.
const MARKS: std::ops::RangeInclusive<u32> = 0x10_0000..=0x10_FFFD;

/// Private-use characters that occur in a template or a request, and therefore cannot be the mark.
#[derive(Debug, Clone, Default)]
pub(super) struct Used(BTreeSet<u32>);

impl Used {
    pub(super) fn add(&mut self, text: &str) {
        // Every character of the plane begins with the byte F4 in UTF-8, which hardly any text has.
        if text.as_bytes().contains(&0xF4) {
            self.0.extend(text.chars().map(u32::from).filter(|code| MARKS.contains(code)));
        }
    }

    pub(super) fn add_value(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.add(text),
            Value::Array(items) => items.iter().for_each(|item| self.add_value(item)),
            Value::Object(map) => map.iter().for_each(|(key, item)| {
                self.add(key);
                self.add_value(item);
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn free(&self) -> Option<char> {
        MARKS.rev().find(|code| !self.0.contains(code)).and_then(char::from_u32)
    }
}

/// Puts marks into strings and takes them out of a prompt.
#[derive(Debug)]
pub(super) struct Guard<'a> {
    mark: char,
    specials: &'a [&'a str],
}

impl<'a> Guard<'a> {
    /// `None` if a request uses all 65,534 characters that could be a mark.
    pub(super) fn new(used: &Used, specials: &'a [&'a str]) -> Option<Guard<'a>> {
        used.free().map(|mark| Guard { mark, specials })
    }

    /// Marks every string and key in a value.
    pub(super) fn mark_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.mark_text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.mark_value(item)),
            Value::Object(map) => self.mark_map(map),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    pub(super) fn mark_map(&self, map: &mut Map<String, Value>) {
        let needs_mark = |key: &String| !self.places(key).is_empty();
        if map.keys().any(needs_mark) {
            let old = std::mem::take(map);
            map.extend(old.into_iter().map(|(mut key, value)| {
                self.mark_text(&mut key);
                (key, value)
            }));
        }
        map.values_mut().for_each(|item| self.mark_value(item));
    }

    /// Marks one string.
    pub(super) fn mark_text(&self, text: &mut String) {
        for &place in self.places(text).iter().rev() {
            text.insert(place, self.mark);
        }
    }

    /// Like [`Guard::mark_text`], for a name that a template may put between brackets of its own: `<|` + name + `|>`.
    pub(super) fn mark_name(&self, name: &mut String) {
        let inside =
            |special: &&str| name.len() > 1 && special.len() > name.len() && special.contains(name.as_str());
        if self.places(name).is_empty() && self.specials.iter().any(inside) {
            name.insert(first_char_bytes(name), self.mark);
        } else {
            self.mark_text(name);
        }
    }

    /// Byte offsets, ascending, at which a mark belongs.
    fn places(&self, text: &str) -> Vec<usize> {
        let mut places = Vec::new();
        if self.specials.iter().any(|special| begins_with_end_of(text, special)) {
            places.push(first_char_bytes(text));
        }
        let begins =
            |at: usize, special: &&str| text[at..].starts_with(*special) || special.starts_with(&text[at..]);
        for (at, c) in text.char_indices() {
            if self.specials.iter().any(|special| special.starts_with(c) && begins(at, special)) {
                places.push(at + c.len_utf8());
            }
        }
        places.dedup();
        places
    }

    /// The prompt without its marks, and where they were.
    pub(super) fn unmark(&self, rendered: &str) -> Prompt {
        let mut text = String::with_capacity(rendered.len());
        let mut marks = Vec::new();
        let mut pieces = rendered.split(self.mark);
        text.push_str(pieces.next().unwrap_or_default());
        for piece in pieces {
            marks.push(text.len());
            text.push_str(piece);
        }
        Prompt::with_marks(text, marks)
    }
}

fn first_char_bytes(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}

/// Whether the text begins with the last part, two characters or more, of a special token. One character would mark
/// every quoted line (`> …`), and a template that writes all of a token but its last character does not exist.
fn begins_with_end_of(text: &str, special: &str) -> bool {
    let mut starts = special.char_indices().map(|(at, _)| at).skip(1).collect::<Vec<_>>();
    starts.pop();
    starts.into_iter().any(|at| text.starts_with(&special[at..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SPECIALS: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<pad>"];

    fn marked(text: &str) -> String {
        let guard = Guard { mark: '#', specials: &SPECIALS };
        let mut text = text.to_owned();
        guard.mark_text(&mut text);
        text
    }

    #[test]
    fn wholes_and_pieces_are_marked() {
        assert_eq!(marked("a<|im_end|>b<|im_start|>"), "a<#|im_end|>b<#|im_start|>");
        assert_eq!(marked("a <|im_"), "a <#|im_");
        assert_eq!(marked("a <"), "a <#");
        assert_eq!(marked("|im_end|> b"), "|#im_end|> b");
        assert_eq!(marked("|> b"), "|#> b");
        assert_eq!(marked("> quoted, a <b> and <|im_end>"), "> quoted, a <b> and <|im_end>");
        let mut name = "im_end".to_owned();
        Guard { mark: '#', specials: &SPECIALS }.mark_name(&mut name);
        assert_eq!(name, "i#m_end");
    }

    #[test]
    fn the_mark_is_a_character_that_the_request_does_not_have() {
        let mut used = Used::default();
        used.add("\u{10FFFD}\u{10FFFC}");
        used.add_value(&serde_json::json!({"\u{10FFFB}": ["\u{10FFFA}"]}));
        assert_eq!(Guard::new(&used, &SPECIALS).unwrap().mark, '\u{10FFF9}');
    }

    proptest! {
        /// However a token's text is cut into strings, every occurrence in their concatenation has a mark inside.
        #[test]
        fn no_token_can_be_put_together(parts in prop::collection::vec("(<\\|im_end\\|>|<pad>|[<|>a]|im_|end){0,3}", 1..5)) {
            let guard = Guard { mark: '\u{10FFFD}', specials: &SPECIALS };
            let joined: String = parts.iter().map(|part| {
                let mut part = part.clone();
                guard.mark_text(&mut part);
                part
            }).collect();
            let prompt = guard.unmark(&joined);
            prop_assert_eq!(prompt.text(), parts.concat());
            for special in SPECIALS {
                for (at, found) in prompt.text().match_indices(special) {
                    prop_assert!(prompt.is_from_message(&(at..at + found.len())), "{:?} at {}", parts, at);
                }
            }
        }
    }
}
