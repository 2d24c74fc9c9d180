//! Fetching a finished container: its files, as they are, into the unfinished folder, which then gets its name.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use spinetail_container::partial::{LOCK, Partial, available_bytes, parent, sync_folder};
use spinetail_container::{Container, ContainerError, Kind, pwrite_all, v1::V1, verify};

use crate::client::{Client, Fault, StopFlag};
use crate::error::HubError;
use crate::journal::{JOURNAL, Journal};
use crate::listing::{Listing, Wanted, is_safe_path};
use crate::progress::{Event, Listener, Progress, Rate, Stage};
use crate::running::Running;
use crate::transfer::{Done, Job, Pace, Rehashed, Sink, Transfer};

/// Files that are written under their own names.
struct Files {
    paths: Vec<PathBuf>,
    open: Vec<Mutex<Option<Arc<File>>>>,
}

impl Files {
    fn file(&self, i: usize) -> Result<Arc<File>, HubError> {
        let mut slot = self.open[i].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*slot {
            return Ok(Arc::clone(file));
        }
        let path = &self.paths[i];
        let folder = parent(path);
        std::fs::create_dir_all(folder).map_err(|e| HubError::io("create", folder, e))?;
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = Arc::new(options.map_err(|e| HubError::io("open", path, e))?);
        *slot = Some(Arc::clone(&file));
        Ok(file)
    }
}

impl Sink for Files {
    fn unit_bytes(&self, _: usize) -> usize {
        1
    }

    fn write(&self, i: usize, offset: u64, bytes: &[u8]) -> Result<usize, HubError> {
        pwrite_all(&*self.file(i)?, &self.paths[i], offset, bytes)?;
        Ok(bytes.len())
    }

    fn sync(&self, i: usize) -> Result<(), HubError> {
        self.file(i)?.sync_data().map_err(|e| HubError::io("make durable", &self.paths[i], e))
    }

    fn rehash(&self, i: usize, bytes: u64) -> Result<Option<Rehashed>, HubError> {
        let path = &self.paths[i];
        let Ok(file) = File::open(path) else { return Ok(None) };
        let (mut hash, mut left) = (Running::default(), file.take(bytes));
        let mut buffer = vec![0; 1 << 20];
        loop {
            match left.read(&mut buffer).map_err(|e| HubError::io("read", path, e))? {
                0 => break,
                n => hash.update(&buffer[..n]),
            }
        }
        Ok((left.limit() == 0).then_some(Rehashed::Hash(hash)))
    }

    fn complete(&self, i: usize, bytes: u64) -> Result<(), HubError> {
        let file = self.file(i)?;
        // What another state of the source left behind the end goes.
        file.set_len(bytes)
            .and_then(|()| file.sync_all())
            .map_err(|e| HubError::io("end", &self.paths[i], e))?;
        *self.open[i].lock().unwrap_or_else(PoisonError::into_inner) = None;
        sync_folder(parent(&self.paths[i]))?;
        Ok(())
    }
}

/// What came of it.
pub(crate) struct Fetched {
    pub(crate) bytes: u64,
    pub(crate) received: u64,
    pub(crate) files: usize,
    /// Files that nothing vouches for but their length.
    pub(crate) unverified: Vec<String>,
}

/// Fetches `wanted` into a container at `output`.
pub(crate) fn fetch(
    client: &Client,
    listing: &Listing,
    (kind, wanted): (Kind, Vec<Wanted>),
    output: &Path,
    pace: Pace,
    stop: &StopFlag,
    listener: Listener<'_>,
) -> Result<Fetched, Fault> {
    for w in &wanted {
        let name = w.file.path.as_str();
        if !is_safe_path(name) || [LOCK, JOURNAL].contains(&name) {
            let why = "it would not stay within its folder, or is a name that downloading uses";
            return Err(ContainerError::Name { name: name.to_owned(), why }.into());
        }
    }
    let partial = Partial::resume(output)?;
    let journal = if partial.path(JOURNAL).exists() && !is_repacking(&partial) {
        Journal::open(partial.folder())?
    } else {
        partial.clear()?;
        Journal::open(partial.folder())?
    };
    let jobs: Vec<Job> = in_order(wanted).into_iter().map(|w| job(listing, w)).collect();
    check_space(output, &jobs, &journal.1)?;
    let sink = Files {
        paths: jobs.iter().map(|j| partial.path(&j.file.path)).collect(),
        open: jobs.iter().map(|_| Mutex::new(None)).collect(),
    };
    let (done, received) = Transfer::new(client, &sink, &jobs, pace, stop, journal).run(listener)?;
    drop(sink);
    let mut fetched = Fetched { bytes: 0, received, files: 0, unverified: Vec::new() };
    for (job, done) in jobs.iter().zip(&done) {
        if let Done::Whole { bytes, .. } = done {
            fetched.bytes += bytes;
            fetched.files += 1;
            if job.file.sha256.is_none() {
                fetched.unverified.push(job.file.path.clone());
            }
        }
    }
    let kept: Vec<&str> = jobs
        .iter()
        .zip(&done)
        .filter(|(_, d)| **d != Done::Absent)
        .map(|(j, _)| j.file.path.as_str())
        .collect();
    sweep(partial.folder(), "", &kept)?;
    check(&partial, listing, kind, &mut fetched, listener)?;
    partial.publish(&[JOURNAL])?;
    Ok(fetched)
}

/// Whether the unfinished folder is one in which a checkpoint is being repacked.
fn is_repacking(partial: &Partial) -> bool {
    partial.path("writing.plan").exists()
}

/// Large files first, so that connections are busy to the end.
fn in_order(mut wanted: Vec<Wanted>) -> Vec<Wanted> {
    wanted.sort_by_key(|w| std::cmp::Reverse(w.file.bytes.unwrap_or(0)));
    wanted
}

fn job(listing: &Listing, w: Wanted) -> Job {
    let of = match &w.file.sha256 {
        Some(hash) => format!("sha256:{hash}"),
        None => format!("commit:{}", listing.commit.as_deref().unwrap_or("none")),
    };
    let identity = format!("{of}:{}", w.file.bytes.map_or("unknown".to_owned(), |n| n.to_string()));
    Job { identity, commit: listing.commit.clone(), optional: w.optional, file: w.file }
}

fn check_space(
    output: &Path,
    jobs: &[Job],
    entries: &std::collections::HashMap<String, crate::journal::Entry>,
) -> Result<(), HubError> {
    let there = |j: &Job| entries.get(&j.file.path).map_or(0, |e| e.offset);
    let needed: u64 = jobs.iter().map(|j| j.file.bytes.unwrap_or(0).saturating_sub(there(j))).sum();
    match available_bytes(parent(output)) {
        Some(available) if available < needed => {
            Err(ContainerError::NoSpace { path: output.to_owned(), needed, available }.into())
        }
        _ => Ok(()),
    }
}

/// Removes what an earlier state of the source left.
fn sweep(folder: &Path, prefix: &str, kept: &[&str]) -> Result<(), HubError> {
    let io = |e| HubError::io("clear", folder, e);
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type().map_err(io)?.is_dir() {
            let inner = format!("{name}/");
            if kept.iter().any(|k| k.starts_with(&inner)) {
                sweep(&entry.path(), &inner, kept)?;
            } else {
                std::fs::remove_dir_all(entry.path()).map_err(io)?;
            }
        } else if !kept.contains(&name.as_str()) && ![LOCK, JOURNAL].contains(&name.as_str()) {
            std::fs::remove_file(entry.path()).map_err(io)?;
        }
    }
    Ok(())
}

/// Opens the container as its users will. Where no hash of the source vouches for a file, a container's own checksums
/// do, if it has any.
fn check(
    partial: &Partial,
    listing: &Listing,
    kind: Kind,
    fetched: &mut Fetched,
    listener: Listener<'_>,
) -> Result<(), Fault> {
    let folder = partial.folder();
    let opened = match kind {
        Kind::V2 => Container::open(folder).map(drop),
        _ => V1::open(folder).map(drop),
    };
    if let Err(e) = opened {
        // What does not open will not open the next time either.
        partial.clear()?;
        return Err(e.into());
    }
    if kind != Kind::V2 || fetched.unverified.is_empty() {
        return Ok(());
    }
    let mut rate = Rate::new();
    let report = verify(folder, &mut |p| {
        let per_second = rate.at(p.done_bytes);
        let left = p.total_bytes.saturating_sub(p.done_bytes) as f64;
        listener(Event::Progress(Progress {
            stage: Stage::Verifying,
            done_bytes: p.done_bytes,
            total_bytes: p.total_bytes,
            bytes_per_second: per_second,
            seconds_left: (per_second > 0.0).then(|| left / per_second),
            file: p.what,
        }))
    });
    match report {
        Err(ContainerError::Interrupted { .. }) => Err(HubError::Cancelled.into()),
        Err(e) => Err(e.into()),
        Ok(report) => match report.damage.first() {
            Some(first) => {
                partial.clear()?;
                let (first, count) = (first.to_string(), report.damage.len());
                Err(HubError::Damaged { source_name: listing.name.clone(), first, count }.into())
            }
            None => {
                fetched.unverified.clear();
                Ok(())
            }
        },
    }
}

/// Whether `folder` holds `wanted` already: all of it by length, and small files by hash where one is known.
pub(crate) fn is_there(folder: &Path, wanted: &[Wanted]) -> bool {
    const HASHED_BYTES: u64 = 64 << 20;
    wanted.iter().all(|w| {
        let path = folder.join(&w.file.path);
        let Ok(metadata) = std::fs::metadata(&path) else { return w.optional };
        let same_length = w.file.bytes.is_none_or(|n| n == metadata.len());
        same_length
            && match &w.file.sha256 {
                Some(expected) if metadata.len() <= HASHED_BYTES => std::fs::read(&path).is_ok_and(|bytes| {
                    let mut hash = Running::default();
                    hash.update(&bytes);
                    hash.digest() == *expected
                }),
                _ => true,
            }
    })
}
