//! Which files make up a checkpoint, and which file's copy of a tensor counts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use spinetail_container::{pread_exact, read_small_file};
use spinetail_core::{Limits, ReadError};

use super::header::{self, Entry, HeaderError, SourceType};
use crate::error::CheckpointError;

pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The open files of a checkpoint, each with its length.
#[derive(Debug)]
pub(crate) struct Files(Vec<(PathBuf, File, u64)>);

impl Files {
    /// Reads `out.len()` bytes at `offset` of file `file`.
    pub(crate) fn read(&self, file: u32, offset: u64, out: &mut [u8]) -> Result<(), ReadError> {
        let (path, f, _) = &self.0[file as usize];
        pread_exact(f, path, offset, out)
    }

    /// Path and length of each.
    pub(crate) fn list(&self) -> impl Iterator<Item = (&Path, u64)> {
        self.0.iter().map(|(path, _, bytes)| (path.as_path(), *bytes))
    }
}

/// A tensor of a checkpoint and where it lies.
#[derive(Debug, Clone)]
pub(crate) struct SourceTensor {
    /// The name in the file.
    pub(crate) name: String,
    /// Index into [`Files`].
    pub(crate) file: u32,
    /// First byte, from the start of the file.
    pub(crate) offset: u64,
    /// Type of an element.
    pub(crate) dtype: SourceType,
    /// Dimensions, slowest first.
    pub(crate) shape: Vec<usize>,
}

/// `model.safetensors.index.json`.
#[derive(Deserialize)]
pub(crate) struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Opens the shards that lie in a folder, as the index says or, without an index, all `model*.safetensors`.
pub(crate) fn open_folder(folder: &Path) -> Result<(Files, Vec<SourceTensor>), CheckpointError> {
    let index = folder.join(INDEX);
    // A link that leads nowhere is a missing index, not the absence of one: opening it says so.
    if index.symlink_metadata().is_ok() {
        return open_indexed(folder, &index);
    }
    let names = unindexed(folder)?;
    let files: Vec<_> = names.iter().map(|n| folder.join(n)).collect();
    merge(&names, open_all(&files)?)
}

/// Opens one file.
pub(crate) fn open_single(path: &Path) -> Result<(Files, Vec<SourceTensor>), CheckpointError> {
    merge(&[path.display().to_string()], open_all(std::slice::from_ref(&path.to_owned()))?)
}

type Opened = (Files, Vec<HashMap<String, Entry>>);

fn source(name: String, file: usize, e: Entry) -> SourceTensor {
    SourceTensor { name, file: file as u32, offset: e.offset, dtype: e.dtype, shape: e.shape }
}

impl Index {
    /// Reads the bytes of the index; `path` is for messages.
    pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Self, CheckpointError> {
        let field = |expected: &str, found: String| CheckpointError::Field {
            path: path.to_owned(),
            field: "weight_map".to_owned(),
            expected: expected.to_owned(),
            found,
            fix: "get the index again".to_owned(),
        };
        let index: Self = serde_json::from_slice(bytes)
            .map_err(|e| field("an object from tensor names to file names", e.to_string()))?;
        let tensors = index.weight_map.len();
        if tensors == 0 || tensors > Limits::TENSORS {
            return Err(field(&format!("1 to {} tensors", Limits::TENSORS), tensors.to_string()));
        }
        let names = index.files();
        if names.len() > Limits::SHARDS {
            return Err(field(&format!("at most {} files", Limits::SHARDS), names.len().to_string()));
        }
        match names.iter().find(|n| !is_plain_name(n)) {
            Some(bad) => Err(field("names of files in the same folder", format!("{bad:?}"))),
            None => Ok(index),
        }
    }

    /// The files it names, sorted.
    pub(crate) fn files(&self) -> Vec<String> {
        self.weight_map.values().cloned().collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The tensors, each from the file that the index names. `headers` are those of [`Index::files`], in that order.
    pub(crate) fn assign(
        self,
        mut headers: Vec<HashMap<String, Entry>>,
    ) -> Result<Vec<SourceTensor>, CheckpointError> {
        let names = self.files();
        let mut out = Vec::with_capacity(self.weight_map.len());
        for (tensor, said) in self.weight_map {
            let file = names.binary_search(&said).unwrap_or_default();
            let Some(entry) = headers[file].remove(&tensor) else {
                let found = headers.iter().position(|h| h.contains_key(&tensor)).map(|i| names[i].clone());
                return Err(CheckpointError::IndexLies { tensor, said, found });
            };
            out.push(source(tensor, file, entry));
        }
        Ok(out)
    }
}

fn open_indexed(folder: &Path, path: &Path) -> Result<(Files, Vec<SourceTensor>), CheckpointError> {
    let index = Index::parse(path, &read_small_file(path, Limits::JSON_BYTES)?)?;
    let names = index.files();
    require(folder, INDEX, &names)?;
    let files: Vec<_> = names.iter().map(|n| folder.join(n)).collect();
    let (files, headers) = open_all(&files)?;
    Ok((files, index.assign(headers)?))
}

/// A name with no way out of the folder.
fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(std::path::Component::Normal(p)), None) if p == name)
        && !name.contains(['/', '\\', ':', '\0'])
}

/// Every file must be there before anything is read.
fn require(folder: &Path, listed_by: &str, names: &[String]) -> Result<(), CheckpointError> {
    require_all(folder, listed_by, names, |n| folder.join(n).is_file())
}

/// Refuses the first name that is not there.
pub(crate) fn require_all(
    folder: &Path,
    listed_by: &str,
    names: &[String],
    is_there: impl Fn(&str) -> bool,
) -> Result<(), CheckpointError> {
    match names.iter().find(|n| !is_there(n)) {
        None => Ok(()),
        Some(file) => Err(CheckpointError::MissingShard {
            folder: folder.to_owned(),
            listed_by: listed_by.to_owned(),
            file: file.clone(),
        }),
    }
}

/// The names of all `model*.safetensors`, sorted. A name such as `model-00001-of-00003.safetensors` calls for the
/// other two.
fn unindexed(folder: &Path) -> Result<Vec<String>, CheckpointError> {
    let io = |e| CheckpointError::io("list", folder, e);
    let mut names = Vec::new();
    for item in std::fs::read_dir(folder).map_err(io)? {
        names.extend(item.map_err(io)?.file_name().into_string());
    }
    without_index(folder, names, |n| folder.join(n).is_file())
}

/// As [`unindexed`], of a folder that holds `names`.
pub(crate) fn without_index(
    folder: &Path,
    mut names: Vec<String>,
    is_there: impl Fn(&str) -> bool,
) -> Result<Vec<String>, CheckpointError> {
    names.retain(|n| n.starts_with("model") && n.ends_with(".safetensors") && is_plain_name(n));
    names.sort();
    if names.is_empty() || names.len() > Limits::SHARDS {
        return Err(CheckpointError::NotAModel {
            path: folder.to_owned(),
            expected: "model.safetensors, or shards with model.safetensors.index.json",
            found: format!("{} files named model*.safetensors", names.len()),
        });
    }
    let mut expected = BTreeSet::new();
    for name in &names {
        if let Some((of, digits)) = shard_count(name) {
            for i in 1..=of.min(Limits::SHARDS) {
                expected.insert(format!("model-{i:0digits$}-of-{of:0digits$}.safetensors"));
            }
        }
    }
    require_all(folder, &names[0], &expected.into_iter().collect::<Vec<_>>(), is_there)?;
    Ok(names)
}

/// `(3, 5)` for `model-00001-of-00003.safetensors`.
fn shard_count(name: &str) -> Option<(usize, usize)> {
    let middle = name.strip_prefix("model-")?.strip_suffix(".safetensors")?;
    let (i, of) = middle.split_once("-of-")?;
    let digits = |s: &str| !s.is_empty() && s.len() <= 6 && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(i) || !digits(of) || i.len() != of.len() {
        return None;
    }
    Some((of.parse().ok()?, of.len()))
}

/// Opens the files and checks their headers.
fn open_all(paths: &[PathBuf]) -> Result<Opened, CheckpointError> {
    let mut files = Vec::with_capacity(paths.len());
    let mut headers = Vec::with_capacity(paths.len());
    let mut tensors = 0;
    for path in paths {
        // Opening a pipe would wait for a writer that never comes.
        let metadata = std::fs::metadata(path).map_err(|e| CheckpointError::io("look at", path, e))?;
        if !metadata.is_file() {
            let error = std::io::Error::other("it is not a regular file");
            return Err(CheckpointError::io("open", path, error));
        }
        let file = File::open(path).map_err(|e| CheckpointError::io("open", path, e))?;
        let (header, bytes) = read_header(&file, path)?;
        tensors += header.len();
        if tensors > Limits::TENSORS {
            let reason = format!("expected at most {} tensors in all files", Limits::TENSORS);
            return Err(CheckpointError::Header { path: path.clone(), error: HeaderError::Json { reason } });
        }
        headers.push(header);
        files.push((path.clone(), file, bytes));
    }
    Ok((Files(files), headers))
}

fn read_header(file: &File, path: &Path) -> Result<(HashMap<String, Entry>, u64), CheckpointError> {
    let file_bytes = file.metadata().map_err(|e| CheckpointError::io("inspect", path, e))?.len();
    let wrong = |error| CheckpointError::Header { path: path.to_owned(), error };
    if file_bytes < header::LENGTH_BYTES {
        return Err(wrong(HeaderError::Truncated { expected: 0, file_bytes }));
    }
    let mut first = [0; 8];
    pread_exact(file, path, 0, &mut first)?;
    let n = header::header_bytes(first, file_bytes).map_err(wrong)?;
    let mut json = vec![0; n as usize];
    pread_exact(file, path, header::LENGTH_BYTES, &mut json)?;
    Ok((header::parse_header(&json, file_bytes).map_err(wrong)?, file_bytes))
}

/// All tensors of all files; a name may occur once.
fn merge(names: &[String], opened: Opened) -> Result<(Files, Vec<SourceTensor>), CheckpointError> {
    let (files, headers) = opened;
    Ok((files, merge_headers(names, headers)?))
}

/// As [`merge`], of headers alone.
pub(crate) fn merge_headers(
    names: &[String],
    headers: Vec<HashMap<String, Entry>>,
) -> Result<Vec<SourceTensor>, CheckpointError> {
    let mut seen: HashMap<String, SourceTensor> = HashMap::new();
    for (i, header) in headers.into_iter().enumerate() {
        for (tensor, entry) in header {
            if let Some(old) = seen.get(&tensor) {
                let (first, second) = (names[old.file as usize].clone(), names[i].clone());
                return Err(CheckpointError::TwoCopies { tensor, first, second });
            }
            seen.insert(tensor.clone(), source(tensor, i, entry));
        }
    }
    Ok(seen.into_values().collect())
}
