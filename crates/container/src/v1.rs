//! Swiftlet's `.qpack` version 1, read as it is: people have these on disk.
//!
//! A folder with the resident tensors in `model.safetensors`, in MLX's names and bytes, and one file of expert records
//! per layer. Mapping names and reading the safetensors file is the `checkpoint` crate's business; nothing here writes.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use spinetail_core::{
    Affine, BITS, DType, ExpertId, Format, LayerKind, Limits, ModelConfig, Part, Projection, ReadError,
    RecordLayout, TensorLayout, TensorSpec,
};

use crate::error::{ContainerError, equal, from_json};
use crate::files::{check_relative, pread_exact, read_small_file};
use crate::manifest::{MANIFEST_BYTES, clipped};

/// Files without which there is no model.
pub(crate) const REQUIRED: [&str; 3] = ["config.json", "model.safetensors", LAYOUT];

const LAYOUT: &str = "packed_experts/layout.json";

/// Files that often lie in a container without being listed.
const COMPANIONS: [&str; 8] = [
    "chat_template.jinja",
    "generation_config.json",
    "hashes.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
];

/// Strides are multiples of this.
const STRIDE_ALIGN: u64 = 16384;

/// The file of layer `i`, relative to the container.
pub(crate) fn layer_file(i: usize) -> String {
    format!("packed_experts/layer_{i:02}.bin")
}

/// `manifest.json` of version 1. Keys this reader does not use are ignored, as its writers have differed.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The source's `model_type`, or a model's name.
    #[serde(default)]
    pub model_name: Option<String>,
    /// The folder it was made from.
    #[serde(default)]
    pub source_checkpoint: Option<String>,
    /// Bits of the experts' codes, as far as the writer knew; the sections say what they are.
    #[serde(default)]
    pub quant_bits: Option<u64>,
    /// Weights per group, likewise.
    #[serde(default)]
    pub quant_group_size: Option<u64>,
    /// Path within the container and size of each file listed; not every file need be.
    #[serde(default)]
    pub files: BTreeMap<String, u64>,
}

/// A tensor within every record.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Section {
    /// `gate_proj.weight` and so on.
    pub name: String,
    /// `U32` for codes, otherwise `BF16`, `F16` or `F32`.
    pub dtype: String,
    /// Dimensions, slowest first; of codes, in 32-bit words.
    pub shape: Vec<usize>,
    /// Bytes from the start of the record.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
}

/// `packed_experts/layout.json`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Layout {
    /// Records of each layer.
    pub expert_count: usize,
    /// Layers.
    pub layer_count: usize,
    /// Bytes from one record to the next.
    pub expert_stride: u64,
    /// What a record holds.
    pub sections: Vec<Section>,
    /// Whether each layer is a DeltaNet layer.
    #[serde(default)]
    pub linear_layers: Option<Vec<bool>>,
}

impl Section {
    fn element_bytes(&self) -> Option<u64> {
        match self.dtype.as_str() {
            "U32" => Some(4),
            other => dtype_of(other).map(|d| d.bytes() as u64),
        }
    }
}

fn dtype_of(name: &str) -> Option<DType> {
    [DType::F32, DType::F16, DType::Bf16].into_iter().find(|d| d.safetensors_name() == name)
}

fn section_names() -> impl Iterator<Item = String> {
    Projection::ALL.into_iter().flat_map(|p| Part::ALL.map(|part| format!("{}.{}", p.name(), part.suffix())))
}

impl Layout {
    /// Reads the bytes of `file`, which is named in errors and not opened, and checks all that can be checked without
    /// the model's shape.
    pub fn parse(file: &Path, bytes: &[u8]) -> Result<Self, ContainerError> {
        let layout: Self = from_json(file, bytes)?;
        layout.check(file)?;
        Ok(layout)
    }

    fn check(&self, file: &Path) -> Result<(), ContainerError> {
        let within = |field: &str, found: u64, max: u64| {
            if (1..=max).contains(&found) {
                return Ok(());
            }
            Err(ContainerError::invalid(file, field, format!("1 to {max}"), found.to_string()))
        };
        within("expertCount", self.expert_count as u64, Limits::EXPERTS as u64)?;
        within("layerCount", self.layer_count as u64, Limits::LAYERS as u64)?;
        within("expertStride", self.expert_stride, Limits::RECORD_BYTES)?;
        if !self.expert_stride.is_multiple_of(STRIDE_ALIGN) {
            let expected = format!("a multiple of {STRIDE_ALIGN}");
            return Err(ContainerError::invalid(
                file,
                "expertStride",
                expected,
                self.expert_stride.to_string(),
            ));
        }
        let mut ranges = Vec::with_capacity(9);
        for (i, section) in self.sections.iter().enumerate() {
            let field = format!("sections[{i}] ({})", clipped(&section.name));
            let fail = |what: &str, expected: String, found: String| {
                Err(ContainerError::invalid(file, format!("{field}: {what}"), expected, found))
            };
            if !section_names().any(|name| name == section.name) {
                return fail(
                    "name",
                    "a projection's weight, scales or biases".to_owned(),
                    "another".to_owned(),
                );
            }
            let Some(element) = section.element_bytes() else {
                return fail("dtype", "U32, BF16, F16 or F32".to_owned(), clipped(&section.dtype));
            };
            if section.shape.len() != 2 || !section.shape.iter().all(|d| (1..=Limits::DIM).contains(d)) {
                let found = clipped(&format!("{:?}", section.shape));
                return fail("shape", format!("2 dimensions of 1 to {}", Limits::DIM), found);
            }
            let bytes = section.shape.iter().map(|&d| d as u64).product::<u64>() * element;
            if section.size != bytes {
                return fail("size", format!("{bytes}, from shape and dtype"), section.size.to_string());
            }
            let end = section.offset.checked_add(bytes);
            let Some(end) = end.filter(|&end| end <= self.expert_stride) else {
                let expected = format!("{bytes} bytes within the stride's {}", self.expert_stride);
                return fail("offset", expected, section.offset.to_string());
            };
            ranges.push((section.offset, end, &section.name));
        }
        check_apart(file, ranges)
    }

    /// Bytes that every file of records has. Within bounds, so without overflow.
    pub fn layer_bytes(&self) -> u64 {
        self.expert_stride * self.expert_count as u64
    }

    /// Bytes from the start of a record to the end of its last section.
    pub fn record_bytes(&self) -> u64 {
        self.sections.iter().map(|s| s.offset + s.size).max().unwrap_or(0)
    }

    /// The layout of the records of a model of shape `config`, whose dimensions tell how wide the codes are.
    ///
    /// `file` is named in errors. A layout that contradicts `config` or itself is refused.
    pub fn record_layout(&self, file: &Path, config: &ModelConfig) -> Result<RecordLayout, ContainerError> {
        config.check().map_err(|e| ContainerError::invalid(file, e.field, e.expected, e.found))?;
        equal(file, "expertCount", &config.moe.experts, &self.expert_count)?;
        equal(file, "layerCount", &config.layers.len(), &self.layer_count)?;
        equal(file, "prediction heads (version 1 never has any)", &0, &config.mtp_layers)?;
        if let Some(linear) = &self.linear_layers {
            equal(file, "linearLayers: length", &self.layer_count, &linear.len())?;
            for (i, (&kind, linear)) in config.layers.iter().zip(linear).enumerate() {
                equal(file, format_args!("linearLayers[{i}]"), &(kind == LayerKind::Delta), linear)?;
            }
        }
        let sections: HashMap<&str, &Section> = self.sections.iter().map(|s| (s.name.as_str(), s)).collect();
        let tensor = |projection, rows, columns| tensor(file, &sections, projection, rows, columns);
        let (inner, hidden) = (config.moe.intermediate, config.hidden);
        Ok(RecordLayout {
            gate: tensor(Projection::Gate, inner, hidden)?,
            up: tensor(Projection::Up, inner, hidden)?,
            down: tensor(Projection::Down, hidden, inner)?,
            bytes: self.record_bytes(),
        })
    }
}

fn check_apart(file: &Path, mut ranges: Vec<(u64, u64, &String)>) -> Result<(), ContainerError> {
    ranges.sort();
    for pair in ranges.windows(2) {
        let ((_, end, before), (start, _, name)) = (pair[0], pair[1]);
        if start < end {
            let expected = format!("at least {end}, where {before} ends");
            return Err(ContainerError::invalid(
                file,
                format!("{name}: offset"),
                expected,
                start.to_string(),
            ));
        }
    }
    let mut names: Vec<_> = ranges.iter().map(|r| r.2).collect();
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => Err(ContainerError::invalid(file, twice[0].as_str(), "one section", "two")),
        None => Ok(()),
    }
}

/// Shape, format and place of one projection.
fn tensor(
    file: &Path,
    sections: &HashMap<&str, &Section>,
    projection: Projection,
    rows: usize,
    columns: usize,
) -> Result<TensorLayout, ContainerError> {
    let name = |part: Part| format!("{}.{}", projection.name(), part.suffix());
    let get = |part: Part| sections.get(name(part).as_str()).copied();
    let fail = |part: Part, expected: String, found: String| {
        Err(ContainerError::invalid(file, format!("section {}", name(part)), expected, found))
    };
    let Some(weight) = get(Part::Weight) else {
        return fail(Part::Weight, format!("[{rows}, {columns}]"), "no such section".to_owned());
    };
    let spec = if weight.dtype == "U32" {
        let (words, found) = (weight.shape[1], format!("{:?}", weight.shape));
        let bits = BITS.into_iter().find(|&b| words * 32 == columns * usize::from(b));
        let (Some(bits), true) = (bits, weight.shape[0] == rows) else {
            let expected = format!("[{rows}, {columns} · bits / 32] with bits one of {BITS:?}");
            return fail(Part::Weight, expected, found);
        };
        let mut scales = None;
        for part in [Part::Scales, Part::Biases] {
            let Some(s) = get(part) else {
                return fail(part, format!("[{rows}, groups]"), "no such section".to_owned());
            };
            let groups = s.shape[1];
            let (Some(dtype), true) =
                (dtype_of(&s.dtype), s.shape[0] == rows && columns.is_multiple_of(groups))
            else {
                let expected = format!("[{rows}, a divisor of {columns}] of BF16, F16 or F32");
                return fail(part, expected, format!("{:?} of {}", s.shape, s.dtype));
            };
            let this = (dtype, columns / groups);
            if scales.is_some_and(|s| s != this) {
                return fail(part, "shape and dtype of the scales".to_owned(), format!("{:?}", s.shape));
            }
            scales = Some(this);
        }
        let (scales, group_size) = scales.unwrap_or((DType::Bf16, columns));
        TensorSpec { shape: vec![rows, columns], format: Format::Affine(Affine { bits, group_size, scales }) }
    } else {
        if let Some(part) = [Part::Scales, Part::Biases].into_iter().find(|&p| get(p).is_some()) {
            return fail(part, "no section, as the weight is not quantized".to_owned(), "one".to_owned());
        }
        let Some(dtype) = dtype_of(&weight.dtype).filter(|_| weight.shape == [rows, columns]) else {
            let found = format!("{:?} of {}", weight.shape, weight.dtype);
            return fail(Part::Weight, format!("[{rows}, {columns}] of BF16, F16 or F32"), found);
        };
        TensorSpec::plain(&[rows, columns], dtype)
    };
    if let Err(e) = spec.check() {
        return fail(Part::Weight, e.to_string(), spec.format.to_string());
    }
    let offsets = Part::ALL.map(|part| get(part).map_or(0, |s| s.offset));
    Ok(TensorLayout { spec, offsets })
}

/// The files of a container that lies elsewhere, from its manifest and `packed_experts/layout.json`: path, size where it
/// is known, and whether the model is complete without it. `file` is the manifest, named in errors.
pub fn wanted_files(
    file: &Path,
    manifest: &[u8],
    layout: &[u8],
) -> Result<Vec<(String, Option<u64>, bool)>, ContainerError> {
    let manifest: Manifest = from_json(file, manifest)?;
    let layout = Layout::parse(&file.with_file_name(LAYOUT), layout)?;
    let mut files: BTreeMap<String, (Option<u64>, bool)> = BTreeMap::new();
    for (name, bytes) in &manifest.files {
        check_relative(name)?;
        files.insert(name.clone(), (Some(*bytes), true));
    }
    for name in COMPANIONS {
        files.entry(name.to_owned()).or_insert((None, true));
    }
    for name in REQUIRED {
        files.entry(name.to_owned()).or_default().1 = false;
    }
    let bytes = layout.expert_stride * layout.expert_count as u64;
    for i in 0..layout.layer_count {
        files.insert(layer_file(i), (Some(bytes), false));
    }
    files.remove(crate::manifest::FILE);
    Ok(files.into_iter().map(|(name, (bytes, optional))| (name, bytes, optional)).collect())
}

/// An open version 1 container.
#[derive(Debug)]
pub struct V1 {
    path: PathBuf,
    manifest: Manifest,
    layout: Layout,
    config_json: String,
    layers: Vec<(PathBuf, File)>,
}

impl V1 {
    /// Manifest and layout of the container in folder `root`.
    pub(crate) fn read_description(root: &Path) -> Result<(Manifest, Layout), ContainerError> {
        let file = root.join(crate::manifest::FILE);
        let bytes = read_small_file(&file, MANIFEST_BYTES)?;
        crate::manifest::head(&file, &bytes)?;
        let manifest: Manifest = from_json(&file, &bytes)?;
        for name in manifest.files.keys() {
            check_relative(name)?;
        }
        let file = root.join(LAYOUT);
        let layout = Layout::parse(&file, &read_small_file(&file, MANIFEST_BYTES)?)?;
        Ok((manifest, layout))
    }

    /// Opens the container in folder `path`, checking the size of every file that is listed or needed. Links to
    /// regular files are followed: download caches are made of them. Listed files that are missing are tolerated
    /// unless the model needs them.
    pub fn open(path: &Path) -> Result<Self, ContainerError> {
        match crate::detect(path)? {
            Some(crate::Kind::V1) => {}
            Some(_) => {
                let file = path.join(crate::manifest::FILE);
                return Err(ContainerError::invalid(&file, "version", "1", "2, which is read another way"));
            }
            None => return Err(ContainerError::NotAContainer { path: path.to_owned() }),
        }
        let (manifest, layout) = Self::read_description(path)?;
        for (name, &expected) in &manifest.files {
            match std::fs::metadata(path.join(name)) {
                Ok(m) if m.len() != expected => return Err(size_error(path, name, expected, m.len())),
                _ => {}
            }
        }
        for name in REQUIRED {
            let file = path.join(name);
            let m = std::fs::metadata(&file).map_err(|e| ContainerError::io("read", &file, e))?;
            if !m.is_file() {
                return Err(ContainerError::invalid(&file, "kind", "a regular file", "something else"));
            }
        }
        let mut layers = Vec::with_capacity(layout.layer_count);
        for i in 0..layout.layer_count {
            let name = layer_file(i);
            let file = path.join(&name);
            let m = std::fs::metadata(&file).map_err(|e| ContainerError::io("read", &file, e))?;
            if !m.is_file() {
                return Err(ContainerError::invalid(&file, "kind", "a regular file", "something else"));
            }
            if m.len() != layout.layer_bytes() {
                return Err(size_error(path, &name, layout.layer_bytes(), m.len()));
            }
            let open = File::open(&file)
                .map_err(|e| ContainerError::io("open", &file, e).name_descriptors(layout.layer_count))?;
            layers.push((file, open));
        }
        let config = path.join("config.json");
        let config_json = String::from_utf8(read_small_file(&config, Limits::JSON_BYTES)?).map_err(|e| {
            ContainerError::invalid(
                &config,
                "encoding",
                "UTF-8",
                format!("byte {}", e.utf8_error().valid_up_to()),
            )
        })?;
        Ok(Self { path: path.to_owned(), manifest, layout, config_json, layers })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The layout of the records, as it is in the container.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What a record holds.
    pub fn sections(&self) -> &[Section] {
        &self.layout.sections
    }

    /// The text of `config.json`.
    pub fn config_json(&self) -> &str {
        &self.config_json
    }

    /// The safetensors file of every tensor that stays in memory.
    pub fn dense_path(&self) -> PathBuf {
        self.path.join("model.safetensors")
    }

    /// A small file; `None` if the container has none of that name.
    pub fn read_file(&self, name: &str) -> Result<Option<Vec<u8>>, ContainerError> {
        check_relative(name)?;
        let file = self.path.join(name);
        if !file.exists() {
            return Ok(None);
        }
        read_small_file(&file, Limits::JSON_BYTES).map(Some)
    }

    /// The layout of every record; see [`Layout::record_layout`].
    pub fn record_layout(&self, config: &ModelConfig) -> Result<RecordLayout, ContainerError> {
        self.layout.record_layout(&self.path.join(LAYOUT), config)
    }

    /// Bytes from one record to the next.
    pub fn stride_bytes(&self) -> u64 {
        self.layout.expert_stride
    }

    /// The files of records, one per layer.
    pub fn record_paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.layers.iter().map(|l| l.0.as_path())
    }

    /// Reads a record into the start of `out`, which has at least [`Layout::record_bytes`] bytes; the whole stride if
    /// `out` has room for it.
    pub fn read_record(&self, id: ExpertId, out: &mut [u8]) -> Result<(), ReadError> {
        let layer = self.layers.get(usize::from(id.layer));
        let (Some((path, file)), true) = (layer, usize::from(id.expert) < self.layout.expert_count) else {
            return Err(ReadError::Unknown { what: id.to_string() });
        };
        let (room, record, stride) =
            (out.len() as u64, self.layout.record_bytes(), self.layout.expert_stride);
        if room < record {
            return Err(ReadError::Unknown { what: format!("{id} of {room} bytes: it has {record}") });
        }
        let bytes = if room >= stride { stride } else { record };
        pread_exact(file, path, u64::from(id.expert) * stride, &mut out[..bytes as usize])
    }
}

fn size_error(root: &Path, name: &str, expected: u64, found: u64) -> ContainerError {
    ContainerError::invalid(&root.join(name), "size", format!("{expected} bytes"), format!("{found} bytes"))
}
