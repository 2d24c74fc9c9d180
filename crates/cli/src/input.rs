//! Text that comes from files and standard input: bounded, UTF-8, errors that name the file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{anyhow, bail};

use crate::units::size;

/// Reads the file at `path`, or standard input for `-`. `what` is what the text is for.
pub(crate) fn read_text(path: &Path, what: &str, limit_bytes: u64) -> anyhow::Result<String> {
    let is_stdin = path == Path::new("-");
    let name = if is_stdin { "standard input".to_owned() } else { path.display().to_string() };
    let failed = |e| {
        anyhow!("cannot read {what} from {name}: {e}; give a file that can be read, or - for standard input")
    };
    let source: Box<dyn Read> =
        if is_stdin { Box::new(io::stdin().lock()) } else { Box::new(File::open(path).map_err(failed)?) };
    let mut bytes = Vec::new();
    source.take(limit_bytes + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > limit_bytes {
        bail!("{name} is too large for {what}: the limit is {}; cut it", size(limit_bytes));
    }
    String::from_utf8(bytes)
        .map_err(|e| anyhow!("{name} is not UTF-8 text ({}); convert it first", e.utf8_error()))
}
