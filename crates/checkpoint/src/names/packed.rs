//! DeltaNet inputs as `qwen3_next` packs them: interleaved per key head.
//!
//! `in_proj_qkvz` holds, for each key head, its query rows, its key rows, then the value rows and the gate (z) rows of
//! the r = value heads / key heads value heads that share it; `in_proj_ba` holds r rows of b, then r rows of a. Groups
//! of quantized weights lie along the other dimension, so that rows can be taken apart whatever the format.

use std::ops::Range;

use spinetail_core::DeltaConfig;

/// Rows of the packed matrices.
pub(super) fn packed_rows(d: &DeltaConfig, matrix: &str) -> usize {
    match matrix {
        "in_proj_qkvz" => d.conv_channels() + d.value_channels(),
        _ => 2 * d.value_heads,
    }
}

/// The packed matrix in which a canonical one lies, and its rows there in canonical order: by head within q, k, v.
pub(super) fn unpack(d: &DeltaConfig, canonical: &str) -> Option<(&'static str, Vec<Range<usize>>)> {
    let shared = d.value_heads / d.key_heads;
    let (dk, dv) = (d.key_dim, shared * d.value_dim);
    let take = |stride: usize, start: usize, len: usize| {
        (0..d.key_heads).map(move |h| h * stride + start..h * stride + start + len)
    };
    let qkvz = 2 * dk + 2 * dv;
    Some(match canonical {
        "in_proj_qkv" => {
            let rows = take(qkvz, 0, dk).chain(take(qkvz, dk, dk)).chain(take(qkvz, 2 * dk, dv));
            ("in_proj_qkvz", rows.collect())
        }
        "in_proj_z" => ("in_proj_qkvz", take(qkvz, 2 * dk + dv, dv).collect()),
        "in_proj_b" => ("in_proj_ba", take(2 * shared, 0, shared).collect()),
        "in_proj_a" => ("in_proj_ba", take(2 * shared, shared, shared).collect()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_key_heads_with_two_value_heads_each() {
        let d = DeltaConfig { key_heads: 2, value_heads: 4, key_dim: 3, value_dim: 2, conv_kernel: 4 };
        assert_eq!(packed_rows(&d, "in_proj_qkvz"), 28);
        let rows = |name| unpack(&d, name).unwrap();
        assert_eq!(rows("in_proj_qkv"), ("in_proj_qkvz", vec![0..3, 14..17, 3..6, 17..20, 6..10, 20..24]));
        assert_eq!(rows("in_proj_z"), ("in_proj_qkvz", vec![10..14, 24..28]));
        assert_eq!(rows("in_proj_b"), ("in_proj_ba", vec![0..2, 4..6]));
        assert_eq!(rows("in_proj_a"), ("in_proj_ba", vec![2..4, 6..8]));
        assert_eq!(unpack(&d, "out_proj"), None);
    }
}
