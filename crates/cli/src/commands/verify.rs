//! `spinetail verify`

use std::io::Write;
use std::path::PathBuf;

use anyhow::bail;
use clap::builder::ValueHint;

use crate::args::GlobalArgs;
use crate::models;
use crate::output::{self, Bar};
use crate::settings::Settings;
use crate::units::size;

#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// Container, or the name of a model
    #[arg(value_hint = ValueHint::DirPath)]
    model: PathBuf,
}

/// Lines of a kind: a container has thousands of records, and one cause may have damaged them all.
const MAX_LINES: usize = 20;

pub(crate) fn run(a: &VerifyArgs, globals: &GlobalArgs) -> anyhow::Result<()> {
    let mut settings = Settings::load(globals)?;
    let path = models::find(&a.model, &mut settings)?;
    settings.print();
    let bar = Bar::bytes("verifying");
    let report = spinetail_container::verify(&path, &mut |p| {
        bar.set(p.done_bytes, p.total_bytes);
        std::ops::ControlFlow::Continue(())
    });
    drop(bar);
    let report = report?;
    let mut out = output::out();
    list(&mut out, "", &report.damage)?;
    list(&mut out, "not checked: ", &report.unchecked)?;
    if !report.damage.is_empty() {
        bail!("{} is damaged in {} places; get or make it again", path.display(), report.damage.len());
    }
    writeln!(out, "{}: {} checked, nothing damaged", path.display(), size(report.checked_bytes))?;
    out.flush()?;
    Ok(())
}

fn list(out: &mut dyn Write, what: &str, items: &[impl std::fmt::Display]) -> std::io::Result<()> {
    for item in items.iter().take(MAX_LINES) {
        writeln!(out, "{what}{item}")?;
    }
    match items.len().saturating_sub(MAX_LINES) {
        0 => Ok(()),
        more => writeln!(out, "{what}and {more} more"),
    }
}
