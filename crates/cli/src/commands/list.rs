//! `spinetail list`

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use crate::args::GlobalArgs;
use crate::models::{self, Kind};
use crate::output;
use crate::settings::Settings;
use crate::units::size;

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {}

pub(crate) fn run(_: &ListArgs, globals: &GlobalArgs) -> anyhow::Result<()> {
    let mut settings = Settings::load(globals)?;
    let folders = settings.model_folders()?;
    settings.print();
    let entries = models::entries(&folders)?;
    let name_of = |e: &models::Entry| e.name.to_string_lossy().into_owned();
    let width = entries.iter().map(|e| name_of(e).chars().count()).max().unwrap_or(0);
    let terminal = io::stdout().is_terminal();
    let mut out = output::out();
    for entry in &entries {
        let kind = match entry.kind {
            Kind::Container => "container",
            Kind::Checkpoint => "checkpoint",
        };
        // A folder that cannot be read to its end still has a name.
        let bytes = folder_bytes(&entry.path, 0).map_or_else(|_| "unreadable".to_owned(), size);
        let (name, path) = (name_of(entry), entry.path.display().to_string());
        // Names of folders are whatever somebody made them.
        let (name, path) = (output::printable(&name, terminal), output::printable(&path, terminal));
        writeln!(out, "{name:width$}  {kind:10}  {bytes:>10}  {path}")?;
    }
    if entries.is_empty() {
        output::note("no models yet\n");
    }
    out.flush()?;
    Ok(())
}

/// Bytes of the files in a folder and the folders in it; links are followed, as in a cache that stores files by hash.
fn folder_bytes(folder: &Path, depth: usize) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let meta = std::fs::metadata(&path)?;
        bytes += if meta.is_file() {
            meta.len()
        } else if meta.is_dir() && depth < 4 {
            folder_bytes(&path, depth + 1)?
        } else {
            0
        };
    }
    Ok(bytes)
}
