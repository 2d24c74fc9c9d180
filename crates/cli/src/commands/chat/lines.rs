//! Where questions come from: something that gives one input after another.

use std::io::{BufRead, Read};

use anyhow::{anyhow, bail};

/// Longer than any context.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// What came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    Text(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    /// Nothing more comes.
    End,
}

/// A source of questions.
pub(super) trait Lines {
    fn next(&mut self) -> anyhow::Result<Input>;
}

/// Lines of a pipe or file: each is a question.
pub(super) struct Piped<R>(R);

impl<R: BufRead> Piped<R> {
    pub(super) fn new(reader: R) -> Self {
        Self(reader)
    }
}

impl<R: BufRead> Lines for Piped<R> {
    fn next(&mut self) -> anyhow::Result<Input> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.0).take(MAX_LINE_BYTES + 1);
        bounded
            .read_until(b'\n', &mut line)
            .map_err(|e| anyhow!("cannot read standard input: {e}; give a file or a pipe"))?;
        if line.is_empty() {
            return Ok(Input::End);
        }
        if line.len() as u64 > MAX_LINE_BYTES {
            bail!("a line of standard input is longer than {MAX_LINE_BYTES} bytes; cut it");
        }
        let text = String::from_utf8(line).map_err(|e| {
            anyhow!("standard input is not UTF-8 text ({}); convert it first", e.utf8_error())
        })?;
        let text = text.strip_suffix('\n').unwrap_or(&text);
        Ok(Input::Text(text.strip_suffix('\r').unwrap_or(text).to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lose_their_ends() {
        let mut lines = Piped::new(&b"one\r\n\ntwo \nlast"[..]);
        for expected in ["one", "", "two ", "last"] {
            assert_eq!(lines.next().unwrap(), Input::Text(expected.to_owned()));
        }
        assert_eq!(lines.next().unwrap(), Input::End);
        assert!(Piped::new(&b"\xFF\n"[..]).next().is_err());
    }
}
