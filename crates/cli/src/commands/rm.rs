//! `spinetail rm`

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::bail;
use spinetail_hub::{ModelEntry, list_models, remove_model};

use crate::args::GlobalArgs;
use crate::output;
use crate::settings::Settings;
use crate::units::size;

#[derive(Debug, clap::Args)]
pub(crate) struct RmArgs {
    /// Name of a model, as `spinetail list` shows it; unfinished downloads go by it too
    name: String,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

pub(crate) fn run(a: &RmArgs, globals: &GlobalArgs) -> anyhow::Result<()> {
    let mut settings = Settings::load(globals)?;
    let folders = settings.model_folders()?;
    settings.print();
    let wanted = |e: &ModelEntry| e.name == a.name || e.name.strip_suffix(".qpack") == Some(&a.name);
    for folder in &folders {
        let Some(entry) = list_models(folder)?.into_iter().find(wanted) else {
            // What is there and no model (a link, a folder of something else) is refused with its own reason.
            let names = [a.name.clone(), format!("{}.qpack", a.name)];
            if let Some(name) = names.iter().find(|n| folder.join(n).symlink_metadata().is_ok()) {
                remove_model(folder, name)?;
            }
            continue;
        };
        if !a.yes && !confirmed(&entry)? {
            return Ok(());
        }
        let freed = remove_model(folder, &entry.name)?;
        let mut out = output::out();
        writeln!(out, "{}: removed, {} freed", entry.path.display(), size(freed))?;
        return Ok(out.flush()?);
    }
    let looked: Vec<String> = folders.iter().map(|f| f.display().to_string()).collect();
    bail!("there is no model {:?} in {}; `spinetail list` shows the names", a.name, looked.join(", "))
}

fn confirmed(entry: &ModelEntry) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        bail!("nobody is there to confirm removing {}; give --yes", entry.path.display());
    }
    let mut err = io::stderr();
    write!(err, "remove {} ({})? [y/N] ", entry.path.display(), size(entry.bytes))?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
