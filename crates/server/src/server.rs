//! Listening, accepting, and an orderly end.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use spinetail_engine::Engine;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tower::ServiceExt as _;

use crate::app::{App, router};
use crate::body::BodyReader;
use crate::connection::Peer;
use crate::error::ServeError;
use crate::guard::{Guard, cors};
use crate::options::{Limits, ServeOptions};
use crate::queue::Queue;
use crate::{ids, worker};

/// After answers were cancelled, how long their last words may take.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// A request's line and headers together.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Serving,
    /// No new requests.
    Finishing,
    /// No more connections.
    Ended,
}

/// A server that listens, and answers once it [runs](Server::run).
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    router: Router,
    queue: Arc<Queue>,
    worker: JoinHandle<()>,
    limits: Limits,
}

/// Answers requests until `shutdown` completes; then lets running answers finish for a while.
///
/// Needs a Tokio runtime of several threads, with I/O and time enabled.
pub async fn serve(
    engine: Engine,
    options: ServeOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    Server::bind(engine, options).await?.run(shutdown).await;
    Ok(())
}

impl Server {
    /// Checks the options, opens the port and starts the engine's thread. Connections wait until [`run`](Self::run).
    pub async fn bind(engine: Engine, options: ServeOptions) -> Result<Server, ServeError> {
        let listener = listen(&options).await?;
        let unlistened = |error| ServeError::Listen { host: options.host.clone(), port: options.port, error };
        let address = listener.local_addr().map_err(unlistened)?;
        let text = engine.text()?;
        let session = engine.session()?;
        let context = session.remaining();
        let limits = options.limits.clone();
        let queue = Arc::new(Queue::new(limits.queue, limits.unread_tokens));
        let cors = cors(&options)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let app = App {
            engine,
            text,
            queue: Arc::clone(&queue),
            guard: Guard::new(&options),
            bodies: BodyReader::new(&limits),
            preparing: Semaphore::new(cores),
            context,
            model: options.model_id.as_str().into(),
            started: ids::unix_seconds(),
            options,
        };
        let (jobs, stall) = (Arc::clone(&queue), limits.stall);
        let worker = std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || worker::run(&jobs, session, stall))
            .map_err(ServeError::Thread)?;
        Ok(Server { listener, address, router: router(Arc::new(app), cors), queue, worker, limits })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until `shutdown` completes; then lets running answers finish for a while.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Server { listener, address, router, queue, worker, limits } = self;
        tracing::info!(%address, "listening");
        let (stage, stages) = watch::channel(Stage::Serving);
        let most = limits.connections.clamp(1, u32::MAX as usize);
        let free = Arc::new(Semaphore::new(most));
        let limits = Arc::new(limits);
        tokio::select! {
            () = shutdown => {}
            () = accept(&listener, &router, &limits, &free, &stages) => {}
        }
        drop(listener);
        let (waiting, running) = queue.load();
        tracing::info!(waiting, running, "shutting down");
        let _ = stage.send(Stage::Finishing);
        let all_closed = || free.acquire_many(most as u32);
        if timeout(limits.grace, all_closed()).await.is_err() {
            tracing::warn!("cancelling what is still running");
        }
        queue.close();
        let _ = timeout(LAST_WORDS, all_closed()).await;
        let _ = stage.send(Stage::Ended);
        // It ends with the chunk it is at, which for a large model may take longer than anybody wants to wait.
        let ended = async {
            while !worker.is_finished() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = timeout(LAST_WORDS, ended).await;
        tracing::info!("stopped");
    }
}

async fn listen(options: &ServeOptions) -> Result<TcpListener, ServeError> {
    let ServeOptions { host, port, .. } = options;
    let failed = |error| ServeError::Listen { host: host.clone(), port: *port, error };
    let name = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host((name, *port)).await.map_err(failed)?.collect();
    if options.api_key.is_none() && !addresses.iter().all(|address| address.ip().is_loopback()) {
        return Err(ServeError::NeedsKey { host: host.clone() });
    }
    TcpListener::bind(&*addresses).await.map_err(failed)
}

async fn accept(
    listener: &TcpListener,
    router: &Router,
    limits: &Arc<Limits>,
    free: &Arc<Semaphore>,
    stages: &watch::Receiver<Stage>,
) {
    loop {
        let Ok(permit) = Arc::clone(free).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, address)) => {
                let peer = Peer::new(stream, address);
                let (router, limits, stages) = (router.clone(), Arc::clone(limits), stages.clone());
                tokio::spawn(connection(peer, router, limits, stages, permit));
            }
            Err(error) => {
                // Out of file descriptors, most likely: some will come free.
                tracing::warn!(%error, "cannot accept a connection");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Serves one connection to its end.
async fn connection(
    peer: Peer,
    router: Router,
    limits: Arc<Limits>,
    mut stages: watch::Receiver<Stage>,
    _permit: OwnedSemaphorePermit,
) {
    let asker = peer.clone();
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(asker.clone());
        router.clone().oneshot(request.map(Body::new))
    });
    let socket = TokioIo::new(peer.socket(limits.write));
    let mut http = hyper::server::conn::http1::Builder::new();
    // A client that has sent its request may close its half; what that means is for the routes to say.
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .half_close(true)
        .max_buf_size(MAX_HEAD_BYTES);
    let mut served = std::pin::pin!(http.serve_connection(socket, service));
    let result = loop {
        tokio::select! {
            result = served.as_mut() => break Some(result),
            changed = stages.changed() => {
                if changed.is_err() || *stages.borrow() == Stage::Ended {
                    break None;
                }
                served.as_mut().graceful_shutdown();
            }
        }
    };
    match result {
        Some(Ok(())) => peer.linger().await,
        Some(Err(error)) => tracing::debug!(%error, peer = %peer.address(), "connection ended"),
        None => {}
    }
}
