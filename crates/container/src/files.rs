//! Small things done with files: positioned reads and writes, bounded reads, safe names, SHA-256.
//!
//! Nothing here knows the container's format.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path};

use sha2::{Digest, Sha256};
use spinetail_core::ReadError;

use crate::ContainerError;

#[cfg(unix)]
pub(crate) fn read_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, out, offset)
}

#[cfg(windows)]
pub(crate) fn read_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, out, offset)
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::write_at(file, bytes, offset)
}

#[cfg(windows)]
fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_write(file, bytes, offset)
}

/// Fills `out` from `offset` of `file`, which was opened from `path`. A file that ends early is
/// [`ReadError::Short`]; `out` then holds what was there.
pub fn pread_exact(file: &File, path: &Path, offset: u64, out: &mut [u8]) -> Result<(), ReadError> {
    pread_rest(file, path, offset, out, 0)
}

/// As [`pread_exact`], of which the first `done` bytes have been read already.
pub(crate) fn pread_rest(
    file: &File,
    path: &Path,
    offset: u64,
    out: &mut [u8],
    mut done: usize,
) -> Result<(), ReadError> {
    let bytes = out.len() as u64;
    let io = |error| ReadError::Io { path: path.to_owned(), offset, bytes, error };
    if offset.checked_add(bytes).is_none_or(|end| end > i64::MAX as u64) {
        return Err(io(io::Error::new(io::ErrorKind::InvalidInput, "the offset is past any file's end")));
    }
    while done < out.len() {
        match read_at(file, &mut out[done..], offset + done as u64) {
            Ok(0) => {
                return Err(ReadError::Short { path: path.to_owned(), offset, bytes, found: done as u64 });
            }
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(io(e)),
        }
    }
    Ok(())
}

/// Writes all of `bytes` at `offset`.
pub fn pwrite_all(file: &File, path: &Path, mut offset: u64, mut bytes: &[u8]) -> Result<(), ContainerError> {
    while !bytes.is_empty() {
        match write_at(file, bytes, offset) {
            Ok(0) => return Err(ContainerError::io("write", path, io::ErrorKind::WriteZero.into())),
            Ok(n) => {
                bytes = &bytes[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(ContainerError::io("write", path, e)),
        }
    }
    Ok(())
}

/// Reads a whole file that is at most `limit` bytes long; a longer one, or one that is not a regular file (links to
/// regular files are followed), is refused before anything is allocated.
pub fn read_small_file(path: &Path, limit: u64) -> Result<Vec<u8>, ContainerError> {
    let metadata = std::fs::metadata(path).map_err(|e| ContainerError::io("read", path, e))?;
    if !metadata.is_file() {
        return Err(ContainerError::invalid(path, "kind", "a regular file", kind_of(&metadata)));
    }
    let file = File::open(path).map_err(|e| ContainerError::io("open", path, e))?;
    let too_long =
        |found| ContainerError::invalid(path, "size", format!("at most {limit} bytes"), format!("{found}"));
    if metadata.len() > limit {
        return Err(too_long(metadata.len()));
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|e| ContainerError::io("read", path, e))?;
    if bytes.len() as u64 > limit {
        return Err(too_long(bytes.len() as u64));
    }
    Ok(bytes)
}

/// What a path is, for messages.
pub(crate) fn kind_of(metadata: &std::fs::Metadata) -> &'static str {
    let t = metadata.file_type();
    if t.is_symlink() {
        "a symbolic link (copy the container with links followed: cp -rL)"
    } else if t.is_dir() {
        "a folder"
    } else if t.is_file() {
        "a regular file"
    } else {
        "a device, pipe or socket"
    }
}

/// The size of `root/name`, which has to be a regular file itself, not a link to one, in a real folder.
pub(crate) fn regular_size(root: &Path, name: &str) -> Result<u64, ContainerError> {
    let path = root.join(name);
    if let Some((folder, _)) = name.split_once('/') {
        let folder = root.join(folder);
        let m = std::fs::symlink_metadata(&folder).map_err(|e| ContainerError::io("look at", &folder, e))?;
        if !m.is_dir() {
            return Err(ContainerError::invalid(&folder, "kind", "a folder", kind_of(&m)));
        }
    }
    let m = std::fs::symlink_metadata(&path).map_err(|e| ContainerError::io("look at", &path, e))?;
    if !m.is_file() {
        return Err(ContainerError::invalid(&path, "kind", "a regular file", kind_of(&m)));
    }
    Ok(m.len())
}

/// Checks the name of a file that lies directly in a container: letters, digits, `.`, `_`, `-`, no leading or
/// trailing dot, and nothing that a system gives a meaning of its own.
pub(crate) fn check_plain_name(name: &str) -> Result<(), ContainerError> {
    let refuse = |why| Err(ContainerError::Name { name: name.to_owned(), why });
    if name.is_empty() || name.len() > 128 {
        return refuse("names have 1 to 128 characters");
    }
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')) {
        return refuse("only ASCII letters, digits, '.', '_' and '-' are allowed");
    }
    if name.starts_with('.') || name.ends_with('.') {
        return refuse("a leading or trailing dot is not allowed");
    }
    let stem = name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let numbered = |p| stem.strip_prefix(p).is_some_and(|n: &str| n.len() == 1 && n != "0");
    if matches!(stem.as_str(), "con" | "prn" | "aux" | "nul") || numbered("com") || numbered("lpt") {
        return refuse("Windows reserves it for a device");
    }
    Ok(())
}

/// Checks a relative path from outside: plain components only, so that it stays within the folder it is joined to.
pub(crate) fn check_relative(name: &str) -> Result<(), ContainerError> {
    let path = Path::new(name);
    let plain = path.components().all(|c| matches!(c, Component::Normal(_)));
    if name.is_empty() || !plain || name.contains(['\\', ':', '\0']) {
        return Err(ContainerError::Name {
            name: name.to_owned(),
            why: "a path within the container is needed: relative, without '..', '\\' or ':'",
        });
    }
    Ok(())
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

/// Whether `s` is a SHA-256 as this format writes it.
pub(crate) fn is_sha256(s: &str) -> bool {
    s.len() == 64 && s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_folder_or_mean_something_to_a_system_are_refused() {
        for name in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "/etc/passwd",
            "a\\b",
            "C:x",
            "nul",
            "COM1.json",
            "lpt9",
            ".hidden",
            "dot.",
            "a\0b",
            "é.json",
            "a b",
        ] {
            assert!(check_plain_name(name).is_err(), "{name:?}");
        }
        for name in ["config.json", "chat_template.jinja", "console.json", "com10.txt", "a-b_c.1"] {
            check_plain_name(name).unwrap();
        }
        for name in ["", "..", "a/../../b", "/a", "a\\b", "C:a", "./a"] {
            assert!(check_relative(name).is_err(), "{name:?}");
        }
        check_relative("packed_experts/layer_00.bin").unwrap();
    }

    #[test]
    fn reads_past_the_end_say_how_much_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, [1, 2, 3, 4]).unwrap();
        let file = File::open(&path).unwrap();
        let mut out = [0; 3];
        pread_exact(&file, &path, 1, &mut out).unwrap();
        assert_eq!(out, [2, 3, 4]);
        let e = pread_exact(&file, &path, 2, &mut out).unwrap_err();
        assert!(matches!(e, ReadError::Short { found: 2, bytes: 3, .. }), "{e}");
        for offset in [u64::MAX, u64::MAX - 2, i64::MAX as u64] {
            assert!(matches!(pread_exact(&file, &path, offset, &mut out), Err(ReadError::Io { .. })));
        }
        assert!(read_small_file(&path, 4).is_ok());
        assert!(read_small_file(&path, 3).is_err());
        assert!(read_small_file(dir.path(), 3).is_err());
    }
}
