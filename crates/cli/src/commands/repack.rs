//! `spinetail repack`

use std::io::Write;
use std::path::PathBuf;

use clap::builder::ValueHint;
use spinetail_checkpoint::{RepackOptions, repack};
use spinetail_hub::{PullRequest, Source};

use crate::output::{self, Bar};
use crate::units::size;

#[derive(Debug, clap::Args)]
pub(crate) struct RepackArgs {
    /// Checkpoint folder (Hugging Face or MLX), or an older container
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    #[arg(required_unless_present_any = ["from_hf", "from_url"], conflicts_with_all = ["from_hf", "from_url"])]
    source: Option<PathBuf>,
    /// Repository on the hub, as ORG/REPO, instead of a folder
    #[arg(long, value_name = "ORG/REPO", conflicts_with = "from_url")]
    from_hf: Option<String>,
    /// Address of a folder on a web server, instead of a folder here
    #[arg(long, value_name = "URL")]
    from_url: Option<String>,
    /// Container to make; it must not exist
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    output: PathBuf,
    /// Bits of quantized weights: 2, 3, 4, 5, 6 or 8; 16 keeps the source's precision. 4 if not given; a source that is
    /// quantized already keeps its own bytes
    #[arg(long, value_name = "BITS")]
    bits: Option<u8>,
    /// Weights that share a scale: 32, 64 or 128. 64 if not given
    #[arg(long, value_name = "N")]
    group_size: Option<usize>,
}

pub(crate) fn run(a: &RepackArgs) -> anyhow::Result<()> {
    let options = RepackOptions { bits: a.bits, group_size: a.group_size, ..RepackOptions::default() };
    let far = match (&a.from_hf, &a.from_url) {
        (Some(repository), _) => {
            Some(Source::Hub { repository: repository.clone(), revision: "main".to_owned() })
        }
        (None, url) => url.clone().map(Source::Url),
    };
    let source = match (far, &a.source) {
        (Some(source), _) => {
            let mut request = PullRequest::new(source, a.output.clone());
            request.options = options;
            return super::pull::fetch(&request);
        }
        (None, Some(source)) => source,
        (None, None) => unreachable!("one of the three is required"),
    };
    let bar = Bar::bytes("repacking");
    let summary = repack(source, &a.output, options, &mut |p| {
        bar.set(p.done_bytes, p.total_bytes);
        true
    });
    drop(bar);
    let summary = summary?;
    let mut out = output::out();
    writeln!(out, "{}: {} written", a.output.display(), size(summary.bytes))?;
    out.flush()?;
    Ok(())
}
