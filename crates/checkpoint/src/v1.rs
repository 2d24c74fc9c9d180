//! A version 1 container as a model: resident tensors through the naming of checkpoints, experts through the container.

use std::ops::Range;
use std::path::Path;

use spinetail_container::v1::V1;
use spinetail_core::{
    DenseSource, ExpertId, ModelConfig, Part, ReadError, RecordLayout, RecordSource, TensorSpec,
};

use crate::config::SourceConfig;
use crate::error::CheckpointError;
use crate::model::DenseTensors;
use crate::names::{self, Content};
use crate::safetensors;

type Read = Result<(), ReadError>;

/// An open version 1 container. It has no prediction head: the format has no records for one.
#[derive(Debug)]
pub(crate) struct V1Model {
    config: ModelConfig,
    dense: DenseTensors,
    layout: RecordLayout,
    pub(crate) container: V1,
    pub(crate) model_type: String,
}

impl V1Model {
    pub(crate) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let container = V1::open(path)?;
        let source = SourceConfig::parse(&path.join("config.json"), container.config_json().as_bytes())?;
        let (files, tensors) = safetensors::open_single(&container.dense_path())?;
        let resolved = names::resolve(&source, tensors, Content::DenseOnly)?;
        let (dense, config, ..) = DenseTensors::new(files, resolved)?;
        let layout = container.record_layout(&config)?;
        Ok(Self { config, dense, layout, container, model_type: source.model_type })
    }

    pub(crate) fn read_dense_rows(&self, name: &str, part: Part, rows: Range<usize>, out: &mut [u8]) -> Read {
        self.dense.read_rows(name, part, rows, out)
    }
}

impl DenseSource for V1Model {
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

impl RecordSource for V1Model {
    fn record_layout(&self, layer: u16) -> Option<&RecordLayout> {
        (usize::from(layer) < self.config.layers.len()).then_some(&self.layout)
    }

    fn expert_count(&self) -> usize {
        self.config.moe.experts
    }

    fn read_record(&self, id: ExpertId, out: &mut [u8]) -> Read {
        self.container.read_record(id, out)
    }
}
