//! Measuring a loaded model: tokens per second, and the bytes that they had to touch.
//!
//! Must not decide what is fast enough, and must not print: figures go to whoever asked.

use std::time::Instant;

use spinetail_core::{ModelConfig, ModelSource, dense_specs};
use spinetail_store::StoreStats;

use crate::engine::{Engine, Precision};
use crate::error::EngineError;
use crate::session::Progress;
use crate::text::{Sampler, SamplingParams};

/// Bytes that one decoded token reads, at least: the floor of its time is these over the memory's speed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenBytes {
    /// Dense weights: all of them but the embedding, of which a token reads one row.
    pub dense: u64,
    /// Records of the experts that the router picks.
    pub experts: u64,
    /// Recurrent states, each read once (and written once, which is not counted).
    pub state: u64,
    /// Keys and values of the positions before it.
    pub kv: u64,
}

impl TokenBytes {
    /// Dense weights and experts.
    pub fn weights(&self) -> u64 {
        self.dense + self.experts
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights() + self.state + self.kv
    }

    /// What a token of the model in `source` reads when nothing came before it.
    pub(crate) fn of(source: &dyn ModelSource) -> Self {
        let c = source.config();
        let dense = dense_specs(c)
            .iter()
            .filter(|s| !s.is_prediction_head())
            .filter_map(|asked| {
                let spec = source.dense_spec(&asked.name)?;
                let one_row = asked.name == "embed_tokens" && !c.tied_embeddings;
                Some((if one_row { spec.bytes() / spec.rows() } else { spec.bytes() }) as u64)
            })
            .sum();
        let layouts = (0..c.layers.len()).filter_map(|l| source.record_layout(l as u16));
        let experts = layouts.map(|l| l.bytes * c.moe.top_k as u64).sum();
        Self { dense, experts, state: 4 * c.state_elements() as u64, kv: 0 }
    }

    pub(crate) fn at(self, c: &ModelConfig, precision: Precision, context: u32) -> Self {
        let element = precision.kv_element_bytes() as u64;
        Self { kv: c.kv_elements_per_token() as u64 * element * u64::from(context), ..self }
    }
}

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// Tokens decoded in each run.
    pub decode_tokens: usize,
    /// Tokens decoded before the first run, so that the cache is as full as it will be.
    pub warmup_tokens: usize,
    /// Runs of each kind.
    pub runs: usize,
    /// Chooses the tokens.
    pub seed: u64,
}

/// One kind of work, measured several times.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Measured {
    /// Positions before the first token.
    pub context: u32,
    /// Tokens of each run.
    pub tokens: usize,
    /// Seconds of each run.
    pub seconds: Vec<f64>,
    /// What one decoded token reads at that context.
    pub token_bytes: TokenBytes,
    /// What the store did in all runs together.
    pub store: StoreStats,
}

impl Measured {
    /// Tokens per second of each run.
    pub fn rates(&self) -> Vec<f64> {
        self.seconds.iter().map(|s| self.tokens as f64 / s).collect()
    }

    /// The middle one of [`rates`](Self::rates).
    pub fn median_rate(&self) -> f64 {
        let mut rates = self.rates();
        rates.sort_by(f64::total_cmp);
        let n = rates.len();
        if n == 0 { 0.0 } else { (rates[(n - 1) / 2] + rates[n / 2]) / 2.0 }
    }

    /// Share of expert uses that found their record in memory; NaN when there were none.
    pub fn hit_rate(&self) -> f64 {
        self.store.hit_rate()
    }

    /// Bytes of expert records read per token.
    pub fn bytes_read_per_token(&self) -> f64 {
        self.store.bytes_read as f64 / (self.tokens * self.seconds.len()).max(1) as f64
    }
}

impl Engine {
    /// Bytes that a decoded token reads with `context` positions before it.
    pub fn token_bytes(&self, context: u32) -> TokenBytes {
        self.inner.token_bytes.at(&self.inner.config, self.inner.precision, context)
    }

    /// Decodes after `context` positions of random keys, values and state. Tokens are drawn from the model's own
    /// logits, which is not part of the time.
    pub fn measure_decode(
        &self,
        context: u32,
        options: &BenchOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Measured, EngineError> {
        let total = options.warmup_tokens + options.runs * options.decode_tokens;
        let mut session = self.session()?;
        session.fill(context, options.seed)?;
        if session.remaining() <= options.warmup_tokens.max(options.decode_tokens) {
            let tokens = context as usize + options.warmup_tokens.max(options.decode_tokens) + 1;
            return Err(EngineError::PromptTooLong { tokens, context: self.inner.context as usize });
        }
        let mut draw = Draw::new(self.inner.config.vocab, options.seed)?;
        let mut done = 0;
        session.push(draw.random())?;
        for _ in 0..options.warmup_tokens {
            let token = draw.next(session.logits())?;
            session.push(token)?;
            done += 1;
            progress(Progress { done, total });
        }
        let before = self.store_stats();
        let mut seconds = Vec::new();
        for run in 0..options.runs {
            // Each run at the same context; the cache is as the last one left it.
            session.fill(context, options.seed ^ run as u64)?;
            session.push(draw.random())?;
            let mut time = 0.0;
            for _ in 0..options.decode_tokens {
                let token = draw.next(session.logits())?;
                let start = Instant::now();
                session.push(token)?;
                time += start.elapsed().as_secs_f64();
                done += 1;
                progress(Progress { done, total });
            }
            seconds.push(time);
        }
        Ok(Measured {
            context,
            tokens: options.decode_tokens,
            seconds,
            token_bytes: self.token_bytes(context),
            store: self.store_stats().since(&before),
        })
    }

    /// Reads a prompt of `tokens` random tokens, from an empty session each time.
    pub fn measure_prefill(
        &self,
        tokens: usize,
        options: &BenchOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Measured, EngineError> {
        let mut draw = Draw::new(self.inner.config.vocab, options.seed)?;
        let mut session = self.session()?;
        let total = tokens * options.runs;
        let before = self.store_stats();
        let mut seconds = Vec::new();
        for run in 0..options.runs {
            session.reset()?;
            let prompt: Vec<u32> = (0..tokens).map(|_| draw.random()).collect();
            let start = Instant::now();
            session.prefill(&prompt, None, &mut |p| {
                progress(Progress { done: run * tokens + p.done, total });
                std::ops::ControlFlow::Continue(())
            })?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        Ok(Measured {
            context: 0,
            tokens,
            seconds,
            token_bytes: self.token_bytes(0),
            store: self.store_stats().since(&before),
        })
    }
}

/// Where tokens come from: the model's own distribution, as in an answer, or any at all.
struct Draw {
    sampler: Sampler,
    vocab: u32,
    state: u64,
}

impl Draw {
    fn new(vocab: usize, seed: u64) -> Result<Self, EngineError> {
        let params =
            SamplingParams { temperature: 1.0, seed: Some((seed >> 1) as i64), ..Default::default() };
        Ok(Self { sampler: Sampler::new(params, vocab, &[])?, vocab: vocab as u32, state: seed })
    }

    fn next(&mut self, logits: &[f32]) -> Result<u32, EngineError> {
        Ok(self.sampler.sample(logits)?)
    }

    fn random(&mut self) -> u32 {
        // Knuth's multiplier; the high bits are good enough to pick tokens by.
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.state >> 33) % u64::from(self.vocab)) as u32
    }
}
