//! [`Engine`]: a loaded model with its store and its budget.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use spinetail_checkpoint::open_model;
use spinetail_core::{ModelConfig, ModelSource, RecordSource};
use spinetail_cpu::{CpuBackend, HostMemory};
use spinetail_model::{Backend, Scratch};
use spinetail_store::{ExpertStore, StoreOptions, StoreStats};

use crate::error::EngineError;
use crate::memory::MemoryPlan;
use crate::session::Session;
use crate::text::TextModel;

/// How numbers are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Precision {
    /// f32 activations and the token recurrence: the reference path.
    #[default]
    Exact,
    /// Integer dot products against quantized activations.
    Fast,
}

/// What an engine is opened with.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Bytes the whole process may use; `None` keeps every expert, up to [`MemoryPlan::DEFAULT_SLOTS_BYTES`].
    pub memory_bytes: Option<u64>,
    /// Positions of a session.
    pub context: u32,
    /// How numbers are computed.
    pub precision: Precision,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { memory_bytes: None, context: 4096, precision: Precision::Exact }
    }
}

/// A loaded model. Cloning is cheap: clones share weights, store and budget.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) path: PathBuf,
    pub(crate) config: ModelConfig,
    pub(crate) context: u32,
    plan: MemoryPlan,
    text: std::sync::OnceLock<Arc<TextModel>>,
    compute: Mutex<Compute>,
}

/// What one step at a time may use.
pub(crate) struct Compute {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) store: ExpertStore,
    pub(crate) scratch: Scratch,
}

impl Engine {
    /// Opens the container or checkpoint folder at `path` and reads its dense weights into memory.
    ///
    /// `progress` is told bytes read and bytes to read.
    pub fn open(
        path: &Path,
        options: &EngineOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, EngineError> {
        if options.precision == Precision::Fast {
            return Err(EngineError::Unsupported {
                what: "precision fast".to_owned(),
                fix: "use --precision exact, fast arrives with the integer kernels".to_owned(),
            });
        }
        let source: Arc<dyn ModelSource> = Arc::from(open_model(path)?);
        let config = source.config().clone();
        if options.context == 0 || options.context as usize > config.max_positions {
            return Err(EngineError::Context { asked: options.context, max: config.max_positions });
        }
        let plan = MemoryPlan::new(&*source, options.context, options.memory_bytes)?;
        let mut done = 0;
        let total = plan.dense_bytes;
        let backend = CpuBackend::load(&*source, &mut |bytes| {
            done += bytes;
            progress(done.min(total), total);
        })?;
        let records: Arc<dyn RecordSource> = source;
        let store_options =
            StoreOptions { budget_bytes: plan.slots_bytes as usize, layers: config.layers.len() as u16 };
        let store = ExpertStore::new(records, Box::new(HostMemory), store_options);
        let compute = Compute { backend: Box::new(backend), store, scratch: Scratch::default() };
        Ok(Self {
            inner: Arc::new(Inner {
                path: path.to_owned(),
                config,
                context: options.context,
                plan,
                text: std::sync::OnceLock::new(),
                compute: Mutex::new(compute),
            }),
        })
    }

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.inner.config
    }

    /// How the budget is divided.
    pub fn plan(&self) -> &MemoryPlan {
        &self.inner.plan
    }

    /// Tokenizer, template and sampling defaults, read when first asked for: a model can be run on token ids without.
    pub fn text(&self) -> Result<Arc<TextModel>, EngineError> {
        if let Some(text) = self.inner.text.get() {
            return Ok(Arc::clone(text));
        }
        let text = Arc::new(load_text(&self.inner.path)?);
        Ok(Arc::clone(self.inner.text.get_or_init(|| text)))
    }

    /// A new, empty session.
    pub fn session(&self) -> Result<Session, EngineError> {
        Session::new(self.clone())
    }

    /// Counters of the expert store.
    pub fn store_stats(&self) -> StoreStats {
        self.compute().store.stats()
    }

    pub(crate) fn compute(&self) -> MutexGuard<'_, Compute> {
        // A panic in a step leaves sequences half-way, which the session that ran it has marked; weights and records
        // are whole.
        self.inner.compute.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Reads the text side of the model folder at `path` without its weights.
pub fn load_text(path: &Path) -> Result<TextModel, EngineError> {
    let read = |name: &str| match std::fs::read(path.join(name)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    };
    Ok(TextModel::load(&read)?)
}
