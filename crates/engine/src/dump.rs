//! Dumping logits and layer outputs as safetensors, for comparison with other engines.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::EngineError;
use crate::session::{Observer, Session};

/// Runs `tokens` in a fresh `session` and writes tensor `logits` `[tokens, vocab]` in f32, and with `layers`
/// `layers.N.output` `[tokens, hidden]`, to a safetensors file. The file appears under its name when it is whole.
pub fn dump_logits(
    session: &mut Session,
    tokens: &[u32],
    layers: bool,
    output: &Path,
) -> Result<(), EngineError> {
    if tokens.is_empty() {
        return Err(EngineError::EmptyPrompt);
    }
    let mut partial = output.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let failed = |error| EngineError::Write { path: output.to_owned(), error };
    if std::fs::metadata(output).is_ok_and(|m| !m.is_file()) {
        // The rename at the end would put a file in the place of a device.
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is there and not a file")));
    }
    let config = session.engine().config();
    let tensors = if layers { config.layers.len() } else { 0 };
    let result = Dump::create(&partial, tokens.len(), config.vocab, config.hidden, tensors)
        .map_err(failed)
        .and_then(|mut dump| {
            session.evaluate(tokens, &mut dump)?;
            dump.finish().map_err(failed)
        })
        .and_then(|()| std::fs::rename(&partial, output).map_err(failed));
    if result.is_err() {
        // The error that matters is the one at hand; a partial file that cannot be removed is named as one.
        let _ = std::fs::remove_file(&partial);
    }
    result
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
    fn create(path: &Path, tokens: usize, vocab: usize, hidden: usize, layers: usize) -> io::Result<Self> {
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
        let mut file = BufWriter::new(File::create(path)?);
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
