//! Every algorithm once, over the traits of `vector`: the instruction sets differ in those alone.
//!
//! All functions here are `#[inline(always)]`: they take on the instruction set of the entry point that they are
//! inlined into. None allocates.
#![allow(clippy::needless_range_loop, reason = "tiles index several arrays by one row and one input")]

pub(super) mod exact;
pub(super) mod fast;
pub(super) mod quantize;
mod scales;
mod tiles;
