//! `spinetail verify`

use std::io::Write;

use anyhow::bail;

use crate::args::VerifyArgs;
use crate::units::size;
use crate::{models, output};

pub(crate) fn run(a: &VerifyArgs) -> anyhow::Result<()> {
    let path = models::find(&a.model)?;
    let bar = output::bytes_bar("verifying");
    let report = spinetail_container::verify(&path, &mut |p| {
        bar.set_length(p.total_bytes);
        bar.set_position(p.done_bytes);
        std::ops::ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let report = report?;
    let mut out = std::io::stdout().lock();
    for damage in &report.damage {
        writeln!(out, "{damage}")?;
    }
    for note in &report.unchecked {
        writeln!(out, "not checked: {note}")?;
    }
    if !report.damage.is_empty() {
        bail!("{} is damaged in {} places; get or make it again", path.display(), report.damage.len());
    }
    writeln!(out, "{}: {} checked, nothing damaged", path.display(), size(report.checked_bytes))?;
    out.flush()?;
    Ok(())
}
