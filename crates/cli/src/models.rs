//! Which folder a MODEL argument means.
//!
//! A path is a path. A bare name is looked up: a model here, then in the folders for models, then the shipped model.
//! Must not open a model: a folder counts as one by the files in it.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use anyhow::bail;

use crate::settings::{Origin, Settings};

/// The container of the shipped model, by its place beside the binary or in the source tree.
const SHIPPED: &str = "models/pip.qpack";
/// The sources of this crate; a release, which `scripts/release.sh` makes, does not look where it was built.
const SOURCES: Option<&str> = match option_env!("SPINETAIL_RELEASE") {
    Some(_) => None,
    None => Some(env!("CARGO_MANIFEST_DIR")),
};
const SHIPPED_NAME: &str = "pip";
const EXTENSION: &str = "qpack";

/// What a folder of models holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Container,
    Checkpoint,
}

/// A model that can be named.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: std::ffi::OsString,
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
}

/// Finds the folder that `model` names.
pub(crate) fn find(model: &Path, settings: &mut Settings) -> anyhow::Result<PathBuf> {
    let path = look_up(model, settings)?;
    settings.note("model", path.display().to_string(), Origin::Found);
    Ok(path)
}

fn look_up(model: &Path, settings: &mut Settings) -> anyhow::Result<PathBuf> {
    let Some(name) = bare_name(model) else {
        if model.exists() {
            return Ok(model.to_owned());
        }
        bail!(
            "there is no model at {}; give the path of a container or checkpoint folder, or a name that \
             `spinetail list` shows",
            model.display()
        );
    };
    if kind(model).is_some() {
        return Ok(model.to_owned());
    }
    let mut looked = Vec::new();
    for folder in settings.model_folders()? {
        let mut with_extension = name.to_owned();
        with_extension.push(".");
        with_extension.push(EXTENSION);
        let places = [folder.join(name), folder.join(with_extension)];
        if let Some(found) = places.iter().find(|p| kind(p).is_some()) {
            return Ok(found.clone());
        }
        looked.push(folder);
    }
    if name == SHIPPED_NAME {
        return shipped();
    }
    if model.exists() {
        // No model, but what there is of that name: opening it says what is missing.
        return Ok(model.to_owned());
    }
    bail!("{}", not_found(model, &looked))
}

fn not_found(model: &Path, looked: &[PathBuf]) -> String {
    let mut places = vec!["this folder".to_owned()];
    places.extend(looked.iter().map(|p| p.display().to_string()));
    format!(
        "there is no model {:?} (looked in {}); give a path, or a name that `spinetail list` shows: MODEL comes before \
         what is said to it",
        model.display().to_string(),
        places.join(", ")
    )
}

/// The models in `folders`, by name, and the shipped one.
pub(crate) fn entries(folders: &[PathBuf]) -> std::io::Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::new();
    for folder in folders {
        let listing = match std::fs::read_dir(folder) {
            Ok(listing) => listing,
            // A folder that is yet to be made holds no models.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => {
                crate::output::note(&format!("{} is no folder and is left out\n", folder.display()));
                continue;
            }
            Err(e) => {
                return Err(std::io::Error::new(e.kind(), format!("cannot read {}: {e}", folder.display())));
            }
        };
        let mut found = Vec::new();
        for entry in listing {
            let path = entry?.path();
            let Some(kind) = kind(&path) else { continue };
            let is_container = path.extension() == Some(OsStr::new(EXTENSION));
            let name = if is_container { path.file_stem() } else { path.file_name() };
            found.push(Entry { name: name.unwrap_or_default().to_owned(), path, kind });
        }
        found.sort_by(|a, b| (&a.name, &a.path).cmp(&(&b.name, &b.path)));
        // The first folder that has a name wins, as when it is looked up.
        for entry in found {
            if !entries.iter().any(|e| e.name == entry.name) {
                entries.push(entry);
            }
        }
    }
    if let Ok(path) = shipped()
        && !entries.iter().any(|e| e.name == SHIPPED_NAME)
    {
        entries.push(Entry { name: SHIPPED_NAME.into(), path, kind: Kind::Container });
    }
    Ok(entries)
}

/// What the folder at `path` is, by the files in it.
fn kind(path: &Path) -> Option<Kind> {
    if path.join("manifest.json").is_file() {
        Some(Kind::Container)
    } else if path.join("config.json").is_file() {
        Some(Kind::Checkpoint)
    } else {
        None
    }
}

/// The name, if `model` is one and no path.
fn bare_name(model: &Path) -> Option<&OsStr> {
    let mut components = model.components();
    match (components.next(), components.next()) {
        // "pip/" has one component, too, but says that it is a folder.
        (Some(Component::Normal(name)), None) if name == model.as_os_str() => Some(name),
        _ => None,
    }
}

fn shipped() -> anyhow::Result<PathBuf> {
    let places = shipped_places();
    if let Some(found) = places.iter().find(|p| kind(p).is_some()) {
        return Ok(found.canonicalize().unwrap_or_else(|_| found.clone()));
    }
    let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
    bail!(
        "the shipped model pip is not beside the program (looked for {}); unpack the whole release archive, or run \
         from a clone",
        places.join(", ")
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
    places.extend(SOURCES.map(|folder| Path::new(folder).join("../..").join(SHIPPED)));
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_no_separator() {
        assert_eq!(bare_name(Path::new("pip")), Some(OsStr::new("pip")));
        assert_eq!(bare_name(Path::new("Qwen3.6-35B.qpack")), Some(OsStr::new("Qwen3.6-35B.qpack")));
        for path in ["./pip", "pip/", "a/b", "/pip", "..", ".", ""] {
            assert_eq!(bare_name(Path::new(path)), None, "{path:?}");
        }
    }
}
