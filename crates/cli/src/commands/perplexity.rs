//! `spinetail perplexity`

use std::io::Write;
use std::path::PathBuf;

use clap::builder::ValueHint;
use spinetail_engine::perplexity;

use crate::args::{GlobalArgs, PrecisionArg};
use crate::input::read_text;
use crate::models;
use crate::output::{self, Bar};
use crate::settings::{CONTEXT, EngineSettings, MEMORY, Settings};

const MAX_TEXT_BYTES: u64 = 256 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct PerplexityArgs {
    /// Container or checkpoint folder, or the name of a model
    #[arg(value_hint = ValueHint::AnyPath)]
    model: PathBuf,
    /// Text to predict, documents ending in <|endoftext|>; - is standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    text: PathBuf,
    /// Only the first N documents
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    documents: Option<u64>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Positions of the context: the longest document [default: 4096, or what the model was made for]
    #[arg(long, value_name = "N", value_parser = CONTEXT.parse)]
    context: Option<u32>,
    /// How numbers are computed; whatever the configuration says, exact unless given here
    #[arg(long, value_enum, default_value_t = PrecisionArg::Exact)]
    precision: PrecisionArg,
    /// Memory the process may use, such as 2.6GiB
    #[arg(long, value_name = "SIZE", value_parser = MEMORY.parse)]
    memory: Option<u64>,
}

pub(crate) fn run(a: &PerplexityArgs, globals: &GlobalArgs) -> anyhow::Result<()> {
    let mut settings = Settings::load(globals)?;
    let memory = settings.pick(&MEMORY, a.memory)?;
    let context = settings.pick(&CONTEXT, a.context)?;
    let text = read_text(&a.text, "the text", MAX_TEXT_BYTES)?;
    let path = models::find(&a.model, &mut settings)?;
    let asked = EngineSettings::new(memory, context, a.precision.into());
    let engine = super::open(&path, &asked, &mut settings)?;
    settings.print();
    let most = a.documents.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let bar = Bar::tokens("predicting");
    let result = perplexity(&engine, &text, most, &mut |p| bar.set(p.done as u64, p.total as u64))?;
    drop(bar);
    let (nats, value) = (result.nats_per_token(), result.perplexity());
    let mut out = output::out();
    if a.json {
        let object = serde_json::json!({
            "documents": result.documents,
            "tokens": result.tokens,
            "nats_per_token": nats,
            "perplexity": value,
        });
        writeln!(out, "{object}")?;
    } else {
        writeln!(out, "documents       {}", result.documents)?;
        writeln!(out, "tokens          {}", result.tokens)?;
        writeln!(out, "nats per token  {nats:.5}")?;
        writeln!(out, "perplexity      {value:.5}")?;
    }
    out.flush()?;
    Ok(())
}
