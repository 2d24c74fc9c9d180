//! Reads of records that are on their way together, all driven by one thread, as by Linux's io_uring.

use std::ptr::NonNull;
use std::task::Waker;
use std::time::Duration;

use crate::{ExpertId, ReadError};

/// How a read that was started has ended. Nothing writes to its memory any more.
#[derive(Debug)]
pub enum RingEnd {
    /// As [`crate::RecordSource::read_record`] would have returned.
    Done(Result<(), ReadError>),
    /// The system does not read this way, so that the record has to be read in another; no other read will be taken. The
    /// source has said so and has given the ring up: its read mode is another one by now.
    Refused,
}

/// Starts reads, and tells which have ended.
///
/// # Safety
/// Every read that was started ends exactly once, through [`ReadRing::wait`], unless the ring is dropped before. Once a
/// read has ended nothing writes to its memory, and dropping the ring returns only when that holds for all of them.
#[allow(unsafe_code)]
pub unsafe trait ReadRing {
    /// Starts reading the record to `out`, as [`crate::RecordSource::read_record`] reads it to a slice of `len` bytes.
    /// Errors come through [`ReadRing::wait`]. `token` names the read and is not that of another on its way.
    ///
    /// # Safety
    /// `out` is valid for reads and writes of `len` initialised bytes, which nobody else reads or writes until the read has
    /// ended or the ring has been dropped.
    unsafe fn start(&mut self, token: u64, id: ExpertId, out: NonNull<u8>, len: usize);

    /// Waits until a read has ended, somebody used the waker, or the time is over, and adds what has ended to `ended`. May
    /// return early with nothing.
    fn wait(&mut self, ended: &mut Vec<(u64, RingEnd)>, most: Option<Duration>);

    /// Ends a wait from another thread, or the next wait if there is none.
    fn waker(&self) -> Waker;
}
