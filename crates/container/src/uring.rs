//! Records of a container read through Linux's io_uring: one thread has many reads on their way, each straight into the
//! memory where its record is used.
//!
//! The kernel writes to that memory behind the compiler's back, from the time a request lies in the submission queue until
//! its completion has been seen. So nothing here ends a read before, and [`Ring`] is not dropped before either.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel};
use std::task::{Wake, Waker};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};
use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::io::Errno;
use spinetail_core::{ExpertId, ReadError, ReadRing, RingEnd};

use crate::Container;
use crate::data::BLOCK_BYTES;

/// The key of the request that waits for the bell; those of reads are indices.
const BELL: u64 = u64::MAX;

/// What is watched for: there is something to read.
const POLL_IN: u32 = PollFlags::IN.bits() as u32;

/// Bytes of one request at most: their number has 32 bits.
const MOST_BYTES: usize = 1 << 30;

/// A read that the kernel puts off without a byte is asked for this often before that counts as an error.
const MOST_AGAIN: u8 = 16;

/// Between looks at what has ended, where the kernel cannot be waited for.
const LOOK: Duration = Duration::from_millis(1);

/// What wakes a ring's thread: an event that the ring watches as it watches its reads.
struct Bell {
    event: OwnedFd,
    /// Rung, and not answered yet: ringing again would say nothing new.
    rung: AtomicBool,
}

impl Bell {
    /// Before whoever answers looks at what it was rung for: a ring that comes after is a new one.
    fn answer(&self) {
        // Empty if it was not rung.
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        self.rung.swap(false, AcqRel);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, AcqRel) {
            // It fails only where the counter is full, which is as good as rung.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

struct Read {
    token: u64,
    id: ExpertId,
    offset: u64,
    to: NonNull<u8>,
    len: usize,
    done: usize,
    direct: bool,
    again: u8,
}

struct Ring<'c> {
    container: &'c Container,
    ring: IoUring,
    bell: Arc<Bell>,
    /// Whether the bell is being watched.
    watched: bool,
    /// By key.
    reads: Vec<Option<Read>>,
    /// Reads that are to go into the submission queue.
    waiting: VecDeque<u64>,
    /// What lies in the submission queue, in its order.
    submitted: VecDeque<u64>,
    /// Reads that were put there and have no completion yet.
    flying: usize,
    /// What has ended and was not handed over yet.
    ended: Vec<(u64, RingEnd)>,
    /// The kernel does not do what is asked: no read is started any more.
    refused: bool,
    /// The kernel cannot be called at all. What it has it still ends.
    dead: bool,
}

/// A ring for `reads` reads at once.
pub(crate) fn ring(container: &Container, reads: u32) -> io::Result<Box<dyn ReadRing + '_>> {
    // Room for the bell as well, and still none for no reads.
    let ring = IoUring::new(reads.saturating_mul(2))?;
    if !ring.params().is_feature_ext_arg() {
        return Err(io::Error::new(ErrorKind::Unsupported, "it needs Linux 5.11 or later"));
    }
    // Setting up may be allowed where calling is not.
    ring.submit()?;
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    Ok(Box::new(Ring {
        container,
        ring,
        bell: Arc::new(Bell { event, rung: AtomicBool::new(false) }),
        watched: false,
        reads: Vec::new(),
        waiting: VecDeque::new(),
        submitted: VecDeque::new(),
        flying: 0,
        ended: Vec::new(),
        refused: false,
        dead: false,
    }))
}

/// Whether an error says that the kernel does not do such a thing, not that this one failed. It cancels requests, which
/// nobody here does, where it may not start the threads that reads are put off to.
fn is_refusal(e: &io::Error) -> bool {
    let cancelled = Errno::from_io_error(e) == Some(Errno::CANCELED);
    cancelled
        || matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::PermissionDenied)
}

impl Ring<'_> {
    fn refuse(&mut self, reason: &io::Error) {
        self.refused = true;
        self.container.reading.give_up_ring(reason);
    }

    /// Puts what is waiting into the submission queue, as far as there is room.
    fn submit(&mut self) {
        if self.dead {
            for key in std::mem::take(&mut self.waiting) {
                self.end(key, RingEnd::Refused);
            }
            return;
        }
        let mut queue = self.ring.submission();
        if !self.watched && !self.refused {
            let watch = opcode::PollAdd::new(Fd(self.bell.event.as_raw_fd()), POLL_IN).build();
            // SAFETY: it has no memory of ours.
            self.watched = unsafe { queue.push(&watch.user_data(BELL)) }.is_ok();
            self.submitted.extend(self.watched.then_some(BELL));
        }
        while let Some(&key) = self.waiting.front() {
            let Some(read) = self.reads.get(key as usize).and_then(Option::as_ref) else {
                self.waiting.pop_front();
                continue;
            };
            let file = self.container.layers[usize::from(read.id.layer)].file(read.direct).as_raw_fd();
            // SAFETY: done < len, so that the address is within the memory that `start` was given.
            let to = unsafe { read.to.add(read.done) };
            let bytes = (read.len - read.done).min(MOST_BYTES) as u32;
            let entry =
                opcode::Read::new(Fd(file), to.as_ptr(), bytes).offset(read.offset + read.done as u64);
            // SAFETY: the memory is as `start` was promised until this read has ended, which is not before the
            // completion of this request, and `Drop` waits for that. The container, and so its file, is borrowed.
            if unsafe { queue.push(&entry.build().user_data(key)) }.is_err() {
                break;
            }
            self.waiting.pop_front();
            self.submitted.push_back(key);
            self.flying += 1;
        }
    }

    /// Hands the submission queue to the kernel, and waits for a completion.
    fn enter(&mut self, most: Option<Duration>) {
        if self.dead {
            return std::thread::sleep(LOOK);
        }
        let entered = match most {
            None => self.ring.submit_and_wait(1),
            Some(most) => {
                let time = Timespec::from(most);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        let left = self.ring.submission().len();
        self.submitted.drain(..self.submitted.len().saturating_sub(left));
        let Err(error) = entered else { return };
        match Errno::from_io_error(&error) {
            Some(Errno::INTR | Errno::TIME | Errno::BUSY) => {}
            // No memory for requests just now.
            Some(Errno::AGAIN | Errno::NOMEM) => std::thread::sleep(LOOK),
            _ => self.die(&error),
        }
    }

    /// The kernel is not called again. What it has not taken from the submission queue it never will.
    fn die(&mut self, reason: &io::Error) {
        self.dead = true;
        self.refuse(reason);
        let never = std::mem::take(&mut self.submitted);
        self.flying -= never.iter().filter(|&&key| key != BELL).count();
        for key in never.into_iter().chain(std::mem::take(&mut self.waiting)) {
            self.end(key, RingEnd::Refused);
        }
    }

    /// Takes in what has been completed.
    fn take_completions(&mut self) {
        while let Some(completion) = self.next_completion() {
            match completion {
                (BELL, result) => {
                    self.watched = false;
                    self.bell.answer();
                    if result < 0 {
                        self.refuse(&io::Error::from_raw_os_error(-result));
                    }
                }
                (key, result) => self.completed(key, result),
            }
        }
    }

    fn next_completion(&mut self) -> Option<(u64, i32)> {
        let completion = self.ring.completion().next()?;
        let key = completion.user_data();
        self.flying -= usize::from(key != BELL);
        Some((key, completion.result()))
    }

    fn completed(&mut self, key: u64, result: i32) {
        let Some(read) = self.reads.get_mut(key as usize).and_then(Option::as_mut) else { return };
        let path = || self.container.layers[usize::from(read.id.layer)].path().to_owned();
        let (offset, bytes) = (read.offset, read.len as u64);
        if result > 0 {
            read.done += (result as usize).min(read.len - read.done);
            read.again = 0;
            if read.done == read.len {
                let checked = self.check(key);
                return self.end(key, RingEnd::Done(checked));
            }
            // The end of the file, near which a direct read could only fail.
            read.direct &= read.done.is_multiple_of(BLOCK_BYTES);
        } else if result == 0 && read.direct {
            read.direct = false;
        } else if result == 0 {
            let short = ReadError::Short { path: path(), offset, bytes, found: read.done as u64 };
            return self.end(key, RingEnd::Done(Err(short)));
        } else {
            let error = io::Error::from_raw_os_error(-result);
            let put_off = matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock);
            if is_refusal(&error) {
                self.refuse(&error);
                return self.end(key, RingEnd::Refused);
            }
            if !put_off || read.again == MOST_AGAIN {
                let failed = ReadError::Io { path: path(), offset, bytes, error };
                return self.end(key, RingEnd::Done(Err(failed)));
            }
            read.again += 1;
        }
        self.waiting.push_back(key);
    }

    /// Holds a record that has been read against its checksum, if that is asked for.
    fn check(&self, key: u64) -> Result<(), ReadError> {
        let Some(read) = self.reads[key as usize].as_ref().filter(|_| self.container.verify_reads) else {
            return Ok(());
        };
        // SAFETY: the memory is valid and initialised, as `start` was promised, and the kernel has completed the only
        // request for it.
        let bytes = unsafe { std::slice::from_raw_parts(read.to.as_ptr(), read.len) };
        self.container.check_read(read.id, bytes)
    }

    fn end(&mut self, key: u64, end: RingEnd) {
        let read = self.reads.get_mut(key as usize).and_then(Option::take);
        self.ended.extend(read.map(|read| (read.token, end)));
    }
}

// SAFETY: a read ends where its only request is known to be completed, or never to have been taken by the kernel; a
// request is put into the submission queue only while its read has not ended. `Drop` waits for all requests.
unsafe impl ReadRing for Ring<'_> {
    unsafe fn start(&mut self, token: u64, id: ExpertId, out: NonNull<u8>, len: usize) {
        if self.refused {
            return self.ended.push((token, RingEnd::Refused));
        }
        let (offset, len) = match self.container.place(id, len) {
            Ok(place) => place,
            Err(e) => return self.ended.push((token, RingEnd::Done(Err(e)))),
        };
        let file = &self.container.layers[usize::from(id.layer)];
        let direct = file.reads_directly(offset, out.addr().get(), len);
        let read = Read { token, id, offset, to: out, len, done: 0, direct, again: 0 };
        let key = self.reads.iter().position(Option::is_none).unwrap_or(self.reads.len());
        if key == self.reads.len() {
            self.reads.push(None);
        }
        self.reads[key] = Some(read);
        self.waiting.push_back(key as u64);
    }

    fn wait(&mut self, ended: &mut Vec<(u64, RingEnd)>, most: Option<Duration>) {
        if self.ended.is_empty() {
            self.submit();
            let most = if !self.waiting.is_empty() {
                // The queue was full. What found no room is put there by the next call, and must not wait for what did.
                Some(Duration::ZERO)
            } else if self.refused {
                // Nobody watches the bell then.
                Some(LOOK)
            } else {
                most
            };
            self.enter(most);
        }
        self.take_completions();
        ended.append(&mut self.ended);
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.bell))
    }
}

impl Drop for Ring<'_> {
    fn drop(&mut self) {
        while self.flying > 0 {
            self.enter(None);
            while self.next_completion().is_some() {}
        }
    }
}
