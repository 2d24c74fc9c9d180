//! `spinetail chat`

use std::io::{self, BufRead, IsTerminal, Write};
use std::ops::ControlFlow;

use spinetail_engine::text::{Message, ReasoningSplitter};
use spinetail_engine::{Engine, EngineOptions, Event, GenerateOptions, Session};

use super::generate::write_piece;
use crate::args::{ChatArgs, Switch};
use crate::output;

pub(crate) fn run(a: &ChatArgs) -> anyhow::Result<()> {
    let engine = super::open(&a.model, &EngineOptions::from(&a.engine))?;
    let mut chat = Chat {
        session: engine.session()?,
        messages: a.system.iter().map(|s| Message::new("system", s.as_str())).collect(),
        kwargs: super::thinking(a.thinking == Switch::On),
        options: GenerateOptions { max_tokens: a.max_tokens, ..GenerateOptions::default() },
        stats: a.stats,
        engine,
    };
    if a.prompts.is_empty() {
        return chat.interactive();
    }
    for (i, prompt) in a.prompts.iter().enumerate() {
        if i > 0 {
            writeln!(io::stdout())?;
        }
        writeln!(io::stdout(), "> {prompt}")?;
        chat.ask(prompt)?;
    }
    Ok(())
}

/// A conversation at the terminal.
struct Chat {
    engine: Engine,
    session: Session,
    messages: Vec<Message>,
    kwargs: serde_json::Map<String, serde_json::Value>,
    options: GenerateOptions,
    stats: bool,
}

impl Chat {
    /// One question, its answer written as it comes. A question that failed is no part of the conversation.
    fn ask(&mut self, question: &str) -> anyhow::Result<()> {
        self.messages.push(Message::new("user", question));
        match self.reply() {
            Ok(answer) => {
                self.messages.push(Message::new("assistant", answer));
                Ok(())
            }
            Err(e) => {
                self.messages.pop();
                Err(e)
            }
        }
    }

    fn reply(&mut self) -> anyhow::Result<String> {
        let prompt = self.engine.render_chat(&self.messages, None, &self.kwargs)?;
        let mut splitter = ReasoningSplitter::new(prompt.opens_thinking);
        let mut out = io::stdout().lock();
        let (mut content, mut failed) = (String::new(), None);
        let answer = self.session.answer(&prompt.tokens, prompt.mark_at, &self.options, &mut |event| {
            let Event::Token { text, .. } = event else { return ControlFlow::Continue(()) };
            let split = splitter.push(text);
            content.push_str(&split.content);
            write_piece(&mut out, &split.reasoning, &mut failed)?;
            write_piece(&mut out, &split.content, &mut failed)
        })?;
        let rest = splitter.finish();
        content.push_str(&rest.content);
        if failed.is_none() {
            let _ = write_piece(&mut out, &rest.reasoning, &mut failed);
            let _ = write_piece(&mut out, &rest.content, &mut failed);
        }
        if let Some(error) = failed {
            return Err(error.into());
        }
        writeln!(out)?;
        out.flush()?;
        if self.stats {
            output::stats(&self.engine, &answer);
        }
        Ok(content)
    }

    fn interactive(&mut self) -> anyhow::Result<()> {
        let terminal = io::stdin().is_terminal();
        let mut line = String::new();
        loop {
            if terminal {
                let mut out = io::stdout().lock();
                out.write_all(b"> ")?;
                out.flush()?;
            }
            line.clear();
            if io::stdin().lock().read_line(&mut line)? == 0 {
                return Ok(());
            }
            let question = line.trim();
            if !question.is_empty() {
                self.ask(question)?;
            }
        }
    }
}
