//! [`DriveProfile`], and the folder in which profiles are remembered: a small JSON file for each drive, written beside
//! its place and renamed, so that two programs at once leave one of both files and never half of one.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use spinetail_core::{Pages, ReadMode};
use spinetail_store::StoreOptions;

use super::DriveId;

/// The form that this build writes and reads.
const VERSION: u32 = 1;

/// More than any profile takes.
const MAX_BYTES: u64 = 16 << 10;

/// The most reads that are ever under way at once.
const MAX_DEPTH: usize = 64;

/// How a drive is best read.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriveProfile {
    /// Direct or through the page cache.
    pub mode: ReadMode,
    /// The pages of the memory that is read into.
    pub pages: Pages,
    /// Reads under way at once, 1 to 64.
    pub depth: usize,
    /// Bytes per second of random records, with `depth` reads always under way; 0 where it was not measured.
    pub read_bytes_per_s: f64,
    /// Bytes per second when a layer's records are asked for at once and all awaited, as while generating; 0 where it
    /// was not measured.
    pub burst_bytes_per_s: f64,
}

impl Default for DriveProfile {
    /// What is used on a drive that was never measured.
    fn default() -> Self {
        Self {
            mode: ReadMode::Direct,
            pages: Pages::Huge,
            depth: usual_depth(),
            read_bytes_per_s: 0.0,
            burst_bytes_per_s: 0.0,
        }
    }
}

/// A file of a profile that was not made by this program, for this drive, or by a version that is understood. It counts
/// as absent, and measuring again replaces it.
#[derive(Debug, thiserror::Error)]
#[error("the drive's profile {} is ignored: {reason}; {fix}", file.display())]
pub struct ForeignProfile {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub reason: String,
    /// What to do about it.
    pub fix: &'static str,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    id: String,
    drive: String,
    profile: DriveProfile,
}

impl Stored {
    fn check(&self, drive: &DriveId) -> Result<(), String> {
        let p = &self.profile;
        // No drive is slower than a kilobyte in a second, or faster than ten thousand gigabytes; 0 was not measured.
        let rate = |x: f64| x == 0.0 || (1e3..=1e13).contains(&x);
        if self.version != VERSION {
            return Err(format!("version {}, expected {VERSION}", self.version));
        }
        if (&self.id, &self.drive) != (&drive.id, &drive.name) {
            return Err("it is another drive's".to_owned());
        }
        if !(1..=MAX_DEPTH).contains(&p.depth) {
            return Err(format!("depth {}, expected 1 to {MAX_DEPTH}", p.depth));
        }
        if !rate(p.read_bytes_per_s) || !rate(p.burst_bytes_per_s) {
            return Err("a rate that cannot be".to_owned());
        }
        Ok(())
    }
}

/// The first part of a path that is there and no folder.
fn not_a_folder(folder: &Path) -> &Path {
    folder.ancestors().filter(|part| part.exists() && !part.is_dir()).last().unwrap_or(folder)
}

/// The bytes of a profile, with a reason that people understand where there are none.
fn read_small(file: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |e: io::Error| format!("it cannot be read ({e})");
    // Before it is opened: opening a pipe waits for whoever writes to it.
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err("it is no regular file".to_owned());
    }
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file).map_err(unreadable)?;
    opened.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("it has more than {MAX_BYTES} bytes"));
    }
    Ok(bytes)
}

/// Reads under way at once on a drive that was never measured: one for each processor, from two up to what is enough for every
/// drive that was. A read takes some processor time, and two cores that compute have none to spare (docs/performance.md).
fn usual_depth() -> usize {
    std::thread::available_parallelism()
        .map_or(2, std::num::NonZero::get)
        .clamp(2, StoreOptions::DEFAULT_READERS)
}

/// Profiles of drives, in a folder.
#[derive(Debug, Clone)]
pub struct DriveProfiles {
    folder: PathBuf,
}

impl DriveProfiles {
    /// Those in `folder`, which is made when the first is remembered.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The file for a drive.
    pub fn file(&self, drive: &DriveId) -> PathBuf {
        self.folder.join(format!("drive-{}.json", drive.id))
    }

    /// The profile of the drive; `None` if it was never measured.
    pub fn recall(&self, drive: &DriveId) -> Result<Option<DriveProfile>, ForeignProfile> {
        let file = self.file(drive);
        match file.symlink_metadata().map_err(|e| e.kind()) {
            Err(io::ErrorKind::NotFound) => return Ok(None),
            Err(io::ErrorKind::NotADirectory) => {
                let reason = format!("{} is no folder", not_a_folder(&self.folder).display());
                let fix = "move it away: what is learned of drives and experts is kept there";
                return Err(ForeignProfile { file, reason, fix });
            }
            _ => {}
        }
        let read = || -> Result<DriveProfile, String> {
            let bytes = read_small(&file)?;
            let stored: Stored = serde_json::from_slice(&bytes)
                .map_err(|e| format!("it is no profile of this program ({e})"))?;
            stored.check(drive)?;
            Ok(stored.profile)
        };
        read().map(Some).map_err(|reason| ForeignProfile {
            file: file.clone(),
            reason,
            fix: "`spinetail doctor MODEL` measures the drive again",
        })
    }

    /// Keeps the profile of the drive in place of any it had, and returns the file.
    pub fn remember(&self, drive: &DriveId, profile: &DriveProfile) -> io::Result<PathBuf> {
        std::fs::create_dir_all(&self.folder)?;
        let stored =
            Stored { version: VERSION, id: drive.id.clone(), drive: drive.name.clone(), profile: *profile };
        let file = self.file(drive);
        let mut beside = tempfile::NamedTempFile::new_in(&self.folder)?;
        serde_json::to_writer_pretty(&mut beside, &stored)?;
        beside.persist(&file)?;
        Ok(file)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> (tempfile::TempDir, DriveProfiles, DriveId) {
        let dir = tempfile::tempdir().unwrap();
        let drive = DriveId::of(dir.path()).unwrap();
        let profiles = DriveProfiles::new(dir.path().join("a/b"));
        (dir, profiles, drive)
    }

    #[test]
    fn what_is_remembered_is_recalled_and_replaced() {
        let (_dir, profiles, drive) = here();
        assert_eq!(profiles.recall(&drive).unwrap(), None);
        let first = DriveProfile { depth: 3, read_bytes_per_s: 1.5e9, ..DriveProfile::default() };
        let file = profiles.remember(&drive, &first).unwrap();
        assert_eq!(profiles.recall(&drive).unwrap(), Some(first));
        let second = DriveProfile { mode: ReadMode::Buffered, pages: Pages::Small, ..first };
        assert_eq!(profiles.remember(&drive, &second).unwrap(), file);
        assert_eq!(profiles.recall(&drive).unwrap(), Some(second));
        assert_eq!(std::fs::read_dir(profiles.folder()).unwrap().count(), 1, "nothing is left beside it");
        let other = DriveId { id: "1-2".to_owned(), name: "other".to_owned() };
        assert_eq!(profiles.recall(&other).unwrap(), None);
        // Copied from another drive.
        std::fs::copy(&file, profiles.file(&other)).unwrap();
        assert!(profiles.recall(&other).unwrap_err().to_string().contains("another drive"));
    }

    #[test]
    fn two_writers_leave_one_whole_file() {
        let (_dir, profiles, drive) = here();
        std::thread::scope(|s| {
            for depth in 1..=4 {
                let (profiles, drive) = (&profiles, &drive);
                s.spawn(move || {
                    for _ in 0..50 {
                        let profile = DriveProfile { depth, ..DriveProfile::default() };
                        profiles.remember(drive, &profile).unwrap();
                        assert!(profiles.recall(drive).unwrap().is_some());
                    }
                });
            }
        });
        assert_eq!(std::fs::read_dir(profiles.folder()).unwrap().count(), 1);
    }

    #[test]
    fn files_of_others_are_ignored_by_name_and_can_be_replaced() {
        let (_dir, profiles, drive) = here();
        let file = profiles.remember(&drive, &DriveProfile { depth: 8, ..DriveProfile::default() }).unwrap();
        let good = std::fs::read_to_string(&file).unwrap();
        let with = |from: &str, to: &str| {
            assert!(good.contains(from), "{good}");
            good.replace(from, to).into_bytes()
        };
        for hostile in [
            Vec::new(),
            b"{}".to_vec(),
            b"null".to_vec(),
            vec![b'['; 10_000],
            vec![b' '; 1 << 20],
            vec![0xff; 100],
            good.as_bytes()[..good.len() / 2].to_vec(),
            with("\"version\": 1", "\"version\": 2"),
            with("\"depth\": 8", "\"depth\": 0"),
            with("\"depth\": 8", "\"depth\": 65"),
            with("\"depth\": 8", "\"depth\": -1"),
            with("\"depth\": 8", "\"depth\": 8, \"width\": 1"),
            with("\"mode\": \"direct\"", "\"mode\": \"sideways\""),
            with("\"read_bytes_per_s\": 0.0", "\"read_bytes_per_s\": -1.0"),
            with("\"read_bytes_per_s\": 0.0", "\"read_bytes_per_s\": 1e999"),
            with("\"read_bytes_per_s\": 0.0", "\"read_bytes_per_s\": 1e30"),
            with("\"read_bytes_per_s\": 0.0", "\"read_bytes_per_s\": 1e-300"),
        ] {
            std::fs::write(&file, &hostile).unwrap();
            let error = profiles.recall(&drive).unwrap_err();
            assert_eq!(error.file, file, "{error}");
            assert!(error.to_string().contains("is ignored: "), "{error}");
        }
        profiles.remember(&drive, &DriveProfile::default()).unwrap();
        assert_eq!(profiles.recall(&drive).unwrap(), Some(DriveProfile::default()));
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(profiles.recall(&drive).is_err());
        assert!(profiles.remember(&drive, &DriveProfile::default()).is_err());
    }
}
