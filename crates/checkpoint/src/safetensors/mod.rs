//! safetensors files and the index that ties shards together, read by ranges: a file is never in memory as a whole.

mod header;
mod shards;

pub use header::{Entry, HeaderError, SourceType, parse_file, parse_header};
pub(crate) use shards::{Files, SourceTensor, open_folder, open_single};

#[cfg(test)]
mod tests;
