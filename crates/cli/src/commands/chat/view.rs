//! How an answer looks while it comes: thoughts dimmed, folded or left out, then the answer.
//!
//! Must not let the model's text command the terminal.

use std::io::{self, IsTerminal, Write};

use spinetail_engine::text::Split;

use crate::output::printable;

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// What standard output can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Style {
    /// Whether a person looks.
    pub(super) terminal: bool,
    pub(super) colour: bool,
}

impl Style {
    pub(super) fn of_stdout() -> Self {
        let terminal = io::stdout().is_terminal();
        let set = |name| std::env::var_os(name).is_some_and(|v| !v.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self { terminal, colour: terminal && !set("NO_COLOR") && !(dumb && cfg!(unix)) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Nothing,
    Thoughts,
    Answer,
}

/// Writes one answer.
pub(super) struct View<'o> {
    out: &'o mut dyn Write,
    style: Style,
    shows_thoughts: bool,
    part: Part,
    thought_tokens: usize,
    content: String,
    thoughts: String,
}

impl<'o> View<'o> {
    pub(super) fn new(out: &'o mut dyn Write, style: Style, shows_thoughts: bool) -> Self {
        Self {
            out,
            style,
            shows_thoughts,
            part: Part::Nothing,
            thought_tokens: 0,
            content: String::new(),
            thoughts: String::new(),
        }
    }

    /// Writes what a token brought.
    pub(super) fn token(&mut self, split: &Split) -> io::Result<()> {
        if !split.reasoning.is_empty() {
            self.thought_tokens += 1;
        }
        self.write(split)?;
        self.out.flush()
    }

    /// Writes what was held back, and ends the answer.
    pub(super) fn finish(&mut self, rest: &Split) -> io::Result<()> {
        self.write(rest)?;
        if self.part == Part::Thoughts {
            // Cut while it thought: there is no answer.
            self.close_thoughts()?;
        }
        if self.part != Part::Nothing || !self.style.terminal {
            writeln!(self.out)?;
        }
        self.out.flush()
    }

    /// The answer and the thoughts.
    pub(super) fn into_texts(self) -> (String, String) {
        (self.content, self.thoughts)
    }

    fn write(&mut self, split: &Split) -> io::Result<()> {
        if !split.reasoning.is_empty() {
            self.thoughts.push_str(&split.reasoning);
            if self.part == Part::Nothing {
                self.part = Part::Thoughts;
                self.open_thoughts()?;
            }
            if self.shows_thoughts {
                self.text(&split.reasoning)?;
            } else if self.style.colour {
                write!(self.out, "\r{DIM}thinking… {}{PLAIN}", tokens(self.thought_tokens))?;
            }
        }
        if !split.content.is_empty() {
            self.content.push_str(&split.content);
            if self.part == Part::Thoughts {
                self.close_thoughts()?;
                if self.shows_thoughts {
                    write!(self.out, "\n\n")?;
                } else if self.style.terminal {
                    writeln!(self.out)?;
                }
            }
            self.part = Part::Answer;
            self.text(&split.content)?;
        }
        Ok(())
    }

    fn open_thoughts(&mut self) -> io::Result<()> {
        match (self.shows_thoughts, self.style.colour) {
            (true, true) => write!(self.out, "{DIM}"),
            // Without colours the model's own marks tell thoughts from the answer.
            (true, false) => writeln!(self.out, "<think>"),
            (false, _) => Ok(()),
        }
    }

    fn close_thoughts(&mut self) -> io::Result<()> {
        match (self.shows_thoughts, self.style.colour) {
            (true, true) => write!(self.out, "{PLAIN}"),
            (true, false) => write!(self.out, "\n</think>"),
            (false, true) => {
                write!(
                    self.out,
                    "\r{DIM}thought for {}, /thoughts shows them{PLAIN}\x1b[K",
                    tokens(self.thought_tokens)
                )
            }
            (false, false) if self.style.terminal => {
                write!(self.out, "thought for {}", tokens(self.thought_tokens))
            }
            (false, false) => Ok(()),
        }
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(printable(text, self.style.terminal).as_bytes())
    }
}

fn tokens(n: usize) -> String {
    if n == 1 { "1 token".to_owned() } else { format!("{n} tokens") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(style: Style, shows_thoughts: bool, pieces: &[(&str, &str)]) -> String {
        let mut out = Vec::new();
        let mut view = View::new(&mut out, style, shows_thoughts);
        for &(reasoning, content) in pieces {
            view.token(&Split { reasoning: reasoning.to_owned(), content: content.to_owned() }).unwrap();
        }
        view.finish(&Split::default()).unwrap();
        String::from_utf8(out).unwrap()
    }

    const COLOUR: Style = Style { terminal: true, colour: true };
    const MONO: Style = Style { terminal: true, colour: false };
    const PIPE: Style = Style { terminal: false, colour: false };
    const ANSWER: [(&str, &str); 4] = [("Hm", ""), (", so", ""), ("", "Yes"), ("", ".")];

    #[test]
    fn thoughts_are_set_apart() {
        assert_eq!(shown(COLOUR, true, &ANSWER), "\x1b[2mHm, so\x1b[0m\n\nYes.\n");
        assert_eq!(shown(MONO, true, &ANSWER), "<think>\nHm, so\n</think>\n\nYes.\n");
        assert_eq!(shown(PIPE, true, &ANSWER), "<think>\nHm, so\n</think>\n\nYes.\n");
    }

    #[test]
    fn hidden_thoughts_leave_one_line_or_none() {
        assert_eq!(
            shown(COLOUR, false, &ANSWER),
            "\r\x1b[2mthinking… 1 token\x1b[0m\r\x1b[2mthinking… 2 tokens\x1b[0m\
             \r\x1b[2mthought for 2 tokens, /thoughts shows them\x1b[0m\x1b[K\nYes.\n"
        );
        assert_eq!(shown(MONO, false, &ANSWER), "thought for 2 tokens\nYes.\n");
        assert_eq!(shown(PIPE, false, &ANSWER), "Yes.\n");
    }

    /// Case A15: nothing of a cut thought appears as the answer, and the terminal is left plain.
    #[test]
    fn cut_while_thinking() {
        let cut = [("Spain is", "")];
        assert_eq!(shown(COLOUR, true, &cut), "\x1b[2mSpain is\x1b[0m\n");
        assert_eq!(shown(PIPE, false, &cut), "\n");
        assert_eq!(shown(PIPE, true, &cut), "<think>\nSpain is\n</think>\n");
    }

    #[test]
    fn the_model_does_not_command_the_terminal() {
        let hostile = [("", "a\x1b[2Jb\u{9b}c\r\n\td")];
        assert_eq!(shown(COLOUR, true, &hostile), "a\u{FFFD}[2Jb\u{FFFD}c\u{FFFD}\n\td\n");
        assert_eq!(shown(PIPE, true, &hostile), "a\x1b[2Jb\u{9b}c\r\n\td\n");
    }
}
