//! [`Session`]: one conversation's state, a single timeline of tokens.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use spinetail_model::{Row, SavedState, SequenceId, step};
use spinetail_store::StoreStats;
use spinetail_store::trace::{StepKind, StepTime};

use crate::engine::{Compute, Engine};
use crate::error::EngineError;

/// Marks kept at once: the end of the last message, and one before it. The memory plan has a state for each.
pub(crate) const MAX_MARKS: usize = 2;

/// Tokens run so far and tokens to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Tokens run.
    pub done: usize,
    /// Tokens asked for.
    pub total: usize,
}

/// What to look at while tokens are run; see [`Session::evaluate`].
pub trait Observer {
    /// Logits of the token at `position`, `[vocab]`.
    fn logits(&mut self, position: usize, logits: &[f32]);

    /// Whether [`layer_output`](Self::layer_output) is wanted.
    fn wants_layers(&self) -> bool {
        false
    }

    /// Output of layer `layer` for consecutive tokens from `position` on, `[tokens, hidden]`.
    fn layer_output(&mut self, _layer: usize, _position: usize, _x: &[f32]) {}
}

/// One conversation: tokens, and the model's state after them.
pub struct Session {
    engine: Engine,
    sequence: SequenceId,
    tokens: Vec<u32>,
    /// Logits after the last token; empty before the first.
    logits: Vec<f32>,
    marks: Vec<SavedState>,
    /// Set while a step runs: a step that failed leaves the state undefined.
    broken: bool,
}

impl Session {
    pub(crate) fn new(engine: Engine) -> Result<Self, EngineError> {
        let sequence = engine.compute().backend.create_sequence(engine.inner.context)?;
        Ok(Self {
            engine,
            sequence,
            tokens: Vec::new(),
            logits: Vec::new(),
            marks: Vec::new(),
            broken: false,
        })
    }

    /// The engine this session belongs to.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The tokens run so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Logits after the last token, `[vocab]`; empty before the first.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Positions left in the context.
    pub fn remaining(&self) -> usize {
        self.engine.inner.context as usize - self.tokens.len()
    }

    /// Makes `tokens` the session's timeline, running only what is new: what the timeline already shares with it is
    /// kept, back to the last mark if the timelines part. `mark_at` is a position worth coming back to, such as the
    /// end of the last message.
    ///
    /// Returns how many tokens were kept. `progress` may stop between chunks; the work done is kept.
    pub fn prefill(
        &mut self,
        tokens: &[u32],
        mark_at: Option<usize>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<usize, EngineError> {
        let capacity = self.engine.inner.context as usize;
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if tokens.len() > capacity {
            return Err(EngineError::PromptTooLong { tokens: tokens.len(), context: capacity });
        }
        let rows = self.engine.plan().chunk_rows;
        let kept = self.rewind(tokens)?;
        let mut done = kept;
        let _ = progress(Progress { done: 0, total: tokens.len() - kept });
        while done < tokens.len() {
            // Chunks end on multiples of their length, wherever they start, and at the mark.
            let mut end = (done + 1).next_multiple_of(rows).min(tokens.len());
            if let Some(mark) = mark_at.filter(|&m| done < m && m < end) {
                end = mark;
            }
            let want = if end == tokens.len() { Want::Last } else { Want::Nothing };
            self.run(&tokens[done..end], want)?;
            done = end;
            if mark_at == Some(done) {
                self.mark()?;
            }
            let stop = progress(Progress { done: done - kept, total: tokens.len() - kept });
            if stop.is_break() && done < tokens.len() {
                return Err(EngineError::Cancelled);
            }
        }
        Ok(kept)
    }

    /// Runs one more token.
    pub fn push(&mut self, token: u32) -> Result<(), EngineError> {
        self.run(&[token], Want::Last)
    }

    /// Runs `tokens` after those so far and shows `observer` the logits of each.
    pub fn evaluate(&mut self, tokens: &[u32], observer: &mut dyn Observer) -> Result<(), EngineError> {
        let (mut rest, rows) = (tokens, self.engine.plan().chunk_rows);
        while !rest.is_empty() {
            let room = rows - self.tokens.len() % rows;
            let (chunk, later) = rest.split_at(room.min(rest.len()));
            self.run(chunk, Want::All(observer))?;
            rest = later;
        }
        Ok(())
    }

    /// Forgets everything.
    pub fn reset(&mut self) -> Result<(), EngineError> {
        let mut compute = self.engine.compute();
        compute.backend.drop_sequence(self.sequence);
        self.sequence = compute.backend.create_sequence(self.engine.inner.context)?;
        self.tokens.clear();
        self.logits.clear();
        self.marks.clear();
        self.broken = false;
        Ok(())
    }

    /// Begins again with `length` positions of random keys, values and state (see `Backend::fill_sequence`); the timeline
    /// is token 0 that many times.
    pub(crate) fn fill(&mut self, length: u32, seed: u64) -> Result<(), EngineError> {
        self.reset()?;
        self.engine.compute().backend.fill_sequence(self.sequence, length, seed)?;
        self.tokens.resize(length as usize, 0);
        Ok(())
    }

    /// Keeps as much of the timeline as `tokens` shares with it; returns how much that is. At least one token is left
    /// to run, because logits come from running.
    fn rewind(&mut self, tokens: &[u32]) -> Result<usize, EngineError> {
        let shared = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        if !self.broken && shared == self.tokens.len() && shared < tokens.len() {
            return Ok(shared);
        }
        let good = |m: &&SavedState| m.position as usize <= shared && (m.position as usize) < tokens.len();
        let mark = self.marks.iter().filter(good).max_by_key(|m| m.position).cloned();
        let Some(mark) = mark else {
            self.reset()?;
            return Ok(0);
        };
        self.engine.compute().backend.restore_state(self.sequence, &mark)?;
        self.tokens.truncate(mark.position as usize);
        self.marks.retain(|m| m.position <= mark.position);
        self.logits.clear();
        self.broken = false;
        Ok(self.tokens.len())
    }

    fn mark(&mut self) -> Result<(), EngineError> {
        let position = self.tokens.len();
        self.marks.retain(|m| m.position as usize != position);
        // Before there is another: memory is reckoned for so many.
        if self.marks.len() == MAX_MARKS {
            self.marks.remove(0);
        }
        let state = self.engine.compute().backend.save_state(self.sequence)?;
        self.marks.push(state);
        Ok(())
    }

    fn run(&mut self, tokens: &[u32], mut want: Want<'_>) -> Result<(), EngineError> {
        if self.broken {
            return Err(EngineError::Broken);
        }
        if tokens.len() > self.remaining() {
            let context = self.engine.inner.context as usize;
            return Err(EngineError::PromptTooLong { tokens: self.tokens.len() + tokens.len(), context });
        }
        let start = self.tokens.len();
        let row = |(i, &token)| Row { sequence: self.sequence, position: (start + i) as u32, token };
        let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
        let config = &self.engine.inner.config;
        // One lock for the step and its logits: another session's step would replace the batch between them.
        let mut guard = self.engine.compute();
        guard.make_room(rows.len(), &self.engine.plan());
        let Compute { backend, store, scratch, .. } = &mut *guard;
        self.broken = true;
        let (start_time, stats) = (Instant::now(), store.stats());
        if let Some(trace) = &mut scratch.trace {
            trace.begin_step();
        }
        let mut x = Vec::new();
        step(&mut **backend, store, config, &rows, scratch, &mut |layer, backend| {
            if let Want::All(observer) = &mut want
                && observer.wants_layers()
            {
                backend.hidden(&mut x)?;
                observer.layer_output(layer, start, &x);
            }
            Ok(())
        })?;
        self.tokens.extend_from_slice(tokens);
        self.logits.clear();
        let first = match want {
            Want::Nothing => rows.len(),
            Want::Last => rows.len() - 1,
            Want::All(_) => 0,
        };
        for i in first..rows.len() {
            self.logits.resize(config.vocab, 0.0);
            backend.head(&[i as u32], &mut self.logits)?;
            if let Want::All(observer) = &mut want {
                observer.logits(start + i, &self.logits);
            }
        }
        if let Some(trace) = &mut scratch.trace {
            let kind = if rows.len() == 1 { StepKind::Decode } else { StepKind::Prefill };
            trace.end_step(kind, rows.len(), &step_time(start_time.elapsed(), &stats, &store.stats()));
        }
        self.broken = false;
        Ok(())
    }
}

/// Where `all` of a step's time went, from the store's counters before and after it.
fn step_time(all: Duration, before: &StoreStats, after: &StoreStats) -> StepTime {
    let read = Duration::from_nanos(after.read_wait_ns - before.read_wait_ns);
    let read_bytes = after.bytes_read - before.bytes_read;
    StepTime { compute: all.saturating_sub(read), read, read_bytes }
}

/// Which logits of a step are wanted.
enum Want<'o> {
    Nothing,
    Last,
    All(&'o mut dyn Observer),
}

impl Drop for Session {
    fn drop(&mut self) {
        self.engine.compute().backend.drop_sequence(self.sequence);
    }
}
