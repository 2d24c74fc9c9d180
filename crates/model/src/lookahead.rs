//! Whether reading the next layer's experts ahead pays, on this drive and at this moment.
//!
//! A guess is right for most experts, and costs a drive that is busy anyway: others measured from +11 to −21 %. So it is
//! tried: some tokens with and some without, and the faster way is kept until the next trial. Must not look at what is
//! computed: the output does not depend on it.

use std::time::{Duration, Instant};

/// Tokens of a run of a trial; the first is not counted, since it finds what the other way left.
const TRIAL_TOKENS: u32 = 5;
/// Runs of a trial: off, on, off, on and so on, so that a slow change of the text weighs on both alike.
const TRIAL_RUNS: u32 = 8;
/// Guesses have to save at least one part in this of the time: they wear the drive.
const MARGIN: u32 = 32;
/// Tokens from a trial to the next.
const KEEP_TOKENS: u32 = 512;

/// When the next layer's experts are read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LookaheadMode {
    /// Where it is measured to pay.
    #[default]
    Auto,
    /// Whenever single tokens are decoded and not every expert is in memory.
    On,
    /// Never.
    Off,
}

/// Decides, token by token.
#[derive(Debug, Default)]
pub struct Lookahead {
    mode: LookaheadMode,
    /// Tokens since the trial began.
    token: u32,
    on: bool,
    started: Option<Instant>,
    /// Of the trial: without and with.
    spent: [Duration; 2],
}

impl Lookahead {
    /// In that mode, with nothing measured yet.
    pub fn new(mode: LookaheadMode) -> Self {
        Self { mode, ..Self::default() }
    }

    /// A token begins: whether to read ahead in it.
    pub(crate) fn begin(&mut self) -> bool {
        self.started = Some(Instant::now());
        match self.mode {
            LookaheadMode::On => self.on = true,
            LookaheadMode::Off => self.on = false,
            LookaheadMode::Auto => {
                if self.token < TRIAL_TOKENS * TRIAL_RUNS {
                    self.on = self.token / TRIAL_TOKENS % 2 == 1;
                }
            }
        }
        self.on
    }

    /// The token has ended.
    pub(crate) fn end(&mut self) {
        if let Some(started) = self.started.take() {
            self.record(started.elapsed());
        }
    }

    fn record(&mut self, time: Duration) {
        let trial = TRIAL_TOKENS * TRIAL_RUNS;
        if self.token < trial && !self.token.is_multiple_of(TRIAL_TOKENS) {
            self.spent[usize::from(self.on)] += time;
        }
        self.token += 1;
        if self.token == trial {
            self.on = self.spent[1] + self.spent[0] / MARGIN < self.spent[0];
        } else if self.token == trial + KEEP_TOKENS {
            (self.token, self.spent) = (0, [Duration::ZERO; 2]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens of a trial and one more, at these times without and with.
    fn tried(off_ms: u64, on_ms: u64) -> bool {
        let mut l = Lookahead::default();
        for _ in 0..TRIAL_TOKENS * TRIAL_RUNS {
            let on = l.begin();
            l.record(Duration::from_millis(if on { on_ms } else { off_ms }));
        }
        l.begin()
    }

    #[test]
    fn the_faster_way_is_kept() {
        assert!(tried(200, 150));
        assert!(!tried(150, 200));
        assert!(!tried(200, 200));
        assert!(!tried(200, 198), "so little is not worth the reads");
    }

    #[test]
    fn a_drive_that_changes_is_tried_again() {
        let mut l = Lookahead::default();
        let mut tokens_on = 0;
        for _ in 0..2 * (TRIAL_TOKENS * TRIAL_RUNS + KEEP_TOKENS) {
            let on = l.begin();
            l.record(Duration::from_millis(if on { 2 } else { 1 }));
            tokens_on += u32::from(on);
        }
        assert_eq!(tokens_on, 2 * TRIAL_TOKENS * TRIAL_RUNS / 2);
    }

    #[test]
    fn modes_are_obeyed() {
        assert!(Lookahead::new(LookaheadMode::On).begin());
        assert!(!Lookahead::new(LookaheadMode::Off).begin());
    }
}
