//! What a download has finished, kept beside the unfinished files: lines that are added only once the bytes they speak
//! of are durable.
//!
//! Each line carries a checksum; a line that a crash tore ends the journal. The last line of a file counts.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use spinetail_container::partial::sync_folder;
use spinetail_container::read_small_file;

use crate::error::HubError;
use crate::running::{Running, hex};

/// The journal's name, within the unfinished folder.
pub(crate) const JOURNAL: &str = "pull.journal";

const MAX_BYTES: u64 = 64 << 20;

/// How far a file has come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Path within the source.
    pub(crate) file: String,
    /// What tells this file from another of the same name.
    pub(crate) identity: String,
    /// Bytes that are in place.
    pub(crate) offset: u64,
    /// The server's tag for it, where nothing better identifies it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) etag: Option<String>,
    /// The hash of these bytes, to be gone on with.
    pub(crate) state: String,
    /// Whether this is all, checked.
    #[serde(default)]
    pub(crate) done: bool,
}

/// An open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
}

fn line(entry: &Entry) -> String {
    let json = serde_json::to_string(entry).unwrap_or_default();
    format!("{} {json}\n", checksum(&json))
}

fn checksum(json: &str) -> String {
    hex(&Sha256::digest(json.as_bytes())[..8])
}

fn parse(line: &str) -> Option<Entry> {
    let (sum, json) = line.split_once(' ')?;
    if sum != checksum(json) {
        return None;
    }
    let entry: Entry = serde_json::from_str(json).ok()?;
    Running::load(&entry.state)?;
    Some(entry)
}

impl Journal {
    /// Opens the journal in `folder`, making one if there is none; what it says, by file.
    pub(crate) fn open(folder: &Path) -> Result<(Self, HashMap<String, Entry>), HubError> {
        let path = folder.join(JOURNAL);
        let bytes = if path.exists() { read_small_file(&path, MAX_BYTES)? } else { Vec::new() };
        let mut entries = HashMap::new();
        for line in bytes.split_inclusive(|&b| b == b'\n') {
            let text = line.strip_suffix(b"\n").and_then(|l| std::str::from_utf8(l).ok());
            let Some(entry) = text.and_then(parse) else { break };
            entries.insert(entry.file.clone(), entry);
        }
        // Anew, so that nothing is ever added behind a torn line; beside it first, so that no moment is without one.
        let io = |e| HubError::io("write", &path, e);
        let fresh = folder.join(format!("{JOURNAL}.new"));
        let mut file = File::create(&fresh).map_err(io)?;
        let text: String = entries.values().map(line).collect();
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io)?;
        drop(file);
        std::fs::rename(&fresh, &path).map_err(io)?;
        sync_folder(folder)?;
        let file = OpenOptions::new().append(true).open(&path).map_err(io)?;
        Ok((Self { path, file }, entries))
    }

    /// Adds an entry and makes it durable. The bytes it speaks of must be durable already.
    pub(crate) fn add(&mut self, entry: &Entry) -> Result<(), HubError> {
        let written = self.file.write_all(line(entry).as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(|e| HubError::io("write", &self.path, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(file: &str, offset: u64) -> Entry {
        Entry {
            file: file.to_owned(),
            identity: "x".to_owned(),
            offset,
            etag: None,
            state: Running::default().save(),
            done: false,
        }
    }

    #[test]
    fn the_last_line_counts_and_a_torn_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(JOURNAL);
        let (mut journal, entries) = Journal::open(dir.path()).unwrap();
        assert!(entries.is_empty());
        for (file, offset) in [("a", 1), ("b", 2), ("a", 3)] {
            journal.add(&entry(file, offset)).unwrap();
        }
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        let last = whole.len() - line(&entry("a", 3)).len();
        let edges = [0, 1, last - 1, last, last + 1, whole.len() - 1, whole.len()];
        for cut in edges.into_iter().chain((0..whole.len()).step_by(59)) {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (mut journal, entries) = Journal::open(dir.path()).unwrap();
            let a = entries.get("a").map(|e| e.offset);
            assert_eq!(a == Some(3), cut == whole.len(), "{cut}");
            if cut >= last {
                assert!(a.is_some() && entries["b"].offset == 2);
            }
            // What is added behind a torn line is found.
            journal.add(&entry("c", 9)).unwrap();
            assert_eq!(Journal::open(dir.path()).unwrap().1["c"].offset, 9);
        }
        for at in (0..whole.len()).step_by(43) {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            std::fs::write(&path, &flipped).unwrap();
            let (_, entries) = Journal::open(dir.path()).unwrap();
            assert!(entries.values().all(|e| [("a", 1), ("b", 2), ("a", 3)].contains(&(&e.file, e.offset))));
        }
    }
}
