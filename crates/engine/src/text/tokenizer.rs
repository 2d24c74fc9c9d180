//! Text to token ids and token ids to bytes, exactly as the Python package `tokenizers` does it.
//!
//! The steps: cut out added tokens, bring the rest to NFC, split it into words, encode each word. Must not know about
//! templates or models; which stretches of a prompt are a client's words is told by [`Prompt`].

use std::ops::Range;

use aho_corasick::{AhoCorasick, Input, MatchKind};
use unicode_normalization_alignments::UnicodeNormalization as _;

use super::bpe::{Bpe, Scratch};
use super::error::TokenizerError;
use super::prompt::Prompt;
use super::tokenizer_json::{self, AddedToken};

/// A prompt beyond this is refused before any work is done on it.
const MAX_TEXT_BYTES: usize = 64 << 20;

/// NFC leaves at least this part of a text's bytes: no character is more than three times as long as its decomposition,
/// and no decomposition more than three times as long as its character. A test looks at all characters.
const NFC_SHRINKS: usize = 9;

/// What the text of a special token, such as `<|im_end|>`, means where it stands in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    /// The token itself: for prompts that a program or a template wrote.
    Recognise,
    /// Its letters, encoded like any others: for words of a user. Added tokens that are not special (`<think>`,
    /// `<tool_call>`) are recognised all the same, because templates write them into history.
    AsText,
}

/// A tokenizer, as the engine sees it.
pub trait Tokens: Send + Sync {
    /// Token ids of a text; nothing is added before or after.
    fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>, TokenizerError>;

    /// Token ids of a rendered prompt: special tokens are recognised where the template wrote them, not where a
    /// message did.
    fn encode_prompt(&self, prompt: &Prompt) -> Result<Vec<u32>, TokenizerError>;

    /// The bytes that a token stands for; `None` for an id that no token has. A character may be spread over tokens.
    fn bytes(&self, id: u32) -> Option<&[u8]>;

    /// The id of the token with exactly this text.
    fn id(&self, token: &str) -> Option<u32>;

    /// One past the largest id. A model's logits may have more rows: those are padding and must never be sampled.
    fn vocabulary_size(&self) -> usize;

    /// Whether a token is a control token that is not part of an answer's text.
    fn is_special(&self, id: u32) -> bool;

    /// The texts of all special tokens.
    fn special_texts(&self) -> Vec<&str>;
}

/// The byte-level BPE tokenizer of the Qwen families.
pub struct Tokenizer {
    bpe: Bpe,
    nfc: bool,
    patterns: Vec<fancy_regex::Regex>,
    /// Sorted by id.
    added: Vec<AddedToken>,
    matcher: AhoCorasick,
    size: usize,
    longest_bytes: usize,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("size", &self.size)
            .field("added", &self.added.len())
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Builds the tokenizer from the bytes of `tokenizer.json` and, where there is one, `tokenizer_config.json`.
    pub fn from_json(tokenizer: &[u8], config: Option<&[u8]>) -> Result<Tokenizer, TokenizerError> {
        let parts = tokenizer_json::read(tokenizer, config)?;
        let unusable = |reason: String| TokenizerError::Inconsistent { file: "tokenizer.json", reason };
        let patterns = parts
            .patterns
            .iter()
            .map(|pattern| {
                fancy_regex::Regex::new(pattern).map_err(|e| unusable(format!("pattern {pattern:?}: {e}")))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let matcher = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(parts.added.iter().map(|token| &token.content))
            .map_err(|e| unusable(format!("added tokens: {e}")))?;
        let size = parts.added.last().map_or(0, |token| token.id as usize + 1).max(parts.bpe.size());
        let added = parts.added.iter().map(|token| token.content.len()).max().unwrap_or(0);
        let longest_bytes = parts.bpe.longest_bytes().max(added).max(1);
        Ok(Tokenizer {
            bpe: parts.bpe,
            nfc: parts.nfc,
            patterns,
            added: parts.added,
            matcher,
            size,
            longest_bytes,
        })
    }

    /// Tokens that a text certainly has: as many as it would if each was the longest there is. This costs no more than a
    /// look at each byte, and no memory.
    pub(super) fn least_tokens(&self, text: &str) -> usize {
        let shrinks = if self.nfc && !text.is_ascii() { NFC_SHRINKS } else { 1 };
        text.len().div_ceil(self.longest_bytes * shrinks)
    }

    /// A text of more bytes has more than `tokens` tokens.
    pub(super) fn most_bytes(&self, tokens: usize) -> usize {
        let shrinks = if self.nfc { NFC_SHRINKS } else { 1 };
        tokens.saturating_mul(self.longest_bytes * shrinks)
    }

    /// Token ids of a text, as [`Tokens::encode`] with special tokens recognised gives them; one of more than `limit`
    /// tokens is refused as soon as that is certain.
    pub(super) fn encode_within(&self, text: &str, limit: usize) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with(text, limit, |_, _| true)
    }

    /// As [`Tokens::encode_prompt`], within a limit.
    pub(super) fn encode_prompt_within(
        &self,
        prompt: &Prompt,
        limit: usize,
    ) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with(prompt.text(), limit, |token, at| !token.special || !prompt.is_from_message(&at))
    }

    fn added(&self, id: u32) -> Option<&AddedToken> {
        self.added.binary_search_by_key(&id, |token| token.id).ok().map(|at| &self.added[at])
    }

    /// Encodes `text`, of at most `limit` tokens; `recognise` decides for each match of an added token whether it is one.
    fn encode_with(
        &self,
        text: &str,
        limit: usize,
        recognise: impl Fn(&AddedToken, Range<usize>) -> bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        if text.len() > MAX_TEXT_BYTES {
            let (what, found) = ("the text in bytes", text.len());
            return Err(TokenizerError::TooLarge { what, found, limit: MAX_TEXT_BYTES });
        }
        let least = self.least_tokens(text);
        if least > limit {
            return Err(TokenizerError::TooManyTokens { least, limit });
        }
        let mut ids = Ids { ids: Vec::with_capacity((text.len() / 4).min(limit) + 1), limit };
        let mut scratch = Scratch::default();
        let (mut done, mut from) = (0, 0);
        while let Some(found) = self.matcher.find(Input::new(text).range(from..)) {
            let token = &self.added[found.pattern().as_usize()];
            if recognise(token, found.range()) {
                self.encode_run(&text[done..found.start()], &mut scratch, &mut ids)?;
                ids.ids.push(token.id);
                ids.check()?;
                (done, from) = (found.end(), found.end());
            } else {
                from = found.start() + 1;
            }
        }
        self.encode_run(&text[done..], &mut scratch, &mut ids)?;
        Ok(ids.ids)
    }

    /// Encodes a stretch without added tokens.
    fn encode_run(&self, text: &str, scratch: &mut Scratch, ids: &mut Ids) -> Result<(), TokenizerError> {
        // ASCII is in NFC already; most runs are, and skip the copy.
        if !self.nfc || text.is_ascii() {
            return self.split(text, &self.patterns, scratch, ids);
        }
        let normal: String = text.nfc().map(|(c, _)| c).collect();
        self.split(&normal, &self.patterns, scratch, ids)
    }

    /// Splits by the first pattern, then what comes out by the next; what is between matches is a word too.
    fn split(
        &self,
        text: &str,
        patterns: &[fancy_regex::Regex],
        scratch: &mut Scratch,
        ids: &mut Ids,
    ) -> Result<(), TokenizerError> {
        let Some((pattern, rest)) = patterns.split_first() else {
            self.bpe.encode_word(text.as_bytes(), scratch, &mut ids.ids);
            return ids.check();
        };
        let mut done = 0;
        for word in pattern.find_iter(text) {
            let word = word.map_err(|e| TokenizerError::Split { reason: e.to_string() })?;
            if word.start() > done {
                self.split(&text[done..word.start()], rest, scratch, ids)?;
            }
            if word.end() > word.start() {
                self.split(word.as_str(), rest, scratch, ids)?;
            }
            done = word.end();
        }
        if done < text.len() {
            self.split(&text[done..], rest, scratch, ids)?;
        }
        Ok(())
    }
}

/// Token ids of a text so far.
struct Ids {
    ids: Vec<u32>,
    limit: usize,
}

impl Ids {
    fn check(&self) -> Result<(), TokenizerError> {
        match self.ids.len() {
            least if least > self.limit => Err(TokenizerError::TooManyTokens { least, limit: self.limit }),
            _ => Ok(()),
        }
    }
}

impl Tokens for Tokenizer {
    fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with(text, usize::MAX, |token, _| special == SpecialTokens::Recognise || !token.special)
    }

    fn encode_prompt(&self, prompt: &Prompt) -> Result<Vec<u32>, TokenizerError> {
        self.encode_prompt_within(prompt, usize::MAX)
    }

    fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.added(id).map(|token| token.content.as_bytes()).or_else(|| self.bpe.bytes(id))
    }

    fn id(&self, token: &str) -> Option<u32> {
        let added = self.added.iter().find(|added| added.content == token).map(|added| added.id);
        added.or_else(|| self.bpe.id(token.as_bytes()))
    }

    fn vocabulary_size(&self) -> usize {
        self.size
    }

    fn is_special(&self, id: u32) -> bool {
        self.added(id).is_some_and(|token| token.special)
    }

    fn special_texts(&self) -> Vec<&str> {
        self.added.iter().filter(|token| token.special).map(|token| token.content.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What [`NFC_SHRINKS`] rests on. Decomposing and composing are then both bounded, and so is one after the other.
    #[test]
    fn nothing_shrinks_more_than_is_reckoned_with() {
        let (mut longest, mut widest) = (0.0_f64, 0.0_f64);
        for c in '\0'..=char::MAX {
            let text = c.to_string();
            let decomposed: usize = text.nfd().map(|(c, _)| c.len_utf8()).sum();
            longest = longest.max(c.len_utf8() as f64 / decomposed as f64);
            widest = widest.max(decomposed as f64 / c.len_utf8() as f64);
        }
        assert_eq!(longest * widest, NFC_SHRINKS as f64, "{longest} times {widest}");
    }
}
