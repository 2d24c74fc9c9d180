//! Dumping logits and layer outputs as safetensors, for comparison with other engines.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::EngineError;
use crate::session::{Observer, Session};

/// Runs `tokens` in a fresh `session` and writes tensor `logits` `[tokens, vocab]` in f32, and with `layers`
/// `layers.N.output` `[tokens, hidden]`, to a safetensors file. The file appears under its name when it is whole; a
/// regular file of that name gives way, anything else is refused before computing.
pub fn dump_logits(
    session: &mut Session,
    tokens: &[u32],
    layers: bool,
    output: &Path,
) -> Result<(), EngineError> {
    if tokens.is_empty() {
        return Err(EngineError::EmptyPrompt);
    }
    let failed = |error| EngineError::Write { path: output.to_owned(), error };
    let target = target(output).map_err(failed)?;
    let folder = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A name of its own beside the target: two dumps never write to one file, and no link is followed.
    let partial = tempfile::Builder::new().prefix(".spinetail-").suffix(".partial").tempfile_in(folder);
    let partial = partial.map_err(failed)?;
    let config = session.engine().config();
    let tensors = if layers { config.layers.len() } else { 0 };
    let file = partial.as_file().try_clone().map_err(failed)?;
    let mut dump = Dump::start(file, tokens.len(), config.vocab, config.hidden, tensors).map_err(failed)?;
    session.evaluate(tokens, &mut dump)?;
    dump.finish().map_err(failed)?;
    readable(partial.as_file()).map_err(failed)?;
    partial.persist(&target).map_err(|e| failed(e.error))?;
    Ok(())
}

/// The file to write: links are followed to what they lead to, and nothing but a regular file may be there.
fn target(output: &Path) -> io::Result<PathBuf> {
    match std::fs::metadata(output) {
        Ok(m) if m.is_file() => std::fs::canonicalize(output),
        Ok(_) => Err(io::Error::other("it exists and is not a regular file")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => match std::fs::symlink_metadata(output) {
            Ok(_) => Err(io::Error::other("it is a link that leads nowhere")),
            Err(_) => Ok(output.to_owned()),
        },
        Err(e) => Err(e),
    }
}

/// Temporary files are for their owner alone; a result is as readable as any other file.
#[cfg(unix)]
fn readable(file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn readable(_: &File) -> io::Result<()> {
    Ok(())
}

struct Dump {
    file: BufWriter<File>,
    header_bytes: u64,
    tokens: usize,
    vocab: usize,
    hidden: usize,
    layers: usize,
    /// The first write that failed inside an observer call that cannot say so.
    failed: Option<io::Error>,
}

impl Dump {
    fn start(file: File, tokens: usize, vocab: usize, hidden: usize, layers: usize) -> io::Result<Self> {
        let mut header = serde_json::Map::new();
        let mut end = 0;
        let mut tensor = |name: String, width: usize| {
            let (start, bytes) = (end, (tokens * width * 4) as u64);
            end += bytes;
            let shape = [tokens, width];
            let entry = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]});
            header.insert(name, entry);
        };
        tensor("logits".to_owned(), vocab);
        (0..layers).for_each(|n| tensor(format!("layers.{n}.output"), hidden));
        let mut header = serde_json::Value::Object(header).to_string();
        // Tensors start at a multiple of 8 bytes, as the format recommends.
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        let mut file = BufWriter::new(file);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        Ok(Self { file, header_bytes: 8 + header.len() as u64, tokens, vocab, hidden, layers, failed: None })
    }

    fn write(&mut self, at: u64, values: &[f32]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.header_bytes + at))?;
        values.iter().try_for_each(|v| self.file.write_all(&v.to_le_bytes()))
    }

    fn finish(mut self) -> io::Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.file.flush()?;
        self.file.get_ref().sync_all()
    }
}

impl Observer for Dump {
    fn logits(&mut self, position: usize, logits: &[f32]) {
        let at = (position * self.vocab * 4) as u64;
        if let Err(e) = self.write(at, logits) {
            self.failed.get_or_insert(e);
        }
    }

    fn wants_layers(&self) -> bool {
        self.layers > 0
    }

    fn layer_output(&mut self, layer: usize, position: usize, x: &[f32]) {
        let at = (self.tokens * self.vocab + layer * self.tokens * self.hidden + position * self.hidden) * 4;
        if let Err(e) = self.write(at as u64, x) {
            self.failed.get_or_insert(e);
        }
    }
}
