//! Repacking: a checkpoint, or a version 1 container, into a version 2 container.
//!
//! Everything that can be refused is refused before the first byte is written. Memory stays bounded: dense tensors go
//! through in blocks of rows, experts one record per thread.

pub(crate) mod convert;
pub(crate) mod plan;

use std::ops::Range;
use std::path::Path;

use spinetail_container::{Kind, Plan, Summary, Writer, detect, read_small_file};
use spinetail_core::{ExpertId, Limits, ModelSource, Part, ReadError, TensorSpec, dense_specs};

use crate::error::CheckpointError;
use crate::model::Checkpoint;
use crate::v1::V1Model;
use convert::{convert_record, convert_rows};

type Result<T> = std::result::Result<T, CheckpointError>;

/// Source bytes of a block of rows, at most (but at least one row).
const BLOCK_BYTES: usize = 8 << 20;

/// Threads that quantize, at most.
const MAX_THREADS: usize = 16;

/// How to repack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RepackOptions {
    /// Bits of a code: 2, 3, 4, 5, 6 or 8, or 16 to keep the source's own precision. `None` is 4 for a source that is
    /// not quantized; one that is keeps its own bytes, and any other width is refused.
    pub bits: Option<u8>,
    /// Weights per group: 32, 64 or 128. `None` is 64. Without meaning where nothing is quantized.
    pub group_size: Option<usize>,
    /// Alignment of records in bytes: 4096 or 16384.
    pub record_alignment: u64,
}

impl Default for RepackOptions {
    fn default() -> Self {
        Self { bits: None, group_size: None, record_alignment: 16384 }
    }
}

/// How far repacking has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// Bytes written.
    pub done_bytes: u64,
    /// Bytes there will be, padding and small files not counted.
    pub total_bytes: u64,
    /// What was written last.
    pub what: &'a str,
}

/// A model whose dense tensors can be read in blocks.
pub(crate) trait Source: ModelSource {
    fn read_rows(
        &self,
        name: &str,
        part: Part,
        rows: Range<usize>,
        out: &mut [u8],
    ) -> std::result::Result<(), ReadError>;
    /// `hf`, `mlx` or `qpack-v1`.
    fn format(&self) -> &'static str;
    fn model_type(&self) -> &str;
    /// Names and lengths of the files that hold tensors.
    fn files(&self) -> Vec<(String, u64)>;
}

/// Writes what lies at `source` as a container at `output`, which must not exist.
///
/// `progress` is called after every piece; returning false stops, and leaves nothing behind.
pub fn repack(
    source: &Path,
    output: &Path,
    options: RepackOptions,
    progress: &mut dyn FnMut(Progress<'_>) -> bool,
) -> Result<Summary> {
    let model: Box<dyn Source> = match detect(source)? {
        None => Box::new(Checkpoint::open(source)?),
        Some(Kind::V1) => Box::new(V1Model::open(source)?),
        Some(_) => {
            return Err(CheckpointError::NotAModel {
                path: source.to_owned(),
                expected: "a checkpoint, or a container of version 1, to repack",
                found: "a container of version 2; give the checkpoint it was made from".to_owned(),
            });
        }
    };
    let plan = plan::plan(&*model, source, options)?;
    let mut writer = Writer::create(output, plan.clone())?;
    copy_small_files(source, &mut writer)?;
    Run {
        model: &*model,
        plan: &plan,
        writer: &mut writer,
        progress,
        done: 0,
        total: plan::payload_bytes(&plan),
    }
    .write()?;
    Ok(writer.finish()?)
}

/// Files of a checkpoint that a container keeps as they are: configuration, tokenizer and chat template. Others are not
/// needed.
pub const SMALL_FILES: [&str; 11] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
];

fn copy_small_files(source: &Path, writer: &mut Writer) -> Result<()> {
    for name in SMALL_FILES {
        let path = source.join(name);
        // A link that leads nowhere is an error when read, not a file that is not there.
        if path.symlink_metadata().is_ok() {
            writer.add_file(name, &read_small_file(&path, Limits::JSON_BYTES)?)?;
        }
    }
    Ok(())
}

/// One run: what is being written, and how far it is.
struct Run<'a> {
    model: &'a dyn Source,
    plan: &'a Plan,
    writer: &'a mut Writer,
    progress: &'a mut dyn FnMut(Progress<'_>) -> bool,
    done: u64,
    total: u64,
}

impl Run<'_> {
    fn write(&mut self) -> Result<()> {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MAX_THREADS);
        for d in dense_specs(&self.plan.config) {
            let Some((_, target)) = self.plan.dense.iter().find(|(name, _)| *name == d.name) else {
                continue;
            };
            self.dense(&d.name, &target.clone(), threads)?;
        }
        for layer in 0..self.plan.experts.len() {
            self.layer(layer as u16, threads)?;
        }
        Ok(())
    }

    fn report(&mut self, bytes: usize, what: &str) -> Result<()> {
        self.done += bytes as u64;
        let go_on = (self.progress)(Progress { done_bytes: self.done, total_bytes: self.total, what });
        if go_on { Ok(()) } else { Err(CheckpointError::Cancelled) }
    }

    /// One dense tensor, a block of rows at a time, a share of the block per thread.
    fn dense(&mut self, name: &str, target: &TensorSpec, threads: usize) -> Result<()> {
        let Some(source) = self.model.dense_spec(name) else {
            return Err(ReadError::Unknown { what: format!("tensor {name}") }.into());
        };
        let share = (BLOCK_BYTES / threads / source.row_bytes(Part::Weight).max(1)).max(1);
        let (model, mut next) = (self.model, 0);
        let mut offsets = [0u64; 3];
        while next < source.rows() {
            let starts: Vec<_> = (next..source.rows()).step_by(share).take(threads).collect();
            let blocks = in_parallel(&starts, |&start| {
                convert_rows(model, name, source, target, start..source.rows().min(start + share))
            })?;
            let mut bytes = 0;
            for (block, &part) in blocks.iter().flat_map(|b| b.iter().zip(&Part::ALL)) {
                if !block.is_empty() {
                    self.writer.write_dense(name, part, offsets[part as usize], block)?;
                    offsets[part as usize] += block.len() as u64;
                    bytes += block.len();
                }
            }
            next += share * threads;
            self.report(bytes, name)?;
        }
        Ok(())
    }

    /// The records of one layer, one per thread at a time.
    fn layer(&mut self, layer: u16, threads: usize) -> Result<()> {
        let target = &self.plan.experts[usize::from(layer)];
        let Some(source) = self.model.record_layout(layer) else {
            return Err(ReadError::Unknown { what: format!("records of layer {layer}") }.into());
        };
        let experts: Vec<_> = (0..self.plan.config.moe.experts as u16).collect();
        let (model, what) = (self.model, format!("experts of layer {layer}"));
        for some in experts.chunks(threads) {
            let ids: Vec<_> = some.iter().map(|&expert| ExpertId { layer, expert }).collect();
            let records = in_parallel(&ids, |&id| Ok((id, convert_record(model, id, source, target)?)))?;
            let mut bytes = 0;
            for (id, record) in records {
                self.writer.write_record(id, &record)?;
                bytes += record.len();
            }
            self.report(bytes, &what)?;
        }
        Ok(())
    }
}

/// Runs `work` on every item, each on its own thread as far as the system gives them; the results in order, or the first
/// error.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    if let [only] = items {
        return Ok(vec![work(only)?]);
    }
    std::thread::scope(|scope| {
        let work = &work;
        let start = |item| std::thread::Builder::new().spawn_scoped(scope, move || work(item));
        let started: Vec<_> = items.iter().map(|item| (item, start(item))).collect();
        let results = started.into_iter().map(|(item, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|p| std::panic::resume_unwind(p)),
            Err(_) => work(item),
        });
        results.collect()
    })
}

impl Source for Checkpoint {
    fn read_rows(
        &self,
        name: &str,
        part: Part,
        rows: Range<usize>,
        out: &mut [u8],
    ) -> std::result::Result<(), ReadError> {
        self.read_dense_rows(name, part, rows, out)
    }

    fn format(&self) -> &'static str {
        if self.mlx_naming { "mlx" } else { "hf" }
    }

    fn model_type(&self) -> &str {
        &self.model_type
    }

    fn files(&self) -> Vec<(String, u64)> {
        let name = |p: &Path| p.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        Checkpoint::files(self).into_iter().map(|(path, bytes)| (name(&path), bytes)).collect()
    }
}

impl Source for V1Model {
    fn read_rows(
        &self,
        name: &str,
        part: Part,
        rows: Range<usize>,
        out: &mut [u8],
    ) -> std::result::Result<(), ReadError> {
        self.read_dense_rows(name, part, rows, out)
    }

    fn format(&self) -> &'static str {
        "qpack-v1"
    }

    fn model_type(&self) -> &str {
        &self.model_type
    }

    fn files(&self) -> Vec<(String, u64)> {
        self.container.manifest().files.iter().map(|(path, bytes)| (path.clone(), *bytes)).collect()
    }
}
