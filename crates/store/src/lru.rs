//! Least-recently-used order over slot indices: a doubly linked list in two vectors, every operation O(1).

const NONE: u32 = u32::MAX;

/// The order, from the least recently used slot to the most recently used one.
#[derive(Debug, Default)]
pub(crate) struct Lru {
    /// Next more recently used slot.
    newer: Vec<u32>,
    /// Next less recently used slot.
    older: Vec<u32>,
    oldest: Option<u32>,
    newest: Option<u32>,
}

impl Lru {
    /// Adds the next slot index, as the most recently used.
    pub(crate) fn push(&mut self) -> u32 {
        let slot = self.newer.len() as u32;
        self.newer.push(NONE);
        self.older.push(NONE);
        self.link_newest(slot);
        slot
    }

    /// Marks `slot` as the most recently used.
    pub(crate) fn touch(&mut self, slot: u32) {
        if self.newest != Some(slot) {
            self.unlink(slot);
            self.link_newest(slot);
        }
    }

    /// Slots from the least recently used one on.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        std::iter::successors(self.oldest, |&s| Some(self.newer[s as usize]).filter(|&n| n != NONE))
    }

    fn unlink(&mut self, slot: u32) {
        let (newer, older) = (self.newer[slot as usize], self.older[slot as usize]);
        match newer {
            NONE => self.newest = Some(older).filter(|&s| s != NONE),
            n => self.older[n as usize] = older,
        }
        match older {
            NONE => self.oldest = Some(newer).filter(|&s| s != NONE),
            o => self.newer[o as usize] = newer,
        }
    }

    fn link_newest(&mut self, slot: u32) {
        self.newer[slot as usize] = NONE;
        self.older[slot as usize] = self.newest.unwrap_or(NONE);
        match self.newest {
            Some(n) => self.newer[n as usize] = slot,
            None => self.oldest = Some(slot),
        }
        self.newest = Some(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_agrees_with_a_vector() {
        let (mut lru, mut naive) = (Lru::default(), Vec::new());
        let mut seed = 1u32;
        for step in 0..2000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if naive.len() < 7 && step % 5 == 0 {
                naive.push(lru.push());
            } else {
                let slot = naive[(seed >> 16) as usize % naive.len()];
                lru.touch(slot);
                naive.retain(|&s| s != slot);
                naive.push(slot);
            }
            assert_eq!(lru.iter().collect::<Vec<_>>(), naive, "step {step}");
        }
    }
}
