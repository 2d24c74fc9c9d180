//! The engine's thread: takes jobs from the queue, one at a time, and answers them in one session.
//!
//! The session stays from job to job, so that a conversation that goes on reads only what is new. Must not wait for a
//! client without bound, and must outlive whatever an answer does.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spinetail_engine::{Answer, EngineError, Event, Session};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::error::ApiError;
use crate::queue::{End, Job, Outcome, Queue, Shared, Update};

/// How often a full channel is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Works until the queue is closed.
pub(crate) fn run(queue: &Queue, mut session: Session, stall: Duration) {
    while let Some(job) = queue.next() {
        if job.shared.ended().is_some() {
            // It was left between the queue and here; the session keeps what it has.
            queue.finished_unstarted();
            continue;
        }
        let start = Instant::now();
        let span = job.span.clone();
        let _entered = span.enter();
        if catch_unwind(AssertUnwindSafe(|| answer(&mut session, &job, stall))).is_err() {
            tracing::error!("the engine panicked; its session starts anew");
            let message = "the engine failed in a way that it should not; see the server's log";
            let _ = job.updates.try_send(Update::Failed(ApiError::internal(message)));
            if let Err(error) = session.reset() {
                tracing::error!(%error, "the session cannot be reset");
            }
        }
        queue.finished(start.elapsed());
    }
}

fn answer(session: &mut Session, job: &Job, stall: Duration) {
    let waited = job.queued.elapsed();
    let mut client = Client { updates: &job.updates, shared: &job.shared, patience: stall };
    let work = &job.work;
    let result =
        session.answer(&work.prompt, work.mark_at, &work.options, &mut |event| client.on_event(&event));
    match (result, job.shared.ended()) {
        (_, Some(End::Gone)) => tracing::info!("answer cancelled: the client has gone"),
        (_, Some(End::Stalled)) => tracing::warn!("answer cancelled: the client does not read it"),
        (_, Some(End::Shutdown)) => tracing::info!("answer cancelled: the server stops"),
        (Ok(answer), None) => {
            log(&answer, waited);
            let _ = client.send(Update::Done(Outcome {
                finish: answer.finish,
                prompt_tokens: answer.prompt_tokens,
                cached_tokens: answer.kept_tokens,
                completion_tokens: answer.tokens.len(),
            }));
        }
        (Err(error), None) => fail(&mut client, &error, work.field),
    }
}

fn fail(client: &mut Client<'_>, error: &EngineError, field: &'static str) {
    let error = ApiError::from_engine(error, field);
    if error.status.is_server_error() {
        tracing::error!(error = error.message, "answer failed");
    }
    let _ = client.send(Update::Failed(error));
}

fn log(answer: &Answer, waited: Duration) {
    tracing::info!(
        prompt_tokens = answer.prompt_tokens,
        cached_tokens = answer.kept_tokens,
        completion_tokens = answer.tokens.len(),
        finish = ?answer.finish,
        queued_ms = waited.as_millis() as u64,
        prefill_ms = answer.prefill.as_millis() as u64,
        decode_ms = answer.decode.as_millis() as u64,
        "answered"
    );
}

/// The other end of a job's channel.
struct Client<'j> {
    updates: &'j mpsc::Sender<Update>,
    shared: &'j Arc<Shared>,
    /// Time that may still be spent waiting for it.
    patience: Duration,
}

impl Client<'_> {
    fn on_event(&mut self, event: &Event<'_>) -> ControlFlow<()> {
        match event {
            Event::Prefill(progress) => self.shared.set_prefill(progress.done, progress.total),
            Event::Token { text, .. } => self.send(Update::Token((*text).to_owned()))?,
            _ => {}
        }
        match self.shared.ended() {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }

    /// Waits while the channel is full, as long as there is patience.
    fn send(&mut self, mut update: Update) -> ControlFlow<()> {
        loop {
            match self.updates.try_send(update) {
                Ok(()) => return ControlFlow::Continue(()),
                Err(TrySendError::Closed(_)) => return ControlFlow::Break(()),
                Err(TrySendError::Full(same)) => update = same,
            }
            if self.shared.ended().is_some() {
                return ControlFlow::Break(());
            }
            if self.patience.is_zero() {
                self.shared.end(End::Stalled);
                return ControlFlow::Break(());
            }
            std::thread::sleep(LOOK_AGAIN);
            self.patience = self.patience.saturating_sub(LOOK_AGAIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_does_not_read_is_waited_for_and_given_up() {
        let (updates, mut receiver) = mpsc::channel(1);
        let shared = Arc::new(Shared::default());
        let patience = Duration::from_millis(40);
        let mut client = Client { updates: &updates, shared: &shared, patience };
        let token = |client: &mut Client<'_>| client.on_event(&Event::Token { id: 1, text: "a" });
        assert!(token(&mut client).is_continue());
        assert!(token(&mut client).is_break());
        assert_eq!(shared.ended(), Some(End::Stalled));
        receiver.try_recv().unwrap();
        assert!(token(&mut client).is_break());
    }
}
