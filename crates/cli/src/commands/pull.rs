//! `spinetail pull`, and `repack` from a distance.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::builder::ValueHint;
use spinetail_checkpoint::RepackOptions;
use spinetail_hub::{Event, PullRequest, Secret, Source, Stage, pull};

use crate::args::GlobalArgs;
use crate::output::{self, Bar};
use crate::settings::Settings;
use crate::units::size;

#[derive(Debug, clap::Args)]
pub(crate) struct PullArgs {
    /// ORG/REPO on the hub (HF_ENDPOINT, HF_TOKEN), or the address of a folder on a web server
    source: String,
    /// Container to make [default: named after the source, in the folder for models]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    output: Option<PathBuf>,
    /// Bits of quantized weights, for a source that is not quantized: 2, 3, 4, 5, 6, 8, or 16 [default: 4]
    #[arg(long, value_name = "BITS")]
    bits: Option<u8>,
    /// Weights that share a scale: 32, 64 or 128 [default: 64]
    #[arg(long, value_name = "N")]
    group_size: Option<usize>,
    /// Branch, tag or commit
    #[arg(long, value_name = "REVISION", default_value = "main")]
    revision: String,
    /// Files fetched at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = connections)]
    connections: usize,
}

fn connections(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|n| (1..=64).contains(n))
        .ok_or_else(|| format!("expected 1 to 64, found {text:?}"))
}

pub(crate) fn run(a: &PullArgs, globals: &GlobalArgs) -> anyhow::Result<()> {
    let mut settings = Settings::load(globals)?;
    let is_url = a.source.contains("://");
    let output = match &a.output {
        Some(output) => output.clone(),
        None => default_output(&a.source, &mut settings)?,
    };
    settings.print();
    let source = if is_url {
        Source::Url(a.source.clone())
    } else {
        Source::Hub { repository: a.source.clone(), revision: a.revision.clone() }
    };
    let mut request = PullRequest::new(source, output);
    request.options = RepackOptions { bits: a.bits, group_size: a.group_size, ..RepackOptions::default() };
    request.connections = a.connections;
    fetch(&request)
}

/// Named after the source, in the first folder for models.
fn default_output(source: &str, settings: &mut Settings) -> anyhow::Result<PathBuf> {
    let folders = settings.model_folders()?;
    let Some(folder) = folders.first() else {
        bail!("there is no folder for models; give --output, or set SPINETAIL_MODELS");
    };
    let last = source.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let name = last.trim_end_matches(".qpack").trim_end_matches("-qpack");
    if name.is_empty() || name.starts_with('.') || name.contains(['\\', ':']) {
        bail!("{source:?} gives no name for a model; give --output");
    }
    Ok(folder.join(format!("{name}.qpack")))
}

/// Pulls with a bar, and says what came of it.
pub(super) fn fetch(request: &PullRequest) -> anyhow::Result<()> {
    let hub = hub_settings()?;
    let (download, verify) = (Bar::bytes("downloading"), Bar::bytes("verifying"));
    let summary = pull(request, &hub, &mut |event| {
        match event {
            Event::Progress(p) if p.stage == Stage::Downloading => download.set(p.done_bytes, p.total_bytes),
            Event::Progress(p) if p.stage == Stage::Verifying => verify.set(p.done_bytes, p.total_bytes),
            Event::Note(note) => output::note(&format!("{note}\n")),
            _ => {}
        }
        ControlFlow::Continue(())
    });
    drop((download, verify));
    let s = summary?;
    let mut out = output::out();
    let place = s.output.display();
    if s.already_there {
        writeln!(out, "{place}: already there, {}", size(s.bytes))?;
    } else {
        let how = if s.repacked { "repacked on the way" } else { "as it was" };
        writeln!(out, "{place}: {}, {how}; {} received", size(s.bytes), size(s.received_bytes))?;
    }
    if !s.unverified.is_empty() {
        writeln!(out, "no checksum known for: {}", s.unverified.join(", "))?;
    }
    out.flush()?;
    Ok(())
}

/// What the hub's own tools take from the environment.
fn hub_settings() -> anyhow::Result<spinetail_hub::Settings> {
    let variable = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
    let mut hub = spinetail_hub::Settings::default();
    if let Some(endpoint) = variable("HF_ENDPOINT") {
        hub.endpoint = endpoint;
    }
    hub.proxy = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"].iter().find_map(|n| variable(n));
    hub.token = match variable("HF_TOKEN") {
        Some(token) => Some(Secret::new(token.trim())),
        None => token_file().map(|f| read_token(&f)).transpose()?.flatten(),
    };
    Ok(hub)
}

/// Where the hub's own tools keep the token.
fn token_file() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    variable("HF_TOKEN_PATH")
        .or_else(|| variable("HF_HOME").map(|h| h.join("token")))
        .or_else(|| variable("XDG_CACHE_HOME").map(|c| c.join("huggingface/token")))
        .or_else(|| variable("HOME").map(|h| h.join(".cache/huggingface/token")))
}

fn read_token(file: &Path) -> anyhow::Result<Option<Secret>> {
    match std::fs::read_to_string(file) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => Ok(Some(Secret::new(text.trim()))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot read the hub's token from {}", file.display())),
    }
}
