//! Which drive a file lies on, as well as the system can say.

use std::io;
use std::path::Path;

/// A drive, by what stays the same while it is mounted and, where the system allows, longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriveId {
    /// Letters, digits and dashes: the device and the file system's own id.
    pub id: String,
    /// For people: the file system's kind and the device's name, as far as they are known.
    pub name: String,
}

impl DriveId {
    /// The drive that the file or folder at `path` lies on.
    pub fn of(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let id = id(&path)?;
        Ok(Self { name: name(&path).unwrap_or_else(|| "an unknown drive".to_owned()), id })
    }
}

#[cfg(unix)]
fn id(path: &Path) -> io::Result<String> {
    use std::os::unix::fs::MetadataExt;
    let device = std::fs::metadata(path)?.dev();
    // A device's number can be another's after a restart; the file system's id is made with it.
    let file_system = rustix::fs::statvfs(path)?.f_fsid;
    Ok(format!("{device:x}-{file_system:016x}"))
}

#[cfg(not(unix))]
fn id(path: &Path) -> io::Result<String> {
    let first = path.components().next().map(|c| c.as_os_str().to_string_lossy().into_owned());
    Ok(first.unwrap_or_default().chars().filter(char::is_ascii_alphanumeric).collect())
}

/// What Linux says of the mount that `path` lies in: the last of those with the longest mount point.
fn name(path: &Path) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut best: Option<(usize, String)> = None;
    for line in mounts.lines() {
        let (mount, source) = line.split_once(" - ")?;
        let point = unescape(mount.split(' ').nth(4)?);
        let mut source = source.split(' ');
        let (kind, device) = (source.next()?, source.next()?);
        let depth = Path::new(&point).components().count();
        if path.starts_with(&point) && best.as_ref().is_none_or(|(d, _)| depth >= *d) {
            best = Some((depth, format!("{kind} on {}", unescape(device))));
        }
    }
    best.map(|(_, name)| name)
}

/// Spaces and the like stand in mountinfo as `\040`.
fn unescape(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(field.to_owned(), |s, (from, to)| s.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_and_its_files_lie_on_one_drive() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, "x").unwrap();
        let (a, b) = (DriveId::of(dir.path()).unwrap(), DriveId::of(&file).unwrap());
        assert_eq!(a, b);
        assert!(!a.id.is_empty() && a.id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "{a:?}");
        assert!(DriveId::of(&dir.path().join("nothing")).is_err());
    }
}
