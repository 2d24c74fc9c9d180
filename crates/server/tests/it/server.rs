//! A server on a port of its own, over engines that the tests share.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use spinetail_engine::{Engine, EngineOptions, Precision};
use spinetail_server::{ServeOptions, Server};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// The shipped model, 4 bits.
pub(crate) fn engine() -> Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| open(&root().join("models/pip.qpack"))).clone()
}

/// The small model at source precision, computed exactly, or a note that the test is skipped.
pub(crate) fn exact_engine() -> Option<Engine> {
    static ENGINE: OnceLock<Option<Engine>> = OnceLock::new();
    let open_it = || {
        let folder = shared().join("models/pip");
        folder.exists().then(|| open_in(&folder, Precision::Exact))
    };
    let engine = ENGINE.get_or_init(open_it).clone();
    if engine.is_none() {
        println!("skipped: {} is absent", shared().join("models/pip").display());
    }
    engine
}

pub(crate) fn open(folder: &Path) -> Engine {
    open_in(folder, Precision::default())
}

fn open_in(folder: &Path, precision: Precision) -> Engine {
    let options = EngineOptions { precision, ..EngineOptions::default() };
    Engine::open(folder, &options, &mut |_, _| {}).unwrap()
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of cases beside the repository.
pub(crate) fn shared() -> PathBuf {
    root().join("../shared")
}

/// A running server; it stops when dropped.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    ended: Option<tokio::task::JoinHandle<()>>,
    runtime: Runtime,
}

impl TestServer {
    pub(crate) fn start(engine: Engine, change: impl FnOnce(&mut ServeOptions)) -> TestServer {
        let mut options = ServeOptions { port: 0, model_id: "pip".to_owned(), ..ServeOptions::default() };
        change(&mut options);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let server = runtime.block_on(Server::bind(engine, options)).unwrap();
        let address = server.address();
        let (stop, stopped) = oneshot::channel();
        let ended = runtime.spawn(server.run(async {
            let _ = stopped.await;
        }));
        TestServer { address, stop: Some(stop), ended: Some(ended), runtime }
    }

    pub(crate) fn pip() -> TestServer {
        TestServer::start(engine(), |_| {})
    }

    /// Asks it to stop.
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits until it has stopped.
    pub(crate) fn join(&mut self) {
        if let Some(ended) = self.ended.take() {
            self.runtime.block_on(ended).unwrap();
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop();
    }
}
