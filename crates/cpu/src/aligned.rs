//! Floats that begin at a cache line, so that no vector of theirs lies in two: what a state that is read and written for
//! every token gains much by. Must not be grown, since the floats would move.

use std::ops::{Deref, DerefMut};

use spinetail_model::BackendError;

/// Bytes of the largest vectors and of most cache lines.
const LINE_BYTES: usize = 64;

/// As many floats as it was made with.
pub(crate) struct Aligned {
    memory: Vec<f32>,
    /// Floats before the first cache line.
    start: usize,
    len: usize,
}

impl Aligned {
    /// `len` zeroes.
    pub(crate) fn zeroed(len: usize) -> Self {
        Self::within(vec![0.0; len + LINE_BYTES / size_of::<f32>()], len)
    }

    /// `len` zeroes, or an error instead of the end of the process.
    pub(crate) fn try_zeroed(len: usize) -> Result<Self, BackendError> {
        let (mut memory, n) = (Vec::new(), len + LINE_BYTES / size_of::<f32>());
        let bytes = (n * size_of::<f32>()) as u64;
        memory.try_reserve_exact(n).map_err(|_| BackendError::Memory { bytes })?;
        memory.resize(n, 0.0);
        Ok(Self::within(memory, len))
    }

    fn within(memory: Vec<f32>, len: usize) -> Self {
        let start = memory.as_ptr().align_offset(LINE_BYTES).min(memory.len() - len);
        Self { memory, start, len }
    }
}

impl Deref for Aligned {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_begin_at_a_line_and_are_as_many_as_asked_for() {
        for len in [0, 1, 16, 1000] {
            for mut x in [Aligned::zeroed(len), Aligned::try_zeroed(len).expect("memory")] {
                assert!((x.as_ptr() as usize).is_multiple_of(LINE_BYTES) && x.len() == len);
                x.fill(1.0);
                assert_eq!(x.iter().sum::<f32>(), len as f32);
            }
        }
        assert!(matches!(Aligned::try_zeroed(usize::MAX / 8), Err(BackendError::Memory { .. })));
    }
}
