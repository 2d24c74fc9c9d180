//! `spinetail perplexity`

use std::io::Write;
use std::path::PathBuf;

use clap::builder::ValueHint;
use spinetail_engine::{Divergence, Engine, Perplexity, Precision, Progress, divergence, perplexity};

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
    /// Also say how far the predictions are from those of this model, computed exactly
    #[arg(long, value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    against: Option<PathBuf>,
    /// Memory the process may use, such as 2.6GiB; with --against, half of it for each model
    #[arg(long, value_name = "SIZE", value_parser = MEMORY.parse)]
    memory: Option<u64>,
}

pub(crate) fn run(a: &PerplexityArgs, globals: &GlobalArgs) -> anyhow::Result<()> {
    let mut settings = Settings::load(globals)?;
    let memory = settings.pick(&MEMORY, a.memory)?;
    let context = settings.pick(&CONTEXT, a.context)?;
    let text = read_text(&a.text, "the text", MAX_TEXT_BYTES)?;
    let share = if a.against.is_some() { memory.map(|m| m / 2) } else { memory };
    let mut open = |model: &PathBuf, precision: Precision| {
        let path = models::find(model, &mut settings)?;
        super::open(&path, &EngineSettings::new(share, context, precision), &mut settings)
    };
    let engine = open(&a.model, a.precision.into())?;
    let reference = a.against.as_ref().map(|m| open(m, Precision::Exact)).transpose()?;
    settings.print();
    let (result, distance) = measure(a, &engine, reference.as_ref(), &text)?;
    let mut out = output::out();
    if a.json {
        writeln!(out, "{}", object(&result, distance.as_ref()))?;
    } else {
        print(&mut out, &result, distance.as_ref())?;
    }
    out.flush()?;
    Ok(())
}

fn measure(
    a: &PerplexityArgs,
    engine: &Engine,
    reference: Option<&Engine>,
    text: &str,
) -> anyhow::Result<(Perplexity, Option<Divergence>)> {
    let most = a.documents.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let bar = Bar::tokens("predicting");
    let mut progress = |p: Progress| bar.set(p.done as u64, p.total as u64);
    Ok(match reference {
        None => (perplexity(engine, text, most, &mut progress)?, None),
        Some(reference) => {
            let found = divergence(engine, reference, text, most, &mut progress)?;
            (found.model, Some(found))
        }
    })
}

fn object(result: &Perplexity, distance: Option<&Divergence>) -> serde_json::Value {
    let mut object = serde_json::json!({
        "documents": result.documents,
        "tokens": result.tokens,
        "nats_per_token": result.nats_per_token(),
        "perplexity": result.perplexity(),
    });
    if let Some(d) = distance {
        object["against"] = serde_json::json!({
            "nats_per_token": d.reference.nats_per_token(),
            "perplexity": d.reference.perplexity(),
            "kl_nats_mean": d.kl_nats_mean(),
            "kl_nats_p999": d.kl_nats_at(0.999),
            "kl_nats_max": d.kl_nats_at(1.0),
            "top_1_agreement": d.top_1_agreement(),
        });
    }
    object
}

fn print(out: &mut dyn Write, result: &Perplexity, distance: Option<&Divergence>) -> std::io::Result<()> {
    writeln!(out, "documents        {}", result.documents)?;
    writeln!(out, "tokens           {}", result.tokens)?;
    writeln!(out, "nats per token   {:.5}", result.nats_per_token())?;
    writeln!(out, "perplexity       {:.5}", result.perplexity())?;
    let Some(d) = distance else { return Ok(()) };
    let more = 100.0 * (result.perplexity() / d.reference.perplexity() - 1.0);
    writeln!(out, "against          {:.5} ({more:+.3} %)", d.reference.perplexity())?;
    writeln!(out, "KL, mean         {:.3e} nats", d.kl_nats_mean())?;
    writeln!(out, "KL, 99.9 % below {:.3e} nats", d.kl_nats_at(0.999))?;
    writeln!(out, "KL, worst        {:.3e} nats", d.kl_nats_at(1.0))?;
    writeln!(out, "same likeliest   {:.2} %", 100.0 * d.top_1_agreement())
}
