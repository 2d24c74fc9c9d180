//! How much of a file the system's page cache holds, where the system says so.
//!
//! Linux 6.5 and later count it for a file that is open (`cachestat`). `mincore` over a mapping is no stand-in: of files that
//! this process may not write to it says that every page is there. Must not change what is cached.
#![allow(unsafe_code)]

use std::path::Path;

/// Bytes of the files of folder `path`, or of the file there, that the system's page cache holds, in whole pages: reading a
/// page of one of them takes memory that is nobody's and that the system takes back when it is short of it. `None` where
/// the system does not say.
pub fn page_cache_bytes(path: &Path) -> Option<u64> {
    if path.is_file() {
        return system::cached_bytes(&std::fs::File::open(path).ok()?);
    }
    let files = std::fs::read_dir(path).ok()?.map(|entry| {
        let file = entry.ok()?.path();
        // A folder has nothing of a model's weights in it.
        if file.is_file() { system::cached_bytes(&std::fs::File::open(file).ok()?) } else { Some(0) }
    });
    files.sum()
}

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use std::fs::File;
    use std::os::fd::AsRawFd as _;

    /// The number of the call, the same on every architecture that Linux got it for.
    const CACHESTAT: libc::c_long = 451;

    /// `struct cachestat_range`: all of the file where `bytes` is 0.
    #[repr(C)]
    struct Range {
        offset: u64,
        bytes: u64,
    }

    /// `struct cachestat`, in pages.
    #[repr(C)]
    #[derive(Default)]
    struct Stat {
        cached: u64,
        dirty: u64,
        written_back: u64,
        evicted: u64,
        recently_evicted: u64,
    }

    pub(super) fn cached_bytes(file: &File) -> Option<u64> {
        let (range, mut stat) = (Range { offset: 0, bytes: 0 }, Stat::default());
        // SAFETY: the call reads one of the structures and writes the other, both of the form that it is documented with,
        // and keeps neither.
        let result = unsafe {
            libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut stat, 0 as libc::c_uint)
        };
        let page = rustix::param::page_size() as u64;
        (result == 0).then(|| stat.cached.saturating_mul(page))
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod system {
    pub(super) fn cached_bytes(_: &std::fs::File) -> Option<u64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_cached_and_is_counted_file_by_file() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(page_cache_bytes(&dir.path().join("nothing")), None);
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        std::fs::write(&first, vec![1u8; 1 << 20]).unwrap();
        // An older kernel.
        let Some(one) = page_cache_bytes(&first) else { return };
        assert!((1 << 20..2 << 20).contains(&one), "{one}");
        std::fs::write(&second, vec![1u8; 3 << 20]).unwrap();
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        let both = page_cache_bytes(dir.path()).unwrap();
        assert!((4 << 20..5 << 20).contains(&both), "{both}");
        // Only where the file's pages can be given up: not in memory that calls itself a drive.
        let file = std::fs::File::open(&second).unwrap();
        #[cfg(target_os = "linux")]
        {
            file.sync_all().unwrap();
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
            let after = page_cache_bytes(dir.path()).unwrap();
            assert!(after == both || after < 2 << 20, "{after} of {both}");
        }
    }
}
