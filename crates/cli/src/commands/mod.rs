//! One file a command. Each turns its arguments into a call of the library and prints what comes back.

pub(crate) mod chat;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod logits;
pub(crate) mod repack;
pub(crate) mod verify;

use std::path::Path;

use spinetail_engine::{Engine, EngineOptions, Precision};

use crate::args::{EngineArgs, PrecisionArg};
use crate::{models, output};

impl From<PrecisionArg> for Precision {
    fn from(p: PrecisionArg) -> Self {
        match p {
            PrecisionArg::Exact => Self::Exact,
            PrecisionArg::Fast => Self::Fast,
        }
    }
}

impl From<&EngineArgs> for EngineOptions {
    fn from(a: &EngineArgs) -> Self {
        Self { memory_bytes: a.memory, context: a.context, precision: a.precision.into() }
    }
}

/// Opens the model that `model` names, with a bar while weights are read.
pub(crate) fn open(model: &Path, options: &EngineOptions) -> anyhow::Result<Engine> {
    let path = models::find(model)?;
    let bar = output::bytes_bar("reading weights");
    let engine = Engine::open(&path, options, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    Ok(engine?)
}

/// The template argument that turns thinking on or off.
pub(crate) fn thinking(on: bool) -> serde_json::Map<String, serde_json::Value> {
    serde_json::Map::from_iter([("enable_thinking".to_owned(), on.into())])
}
