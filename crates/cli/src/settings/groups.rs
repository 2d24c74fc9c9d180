//! The settings that belong together, as the engine takes them.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;

use spinetail_engine::drive::{DriveId, DriveProfiles};
use spinetail_engine::text::{SamplingDefaults, SamplingParams};
use spinetail_engine::{
    EngineOptions, ExpertOptions, GenerateOptions, LookaheadMode, Pages, Precision, ReadMode,
};

use super::{
    CONTEXT, FREQUENCY_PENALTY, ISA, LEARN, LOOKAHEAD, MAX_TOKENS, MEMORY, MIN_P, Origin, PAGES, POLICY,
    PRECISION, PRESENCE_PENALTY, READERS, READS, REPETITION_PENALTY, SEED, STOP, Seed, Setting, Settings,
    TEMPERATURE, THREADS, TOP_K, TOP_P, VERIFY_READS,
};
use crate::args::{
    EngineArgs, ExpertArgs, LookaheadArg, MachineArgs, PagesArg, PrecisionArg, ReadsArg, SamplingArgs, Switch,
};
use crate::{dirs, output};

impl From<PrecisionArg> for Precision {
    fn from(p: PrecisionArg) -> Self {
        match p {
            PrecisionArg::Exact => Self::Exact,
            PrecisionArg::Fast => Self::Fast,
        }
    }
}

/// What an engine is opened with.
#[derive(Debug, Clone)]
pub(crate) struct EngineSettings {
    pub(crate) options: EngineOptions,
    /// Whether nobody asked for this context, so that a model made for less gets less.
    pub(crate) context_may_shrink: bool,
    /// How experts are to be read, where somebody said so.
    reads: Reads,
}

#[derive(Debug, Clone, Copy)]
struct Reads {
    mode: Option<ReadMode>,
    pages: Option<Pages>,
    readers: Option<usize>,
}

impl EngineSettings {
    pub(crate) fn resolve(a: &EngineArgs, s: &mut Settings) -> anyhow::Result<Self> {
        let context = s.pick(&CONTEXT, a.context)?;
        let precision = s.pick_or(&PRECISION, a.precision, PrecisionArg::Fast)?;
        Self::with(&a.machine, context, precision.into(), s)
    }

    /// For commands that compare: they have their own say about the context and the precision, and none about the rest.
    pub(crate) fn for_comparing(
        a: &MachineArgs,
        context: Option<u32>,
        precision: Option<PrecisionArg>,
        s: &mut Settings,
    ) -> anyhow::Result<Self> {
        let origin = if precision.is_some() { Origin::Flag } else { Origin::Default };
        let precision = precision.unwrap_or(PrecisionArg::Exact);
        s.note(PRECISION.key, (PRECISION.show)(&precision), origin);
        Self::with(a, context, precision.into(), s)
    }

    fn with(
        a: &MachineArgs,
        context: Option<u32>,
        precision: Precision,
        s: &mut Settings,
    ) -> anyhow::Result<Self> {
        let mut options =
            EngineOptions { memory_bytes: s.pick(&MEMORY, a.memory)?, precision, ..EngineOptions::default() };
        options.context = context.unwrap_or(options.context);
        options.threads = s.pick(&THREADS, a.threads)?;
        options.isa = s.pick(&ISA, a.isa)?;
        let reads = reads(&a.experts, s)?;
        options.experts = experts(&a.experts, s)?;
        Ok(Self { options, context_may_shrink: context.is_none(), reads })
    }

    /// Settles how experts are read: as somebody said, else as the drive under `model` was found to be read fastest.
    pub(crate) fn settle_reads(&mut self, model: &Path, s: &mut Settings) {
        let found = dirs::drives().and_then(|folder| {
            let drive = DriveId::of(model).ok()?;
            DriveProfiles::new(folder).recall(&drive).unwrap_or_else(|e| {
                // A command may open two models on one drive.
                static SAID: std::sync::Once = std::sync::Once::new();
                SAID.call_once(|| output::note(&format!("{e}\n")));
                None
            })
        });
        let origin = if found.is_some() { Origin::Found } else { Origin::Default };
        let profile = found.unwrap_or_default();
        let e = &mut self.options.experts;
        e.read_mode = self.reads.mode.unwrap_or(profile.mode);
        e.pages = self.reads.pages.unwrap_or(profile.pages);
        e.readers = self.reads.readers.unwrap_or(profile.depth);
        if self.reads.mode.is_none() {
            s.note(READS.key, e.read_mode.to_string(), origin.clone());
        }
        if self.reads.pages.is_none() {
            s.note(PAGES.key, e.pages.to_string(), origin.clone());
        }
        if self.reads.readers.is_none() {
            s.note(READERS.key, e.readers.to_string(), origin);
        }
    }
}

fn reads(a: &ExpertArgs, s: &mut Settings) -> anyhow::Result<Reads> {
    Ok(Reads {
        mode: s.pick(&READS, a.reads)?.map(|r| match r {
            ReadsArg::Direct => ReadMode::Direct,
            ReadsArg::Buffered => ReadMode::Buffered,
            ReadsArg::Uring => ReadMode::Uring,
        }),
        pages: s.pick(&PAGES, a.pages)?.map(|p| match p {
            PagesArg::Huge => Pages::Huge,
            PagesArg::Small => Pages::Small,
        }),
        readers: s.pick(&READERS, a.readers)?,
    })
}

fn experts(a: &ExpertArgs, s: &mut Settings) -> anyhow::Result<ExpertOptions> {
    let mut e = ExpertOptions::default();
    e.verify_reads = s.pick_or(&VERIFY_READS, a.verify_reads, Switch::Off)? == Switch::On;
    e.policy = s.pick_or(&POLICY, a.policy, e.policy)?;
    e.lookahead = match s.pick_or(&LOOKAHEAD, a.lookahead, LookaheadArg::Auto)? {
        LookaheadArg::Auto => LookaheadMode::Auto,
        LookaheadArg::On => LookaheadMode::On,
        LookaheadArg::Off => LookaheadMode::Off,
    };
    let learn = s.pick_or(&LEARN, a.learn, Switch::On)? == Switch::On;
    e.state_dir = if learn { dirs::learned() } else { None };
    Ok(e)
}

/// How tokens are chosen, where somebody said so.
#[derive(Debug, Clone)]
pub(crate) struct SamplingSettings {
    max_tokens: usize,
    temperature: Option<f64>,
    top_k: Option<i64>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    repetition_penalty: Option<f64>,
    stop: Vec<String>,
    seed: i64,
}

impl SamplingSettings {
    pub(crate) fn resolve(a: &SamplingArgs, max_tokens: usize, s: &mut Settings) -> anyhow::Result<Self> {
        let seed = match s.find(&SEED, a.seed)?.unwrap_or((Seed::Fixed(0), Origin::Default)) {
            (Seed::Fixed(seed), origin) => (seed, origin),
            // Picked here, so that an answer that pleased can be had again.
            (Seed::Random, origin) => (random_seed(), origin),
        };
        s.note(SEED.key, seed.0.to_string(), seed.1);
        Ok(Self {
            max_tokens: s.pick_or(&MAX_TOKENS, a.max_tokens, max_tokens)?,
            temperature: s.pick(&TEMPERATURE, a.temperature)?,
            top_k: s.pick(&TOP_K, a.top_k)?,
            top_p: s.pick(&TOP_P, a.top_p)?,
            min_p: s.pick(&MIN_P, a.min_p)?,
            presence_penalty: s.pick(&PRESENCE_PENALTY, a.presence_penalty)?,
            frequency_penalty: s.pick(&FREQUENCY_PENALTY, a.frequency_penalty)?,
            repetition_penalty: s.pick(&REPETITION_PENALTY, a.repetition_penalty)?,
            stop: s.list(&STOP, &a.stop)?,
            seed: seed.0,
        })
    }

    /// The options of an answer: what was said, over what the model's files say.
    pub(crate) fn options(&self, defaults: &SamplingDefaults, thinking: bool) -> GenerateOptions {
        let model = defaults.params(thinking);
        let sampling = SamplingParams {
            temperature: self.temperature.unwrap_or(model.temperature),
            top_k: self.top_k.unwrap_or(model.top_k),
            top_p: self.top_p.unwrap_or(model.top_p),
            min_p: self.min_p.unwrap_or(model.min_p),
            presence_penalty: self.presence_penalty.unwrap_or(model.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(model.frequency_penalty),
            repetition_penalty: self.repetition_penalty.unwrap_or(model.repetition_penalty),
            seed: Some(self.seed),
            ..model
        };
        GenerateOptions {
            max_tokens: self.max_tokens,
            sampling,
            stop: self.stop.clone(),
            ..GenerateOptions::default()
        }
    }

    /// Notes for --verbose what the model's files decided.
    pub(crate) fn note_defaults(&self, defaults: &SamplingDefaults, thinking: bool, s: &mut Settings) {
        let p = self.options(defaults, thinking).sampling;
        let numbers: [(&Setting<f64>, f64); 6] = [
            (&TEMPERATURE, p.temperature),
            (&TOP_P, p.top_p),
            (&MIN_P, p.min_p),
            (&PRESENCE_PENALTY, p.presence_penalty),
            (&FREQUENCY_PENALTY, p.frequency_penalty),
            (&REPETITION_PENALTY, p.repetition_penalty),
        ];
        for (setting, value) in numbers {
            s.note(setting.key, value.to_string(), Origin::Model);
        }
        s.note(TOP_K.key, p.top_k.to_string(), Origin::Model);
    }
}

/// The standard library's hash keys are the one source of randomness at hand.
fn random_seed() -> i64 {
    (RandomState::new().build_hasher().finish() >> 1) as i64
}
