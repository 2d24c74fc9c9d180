//! Text that comes from files and standard input: bounded, UTF-8, errors that name the file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{anyhow, bail};
use spinetail_engine::EngineError;

use crate::units::size;

/// Reads the file at `path`, or standard input for `-`. `what` is what the text is for.
pub(crate) fn read_text(path: &Path, what: &str, limit_bytes: u64) -> anyhow::Result<String> {
    let (source, name) = (open(path, what)?, name(path));
    let mut bytes = Vec::new();
    source.take(limit_bytes + 1).read_to_end(&mut bytes).map_err(|e| failed(path, what, &e))?;
    if bytes.len() as u64 > limit_bytes {
        bail!("{name} is too large for {what}: the limit is {}; cut it", size(limit_bytes));
    }
    String::from_utf8(bytes)
        .map_err(|e| anyhow!("{name} is not UTF-8 text ({}); convert it first", e.utf8_error()))
}

/// Opens the file at `path`, or standard input for `-`, for whoever reads it a piece at a time.
pub(crate) fn open(path: &Path, what: &str) -> anyhow::Result<Box<dyn Read>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin().lock()));
    }
    Ok(Box::new(File::open(path).map_err(|e| failed(path, what, &e))?))
}

/// What went wrong with a text that an engine read from `path`.
pub(crate) fn named(e: EngineError, path: &Path) -> anyhow::Error {
    match e {
        EngineError::Input(e) => failed(path, "the text", &e),
        EngineError::NotUtf8 { at } => {
            anyhow!("{} is not UTF-8 text from byte {at} on; convert it first", name(path))
        }
        e => e.into(),
    }
}

fn name(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

fn failed(path: &Path, what: &str, e: &io::Error) -> anyhow::Error {
    let name = name(path);
    anyhow!("cannot read {what} from {name}: {e}; give a file that can be read, or - for standard input")
}
