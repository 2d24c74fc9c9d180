//! `dense.bin` read as one image, at the speed of the drive: two threads read large pieces into their places while the
//! caller's checks those that have arrived, in the order of the file.
//!
//! One reader would leave the drive idle between its reads; more would gain nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

use spinetail_core::ReadError;
use xxhash_rust::xxh3::Xxh3;

use crate::Container;
use crate::data::BLOCK_BYTES;

/// Bytes of one read, and of one step of progress: whole 2 MiB pages.
const PIECE_BYTES: usize = 8 << 20;

const READERS: usize = 2;

/// A piece by its index, with its bytes once they have been read.
type Arrival<'a> = (usize, Result<&'a [u8], ReadError>);

/// The work of the readers.
struct Readers<'a, 'c> {
    container: &'c Container,
    left: Mutex<std::iter::Enumerate<std::slice::ChunksMut<'a, u8>>>,
    stop: AtomicBool,
}

impl<'a> Readers<'a, '_> {
    fn read_all(&self, arrived: &Sender<Arrival<'a>>) {
        while let Some(arrival) = self.read_next() {
            if arrived.send(arrival).is_err() {
                return;
            }
        }
    }

    /// Reads a piece that nobody has taken on yet; `None` when there is none, or somebody found an error.
    fn read_next(&self) -> Option<Arrival<'a>> {
        if self.stop.load(Relaxed) {
            return None;
        }
        let (i, piece) = self.left.lock().unwrap_or_else(PoisonError::into_inner).next()?;
        // The system prepares memory when it is first touched, a large page at a time; a read into memory that was
        // never touched would have it done page by page.
        piece.iter_mut().step_by(BLOCK_BYTES).for_each(|b| *b = 0);
        let read = self.container.dense.read((i * PIECE_BYTES) as u64, piece);
        let read = read.map(|()| &*piece);
        self.stop.fetch_or(read.is_err(), Relaxed);
        Some((i, read))
    }
}

/// Holds the parts of the file against their checksums as bytes come in order.
struct Checker<'c> {
    container: &'c Container,
    /// The part at hand.
    part: usize,
    at: u64,
    hash: Xxh3,
}

impl Checker<'_> {
    fn check(&mut self, mut bytes: &[u8]) -> Result<(), ReadError> {
        // With their padding, parts lie one after another from the start of the file.
        while let Some(part) = self.container.parts.get(self.part).filter(|_| !bytes.is_empty()) {
            let left = part.end.saturating_sub(self.at);
            let (now, later) = bytes.split_at(bytes.len().min(left as usize));
            self.hash.update(now);
            self.at += now.len() as u64;
            bytes = later;
            if self.at == part.end {
                self.container.compare_part(self.part, self.hash.digest())?;
                self.hash.reset();
                self.part += 1;
            }
        }
        Ok(())
    }
}

/// See [`spinetail_core::DenseSource::read_image`].
pub(crate) fn read_image(
    container: &Container,
    out: &mut [u8],
    progress: &mut dyn FnMut(u64),
) -> Result<(), ReadError> {
    if !out.len().is_multiple_of(BLOCK_BYTES) || out.len() as u64 > container.dense_bytes() {
        let what = format!("{} bytes of dense tensors, it has {}", out.len(), container.dense_bytes());
        return Err(ReadError::Unknown { what });
    }
    let readers = Readers {
        container,
        left: Mutex::new(out.chunks_mut(PIECE_BYTES).enumerate()),
        stop: AtomicBool::new(false),
    };
    let mut checker = Checker { container, part: 0, at: 0, hash: Xxh3::new() };
    std::thread::scope(|scope| {
        let (arrived, arrivals) = channel();
        let mut started = 0;
        for _ in 0..READERS {
            let (arrived, readers) = (arrived.clone(), &readers);
            let reader = Builder::new().name("dense".to_owned());
            started += usize::from(reader.spawn_scoped(scope, move || readers.read_all(&arrived)).is_ok());
        }
        drop(arrived);
        // Where the system gives no thread at all, this one reads and checks in turns.
        let next_arrival = || if started > 0 { arrivals.recv().ok() } else { readers.read_next() };
        let mut waiting = BTreeMap::new();
        let mut next = 0;
        // Ends when all readers have, which they do after an error as well.
        while let Some((i, piece)) = next_arrival() {
            waiting.insert(i, piece);
            while let Some(piece) = waiting.remove(&next) {
                let checked = piece.and_then(|bytes| checker.check(bytes).map(|()| bytes.len()));
                readers.stop.fetch_or(checked.is_err(), Relaxed);
                progress(checked? as u64);
                next += 1;
            }
        }
        // A piece that failed behind one that was never read.
        waiting.into_values().find_map(Result::err).map_or(Ok(()), Err)
    })
}
