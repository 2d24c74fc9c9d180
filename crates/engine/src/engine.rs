//! [`Engine`]: a loaded model with its store and its budget.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use spinetail_checkpoint::{CheckpointError, OpenOptions, open_model_with};
use spinetail_container::{ContainerError, Kind, Listing, detect, page_cache_bytes, read_small_file};
use spinetail_core::{Limits, ModelConfig, ModelSource, RecordSource};
pub use spinetail_core::{Pages, ReadMode};
pub use spinetail_cpu::Precision;
pub use spinetail_cpu::kernels::{Isa, UnknownIsa};
use spinetail_cpu::{CpuBackend, CpuOptions, HostMemory, MAX_THREADS, PoolOptions};
pub use spinetail_model::LookaheadMode;
use spinetail_model::{Backend, Lookahead, Scratch, StepError};
pub use spinetail_store::PolicyKind;
pub use spinetail_store::policy::UnknownPolicy;
use spinetail_store::trace::{TraceHeader, TraceWriter, model_id};
use spinetail_store::{ExpertStore, StoreOptions, StoreStats};

use crate::bench::TokenBytes;
use crate::drive::DriveProfile;
use crate::error::EngineError;
use crate::hot::HotList;
use crate::machine::{Machine, threads_given};
use crate::memory::MemoryPlan;
use crate::session::Session;
use crate::text::TextModel;

/// Uses of experts below which a run has nothing to say about the next one: some three tokens of a large model.
const MIN_USES_TO_LEARN: u64 = 1000;

/// What an engine is opened with.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Bytes the whole process may use; `None` is most of what the machine has free.
    pub memory_bytes: Option<u64>,
    /// Positions of a session.
    pub context: u32,
    /// How numbers are computed.
    pub precision: Precision,
    /// Threads that compute; `None` is one per processor that this process may use.
    pub threads: Option<usize>,
    /// The instruction set of the kernels; `None` is the best that this processor has.
    pub isa: Option<Isa>,
    /// How experts are read and kept.
    pub experts: ExpertOptions,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            memory_bytes: None,
            context: 4096,
            precision: Precision::default(),
            threads: None,
            isa: None,
            experts: ExpertOptions::default(),
        }
    }
}

/// How experts are read and kept. What the model computes depends on none of it.
#[derive(Debug, Clone)]
pub struct ExpertOptions {
    /// Direct reads, by threads or a ring, or through the system's page cache.
    pub read_mode: ReadMode,
    /// The pages of the memory that experts are read into.
    pub pages: Pages,
    /// Reads on their way at once, each by a thread unless a ring has them all.
    pub readers: usize,
    /// Whether every record that is read is held against its checksum.
    pub verify_reads: bool,
    /// Which record gives way to another.
    pub policy: PolicyKind,
    /// Whether the next layer's experts are read ahead.
    pub lookahead: LookaheadMode,
    /// Folder for what is learned of a model's routing, from run to run; `None` keeps nothing.
    pub state_dir: Option<PathBuf>,
}

impl Default for ExpertOptions {
    fn default() -> Self {
        Self {
            read_mode: ReadMode::default(),
            pages: Pages::default(),
            readers: DriveProfile::default().depth,
            verify_reads: false,
            policy: PolicyKind::DecayedLfu,
            lookahead: LookaheadMode::Auto,
            state_dir: None,
        }
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
    plan: Mutex<MemoryPlan>,
    /// Where what was learned of the model's routing is kept.
    hot: Option<HotList>,
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
    /// What the store's slots have lent to the batch.
    lent_bytes: u64,
}

impl Compute {
    /// Divides memory for a batch of `rows` rows: a long one borrows from the expert slots, and the next short one gives
    /// back.
    pub(crate) fn make_room(&mut self, rows: usize, plan: &MemoryPlan) {
        let lent = plan.lent_bytes(rows);
        if lent > self.lent_bytes {
            self.store.set_budget((plan.slots_bytes - lent) as usize);
        } else if lent == 0 && self.lent_bytes > 0 {
            self.backend.trim();
            self.store.set_budget(plan.slots_bytes as usize);
        } else {
            return;
        }
        self.lent_bytes = lent;
    }
}

impl Engine {
    /// Compute threads at most.
    pub const MAX_THREADS: usize = spinetail_cpu::MAX_THREADS;

    /// Opens the container or checkpoint folder at `path` and reads its dense weights into memory.
    ///
    /// `progress` is told bytes read and bytes to read.
    pub fn open(
        path: &Path,
        options: &EngineOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, EngineError> {
        let e = &options.experts;
        let how = OpenOptions { read_mode: e.read_mode, verify_reads: e.verify_reads };
        let source = Arc::from(open_model_with(path, &how)?);
        Self::from_source(source, path, options, progress)
    }

    /// Loads a model from any source. `path` is where its tokenizer and templates are, and what it is called.
    pub fn from_source(
        source: Arc<dyn ModelSource>,
        path: &Path,
        options: &EngineOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, EngineError> {
        let config = source.config().clone();
        if options.context == 0 || options.context as usize > config.max_positions {
            return Err(EngineError::Context { asked: options.context, max: config.max_positions });
        }
        let machine = Machine::look();
        let plan = MemoryPlan::on(&machine, &*source, options)?;
        plan.check_address_space(options, &machine)?;
        // One is left to read experts with, where the system does not give as many as are wanted.
        let wanted = options.threads.unwrap_or(PoolOptions::default().threads);
        let given = threads_given(wanted.min(MAX_THREADS) + 1);
        let short = given <= wanted && wanted <= MAX_THREADS;
        let threads = if short { Some((given - 1).max(1)) } else { options.threads };
        let cpu = CpuOptions { threads, isa: options.isa, precision: options.precision };
        let mut done = 0;
        let total = plan.dense_bytes;
        let backend = CpuBackend::load(&*source, &cpu, &mut |bytes| {
            done += bytes;
            progress(done.min(total), total);
        })?;
        let (threads, isa) = (backend.threads(), backend.isa());
        if let Some(asked) = options.threads.filter(|&asked| asked > threads) {
            tracing::warn!("the system gives only {threads} of {asked} compute threads; going on with those");
        }
        let token_bytes = TokenBytes::of(&*source);
        let hot = options.experts.state_dir.as_ref().map(|folder| {
            let model =
                format!("{} {config:?}", path.canonicalize().unwrap_or_else(|_| path.to_owned()).display());
            HotList::new(folder, model_id(&model), config.moe.experts)
        });
        let store = expert_store(source, &plan, &config, &options.experts, hot.as_ref())?;
        let mut scratch = Scratch::default();
        scratch.lookahead = Lookahead::new(options.experts.lookahead);
        let compute = Compute { backend: Box::new(backend), store, scratch, lent_bytes: 0 };
        Ok(Self {
            inner: Arc::new(Inner {
                path: path.to_owned(),
                config,
                context: options.context,
                plan: Mutex::new(plan),
                hot,
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
    pub fn plan(&self) -> MemoryPlan {
        *self.inner.plan.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Changes the budget while the model runs: between steps, memory of experts goes back to the system, or more of them
    /// are kept from now on. What the model computes stays the same.
    pub fn set_memory_budget(&self, memory_bytes: u64) -> Result<(), EngineError> {
        // The lock is had between steps.
        let mut compute = self.compute();
        let plan = self.plan().with_budget(memory_bytes)?;
        compute.backend.trim();
        compute.store.set_budget(plan.slots_bytes as usize);
        compute.lent_bytes = 0;
        *self.inner.plan.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = plan;
        Ok(())
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

    /// Keeps what was learned of the model's routing, as the last clone does when it is dropped: for programs that end in
    /// another way. Does nothing while a step runs.
    pub fn remember_experts(&self) {
        self.inner.remember_experts();
    }

    /// Bytes of the model's files in the system's page cache, which no budget counts: they are nobody's memory, and the
    /// system takes them back when it is short of it. `None` where the system does not say.
    pub fn page_cache_bytes(&self) -> Option<u64> {
        page_cache_bytes(&self.inner.path)
    }

    /// Counters of the expert store.
    pub fn store_stats(&self) -> StoreStats {
        self.compute().store.stats()
    }

    /// Records routing to `out` from here on, in the format of docs/trace.md. A trace that was being recorded ends.
    pub fn start_trace(&self, out: Box<dyn io::Write + Send>) {
        let Inner { path, config, .. } = &*self.inner;
        let plan = self.plan();
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

/// The store of the model in `source`, with what is known of its routing.
fn expert_store(
    source: Arc<dyn ModelSource>,
    plan: &MemoryPlan,
    config: &ModelConfig,
    options: &ExpertOptions,
    hot: Option<&HotList>,
) -> Result<ExpertStore, EngineError> {
    let records: Arc<dyn RecordSource> = source;
    let store_options = StoreOptions {
        readers: options.readers,
        policy: options.policy,
        ..StoreOptions::new(plan.slots_bytes as usize, config.layers.len() as u16)
    };
    let memory = Box::new(HostMemory { pages: options.pages });
    let mut store = ExpertStore::new(records, memory, store_options);
    let mut ids = hot.map(HotList::load).unwrap_or_default();
    ids.retain(|id| usize::from(id.layer) < config.layers.len());
    store.seed(&ids);
    store.warm(&ids).map_err(StepError::from)?;
    Ok(store)
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.remember_experts();
    }
}

impl Inner {
    fn remember_experts(&self) {
        let Some(hot) = &self.hot else { return };
        let compute = match self.compute.try_lock() {
            Ok(compute) => compute,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let store = &compute.store;
        // A few tokens say nothing that was not known before, and with every record in memory there is nothing to choose.
        if store.stats().uses() < MIN_USES_TO_LEARN || store.holds_everything() {
            return;
        }
        if let Err(e) = hot.save(&store.hottest(store.max_slots())) {
            tracing::debug!("cannot remember which experts are used most: {e}");
        }
    }
}

/// Reads the text side of the model folder at `path` without its weights. A container's files are held against their
/// checksums, and only files that belong to it are used.
pub fn load_text(path: &Path) -> Result<TextModel, EngineError> {
    let other = |e: ContainerError| io::Error::other(e.to_string());
    let text = match detect(path).map_err(CheckpointError::from)? {
        Some(Kind::V2) => {
            let container = Listing::read(path).map_err(CheckpointError::from)?;
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
