//! Random operands, reproducible.

use spinetail_core::{Affine, DType, Format, Part, TensorSpec};

use crate::kernels::Weights;

/// SplitMix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `n` − 1.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Uniform from −1 to 1.
    pub(super) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub(super) fn units(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }

    /// Numbers of all kinds: ordinary, zeros of both signs, denormal, tiny, huge.
    pub(super) fn extreme(&mut self) -> f32 {
        let x = self.unit();
        match self.below(8) {
            0 => 0.0,
            1 => -0.0,
            2 => x * 1e-41,
            3 => x * 1e-30,
            4 => x * 1e18,
            _ => x,
        }
    }

    pub(super) fn extremes(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.extreme()).collect()
    }
}

/// A matrix that owns its bytes, which begin at an odd address.
pub(super) struct Stored {
    pub(super) spec: TensorSpec,
    parts: [Vec<u8>; 3],
}

impl Stored {
    /// Any codes; scales and biases, or plain elements, as `value` gives them.
    pub(super) fn new(
        rows: usize,
        columns: usize,
        format: Format,
        r: &mut Random,
        mut value: impl FnMut(&mut Random) -> f32,
    ) -> Self {
        let spec = TensorSpec { shape: vec![rows, columns], format };
        let mut floats = |n: usize, dtype: DType, r: &mut Random| {
            let mut bytes = vec![0];
            (0..n).for_each(|_| dtype.put(value(r), &mut bytes));
            bytes
        };
        let parts = match format {
            Format::Plain(dtype) => [floats(rows * columns, dtype, r), vec![0], vec![0]],
            Format::Affine(a) => {
                let groups = rows * columns / a.group_size;
                let codes = (0..=spec.part_bytes(Part::Weight)).map(|_| r.next() as u8).collect();
                [codes, floats(groups, a.scales, r), floats(groups, a.scales, r)]
            }
        };
        Self { spec, parts }
    }

    pub(super) fn fill_codes(&mut self, byte: u8) {
        self.parts[0].fill(byte);
    }

    pub(super) fn parts(&self) -> [&[u8]; 3] {
        [&self.parts[0][1..], &self.parts[1][1..], &self.parts[2][1..]]
    }

    pub(super) fn weights(&self) -> Weights<'_> {
        Weights::new(&self.spec, self.parts())
    }
}

/// Every affine format.
pub(super) fn affines() -> Vec<Affine> {
    let mut out = Vec::new();
    for bits in spinetail_core::BITS {
        for group_size in spinetail_core::GROUP_SIZES {
            for scales in [DType::F32, DType::F16, DType::Bf16] {
                out.push(Affine { bits, group_size, scales });
            }
        }
    }
    out
}
