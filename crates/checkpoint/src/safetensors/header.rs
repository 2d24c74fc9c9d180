//! The header of a safetensors file: which tensors, of what type and shape, at which bytes.
//!
//! The `safetensors` crate wants the whole file in memory and its errors do not say which tensor is wrong; this parser
//! takes the header alone, stops at a bounded number of tensors, and names the tensor. What it accepts, the crate
//! accepts (a property test holds it to that).

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use spinetail_core::{DType, Limits};

/// Bytes of the length that starts a file.
pub(crate) const LENGTH_BYTES: u64 = 8;

/// Most dimensions a tensor may have.
const MAX_DIMS: usize = 8;

/// The element type of a tensor in a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SourceType {
    /// A floating-point type that is used as it is.
    Float(DType),
    /// Packed codes.
    U32,
    /// 8-bit floats with 4 exponent and 3 mantissa bits, no infinities.
    F8E4M3,
    /// Anything else, by its name; an error if such a tensor is needed.
    Other(Box<str>),
}

impl SourceType {
    fn from_name(name: &str) -> Self {
        match name {
            "F32" => Self::Float(DType::F32),
            "F16" => Self::Float(DType::F16),
            "BF16" => Self::Float(DType::Bf16),
            "U32" => Self::U32,
            "F8_E4M3" => Self::F8E4M3,
            other => Self::Other(other.into()),
        }
    }

    /// Bits of an element; `None` for a name that is not known.
    fn bits(&self) -> Option<u64> {
        Some(match self {
            Self::Float(d) => d.bytes() as u64 * 8,
            Self::U32 => 32,
            Self::F8E4M3 => 8,
            Self::Other(name) => match &**name {
                "F4" => 4,
                "F6_E2M3" | "F6_E3M2" => 6,
                "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
                "U16" | "I16" => 16,
                "I32" => 32,
                "U64" | "I64" | "F64" | "C64" => 64,
                _ => return None,
            },
        })
    }
}

impl fmt::Display for SourceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Float(d) => d.safetensors_name(),
            Self::U32 => "U32",
            Self::F8E4M3 => "F8_E4M3",
            Self::Other(name) => name,
        })
    }
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Type of an element.
    pub dtype: SourceType,
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    /// First byte, from the start of the file.
    pub offset: u64,
    /// Bytes of all elements.
    pub bytes: u64,
}

/// A header that cannot be.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderError {
    /// Not even a length and a header fit.
    #[error("expected a header of {expected} bytes after the first 8, found a file of {file_bytes} bytes")]
    Truncated {
        /// Bytes the header is said to have.
        expected: u64,
        /// Bytes of the file.
        file_bytes: u64,
    },
    /// A header larger than the format allows.
    #[error("header length: expected at most {} bytes, found {found}", Limits::SAFETENSORS_HEADER_BYTES)]
    TooLarge {
        /// Bytes the header is said to have.
        found: u64,
    },
    /// Not the JSON that the format describes.
    #[error("header: {reason}")]
    Json {
        /// What is wrong and where.
        reason: String,
    },
    /// Shape, type and byte range of a tensor contradict each other.
    #[error("tensor {tensor}: expected {expected}, found {found}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// What the format allows.
        expected: String,
        /// What the header says.
        found: String,
    },
    /// The file is shorter than its header promises.
    #[error("tensor {tensor} ends at byte {end}, but the file has {file_bytes} bytes: it was cut short")]
    Short {
        /// The first tensor that ends past the end.
        tensor: String,
        /// Where it ends.
        end: u64,
        /// Bytes of the file.
        file_bytes: u64,
    },
    /// Bytes that belong to no tensor.
    #[error("expected the file to end with its last tensor at byte {expected}, found {file_bytes} bytes")]
    Trailing {
        /// Where the last tensor ends.
        expected: u64,
        /// Bytes of the file.
        file_bytes: u64,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

struct RawHeader(HashMap<String, RawEntry>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let (mut out, mut described) = (HashMap::new(), false);
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        if std::mem::replace(&mut described, true) {
                            return Err(A::Error::custom("__metadata__ is listed twice"));
                        }
                        map.next_value::<Option<HashMap<String, String>>>()?;
                        continue;
                    }
                    if out.len() == Limits::TENSORS {
                        return Err(A::Error::custom(format!("more than {} tensors", Limits::TENSORS)));
                    }
                    let entry = map
                        .next_value::<RawEntry>()
                        .map_err(|e| A::Error::custom(format!("tensor {name}: {e}")))?;
                    if out.contains_key(&name) {
                        return Err(A::Error::custom(format!("tensor {name} is listed twice")));
                    }
                    out.insert(name, entry);
                }
                Ok(RawHeader(out))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// The length of the header, from the first 8 bytes; checked against the limit and the file.
pub(crate) fn header_bytes(first: [u8; 8], file_bytes: u64) -> Result<u64, HeaderError> {
    let n = u64::from_le_bytes(first);
    if n > Limits::SAFETENSORS_HEADER_BYTES {
        return Err(HeaderError::TooLarge { found: n });
    }
    if n + LENGTH_BYTES > file_bytes {
        return Err(HeaderError::Truncated { expected: n, file_bytes });
    }
    Ok(n)
}

/// Parses and checks a header. `json` is the header without its length, `file_bytes` the size of the whole file.
pub fn parse_header(json: &[u8], file_bytes: u64) -> Result<HashMap<String, Entry>, HeaderError> {
    let wrong = |e: &dyn fmt::Display| HeaderError::Json { reason: e.to_string() };
    let text = std::str::from_utf8(json).map_err(|e| wrong(&e))?;
    let raw: RawHeader = serde_json::from_str(text).map_err(|e| wrong(&e))?;
    let base = LENGTH_BYTES + json.len() as u64;
    let mut entries = raw
        .0
        .into_iter()
        .map(|(name, raw)| entry(&name, &raw, base).map(|e| (name, e)))
        .collect::<Result<Vec<_>, _>>()?;
    entries.sort_unstable_by(|(a, x), (b, y)| (x.offset, x.bytes, a).cmp(&(y.offset, y.bytes, b)));
    let mut end = base;
    for (name, e) in &entries {
        if e.offset != end {
            return Err(HeaderError::Tensor {
                tensor: name.clone(),
                expected: format!("a start at byte {end}, where the tensor before it ends"),
                found: e.offset.to_string(),
            });
        }
        end = e.offset + e.bytes;
        if end > file_bytes {
            return Err(HeaderError::Short { tensor: name.clone(), end, file_bytes });
        }
    }
    if end != file_bytes {
        return Err(HeaderError::Trailing { expected: end, file_bytes });
    }
    Ok(entries.into_iter().collect())
}

/// Parses a whole file that is already in memory: for tests and fuzzing.
pub fn parse_file(bytes: &[u8]) -> Result<HashMap<String, Entry>, HeaderError> {
    let file_bytes = bytes.len() as u64;
    let Some(first) = bytes.first_chunk::<8>() else {
        return Err(HeaderError::Truncated { expected: 0, file_bytes });
    };
    let n = header_bytes(*first, file_bytes)? as usize;
    parse_header(&bytes[8..8 + n], file_bytes)
}

fn entry(name: &str, raw: &RawEntry, base: u64) -> Result<Entry, HeaderError> {
    let wrong =
        |expected: String, found: String| HeaderError::Tensor { tensor: name.to_owned(), expected, found };
    let (start, end) = raw.data_offsets;
    if raw.shape.len() > MAX_DIMS {
        return Err(wrong(format!("at most {MAX_DIMS} dimensions"), raw.shape.len().to_string()));
    }
    if end < start || base.checked_add(end).is_none() {
        return Err(wrong("data_offsets that rise".to_owned(), format!("[{start}, {end}]")));
    }
    let dtype = SourceType::from_name(&raw.dtype);
    if let Some(bits) = dtype.bits() {
        let total = raw.shape.iter().try_fold(bits, |n, &d| n.checked_mul(d));
        if total != (end - start).checked_mul(8) || total.is_none() {
            return Err(wrong(
                format!("the bytes of {dtype} {:?}", raw.shape),
                format!("data_offsets [{start}, {end}]"),
            ));
        }
    }
    let shape = raw.shape.iter().map(|&d| usize::try_from(d)).collect::<Result<_, _>>();
    let shape =
        shape.map_err(|_| wrong("dimensions that fit memory".to_owned(), format!("{:?}", raw.shape)))?;
    Ok(Entry { dtype, shape, offset: base + start, bytes: end - start })
}
