//! `checksums.bin`: one xxh3-64 per dense part and per record, and the SHA-256 of the manifest.
//!
//! Only the file's bytes; what the checksums are of is the manifest's and the verifier's business.

use std::path::Path;

use spinetail_core::{ExpertId, Limits};
use xxhash_rust::xxh3::xxh3_64;

use crate::ContainerError;
use crate::error::equal;

pub(crate) const FILE: &str = "checksums.bin";

const MAGIC: &[u8; 8] = b"QPACKSUM";
/// xxh3, 64 bits, seed 0.
const HASH_KIND: u32 = 1;
const HEADER_BYTES: usize = 64;
/// Most dense parts that fit the limits: every layer of [`Limits`] with every tensor in three parts.
const MAX_DENSE_PARTS: u64 = 1 << 17;
/// A bound on the file, from the bounds on its counts.
pub(crate) const MAX_BYTES: u64 =
    HEADER_BYTES as u64 + 8 * (MAX_DENSE_PARTS + (Limits::LAYERS as u64 + 1) * Limits::EXPERTS as u64) + 8;

/// The contents of `checksums.bin`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checksums {
    /// SHA-256 of `manifest.json`.
    pub(crate) manifest_sha256: [u8; 32],
    /// Of each dense part with the padding after it, in the order of the file.
    pub(crate) dense: Vec<u64>,
    /// Of each record's whole stride, layer by layer.
    pub(crate) records: Vec<u64>,
    /// Layers with records.
    pub(crate) layers: u32,
    /// Records of a layer.
    pub(crate) experts: u32,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64s(bytes: &[u8]) -> Vec<u64> {
    bytes
        .chunks_exact(8)
        .map(|b| u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
        .collect()
}

impl Checksums {
    /// Bytes of the file for these counts.
    pub(crate) const fn file_bytes(dense: u64, layers: u64, experts: u64) -> u64 {
        HEADER_BYTES as u64 + 8 * (dense + layers * experts) + 8
    }

    /// Reads the bytes of `file`, which is named in errors and not opened. Every byte is accounted for.
    pub fn parse(file: &Path, bytes: &[u8]) -> Result<Self, ContainerError> {
        let invalid = |field: &str, expected: String, found: String| {
            Err(ContainerError::invalid(file, field, expected, found))
        };
        let len = bytes.len() as u64;
        if len < Self::file_bytes(0, 0, 0) || len > MAX_BYTES {
            return invalid("size", format!("72 to {MAX_BYTES} bytes"), len.to_string());
        }
        if &bytes[..8] != MAGIC {
            return invalid("magic", "\"QPACKSUM\"".to_owned(), format!("\"{}\"", bytes[..8].escape_ascii()));
        }
        equal(file, "version", &crate::VERSION, &u32_at(bytes, 8))?;
        equal(file, "hash kind", &HASH_KIND, &u32_at(bytes, 12))?;
        let (dense, layers, experts) = (u32_at(bytes, 48), u32_at(bytes, 52), u32_at(bytes, 56));
        equal(file, "reserved", &0, &u32_at(bytes, 60))?;
        let bounds = [
            ("dense parts", dense, MAX_DENSE_PARTS),
            ("layers", layers, Limits::LAYERS as u64 + 1),
            ("experts", experts, Limits::EXPERTS as u64),
        ];
        for (field, found, max) in bounds {
            if u64::from(found) > max {
                return invalid(field, format!("at most {max}"), found.to_string());
            }
        }
        equal(file, "size", &Self::file_bytes(dense.into(), layers.into(), experts.into()), &len)?;
        let (body, tail) = bytes.split_at(bytes.len() - 8);
        let (expected, found) = (u64s(tail)[0], xxh3_64(body));
        if expected != found {
            return invalid("checksum of this file", format!("{expected:016x}"), format!("{found:016x}"));
        }
        let (dense_sums, record_sums) = body[HEADER_BYTES..].split_at(8 * dense as usize);
        let mut manifest_sha256 = [0; 32];
        manifest_sha256.copy_from_slice(&bytes[16..48]);
        Ok(Self { manifest_sha256, dense: u64s(dense_sums), records: u64s(record_sums), layers, experts })
    }

    /// The bytes of the file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + 8 * (self.dense.len() + self.records.len() + 1));
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&crate::VERSION.to_le_bytes());
        out.extend_from_slice(&HASH_KIND.to_le_bytes());
        out.extend_from_slice(&self.manifest_sha256);
        for count in [self.dense.len() as u32, self.layers, self.experts, 0] {
            out.extend_from_slice(&count.to_le_bytes());
        }
        for sum in self.dense.iter().chain(&self.records) {
            out.extend_from_slice(&sum.to_le_bytes());
        }
        let sum = xxh3_64(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// Refuses counts other than the manifest's.
    pub(crate) fn check_counts(
        &self,
        file: &Path,
        dense: usize,
        layers: usize,
        experts: usize,
    ) -> Result<(), ContainerError> {
        equal(file, "dense parts", &dense, &self.dense.len())?;
        equal(file, "layers", &layers, &(self.layers as usize))?;
        equal(file, "experts", &experts, &(self.experts as usize))
    }

    /// The checksum of a record; `None` past the last.
    pub(crate) fn record(&self, id: ExpertId) -> Option<u64> {
        if u32::from(id.expert) >= self.experts {
            return None;
        }
        self.records.get(usize::from(id.layer) * self.experts as usize + usize::from(id.expert)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Checksums {
        Checksums {
            manifest_sha256: [7; 32],
            dense: vec![1, 2, 3],
            records: vec![10, 11, 20, 21],
            layers: 2,
            experts: 2,
        }
    }

    #[test]
    fn what_is_written_is_read_and_any_flipped_bit_is_found() {
        let file = Path::new("checksums.bin");
        let bytes = small().encode();
        assert_eq!(bytes.len() as u64, Checksums::file_bytes(3, 2, 2));
        assert_eq!(Checksums::parse(file, &bytes).unwrap(), small());
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut b = bytes.clone();
                b[at] ^= 1 << bit;
                assert!(Checksums::parse(file, &b).is_err(), "bit {bit} of byte {at}");
            }
            assert!(Checksums::parse(file, &bytes[..at]).is_err());
        }
        let longer = [bytes, vec![0; 8]].concat();
        assert!(Checksums::parse(file, &longer).is_err());
    }

    #[test]
    fn records_are_found_by_layer_and_expert() {
        let sums = small();
        assert_eq!(sums.record(ExpertId { layer: 1, expert: 0 }), Some(20));
        assert_eq!(sums.record(ExpertId { layer: 0, expert: 2 }), None);
        assert_eq!(sums.record(ExpertId { layer: 2, expert: 0 }), None);
    }
}
