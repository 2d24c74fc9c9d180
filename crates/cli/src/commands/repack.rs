//! `spinetail repack`

use std::io::Write;

use spinetail_checkpoint::{RepackOptions, repack};

use crate::args::RepackArgs;
use crate::output;
use crate::units::size;

pub(crate) fn run(a: &RepackArgs) -> anyhow::Result<()> {
    let bar = output::bytes_bar("repacking");
    let options = RepackOptions { bits: a.bits, group_size: a.group_size, ..RepackOptions::default() };
    let summary = repack(&a.source, &a.output, options, &mut |p| {
        bar.set_length(p.total_bytes);
        bar.set_position(p.done_bytes);
        true
    });
    bar.finish_and_clear();
    let summary = summary?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}: {} written", a.output.display(), size(summary.bytes))?;
    out.flush()?;
    Ok(())
}
