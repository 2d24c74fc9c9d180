//! A checkpoint folder as a model: canonical dense tensors and expert records, read from the shards by ranges.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use spinetail_container::{self as container, Container, OpenOptions, read_small_file};
use spinetail_core::{
    DenseSource, ExpertId, Limits, ModelConfig, ModelSource, Part, Projection, ReadError, RecordLayout,
    RecordSource, TensorSpec,
};

use crate::config::SourceConfig;
use crate::error::CheckpointError;
use crate::names::{self, Content, Dense, ExpertLayer, Resolved};
use crate::safetensors::{self, Files};
use crate::v1::V1Model;

type Result<T> = std::result::Result<T, CheckpointError>;
type Read = std::result::Result<(), ReadError>;

/// Opens whatever model lies at `path`: a container of version 2 or 1, or a checkpoint folder.
pub fn open_model(path: &Path) -> Result<Box<dyn ModelSource>> {
    open_model_with(path, &OpenOptions::default())
}

/// As [`open_model`], to be read as `options` say where it is a container of version 2; others are read buffered, and
/// have no checksums for their records.
pub fn open_model_with(path: &Path, options: &OpenOptions) -> Result<Box<dyn ModelSource>> {
    Ok(match container::detect(path)? {
        Some(container::Kind::V2) => Box::new(Container::open_with(path, options)?),
        Some(container::Kind::V1) => Box::new(V1Model::open(path)?),
        Some(other) => {
            return Err(CheckpointError::NotAModel {
                path: path.to_owned(),
                expected: "a container of version 1 or 2",
                found: format!("{other:?}"),
            });
        }
        None => Box::new(Checkpoint::open(path)?),
    })
}

/// An open Hugging Face or MLX checkpoint. Headers and configuration have been read and every tensor accounted for;
/// weights are read when asked for.
#[derive(Debug)]
pub struct Checkpoint {
    config: ModelConfig,
    dense: DenseTensors,
    experts: Vec<ExpertLayer>,
    /// `model_type` as the configuration has it.
    pub(crate) model_type: String,
    pub(crate) mlx_naming: bool,
}

impl Checkpoint {
    /// Opens the folder that holds `config.json` and the safetensors files.
    pub fn open(folder: &Path) -> Result<Self> {
        let source = folder_config(folder)?;
        let (files, tensors) = safetensors::open_folder(folder)?;
        let resolved = names::resolve(&source, tensors, Content::Whole)?;
        let (dense, config, experts, mlx_naming) = DenseTensors::new(files, resolved)?;
        Ok(Self { config, dense, experts, model_type: source.model_type, mlx_naming })
    }

    /// Reads some rows of a part of a dense tensor into `out`, which has exactly their bytes.
    ///
    /// # Panics
    /// If `rows` reaches past the tensor or `out` has another length.
    pub fn read_dense_rows(&self, name: &str, part: Part, rows: Range<usize>, out: &mut [u8]) -> Read {
        self.dense.read_rows(name, part, rows, out)
    }

    /// The safetensors files, with their lengths.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        self.dense.files.list().map(|(path, bytes)| (path.to_owned(), bytes)).collect()
    }
}

/// The shape that a `config.json` describes.
pub fn read_config(file: &Path) -> Result<ModelConfig> {
    Ok(SourceConfig::parse(file, &read_small_file(file, Limits::JSON_BYTES)?)?.model)
}

/// Reads and parses the `config.json` of a folder.
fn folder_config(folder: &Path) -> Result<SourceConfig> {
    let path = folder.join("config.json");
    if !path.is_file() {
        return Err(CheckpointError::NotAModel {
            path: folder.to_owned(),
            expected: "a container, or a folder with config.json and safetensors files",
            found: match (folder.is_dir(), folder.exists()) {
                (true, _) => "a folder without config.json; give the folder that has it".to_owned(),
                (false, true) => "a file; give the folder it lies in".to_owned(),
                (false, false) => "nothing of that name; correct the path".to_owned(),
            },
        });
    }
    SourceConfig::parse(&path, &read_small_file(&path, Limits::JSON_BYTES)?)
}

/// The dense tensors of an open checkpoint.
#[derive(Debug)]
pub(crate) struct DenseTensors {
    pub(crate) files: Files,
    tensors: HashMap<String, Dense>,
}

impl DenseTensors {
    /// Takes apart what has been resolved, once a head beside tied embeddings is known to be their copy.
    pub(crate) fn new(files: Files, r: Resolved) -> Result<(Self, ModelConfig, Vec<ExpertLayer>, bool)> {
        if let Some(head) = &r.tied_head {
            check_tied_head(&files, &r.dense["embed_tokens"], head)?;
        }
        Ok((Self { files, tensors: r.dense }, r.config, r.experts, r.mlx_naming))
    }

    pub(crate) fn spec(&self, name: &str) -> Option<&TensorSpec> {
        self.tensors.get(name).map(|d| &d.spec)
    }

    pub(crate) fn read_all(&self, name: &str, part: Part, out: &mut [u8]) -> Read {
        self.read_rows(name, part, 0..self.spec(name).map_or(0, TensorSpec::rows), out)
    }

    pub(crate) fn read_rows(&self, name: &str, part: Part, rows: Range<usize>, out: &mut [u8]) -> Read {
        let d = self.tensors.get(name);
        let d = d.ok_or_else(|| ReadError::Unknown { what: format!("tensor {name}") })?;
        assert!(rows.end <= d.spec.rows(), "{name} has {} rows", d.spec.rows());
        assert_eq!(out.len(), rows.len() * d.spec.row_bytes(part), "bytes of {name}");
        if out.is_empty() { Ok(()) } else { d.source.read_rows(&self.files, part, rows, out) }
    }
}

/// transformers unties embeddings whose head differs, mlx-lm drops such a head: only a true copy is unambiguous.
fn check_tied_head(files: &Files, embedding: &Dense, head: &Dense) -> Result<()> {
    const BLOCK_ROWS: usize = 256;
    let mut same = embedding.spec == head.spec;
    for &part in embedding.spec.parts() {
        let mut row = 0;
        while same && row < embedding.spec.rows() {
            let rows = row..embedding.spec.rows().min(row + BLOCK_ROWS);
            let mut bytes = [(); 2].map(|()| vec![0; rows.len() * embedding.spec.row_bytes(part)]);
            embedding.source.read_rows(files, part, rows.clone(), &mut bytes[0])?;
            head.source.read_rows(files, part, rows.clone(), &mut bytes[1])?;
            same = bytes[0] == bytes[1];
            row = rows.end;
        }
    }
    if same {
        return Ok(());
    }
    Err(CheckpointError::Tensor {
        name: "lm_head.weight".to_owned(),
        expected: "a copy of the embedding, since tie_word_embeddings is true".to_owned(),
        found: "other weights".to_owned(),
        fix: "set tie_word_embeddings to false in config.json if the head is the model's own".to_owned(),
    })
}

impl DenseSource for Checkpoint {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn dense_spec(&self, name: &str) -> Option<&TensorSpec> {
        self.dense.spec(name)
    }

    fn read_dense(&self, name: &str, part: Part, out: &mut [u8]) -> Read {
        self.dense.read_all(name, part, out)
    }
}

impl RecordSource for Checkpoint {
    fn record_layout(&self, layer: u16) -> Option<&RecordLayout> {
        self.experts.get(usize::from(layer)).map(|l| &l.layout)
    }

    fn expert_count(&self) -> usize {
        self.config.moe.experts
    }

    fn read_record(&self, id: ExpertId, out: &mut [u8]) -> Read {
        let layer = self.experts.get(usize::from(id.layer));
        let Some(layer) = layer.filter(|_| usize::from(id.expert) < self.config.moe.experts) else {
            return Err(ReadError::Unknown { what: id.to_string() });
        };
        if (out.len() as u64) < layer.layout.bytes {
            let what = format!("{id} of {} bytes: it has {}", out.len(), layer.layout.bytes);
            return Err(ReadError::Unknown { what });
        }
        let mut end = 0;
        for projection in Projection::ALL {
            let source = layer.source(projection, usize::from(id.expert));
            let tensor = layer.layout.get(projection);
            for &part in tensor.spec.parts() {
                let range = tensor.range(part);
                // Alignment gaps are zero, so that the same weights always make the same record.
                out[end..range.start].fill(0);
                end = range.end;
                source.read_rows(&self.dense.files, part, 0..tensor.spec.rows(), &mut out[range])?;
            }
        }
        Ok(())
    }
}
