//! Questions typed at a terminal: editing, history, several lines.

use std::path::PathBuf;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Editor, Helper};

use super::lines::{Input, Lines};
use super::slash;
use super::view::Style;
use crate::interrupt::Interrupt;
use crate::output;

const PROMPT: &str = "> ";
const HISTORY_LINES: usize = 1000;
/// Opens and closes text of several lines.
const QUOTES: &str = "\"\"\"";

pub(super) struct Terminal {
    editor: Editor<Rules, FileHistory>,
    history: Option<PathBuf>,
    interrupt: Interrupt,
}

impl Terminal {
    /// An editor that remembers what is typed in the file at `history`, if there is to be one.
    pub(super) fn new(history: Option<PathBuf>, interrupt: Interrupt, style: Style) -> anyhow::Result<Self> {
        let colour = match style.colour {
            true => rustyline::ColorMode::Enabled,
            false => rustyline::ColorMode::Disabled,
        };
        let config =
            Config::builder().max_history_size(HISTORY_LINES)?.auto_add_history(false).color_mode(colour);
        let mut editor = Editor::with_config(config.build())?;
        editor.set_helper(Some(Rules));
        let history =
            history.filter(|file| file.parent().is_some_and(|p| std::fs::create_dir_all(p).is_ok()));
        if let Some(file) = &history {
            // There is none the first time, and one that cannot be read is not worth refusing to talk.
            let _ = editor.load_history(file);
        }
        Ok(Self { editor, history, interrupt })
    }

    fn remember(&mut self, line: &str) {
        let added = self.editor.add_history_entry(line).unwrap_or(false);
        let Some(file) = self.history.as_ref().filter(|_| added) else { return };
        if let Err(e) = self.editor.append_history(file) {
            output::note(&format!("history is not kept: cannot write {}: {e}\n", file.display()));
            self.history = None;
        }
    }
}

impl Lines for Terminal {
    fn next(&mut self) -> anyhow::Result<Input> {
        self.interrupt.prompt();
        match self.editor.readline(PROMPT) {
            Ok(line) => {
                if !line.trim().is_empty() {
                    self.remember(&line);
                }
                Ok(Input::Text(joined(&line)))
            }
            Err(ReadlineError::Interrupted) => Ok(Input::Interrupted),
            Err(ReadlineError::Eof) => Ok(Input::End),
            // A paste in another encoding costs its line, not the conversation.
            Err(ReadlineError::Io(e)) if e.kind() == std::io::ErrorKind::InvalidData => {
                output::note("that line was not UTF-8 text and is left out; type it again\n");
                Ok(Input::Text(String::new()))
            }
            Err(e) => Err(anyhow::Error::new(e).context("cannot read from the terminal")),
        }
    }
}

/// Whether more lines belong to what has been typed.
fn is_unfinished(text: &str) -> bool {
    match text.trim_start().strip_prefix(QUOTES) {
        Some(rest) => !rest.trim_end().ends_with(QUOTES),
        None => text.ends_with('\\'),
    }
}

/// What was typed, without the marks that joined its lines.
fn joined(text: &str) -> String {
    let Some(rest) = text.trim_start().strip_prefix(QUOTES) else {
        return text.replace("\\\n", "\n").trim().to_owned();
    };
    let rest = rest.trim_end();
    let rest = rest.strip_suffix(QUOTES).unwrap_or(rest);
    let rest = rest.strip_prefix('\n').unwrap_or(rest);
    rest.strip_suffix('\n').unwrap_or(rest).to_owned()
}

/// The editor's rules: when a text is finished, and what Tab completes.
struct Rules;

impl Helper for Rules {}
impl Highlighter for Rules {}

impl Hinter for Rules {
    type Hint = String;
}

impl Validator for Rules {
    fn validate(&self, ctx: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_unfinished(ctx.input()) {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

impl Completer for Rules {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..at];
        if !typed.starts_with('/') {
            return Ok((at, Vec::new()));
        }
        let fits = slash::names().filter(|name| name.starts_with(typed));
        Ok((0, fits.map(str::to_owned).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_on_after_a_backslash_and_between_quotes() {
        for unfinished in ["a\\", "a\\\nb\\", "\"\"\"", "\"\"\"a\nb", " \"\"\"\n\\"] {
            assert!(is_unfinished(unfinished), "{unfinished:?}");
        }
        for finished in ["", "a", "a\\\nb", "\"\"\"a\"\"\"", "\"\"\"\na\n\"\"\" ", "pasted\nlines"] {
            assert!(!is_unfinished(finished), "{finished:?}");
        }
    }

    #[test]
    fn the_marks_are_taken_out() {
        assert_eq!(joined(" one "), "one");
        assert_eq!(joined("one\\\ntwo"), "one\ntwo");
        assert_eq!(joined("\"\"\"one\"\"\""), "one");
        assert_eq!(joined("\"\"\"\n  one \\\n two\n\"\"\""), "  one \\\n two");
        assert_eq!(joined("pasted\n  lines"), "pasted\n  lines");
    }
}
