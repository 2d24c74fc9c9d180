//! Where codes lie in the bit stream of a row.

/// Where each code begins within its word.
pub(super) const fn shifts<const BITS: usize>(at: usize) -> [i32; 8] {
    let (low, high, first) = places::<BITS>(at);
    let mut shifts = [0; 8];
    let mut i = 0;
    while i < 8 {
        let word = if i < 4 { low } else { high };
        shifts[i] = (first + i * BITS + 8 * low - 8 * word) as i32;
        i += 1;
    }
    shifts
}

/// The offsets of the words in which the first and the last four of eight codes lie whole, and the bit of the first
/// word at which the first code begins.
pub(super) const fn places<const BITS: usize>(at: usize) -> (usize, usize, usize) {
    match BITS {
        2 => (at / 2 * 4, at / 2 * 4, at % 2 * 16),
        // The last word would pass the end of the unit.
        3 if at == 3 => (8, 8, 8),
        3 | 4 => (BITS * at, BITS * at, 0),
        _ => (BITS * at, BITS * at + BITS - 4, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_hold_their_codes<const BITS: usize>() {
        for at in 0..4 {
            let (low, high, _) = places::<BITS>(at);
            for (i, shift) in shifts::<BITS>(at).into_iter().enumerate() {
                let word = if i < 4 { low } else { high };
                let bit = 8 * word + shift as usize;
                assert_eq!(bit, (8 * at + i) * BITS, "{BITS} bits, code {i} of eight {at}");
                assert!(shift >= 0 && shift as usize + BITS <= 32 && word + 4 <= 4 * BITS);
            }
        }
    }

    #[test]
    fn every_code_lies_whole_in_a_word_of_its_unit() {
        words_hold_their_codes::<2>();
        words_hold_their_codes::<3>();
        words_hold_their_codes::<4>();
        words_hold_their_codes::<5>();
        words_hold_their_codes::<6>();
    }
}
