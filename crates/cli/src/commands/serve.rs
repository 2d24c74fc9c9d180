//! `spinetail serve`

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::builder::ValueHint;
use spinetail_engine::machine::threads_given;
use spinetail_server::{ApiKey, Limits, ServeOptions, Server};

use crate::args::{EngineArgs, GlobalArgs};
use crate::settings::{EngineSettings, HOST, PORT, Settings};
use crate::{models, output};

/// The engine's, two that answer connections and one that prepares prompts: the least to serve with.
const SERVER_THREADS: usize = 4;

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Container or checkpoint folder, or the name of a model
    #[arg(default_value = "pip", value_hint = ValueHint::AnyPath)]
    model: PathBuf,
    /// Address to listen on; any but a loopback one needs an API key [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS", value_parser = HOST.parse)]
    host: Option<String>,
    /// Port to listen on; 0 lets the system choose [default: 8080]
    #[arg(long, value_name = "PORT", value_parser = PORT.parse)]
    port: Option<u16>,
    /// File that holds the key which requests must carry; SPINETAIL_API_KEY holds one as well
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    api_key_file: Option<PathBuf>,
    /// Ignore request fields that are unknown or not supported, with a line in the log, instead of refusing them
    #[arg(long)]
    lenient: bool,
    /// Let pages of this web origin call the server; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Requests that may wait while one is answered; one more gets status 429 [default: 64]
    #[arg(long, value_name = "N")]
    queue: Option<usize>,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(crate) fn run(a: &ServeArgs, globals: &GlobalArgs) -> anyhow::Result<()> {
    let mut settings = Settings::load(globals)?;
    let asked = EngineSettings::resolve(&a.engine, &mut settings)?;
    let path = models::find(&a.model, &mut settings)?;
    let defaults = Limits::default();
    let options = ServeOptions {
        host: settings.pick_or(&HOST, a.host.clone(), "127.0.0.1".to_owned())?,
        port: settings.pick_or(&PORT, a.port, 8080)?,
        api_key: api_key(a.api_key_file.as_deref())?,
        model_id: model_id(&path),
        model_aliases: aliases(&a.model, &path),
        lenient: a.lenient,
        allowed_origins: a.allow_origin.clone(),
        limits: Limits { queue: a.queue.unwrap_or(defaults.queue), ..defaults },
    };
    settings.print();
    log_to_stderr();
    let engine = super::open(&path, &asked, &mut settings)?;
    let given = threads_given(1 + SERVER_THREADS) - 1;
    if given < SERVER_THREADS {
        bail!(
            "the server needs {SERVER_THREADS} threads and the system gives only {given}; raise the limit of processes \
             (`ulimit -u`, or the control group's), or end other programs"
        );
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_keep_alive(Duration::from_secs(u64::from(u32::MAX)))
        .enable_all()
        .build()
        .context("cannot start the server's threads")?;
    // One stays to prepare prompts with, also when the system gives no more of them later.
    runtime.block_on(runtime.spawn_blocking(|| ()))?;
    runtime.block_on(async {
        let name = options.model_id.clone();
        let server = Server::bind(engine, options).await?;
        output::note(&format!("{name} answers at http://{}/v1, until Ctrl-C\n", server.address()));
        server.run(asked_to_stop()).await;
        Ok(())
    })
}

/// The folder's name without its ending.
fn model_id(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name =
        if path.extension().is_some_and(|e| e == "qpack") { path.file_stem() } else { path.file_name() };
    name.unwrap_or_default().to_string_lossy().into_owned()
}

/// What else the model may be called: as it was typed, and with its ending.
fn aliases(typed: &Path, path: &Path) -> Vec<String> {
    let whole = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    vec![typed.to_string_lossy().into_owned(), whole]
}

fn api_key(file: Option<&Path>) -> anyhow::Result<Option<ApiKey>> {
    let text = match file {
        Some(file) => {
            // Opening a pipe would wait for a writer; a device has no end.
            let read = std::fs::metadata(file).and_then(|m| {
                let small = m.is_file() && m.len() <= 64 << 10;
                if small {
                    std::fs::read_to_string(file)
                } else {
                    Err(io::Error::other("it is not a small file"))
                }
            });
            let refused = |e| {
                anyhow::anyhow!(
                    "cannot read the key from {}: {e}; write it to a file of its own",
                    file.display()
                )
            };
            Some(read.map_err(refused)?)
        }
        None => std::env::var("SPINETAIL_API_KEY").ok().filter(|key| !key.is_empty()),
    };
    Ok(text.map(|t| ApiKey::new(&t)).transpose()?)
}

fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("SPINETAIL_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let builder = tracing_subscriber::fmt()
        .with_writer(|| Unbroken(io::stderr()))
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_ansi(colours);
    // A second subscriber can only come from a test in the same process.
    let _ = builder.try_init();
}

/// A log that cannot be written any more (its reader has left, its disk is full) is no reason to stop serving.
struct Unbroken(io::Stderr);

impl Write for Unbroken {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

/// Ends with Ctrl-C, and on Unix with the signal that service managers send.
async fn asked_to_stop() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}
