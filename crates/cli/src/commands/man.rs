//! `spinetail man`

use std::path::PathBuf;

use anyhow::anyhow;
use clap::CommandFactory;
use clap::builder::ValueHint;

use crate::args::Cli;

#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Folder for the pages, spinetail.1 and one for each command; it is made if need be
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    output: PathBuf,
}

pub(crate) fn run(a: &ManArgs) -> anyhow::Result<()> {
    let pages =
        std::fs::create_dir_all(&a.output).and_then(|()| clap_mangen::generate_to(Cli::command(), &a.output));
    pages.map_err(|e| {
        let folder = a.output.display();
        anyhow!("cannot write manual pages to {folder}: {e}; give another folder, or make room")
    })
}
