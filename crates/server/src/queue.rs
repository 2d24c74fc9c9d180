//! Requests in front of the one engine: who waits, who runs, who has gone.
//!
//! A [`Ticket`] is a request's place. Dropping it, which is what happens when a client goes away, takes the request out
//! of the queue or ends its running answer. Must not know HTTP, nor how an answer is made.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use spinetail_engine::GenerateOptions;
use spinetail_engine::text::FinishReason;
use tokio::sync::mpsc;
use tracing::Span;

use crate::error::ApiError;

/// What a client is told about its answer.
#[derive(Debug)]
pub(crate) enum Update {
    /// A token, and the text that it released, which may be empty.
    Token(String),
    /// The end.
    Done(Outcome),
    /// The end, too.
    Failed(ApiError),
}

/// How an answer ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) finish: FinishReason,
    pub(crate) prompt_tokens: usize,
    /// Tokens of the prompt that had not to be read again.
    pub(crate) cached_tokens: usize,
    pub(crate) completion_tokens: usize,
}

/// What is to be answered.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) prompt: Vec<u32>,
    pub(crate) mark_at: Option<usize>,
    pub(crate) options: GenerateOptions,
    /// The request's field that holds the prompt, for errors.
    pub(crate) field: &'static str,
}

/// Work in the queue.
pub(crate) struct Job {
    pub(crate) work: Work,
    pub(crate) updates: mpsc::Sender<Update>,
    pub(crate) shared: Arc<Shared>,
    /// The request's span, so that the engine's lines in the log bear its id.
    pub(crate) span: Span,
    pub(crate) queued: Instant,
    id: u64,
}

/// What client and engine both see of a job.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    ended: AtomicU8,
    prefill_done: AtomicUsize,
    prefill_total: AtomicUsize,
}

/// Why a job should end before its answer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum End {
    /// Nobody waits for it any more.
    Gone = 1,
    /// The server stops.
    Shutdown = 2,
    /// Its client did not read it.
    Stalled = 3,
}

impl Shared {
    pub(crate) fn ended(&self) -> Option<End> {
        match self.ended.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(End::Gone),
            2 => Some(End::Shutdown),
            _ => Some(End::Stalled),
        }
    }

    pub(crate) fn end(&self, why: End) {
        // The first reason stays.
        let _ = self.ended.compare_exchange(0, why as u8, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(crate) fn set_prefill(&self, done: usize, total: usize) {
        self.prefill_total.store(total, Ordering::Relaxed);
        self.prefill_done.store(done, Ordering::Relaxed);
    }

    /// Tokens of the prompt that have been read, and that are to be.
    pub(crate) fn prefill(&self) -> (usize, usize) {
        (self.prefill_done.load(Ordering::Relaxed), self.prefill_total.load(Ordering::Relaxed))
    }
}

/// The queue of one engine.
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    bound: usize,
    unread_tokens: usize,
}

struct State {
    waiting: VecDeque<Job>,
    running: Option<Arc<Shared>>,
    closed: bool,
    next_id: u64,
    /// A running mean of what a job took, in seconds.
    mean: f64,
}

impl Queue {
    /// A queue in which `bound` jobs may wait, each with `unread_tokens` tokens that its client has not taken.
    pub(crate) fn new(bound: usize, unread_tokens: usize) -> Queue {
        let state = State { waiting: VecDeque::new(), running: None, closed: false, next_id: 0, mean: 1.0 };
        Queue {
            state: Mutex::new(state),
            changed: Condvar::new(),
            bound: bound.max(1),
            unread_tokens: unread_tokens.max(1),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds the lock can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts work at the end of the queue.
    pub(crate) fn submit(self: &Arc<Queue>, work: Work) -> Result<Ticket, ApiError> {
        let mut state = self.state();
        if state.closed {
            return Err(ApiError::shutting_down());
        }
        if state.waiting.len() >= self.bound {
            let seconds = (state.mean * (state.waiting.len() + 1) as f64).ceil().clamp(1.0, 60.0);
            let message = format!(
                "{} requests are waiting for the model already; try again in {seconds} s",
                state.waiting.len()
            );
            return Err(ApiError::new(axum::http::StatusCode::TOO_MANY_REQUESTS, message)
                .code("queue_full")
                .retry_after(seconds as u64));
        }
        let (sender, updates) = mpsc::channel(self.unread_tokens);
        let shared = Arc::new(Shared::default());
        let id = state.next_id;
        state.next_id += 1;
        state.waiting.push_back(Job {
            work,
            updates: sender,
            shared: Arc::clone(&shared),
            span: Span::current(),
            queued: Instant::now(),
            id,
        });
        drop(state);
        self.changed.notify_one();
        Ok(Ticket { queue: Arc::clone(self), updates, shared, id })
    }

    /// The next job, when there is one; `None` when the queue is closed.
    pub(crate) fn next(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            if state.closed {
                return None;
            }
            if let Some(job) = state.waiting.pop_front() {
                state.running = Some(Arc::clone(&job.shared));
                return Some(job);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The engine is free again.
    pub(crate) fn finished(&self, took: Duration) {
        let mut state = self.state();
        state.running = None;
        state.mean = 0.8 * state.mean + 0.2 * took.as_secs_f64();
    }

    /// A job was gone before it began.
    pub(crate) fn finished_unstarted(&self) {
        self.state().running = None;
    }

    /// Jobs that wait, and whether one runs.
    pub(crate) fn load(&self) -> (usize, bool) {
        let state = self.state();
        (state.waiting.len(), state.running.is_some())
    }

    /// Ends everything: what waits is told so, what runs stops at its next token or chunk.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        if let Some(running) = &state.running {
            running.end(End::Shutdown);
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.changed.notify_all();
        for job in waiting {
            let _ = job.updates.try_send(Update::Failed(ApiError::shutting_down()));
        }
    }

    fn leave(&self, id: u64) {
        self.state().waiting.retain(|job| job.id != id);
    }
}

/// A request's place in the queue.
pub(crate) struct Ticket {
    queue: Arc<Queue>,
    updates: mpsc::Receiver<Update>,
    shared: Arc<Shared>,
    id: u64,
}

impl Ticket {
    /// What happens next.
    pub(crate) async fn next(&mut self) -> Update {
        let lost = || match self.shared.ended() {
            Some(End::Shutdown) => ApiError::shutting_down(),
            Some(End::Stalled) => ApiError::internal("the answer was dropped: it was not read in time"),
            _ => ApiError::internal("the engine dropped the request; see the server's log"),
        };
        self.updates.recv().await.unwrap_or_else(|| Update::Failed(lost()))
    }

    pub(crate) fn prefill(&self) -> (usize, usize) {
        self.shared.prefill()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.shared.end(End::Gone);
        self.queue.leave(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work() -> Work {
        Work { prompt: vec![1], mark_at: None, options: GenerateOptions::default(), field: "prompt" }
    }

    #[test]
    fn bounded_in_order_and_left_by_who_goes() {
        let queue = Arc::new(Queue::new(2, 1));
        let first = queue.submit(work()).unwrap();
        let second = queue.submit(work()).unwrap();
        let refused = queue.submit(work()).err().unwrap();
        assert_eq!(refused.status, 429);
        assert!(refused.retry_after.is_some());
        drop(first);
        let third = queue.submit(work()).unwrap();
        let job = queue.next().unwrap();
        assert_eq!(job.id, second.id);
        assert_eq!(job.shared.ended(), None);
        drop(second);
        assert_eq!(job.shared.ended(), Some(End::Gone));
        assert_eq!(queue.load(), (1, true));
        queue.finished(Duration::ZERO);
        assert_eq!(queue.next().unwrap().id, third.id);
    }

    #[tokio::test]
    async fn closing_tells_everyone() {
        let queue = Arc::new(Queue::new(4, 1));
        let running = queue.submit(work()).unwrap();
        let mut waiting = queue.submit(work()).unwrap();
        let job = queue.next().unwrap();
        queue.close();
        assert_eq!(job.shared.ended(), Some(End::Shutdown));
        assert!(matches!(waiting.next().await, Update::Failed(error) if error.status == 503));
        assert!(queue.next().is_none());
        assert!(queue.submit(work()).is_err());
        drop(running);
        assert_eq!(job.shared.ended(), Some(End::Shutdown));
    }
}
