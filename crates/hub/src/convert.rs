//! Fetching a checkpoint: its bytes go from the socket to their place in the container, and are not kept otherwise.

use std::io::Read;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use spinetail_checkpoint::stream::{self, LENGTH_BYTES, Shard, StreamPlan, StreamRepack, StreamSource};
use spinetail_checkpoint::{RepackOptions, SMALL_FILES};
use spinetail_container::{ContainerError, Opened};
use spinetail_core::Limits;

use crate::client::{Answer, Client, Fault, StopFlag};
use crate::error::HubError;
use crate::journal::{JOURNAL, Journal};
use crate::listing::{Listing, RemoteFile, same_file, sniff};
use crate::plain::Fetched;
use crate::progress::{Event, Listener, Progress, Rate, Stage};
use crate::transfer::{Done, Job, Pace, Rehashed, Sink, Transfer};

/// Bytes asked for in the hope that they hold the whole header.
const HEADER_GUESS_BYTES: u64 = 256 << 10;

/// A checkpoint, as the source describes it.
pub(crate) struct Described {
    pub(crate) config: Vec<u8>,
    pub(crate) index: Option<Vec<u8>>,
    pub(crate) shards: Vec<RemoteFile>,
}

impl Sink for StreamRepack {
    fn unit_bytes(&self, file: usize) -> usize {
        StreamRepack::unit_bytes(self, file)
    }

    fn write(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<usize, HubError> {
        Ok(StreamRepack::write(self, file, offset, bytes)?)
    }

    fn sync(&self, _: usize) -> Result<(), HubError> {
        Ok(StreamRepack::sync(self)?)
    }

    fn rehash(&self, _: usize, _: u64) -> Result<Option<Rehashed>, HubError> {
        Ok(Some(Rehashed::Unknown))
    }

    fn complete(&self, _: usize, _: u64) -> Result<(), HubError> {
        Ok(())
    }
}

/// Repacks a checkpoint into a container at `output`, as it arrives.
pub(crate) fn fetch(
    client: &Client,
    listing: &Listing,
    source: Described,
    (output, options): (&Path, RepackOptions),
    pace: Pace,
    stop: &StopFlag,
    listener: Listener<'_>,
) -> Result<Fetched, Fault> {
    let Described { config, index, shards } = source;
    let (shards, headers) = all_headers(client, listing, shards, pace.connections, stop)?;
    let plan = StreamPlan::new(
        StreamSource {
            name: &listing.name,
            revision: listing.commit.as_deref(),
            config: &config,
            index: index.as_deref(),
            shards: headers,
        },
        options,
    )?;
    let jobs: Vec<Job> =
        shards.into_iter().enumerate().map(|(i, f)| job(listing, f, plan.fingerprint(i))).collect();
    let (mut repack, opened) = StreamRepack::open(output, plan, &[JOURNAL])?;
    if opened == Opened::Replaced {
        let note = "what an earlier run left was made from another state of the source, or with other options: starting over";
        let _ = listener(Event::Note(note));
    }
    let mut received = 0;
    for name in SMALL_FILES {
        let bytes = match name {
            "config.json" => Some(config.clone()),
            _ => listing.small(client, name, Limits::JSON_BYTES, stop)?,
        };
        if let Some(bytes) = bytes {
            received += bytes.len() as u64;
            repack.add_file(name, &bytes)?;
        }
    }
    let journal = Journal::open(repack.folder())?;
    let transfer = Transfer::new(client, &repack, &jobs, pace, stop, journal);
    let (done, streamed) = transfer.run(listener)?;
    let unverified = jobs.iter().filter(|j| j.file.sha256.is_none()).map(|j| j.file.path.clone()).collect();
    let hashes = done.into_iter().map(|d| match d {
        Done::Whole { sha256, .. } => Ok(sha256),
        Done::Absent => Err(Fault::Changed("a file is gone".to_owned())),
    });
    let hashes = hashes.collect::<Result<Vec<_>, Fault>>()?;
    let files = jobs.len();
    let summary = finish(repack, &hashes, listener)?;
    Ok(Fetched { bytes: summary.bytes, received: received + streamed, files, unverified })
}

fn finish(
    repack: StreamRepack,
    hashes: &[String],
    listener: Listener<'_>,
) -> Result<spinetail_container::Summary, Fault> {
    let (total_bytes, mut rate) = (repack.data_bytes(), Rate::new());
    let summary = repack.finish(hashes, &[JOURNAL], &mut |done_bytes| {
        let per_second = rate.at(done_bytes);
        let left = total_bytes.saturating_sub(done_bytes) as f64;
        listener(Event::Progress(Progress {
            stage: Stage::Verifying,
            done_bytes,
            total_bytes,
            bytes_per_second: per_second,
            seconds_left: (per_second > 0.0).then(|| left / per_second),
            file: "",
        }))
        .is_continue()
    });
    summary.map_err(|e| match e {
        spinetail_checkpoint::CheckpointError::Container(ContainerError::Interrupted { .. }) => {
            HubError::Cancelled.into()
        }
        e => e.into(),
    })
}

fn job(listing: &Listing, file: RemoteFile, fingerprint: u64) -> Job {
    let of = match &file.sha256 {
        Some(hash) => format!("sha256:{hash}"),
        None => format!("commit:{}", listing.commit.as_deref().unwrap_or("none")),
    };
    let identity = format!("{of}:{}:{fingerprint:016x}", file.bytes.unwrap_or(0));
    Job { identity, commit: listing.commit.clone(), optional: false, file }
}

/// The headers of all files, several at once; and the files with the lengths that came to light.
fn all_headers(
    client: &Client,
    listing: &Listing,
    mut shards: Vec<RemoteFile>,
    connections: usize,
    stop: &StopFlag,
) -> Result<(Vec<RemoteFile>, Vec<Shard>), Fault> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((i, file)) = {
            let i = next.fetch_add(1, Ordering::Relaxed);
            shards.get(i).map(|f| (i, f))
        } {
            let shard = client.retrying(&file.url, stop, || header(client, listing, file));
            let failed = shard.is_err();
            results.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((i, shard));
            if failed {
                next.store(usize::MAX / 2, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..connections.clamp(1, shards.len().max(1)) {
            // This thread does what others that the system refuses would have done.
            if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_by_key(|(i, _)| *i);
    let mut headers = Vec::with_capacity(shards.len());
    for (i, shard) in results {
        let shard = shard?;
        shards[i].bytes = Some(shard.bytes);
        headers.push(shard);
    }
    Ok((shards, headers))
}

fn header(client: &Client, listing: &Listing, file: &RemoteFile) -> Result<Shard, Fault> {
    let label = Path::new(&listing.name).join(&file.path);
    let mut answer = client.get(&file.url, Some(0), Some(HEADER_GUESS_BYTES))?;
    same_file(file, listing.commit.as_deref(), &answer.linked)?;
    let found = match answer.status {
        206 => answer.range.1,
        200 => answer.length,
        _ => Some(0),
    };
    let mut start = Vec::new();
    let broke = answer.body.by_ref().take(HEADER_GUESS_BYTES).read_to_end(&mut start).err();
    sniff(&file.path, &start)?;
    let bytes = match (file.bytes, found) {
        (Some(expected), Some(found)) if expected != found => {
            return Err(
                HubError::Length { file: file.path.clone(), expected, found: found.to_string() }.into()
            );
        }
        (listed, found) => listed.or(found),
    };
    let Some(bytes) = bytes else {
        let (expected, found) = ("the file's length", "neither Content-Range nor Content-Length".to_owned());
        return Err(HubError::Answer { url: file.url.shown(), expected, found }.into());
    };
    let Some(first) = start.first_chunk::<8>() else {
        if bytes >= LENGTH_BYTES {
            let why = broke.map_or("it was closed".to_owned(), |e| e.to_string());
            return Err(Fault::again(format!("the connection broke within the header: {why}")));
        }
        // Too short for any header: the error says how short.
        stream::header_bytes(&label, [0; 8], bytes)?;
        return Ok(Shard { name: file.path.clone(), bytes, header: Vec::new() });
    };
    let n = stream::header_bytes(&label, *first, bytes)?;
    start.drain(..LENGTH_BYTES as usize);
    if (start.len() as u64) < n {
        start = rest_of_header(client, listing, file, start, n)?;
    }
    start.truncate(n as usize);
    Ok(Shard { name: file.path.clone(), bytes, header: start })
}

/// The rest of a header of `n` bytes, of which `start` is there.
fn rest_of_header(
    client: &Client,
    listing: &Listing,
    file: &RemoteFile,
    mut start: Vec<u8>,
    n: u64,
) -> Result<Vec<u8>, Fault> {
    let from = LENGTH_BYTES + start.len() as u64;
    let answer: Answer = client.get(&file.url, Some(from), Some(LENGTH_BYTES + n))?;
    same_file(file, listing.commit.as_deref(), &answer.linked)?;
    let mut body = answer.body;
    match (answer.status, answer.range.0) {
        (206, Some(first)) if first == from => {}
        (200, _) => {
            std::io::copy(&mut body.by_ref().take(from), &mut std::io::sink())
                .map_err(|e| Fault::again(e.to_string()))?;
        }
        (status, first) => {
            let why = format!("asked for bytes from {from}, got those from {first:?} with status {status}");
            return Err(Fault::again(why));
        }
    }
    let missing = n - start.len() as u64;
    let read = body.take(missing).read_to_end(&mut start);
    if start.len() as u64 != n {
        let why = read.err().map_or("it was closed".to_owned(), |e| e.to_string());
        return Err(Fault::again(format!("the connection broke within the header: {why}")));
    }
    Ok(start)
}
