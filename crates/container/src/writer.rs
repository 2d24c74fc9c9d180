//! Writes a version 2 container: plan, parts and records in, a folder with every byte checksummed out.
//!
//! Everything goes to `<output>.partial`; the final name appears in one step when all is there and durable. It must not
//! know how the bytes were made.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use spinetail_core::{ExpertId, Limits, Part};
use xxhash_rust::xxh3::Xxh3;

use crate::files::{hex, pwrite_all, sha256};
use crate::layout::{DENSE_FILE, DensePart, EXPERTS_FOLDER, Plan};
use crate::manifest::{FileEntry, Manifest};
use crate::partial::{Partial, available_bytes, parent, sync_folder};
use crate::validate::{MAX_FILES, check_file_name};
use crate::{Checksums, ContainerError};

static ZEROS: [u8; 16384] = [0; 16384];

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The container.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Bytes of dense tensors, padding included: what stays in memory.
    pub dense_bytes: u64,
    /// Expert records.
    pub records: u64,
}

/// A dense part under way.
enum PartState {
    /// Bytes so far, and their hash.
    Open(u64, Box<Xxh3>),
    Done(u64),
}

/// A layer's file under way.
#[derive(Default)]
struct LayerState {
    file: Option<File>,
    written: Vec<Option<u64>>,
    remaining: usize,
}

/// Writes one container. Dropped before [`Writer::finish`], it leaves nothing.
///
/// The unfinished container lies beside the output as `<output>.partial`, held by an advisory lock: a second writer of
/// the same output is refused while the first lives, and what a killed one left is removed by the next.
pub struct Writer {
    manifest: Manifest,
    parts: Vec<DensePart>,
    states: Vec<PartState>,
    /// Index of a tensor's first part.
    first_part: HashMap<String, usize>,
    dense: File,
    layers: Vec<LayerState>,
    /// Layers whose records are written; the others' files are links to theirs.
    distinct: usize,
    /// Last: open files are closed before an unfinished folder is removed.
    partial: Partial,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("output", &self.partial.output()).finish_non_exhaustive()
    }
}

pub(crate) fn create_file(path: &Path, bytes: u64) -> Result<File, ContainerError> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|e| ContainerError::io("create", path, e))?;
    // The padding is never written: a longer file reads as zeros there.
    file.set_len(bytes).map_err(|e| ContainerError::io("set the length of", path, e))?;
    Ok(file)
}

pub(crate) fn refused(
    what: impl Into<String>,
    expected: impl Into<String>,
    found: impl Into<String>,
) -> ContainerError {
    ContainerError::Write { what: what.into(), expected: expected.into(), found: found.into() }
}

fn hash_zeros(hash: &mut Xxh3, bytes: u64) {
    let mut left = bytes as usize;
    while left > 0 {
        let n = left.min(ZEROS.len());
        hash.update(&ZEROS[..n]);
        left -= n;
    }
}

impl Writer {
    /// Starts a container at `output`, which must not exist in any form, in a folder that does.
    ///
    /// The plan is checked as a reader would check the result, and the drive's free space against it.
    pub fn create(output: &Path, plan: Plan) -> Result<Self, ContainerError> {
        let layers = plan.experts.len();
        Self::create_sharing(output, plan, layers)
    }

    /// As [`Writer::create`], for a model whose layers repeat: only the records of the first `distinct` layers are
    /// written, and the file of each further layer is a hard link to one of theirs, in turn. For synthetic models that
    /// would not fit the drive otherwise.
    pub fn create_sharing(output: &Path, mut plan: Plan, distinct: usize) -> Result<Self, ContainerError> {
        let layers = plan.experts.len();
        if distinct > layers
            || (distinct == 0 && layers > 0)
            || (distinct < layers && plan.experts.iter().any(|l| *l != plan.experts[0]))
        {
            let found = format!("{distinct} distinct ones of {layers}");
            return Err(refused("layers", "layers of one layout, at least one of them distinct", found));
        }
        let shared = plan.experts.split_off(distinct);
        let needed = plan.total_bytes();
        plan.experts.extend(shared);
        let manifest = plan.manifest();
        manifest.validate(&output.join(crate::manifest::FILE))?;
        let partial = Partial::create(output)?;
        if let Some(available) = available_bytes(parent(output)).filter(|&a| a < needed) {
            return Err(ContainerError::NoSpace { path: output.to_owned(), needed, available });
        }
        let experts = partial.path(EXPERTS_FOLDER);
        std::fs::create_dir(&experts).map_err(|e| ContainerError::io("create", &experts, e))?;
        let dense = create_file(&partial.path(DENSE_FILE), manifest.dense.bytes)?;
        let parts = manifest.dense_parts();
        let mut first_part = HashMap::with_capacity(manifest.dense.tensors.len());
        for (i, p) in parts.iter().enumerate() {
            first_part.entry(manifest.dense.tensors[p.tensor].name.clone()).or_insert(i);
        }
        let count = manifest.experts.expert_count;
        let layer = |_| LayerState { file: None, written: vec![None; count], remaining: count };
        Ok(Self {
            states: parts.iter().map(|_| PartState::Open(0, Box::default())).collect(),
            layers: manifest.experts.layers.iter().map(layer).collect(),
            distinct,
            manifest,
            parts,
            first_part,
            dense,
            partial,
        })
    }

    /// Makes the files of the layers past the distinct ones, as links.
    fn link_layers(&mut self) -> Result<(), ContainerError> {
        for layer in self.distinct..self.layers.len() {
            let first = layer % self.distinct;
            if self.layers[first].remaining > 0 {
                continue; // what is missing is named when checksums are gathered
            }
            let [from, to] = [first, layer].map(|l| self.partial.path(&self.manifest.experts.layers[l].file));
            std::fs::hard_link(&from, &to).map_err(|e| ContainerError::io("link", &to, e))?;
            self.layers[layer].written = self.layers[first].written.clone();
        }
        Ok(())
    }

    /// Adds a small file as it is. Its name has to be plain; names the container uses itself are refused.
    pub fn add_file(&mut self, name: &str, bytes: &[u8]) -> Result<(), ContainerError> {
        let entry = small_file(&self.manifest, name, bytes)?;
        write_file(&self.partial.path(name), bytes)?;
        self.manifest.files.push(entry);
        Ok(())
    }

    /// Writes bytes of a part of a dense tensor. Pieces of one part come in order, without gaps; parts and tensors may
    /// be mixed in any way.
    pub fn write_dense(
        &mut self,
        name: &str,
        part: Part,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), ContainerError> {
        let what = || format!("{} of {name}", part.suffix());
        let found = self.first_part.get(name).and_then(|&first| {
            let same = |i: &usize| self.parts[*i].tensor == self.parts[first].tensor;
            (first..self.parts.len()).take_while(same).find(|&i| self.parts[i].part == part)
        });
        let Some(i) = found else {
            return Err(refused(what(), "a part of a tensor in the plan", "none of that name"));
        };
        let p = self.parts[i];
        let PartState::Open(written, hash) = &mut self.states[i] else {
            return Err(refused(what(), "each byte once", "more after its last byte"));
        };
        if offset != *written {
            return Err(refused(what(), format!("the bytes at {written}"), format!("those at {offset}")));
        }
        let end = *written + bytes.len() as u64;
        if end > p.bytes {
            return Err(refused(what(), format!("{} bytes", p.bytes), format!("at least {end}")));
        }
        pwrite_all(&self.dense, &self.partial.path(DENSE_FILE), p.offset + offset, bytes)?;
        hash.update(bytes);
        *written = end;
        if end == p.bytes {
            hash_zeros(hash, p.end - (p.offset + p.bytes));
            self.states[i] = PartState::Done(hash.digest());
        }
        Ok(())
    }

    /// Writes a record, exactly as long as its layout says. Records come in any order, each once.
    pub fn write_record(&mut self, id: ExpertId, record: &[u8]) -> Result<(), ContainerError> {
        let (index, expert) = (usize::from(id.layer), usize::from(id.expert));
        let count = self.manifest.experts.expert_count;
        let (Some(layer), Some(state)) =
            (self.manifest.experts.layers.get(index), self.layers.get_mut(index).filter(|_| expert < count))
        else {
            let expected = format!("{} layers of {count} experts", self.manifest.experts.layers.len());
            return Err(refused(id.to_string(), expected, "one more"));
        };
        if record.len() as u64 != layer.record.bytes {
            let expected = format!("{} bytes", layer.record.bytes);
            return Err(refused(id.to_string(), expected, record.len().to_string()));
        }
        if state.written[expert].is_some() {
            return Err(refused(id.to_string(), "each record once", "it again"));
        }
        let path = self.partial.path(&layer.file);
        let file = match state.file.take() {
            Some(file) => file,
            None => create_file(&path, layer.stride_bytes * count as u64)?,
        };
        pwrite_all(&file, &path, expert as u64 * layer.stride_bytes, record)?;
        let mut hash = Xxh3::new();
        hash.update(record);
        hash_zeros(&mut hash, layer.stride_bytes - layer.record.bytes);
        state.written[expert] = Some(hash.digest());
        state.remaining -= 1;
        if state.remaining == 0 {
            file.sync_all().map_err(|e| ContainerError::io("make durable", &path, e))?;
        } else {
            state.file = Some(file);
        }
        Ok(())
    }

    /// The checksums, or the name of the first part or record that is missing.
    fn checksums(&self, manifest_sha256: [u8; 32]) -> Result<Checksums, ContainerError> {
        let mut dense = Vec::with_capacity(self.parts.len());
        for (p, state) in self.parts.iter().zip(&self.states) {
            match state {
                PartState::Done(sum) => dense.push(*sum),
                PartState::Open(found, _) => {
                    let what =
                        format!("{} of {}", p.part.suffix(), self.manifest.dense.tensors[p.tensor].name);
                    return Err(ContainerError::Incomplete { what, expected: p.bytes, found: *found });
                }
            }
        }
        let mut records = Vec::new();
        for (layer, state) in self.manifest.experts.layers.iter().zip(&self.layers) {
            for (expert, sum) in state.written.iter().enumerate() {
                let Some(sum) = sum else {
                    let what = ExpertId { layer: layer.layer as u16, expert: expert as u16 }.to_string();
                    let expected = layer.record.bytes;
                    return Err(ContainerError::Incomplete { what, expected, found: 0 });
                };
                records.push(*sum);
            }
        }
        let (layers, experts) = (self.layers.len() as u32, self.manifest.experts.expert_count as u32);
        Ok(Checksums { manifest_sha256, dense, records, layers, experts })
    }

    /// Makes everything durable and gives the container its name; refuses, and leaves nothing, if a tensor or record
    /// is missing.
    pub fn finish(mut self) -> Result<Summary, ContainerError> {
        self.link_layers()?;
        let dense_path = self.partial.path(DENSE_FILE);
        let sums = self.checksums([0; 32])?;
        self.dense.sync_all().map_err(|e| ContainerError::io("make durable", &dense_path, e))?;
        let Self { partial, manifest, dense, layers, .. } = self;
        drop((dense, layers));
        seal(partial, &manifest, sums, &[])
    }
}

/// The entry of one more small file.
pub(crate) fn small_file(manifest: &Manifest, name: &str, bytes: &[u8]) -> Result<FileEntry, ContainerError> {
    check_file_name(name)?;
    let files = &manifest.files;
    if files.iter().any(|f| f.path.eq_ignore_ascii_case(name)) {
        return Err(refused(format!("file {name}"), "each name once, in any case", "it again"));
    }
    if files.len() == MAX_FILES || bytes.len() as u64 > Limits::JSON_BYTES {
        let expected = format!("at most {MAX_FILES} files of {} bytes", Limits::JSON_BYTES);
        let found = format!("file {} of {} bytes", files.len() + 1, bytes.len());
        return Err(refused(format!("file {name}"), expected, found));
    }
    Ok(FileEntry { path: name.to_owned(), bytes: bytes.len() as u64, sha256: hex(&sha256(bytes)) })
}

/// Writes manifest and checksums beside data that is durable already, and publishes.
pub(crate) fn seal(
    partial: Partial,
    manifest: &Manifest,
    mut sums: Checksums,
    scaffold: &[&str],
) -> Result<Summary, ContainerError> {
    let path = partial.path(crate::manifest::FILE);
    let text = manifest.to_text(&path)?.into_bytes();
    // What cannot be read back as it is must not be left for a reader to find.
    if Manifest::parse(&path, &text)? != *manifest {
        return Err(refused("manifest.json", "what was planned", "something else when read back"));
    }
    sums.manifest_sha256 = sha256(&text);
    write_file(&partial.path(crate::checksums::FILE), &sums.encode())?;
    write_file(&path, &text)?;
    sync_folder(&partial.path(EXPERTS_FOLDER))?;
    let summary = Summary {
        path: partial.output().to_owned(),
        bytes: manifest.total_bytes() + text.len() as u64,
        dense_bytes: manifest.dense.bytes,
        records: sums.records.len() as u64,
    };
    partial.publish(scaffold)?;
    Ok(summary)
}

/// Writes a new file, durably.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), ContainerError> {
    let file = create_file(path, 0)?;
    pwrite_all(&file, path, 0, bytes)?;
    file.sync_all().map_err(|e| ContainerError::io("make durable", path, e))
}
