//! The front door: finds out what a source holds, fetches it, and starts over from the listing when it changes under way.

use std::path::{Path, PathBuf};
use std::time::Duration;

use spinetail_checkpoint::RepackOptions;
use spinetail_container::partial::parent;
use spinetail_container::{Container, Kind, detect};

use crate::client::{Client, Fault, Settings, StopFlag};
use crate::convert::{self, Described};
use crate::error::HubError;
use crate::listing::{Content, Listing};
use crate::plain;
use crate::progress::{Event, Listener, Progress, Stage};
use crate::transfer::Pace;
use crate::{mirror, repository};

/// Looks at a source that keeps changing.
const ROUNDS: u32 = 4;

/// Where a model comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A repository of the hub at [`Settings::endpoint`].
    Hub {
        /// `ORGANISATION/NAME`.
        repository: String,
        /// A branch, a tag or a commit; `main` is usual.
        revision: String,
    },
    /// A folder on a web server.
    Url(String),
}

/// What to get, and how.
#[derive(Debug, Clone)]
pub struct PullRequest {
    /// Where it comes from.
    pub source: Source,
    /// The container to make. Its folder is made if need be; while unfinished, it lies beside as `<output>.partial`.
    pub output: PathBuf,
    /// How to repack, if the source is a checkpoint.
    pub options: RepackOptions,
    /// Files fetched at once.
    pub connections: usize,
    /// The journal is brought up to date after so many bytes of a file,
    pub journal_bytes: u64,
    /// or after so much time.
    pub journal_time: Duration,
}

impl PullRequest {
    /// With the usual options.
    pub fn new(source: Source, output: impl Into<PathBuf>) -> Self {
        Self {
            source,
            output: output.into(),
            options: RepackOptions::default(),
            connections: 4,
            journal_bytes: 256 << 20,
            journal_time: Duration::from_secs(5),
        }
    }
}

/// What was got.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PullSummary {
    /// The container.
    pub output: PathBuf,
    /// Its version.
    pub kind: Kind,
    /// Whether a checkpoint was repacked on the way.
    pub repacked: bool,
    /// Whether it was there already, so that nothing was fetched.
    pub already_there: bool,
    /// The commit, of a repository.
    pub commit: Option<String>,
    /// Bytes of the container.
    pub bytes: u64,
    /// Bytes that came over the network in this run.
    pub received_bytes: u64,
    /// Files of the source.
    pub files: usize,
    /// Files for which the source has no SHA-256 and the container no checksum: only their length is known to be right.
    pub unverified: Vec<String>,
}

/// Gets a model. Everything that has arrived is kept when it fails or is stopped, and the same call goes on from there;
/// nothing unfinished ever has the output's name.
///
/// `listener` is told how far it is, from the calling thread; breaking stops.
pub fn pull(
    request: &PullRequest,
    settings: &Settings,
    listener: &mut dyn FnMut(Event<'_>) -> std::ops::ControlFlow<()>,
) -> Result<PullSummary, HubError> {
    let client = Client::new(settings)?;
    let folder = parent(&request.output);
    std::fs::create_dir_all(folder).map_err(|e| HubError::io("create", folder, e))?;
    let mut last = String::new();
    for _ in 0..ROUNDS {
        match round(&client, request, listener) {
            Ok(summary) => return Ok(summary),
            Err(Fault::Changed(why)) => {
                if listener(Event::Note(&format!("the source has changed: {why}; looking at it again")))
                    .is_break()
                {
                    return Err(HubError::Cancelled);
                }
                last = why;
            }
            Err(Fault::Stop(e)) => return Err(e),
            Err(Fault::Again { why, .. }) => {
                let url = client.endpoint().shown();
                return Err(HubError::Network { url, attempts: 1, why });
            }
        }
    }
    Err(HubError::Changed { rounds: ROUNDS, why: last })
}

fn round(client: &Client, request: &PullRequest, listener: Listener<'_>) -> Result<PullSummary, Fault> {
    let stop = StopFlag::default();
    let start = Progress {
        stage: Stage::Listing,
        done_bytes: 0,
        total_bytes: 0,
        bytes_per_second: 0.0,
        seconds_left: None,
        file: "",
    };
    if listener(Event::Progress(start)).is_break() {
        return Err(HubError::Cancelled.into());
    }
    let listing = match &request.source {
        Source::Hub { repository, revision } => repository::list(client, repository, revision, &stop)?,
        Source::Url(url) => mirror::list(client, url, &stop)?,
    };
    let output = &request.output;
    let summary = |kind, repacked, fetched: Option<plain::Fetched>| PullSummary {
        output: output.clone(),
        kind,
        repacked,
        already_there: fetched.is_none(),
        commit: listing.commit.clone(),
        bytes: fetched.as_ref().map_or_else(|| folder_bytes(output), |f| f.bytes),
        received_bytes: fetched.as_ref().map_or(0, |f| f.received),
        files: fetched.as_ref().map_or(0, |f| f.files),
        unverified: fetched.map_or_else(Vec::new, |f| f.unverified),
    };
    let exists = std::fs::symlink_metadata(output).is_ok();
    if exists && was_repacked_from(output, &listing, request.options)? {
        return Ok(summary(Kind::V2, true, None));
    }
    let pace = Pace {
        connections: request.connections.clamp(1, 64),
        journal_bytes: request.journal_bytes.max(1),
        journal_time: request.journal_time,
    };
    let other = |found: &str| HubError::Exists { path: output.clone(), found: found.to_owned() };
    match listing.content(client, &stop)? {
        Content::Container { kind, files } => {
            if request.options.bits.is_some() || request.options.group_size.is_some() {
                return Err(HubError::Setting {
                    what: "bits and group size",
                    expected: "none, since the source is a finished container, which is taken as it is",
                    found: format!("{:?}, {:?}", request.options.bits, request.options.group_size),
                }
                .into());
            }
            if exists && plain::is_there(output, &files) {
                return Ok(summary(kind, false, None));
            }
            if exists {
                return Err(other("is not what the source has").into());
            }
            let fetched = plain::fetch(client, &listing, (kind, files), output, pace, &stop, listener)?;
            Ok(summary(kind, false, Some(fetched)))
        }
        Content::Checkpoint { .. } if exists => Err(other("was not made from this source").into()),
        Content::Checkpoint { config, index, shards } => {
            let described = Described { config, index, shards };
            let to = (output.as_path(), request.options);
            let fetched = convert::fetch(client, &listing, described, to, pace, &stop, listener)?;
            Ok(summary(Kind::V2, true, Some(fetched)))
        }
    }
}

/// Whether the output is what this pull would make: then nothing has to be fetched. Something made from the same source
/// in another state or with other options is an error that says so.
fn was_repacked_from(output: &Path, listing: &Listing, options: RepackOptions) -> Result<bool, Fault> {
    if !matches!(detect(output), Ok(Some(Kind::V2))) {
        return Ok(false);
    }
    // One that does not open is something else, whatever it was.
    let Ok(container) = Container::open(output) else { return Ok(false) };
    let (source, has) = (&container.manifest().source, container.manifest().quantization);
    if source.name != listing.name {
        return Ok(false);
    }
    let refuse = |found: String| Err(HubError::Exists { path: output.to_owned(), found }.into());
    if source.revision != listing.commit {
        let of = |r: &Option<String>| r.clone().unwrap_or_else(|| "none".to_owned());
        return refuse(format!(
            "was made from commit {}, the source has {}",
            of(&source.revision),
            of(&listing.commit)
        ));
    }
    for file in &source.files {
        let listed = listing.files.get(&file.path).and_then(|f| f.sha256.as_ref());
        if listed.is_some() && file.sha256.is_some() && listed != file.sha256.as_ref() {
            return refuse(format!("was made from another {}", file.path));
        }
    }
    if let Some(bits) = options.bits.filter(|b| *b != has.bits && !(*b == 16 && has.group_size.is_none())) {
        return refuse(format!("has {} bits, not {bits}", has.bits));
    }
    if let (Some(wanted), Some(group)) = (options.group_size, has.group_size)
        && wanted != group
    {
        return refuse(format!("has groups of {group}, not {wanted}"));
    }
    Ok(true)
}

/// Bytes of all files below `folder`; links are not followed.
pub(crate) fn folder_bytes(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|e| match e.metadata() {
            Ok(m) if m.is_dir() => folder_bytes(&e.path()),
            Ok(m) => m.len(),
            Err(_) => 0,
        })
        .sum()
}
