//! `spinetail logits`

use spinetail_engine::{EngineOptions, dump_logits};

use crate::args::LogitsArgs;

pub(crate) fn run(a: &LogitsArgs) -> anyhow::Result<()> {
    let options = EngineOptions {
        memory_bytes: a.memory,
        context: u32::try_from(a.tokens.len())?,
        precision: a.precision.into(),
    };
    let engine = super::open(&a.model, &options)?;
    dump_logits(&mut engine.session()?, &a.tokens, a.layers, &a.output)?;
    Ok(())
}
