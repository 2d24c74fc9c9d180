//! The folder in which models lie: what there is, and taking one away. Nothing here follows a link or looks at weights.

use std::path::{Path, PathBuf};

use spinetail_container::partial::LOCK;
use spinetail_container::{ContainerError, Kind, detect};

use crate::error::HubError;
use crate::pull::folder_bytes;

/// The ending of an unfinished download.
const PARTIAL: &str = ".partial";

/// The ending of what is being removed.
const REMOVING: &str = ".removing";

/// What a folder holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelKind {
    /// A container of version 2.
    Container,
    /// A container of version 1.
    ContainerV1,
    /// A folder with `config.json` and safetensors files.
    Checkpoint,
    /// An unfinished download or repack.
    Unfinished,
}

/// A model, or the beginnings of one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelEntry {
    /// Its name: that of the folder, without the ending of an unfinished one.
    pub name: String,
    /// The folder.
    pub path: PathBuf,
    /// What it holds.
    pub kind: ModelKind,
    /// Bytes of its files, as long as they will be.
    pub bytes: u64,
}

impl ModelEntry {
    /// Whether it can be used.
    pub fn is_complete(&self) -> bool {
        self.kind != ModelKind::Unfinished
    }
}

/// The models that lie directly in `folder`, by name. A folder that does not exist has none; whatever else lies there is
/// left out.
pub fn list_models(folder: &Path) -> Result<Vec<ModelEntry>, HubError> {
    let entries = match std::fs::read_dir(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|e| HubError::io("list", folder, e))?,
    };
    let mut models = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| HubError::io("list", folder, e))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = entry.path();
        if let Some(kind) = recognise(&path) {
            let stem = if kind == ModelKind::Unfinished { name.strip_suffix(PARTIAL) } else { None };
            let name = stem.unwrap_or(&name).to_owned();
            models.push(ModelEntry { name, bytes: folder_bytes(&path), path, kind });
        }
    }
    models.sort_by(|a, b| (&a.name, &a.path).cmp(&(&b.name, &b.path)));
    Ok(models)
}

/// What `path` is, if it is one of ours. A link to a model is not.
fn recognise(path: &Path) -> Option<ModelKind> {
    let is_file = |name: &str| std::fs::symlink_metadata(path.join(name)).is_ok_and(|m| !m.is_dir());
    if !std::fs::symlink_metadata(path).ok()?.is_dir() {
        return None;
    }
    let name = path.file_name()?.to_str()?;
    if name.ends_with(PARTIAL) {
        return is_file(LOCK).then_some(ModelKind::Unfinished);
    }
    if name.ends_with(REMOVING) {
        return None;
    }
    match detect(path) {
        Ok(Some(Kind::V1)) => return Some(ModelKind::ContainerV1),
        Ok(Some(_)) => return Some(ModelKind::Container),
        // Ours, though this build cannot read it.
        Err(ContainerError::Version { .. } | ContainerError::Feature { .. }) => {
            return Some(ModelKind::Container);
        }
        // Ours by its name, and damaged: it must be possible to get rid of it.
        Err(_) if name.ends_with(".qpack") && is_file("manifest.json") => return Some(ModelKind::Container),
        _ => {}
    }
    let has_weights = || {
        let names = std::fs::read_dir(path).ok()?.flatten().filter_map(|e| e.file_name().into_string().ok());
        names.into_iter().find(|n| n.ends_with(".safetensors"))
    };
    (is_file("config.json") && has_weights().is_some()).then_some(ModelKind::Checkpoint)
}

/// Removes the model `name` of `folder`, and what is unfinished of it. Returns the bytes that were freed.
///
/// Only what [`list_models`] shows is removed, and never anything behind a link: the folder is renamed first, so that
/// nobody opens half a model, and links in it are removed themselves.
pub fn remove_model(folder: &Path, name: &str) -> Result<u64, HubError> {
    let refuse = |path: &Path, why: &str| HubError::NotRemoved { path: path.to_owned(), why: why.to_owned() };
    let plain = Path::new(name).components().count() == 1
        && Path::new(name).file_name().is_some_and(|n| n == name)
        && !name.contains(['\\', ':', '\0']);
    if !plain {
        return Err(refuse(
            Path::new(name),
            "it is a path; give the name of a model in the folder for models",
        ));
    }
    let all = list_models(folder)?;
    let found: Vec<&ModelEntry> =
        all.iter().filter(|m| m.name == name || m.path == folder.join(name)).collect();
    if found.is_empty() {
        let path = folder.join(name);
        let why = match std::fs::symlink_metadata(&path) {
            Err(_) => "there is no model of that name; the list of models has the names".to_owned(),
            Ok(m) if m.is_symlink() => "it is a link; remove it by hand".to_owned(),
            Ok(_) => "it is not a model that spinetail knows; remove it by hand".to_owned(),
        };
        return Err(HubError::NotRemoved { path, why });
    }
    let mut freed = 0;
    for model in found {
        // Held until it is gone: whoever is still downloading keeps what is theirs.
        let lock = match model.kind {
            ModelKind::Unfinished => Some(hold(folder, &model.name)?),
            _ => None,
        };
        let mut gone = model.path.clone().into_os_string();
        gone.push(REMOVING);
        let gone = PathBuf::from(gone);
        if std::fs::symlink_metadata(&gone).is_ok_and(|m| m.is_dir()) {
            // What a removal that was killed left.
            std::fs::remove_dir_all(&gone).map_err(|e| HubError::io("remove", &gone, e))?;
        }
        // Windows does not rename a folder in which a file is open.
        let lock = lock.filter(|_| !cfg!(windows));
        std::fs::rename(&model.path, &gone).map_err(|e| HubError::io("rename", &model.path, e))?;
        std::fs::remove_dir_all(&gone).map_err(|e| HubError::io("remove", &gone, e))?;
        drop(lock);
        freed += model.bytes;
    }
    Ok(freed)
}

/// The lock of an unfinished folder; an error if somebody is at work in it.
fn hold(folder: &Path, name: &str) -> Result<std::fs::File, HubError> {
    let path = folder.join(format!("{name}{PARTIAL}"));
    let lock = path.join(LOCK);
    let file =
        std::fs::OpenOptions::new().write(true).open(&lock).map_err(|e| HubError::io("open", &lock, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(ContainerError::Busy { path }.into()),
        Err(std::fs::TryLockError::Error(e)) => Err(HubError::io("lock", &lock, e)),
    }
}
