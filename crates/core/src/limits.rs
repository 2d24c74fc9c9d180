//! Upper bounds on everything read from outside, in one place.
//!
//! They are generous against every released model of the supported families (the largest has 60 layers, 512
//! experts and a hidden size of 4096) and small enough that no product of two of them overflows `u64`.

/// The bounds. A value past one of them is refused by name.
#[derive(Debug, Clone, Copy)]
pub struct Limits;

impl Limits {
    /// Decoder layers, not counting prediction heads.
    pub const LAYERS: usize = 512;
    /// Routed experts of a layer.
    pub const EXPERTS: usize = 4096;
    /// Experts a token is routed to.
    pub const TOP_K: usize = 64;
    /// Any dimension of a tensor, vocabulary included.
    pub const DIM: usize = 1 << 24;
    /// Heads of any kind.
    pub const HEADS: usize = 1024;
    /// Taps of the depthwise convolution.
    pub const CONV_KERNEL: usize = 16;
    /// Positions of a context.
    pub const CONTEXT: usize = 1 << 22;
    /// Bytes of a safetensors header (the format's own limit is 100 MB).
    pub const SAFETENSORS_HEADER_BYTES: u64 = 100_000_000;
    /// Bytes of a JSON file that is read whole: configuration, index, tokenizer.
    pub const JSON_BYTES: u64 = 64 << 20;
    /// Tensors of a checkpoint: 512 experts × 60 layers × 3 projections × 3 parts, and as much again.
    pub const TENSORS: usize = 1 << 20;
    /// Shards of a checkpoint.
    pub const SHARDS: usize = 4096;
    /// Bytes of one expert's record.
    pub const RECORD_BYTES: u64 = 1 << 30;
}
