//! `spinetail man`

use std::path::PathBuf;

use anyhow::Context;
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
    let failed = || format!("cannot write manual pages to {}", a.output.display());
    std::fs::create_dir_all(&a.output).with_context(failed)?;
    clap_mangen::generate_to(Cli::command(), &a.output).with_context(failed)
}
