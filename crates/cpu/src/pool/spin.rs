//! How long to poll before sleeping.

use std::time::Duration;

/// Polling for a bounded time, which follows whether polling has paid off.
///
/// Waking a sleeping thread costs tens of microseconds, so polling pays when the next job is likely to come sooner. In
/// a decode step it comes after a few; while the engine waits for a drive or for a user it does not. The time doubles
/// when a job came while polling and halves when none did.
#[derive(Clone, Debug)]
pub(super) struct Spin {
    limit: Duration,
    budget: Duration,
    /// There are more threads than processors: whoever polls keeps another from working.
    crowded: bool,
}

/// The budget never falls below this part of the limit, so that it can recover.
const FLOOR: u32 = 16;
/// The part of the limit that is polled without giving the processor away.
const PAUSE: u32 = 8;
/// Polls between two looks at the clock: about a microsecond.
const BURST: u32 = 32;
/// Times that a crowded thread lets the others go first.
const YIELDS: u32 = 8;

impl Spin {
    pub(super) fn new(limit: Duration, crowded: bool) -> Self {
        Self { limit, budget: limit, crowded }
    }

    /// Polls until `ready` or until the time is up; whether it was ready.
    pub(super) fn until(&self, ready: impl Fn() -> bool) -> bool {
        if cfg!(all(loom, test)) {
            // A single look: loom tries every order anyway, that in which it is found and that in which it is not.
            return ready();
        }
        if self.crowded {
            return (0..YIELDS).any(|_| {
                let ready = ready();
                if !ready {
                    std::thread::yield_now();
                }
                ready
            });
        }
        let pause = || {
            std::hint::spin_loop();
            ready()
        };
        if ready() || (0..BURST).any(|_| pause()) {
            return true;
        }
        let start = std::time::Instant::now();
        loop {
            let elapsed = start.elapsed();
            if elapsed >= self.budget {
                return ready();
            } else if elapsed >= self.limit / PAUSE {
                // Nothing has come for long: threads that have work, such as readers of the store, go first.
                std::thread::yield_now();
                if ready() {
                    return true;
                }
            } else if (0..BURST).any(|_| pause()) {
                return true;
            }
        }
    }

    /// Takes note of whether polling paid off.
    pub(super) fn adapt(&mut self, paid_off: bool) {
        self.budget = if paid_off {
            (self.budget * 2).min(self.limit)
        } else {
            (self.budget / 2).max(self.limit / FLOOR)
        };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn budget_follows_success_within_bounds() {
        let limit = Duration::from_micros(160);
        let mut spin = Spin::new(limit, false);
        for _ in 0..9 {
            spin.adapt(false);
        }
        assert_eq!(spin.budget, Duration::from_micros(10));
        spin.adapt(true);
        assert_eq!(spin.budget, Duration::from_micros(20));
        for _ in 0..9 {
            spin.adapt(true);
        }
        assert_eq!(spin.budget, limit);
    }

    #[test]
    fn polling_ends() {
        for (limit, crowded) in
            [(Duration::ZERO, false), (Duration::from_micros(50), false), (Duration::MAX, true)]
        {
            let spin = Spin::new(limit, crowded);
            assert!(!spin.until(|| false));
            assert!(spin.until(|| true));
        }
    }
}
