//! One thread that has all reads on their way, through its source's ring.
//!
//! Between [`ReadRing::start`] and its end a read writes to the slot of its job. The job stays where it is for that time,
//! out of everybody's reach, and [`Driver`] lets the ring go before the jobs: that is all that keeps memory whole here.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spinetail_core::{ReadRing, RingEnd};

use crate::readers::{Done, Job, Shared, panicked, pause};

/// A job that has been begun.
struct Flight {
    job: Job,
    begun: Instant,
    retries: u32,
    /// When it is tried again; `None` while it is being read.
    again: Option<Instant>,
}

struct Driver<'s> {
    shared: &'s Shared,
    /// Before `flights`, which the compiler drops later: their slots are written to until the ring is gone.
    ring: Box<dyn ReadRing + 's>,
    /// By token.
    flights: Vec<Option<Flight>>,
    /// The ring takes no more reads.
    refused: bool,
}

/// Reads jobs through the source's ring, at most `reads` at once, until no more will come or the ring is refused. Every
/// job that it took has then been handed back.
pub(crate) fn drive(shared: &Shared, reads: usize) {
    let Some(ring) = shared.source.ring(u32::try_from(reads).unwrap_or(u32::MAX)) else { return };
    shared.lock().waker = Some(ring.waker());
    let flights = (0..reads).map(|_| None).collect();
    let mut driver = Driver { shared, ring, flights, refused: false };
    // A panic would leave whoever waits for these records waiting for ever.
    let run = catch_unwind(AssertUnwindSafe(|| driver.run()));
    shared.lock().waker = None;
    let Driver { ring, flights, .. } = driver;
    // Nothing writes to a slot after this.
    drop(ring);
    if run.is_err() {
        tracing::error!("the thread that reads experts through a ring panicked: reading with one thread");
    }
    for Flight { job, begun, retries, .. } in flights.into_iter().flatten() {
        let (result, ns) = (Err(panicked(job.id)), begun.elapsed().as_nanos() as u64);
        shared.deliver(Done { job, result, ns, retries });
    }
}

impl Driver<'_> {
    /// Returns when no more jobs will come, with reads on their way or not, or when the ring is refused and empty.
    fn run(&mut self) {
        let mut ended = Vec::new();
        loop {
            if self.refused {
                self.put_back_resting();
                if self.flights.iter().all(Option::is_none) {
                    return;
                }
            } else {
                self.try_again();
                if !self.take_jobs() {
                    return;
                }
            }
            self.ring.wait(&mut ended, self.next_try());
            for (token, end) in ended.drain(..) {
                self.ended(token as usize, end);
            }
        }
    }

    /// Begins as many jobs as there is room for. `false` when no more will come.
    fn take_jobs(&mut self) -> bool {
        for token in 0..self.flights.len() {
            if self.flights[token].is_some() {
                continue;
            }
            let mut queue = self.shared.lock();
            if queue.stop {
                return false;
            }
            let Some(job) = queue.next() else { return true };
            drop(queue);
            self.flights[token] = Some(Flight { job, begun: Instant::now(), retries: 0, again: None });
            self.start(token);
        }
        !self.shared.lock().stop
    }

    /// Starts the reads whose pause is over.
    fn try_again(&mut self) {
        let now = Instant::now();
        for token in 0..self.flights.len() {
            if let Some(flight) = &mut self.flights[token]
                && flight.again.take_if(|again| *again <= now).is_some()
            {
                self.start(token);
            }
        }
    }

    /// Until the first pause is over.
    fn next_try(&self) -> Option<Duration> {
        let first = self.flights.iter().flatten().filter_map(|f| f.again).min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }

    /// Starts the read of a flight that is not being read.
    fn start(&mut self, token: usize) {
        let flight = self.flights[token].as_mut().expect("a flight is started where it is");
        let slot = Arc::get_mut(&mut flight.job.slot).expect("a job is given a slot that nobody else holds");
        let (memory, len) = slot.memory();
        // SAFETY: the slot is ours alone, as `get_mut` says, and its memory is valid and initialised for as long as it is
        // kept. It leaves `flights` only in `ended`, when its read has, or after the ring has been dropped (see `drive`
        // and the order of the fields), and until then nothing but this function touches it, which is called only for a
        // flight that is not being read.
        unsafe { self.ring.start(token as u64, flight.job.id, memory, len) };
    }

    fn ended(&mut self, token: usize, end: RingEnd) {
        let flight = self.flights.get_mut(token).and_then(Option::as_mut);
        let flight = flight.expect("a read ends once");
        let result = match end {
            RingEnd::Done(Err(error)) => match pause(&error, flight.retries) {
                Some(pause) => {
                    tracing::warn!("{}: {error}; reading it again", flight.job.id);
                    flight.retries += 1;
                    flight.again = Some(Instant::now() + pause);
                    return;
                }
                None => Some(Err(error)),
            },
            RingEnd::Done(Ok(())) => Some(Ok(())),
            RingEnd::Refused => None,
        };
        let Some(Flight { job, begun, retries, .. }) = self.flights[token].take() else { return };
        match result {
            Some(result) => {
                let ns = begun.elapsed().as_nanos() as u64;
                self.shared.deliver(Done { job, result, ns, retries });
            }
            None => {
                self.refused = true;
                self.shared.put_back(job);
            }
        }
    }

    /// Leaves jobs that wait for another try to those who read from now on.
    fn put_back_resting(&mut self) {
        for token in 0..self.flights.len() {
            let resting = self.flights[token].take_if(|flight| flight.again.is_some());
            if let Some(Flight { job, .. }) = resting {
                self.shared.put_back(job);
            }
        }
    }
}
