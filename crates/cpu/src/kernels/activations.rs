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
    /// Whether activations lie as they come.
    pub(super) natural: bool,
}

impl Order {
    /// Activations as they come, in bytes.
    pub(super) const NATURAL: Self = Self { natural: true, ..Self::narrow(&[0], 1) };

    /// Bytes, in runs of equal length: each begins at one of `starts` and takes every `step`-th activation.
    pub(super) const fn narrow(starts: &[u8], step: usize) -> Self {
        let mut from = [0; BLOCK];
        let run = BLOCK / starts.len();
        let mut i = 0;
        while i < BLOCK {
            from[i] = starts[i / run] + (i % run * step) as u8;
            i += 1;
        }
        Self { from, shift: [0; BLOCK], wide: false, natural: false }
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
        Self { from, shift, wide: true, natural: false }
    }
}

/// Sixty-four bytes on a cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Line(pub(super) [u8; 64]);

/// Input rows from which on panels are quicker than rows of weights taken one by one.
const PANEL_ROWS: usize = 4;

/// For whom a form of the inputs is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// The kernels of a width that take rows of weights one by one, each in an order of its own.
    Rows { bits: u8 },
    /// Those that take panels, whatever the width: activations as they come.
    Panels,
}

/// The 8-bit form of the inputs for one group size.
///
/// Per group `x ≈ scale · q` with `scale = max|x| / 127` and q from −127 to 127, rounded to nearest, ties to even. A
/// group whose largest magnitude is below about 4e-37 counts as zero; one that holds an infinity or a NaN has a NaN as
/// its scale.
pub(super) struct Coded {
    form: Form,
    group: usize,
    /// Rows one after the other, each with its blocks of codes, its scales and its sums; see [`CodedRow`].
    lines: Vec<Line>,
    /// Lines of the codes of one row.
    code_lines: usize,
    /// Groups of one row, rounded up to a whole chunk.
    row_groups: usize,
}

/// One row of inputs in 8 bits.
#[derive(Clone, Copy)]
pub(super) struct CodedRow<'a> {
    /// A line for each block, or two where the order is wide; blocks cover whole chunks of groups, and activations
    /// past the end are 0.
    pub(super) codes: &'a [Line],
    /// `[groups]`, rounded up to a whole chunk and filled with 0.
    pub(super) scales: &'a [f32],
    /// `scale · Σq`, as `scales`.
    pub(super) sums: &'a [f32],
}

impl Coded {
    fn new() -> Self {
        Self { form: Form::Panels, group: 0, lines: Vec::new(), code_lines: 0, row_groups: 0 }
    }

    pub(super) fn form(&self) -> Form {
        self.form
    }

    /// Lines of one row.
    fn row_lines(&self) -> usize {
        self.code_lines + 2 * self.row_groups.div_ceil(LINE_FLOATS)
    }

    /// Row `i`.
    pub(super) fn row(&self, i: usize) -> CodedRow<'_> {
        let lines = &self.lines[i * self.row_lines()..(i + 1) * self.row_lines()];
        let (codes, floats) = lines.split_at(self.code_lines);
        let (scales, sums) = floats.split_at(floats.len() / 2);
        CodedRow {
            codes,
            scales: &Line::floats(scales)[..self.row_groups],
            sums: &Line::floats(sums)[..self.row_groups],
        }
    }
}

/// Floats of a line.
const LINE_FLOATS: usize = 16;

impl Line {
    fn floats(lines: &[Self]) -> &[f32] {
        // SAFETY: a line is sixteen floats long and aligned for them, and any bytes are floats.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * LINE_FLOATS) }
    }

    fn floats_mut(lines: &mut [Self]) -> &mut [f32] {
        // SAFETY: as in `floats`, and any floats are bytes.
        unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LINE_FLOATS) }
    }
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
        if let Some((coding, lines)) = self.coding(kernels, affine) {
            lines.chunks_exact_mut(coding.row_lines()).enumerate().for_each(|(row, to)| coding.row(row, to));
        }
    }

    /// As [`Activations::prepare`], for the caller to do row by row; `None` if the codes are there.
    pub(crate) fn coding(&mut self, kernels: &Kernels, affine: Affine) -> Option<(Coding<'_>, &mut [Line])> {
        let group = affine.group_size;
        if self.isa != Some(kernels.isa()) {
            (self.isa, self.ready) = (Some(kernels.isa()), 0);
        }
        let form = self.form(kernels, affine);
        if self.coded[..self.ready].iter().any(|c| (c.form, c.group) == (form, group)) {
            return None;
        }
        assert!(self.columns.is_multiple_of(group), "groups of {group} do not divide {}", self.columns);
        if self.ready == self.coded.len() {
            self.coded.push(Coded::new());
        }
        let c = &mut self.coded[self.ready];
        self.ready += 1;
        (c.form, c.group) = (form, group);
        let order = match form {
            Form::Rows { bits } => kernels.order(bits),
            Form::Panels => &Order::NATURAL,
        };
        c.row_groups = (self.columns / group).next_multiple_of(CHUNK);
        c.code_lines = c.row_groups * group / BLOCK * if order.wide { 2 } else { 1 };
        let row_lines = c.row_lines();
        c.lines.resize(self.rows * row_lines, Line([0; 64]));
        Some((
            Coding {
                kernels: *kernels,
                order,
                group,
                x: &self.x,
                columns: self.columns,
                code_lines: c.code_lines,
                row_lines,
            },
            &mut c.lines,
        ))
    }

    /// Takes rows of `from` in place of those held, with those of their 8-bit forms that serve this many rows too. The
    /// f32 form comes along only if `x` says so, or if those forms would have to be made from it.
    pub(crate) fn gather(
        &mut self,
        from: &Self,
        rows: impl ExactSizeIterator<Item = usize> + Clone,
        x: bool,
    ) {
        (self.rows, self.columns, self.ready) = (rows.len(), from.columns, 0);
        self.isa = from.isa;
        self.x.clear();
        for c in
            from.coded[..from.ready].iter().filter(|c| c.form == Form::Panels && rows.len() >= PANEL_ROWS)
        {
            if self.ready == self.coded.len() {
                self.coded.push(Coded::new());
            }
            let to = &mut self.coded[self.ready];
            self.ready += 1;
            let len = c.row_lines();
            (to.form, to.group, to.code_lines, to.row_groups) = (c.form, c.group, c.code_lines, c.row_groups);
            to.lines.resize(rows.len() * len, Line([0; 64]));
            for (to, row) in to.lines.chunks_exact_mut(len).zip(rows.clone()) {
                to.copy_from_slice(&c.lines[row * len..(row + 1) * len]);
            }
        }
        if x || self.ready == 0 {
            for row in rows {
                self.x.extend_from_slice(&from.x[row * from.columns..(row + 1) * from.columns]);
            }
        }
    }

    /// What the kernels for `affine` take.
    fn form(&self, kernels: &Kernels, affine: Affine) -> Form {
        if self.rows >= PANEL_ROWS && kernels.has_panels() {
            Form::Panels
        } else {
            Form::Rows { bits: affine.bits }
        }
    }

    /// The codes made for `affine`.
    ///
    /// # Panics
    /// If they were not, or for another instruction set.
    pub(super) fn coded(&self, kernels: &Kernels, affine: Affine) -> &Coded {
        let form = self.form(kernels, affine);
        let found = self.coded[..self.ready].iter().find(|c| (c.form, c.group) == (form, affine.group_size));
        match found {
            Some(c) if self.isa == Some(kernels.isa()) => c,
            _ => panic!(
                "activations were not prepared for {}-bit g{} on {}",
                affine.bits,
                affine.group_size,
                kernels.isa()
            ),
        }
    }
}

/// Codes in the making. Rows can be made in any order and by any thread.
pub(crate) struct Coding<'a> {
    kernels: Kernels,
    order: &'static Order,
    group: usize,
    x: &'a [f32],
    columns: usize,
    code_lines: usize,
    row_lines: usize,
}

impl Coding<'_> {
    /// Lines of a row.
    pub(crate) fn row_lines(&self) -> usize {
        self.row_lines
    }

    /// Codes row `row` into its lines.
    pub(crate) fn row(&self, row: usize, to: &mut [Line]) {
        let (lines, floats) = to.split_at_mut(self.code_lines);
        let (scales, sums) =
            Line::floats_mut(floats).split_at_mut((self.row_lines - self.code_lines) / 2 * LINE_FLOATS);
        scales.fill(0.0);
        sums.fill(0.0);
        let x = &self.x[row * self.columns..(row + 1) * self.columns];
        // A chunk of groups at a time, of at most 128 each.
        let chunk = CHUNK * self.group;
        let chunk_lines = chunk / BLOCK * if self.order.wide { 2 } else { 1 };
        let parts = x.chunks(chunk).zip(lines.chunks_exact_mut(chunk_lines));
        let floats = scales.chunks_mut(CHUNK).zip(sums.chunks_mut(CHUNK));
        for ((x, lines), (scales, sums)) in parts.zip(floats) {
            let groups = x.len() / self.group;
            let mut codes = [0; CHUNK * 128];
            self.kernels.quantize(
                x,
                self.group,
                &mut codes[..x.len()],
                &mut scales[..groups],
                &mut sums[..groups],
            );
            arrange(self.order, &codes[..chunk], lines);
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
    } else if order.natural {
        for (codes, line) in codes.chunks_exact(BLOCK).zip(lines) {
            line.0.iter_mut().zip(codes).for_each(|(to, &code)| *to = code as u8);
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
