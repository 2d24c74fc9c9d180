//! A conversation: its messages, the session that has read them, and one question at a time.

use std::borrow::Cow;
use std::fs::OpenOptions;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::anyhow;
use spinetail_engine::text::{Content, Message, ReasoningSplitter};
use spinetail_engine::{Answer, Engine, EngineError, Event, Session};

use super::view::{Style, View};
use crate::interrupt::Interrupt;
use crate::output::{self, Bar};
use crate::settings::SamplingSettings;

/// What came of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Answered,
    /// Stopped while it was answered; what had been said stays.
    Stopped,
    /// Stopped before anything was said: the question is no part of the conversation.
    Unanswered,
}

pub(super) struct Conversation {
    engine: Engine,
    session: Session,
    messages: Vec<Message>,
    sampling: SamplingSettings,
    pub(super) style: Style,
    last: Option<Answer>,
    /// The thoughts before the last answer.
    thoughts: String,
    pub(super) thinking: bool,
    pub(super) shows_thoughts: bool,
    pub(super) shows_stats: bool,
    pub(super) interrupt: Interrupt,
}

impl Conversation {
    pub(super) fn new(
        engine: Engine,
        sampling: SamplingSettings,
        style: Style,
        interrupt: Interrupt,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            session: engine.session()?,
            engine,
            messages: Vec::new(),
            sampling,
            style,
            last: None,
            thoughts: String::new(),
            thinking: false,
            shows_thoughts: true,
            shows_stats: false,
            interrupt,
        })
    }

    /// One question, its answer written as it comes. A question that failed is no part of the conversation.
    pub(super) fn ask(&mut self, question: &str) -> anyhow::Result<Outcome> {
        self.messages.push(Message::new("user", question));
        let outcome = self.reply();
        if !matches!(outcome, Ok(Outcome::Answered | Outcome::Stopped)) {
            self.messages.pop();
        }
        outcome
    }

    fn reply(&mut self) -> anyhow::Result<Outcome> {
        let prompt =
            self.engine.render_chat(&self.messages, None, &crate::commands::thinking(self.thinking))?;
        let options = self.sampling.options(self.engine.text()?.defaults(), self.thinking);
        let mut splitter = ReasoningSplitter::new(prompt.opens_thinking);
        let mut out = output::out();
        let mut view = View::new(&mut out, self.style, self.shows_thoughts);
        let mut bar = Some(Bar::tokens("reading the prompt"));
        let (interrupt, mut failed) = (self.interrupt.clone(), None);
        interrupt.answering();
        let result = self.session.answer(&prompt.tokens, prompt.mark_at, &options, &mut |event| {
            match event {
                Event::Prefill(p) => {
                    if let Some(bar) = &bar {
                        bar.set(p.done as u64, p.total as u64);
                    }
                }
                Event::Token { text, .. } => {
                    bar = None;
                    if let Err(e) = view.token(&splitter.push(text)) {
                        failed = Some(e);
                        return ControlFlow::Break(());
                    }
                }
                _ => {}
            }
            if interrupt.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        drop(bar);
        let answer = match result {
            Ok(answer) => answer,
            Err(EngineError::Cancelled) => return Ok(Outcome::Unanswered),
            Err(e) => return Err(e.into()),
        };
        if let Some(e) = failed {
            return Err(e.into());
        }
        view.finish(&splitter.finish())?;
        let (content, thoughts) = view.into_texts();
        Ok(self.keep(answer, content, thoughts))
    }

    /// Makes an answer part of the conversation.
    fn keep(&mut self, answer: Answer, content: String, thoughts: String) -> Outcome {
        if self.shows_stats {
            output::stats(&self.engine, &answer);
        }
        let stopped = answer.cancelled;
        self.last = Some(answer);
        self.thoughts = thoughts;
        if stopped && content.is_empty() {
            return Outcome::Unanswered;
        }
        self.messages.push(Message::new("assistant", content));
        if stopped { Outcome::Stopped } else { Outcome::Answered }
    }

    /// The thoughts before the last answer, fit for a terminal.
    pub(super) fn last_thoughts(&self) -> Cow<'_, str> {
        output::printable(&self.thoughts, self.style.terminal)
    }

    /// Forgets what was said; the system message stays.
    pub(super) fn reset(&mut self) -> anyhow::Result<()> {
        self.messages.retain(|m| m.role == "system");
        self.last = None;
        self.thoughts.clear();
        Ok(self.session.reset()?)
    }

    pub(super) fn system(&self) -> Option<&str> {
        self.messages.first().filter(|m| m.role == "system").map(text_of)
    }

    /// Sets the system message, or removes it. The next question reads the conversation anew.
    pub(super) fn set_system(&mut self, text: Option<String>) {
        self.messages.retain(|m| m.role != "system");
        if let Some(text) = text {
            self.messages.insert(0, Message::new("system", text));
        }
    }

    /// Writes the conversation to a new file: JSON messages where its name ends in .json, text otherwise.
    pub(super) fn save(&self, path: &Path) -> anyhow::Result<()> {
        let text = if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json")) {
            format!("{:#}\n", serde_json::json!({ "messages": self.messages }))
        } else {
            let heading = |m: &Message| format!("# {}\n\n{}\n", m.role, text_of(m));
            self.messages.iter().map(heading).collect::<Vec<_>>().join("\n")
        };
        let file = OpenOptions::new().write(true).create_new(true).open(path);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|e| anyhow!("cannot save to {}: {e}; give the name of a new file", path.display()))
    }

    /// Prints how the last answer went, and how full the context is.
    pub(super) fn print_stats(&self) {
        match &self.last {
            Some(answer) => output::stats(&self.engine, answer),
            None => output::note("no answer yet\n"),
        }
        let used = self.session.tokens().len();
        let context = used + self.session.remaining();
        output::note(&format!("{} messages, {used} of {context} positions used\n", self.messages.len()));
    }
}

fn text_of(message: &Message) -> &str {
    match &message.content {
        Some(Content::Text(text)) => text,
        _ => "",
    }
}
