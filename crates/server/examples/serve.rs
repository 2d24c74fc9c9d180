//! Serves a model: `cargo run -p spinetail-server --example serve -- [MODEL [PORT]]`, with `SPINETAIL_API_KEY` as the key.

use std::path::PathBuf;

use spinetail_engine::{Engine, EngineOptions};
use spinetail_server::{ApiKey, ServeOptions, serve};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let mut arguments = std::env::args().skip(1);
    let shipped = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/pip.qpack").to_owned();
    let model = PathBuf::from(arguments.next().unwrap_or_else(shipped));
    let port = arguments.next().map_or(Ok(8080), |port| port.parse())?;
    let engine = Engine::open(&model, &EngineOptions::default(), &mut |_, _| {})?;
    let api_key = std::env::var("SPINETAIL_API_KEY").ok().map(|key| ApiKey::new(&key)).transpose()?;
    let options = ServeOptions { port, api_key, model_id: "pip".to_owned(), ..ServeOptions::default() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // Ends with the process: Ctrl-C is the command line's to handle.
    Ok(runtime.block_on(serve(engine, options, std::future::pending()))?)
}
