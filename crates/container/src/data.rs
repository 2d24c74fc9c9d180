//! The large files of a model, read past the page cache for as long as the system allows it.
//!
//! A file is open twice: once for direct reads of whole blocks, and once for everything else, such as the end of a file
//! that was cut short. Where a ring or direct reads are refused, when opening or when reading, all files of a model go over
//! to what comes next for good: from a ring to direct reads, from those to buffered ones. Nothing else changes, and what is
//! read is the same. Nothing here knows the container's format.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use spinetail_core::{ReadError, ReadMode};

use crate::ContainerError;
use crate::files::{pread_rest, read_at};

/// What places, lengths and addresses of direct reads are multiples of: the largest block of the drives known.
pub const BLOCK_BYTES: usize = 4096;

/// How the files of one model are read, decided together.
#[derive(Debug)]
pub struct Reading {
    direct: AtomicBool,
    ring: AtomicBool,
}

impl Reading {
    /// As `mode` says until the system refuses.
    pub fn new(mode: ReadMode) -> Self {
        let (direct, ring) = (mode != ReadMode::Buffered, mode == ReadMode::Uring);
        Self { direct: AtomicBool::new(direct), ring: AtomicBool::new(ring) }
    }

    /// How files are read now.
    pub fn mode(&self) -> ReadMode {
        if self.ring.load(Relaxed) {
            ReadMode::Uring
        } else if self.is_direct() {
            ReadMode::Direct
        } else {
            ReadMode::Buffered
        }
    }

    /// Whether files are read past the page cache, by a ring or without.
    fn is_direct(&self) -> bool {
        self.direct.load(Relaxed)
    }

    /// Goes over to reads without a ring, and says so the first time.
    pub(crate) fn give_up_ring(&self, reason: &io::Error) {
        if self.ring.swap(false, Relaxed) {
            tracing::warn!(%reason, "io_uring is refused here: reading with threads");
        }
    }

    /// Goes over to buffered reads, and says so the first time.
    fn give_up(&self, path: &Path, reason: &io::Error) {
        if self.direct.swap(false, Relaxed) {
            tracing::warn!(file = %path.display(), %reason, "direct reads are refused here: reading buffered");
        }
    }
}

/// A file that is read by several threads at once.
#[derive(Debug)]
pub struct DataFile {
    path: PathBuf,
    buffered: File,
    /// `None` where direct reads were not asked for or are not to be had.
    direct: Option<File>,
    reading: Arc<Reading>,
}

/// Whether an error says that direct reads are not supported, not that this one failed.
fn is_refusal(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported)
}

impl DataFile {
    /// Opens the file at `path`.
    pub fn open(path: &Path, reading: &Arc<Reading>) -> Result<Self, ContainerError> {
        let failed = |e| ContainerError::io("open", path, e);
        let buffered = File::open(path).map_err(failed)?;
        let direct = match reading.is_direct().then(|| open_direct(path)) {
            None => None,
            Some(Ok(file)) => Some(file),
            Some(Err(e)) if is_refusal(&e) => {
                reading.give_up(path, &e);
                None
            }
            Some(Err(e)) => return Err(failed(e)),
        };
        if let Some(direct) = &direct
            && !is_same_file(&buffered, direct).map_err(failed)?
        {
            return Err(failed(io::Error::other("it was replaced at this moment; try again")));
        }
        Ok(Self { path: path.to_owned(), buffered, direct, reading: Arc::clone(reading) })
    }

    /// Where the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells the system that reads will not follow one another, so that it does not read ahead of them in vain.
    pub fn expect_random_reads(&self) {
        // Advice may be ignored, and so may an error about it.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let _ = rustix::fs::fadvise(&self.buffered, 0, None, rustix::fs::Advice::Random);
    }

    /// Asks the system to forget what it holds of the file's bytes, for measurements. Where there is no such request,
    /// or a part is in use, nothing happens.
    pub fn forget_cached(&self, _offset: u64, _bytes: u64) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if let Some(bytes) = std::num::NonZero::new(_bytes) {
            let _ = rustix::fs::fadvise(&self.buffered, _offset, Some(bytes), rustix::fs::Advice::DontNeed);
        }
    }

    /// Fills `out` from `offset`, directly where both and the length allow it. A file that ends early is
    /// [`ReadError::Short`].
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), ReadError> {
        let direct = self.reads_directly(offset, out.as_ptr().addr(), out.len());
        let done = if direct { self.read_blocks(self.file(true), offset, out)? } else { 0 };
        pread_rest(self.file(false), &self.path, offset, out, done)
    }

    /// Whether `len` bytes at `offset` are read directly to that address.
    pub(crate) fn reads_directly(&self, offset: u64, address: usize, len: usize) -> bool {
        let whole_blocks = offset.is_multiple_of(BLOCK_BYTES as u64)
            && len.is_multiple_of(BLOCK_BYTES)
            && address.is_multiple_of(BLOCK_BYTES);
        let in_range = offset.checked_add(len as u64).is_some_and(|end| end <= i64::MAX as u64);
        self.direct.is_some() && whole_blocks && in_range && self.reading.is_direct()
    }

    /// The file to read from, directly or not.
    pub(crate) fn file(&self, direct: bool) -> &File {
        self.direct.as_ref().filter(|_| direct).unwrap_or(&self.buffered)
    }

    /// Reads directly as far as that goes, and returns how far.
    fn read_blocks(&self, file: &File, offset: u64, out: &mut [u8]) -> Result<usize, ReadError> {
        let mut done = 0;
        while done < out.len() {
            match read_at(file, &mut out[done..], offset + done as u64) {
                // The end of the file, near which a direct read could only fail.
                Ok(n) if n == 0 || !n.is_multiple_of(BLOCK_BYTES) => return Ok(done + n),
                Ok(n) => done += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if is_refusal(&e) => {
                    self.reading.give_up(&self.path, &e);
                    break;
                }
                Err(error) => {
                    let bytes = out.len() as u64;
                    return Err(ReadError::Io { path: self.path.clone(), offset, bytes, error });
                }
            }
        }
        Ok(done)
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn open_direct(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    File::options().read(true).custom_flags(flags).open(path)
}

#[cfg(target_vendor = "apple")]
fn open_direct(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    rustix::fs::fcntl_nocache(&file, true)?;
    Ok(file)
}

#[cfg(windows)]
fn open_direct(path: &Path) -> io::Result<File> {
    use std::os::windows::fs::OpenOptionsExt;
    const FILE_FLAG_NO_BUFFERING: u32 = 0x2000_0000;
    File::options().read(true).custom_flags(FILE_FLAG_NO_BUFFERING).open(path)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple", windows)))]
fn open_direct(_: &Path) -> io::Result<File> {
    Err(io::Error::new(ErrorKind::Unsupported, "there are no direct reads on this system"))
}

/// Whether both are the same file: it could have been replaced between the one opening and the other.
#[cfg(unix)]
fn is_same_file(a: &File, b: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (a, b) = (a.metadata()?, b.metadata()?);
    Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
}

#[cfg(not(unix))]
fn is_same_file(a: &File, b: &File) -> io::Result<bool> {
    Ok(a.metadata()?.len() == b.metadata()?.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a buffer of blocks can begin.
    fn aligned(bytes: &mut [u8]) -> &mut [u8] {
        let start = bytes.as_ptr().align_offset(BLOCK_BYTES);
        &mut bytes[start..]
    }

    fn file(bytes: usize, mode: ReadMode) -> (tempfile::TempDir, Vec<u8>, DataFile, Arc<Reading>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let bytes: Vec<u8> = (0..bytes).map(|i| (i / 7) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let reading = Arc::new(Reading::new(mode));
        let file = DataFile::open(&path, &reading).unwrap();
        file.expect_random_reads();
        (dir, bytes, file, reading)
    }

    #[test]
    fn both_modes_give_the_same_bytes_wherever_they_are_read_to() {
        for mode in ReadMode::ALL {
            let (_dir, bytes, file, reading) = file(5 * BLOCK_BYTES, mode);
            let mut memory = vec![0; 6 * BLOCK_BYTES];
            let memory = aligned(&mut memory);
            for (offset, to, len) in
                [(0, 0, 4096), (4096, 0, 8192), (8192, 8, 4096), (5, 0, 4096), (4096, 0, 77), (0, 0, 0)]
            {
                file.read(offset as u64, &mut memory[to..to + len]).unwrap();
                assert_eq!(memory[to..to + len], bytes[offset..offset + len]);
            }
            file.forget_cached(0, 1 << 20);
            if mode == ReadMode::Buffered {
                assert_eq!(reading.mode(), mode);
            }
        }
    }

    #[test]
    fn a_file_that_ends_early_says_how_much_was_there() {
        for (mode, bytes) in [ReadMode::Direct, ReadMode::Buffered].map(|m| [(m, 9000), (m, 8192)]).concat() {
            let (_dir, written, file, _) = file(bytes, mode);
            let mut memory = vec![0; 5 * BLOCK_BYTES];
            let out = &mut aligned(&mut memory)[..4 * BLOCK_BYTES];
            match file.read(4096, out).unwrap_err() {
                ReadError::Short { offset: 4096, bytes: 16384, found, .. } => {
                    assert_eq!(found as usize, bytes - 4096);
                    assert_eq!(out[..bytes - 4096], written[4096..]);
                }
                e => panic!("{e}"),
            }
            assert!(matches!(file.read(1 << 40, out), Err(ReadError::Short { found: 0, .. })));
            for offset in [u64::MAX - 4095, i64::MAX as u64 - 4095] {
                assert!(matches!(file.read(offset, out), Err(ReadError::Io { .. })), "{offset}");
            }
        }
    }

    #[test]
    fn where_direct_reads_are_refused_all_files_are_read_buffered() {
        let (_dir, bytes, file, reading) = file(8192, ReadMode::Direct);
        let Some(direct) = &file.direct else {
            assert_eq!(reading.mode(), ReadMode::Buffered);
            return;
        };
        let mut memory = vec![0; 3 * BLOCK_BYTES];
        let out = &mut aligned(&mut memory)[1..4097];
        // Most file systems refuse this address, which `read` never gives them; others read.
        let done = file.read_blocks(direct, 0, out).unwrap();
        assert_eq!(done == 0, reading.mode() == ReadMode::Buffered);
        file.read(0, out).unwrap();
        assert_eq!(out, &bytes[..4096]);
        reading.give_up(Path::new("f"), &io::ErrorKind::InvalidInput.into());
        assert_eq!(reading.mode(), ReadMode::Buffered);
        let out = &mut aligned(&mut memory)[..4096];
        file.read(4096, out).unwrap();
        assert_eq!(out, &bytes[4096..]);
    }
}
