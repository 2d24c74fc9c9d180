//! A checkpoint folder as a model: canonical dense tensors and expert records, read from the shards by ranges.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use spinetail_core::{
    DenseSource, ExpertId, Limits, ModelConfig, Part, Projection, ReadError, RecordLayout, RecordSource,
    Role, TensorSpec,
};

use crate::config::SourceConfig;
use crate::error::CheckpointError;
use crate::io::read_small_file;
use crate::names::{self, Content, Dense, ExpertLayer};
use crate::safetensors::{self, Files};

type Result<T> = std::result::Result<T, CheckpointError>;

/// An open Hugging Face or MLX checkpoint. Headers and configuration have been read and every tensor accounted for;
/// weights are read when asked for.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    config: ModelConfig,
    files: Files,
    dense: HashMap<String, Dense>,
    experts: Vec<ExpertLayer>,
}

impl Checkpoint {
    /// Opens the folder that holds `config.json` and the safetensors files.
    pub fn open(folder: &Path) -> Result<Self> {
        let source = read_config(folder)?;
        let (files, tensors) = safetensors::open_folder(folder)?;
        let resolved = names::resolve(&source, tensors, Content::Whole)?;
        if let Some(head) = &resolved.tied_head {
            check_tied_head(&files, &resolved.dense["embed_tokens"], head)?;
        }
        Ok(Self {
            folder: folder.to_owned(),
            config: resolved.config,
            files,
            dense: resolved.dense,
            experts: resolved.experts,
        })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What a dense tensor is to the quantizer.
    pub fn role(&self, name: &str) -> Option<Role> {
        self.dense.get(name).map(|d| d.role)
    }

    /// Reads some rows of a part of a dense tensor into `out`, which has exactly their bytes.
    ///
    /// # Panics
    /// If `rows` reaches past the tensor or `out` has another length.
    pub fn read_dense_rows(
        &self,
        name: &str,
        part: Part,
        rows: Range<usize>,
        out: &mut [u8],
    ) -> std::result::Result<(), ReadError> {
        let d = self.dense.get(name).ok_or_else(|| ReadError::Unknown { what: format!("tensor {name}") })?;
        assert!(rows.end <= d.spec.rows(), "{name} has {} rows", d.spec.rows());
        assert_eq!(out.len(), rows.len() * d.spec.row_bytes(part), "bytes of {name}");
        if d.spec.row_bytes(part) == 0 {
            return Ok(());
        }
        d.source.read_rows(&self.files, part, rows, out)
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

/// Reads and parses the `config.json` of a folder.
pub(crate) fn read_config(folder: &Path) -> Result<SourceConfig> {
    let path = folder.join("config.json");
    if !path.is_file() {
        return Err(CheckpointError::NotAModel {
            path: folder.to_owned(),
            expected: "a folder with config.json and safetensors files",
            found: match (folder.is_dir(), folder.exists()) {
                (true, _) => "a folder without config.json".to_owned(),
                (false, true) => "a file; give the folder it lies in".to_owned(),
                (false, false) => "nothing of that name".to_owned(),
            },
        });
    }
    SourceConfig::parse(&path, &read_small_file(&path, Limits::JSON_BYTES)?)
}

impl DenseSource for Checkpoint {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn dense_spec(&self, name: &str) -> Option<&TensorSpec> {
        self.dense.get(name).map(|d| &d.spec)
    }

    fn read_dense(&self, name: &str, part: Part, out: &mut [u8]) -> std::result::Result<(), ReadError> {
        let rows = self.dense.get(name).map_or(0, |d| d.spec.rows());
        self.read_dense_rows(name, part, 0..rows, out)
    }
}

impl RecordSource for Checkpoint {
    fn record_layout(&self, layer: u16) -> Option<&RecordLayout> {
        self.experts.get(usize::from(layer)).map(|l| &l.layout)
    }

    fn expert_count(&self) -> usize {
        self.config.moe.experts
    }

    fn read_record(&self, id: ExpertId, out: &mut [u8]) -> std::result::Result<(), ReadError> {
        let layer = self.experts.get(usize::from(id.layer));
        let Some(layer) = layer.filter(|_| usize::from(id.expert) < self.config.moe.experts) else {
            return Err(ReadError::Unknown { what: id.to_string() });
        };
        let mut end = 0;
        for projection in Projection::ALL {
            let source = layer.source(projection, usize::from(id.expert));
            let tensor = layer.layout.get(projection);
            for &part in tensor.spec.parts() {
                let range = tensor.range(part);
                // Alignment gaps are zero, so that the same weights always make the same record.
                out[end..range.start].fill(0);
                end = range.end;
                source.read_rows(&self.files, part, 0..tensor.spec.rows(), &mut out[range])?;
            }
        }
        Ok(())
    }
}
