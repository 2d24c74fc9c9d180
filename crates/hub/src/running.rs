//! A SHA-256 under way that can be put aside and taken up by another process.

use sha2::digest::common::hazmat::{SerializableState, SerializedState};
use sha2::{Digest, Sha256};

/// The hash of the bytes so far.
#[derive(Clone, Default)]
pub(crate) struct Running(Sha256);

impl Running {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of the bytes so far, in lower-case hexadecimal.
    pub(crate) fn digest(&self) -> String {
        hex(&self.0.clone().finalize())
    }

    /// Everything needed to go on, in hexadecimal.
    pub(crate) fn save(&self) -> String {
        hex(&self.0.serialize())
    }

    /// Takes up what was saved; `None` if it is not that.
    pub(crate) fn load(text: &str) -> Option<Self> {
        let mut state = SerializedState::<Sha256>::default();
        if !text.is_ascii() || text.len() != 2 * state.len() {
            return None;
        }
        for (i, byte) in state.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
        }
        Sha256::deserialize(&state).ok().map(Self)
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

/// Whether `s` is a SHA-256 in hexadecimal.
pub(crate) fn is_sha256(s: &str) -> bool {
    s.len() == 64 && s.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_split_gives_the_same_digest() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7 + i / 256) as u8).collect();
        let mut whole = Running::default();
        whole.update(&bytes);
        for at in [0, 1, 55, 56, 63, 64, 65, 127, 128, 500, 999, 1000] {
            let mut first = Running::default();
            first.update(&bytes[..at]);
            let mut second = Running::load(&first.save()).unwrap();
            second.update(&bytes[at..]);
            assert_eq!(second.digest(), whole.digest(), "{at}");
        }
        assert_eq!(
            Running::default().digest(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    #[test]
    fn what_was_not_saved_is_not_loaded() {
        let saved = Running::default().save();
        for bad in [
            "",
            "zz",
            &saved[1..],
            &format!("{saved}00"),
            &"f".repeat(saved.len()),
            &"é".repeat(saved.len() / 2),
        ] {
            assert!(Running::load(bad).is_none(), "{bad}");
        }
    }
}
