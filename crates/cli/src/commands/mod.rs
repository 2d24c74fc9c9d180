//! One file a command: its arguments, and a `run` that turns them into a call of the library and prints what comes back.
//!
//! A new command is a file here, a variant of [`Command`] and its line in [`Command::run`].

mod bench;
mod chat;
mod completions;
mod doctor;
mod generate;
mod inspect;
mod list;
mod logits;
mod man;
mod perplexity;
mod pull;
mod repack;
mod replay;
mod rm;
mod serve;
mod speed;
mod verify;

use std::fs::File;
use std::io;
use std::path::Path;

use anyhow::anyhow;
use clap::Subcommand;
use spinetail_engine::{Engine, EngineError};

use crate::args::{GlobalArgs, TraceArgs};
use crate::output::{self, Bar};
use crate::settings::{CONTEXT, EngineSettings, MEMORY, Origin, Settings};
use crate::units::size;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Talk with a model: each PROMPT is answered in turn; with none, at the terminal
    Chat(chat::ChatArgs),
    /// Continue a prompt once
    Generate(generate::GenerateArgs),
    /// Answer programs over HTTP, as OpenAI's service does
    Serve(serve::ServeArgs),
    /// Measure how fast a model runs here, and how near that is to what the machine can do
    Bench(bench::BenchArgs),
    /// Measure how well a model predicts a text
    Perplexity(perplexity::PerplexityArgs),
    /// Write the logits of given token ids to a safetensors file
    Logits(logits::LogitsArgs),
    /// Fetch a model, repacking a checkpoint on the way
    Pull(pull::PullArgs),
    /// Make a container from a checkpoint folder
    Repack(repack::RepackArgs),
    /// Check every record and file of a container against its checksum
    Verify(verify::VerifyArgs),
    /// Say what a model is, what stays in memory and what it needs
    Inspect(inspect::InspectArgs),
    /// Try other sizes and policies of the expert cache on a recorded trace
    Replay(replay::ReplayArgs),
    /// Measure what this machine, and the drive that a model lies on, can do
    Doctor(doctor::DoctorArgs),
    /// Show the models that can be called by name
    List(list::ListArgs),
    /// Remove a model from the folders for models
    Rm(rm::RmArgs),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
    /// Write the manual pages to a folder
    Man(man::ManArgs),
}

impl Command {
    /// Whether the command has a log of its own.
    pub(crate) fn logs(&self) -> bool {
        matches!(self, Self::Serve(_))
    }

    pub(crate) fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        match self {
            Self::Chat(a) => chat::run(a, globals),
            Self::Generate(a) => generate::run(a, globals),
            Self::Bench(a) => bench::run(a, globals),
            Self::Perplexity(a) => perplexity::run(a, globals),
            Self::Logits(a) => logits::run(a, globals),
            Self::Serve(a) => serve::run(a, globals),
            Self::Pull(a) => pull::run(a, globals),
            Self::Rm(a) => rm::run(a, globals),
            Self::Repack(a) => repack::run(a),
            Self::Verify(a) => verify::run(a, globals),
            Self::Inspect(a) => inspect::run(a, globals),
            Self::Replay(a) => replay::run(a, globals),
            Self::Doctor(a) => doctor::run(a, globals),
            Self::List(a) => list::run(a, globals),
            Self::Completions(a) => completions::run(a),
            Self::Man(a) => man::run(a),
        }
    }
}

/// Opens the model at `path`, with a bar while weights are read.
fn open(path: &Path, asked: &EngineSettings, settings: &mut Settings) -> anyhow::Result<Engine> {
    let mut asked = asked.clone();
    asked.settle_reads(path, settings);
    let mut options = asked.options.clone();
    let bar = Bar::bytes("reading weights");
    let mut progress = |done, total| bar.set(done, total);
    let engine = match Engine::open(path, &options, &mut progress) {
        Err(EngineError::Context { max, .. }) if asked.context_may_shrink && max > 0 => {
            options.context = u32::try_from(max)?;
            Engine::open(path, &options, &mut progress)
        }
        engine => engine,
    };
    drop(bar);
    settings.note(CONTEXT.key, options.context.to_string(), Origin::Default);
    let engine = engine?;
    if options.memory_bytes.is_none() {
        let plan = engine.plan();
        settings.note(MEMORY.key, size(plan.total_bytes()), Origin::Default);
        // Nobody said how much, so say what was taken; a model that fits whole takes what it takes.
        if plan.slots_bytes < plan.records_bytes {
            let (all, slots) = (size(plan.records_bytes), size(plan.slots_bytes));
            output::note(&format!(
                "using {} of memory, {slots} of it for the {all} of experts; --memory sets it\n",
                size(plan.total_bytes())
            ));
        }
    }
    Ok(engine)
}

/// A trace that is being recorded. Without a step there is none: a run that fails before its first leaves no file that
/// would be in the way of the next.
struct Recording<'a> {
    engine: Engine,
    file: &'a Path,
    ended: bool,
}

impl<'a> Recording<'a> {
    /// Looks whether the file can be made, before a model is loaded for nothing.
    fn check(a: &TraceArgs) -> anyhow::Result<()> {
        let Some(path) = &a.trace else { return Ok(()) };
        if path.symlink_metadata().is_ok() {
            return Err(cannot_record(path, &io::ErrorKind::AlreadyExists.into()));
        }
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match folder.metadata() {
            Ok(m) if m.is_dir() => Ok(()),
            Ok(_) => Err(cannot_record(path, &io::ErrorKind::NotADirectory.into())),
            Err(e) => Err(cannot_record(path, &e)),
        }
    }

    /// Makes the file, once nothing but the run itself can fail.
    fn start(engine: &Engine, a: &'a TraceArgs) -> anyhow::Result<Option<Self>> {
        let Some(path) = &a.trace else { return Ok(None) };
        let file = File::create_new(path).map_err(|e| cannot_record(path, &e))?;
        engine.start_trace(Box::new(file));
        Ok(Some(Self { engine: engine.clone(), file: path, ended: false }))
    }

    fn finish(mut self) -> anyhow::Result<()> {
        self.end().map_err(|e| {
            anyhow!("cannot record to {}: {e}; make room, or choose another place", self.file.display())
        })
    }

    fn end(&mut self) -> io::Result<()> {
        self.ended = true;
        if self.engine.finish_trace()? == 0 {
            std::fs::remove_file(self.file)?;
        }
        Ok(())
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // On the way out with another error.
            let _ = self.end();
        }
    }
}

fn cannot_record(path: &Path, e: &io::Error) -> anyhow::Error {
    let path = path.display();
    match e.kind() {
        io::ErrorKind::AlreadyExists => {
            anyhow!("there is something at {path} already; give --trace another name, or remove it")
        }
        _ => anyhow!("cannot record to {path}: {e}; give --trace another place"),
    }
}

/// The template argument that turns thinking on or off.
fn thinking(on: bool) -> serde_json::Map<String, serde_json::Value> {
    serde_json::Map::from_iter([("enable_thinking".to_owned(), on.into())])
}
