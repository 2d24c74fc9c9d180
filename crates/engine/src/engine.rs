//! [`Engine`]: a loaded model with its store and its budget.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use spinetail_checkpoint::{CheckpointError, open_model};
use spinetail_container::{Container, ContainerError, Kind, detect, read_small_file};
use spinetail_core::{Limits, ModelConfig, ModelSource, RecordSource};
pub use spinetail_cpu::Precision;
pub use spinetail_cpu::kernels::{Isa, UnknownIsa};
use spinetail_cpu::{CpuBackend, CpuOptions, HostMemory};
use spinetail_model::{Backend, Scratch, StepError};
use spinetail_store::trace::{TraceHeader, TraceWriter, model_id};
use spinetail_store::{ExpertStore, StoreOptions, StoreStats};

use crate::bench::TokenBytes;
use crate::error::EngineError;
use crate::memory::MemoryPlan;
use crate::session::Session;
use crate::text::TextModel;

/// What an engine is opened with.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Bytes the whole process may use; `None` keeps every expert, up to [`MemoryPlan::DEFAULT_SLOTS_BYTES`].
    pub memory_bytes: Option<u64>,
    /// Positions of a session.
    pub context: u32,
    /// How numbers are computed.
    pub precision: Precision,
    /// Threads that compute; `None` is one per processor that this process may use.
    pub threads: Option<usize>,
    /// The instruction set of the kernels; `None` is the best that this processor has.
    pub isa: Option<Isa>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { memory_bytes: None, context: 4096, precision: Precision::default(), threads: None, isa: None }
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
    pub(crate) precision: Precision,
    threads: usize,
    isa: Isa,
    /// Of a token with nothing before it.
    pub(crate) token_bytes: TokenBytes,
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
        let source: Arc<dyn ModelSource> = Arc::from(open_model(path)?);
        let config = source.config().clone();
        if options.context == 0 || options.context as usize > config.max_positions {
            return Err(EngineError::Context { asked: options.context, max: config.max_positions });
        }
        let plan = MemoryPlan::new(&*source, options.context, options.precision, options.memory_bytes)?;
        let cpu = CpuOptions { threads: options.threads, isa: options.isa, precision: options.precision };
        let mut done = 0;
        let total = plan.dense_bytes;
        let backend = CpuBackend::load(&*source, &cpu, &mut |bytes| {
            done += bytes;
            progress(done.min(total), total);
        })?;
        let (threads, isa) = (backend.threads(), backend.isa());
        let token_bytes = TokenBytes::of(&*source);
        let records: Arc<dyn RecordSource> = source;
        let store_options = StoreOptions::new(plan.slots_bytes as usize, config.layers.len() as u16);
        let store = ExpertStore::new(records, Box::new(HostMemory::default()), store_options);
        let compute = Compute { backend: Box::new(backend), store, scratch: Scratch::default() };
        Ok(Self {
            inner: Arc::new(Inner {
                path: path.to_owned(),
                config,
                context: options.context,
                plan,
                precision: options.precision,
                threads,
                isa,
                token_bytes,
                text: std::sync::OnceLock::new(),
                compute: Mutex::new(compute),
            }),
        })
    }

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.inner.config
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.inner.threads
    }

    /// The instruction set of the kernels.
    pub fn isa(&self) -> Isa {
        self.inner.isa
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

    /// Reads expert records into slots until all are there or the slots are full, as they lie on the drive.
    ///
    /// `progress` is told records read and records to read.
    pub fn preload(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), EngineError> {
        let mut compute = self.compute();
        compute.store.preload(progress).map_err(StepError::from)?;
        Ok(())
    }

    /// Counters of the expert store.
    pub fn store_stats(&self) -> StoreStats {
        self.compute().store.stats()
    }

    /// Records routing to `out` from here on, in the format of docs/trace.md. A trace that was being recorded ends.
    pub fn start_trace(&self, out: Box<dyn io::Write + Send>) {
        let Inner { path, config, plan, .. } = &*self.inner;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let header = TraceHeader {
            layers: config.layers.len() as u16,
            experts: config.moe.experts as u16,
            top_k: config.moe.top_k as u16,
            slot_bytes: plan.slot_bytes,
            fixed_bytes: plan.fixed_bytes(),
            model_id: model_id(&name),
        };
        self.compute().scratch.trace = Some(TraceWriter::new(out, &header));
    }

    /// Ends the trace and returns how many steps it has, or the first error of writing it; 0 if none was started.
    pub fn finish_trace(&self) -> io::Result<u64> {
        let trace = self.compute().scratch.trace.take();
        trace.map_or(Ok(0), TraceWriter::finish)
    }

    pub(crate) fn compute(&self) -> MutexGuard<'_, Compute> {
        // A panic in a step leaves sequences half-way, which the session that ran it has marked; weights and records
        // are whole.
        self.inner.compute.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Reads the text side of the model folder at `path` without its weights. A container's files are held against their
/// checksums, and only files that belong to it are used.
pub fn load_text(path: &Path) -> Result<TextModel, EngineError> {
    let other = |e: ContainerError| io::Error::other(e.to_string());
    let text = match detect(path).map_err(CheckpointError::from)? {
        Some(Kind::V2) => {
            let container = Container::open(path).map_err(CheckpointError::from)?;
            TextModel::load(&|name| {
                let listed = container.manifest().files.iter().any(|f| f.path == name);
                listed.then(|| container.read_file(name)).transpose().map_err(other)
            })
        }
        // Links are followed, since download caches are made of them; one that leads nowhere is an error.
        _ => TextModel::load(&|name| {
            let file = path.join(name);
            let there = file.symlink_metadata().is_ok();
            there.then(|| read_small_file(&file, Limits::JSON_BYTES)).transpose().map_err(other)
        }),
    };
    Ok(text?)
}
