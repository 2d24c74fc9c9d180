//! The folder `<output>.partial` in which a container grows, and the one step that gives it its name.
//!
//! The folder holds a lock file, locked for as long as its writer lives. A folder with an unlocked lock file is what a
//! dead run left, and is emptied or, by a writer that can go on where it stopped, kept; one without a lock file was made
//! by something else, and is left alone. Nothing here knows the container's format.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::ContainerError;
use crate::files::kind_of;

/// The lock file's name, within the unfinished folder.
pub const LOCK: &str = "writing.lock";

/// An unfinished folder, locked. Dropped before [`Partial::publish`], it is removed, unless it was opened to be resumed.
#[derive(Debug)]
pub struct Partial {
    output: PathBuf,
    folder: PathBuf,
    /// Held open for its lock; `None` once published.
    lock: Option<File>,
    /// Whether what is unfinished is worth keeping.
    keep: bool,
}

fn io(action: &'static str, path: &Path) -> impl Fn(std::io::Error) -> ContainerError {
    move |e| ContainerError::io(action, path, e)
}

fn refuse_existing(output: &Path) -> Result<(), ContainerError> {
    match std::fs::symlink_metadata(output) {
        Ok(_) => Err(ContainerError::Exists { path: output.to_owned() }),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(ContainerError::io("look at", output, e)),
    }
}

/// The folder that `output` will lie in.
pub fn parent(output: &Path) -> &Path {
    output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Partial {
    /// Starts afresh: what an earlier run left is removed, and so is what this one leaves unless it publishes.
    pub fn create(output: &Path) -> Result<Self, ContainerError> {
        let this = Self::claim(output, false)?;
        this.clear()?;
        Ok(this)
    }

    /// Takes over what an earlier run left, if anything, and leaves what there is for the next run.
    pub fn resume(output: &Path) -> Result<Self, ContainerError> {
        Self::claim(output, true)
    }

    fn claim(output: &Path, keep: bool) -> Result<Self, ContainerError> {
        let Some(name) = output.file_name() else {
            let name = output.display().to_string();
            return Err(ContainerError::Name { name, why: "an output needs a name of its own" });
        };
        refuse_existing(output)?;
        let parent = parent(output);
        let metadata = std::fs::metadata(parent).map_err(io("use the output's folder", parent))?;
        if !metadata.is_dir() {
            return Err(ContainerError::invalid(parent, "kind", "a folder", kind_of(&metadata)));
        }
        let mut partial = name.to_owned();
        partial.push(".partial");
        let folder = parent.join(partial);
        // The folder can vanish between two steps when another run ends just then; a few tries are plenty.
        for _ in 0..8 {
            if let Some(lock) = claim(&folder)? {
                let this = Self { output: output.to_owned(), folder, lock: Some(lock), keep };
                // A run that ended just now may have published.
                refuse_existing(output)?;
                return Ok(this);
            }
        }
        Err(ContainerError::Busy { path: folder })
    }

    /// A path within the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The final name.
    pub fn output(&self) -> &Path {
        &self.output
    }

    /// The unfinished folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes everything but the lock.
    pub fn clear(&self) -> Result<(), ContainerError> {
        for entry in std::fs::read_dir(&self.folder).map_err(io("list", &self.folder))? {
            let entry = entry.map_err(io("list", &self.folder))?;
            if entry.file_name() == LOCK {
                continue;
            }
            let (path, kind) = (entry.path(), entry.file_type().map_err(io("look at", &entry.path()))?);
            let removed =
                if kind.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            removed.map_err(io("remove what an earlier run left:", &path))?;
        }
        Ok(())
    }

    /// Gives the folder its name, in one step and never over something else; then removes the files in `scaffold`, which
    /// only the unfinished folder needed. Its files must be durable already.
    pub fn publish(mut self, scaffold: &[&str]) -> Result<(), ContainerError> {
        sync_folder(&self.folder)?;
        refuse_existing(&self.output)?;
        // Windows does not rename a folder in which a file is open.
        if cfg!(windows) {
            self.lock = None;
            let _ = std::fs::remove_file(self.folder.join(LOCK));
        }
        if let Err(e) = rename_new(&self.folder, &self.output) {
            if !self.keep {
                let _ = std::fs::remove_dir_all(&self.folder);
            }
            self.lock = None;
            return Err(match e.kind() {
                ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty => {
                    ContainerError::Exists { path: self.output.clone() }
                }
                _ => ContainerError::io("give the finished container its name", &self.output, e),
            });
        }
        for name in scaffold.iter().copied().chain([LOCK]) {
            let _ = std::fs::remove_file(self.output.join(name));
        }
        self.lock = None;
        sync_folder(&self.output)?;
        sync_folder(parent(&self.output))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // While the lock is still held, so that no other run can be using the folder.
        if self.lock.is_some() && !self.keep {
            if cfg!(windows) {
                self.lock = None;
            }
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// Makes or takes over the folder; `None` if it vanished under way.
fn claim(folder: &Path) -> Result<Option<File>, ContainerError> {
    let in_the_way =
        |found: &str| Err(ContainerError::InTheWay { path: folder.to_owned(), found: found.to_owned() });
    let lock_path = folder.join(LOCK);
    match std::fs::create_dir(folder) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            let Some(metadata) =
                vanished(std::fs::symlink_metadata(folder)).map_err(io("look at", folder))?
            else {
                return Ok(None);
            };
            if !metadata.is_dir() {
                return in_the_way(kind_of(&metadata));
            }
            let Some(mut entries) = vanished(std::fs::read_dir(folder)).map_err(io("list", folder))? else {
                return Ok(None);
            };
            let has_lock = std::fs::symlink_metadata(&lock_path).is_ok_and(|m| m.is_file());
            if !has_lock && entries.next().is_some() {
                return in_the_way("a folder without one");
            }
        }
        Err(e) => return Err(ContainerError::io("create", folder, e)),
    }
    let open = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path);
    let Some(lock) = vanished(open).map_err(io("open", &lock_path))? else { return Ok(None) };
    match lock.try_lock() {
        Ok(()) => Ok(same_file(&lock, &lock_path).then_some(lock)),
        Err(TryLockError::WouldBlock) => Err(ContainerError::Busy { path: folder.to_owned() }),
        Err(TryLockError::Error(e)) => Err(ContainerError::io("lock", &lock_path, e)),
    }
}

fn vanished<T>(result: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match result {
        Ok(v) => Ok(Some(v)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Whether `path` still names the open file: a run that ended in between has removed or renamed it.
#[cfg(unix)]
fn same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let ids = |m: &std::fs::Metadata| (m.dev(), m.ino());
    matches!((file.metadata(), std::fs::symlink_metadata(path)), (Ok(a), Ok(b)) if ids(&a) == ids(&b))
}

/// Windows keeps an open file's name from being used again, so existing is enough.
#[cfg(not(unix))]
fn same_file(_: &File, path: &Path) -> bool {
    path.exists()
}

/// Renames without replacing anything, where the system can promise that in one step.
fn rename_new(from: &Path, to: &Path) -> std::io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // Some file systems cannot promise it; the check just before has to do.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            done => return done.map_err(Into::into),
        }
    }
    std::fs::rename(from, to)
}

/// Makes the names in a folder durable.
pub fn sync_folder(folder: &Path) -> Result<(), ContainerError> {
    if cfg!(unix) {
        File::open(folder).and_then(|f| f.sync_all()).map_err(io("make durable", folder))?;
    }
    Ok(())
}

/// Bytes that may still be written near `path`; `None` where the system does not say.
pub fn available_bytes(path: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let s = rustix::fs::statvfs(path).ok()?;
        // Some network and overlay file systems report no blocks at all.
        (s.f_blocks > 0).then(|| s.f_bavail.saturating_mul(s.f_frsize))
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        None
    }
}
