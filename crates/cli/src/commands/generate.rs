//! `spinetail generate`

use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Context;
use spinetail_engine::text::Message;
use spinetail_engine::{Answer, Engine, EngineOptions, Event, GenerateOptions};

use crate::args::{GenerateArgs, Switch};
use crate::output;

pub(crate) fn run(a: &GenerateArgs) -> anyhow::Result<()> {
    let prompt = match (&a.prompt, &a.prompt_file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => read_prompt(file)?,
        (None, None) => String::new(),
    };
    let engine = super::open(&a.model, &EngineOptions::from(&a.engine))?;
    let (tokens, mark) = encode(&engine, a, prompt)?;
    let options =
        GenerateOptions { max_tokens: a.max_tokens, show_special: true, ..GenerateOptions::default() };
    let mut session = engine.session()?;
    let mut out = io::stdout().lock();
    let mut failed = None;
    let answer = session.answer(&tokens, mark, &options, &mut |event| match event {
        Event::Token { text, .. } if !a.json => write_piece(&mut out, text, &mut failed),
        _ => ControlFlow::Continue(()),
    })?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    if a.json {
        writeln!(out, "{}", json(&engine, &answer))?;
    } else {
        writeln!(out)?;
    }
    out.flush()?;
    if a.stats {
        output::stats(&engine, &answer);
    }
    Ok(())
}

fn read_prompt(file: &Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    if file == Path::new("-") {
        io::stdin().lock().read_to_end(&mut bytes).context("cannot read the prompt from standard input")?;
    } else {
        bytes =
            std::fs::read(file).with_context(|| format!("cannot read the prompt from {}", file.display()))?;
    }
    String::from_utf8(bytes)
        .map_err(|e| anyhow::anyhow!("{} is not UTF-8 text ({e}); convert it first", file.display()))
}

fn encode(engine: &Engine, a: &GenerateArgs, prompt: String) -> anyhow::Result<(Vec<u32>, Option<usize>)> {
    if !a.chat {
        return Ok((engine.encode(&prompt)?, None));
    }
    let mut messages: Vec<Message> = a.system.iter().map(|s| Message::new("system", s.as_str())).collect();
    messages.push(Message::new("user", prompt));
    let kwargs = super::thinking(a.thinking == Switch::On);
    let prompt = engine.render_chat(&messages, None, &kwargs)?;
    Ok((prompt.tokens, prompt.mark_at))
}

/// Writes at once what can be shown; ends the answer when nobody reads it any more.
pub(super) fn write_piece(
    out: &mut dyn Write,
    text: &str,
    failed: &mut Option<io::Error>,
) -> ControlFlow<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ControlFlow::Continue(()),
        Err(e) => {
            *failed = Some(e);
            ControlFlow::Break(())
        }
    }
}

fn json(engine: &Engine, answer: &Answer) -> serde_json::Value {
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
