//! The inputs of a step, and their 8-bit forms.

use spinetail_core::{Affine, BITS};

use super::{Isa, Kernels};

/// Weights that the integer kernels take at a time.
pub(super) const BLOCK: usize = 64;

/// Groups whose scales the integer kernels take at a time.
pub(super) const CHUNK: usize = 8;

/// Left shift that the wide order adds to every product: activations are stored shifted by this much less the
/// position of their code within its first byte, so that codes need no shift of their own.
pub(super) const WIDE_SHIFT: u32 = 7;

/// Where the kernels of an instruction set and a width want the activations of a block.
pub(super) struct Order {
    /// The activation, of the block's 64, that lies at each place.
    pub(super) from: [u8; BLOCK],
    /// Bits that the activation at each place is shifted left.
    pub(super) shift: [u8; BLOCK],
    /// Whether activations are stored as i16 instead of i8.
    pub(super) wide: bool,
}

impl Order {
    /// Activations as they come, in bytes.
    pub(super) const NATURAL: Self = Self::narrow(&[0], 1);

    /// Bytes, in runs of equal length: each begins at one of `starts` and takes every `step`-th activation.
    pub(super) const fn narrow(starts: &[u8], step: usize) -> Self {
        let mut from = [0; BLOCK];
        let run = BLOCK / starts.len();
        let mut i = 0;
        while i < BLOCK {
            from[i] = starts[i / run] + (i % run * step) as u8;
            i += 1;
        }
        Self { from, shift: [0; BLOCK], wide: false }
    }

    /// The order of the kernels that look at each code through a 16-bit window: runs of 8, one of the block's first
    /// half and one of its last in turn, each shifted so that all products come out `2^WIDE_SHIFT` times too large.
    #[cfg(target_arch = "x86_64")]
    pub(super) const fn wide(bits: usize) -> Self {
        let Self { from, mut shift, .. } = Self::narrow(&[0, 32, 8, 40, 16, 48, 24, 56], 1);
        let mut i = 0;
        while i < BLOCK {
            shift[i] = (WIDE_SHIFT as usize - (i % 8 * bits) % 8) as u8;
            i += 1;
        }
        Self { from, shift, wide: true }
    }
}

/// Sixty-four bytes on a cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Line(pub(super) [u8; 64]);

/// The 8-bit form of the inputs for one group size and one width.
///
/// Per group `x ≈ scale · q` with `scale = max|x| / 127` and q from −127 to 127, rounded to nearest, ties to even. A
/// group whose largest magnitude is below about 4e-37 counts as zero; one that holds an infinity or a NaN has a NaN as
/// its scale.
pub(super) struct Coded {
    pub(super) bits: u8,
    pub(super) group: usize,
    /// `[rows, blocks]`, each block one line, or two where the order is wide; blocks cover whole chunks of groups, and
    /// activations past the end are 0.
    pub(super) lines: Vec<Line>,
    /// `[rows, groups]`, groups rounded up to a whole chunk and filled with 0.
    pub(super) scales: Vec<f32>,
    /// `scale · Σq`, as `scales`.
    pub(super) sums: Vec<f32>,
    /// Lines of one row.
    pub(super) row_lines: usize,
    /// Groups of one row, rounded up.
    pub(super) row_groups: usize,
}

/// Input rows of a step. Codes are made when asked for, once, and read by any number of products and threads.
#[derive(Default)]
pub struct Activations {
    rows: usize,
    columns: usize,
    x: Vec<f32>,
    /// Those with index below `ready` belong to the rows at hand; the rest is memory to use again.
    coded: Vec<Coded>,
    ready: usize,
    /// Whose order the codes have.
    isa: Option<Isa>,
    codes: Vec<i8>,
}

impl Activations {
    /// Without rows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the rows of `x [n, columns]` in place of those held.
    ///
    /// # Panics
    /// If `x` is not a whole number of rows.
    pub fn set(&mut self, x: &[f32], columns: usize) {
        assert!(columns > 0 && x.len().is_multiple_of(columns), "{} is no multiple of {columns}", x.len());
        self.fill(x.len() / columns, columns).copy_from_slice(x);
    }

    /// Takes `rows` rows of `columns` in place of those held, for the caller to write.
    pub fn fill(&mut self, rows: usize, columns: usize) -> &mut [f32] {
        (self.rows, self.columns, self.ready) = (rows, columns, 0);
        self.x.resize(rows * columns, 0.0);
        &mut self.x
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Length of a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The rows, `[rows, columns]`.
    pub fn x(&self) -> &[f32] {
        &self.x
    }

    /// Makes the codes that [`Kernels::fast`] needs against weights of format `affine`, unless they are there.
    ///
    /// # Panics
    /// If the group size does not divide the columns.
    pub fn prepare(&mut self, kernels: &Kernels, affine: Affine) {
        let (bits, group) = (affine.bits, affine.group_size);
        if self.isa != Some(kernels.isa()) {
            (self.isa, self.ready) = (Some(kernels.isa()), 0);
        }
        if self.coded[..self.ready].iter().any(|c| (c.bits, c.group) == (bits, group)) {
            return;
        }
        assert!(self.columns.is_multiple_of(group), "groups of {group} do not divide {}", self.columns);
        if self.ready == self.coded.len() {
            self.coded.push(Coded {
                bits,
                group,
                lines: Vec::new(),
                scales: Vec::new(),
                sums: Vec::new(),
                row_lines: 0,
                row_groups: 0,
            });
        }
        let c = &mut self.coded[self.ready];
        self.ready += 1;
        (c.bits, c.group) = (bits, group);
        let order = kernels.order(bits);
        c.row_groups = (self.columns / group).next_multiple_of(CHUNK);
        c.row_lines = c.row_groups * group / BLOCK * if order.wide { 2 } else { 1 };
        c.lines.resize(self.rows * c.row_lines, Line([0; 64]));
        for v in [&mut c.scales, &mut c.sums] {
            v.clear();
            v.resize(self.rows * c.row_groups, 0.0);
        }
        self.codes.clear();
        self.codes.resize(c.row_groups * group, 0);
        for (row, x) in self.x.chunks_exact(self.columns).enumerate() {
            let groups = row * c.row_groups..row * c.row_groups + self.columns / group;
            let codes = &mut self.codes[..self.columns];
            kernels.quantize(x, group, codes, &mut c.scales[groups.clone()], &mut c.sums[groups]);
            let lines = &mut c.lines[row * c.row_lines..(row + 1) * c.row_lines];
            arrange(order, &self.codes, lines);
        }
    }

    /// The codes made for `affine`.
    ///
    /// # Panics
    /// If they were not, or for another instruction set.
    pub(super) fn coded(&self, isa: Isa, affine: Affine) -> &Coded {
        let found =
            self.coded[..self.ready].iter().find(|c| (c.bits, c.group) == (affine.bits, affine.group_size));
        match found {
            Some(c) if self.isa == Some(isa) => c,
            _ => panic!(
                "activations were not prepared for {}-bit g{} on {isa}",
                affine.bits, affine.group_size
            ),
        }
    }
}

/// Puts a row of codes in the order that the kernels want.
fn arrange(order: &Order, codes: &[i8], lines: &mut [Line]) {
    if order.wide {
        for (codes, lines) in codes.chunks_exact(BLOCK).zip(lines.chunks_exact_mut(2)) {
            for (i, (&from, &shift)) in order.from.iter().zip(&order.shift).enumerate() {
                let value = i16::from(codes[usize::from(from) % BLOCK]) << shift;
                lines[i / 32].0[i % 32 * 2..][..2].copy_from_slice(&value.to_le_bytes());
            }
        }
    } else {
        for (codes, line) in codes.chunks_exact(BLOCK).zip(lines) {
            for (to, &from) in line.0.iter_mut().zip(&order.from) {
                *to = codes[usize::from(from) % BLOCK] as u8;
            }
        }
    }
}

/// The place of a width in tables that have one entry for each. Kernels ask in their loops, with a constant.
#[inline(always)]
pub(super) const fn width_index(bits: usize) -> usize {
    let mut i = 0;
    while i < BITS.len() && BITS[i] as usize != bits {
        i += 1;
    }
    assert!(i < BITS.len(), "a width that is not defined");
    i
}
