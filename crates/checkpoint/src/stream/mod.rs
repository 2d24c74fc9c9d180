//! Repacking a checkpoint that is not there: bytes of its files come in as they arrive from somewhere, and go to their
//! final place in the container, converted on the way. The checkpoint itself is never stored.
//!
//! [`StreamPlan`] is made from the configuration and the headers of all files; [`StreamRepack`] takes the files' bytes,
//! of each in order, of all of them at once if need be. It keeps nothing between calls, so that writing the same bytes
//! again is harmless, and whoever remembers how far each file has come can go on after a crash. It must not know where
//! the bytes come from.

mod pieces;

use std::path::Path;

use spinetail_container::{Opened, PlacedWriter, Plan, SourceFile, SourceIdentity};
use spinetail_core::{ExpertId, Format, Part, Projection, RecordLayout, TensorSpec, widen};

use crate::config::SourceConfig;
use crate::error::CheckpointError;
use crate::names::{self, Content, Resolved};
use crate::quantize::{Quantized, quantize_rows};
use crate::repack::RepackOptions;
use crate::repack::convert::{expert_name, not_finite};
use crate::repack::plan::{Outline, plan_of};
use crate::safetensors::{self, Index, merge_headers, require_all, without_index};
use crate::source::Decode;
use pieces::{How, Piece, Place};
pub use spinetail_container::Summary;

type Result<T> = std::result::Result<T, CheckpointError>;

/// The file that says which tensor lies where, if there is one.
pub const INDEX: &str = safetensors::INDEX;

/// Bytes of the length that starts every safetensors file.
pub const LENGTH_BYTES: u64 = safetensors::LENGTH_BYTES;

/// The safetensors files of a checkpoint, sorted: as its index says or, without one, all `model*.safetensors`. `listed`
/// are the names there are, if somebody knows; `label` stands for the folder in messages.
pub fn shard_names(label: &Path, index: Option<&[u8]>, listed: Option<&[String]>) -> Result<Vec<String>> {
    let is_there = |n: &str| listed.is_none_or(|l| l.iter().any(|l| l == n));
    match (index, listed) {
        (Some(bytes), _) => {
            let names = Index::parse(&label.join(INDEX), bytes)?.files();
            require_all(label, INDEX, &names, is_there)?;
            Ok(names)
        }
        (None, Some(listed)) => without_index(label, listed.to_vec(), is_there),
        // Then there can be one, of the usual name.
        (None, None) => Ok(vec!["model.safetensors".to_owned()]),
    }
}

/// The length of the header of a file, from its first 8 bytes; checked against the limit and the file's size. `file` is
/// for messages.
pub fn header_bytes(file: &Path, first: [u8; 8], file_bytes: u64) -> Result<u64> {
    let wrong = |error| CheckpointError::Header { path: file.to_owned(), error };
    safetensors::header_bytes(first, file_bytes).map_err(wrong)
}

/// One safetensors file, as far as planning needs it.
#[derive(Debug, Clone)]
pub struct Shard {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Its header: the JSON after the length.
    pub header: Vec<u8>,
}

/// A checkpoint, as far as planning needs it.
#[derive(Debug, Clone)]
pub struct StreamSource<'a> {
    /// The model's name, for the container's source identity and, as a folder, for messages.
    pub name: &'a str,
    /// Commit or the like.
    pub revision: Option<&'a str>,
    /// The contents of `config.json`.
    pub config: &'a [u8],
    /// The contents of the index.
    pub index: Option<&'a [u8]>,
    /// The files that [`shard_names`] names, in that order.
    pub shards: Vec<Shard>,
}

/// Where every byte of a checkpoint goes.
#[derive(Debug)]
pub struct StreamPlan {
    container: Plan,
    /// Names of dense tensors with their formats; pieces refer to them.
    dense: Vec<(String, TensorSpec)>,
    /// By file, in the order of the file.
    files: Vec<Vec<Piece>>,
}

impl StreamPlan {
    /// Reads configuration and headers and decides on the container, as [`crate::repack()`] does for a folder: the
    /// same checkpoint gives the same bytes.
    pub fn new(source: StreamSource<'_>, options: RepackOptions) -> Result<Self> {
        let label = Path::new(source.name);
        let config = SourceConfig::parse(&label.join("config.json"), source.config)?;
        let (mut list, mut headers) = (Vec::new(), Vec::new());
        for shard in source.shards {
            let header = safetensors::parse_header(&shard.header, shard.bytes);
            let path = label.join(&shard.name);
            headers.push(header.map_err(|error| CheckpointError::Header { path, error })?);
            list.push((shard.name, shard.bytes));
        }
        let tensors = match source.index {
            Some(bytes) => Index::parse(&label.join(INDEX), bytes)?.assign(headers)?,
            None => {
                let names: Vec<_> = list.iter().map(|(name, _)| name.clone()).collect();
                merge_headers(&names, headers)?
            }
        };
        let resolved = names::resolve(&config, tensors, Content::Whole)?;
        refuse_what_needs_two_places(&resolved)?;
        let identity = SourceIdentity {
            format: if resolved.mlx_naming { "mlx" } else { "hf" }.to_owned(),
            name: source.name.to_owned(),
            model_type: config.model_type,
            revision: source.revision.map(str::to_owned),
            files: list
                .iter()
                .map(|(path, bytes)| SourceFile { path: path.clone(), bytes: *bytes, sha256: None })
                .collect(),
        };
        let outline = Outline::new(
            &resolved.config,
            |name| resolved.dense.get(name).map(|d| &d.spec),
            |layer| resolved.experts.get(usize::from(layer)).map(|l| &l.layout),
        )?;
        let container = plan_of(outline, identity, options)?;
        let files = pieces::of(&resolved, &container, list.len())?;
        Ok(Self { dense: container.dense.clone(), container, files })
    }

    /// Tells whether two plans treat file `file` alike: the same bytes of it go to the same places in the same way.
    pub fn fingerprint(&self, file: usize) -> u64 {
        pieces::fingerprint(&self.files[file])
    }

    /// Bytes of the container, but for small files and manifest.
    pub fn container_bytes(&self) -> u64 {
        self.container.total_bytes()
    }
}

/// What takes bytes of two places at once cannot be made from bytes that come by once.
fn refuse_what_needs_two_places(resolved: &Resolved) -> Result<()> {
    let refused = |name: &str, found: &str| CheckpointError::Tensor {
        name: name.to_owned(),
        expected: "a tensor that can be converted as it arrives".to_owned(),
        found: found.to_owned(),
        fix: "download the checkpoint and repack it from its folder".to_owned(),
    };
    if resolved.tied_head.is_some() {
        return Err(refused(
            "lm_head.weight",
            "a head beside tied embeddings, which has to be compared with them",
        ));
    }
    let is_fp8 = |d: &Decode| matches!(d, Decode::Fp8(_));
    let fp8 = "F8_E4M3, whose multipliers lie in another tensor";
    if let Some((name, _)) =
        resolved.dense.iter().filter(|(_, d)| is_fp8(&d.source.decode)).min_by_key(|d| d.0)
    {
        return Err(refused(name, fp8));
    }
    for (layer, experts) in resolved.experts.iter().enumerate() {
        for projection in Projection::ALL {
            if is_fp8(&experts.source(projection, 0).decode) {
                let id = ExpertId { layer: layer as u16, expert: 0 };
                return Err(refused(&expert_name(id, projection), fp8));
            }
        }
    }
    Ok(())
}

/// A container under way.
#[derive(Debug)]
pub struct StreamRepack {
    writer: PlacedWriter,
    source: SourceIdentity,
    dense: Vec<(String, TensorSpec)>,
    records: Vec<RecordLayout>,
    files: Vec<Vec<Piece>>,
}

impl StreamRepack {
    /// Lays out the container at `output`, or takes up what an earlier run of the same plan left. Files of the caller's
    /// own in the unfinished folder are named in `keep`.
    pub fn open(output: &Path, plan: StreamPlan, keep: &[&str]) -> Result<(Self, Opened)> {
        let StreamPlan { container, dense, files } = plan;
        let (source, records) = (container.source.clone(), container.experts.clone());
        let (writer, opened) = PlacedWriter::open(output, container, keep)?;
        Ok((Self { writer, source, dense, records, files }, opened))
    }

    /// The unfinished folder.
    pub fn folder(&self) -> &Path {
        self.writer.folder()
    }

    /// Adds one of [`crate::SMALL_FILES`].
    pub fn add_file(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        Ok(self.writer.add_file(name, bytes)?)
    }

    /// Bytes of file `file` that have to come together, at most: given as many, [`StreamRepack::write`] takes some.
    pub fn unit_bytes(&self, file: usize) -> usize {
        self.files[file].iter().map(|p| p.unit_bytes() as usize).max().unwrap_or(1)
    }

    /// Takes bytes of file `file`, from `offset` of it on, and says how many: what is left over is the start of a row
    /// and has to come again with the rest of it. `offset` is 0, or where an earlier call ended.
    pub fn write(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<usize> {
        let (end, pieces) = (offset + bytes.len() as u64, &self.files[file]);
        let mut at = offset;
        for piece in &pieces[pieces.partition_point(|p| p.end <= offset)..] {
            if piece.start >= end {
                break;
            }
            at = at.max(piece.start);
            let done = at - piece.start;
            if !done.is_multiple_of(piece.unit_bytes()) {
                return Err(CheckpointError::Tensor {
                    name: self.name(piece),
                    expected: "to go on at the start of a row".to_owned(),
                    found: format!("{done} bytes into rows of {}", piece.unit_bytes()),
                    fix: "this is a bug; remove the unfinished folder and start again".to_owned(),
                });
            }
            let there = end.min(piece.end) - at;
            let taken = there - there % piece.unit_bytes();
            let from = (at - offset) as usize;
            self.piece(piece, done, &bytes[from..from + taken as usize])?;
            at += taken;
            if taken < there {
                return Ok((at - offset) as usize);
            }
        }
        Ok(bytes.len())
    }

    fn name(&self, piece: &Piece) -> String {
        match piece.place {
            Place::Dense(i) => self.dense[i as usize].0.clone(),
            Place::Record(id, projection) => expert_name(id, projection),
        }
    }

    /// Whole units of a piece, `done` bytes from its start.
    fn piece(&self, piece: &Piece, done: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        match piece.how {
            How::Copy => self.put(piece, piece.part, piece.first_byte + done, bytes),
            How::Vector { dtype, add_one } => {
                let mut values = vec![0.0f32; bytes.len() / dtype.bytes()];
                widen(dtype, bytes, &mut values);
                let one = |v| if add_one { 1.0 + v } else { v };
                let out: Vec<u8> = values.into_iter().flat_map(|v| one(v).to_le_bytes()).collect();
                let at = (piece.first_byte + done) / dtype.bytes() as u64 * 4;
                self.put(piece, piece.part, at, &out)
            }
            How::Quantize { dtype, affine, columns } => {
                let columns = columns as usize;
                let row = ((piece.first_byte + done) / piece.unit_bytes()) as usize;
                let mut out = Quantized::default();
                quantize_rows(columns, dtype, affine, bytes, &mut out)
                    .map_err(|e| not_finite(&self.name(piece), row, e))?;
                let spec = TensorSpec { shape: vec![1, columns], format: Format::Affine(affine) };
                for &part in spec.parts() {
                    let at = row as u64 * spec.row_bytes(part) as u64;
                    self.put(piece, part, at, &out.parts[part as usize])?;
                }
                Ok(())
            }
        }
    }

    /// Writes into a part of the target, `at` bytes from its start.
    fn put(&self, piece: &Piece, part: Part, at: u64, bytes: &[u8]) -> Result<()> {
        match piece.place {
            Place::Dense(i) => self.writer.write_dense(&self.dense[i as usize].0, part, at, bytes)?,
            Place::Record(id, projection) => {
                let tensor = self.records[usize::from(id.layer)].get(projection);
                self.writer.write_record_part(id, tensor.offsets[part as usize] + at, bytes)?;
            }
        }
        Ok(())
    }

    /// Makes durable all that has been written so far.
    pub fn sync(&self) -> Result<()> {
        Ok(self.writer.sync()?)
    }

    /// Bytes that [`StreamRepack::finish`] reads back.
    pub fn data_bytes(&self) -> u64 {
        self.writer.data_bytes()
    }

    /// Completes the container, once every file has come to its end. `sha256` are the files' hashes, which become part
    /// of the source's identity; files named in `scaffold` are removed from the result. `progress` is told how many
    /// bytes have been read back; returning false stops and keeps the unfinished folder.
    pub fn finish(
        mut self,
        sha256: &[String],
        scaffold: &[&str],
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Summary> {
        for (file, hash) in self.source.files.iter_mut().zip(sha256) {
            file.sha256 = Some(hash.clone());
        }
        self.writer.set_source(self.source);
        Ok(self.writer.finish(scaffold, progress)?)
    }
}
