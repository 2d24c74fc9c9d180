//! Positioned reads and small whole files.

use std::fs::File;
use std::io::{Error, ErrorKind, Read as _};
use std::path::Path;

use spinetail_core::ReadError;

use crate::error::CheckpointError;

/// Fills `out` from `offset` of `file`.
pub(crate) fn pread_exact(file: &File, path: &Path, offset: u64, out: &mut [u8]) -> Result<(), ReadError> {
    let mut done = 0;
    while done < out.len() {
        match read_at(file, &mut out[done..], offset + done as u64) {
            Ok(0) => {
                return Err(ReadError::Short {
                    path: path.to_owned(),
                    offset,
                    bytes: out.len() as u64,
                    found: done as u64,
                });
            }
            Ok(n) => done += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                let bytes = out.len() as u64;
                return Err(ReadError::Io { path: path.to_owned(), offset, bytes, error });
            }
        }
    }
    Ok(())
}

#[cfg(unix)]
fn read_at(file: &File, out: &mut [u8], offset: u64) -> Result<usize, Error> {
    std::os::unix::fs::FileExt::read_at(file, out, offset)
}

#[cfg(windows)]
fn read_at(file: &File, out: &mut [u8], offset: u64) -> Result<usize, Error> {
    std::os::windows::fs::FileExt::seek_read(file, out, offset)
}

/// Reads a file whole, if it has at most `limit` bytes.
pub(crate) fn read_small_file(path: &Path, limit: u64) -> Result<Vec<u8>, CheckpointError> {
    let file = File::open(path).map_err(|e| CheckpointError::io("open", path, e))?;
    let mut out = Vec::new();
    file.take(limit + 1).read_to_end(&mut out).map_err(|e| CheckpointError::io("read", path, e))?;
    if out.len() as u64 > limit {
        return Err(CheckpointError::TooLarge { path: path.to_owned(), limit, found: out.len() as u64 });
    }
    Ok(out)
}
