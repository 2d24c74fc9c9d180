//! Every algorithm once, over the traits of `vector`: the instruction sets differ in those alone.
//!
//! All functions here are `#[inline(always)]`: they take on the instruction set of the entry point that they are
//! inlined into. None allocates.
#![allow(clippy::needless_range_loop, reason = "tiles index several arrays by one row and one input")]

pub(super) mod attention;
pub(super) mod delta;
pub(super) mod elementwise;
pub(super) mod exact;
pub(super) mod exp;
pub(super) mod fast;
pub(super) mod integer;
pub(super) mod panels;
pub(super) mod quantize;
pub(super) mod reduce;
mod scales;
mod tiles;
