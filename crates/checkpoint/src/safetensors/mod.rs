//! safetensors files and the index that ties shards together, read by ranges: a file is never in memory as a whole.

mod header;
mod shards;

pub use header::{Entry, HeaderError, SourceType, parse_file, parse_header};
pub(crate) use header::{LENGTH_BYTES, header_bytes};
pub(crate) use shards::{
    Files, INDEX, Index, SourceTensor, merge_headers, open_folder, open_single, require_all, without_index,
};

#[cfg(test)]
mod tests;
