//! Writes a version 2 container in any order and across runs: every byte has its place from the start, and a run that
//! was killed is taken up by the next.
//!
//! The unfinished folder keeps the plan it was laid out by; another plan starts over. What has been written is the
//! caller's to remember: bytes may be written again, and checksums are made at the end from what is really there. It
//! must not know how the bytes were made.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use spinetail_core::{ExpertId, Part};
use xxhash_rust::xxh3::Xxh3;

use crate::files::{pread_exact, pwrite_all, read_small_file};
use crate::layout::{DENSE_FILE, DensePart, EXPERTS_FOLDER, Plan};
use crate::manifest::{MANIFEST_BYTES, Manifest, SourceIdentity};
use crate::partial::{LOCK, Partial, available_bytes, parent, sync_folder};
use crate::writer::{Summary, refused, seal, small_file, write_file};
use crate::{Checksums, ContainerError};

/// The file that holds the plan, within the unfinished folder.
pub(crate) const PLAN: &str = "writing.plan";

const READ_BYTES: u64 = 4 << 20;

/// What [`PlacedWriter::open`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// Nothing: every byte is still to be written.
    New,
    /// The same plan, with whatever an earlier run wrote.
    Resumed,
    /// Something laid out by another plan, which has been removed.
    Replaced,
}

/// A file with places for all its bytes.
struct Target {
    path: PathBuf,
    file: File,
    dirty: AtomicBool,
    syncing: Mutex<()>,
}

impl Target {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), ContainerError> {
        pwrite_all(&self.file, &self.path, offset, bytes)?;
        self.dirty.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns once all that was written before the call is durable, whoever wrote it and whoever makes it so.
    fn sync(&self) -> Result<(), ContainerError> {
        let _one = self.syncing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !self.dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        self.file.sync_data().map_err(|e| {
            self.dirty.store(true, Ordering::Release);
            ContainerError::io("make durable", &self.path, e)
        })
    }

    /// The checksum of `bytes` bytes at `offset`, as they are now.
    fn checksum(&self, offset: u64, bytes: u64, buffer: &mut Vec<u8>) -> Result<u64, ContainerError> {
        let (mut hash, mut done) = (Xxh3::new(), 0);
        while done < bytes {
            let n = (bytes - done).min(READ_BYTES);
            buffer.resize(n as usize, 0);
            pread_exact(&self.file, &self.path, offset + done, buffer)?;
            hash.update(buffer);
            done += n;
        }
        Ok(hash.digest())
    }
}

/// Writes one container, in pieces that come in any order, from any thread. Dropped before [`PlacedWriter::finish`], it
/// leaves the unfinished folder for the next run.
pub struct PlacedWriter {
    manifest: Manifest,
    parts: Vec<DensePart>,
    /// Index of a tensor's first part.
    first_part: HashMap<String, usize>,
    dense: Target,
    layers: Vec<Target>,
    /// Last: open files are closed before the folder is renamed.
    partial: Partial,
}

impl std::fmt::Debug for PlacedWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlacedWriter").field("output", &self.partial.output()).finish_non_exhaustive()
    }
}

/// The plan as text. Where the weights come from does not move them, so that is left out.
fn plan_text(manifest: &Manifest, path: &Path) -> Result<String, ContainerError> {
    Manifest { source: SourceIdentity::default(), ..manifest.clone() }.to_text(path)
}

/// The files that hold data, with their lengths.
fn data_files(manifest: &Manifest) -> Vec<(String, u64)> {
    let count = manifest.experts.expert_count as u64;
    let layers = manifest.experts.layers.iter().map(|l| (l.file.clone(), l.stride_bytes * count));
    std::iter::once((DENSE_FILE.to_owned(), manifest.dense.bytes)).chain(layers).collect()
}

/// Whether an earlier run laid out the same files.
fn is_laid_out(partial: &Partial, text: &str, files: &[(String, u64)]) -> bool {
    let plan = read_small_file(&partial.path(PLAN), MANIFEST_BYTES);
    let is = |name: &str, bytes: u64| {
        std::fs::symlink_metadata(partial.path(name)).is_ok_and(|m| m.is_file() && m.len() == bytes)
    };
    plan.is_ok_and(|p| p == text.as_bytes())
        && std::fs::symlink_metadata(partial.path(EXPERTS_FOLDER)).is_ok_and(|m| m.is_dir())
        && files.iter().all(|(name, bytes)| is(name, *bytes))
}

/// Bytes of the drive that a file takes already.
fn allocated(path: &Path) -> u64 {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        std::fs::symlink_metadata(path).map_or(0, |m| m.blocks() * 512)
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        0
    }
}

/// Removes whatever is neither data nor named in `keep`: small files come anew with every run.
fn sweep(partial: &Partial, keep: &[&str]) -> Result<(), ContainerError> {
    let folder = partial.folder();
    let io = |e| ContainerError::io("clear", folder, e);
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        let name = entry.file_name();
        let known = [LOCK, PLAN, DENSE_FILE, EXPERTS_FOLDER];
        if known.iter().chain(keep).any(|k| name == *k) || entry.file_type().map_err(io)?.is_dir() {
            continue;
        }
        std::fs::remove_file(entry.path()).map_err(io)?;
    }
    Ok(())
}

impl PlacedWriter {
    /// Lays out a container at `output`, which must not exist, or takes up what an earlier run of the same plan left.
    /// Files of the caller's own in the unfinished folder are named in `keep`.
    ///
    /// The plan is checked as a reader would check the result, and the drive's free space against what is missing.
    pub fn open(output: &Path, plan: Plan, keep: &[&str]) -> Result<(Self, Opened), ContainerError> {
        let needed = plan.total_bytes();
        let manifest = plan.manifest();
        manifest.validate(&output.join(crate::manifest::FILE))?;
        let partial = Partial::resume(output)?;
        let text = plan_text(&manifest, &partial.path(PLAN))?;
        let files = data_files(&manifest);
        let (opened, present) = if is_laid_out(&partial, &text, &files) {
            sweep(&partial, keep)?;
            (Opened::Resumed, files.iter().map(|(name, _)| allocated(&partial.path(name))).sum())
        } else {
            let empty = !partial.path(PLAN).exists();
            partial.clear()?;
            (if empty { Opened::New } else { Opened::Replaced }, 0)
        };
        let missing = needed.saturating_sub(present);
        if let Some(available) = available_bytes(parent(output)).filter(|&a| a < missing) {
            return Err(ContainerError::NoSpace { path: output.to_owned(), needed: missing, available });
        }
        if opened != Opened::Resumed {
            lay_out(&partial, &text, &files)?;
        }
        let target = |(name, _): &(String, u64)| {
            let path = partial.path(name);
            let file = OpenOptions::new().read(true).write(true).open(&path);
            let file = file.map_err(|e| ContainerError::io("open", &path, e))?;
            Ok(Target { path, file, dirty: AtomicBool::new(false), syncing: Mutex::new(()) })
        };
        let mut targets = files.iter().map(target).collect::<Result<Vec<_>, ContainerError>>()?;
        let dense = targets.remove(0);
        let parts = manifest.dense_parts();
        let mut first_part = HashMap::with_capacity(manifest.dense.tensors.len());
        for (i, p) in parts.iter().enumerate() {
            first_part.entry(manifest.dense.tensors[p.tensor].name.clone()).or_insert(i);
        }
        Ok((Self { manifest, parts, first_part, dense, layers: targets, partial }, opened))
    }

    /// The unfinished folder.
    pub fn folder(&self) -> &Path {
        self.partial.folder()
    }

    /// Says where the weights came from; may be called at any time before the end.
    pub fn set_source(&mut self, source: SourceIdentity) {
        self.manifest.source = source;
    }

    /// Adds a small file, as [`crate::Writer::add_file`] does.
    pub fn add_file(&mut self, name: &str, bytes: &[u8]) -> Result<(), ContainerError> {
        let entry = small_file(&self.manifest, name, bytes)?;
        write_file(&self.partial.path(name), bytes)?;
        self.manifest.files.push(entry);
        Ok(())
    }

    /// Writes bytes of a part of a dense tensor, at any offset within it.
    pub fn write_dense(
        &self,
        name: &str,
        part: Part,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), ContainerError> {
        let what = || format!("{} of {name}", part.suffix());
        let found = self.first_part.get(name).and_then(|&first| {
            let same = |p: &&DensePart| p.tensor == self.parts[first].tensor;
            self.parts[first..].iter().take_while(same).find(|p| p.part == part)
        });
        let Some(p) = found else {
            return Err(refused(what(), "a part of a tensor in the plan", "none of that name"));
        };
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > p.bytes) {
            let found = format!("{} at {offset}", bytes.len());
            return Err(refused(what(), format!("bytes within its {}", p.bytes), found));
        }
        self.dense.write(p.offset + offset, bytes)
    }

    /// Writes some bytes of a record, `offset` bytes from its start.
    pub fn write_record_part(&self, id: ExpertId, offset: u64, bytes: &[u8]) -> Result<(), ContainerError> {
        let (index, expert) = (usize::from(id.layer), usize::from(id.expert));
        let count = self.manifest.experts.expert_count;
        let (Some(layer), true) = (self.manifest.experts.layers.get(index), expert < count) else {
            let expected = format!("{} layers of {count} experts", self.manifest.experts.layers.len());
            return Err(refused(id.to_string(), expected, "one more"));
        };
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > layer.record.bytes) {
            let (expected, found) =
                (format!("bytes within its {}", layer.record.bytes), format!("{} at {offset}", bytes.len()));
            return Err(refused(id.to_string(), expected, found));
        }
        self.layers[index].write(expert as u64 * layer.stride_bytes + offset, bytes)
    }

    /// Makes durable all that has been written so far.
    pub fn sync(&self) -> Result<(), ContainerError> {
        self.dense.sync()?;
        self.layers.iter().try_for_each(Target::sync)
    }

    /// Bytes that [`PlacedWriter::finish`] reads back.
    pub fn data_bytes(&self) -> u64 {
        data_files(&self.manifest).iter().map(|f| f.1).sum()
    }

    /// Reads everything back for its checksums and gives the container its name. That everything has been written is
    /// for the caller to know. Files named in `scaffold` are removed from the finished container.
    ///
    /// `progress` is told how many bytes have been read; returning false stops, and keeps the unfinished folder.
    pub fn finish(
        self,
        scaffold: &[&str],
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Summary, ContainerError> {
        self.sync()?;
        let (mut buffer, mut done) = (Vec::new(), 0);
        let mut report = |bytes: u64| {
            done += bytes;
            if progress(done) {
                return Ok(());
            }
            Err(ContainerError::Interrupted { path: self.partial.folder().to_owned() })
        };
        let mut dense = Vec::with_capacity(self.parts.len());
        for p in &self.parts {
            dense.push(self.dense.checksum(p.offset, p.end - p.offset, &mut buffer)?);
            report(p.end - p.offset)?;
        }
        let experts = self.manifest.experts.expert_count as u64;
        let mut records = Vec::new();
        for (layer, target) in self.manifest.experts.layers.iter().zip(&self.layers) {
            for expert in 0..experts {
                let stride = layer.stride_bytes;
                records.push(target.checksum(expert * stride, stride, &mut buffer)?);
                report(stride)?;
            }
        }
        let (layers, experts) = (self.layers.len() as u32, experts as u32);
        let sums = Checksums { manifest_sha256: [0; 32], dense, records, layers, experts };
        let Self { partial, manifest, dense, layers, .. } = self;
        drop((dense, layers));
        for name in [crate::manifest::FILE, crate::checksums::FILE] {
            // Left by a run that was killed in its last moments.
            let _ = std::fs::remove_file(partial.path(name));
        }
        seal(partial, &manifest, sums, &[scaffold, &[PLAN]].concat())
    }
}

/// Makes the files at full length; the plan comes last, so that it vouches for all of them.
fn lay_out(partial: &Partial, text: &str, files: &[(String, u64)]) -> Result<(), ContainerError> {
    let experts = partial.path(EXPERTS_FOLDER);
    std::fs::create_dir(&experts).map_err(|e| ContainerError::io("create", &experts, e))?;
    for (name, bytes) in files {
        let path = partial.path(name);
        let file = crate::writer::create_file(&path, *bytes)?;
        file.sync_all().map_err(|e| ContainerError::io("make durable", &path, e))?;
    }
    sync_folder(&experts)?;
    write_file(&partial.path(PLAN), text.as_bytes())?;
    sync_folder(partial.folder())
}
