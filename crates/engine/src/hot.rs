//! The experts that a model used most, remembered from run to run: a small file a model.
//!
//! Worth is all it holds: a file that is lost, old or damaged costs reads and nothing else, so that one that is not what
//! it should be is as good as none. Layout, little-endian: `SPTLHOT1`, the model's id (u64), how many records (u32), each
//! record's number `layer · experts + expert` (u32) from the hottest on, XXH3-64 of all that (u64).

use std::io;
use std::path::{Path, PathBuf};

use spinetail_core::ExpertId;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"SPTLHOT1";
/// More records than any model has.
const MAX_RECORDS: usize = 1 << 20;

/// Where the list of one model lies.
#[derive(Debug, Clone)]
pub(crate) struct HotList {
    file: PathBuf,
    model: u64,
    experts: usize,
}

impl HotList {
    /// In `folder`, for the model of that id and that many experts a layer.
    pub(crate) fn new(folder: &Path, model: u64, experts: usize) -> Self {
        Self { file: folder.join(format!("hot-{model:016x}.bin")), model, experts }
    }

    /// The list, the hottest first; empty where there is none.
    pub(crate) fn load(&self) -> Vec<ExpertId> {
        match self.read() {
            Ok(Some(ids)) => ids,
            Ok(None) => {
                tracing::warn!("{} is damaged or another model's, and is left out", self.file.display());
                Vec::new()
            }
            // Mostly there is none yet, or no place for one: experts are read as they are needed.
            Err(e) => {
                tracing::debug!("cannot read {}: {e}", self.file.display());
                Vec::new()
            }
        }
    }

    fn read(&self) -> io::Result<Option<Vec<ExpertId>>> {
        use std::io::Read;
        // Before it is opened: opening a pipe waits for whoever writes to it.
        if !std::fs::metadata(&self.file)?.is_file() {
            return Ok(None);
        }
        let file = std::fs::File::open(&self.file)?;
        let most = MAGIC.len() + 8 + 4 + 4 * MAX_RECORDS + 8;
        let mut bytes = Vec::new();
        // One more than the most, so that a longer one is seen to be.
        file.take(most as u64 + 1).read_to_end(&mut bytes)?;
        Ok(self.parse(&bytes))
    }

    fn parse(&self, bytes: &[u8]) -> Option<Vec<ExpertId>> {
        let (body, sum) = bytes.split_last_chunk::<8>()?;
        let rest = body.strip_prefix(MAGIC)?;
        let (model, rest) = rest.split_first_chunk::<8>()?;
        let (count, rest) = rest.split_first_chunk::<4>()?;
        let whole = u64::from_le_bytes(*sum) == xxh3_64(body)
            && u64::from_le_bytes(*model) == self.model
            && rest.len() == 4 * u32::from_le_bytes(*count) as usize;
        if !whole {
            return None;
        }
        let id = |record: &[u8; 4]| {
            let record = u32::from_le_bytes(*record) as usize;
            let layer = u16::try_from(record / self.experts.max(1)).ok()?;
            Some(ExpertId { layer, expert: (record % self.experts.max(1)) as u16 })
        };
        rest.as_chunks::<4>().0.iter().map(id).collect()
    }

    /// Writes the list beside its place and puts it there in one step: another process finds the old one or the new one.
    pub(crate) fn save(&self, ids: &[ExpertId]) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&self.model.to_le_bytes());
        let ids = &ids[..ids.len().min(MAX_RECORDS)];
        bytes.extend_from_slice(&(ids.len() as u32).to_le_bytes());
        for id in ids {
            let record = usize::from(id.layer) * self.experts + usize::from(id.expert);
            bytes.extend_from_slice(&(record as u32).to_le_bytes());
        }
        let sum = xxh3_64(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        if let Some(folder) = self.file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let beside = self.file.with_extension(format!("{}.tmp", std::process::id()));
        let written = std::fs::write(&beside, &bytes).and_then(|()| std::fs::rename(&beside, &self.file));
        if written.is_err() {
            let _ = std::fs::remove_file(&beside);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> Vec<ExpertId> {
        [(3, 1), (0, 7), (2, 2)].map(|(layer, expert)| ExpertId { layer, expert }).to_vec()
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let hot = HotList::new(&folder.path().join("new"), 77, 8);
        assert!(hot.load().is_empty());
        hot.save(&ids()).unwrap();
        assert_eq!(hot.load(), ids());
        assert_eq!(std::fs::read_dir(folder.path().join("new")).unwrap().count(), 1);
    }

    /// Opening a pipe waits for whoever writes to it, and nobody does.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_pipe_is_no_list_and_is_not_waited_for() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        use std::time::Duration;
        let folder = tempfile::tempdir().unwrap();
        let hot = HotList::new(folder.path(), 77, 8);
        mknodat(CWD, &hot.file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let (done, waits) = std::sync::mpsc::channel();
        let reader = hot.clone();
        std::thread::spawn(move || done.send(reader.load()));
        assert_eq!(waits.recv_timeout(Duration::from_secs(10)), Ok(Vec::new()));
        // What takes its place is a list again.
        hot.save(&ids()).unwrap();
        assert_eq!(hot.load(), ids());
    }

    #[test]
    fn what_is_damaged_or_anothers_is_as_good_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let hot = HotList::new(folder.path(), 77, 8);
        hot.save(&ids()).unwrap();
        let whole = std::fs::read(&hot.file).unwrap();
        for i in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[i] ^= 1;
            assert_eq!(hot.parse(&bytes), None, "byte {i}");
            assert_eq!(hot.parse(&whole[..i]), None, "{i} bytes");
        }
        assert_eq!(HotList { model: 78, ..hot.clone() }.parse(&whole), None);
        std::fs::remove_file(&hot.file).unwrap();
        std::fs::create_dir(&hot.file).unwrap();
        assert!(hot.load().is_empty());
        assert!(hot.save(&ids()).is_err());
    }
}
