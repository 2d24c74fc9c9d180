//! Checks every byte of a container against what it recorded about itself, and lists all that is damaged.
//!
//! Damage is a finding, not an error: an error means that nothing could be checked. Version 1 has no checksums of its
//! own; what could not be checked is listed too.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use spinetail_core::{ExpertId, Limits, ReadError};
use xxhash_rust::xxh3::Xxh3;

use crate::error::from_json;
use crate::files::{check_relative, hex, pread_exact, read_small_file, regular_size};
use crate::manifest::MANIFEST_BYTES;
use crate::reader::{check_manifest_hash, check_size, read_checksums};
use crate::v1::V1;
use crate::{Checksums, ContainerError, Kind, Manifest};

const CHUNK_BYTES: usize = 4 << 20;

/// How far verifying has come.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// Bytes checked.
    pub done_bytes: u64,
    /// Bytes to check.
    pub total_bytes: u64,
    /// The file being checked, relative to the container.
    pub what: &'a str,
}

/// One thing that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file, relative to the container.
    pub file: String,
    /// Which record, tensor or property of it.
    pub what: String,
    /// What was recorded.
    pub expected: String,
    /// What is there.
    pub found: String,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}: expected {}, found {}", self.file, self.what, self.expected, self.found)
    }
}

/// The outcome.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Which container it is.
    pub kind: Kind,
    /// Bytes compared with a checksum.
    pub checked_bytes: u64,
    /// Records, parts and files compared with a checksum.
    pub checked_items: u64,
    /// All that is damaged, in the order in which it was found.
    pub damage: Vec<Damage>,
    /// What could not be checked, and why.
    pub unchecked: Vec<String>,
}

impl VerifyReport {
    /// Whether nothing that was checked is damaged.
    pub fn is_intact(&self) -> bool {
        self.damage.is_empty()
    }
}

/// Checks the container in folder `path`.
///
/// `progress` is called every few megabytes; when it breaks, the result is [`ContainerError::Interrupted`].
pub fn verify(
    path: &Path,
    progress: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
) -> Result<VerifyReport, ContainerError> {
    let kind = crate::detect(path)?.ok_or_else(|| ContainerError::NotAContainer { path: path.to_owned() })?;
    let report =
        VerifyReport { kind, checked_bytes: 0, checked_items: 0, damage: Vec::new(), unchecked: Vec::new() };
    let mut v = Verifier { root: path, report, total_bytes: 0, progress, buffer: vec![0; CHUNK_BYTES] };
    match kind {
        Kind::V2 => v.version_2()?,
        Kind::V1 => v.version_1()?,
    }
    Ok(v.report)
}

struct Verifier<'a> {
    root: &'a Path,
    report: VerifyReport,
    total_bytes: u64,
    progress: &'a mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
    buffer: Vec<u8>,
}

/// A file that can be read, though it may be shorter than it should be.
struct Open {
    name: String,
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Verifier<'_> {
    fn damaged(&mut self, file: &str, what: &str, expected: impl Into<String>, found: impl Into<String>) {
        let (file, what) = (file.to_owned(), what.to_owned());
        self.report.damage.push(Damage { file, what, expected: expected.into(), found: found.into() });
    }

    /// Notes an error that is about the container's contents.
    fn failed(&mut self, file: &str, error: &ContainerError) {
        match error {
            ContainerError::Invalid { field, expected, found, .. } => {
                self.damaged(file, field, expected, found);
            }
            ContainerError::Io { error, .. } => {
                self.damaged(file, "file", "one that can be read", error.to_string());
            }
            other => self.damaged(file, "contents", "what was written", other.to_string()),
        }
    }

    /// Opens a file that should have `bytes` bytes; notes what is wrong with it, and gives it back if it can be read.
    fn open(&mut self, name: &str, bytes: u64) -> Option<Open> {
        if let Err(e) = check_size(self.root, name, bytes) {
            self.failed(name, &e);
        }
        let found = regular_size(self.root, name).ok()?;
        let path = self.root.join(name);
        match File::open(&path) {
            Ok(file) => Some(Open { name: name.to_owned(), path, file, bytes: found }),
            Err(e) => {
                self.failed(name, &ContainerError::io("open", &path, e));
                None
            }
        }
    }

    fn tick(&mut self, what: &str, bytes: u64) -> Result<(), ContainerError> {
        self.report.checked_bytes += bytes;
        let done_bytes = self.report.checked_bytes;
        match (self.progress)(Progress { done_bytes, total_bytes: self.total_bytes, what }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ContainerError::Interrupted { path: self.root.to_owned() }),
        }
    }

    /// Hands the bytes of a range to `sink`, a few megabytes at a time.
    fn stream(
        &mut self,
        open: &Open,
        start: u64,
        bytes: u64,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<Result<(), ReadError>, ContainerError> {
        let mut done = 0;
        while done < bytes {
            let n = (bytes - done).min(CHUNK_BYTES as u64) as usize;
            if let Err(e) = pread_exact(&open.file, &open.path, start + done, &mut self.buffer[..n]) {
                return Ok(Err(e));
            }
            sink(&self.buffer[..n]);
            done += n as u64;
            self.tick(&open.name, n as u64)?;
        }
        Ok(Ok(()))
    }

    /// Compares a range with its xxh3-64. A range that a short file does not reach is covered by the file's size.
    fn range(
        &mut self,
        open: &Open,
        start: u64,
        bytes: u64,
        expected: u64,
        what: &dyn Fn() -> String,
    ) -> Result<(), ContainerError> {
        if start >= open.bytes {
            return Ok(());
        }
        let mut hash = Xxh3::new();
        let read = self.stream(open, start, bytes, &mut |b| hash.update(b))?;
        self.report.checked_items += 1;
        match (read, hash.digest()) {
            (Ok(()), found) if found == expected => {}
            (Ok(()), found) => {
                self.damaged(&open.name, &what(), format!("xxh3 {expected:016x}"), format!("{found:016x}"));
            }
            (Err(ReadError::Short { found, .. }), _) => {
                self.damaged(&open.name, &what(), format!("{bytes} bytes"), found.to_string());
            }
            (Err(e), _) => self.damaged(&open.name, &what(), "bytes that can be read", e.to_string()),
        }
        Ok(())
    }

    /// Compares a whole file with its SHA-256.
    fn whole(&mut self, open: &Open, expected: &str) -> Result<(), ContainerError> {
        let mut hash = Sha256::new();
        let read = self.stream(open, 0, open.bytes, &mut |b| hash.update(b))?;
        self.report.checked_items += 1;
        let found = hex(&hash.finalize());
        match read {
            Ok(()) if found == expected => {}
            Ok(()) => self.damaged(&open.name, "contents", format!("SHA-256 {expected}"), found),
            Err(e) => self.damaged(&open.name, "contents", "bytes that can be read", e.to_string()),
        }
        Ok(())
    }

    fn version_2(&mut self) -> Result<(), ContainerError> {
        let file = self.root.join(crate::manifest::FILE);
        let bytes = read_small_file(&file, MANIFEST_BYTES)?;
        let sums = read_checksums(self.root).map_err(|e| self.failed(crate::checksums::FILE, &e)).ok();
        if let Some(Err(e)) = sums.as_ref().map(|sums| check_manifest_hash(&file, &bytes, sums)) {
            self.failed(crate::manifest::FILE, &e);
        }
        if let Err(e) = regular_size(self.root, crate::manifest::FILE) {
            self.failed(crate::manifest::FILE, &e);
        }
        self.report.checked_items += 1;
        let manifest = match Manifest::parse(&file, &bytes) {
            Ok(manifest) => manifest,
            // Nothing else was found wrong: the manifest was written like this.
            Err(e) if self.report.is_intact() => return Err(e),
            Err(e) => {
                self.failed(crate::manifest::FILE, &e);
                self.report.unchecked.push("all that the manifest describes".to_owned());
                return Ok(());
            }
        };
        // checksums.bin has been checked already.
        let hashed = manifest.expected_sizes().into_iter().filter(|(name, _)| name != crate::checksums::FILE);
        self.total_bytes = hashed.map(|(_, bytes)| bytes).sum();
        let sums = sums.and_then(|sums| {
            let file = self.root.join(crate::checksums::FILE);
            let (parts, experts) = (manifest.dense_parts().len(), &manifest.experts);
            sums.check_counts(&file, parts, experts.layers.len(), experts.expert_count)
                .map_err(|e| self.failed(crate::checksums::FILE, &e))
                .ok()
                .map(|()| sums)
        });
        if sums.is_none() {
            let why = "dense tensors and records: checksums.bin cannot be used";
            self.report.unchecked.push(why.to_owned());
        }
        self.dense(&manifest, sums.as_ref())?;
        self.records(&manifest, sums.as_ref())?;
        for entry in &manifest.files {
            if let Some(open) = self.open(&entry.path, entry.bytes) {
                self.whole(&open, &entry.sha256)?;
            }
        }
        let known: Vec<String> = manifest.expected_sizes().into_iter().map(|s| s.0).collect();
        self.strangers(&known);
        Ok(())
    }

    fn dense(&mut self, manifest: &Manifest, sums: Option<&Checksums>) -> Result<(), ContainerError> {
        let (Some(open), Some(sums)) = (self.open(&manifest.dense.file, manifest.dense.bytes), sums) else {
            return Ok(());
        };
        for (p, &sum) in manifest.dense_parts().iter().zip(&sums.dense) {
            let what = || format!("{} of {}", p.part.suffix(), manifest.dense.tensors[p.tensor].name);
            self.range(&open, p.offset, p.end - p.offset, sum, &what)?;
        }
        Ok(())
    }

    fn records(&mut self, manifest: &Manifest, sums: Option<&Checksums>) -> Result<(), ContainerError> {
        let count = manifest.experts.expert_count;
        for layer in &manifest.experts.layers {
            let open = self.open(&layer.file, layer.stride_bytes * count as u64);
            let (Some(open), Some(sums)) = (open, sums) else { continue };
            for expert in 0..count {
                let id = ExpertId { layer: layer.layer as u16, expert: expert as u16 };
                let Some(sum) = sums.record(id) else { continue };
                let start = expert as u64 * layer.stride_bytes;
                self.range(&open, start, layer.stride_bytes, sum, &|| id.to_string())?;
            }
        }
        Ok(())
    }

    /// Lists files that nothing vouches for.
    fn strangers(&mut self, known: &[String]) {
        for folder in ["", crate::layout::EXPERTS_FOLDER] {
            let Ok(entries) = std::fs::read_dir(self.root.join(folder)) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let name = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                let ours = [crate::manifest::FILE, crate::layout::EXPERTS_FOLDER].contains(&name.as_str());
                if !ours && !known.contains(&name) {
                    self.report.unchecked.push(format!("{name}: not part of the container"));
                }
            }
        }
    }

    fn version_1(&mut self) -> Result<(), ContainerError> {
        let (manifest, layout) = V1::read_description(self.root)?;
        let mut sizes: BTreeMap<String, Option<u64>> =
            manifest.files.iter().map(|(name, &bytes)| (name.clone(), Some(bytes))).collect();
        for name in crate::v1::REQUIRED {
            sizes.entry(name.to_owned()).or_default();
        }
        for layer in 0..layout.layer_count {
            let (name, bytes) = (crate::v1::layer_file(layer), layout.layer_bytes());
            if let Some(&Some(listed)) = sizes.get(&name).filter(|&&b| b.is_some_and(|b| b != bytes)) {
                self.damaged(&name, "size in manifest.json", format!("{bytes} bytes"), listed.to_string());
            }
            sizes.insert(name, Some(bytes));
        }
        for (name, &bytes) in &sizes {
            match std::fs::metadata(self.root.join(name)) {
                Err(e) => self.damaged(name, "file", "one that can be read", e.to_string()),
                Ok(m) if bytes.is_some_and(|b| b != m.len()) => {
                    let expected = format!("{} bytes", bytes.unwrap_or_default());
                    self.damaged(name, "size", expected, m.len().to_string());
                }
                Ok(_) => {}
            }
        }
        let hashes = self.version_1_hashes()?;
        self.total_bytes = hashes
            .keys()
            .filter_map(|name| std::fs::metadata(self.root.join(name)).ok())
            .map(|m| m.len())
            .sum();
        for (name, expected) in &hashes {
            let path = self.root.join(name);
            let opened = File::open(&path).and_then(|f| f.metadata().map(|m| (f, m.len())));
            match opened {
                Ok((file, bytes)) => {
                    self.whole(&Open { name: name.clone(), path, file, bytes }, expected)?;
                }
                Err(e) => self.damaged(name, "file", "one that can be read", e.to_string()),
            }
        }
        let unchecked = sizes.keys().filter(|name| !hashes.contains_key(*name));
        let why = "size only: version 1 has no checksums of its own, and hashes.json does not list it";
        self.report.unchecked.extend(unchecked.map(|name| format!("{name}: {why}")));
        Ok(())
    }

    /// The hashes that may lie beside a mirror's files.
    fn version_1_hashes(&mut self) -> Result<BTreeMap<String, String>, ContainerError> {
        #[derive(serde::Deserialize)]
        struct Hashes {
            files: BTreeMap<String, String>,
        }
        let file = self.root.join("hashes.json");
        if !file.exists() {
            return Ok(BTreeMap::new());
        }
        let bytes = read_small_file(&file, Limits::JSON_BYTES)?;
        let hashes: Hashes = from_json(&file, &bytes)?;
        for (name, hash) in &hashes.files {
            check_relative(name)?;
            if !crate::files::is_sha256(&hash.to_ascii_lowercase()) {
                let (expected, found) = ("64 hexadecimal digits", format!("{hash:?}"));
                return Err(ContainerError::invalid(&file, format!("files.{name}"), expected, found));
            }
        }
        let lower = |(name, hash): (String, String)| (name, hash.to_ascii_lowercase());
        Ok(hashes.files.into_iter().map(lower).collect())
    }
}
