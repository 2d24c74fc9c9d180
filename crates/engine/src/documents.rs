//! The documents of a text, as tokens: read and encoded a document at a time, so that no text is too large to be begun.
//!
//! Must not run a model. What is kept is tokens, up to a bound; of the text itself, never more than one document that can
//! fit the context.

use std::io::{self, Read};

use crate::engine::Engine;
use crate::error::EngineError;

/// Ends a document in a text of several.
const MARKER: &str = "<|endoftext|>";

/// Tokens kept at most: 4 MiB of them, some hours of a fast machine.
const MAX_TOKENS: usize = 1 << 20;

/// Bytes read at once.
const PIECE_BYTES: usize = 64 << 10;

/// The tokens of the first `most` documents of `text`, each of which has to fit the context. Reading ends with the last of
/// them. With a `reference`, they have to fit its context as well, and be its tokens.
pub(crate) fn encode(
    engine: &Engine,
    reference: Option<&Engine>,
    text: &mut dyn Read,
    most: usize,
) -> Result<Vec<Vec<u32>>, EngineError> {
    let contexts = [Some(engine), reference].into_iter().flatten().map(|e| e.inner.context as usize);
    let context = contexts.min().unwrap_or(0);
    let most_bytes = engine.text()?.most_bytes(engine.most_tokens());
    let mut texts = Texts::new(text, most_bytes);
    let (mut documents, mut tokens) = (Vec::new(), 0);
    while documents.len() < most {
        let document = match texts.next()? {
            Next::Document(document) => {
                let tokens = engine.encode(&document)?;
                if let Some(other) = reference
                    && other.encode(&document)? != tokens
                {
                    return Err(EngineError::incomparable(engine, other));
                }
                tokens
            }
            Next::TooLong => {
                return Err(EngineError::TextTooLong { least: engine.most_tokens(), context });
            }
            Next::End => break,
        };
        if document.len() > context {
            return Err(EngineError::PromptTooLong { tokens: document.len(), context });
        }
        tokens += document.len();
        if tokens > MAX_TOKENS {
            return Err(EngineError::TextTooLarge { limit: MAX_TOKENS });
        }
        documents.push(document);
    }
    Ok(documents)
}

/// What comes next in a text.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// A document with its marker, where it has one.
    Document(String),
    /// A document of more bytes than there may be.
    TooLong,
    End,
}

/// The documents of a text that is read as they are asked for.
struct Texts<'r> {
    input: &'r mut dyn Read,
    most_bytes: usize,
    /// What was read and not given.
    bytes: Vec<u8>,
    /// Bytes of the text before those.
    given_bytes: u64,
    ended: bool,
}

impl<'r> Texts<'r> {
    fn new(input: &'r mut dyn Read, most_bytes: usize) -> Self {
        Self { input, most_bytes, bytes: Vec::new(), given_bytes: 0, ended: false }
    }

    /// The next document that is more than white space.
    fn next(&mut self) -> Result<Next, EngineError> {
        let mut searched = 0;
        loop {
            let found = self.bytes[searched..].windows(MARKER.len()).position(|w| w == MARKER.as_bytes());
            let end = match found {
                Some(at) => searched + at + MARKER.len(),
                None if self.ended => self.bytes.len(),
                None if self.bytes.len() > self.most_bytes => return Ok(Next::TooLong),
                None => {
                    // A marker may be cut by the end of what was read.
                    searched = self.bytes.len().saturating_sub(MARKER.len() - 1);
                    self.read()?;
                    continue;
                }
            };
            if end == 0 {
                return Ok(Next::End);
            }
            searched = 0;
            let document = self.take(end)?;
            if !document.trim().is_empty() {
                return Ok(Next::Document(document));
            }
        }
    }

    fn read(&mut self) -> Result<(), EngineError> {
        let before = self.bytes.len();
        self.bytes.resize(before + PIECE_BYTES, 0);
        // One read: a pipe gives what there is, which may be all that is needed of it.
        let read = loop {
            match self.input.read(&mut self.bytes[before..]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                read => break read.map_err(EngineError::Input),
            }
        };
        self.bytes.truncate(before + *read.as_ref().unwrap_or(&0));
        self.ended = read? == 0;
        Ok(())
    }

    fn take(&mut self, end: usize) -> Result<String, EngineError> {
        let rest = self.bytes.split_off(end);
        let bytes = std::mem::replace(&mut self.bytes, rest);
        let before = self.given_bytes;
        self.given_bytes += end as u64;
        String::from_utf8(bytes)
            .map_err(|e| EngineError::NotUtf8 { at: before + e.utf8_error().valid_up_to() as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a few bytes at a time.
    struct Slowly<'t>(&'t [u8], usize);

    impl Read for Slowly<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let n = self.1.min(self.0.len()).min(out.len());
            out[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    fn documents(text: &str) -> Vec<String> {
        let mut all = Vec::new();
        let mut input = Slowly(text.as_bytes(), 5);
        let mut texts = Texts::new(&mut input, 1 << 20);
        while let Next::Document(document) = texts.next().unwrap() {
            all.push(document);
        }
        all
    }

    #[test]
    fn documents_keep_their_marker() {
        let text = "one<|endoftext|>two\n<|endoftext|>\n three";
        assert_eq!(documents(text), ["one<|endoftext|>", "two\n<|endoftext|>", "\n three"]);
        assert_eq!(documents("one<|endoftext|>\n").len(), 1);
        assert!(documents(" \n").is_empty());
        // Wherever the pieces end that are read at once.
        for before in 0..30 {
            let text = format!("{}é<|endoftext|>b", "a".repeat(PIECE_BYTES - before));
            assert_eq!(documents(&text).len(), 2, "{before}");
        }
    }

    /// Of a text without an end no more is read than a document may have.
    #[test]
    fn what_does_not_end_is_not_read_to_its_end() {
        let mut endless = io::repeat(b'a');
        let mut texts = Texts::new(&mut endless, 100_000);
        assert_eq!(texts.next().unwrap(), Next::TooLong);
        assert!(texts.bytes.len() <= 100_000 + PIECE_BYTES);
        let mut bytes = &b"a<|endoftext|>caf\xE9"[..];
        let mut texts = Texts::new(&mut bytes, 100_000);
        assert!(matches!(texts.next(), Ok(Next::Document(_))));
        assert!(matches!(texts.next(), Err(EngineError::NotUtf8 { at: 17 })));
    }
}
