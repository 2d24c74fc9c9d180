//! An answer as server-sent events.
//!
//! Each event is one `data:` line and a blank line; comments stand between events when nothing else is to be said, so
//! that nobody on the way takes the connection for dead. After the first byte errors can only be events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use tokio::time::timeout;

use crate::connection::Peer;
use crate::error::ApiError;
use crate::queue::{Ticket, Update};
use crate::wire::Reply;

/// How long a proper status may still be had: an answer that fails sooner is no stream.
const FIRST: Duration = Duration::from_secs(1);
/// A client that has closed its sending half may have gone altogether; writing to it tells. Waits between such writes.
const PROBES: [Duration; 3] =
    [Duration::from_millis(300), Duration::from_millis(100), Duration::from_millis(30)];

/// Answers with a stream, or with an error that comes before it.
pub(crate) async fn respond(
    mut ticket: Ticket,
    reply: Reply,
    peer: Peer,
    keep_alive: Duration,
) -> Result<Response, ApiError> {
    let first = tokio::select! {
        first = timeout(FIRST.min(keep_alive), ticket.next()) => first.ok(),
        () = peer.gone() => None,
    };
    let mut events =
        Events { ticket, reply, peer, keep_alive, ready: VecDeque::new(), probes: None, finished: false };
    match first {
        Some(Update::Failed(error)) => return Err(error),
        Some(update) => events.take(update),
        None => events.comment(),
    }
    let stream = futures_util::stream::unfold(events, |mut events| async move {
        let bytes = events.next().await?;
        Some((Ok::<_, Infallible>(bytes), events))
    });
    let mut response = Response::new(Body::from_stream(stream));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that gather an answer before they pass it on are asked not to.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

struct Events {
    ticket: Ticket,
    reply: Reply,
    peer: Peer,
    keep_alive: Duration,
    ready: VecDeque<Bytes>,
    /// Waits that are left, once the client has closed its half.
    probes: Option<Vec<Duration>>,
    finished: bool,
}

impl Events {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(bytes);
            }
            if self.finished {
                return None;
            }
            let probe = self.probes.as_mut().and_then(Vec::pop);
            let wait = probe.unwrap_or(self.keep_alive);
            tokio::select! {
                update = timeout(wait, self.ticket.next()) => match update {
                    Ok(update) => self.take(update),
                    Err(_) => self.comment(),
                },
                () = self.peer.gone(), if self.probes.is_none() => {
                    self.probes = Some(PROBES.to_vec());
                    self.comment();
                }
            }
        }
    }

    fn take(&mut self, update: Update) {
        let mut chunks = Vec::new();
        match update {
            Update::Token(text) => {
                let split = self.reply.part(text);
                self.reply.chunks(split, &mut chunks);
            }
            Update::Done(outcome) => {
                let rest = self.reply.rest();
                self.reply.chunks(rest, &mut chunks);
                self.reply.last_chunks(&outcome, &mut chunks);
                chunks.push("[DONE]".to_owned());
                self.finished = true;
            }
            Update::Failed(error) => {
                chunks.push(error.body().to_string());
                self.finished = true;
            }
        }
        self.ready.extend(chunks.into_iter().map(|data| Bytes::from(format!("data: {data}\n\n"))));
    }

    fn comment(&mut self) {
        let comment = match self.ticket.prefill() {
            (_, 0) => ": waiting\n\n".to_owned(),
            (done, total) if done < total => format!(": prompt {done}/{total}\n\n"),
            _ => ": answering\n\n".to_owned(),
        };
        self.ready.push_back(comment.into());
    }
}
