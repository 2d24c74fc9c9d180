//! `manifest.json` of version 2: what a container holds and where.
//!
//! Parsing goes from the outside in: magic and version, features, the form of the JSON, and then the sense of it
//! (`validate.rs`). Nothing here opens a file, so that hostile bytes can be tried without one.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use spinetail_core::{Format, ModelConfig, Projection, RecordLayout, TensorLayout};

use crate::error::from_json;
use crate::layout::{DensePart, dense_parts};
use crate::{Checksums, ContainerError, Kind, VERSION};

pub(crate) const FILE: &str = "manifest.json";
pub(crate) const MAGIC: &str = "QPACK";

/// Bytes a manifest may have. The largest released model needs about 300 KB.
pub const MANIFEST_BYTES: u64 = 8 << 20;

/// The manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// `"QPACK"`.
    pub magic: String,
    /// 2.
    pub version: u32,
    /// Additions without which a reader would misread the container; none are defined yet.
    pub features: Vec<String>,
    /// The model's shape.
    pub model: ModelConfig,
    /// Where the weights came from.
    pub source: SourceIdentity,
    /// What most of the records' bytes are, for people; readers use the formats of each tensor.
    pub quantization: Quantization,
    /// The program that wrote the container.
    pub created_by: String,
    /// Small files, copied as they were.
    pub files: Vec<FileEntry>,
    /// Tensors that stay in memory.
    pub dense: DenseSection,
    /// Expert records.
    pub experts: ExpertSection,
}

/// Where the weights came from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SourceIdentity {
    /// `"hf"`, `"mlx"`, `"qpack-v1"` and so on.
    pub format: String,
    /// The model's name, as far as the source tells.
    pub name: String,
    /// `model_type` of the source's configuration.
    pub model_type: String,
    /// Commit, tag or anything else that tells one state of the source from another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The files read.
    pub files: Vec<SourceFile>,
}

/// A file of the source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// Path within the source.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// SHA-256 in lower-case hexadecimal, where it was computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// A summary for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantization {
    /// Bits of a code, or of an element.
    pub bits: u8,
    /// Weights per group; absent when nothing is quantized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_size: Option<usize>,
}

impl Quantization {
    fn of(format: Format) -> Self {
        match format {
            Format::Plain(d) => Self { bits: 8 * d.bytes() as u8, group_size: None },
            Format::Affine(a) => Self { bits: a.bits, group_size: Some(a.group_size) },
        }
    }

    /// The format that most matrices of the records have.
    pub(crate) fn most(records: &[RecordLayout]) -> Self {
        let mut counts: Vec<(Self, usize)> = Vec::new();
        for format in records.iter().flat_map(|r| Projection::ALL.map(|p| r.get(p).spec.format)) {
            let q = Self::of(format);
            match counts.iter_mut().find(|c| c.0 == q) {
                Some(c) => c.1 += 1,
                None => counts.push((q, 1)),
            }
        }
        counts.into_iter().max_by_key(|c| c.1).map_or(Self { bits: 0, group_size: None }, |c| c.0)
    }
}

/// A small file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name, directly in the container.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// SHA-256 in lower-case hexadecimal.
    pub sha256: String,
}

/// `dense.bin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DenseSection {
    /// `"dense.bin"`.
    pub file: String,
    /// Its length, a multiple of 4096.
    pub bytes: u64,
    /// Alignment of every part: 64.
    pub alignment: u64,
    /// The tensors, in the order of use.
    pub tensors: Vec<TensorEntry>,
}

/// A tensor of `dense.bin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// Canonical name.
    pub name: String,
    /// Shape, format, and offsets from the start of the file.
    #[serde(flatten)]
    pub layout: TensorLayout,
}

/// The files of expert records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertSection {
    /// Alignment of every record: 4096 or 16384.
    pub alignment: u64,
    /// Records of each layer.
    pub expert_count: usize,
    /// The decoder's layers, then prediction heads.
    pub layers: Vec<ExpertLayer>,
}

/// The records of one layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertLayer {
    /// Index of the layer.
    pub layer: usize,
    /// `"experts/layer_NNN.bin"`.
    pub file: String,
    /// Bytes from one record to the next.
    pub stride_bytes: u64,
    /// Where each matrix lies within a record.
    pub record: RecordLayout,
}

/// What is read first: enough to tell whether the rest can be understood.
#[derive(Deserialize)]
struct Head {
    magic: Option<Value>,
    version: Option<Value>,
    #[serde(default)]
    features: Option<Value>,
}

/// Magic, version and features of a manifest of any version.
pub(crate) fn head(file: &Path, bytes: &[u8]) -> Result<Kind, ContainerError> {
    let found = |v: &Option<Value>| v.as_ref().map_or("nothing".to_owned(), |v| clipped(&v.to_string()));
    let head: Head = from_json(file, bytes)?;
    if head.magic.as_ref().and_then(Value::as_str) != Some(MAGIC) {
        return Err(ContainerError::invalid(file, "magic", format!("{MAGIC:?}"), found(&head.magic)));
    }
    match head.version.as_ref().and_then(Value::as_u64) {
        Some(1) => return Ok(Kind::V1),
        Some(v) if v == u64::from(VERSION) => {}
        Some(v) if v > u64::from(VERSION) => {
            return Err(ContainerError::Version { file: file.to_owned(), found: v });
        }
        _ => return Err(ContainerError::invalid(file, "version", "1 or 2", found(&head.version))),
    }
    let features = head.features.as_ref().and_then(Value::as_array);
    let Some(features) = features else {
        return Err(ContainerError::invalid(file, "features", "a list of names", found(&head.features)));
    };
    if let Some(f) = features.first() {
        let feature = f.as_str().map_or_else(|| clipped(&f.to_string()), clipped);
        return Err(ContainerError::Feature { file: file.to_owned(), feature });
    }
    Ok(Kind::V2)
}

/// At most 80 characters of `s`, for messages.
pub(crate) fn clipped(s: &str) -> String {
    match s.char_indices().nth(80) {
        Some((at, _)) => format!("{}…", &s[..at]),
        None => s.to_owned(),
    }
}

/// The path of the first key of `raw` that `known` lacks: a key this build would ignore.
fn unknown_key(raw: &Value, known: &Value, at: &str) -> Option<String> {
    match (raw, known) {
        (Value::Object(raw), Value::Object(known)) => raw.iter().find_map(|(key, value)| {
            let at = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
            match known.get(key) {
                Some(k) => unknown_key(value, k, &at),
                None => Some(at),
            }
        }),
        (Value::Array(raw), Value::Array(known)) => {
            let pairs = raw.iter().zip(known).enumerate();
            pairs.into_iter().find_map(|(i, (r, k))| unknown_key(r, k, &format!("{at}[{i}]")))
        }
        _ => None,
    }
}

impl Manifest {
    /// Reads the bytes of `file`, which is named in errors and not opened. What it returns is sound: every bound,
    /// offset and name has been checked, though no file has been looked at.
    pub fn parse(file: &Path, bytes: &[u8]) -> Result<Self, ContainerError> {
        if bytes.len() as u64 > MANIFEST_BYTES {
            let expected = format!("at most {MANIFEST_BYTES} bytes");
            return Err(ContainerError::invalid(file, "size", expected, bytes.len().to_string()));
        }
        if head(file, bytes)? == Kind::V1 {
            return Err(ContainerError::invalid(file, "version", "2", "1, which is read another way"));
        }
        let manifest: Self = from_json(file, bytes)?;
        let raw: Value = from_json(file, bytes)?;
        let known = manifest.to_json(file)?;
        if let Some(key) = unknown_key(&raw, &known, "") {
            let expected = "no key that version 2 does not define";
            return Err(ContainerError::invalid(file, clipped(&key), expected, "it"));
        }
        manifest.validate(file)?;
        Ok(manifest)
    }

    fn to_json(&self, file: &Path) -> Result<Value, ContainerError> {
        let field = ".".to_owned();
        serde_json::to_value(self).map_err(|error| ContainerError::Json {
            file: file.to_owned(),
            field,
            error,
        })
    }

    /// The text of the file.
    pub(crate) fn to_text(&self, file: &Path) -> Result<String, ContainerError> {
        Ok(format!("{:#}\n", self.to_json(file)?))
    }

    /// The parts of `dense.bin`, in the order of the file, which is also the order of their checksums.
    pub fn dense_parts(&self) -> Vec<DensePart> {
        dense_parts(&self.dense)
    }

    /// Every file but the manifest, relative to the container, with the length it must have.
    pub fn expected_sizes(&self) -> Vec<(String, u64)> {
        let experts = &self.experts;
        let layers = experts.layers.len() as u64;
        let parts = self.dense.tensors.iter().map(|t| t.layout.spec.parts().len() as u64).sum();
        let sums = Checksums::file_bytes(parts, layers, experts.expert_count as u64);
        let mut sizes = vec![(crate::checksums::FILE.to_owned(), sums)];
        sizes.push((self.dense.file.clone(), self.dense.bytes));
        let records = |l: &ExpertLayer| (l.file.clone(), l.stride_bytes * experts.expert_count as u64);
        sizes.extend(experts.layers.iter().map(records));
        sizes.extend(self.files.iter().map(|f| (f.path.clone(), f.bytes)));
        sizes
    }

    /// Bytes of the whole container but for the manifest itself.
    pub fn total_bytes(&self) -> u64 {
        self.expected_sizes().iter().map(|s| s.1).sum()
    }
}
