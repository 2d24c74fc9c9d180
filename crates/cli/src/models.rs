//! Which folder a MODEL argument means.

use std::path::{Path, PathBuf};

use anyhow::bail;

/// The container of the shipped model, by its place beside the binary or in the source tree.
const SHIPPED: &str = "models/pip.qpack";

/// Finds the folder that `model` names: a path as it is, or the shipped model `pip`.
pub(crate) fn find(model: &Path) -> anyhow::Result<PathBuf> {
    if model.exists() {
        return Ok(model.to_owned());
    }
    if model == Path::new("pip") {
        let places = shipped_places();
        if let Some(found) = places.iter().find(|p| p.join("manifest.json").is_file()) {
            return Ok(found.clone());
        }
        let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
        bail!(
            "the shipped model pip is not beside the program (looked for {}); \
             unpack the whole release archive, or run from a clone",
            places.join(", ")
        );
    }
    bail!(
        "there is no model at {}; give the path of a container or checkpoint folder, or pip",
        model.display()
    )
}

/// Where the shipped model may lie: beside the binary, in the share folder of its prefix, or in the source tree.
fn shipped_places() -> Vec<PathBuf> {
    let mut places = Vec::new();
    if let Ok(exe) = std::env::current_exe().and_then(|e| e.canonicalize())
        && let Some(folder) = exe.parent()
    {
        places.push(folder.join(SHIPPED));
        if let Some(prefix) = folder.parent() {
            places.push(prefix.join("share/spinetail").join(SHIPPED));
        }
    }
    places.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(SHIPPED));
    places
}
