//! The loop of a conversation: an input, what it asks for, the next.

use std::path::Path;

use super::conversation::{Conversation, Outcome};
use super::lines::{Input, Lines};
use super::slash::{self, Order};
use crate::args::{Shown, Switch};
use crate::interrupt::Interrupted;
use crate::output;

/// Answers each line that is not empty; the first error ends it.
pub(super) fn piped(conversation: &mut Conversation, lines: &mut dyn Lines) -> anyhow::Result<()> {
    while let Input::Text(line) = lines.next()? {
        let question = line.trim();
        if !question.is_empty() {
            to_the_end(conversation, question)?;
        }
    }
    Ok(())
}

/// Answers a question where nobody could go on after stopping the answer: who stops it ends the program.
pub(super) fn to_the_end(conversation: &mut Conversation, question: &str) -> anyhow::Result<()> {
    conversation.ask(question)?;
    if conversation.interrupt.is_stopped() {
        return Err(Interrupted.into());
    }
    conversation.interrupt.idle();
    Ok(())
}

/// Talks until the person at the terminal leaves. An error is shown, and the conversation goes on.
pub(super) fn terminal(conversation: &mut Conversation, lines: &mut dyn Lines) -> anyhow::Result<()> {
    output::note("/help lists what can be typed here, Ctrl-D leaves\n");
    // One Ctrl-C stops an answer or drops a line; two in a row, with nothing typed between, leave.
    let mut interrupted = false;
    loop {
        let text = match lines.next()? {
            Input::End => return Ok(()),
            Input::Interrupted if interrupted => return Ok(()),
            Input::Interrupted => {
                output::note("Ctrl-C again leaves\n");
                interrupted = true;
                continue;
            }
            Input::Text(text) if text.is_empty() => continue,
            Input::Text(text) => text,
        };
        interrupted = false;
        let result = match slash::parse(&text) {
            Some(Ok(Order::Exit)) => return Ok(()),
            Some(Ok(order)) => obey(conversation, order),
            Some(Err(reason)) => {
                output::note(&format!("{reason}\n"));
                Ok(())
            }
            // Of two slashes one is the question's.
            None => conversation.ask(text.strip_prefix("//").map_or(&text, |_| &text[1..])).map(|outcome| {
                interrupted = outcome != Outcome::Answered;
                if interrupted {
                    output::note("stopped\n");
                }
            }),
        };
        match result {
            Ok(()) => {}
            Err(e) if output::is_broken_pipe(&e) => return Err(e),
            Err(e) => output::error(&e),
        }
    }
}

fn obey(conversation: &mut Conversation, order: Order) -> anyhow::Result<()> {
    match order {
        Order::Help => output::note(&slash::help()),
        Order::Exit => {}
        Order::Reset => {
            conversation.reset()?;
            output::note("forgotten\n");
        }
        Order::System(Some(text)) => {
            conversation.set_system(Some(text));
            output::note("set; the next question reads the conversation anew\n");
        }
        Order::System(None) => match conversation.system() {
            Some(text) => output::note(&format!("{text}\n")),
            None => output::note("no system message\n"),
        },
        Order::NoSystem => {
            conversation.set_system(None);
            output::note("removed; the next question reads the conversation anew\n");
        }
        Order::Save(file) => {
            conversation.save(Path::new(&file))?;
            output::note(&format!("saved to {file}\n"));
        }
        Order::Stats => conversation.print_stats(),
        Order::Thinking(switch) => {
            conversation.thinking = switch == Switch::On;
            output::note(if conversation.thinking { "it thinks first\n" } else { "it answers at once\n" });
        }
        Order::Thoughts(Some(shown)) => {
            conversation.shows_thoughts = shown == Shown::Show;
            output::note(if conversation.shows_thoughts {
                "thoughts unfolded\n"
            } else {
                "thoughts folded\n"
            });
        }
        Order::Thoughts(None) => match &*conversation.last_thoughts() {
            "" => output::note("no thoughts\n"),
            thoughts => output::note(&format!("{thoughts}\n")),
        },
    }
    Ok(())
}
