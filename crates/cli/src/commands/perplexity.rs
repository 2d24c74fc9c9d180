//! `spinetail perplexity`

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use clap::builder::ValueHint;
use spinetail_engine::{
    Divergence, Engine, EngineError, EngineOptions, ModelSummary, Perplexity, Precision, Progress,
    divergence, inspect, perplexity, share_budget,
};

use crate::args::{GlobalArgs, MachineArgs, PrecisionArg};
use crate::output::{self, Bar};
use crate::settings::{CONTEXT, EngineSettings, MEMORY, Origin, Settings};
use crate::units::size;
use crate::{input, models};

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
    /// Also say how far the predictions are from those of this model, computed exactly; both share the memory
    #[arg(long, value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    against: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Positions of the context: the longest document [default: 4096, or what the model was made for]
    #[arg(long, value_name = "N", value_parser = CONTEXT.parse, allow_negative_numbers = true)]
    context: Option<u32>,
    /// How numbers are computed, whatever the configuration says [default: exact]
    #[arg(long, value_enum)]
    precision: Option<PrecisionArg>,
    #[command(flatten)]
    machine: MachineArgs,
}

pub(crate) fn run(a: &PerplexityArgs, globals: &GlobalArgs) -> anyhow::Result<()> {
    let mut settings = Settings::load(globals)?;
    let context = settings.pick(&CONTEXT, a.context)?;
    let asked = EngineSettings::for_comparing(&a.machine, context, a.precision, &mut settings)?;
    let mut text = input::open(&a.text, "the text")?;
    let path = models::find(&a.model, &mut settings)?;
    let (engine, reference) = match &a.against {
        None => (super::open(&path, &asked, &mut settings)?, None),
        Some(model) => {
            let other = models::find(model, &mut settings)?;
            let [engine, reference] = open_both([&path, &other], &asked, &mut settings)?;
            (engine, Some(reference))
        }
    };
    settings.print();
    let measured = measure(a, &engine, reference.as_ref(), &mut text);
    let (result, distance) = measured.map_err(|e| input::named(e, &a.text))?;
    let mut out = output::out();
    if a.json {
        writeln!(out, "{}", object(&result, distance.as_ref()))?;
    } else {
        print(&mut out, &result, distance.as_ref())?;
    }
    out.flush()?;
    Ok(())
}

/// Opens a model as asked, and its reference in exact, within one budget.
fn open_both(
    paths: [&Path; 2],
    asked: &EngineSettings,
    settings: &mut Settings,
) -> anyhow::Result<[Engine; 2]> {
    let mut both = [asked.clone(), asked.clone()];
    both[1].options.precision = Precision::Exact;
    let [model, reference] = [0, 1].map(|i| summary(paths[i], &both[i]));
    let (model, reference) = (model?, reference?);
    let shared = share_budget([&model.plan, &reference.plan], model.config.vocab, &asked.options)?;
    settings.note(MEMORY.key, size(shared.total_bytes()), Origin::Default);
    let mut open = |i: usize| {
        both[i].options.memory_bytes = Some(shared.parts_bytes[i]);
        super::open(paths[i], &both[i], settings)
    };
    let engines = [open(0)?, open(1)?];
    if engines.iter().any(|e| e.plan().slots_bytes < e.plan().records_bytes) {
        let [first, second] = shared.parts_bytes.map(size);
        output::note(&format!(
            "using {} of memory for both models: {first} and {second}, and {} for comparing; --memory sets it\n",
            size(shared.total_bytes()),
            size(shared.comparing_bytes)
        ));
    }
    Ok(engines)
}

/// What a model takes, at the context that it will be opened with.
fn summary(path: &Path, asked: &EngineSettings) -> anyhow::Result<ModelSummary> {
    // The budget of both is divided when both are known.
    let mut options = EngineOptions { memory_bytes: Some(u64::MAX), ..asked.options.clone() };
    let mut look = |context| {
        options.context = context;
        inspect(path, &options)
    };
    Ok(match look(asked.options.context) {
        Err(EngineError::Context { max, .. }) if asked.context_may_shrink && max > 0 => {
            look(u32::try_from(max)?)?
        }
        summary => summary?,
    })
}

fn measure(
    a: &PerplexityArgs,
    engine: &Engine,
    reference: Option<&Engine>,
    text: &mut dyn Read,
) -> Result<(Perplexity, Option<Divergence>), EngineError> {
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
