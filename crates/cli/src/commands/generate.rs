//! `spinetail generate`

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::builder::ValueHint;
use spinetail_engine::text::Message;
use spinetail_engine::{Answer, Engine, Event, GenerateOptions};

use super::Recording;
use crate::args::{EngineArgs, GlobalArgs, SamplingArgs, Switch, TraceArgs};
use crate::input::read_text;
use crate::interrupt::{Interrupt, Interrupted};
use crate::models;
use crate::output::{self, Bar};
use crate::settings::{EngineSettings, SYSTEM, SamplingSettings, Settings, THINKING};

/// Longer than any context: the largest is a million tokens of a few bytes.
const MAX_PROMPT_BYTES: u64 = 16 << 20;
const MAX_TOKENS: usize = 256;

#[derive(Debug, clap::Args)]
pub(crate) struct GenerateArgs {
    /// Container or checkpoint folder, or the name of a model
    #[arg(default_value = "pip", value_hint = ValueHint::AnyPath)]
    model: PathBuf,
    /// The prompt
    #[arg(
        long,
        value_name = "TEXT",
        required_unless_present = "prompt_file",
        conflicts_with = "prompt_file",
        allow_hyphen_values = true
    )]
    prompt: Option<String>,
    /// File that holds the prompt; - is standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    prompt_file: Option<PathBuf>,
    /// Treat the prompt as a user's message instead of raw text with special tokens
    #[arg(long)]
    chat: bool,
    /// System message, with --chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Let the model think before it answers, with --chat [default: off]
    #[arg(long, value_enum, requires = "chat")]
    thinking: Option<Switch>,
    /// Print timings and cache statistics to standard error
    #[arg(long)]
    stats: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    trace: TraceArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// The prompt and how it is to be answered.
struct Plan {
    prompt: String,
    /// `None` for a raw prompt.
    chat: Option<Chat>,
    sampling: SamplingSettings,
}

struct Chat {
    system: Option<String>,
    thinking: bool,
}

pub(crate) fn run(a: &GenerateArgs, globals: &GlobalArgs) -> anyhow::Result<()> {
    let mut settings = Settings::load(globals)?;
    let engine_settings = EngineSettings::resolve(&a.engine, &mut settings)?;
    let plan = Plan {
        chat: a.chat.then(|| chat_settings(a, &mut settings)).transpose()?,
        sampling: SamplingSettings::resolve(&a.sampling, MAX_TOKENS, &mut settings)?,
        prompt: prompt(a)?,
    };
    let path = models::find(&a.model, &mut settings)?;
    Recording::check(&a.trace)?;
    let interrupt = Interrupt::install();
    let engine = super::open(&path, &engine_settings, &mut settings)?;
    let defaults = engine.text()?;
    let thinking = plan.chat.as_ref().is_some_and(|c| c.thinking);
    plan.sampling.note_defaults(defaults.defaults(), thinking, &mut settings);
    settings.print();
    let options =
        GenerateOptions { show_special: true, ..plan.sampling.options(defaults.defaults(), thinking) };
    let (tokens, mark) = encode(&engine, plan.prompt, plan.chat)?;
    let recording = Recording::start(&engine, &a.trace)?;
    let answer = answer(&engine, (&tokens, mark), &options, a.json, &interrupt);
    recording.map_or(Ok(()), Recording::finish)?;
    let answer = answer?;
    if a.stats {
        output::stats(&engine, &answer);
    }
    Ok(())
}

fn chat_settings(a: &GenerateArgs, settings: &mut Settings) -> anyhow::Result<Chat> {
    Ok(Chat {
        system: settings.pick(&SYSTEM, a.system.clone())?,
        thinking: settings.pick_or(&THINKING, a.thinking, Switch::Off)? == Switch::On,
    })
}

/// The prompt. A raw one is kept byte for byte. A message read from a file loses what the file's system put there: a
/// byte-order mark, carriage returns, the last line end.
fn prompt(a: &GenerateArgs) -> anyhow::Result<String> {
    let Some(file) = &a.prompt_file else { return Ok(a.prompt.clone().unwrap_or_default()) };
    let text = read_text(file, "the prompt", MAX_PROMPT_BYTES)?;
    if !a.chat {
        return Ok(text);
    }
    let text = text.strip_prefix('\u{FEFF}').unwrap_or(&text).replace("\r\n", "\n");
    Ok(text.strip_suffix('\n').map(str::to_owned).unwrap_or(text))
}

fn encode(engine: &Engine, prompt: String, chat: Option<Chat>) -> anyhow::Result<(Vec<u32>, Option<usize>)> {
    let Some(chat) = chat else { return Ok((engine.encode(&prompt)?, None)) };
    let mut messages: Vec<Message> = chat.system.into_iter().map(|s| Message::new("system", s)).collect();
    messages.push(Message::new("user", prompt));
    let prompt = engine.render_chat(&messages, None, &super::thinking(chat.thinking))?;
    Ok((prompt.tokens, prompt.mark_at))
}

fn answer(
    engine: &Engine,
    (tokens, mark): (&[u32], Option<usize>),
    options: &GenerateOptions,
    json: bool,
    interrupt: &Interrupt,
) -> anyhow::Result<Answer> {
    let mut session = engine.session()?;
    let (mut out, terminal) = (output::out(), io::stdout().is_terminal());
    let mut failed = None;
    let mut bar = Some(Bar::tokens("reading the prompt"));
    interrupt.answering();
    let answer = session.answer(tokens, mark, options, &mut |event| {
        match event {
            Event::Prefill(p) => {
                if let Some(bar) = &bar {
                    bar.set(p.done as u64, p.total as u64);
                }
            }
            Event::Token { text, .. } => {
                bar = None;
                if !json {
                    write_piece(&mut out, &output::printable(text, terminal), &mut failed)?;
                }
            }
            _ => {}
        }
        if interrupt.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    drop(bar);
    if let Some(error) = failed {
        return Err(error.into());
    }
    if interrupt.is_stopped() {
        if !json {
            writeln!(out)?;
        }
        return Err(Interrupted.into());
    }
    interrupt.idle();
    let answer = answer?;
    if json {
        writeln!(out, "{}", object(engine, &answer))?;
    } else {
        writeln!(out)?;
    }
    out.flush()?;
    Ok(answer)
}

/// Writes at once what can be shown; ends the answer when nobody reads it any more.
fn write_piece(out: &mut dyn Write, text: &str, failed: &mut Option<io::Error>) -> ControlFlow<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ControlFlow::Continue(()),
        Err(e) => {
            *failed = Some(e);
            ControlFlow::Break(())
        }
    }
}

fn object(engine: &Engine, answer: &Answer) -> serde_json::Value {
    let store = engine.store_stats();
    serde_json::json!({
        "text": answer.text,
        "prompt_tokens": answer.prompt_tokens,
        "generated_tokens": answer.tokens.len(),
        "finish_reason": answer.finish,
        "prefill_tokens_per_second": answer.prefill_tokens_per_second(),
        "decode_tokens_per_second": answer.decode_tokens_per_second(),
        "time_to_first_token_ms": answer.first_token.as_secs_f64() * 1e3,
        "peak_rss_bytes": output::peak_rss_bytes(),
        "expert_hits": store.hits,
        "expert_misses": store.misses,
        "expert_bytes_read": store.bytes_read,
    })
}
