//! `spinetail chat`: prompts from the command line, a terminal or a pipe, answered in turn.

mod conversation;
mod editor;
mod lines;
mod slash;
mod talk;
mod view;

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;

use clap::builder::ValueHint;

use super::Recording;
use crate::args::{EngineArgs, GlobalArgs, SamplingArgs, Shown, Switch, TraceArgs};
use crate::interrupt::Interrupt;
use crate::settings::{EngineSettings, HISTORY, SYSTEM, SamplingSettings, Settings, THINKING, THOUGHTS};
use crate::{models, output};
use conversation::Conversation;
use editor::Terminal;
use lines::Piped;
use view::Style;

const MAX_TOKENS: usize = 1024;

#[derive(Debug, clap::Args)]
pub(crate) struct ChatArgs {
    /// Container or checkpoint folder, or the name of a model
    #[arg(default_value = "pip", value_hint = ValueHint::AnyPath)]
    model: PathBuf,
    /// What to say, one message after another
    #[arg(value_name = "PROMPT")]
    prompts: Vec<String>,
    /// System message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Let the model think before it answers [default: off]
    #[arg(long, value_enum)]
    thinking: Option<Switch>,
    /// Whether thoughts are shown [default: show on a terminal, hide elsewhere]
    #[arg(long, value_enum)]
    thoughts: Option<Shown>,
    /// Whether what is typed is remembered for the next time [default: on]
    #[arg(long, value_enum)]
    history: Option<Switch>,
    /// Print timings and cache statistics after each answer
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    trace: TraceArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(crate) fn run(a: &ChatArgs, globals: &GlobalArgs) -> anyhow::Result<()> {
    let mut settings = Settings::load(globals)?;
    let engine_settings = EngineSettings::resolve(&a.engine, &mut settings)?;
    let sampling = SamplingSettings::resolve(&a.sampling, MAX_TOKENS, &mut settings)?;
    let system = settings.pick(&SYSTEM, a.system.clone())?;
    let thinking = settings.pick_or(&THINKING, a.thinking, Switch::Off)? == Switch::On;
    let style = Style::of_stdout();
    let shown = if style.terminal { Shown::Show } else { Shown::Hide };
    let thoughts = settings.pick_or(&THOUGHTS, a.thoughts, shown)?;
    let history = settings.pick_or(&HISTORY, a.history, Switch::On)?;
    let path = models::find(&a.model, &mut settings)?;
    let terminal = style.terminal && io::stdin().is_terminal();
    if a.prompts.is_empty() && !terminal && matches!(io::stdin().lock().fill_buf(), Ok([])) {
        // Nothing will be asked: not worth reading weights.
        return Ok(());
    }

    Recording::check(&a.trace)?;
    let interrupt = Interrupt::install();
    let engine = super::open(&path, &engine_settings, &mut settings)?;
    sampling.note_defaults(engine.text()?.defaults(), thinking, &mut settings);
    settings.print();
    interrupt.remember(&engine);
    let recording = Recording::start(&engine, &a.trace)?;
    let mut conversation = Conversation::new(engine.clone(), sampling, style, interrupt)?;
    conversation.set_system(system);
    conversation.thinking = thinking;
    conversation.shows_thoughts = thoughts == Shown::Show;
    conversation.shows_stats = a.stats;
    let result = converse(&mut conversation, a, history, terminal);
    // The interrupt holds an engine as well, so that none is ever dropped.
    engine.remember_experts();
    recording.map_or(Ok(()), Recording::finish)?;
    result
}

fn converse(
    conversation: &mut Conversation,
    a: &ChatArgs,
    history: Switch,
    terminal: bool,
) -> anyhow::Result<()> {
    if !a.prompts.is_empty() {
        return said(conversation, &a.prompts);
    }
    if terminal {
        let interrupt = conversation.interrupt.clone();
        let file = if history == Switch::On { crate::dirs::history_file() } else { None };
        let mut lines = Terminal::new(file, interrupt, conversation.style)?;
        return talk::terminal(conversation, &mut lines);
    }
    talk::piped(conversation, &mut Piped::new(io::stdin().lock()))
}

/// Answers the prompts of the command line, each repeated before its answer.
fn said(conversation: &mut Conversation, prompts: &[String]) -> anyhow::Result<()> {
    for (i, prompt) in prompts.iter().enumerate() {
        let mut out = output::out();
        if i > 0 {
            writeln!(out)?;
        }
        writeln!(out, "> {prompt}")?;
        drop(out);
        talk::to_the_end(conversation, prompt)?;
    }
    Ok(())
}
