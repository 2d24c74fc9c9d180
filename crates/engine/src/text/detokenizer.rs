//! Token ids to text, one id at a time, never half a character.
//!
//! Must not hold back text for any other reason than an unfinished character: stop strings are `stops`' affair.

use super::error::TokenizerError;
use super::tokenizer::Tokens;

/// Turns generated ids into text as they come.
///
/// An id releases every character that is complete with it. Bytes that can no longer become a character give U+FFFD at
/// once; an unfinished tail is never released, so that streamed pieces joined equal the whole text.
#[derive(Debug, Clone, Default)]
pub struct Detokenizer {
    pending: Vec<u8>,
    show_special: bool,
}

impl Detokenizer {
    /// A detokenizer that leaves special tokens out of the text.
    pub fn new() -> Detokenizer {
        Detokenizer::default()
    }

    /// A detokenizer that writes special tokens out.
    pub fn showing_special() -> Detokenizer {
        Detokenizer { show_special: true, ..Detokenizer::default() }
    }

    /// The text that this id releases.
    pub fn push(&mut self, tokens: &dyn Tokens, id: u32) -> Result<String, TokenizerError> {
        let size = tokens.vocabulary_size();
        let bytes = tokens.bytes(id).ok_or(TokenizerError::UnknownId { id, size })?;
        if !self.show_special && tokens.is_special(id) {
            return Ok(String::new());
        }
        Ok(self.push_bytes(bytes))
    }

    /// The text that these bytes release.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        let unfinished = loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    break 0;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(bad) = error.error_len() else { break after.len() };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[bad..];
                }
            }
        };
        self.pending.drain(..self.pending.len() - unfinished);
        text
    }

    /// Bytes of a character that has not been finished; at the end of a generation they are dropped.
    pub fn unfinished(&self) -> &[u8] {
        &self.pending
    }
}

/// The text of a whole list of ids, as pushing them one by one would release it.
pub fn decode(tokens: &dyn Tokens, ids: &[u32], show_special: bool) -> Result<String, TokenizerError> {
    let mut detokenizer = Detokenizer { show_special, ..Detokenizer::default() };
    let mut text = String::new();
    for &id in ids {
        text.push_str(&detokenizer.push(tokens, id)?);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes that often are, nearly are, or never are UTF-8.
    fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
        let text = ".{0,3}".prop_map(String::into_bytes);
        let lead = prop::sample::select(vec![0xC2_u8, 0xE0, 0xED, 0xF0, 0xF4, 0xC0, 0xF5, 0xFF])
            .prop_map(|b| vec![b]);
        let rest = (0x80_u8..0xC0).prop_map(|b| vec![b]);
        prop::collection::vec(prop_oneof![text, lead, rest], 0..12).prop_map(|parts| parts.concat())
    }

    proptest! {
        /// However bytes are cut into tokens, the released text is that of the whole, without its unfinished end.
        #[test]
        fn any_cut_gives_the_same(bytes in any_bytes(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8)) {
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            at.extend([0, bytes.len()]);
            at.sort_unstable();
            let mut detokenizer = Detokenizer::new();
            let text: String = at.windows(2).map(|w| detokenizer.push_bytes(&bytes[w[0]..w[1]])).collect();
            let finished = bytes.len() - detokenizer.unfinished().len();
            prop_assert!(detokenizer.unfinished().len() < 4);
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes[..finished]));
            prop_assert_eq!(detokenizer.unfinished(), &bytes[finished..]);
        }
    }

    #[test]
    fn bytes_that_cannot_become_a_character_are_shown_at_once() {
        let mut detokenizer = Detokenizer::new();
        assert_eq!(detokenizer.push_bytes(&[0xF0, 0x9F]), "");
        assert_eq!(detokenizer.push_bytes(b"A"), "\u{FFFD}A");
        assert_eq!(detokenizer.push_bytes(&[0xED, 0xA0]), "\u{FFFD}\u{FFFD}");
        assert_eq!(detokenizer.unfinished(), b"");
    }
}
