//! The sense of a manifest: every bound, offset, name and format, and that the tensors are those of the model.
//!
//! Works on numbers alone. After it, sizes can be computed without overflow and ranges lie within their files.

use std::collections::HashSet;
use std::path::Path;

use spinetail_core::{
    DType, Format, Limits, ModelConfig, PART_ALIGN, Projection, RecordLayout, Role, TensorLayout, dense_specs,
};

use crate::error::{ContainerError, equal};
use crate::files::{check_plain_name, is_sha256};
use crate::layout::{DENSE_FILE, DENSE_FILE_ALIGN, EXPERTS_FOLDER, RECORD_ALIGNMENTS, layer_file, stride};
use crate::manifest::{DenseSection, ExpertSection, FileEntry, Manifest, SourceIdentity, clipped};

/// Small files a container may have.
pub(crate) const MAX_FILES: usize = 64;

/// Names that mean something else in a container.
const RESERVED: [&str; 6] = [
    crate::manifest::FILE,
    crate::checksums::FILE,
    DENSE_FILE,
    EXPERTS_FOLDER,
    crate::partial::LOCK,
    crate::placed::PLAN,
];

/// Checks the name of a small file.
pub(crate) fn check_file_name(name: &str) -> Result<(), ContainerError> {
    check_plain_name(name)?;
    if RESERVED.contains(&name.to_ascii_lowercase().as_str()) {
        return Err(ContainerError::Name { name: name.to_owned(), why: "the container uses it itself" });
    }
    Ok(())
}

fn invalid(
    file: &Path,
    field: String,
    expected: impl Into<String>,
    found: impl Into<String>,
) -> ContainerError {
    ContainerError::invalid(file, field, expected, found)
}

impl Manifest {
    pub(crate) fn validate(&self, file: &Path) -> Result<(), ContainerError> {
        self.model.check().map_err(|e| invalid(file, format!("model: {}", e.field), e.expected, e.found))?;
        check_text(file, "created_by", &self.created_by)?;
        check_source(file, &self.source)?;
        check_files(file, &self.files)?;
        check_dense(file, &self.model, &self.dense)?;
        check_experts(file, &self.model, &self.experts)
    }
}

/// Text that will be shown to people: short, and nothing a terminal obeys.
fn check_text(file: &Path, field: &str, text: &str) -> Result<(), ContainerError> {
    if text.len() > 4096 || text.chars().any(char::is_control) {
        let found = format!("{:?}", clipped(text));
        return Err(ContainerError::invalid(
            file,
            field,
            "at most 4096 bytes without control characters",
            found,
        ));
    }
    Ok(())
}

fn check_hash(file: &Path, field: String, hash: &str) -> Result<(), ContainerError> {
    if is_sha256(hash) {
        return Ok(());
    }
    Err(invalid(file, field, "64 lower-case hexadecimal digits", format!("{:?}", clipped(hash))))
}

fn check_source(file: &Path, source: &SourceIdentity) -> Result<(), ContainerError> {
    check_text(file, "source.format", &source.format)?;
    check_text(file, "source.name", &source.name)?;
    check_text(file, "source.model_type", &source.model_type)?;
    check_text(file, "source.revision", source.revision.as_deref().unwrap_or_default())?;
    for (i, f) in source.files.iter().enumerate() {
        check_text(file, &format!("source.files[{i}].path"), &f.path)?;
        if let Some(hash) = &f.sha256 {
            check_hash(file, format!("source.files[{i}].sha256"), hash)?;
        }
    }
    Ok(())
}

fn check_files(file: &Path, files: &[FileEntry]) -> Result<(), ContainerError> {
    if files.len() > MAX_FILES {
        let expected = format!("at most {MAX_FILES} entries");
        return Err(ContainerError::invalid(file, "files", expected, files.len().to_string()));
    }
    let mut seen = HashSet::new();
    for (i, f) in files.iter().enumerate() {
        let name = format!("{:?}", clipped(&f.path));
        if let Err(ContainerError::Name { why, .. }) = check_file_name(&f.path) {
            return Err(invalid(
                file,
                format!("files[{i}].path"),
                format!("a plain file name ({why})"),
                name,
            ));
        }
        if !seen.insert(f.path.to_ascii_lowercase()) {
            return Err(invalid(file, format!("files[{i}].path"), "each name once, in any case", name));
        }
        if f.bytes > Limits::JSON_BYTES {
            let expected = format!("at most {}", Limits::JSON_BYTES);
            return Err(invalid(file, format!("files[{i}].bytes"), expected, f.bytes.to_string()));
        }
        check_hash(file, format!("files[{i}].sha256"), &f.sha256)?;
    }
    Ok(())
}

fn check_format(file: &Path, field: &str, layout: &TensorLayout) -> Result<(), ContainerError> {
    let found = || format!("{:?} as {}", layout.spec.shape, layout.spec.format);
    layout.spec.check().map_err(|e| ContainerError::invalid(file, field, e.to_string(), found()))?;
    let present = layout.spec.parts().len();
    if layout.offsets[present..].iter().any(|&o| o != 0) {
        let offsets = format!("{:?}", layout.offsets);
        let expected = "0 for the parts that a plain tensor does not have";
        return Err(invalid(file, format!("{field}.offsets"), expected, offsets));
    }
    Ok(())
}

/// The tensors must be exactly those of the model, in order, each part on the first aligned byte after the one before.
fn check_dense(file: &Path, model: &ModelConfig, dense: &DenseSection) -> Result<(), ContainerError> {
    equal(file, "dense.file", &DENSE_FILE, &dense.file.as_str())?;
    equal(file, "dense.alignment", &(PART_ALIGN as u64), &dense.alignment)?;
    let specs = dense_specs(model);
    let mut end = 0u64;
    for (i, spec) in specs.iter().enumerate() {
        let Some(entry) = dense.tensors.get(i) else {
            let field = format!("dense.tensors[{i}]");
            return Err(invalid(file, field, format!("tensor {}", spec.name), "the end of the list"));
        };
        if entry.name != spec.name {
            let found = format!("{:?}", clipped(&entry.name));
            return Err(invalid(file, format!("dense.tensors[{i}].name"), format!("{:?}", spec.name), found));
        }
        equal(file, format_args!("dense: {}.shape", spec.name), &spec.shape, &entry.layout.spec.shape)?;
        let field = format!("dense: {}", spec.name);
        check_format(file, &field, &entry.layout)?;
        if spec.role == Role::Vector && entry.layout.spec.format != Format::Plain(DType::F32) {
            let found = entry.layout.spec.format.to_string();
            return Err(invalid(file, format!("{field}.format"), "f32, as for every small tensor", found));
        }
        for &part in entry.layout.spec.parts() {
            let expected = end.next_multiple_of(PART_ALIGN as u64);
            let found = entry.layout.offsets[part as usize];
            equal(file, format_args!("{field}: offset of {}", part.suffix()), &expected, &found)?;
            end = expected + entry.layout.spec.part_bytes(part) as u64;
        }
    }
    if let Some(extra) = dense.tensors.get(specs.len()) {
        let field = format!("dense.tensors[{}]", specs.len());
        let found = format!("{:?}, which this model does not have", clipped(&extra.name));
        return Err(invalid(file, field, "the end of the list", found));
    }
    equal(file, "dense.bytes", &end.next_multiple_of(DENSE_FILE_ALIGN), &dense.bytes)
}

fn check_experts(file: &Path, model: &ModelConfig, experts: &ExpertSection) -> Result<(), ContainerError> {
    if !RECORD_ALIGNMENTS.contains(&experts.alignment) {
        let found = experts.alignment.to_string();
        return Err(ContainerError::invalid(file, "experts.alignment", "4096 or 16384", found));
    }
    equal(file, "experts.expert_count", &model.moe.experts, &experts.expert_count)?;
    equal(file, "experts.layers: length", &model.expert_layers(), &experts.layers.len())?;
    for (i, layer) in experts.layers.iter().enumerate() {
        let field = format!("experts.layers[{i}]");
        equal(file, format_args!("{field}.layer"), &i, &layer.layer)?;
        equal(file, format_args!("{field}.file"), &layer_file(i), &layer.file)?;
        check_record(file, &format!("{field}.record"), model, &layer.record)?;
        let expected = stride(layer.record.bytes, experts.alignment);
        equal(file, format_args!("{field}.stride_bytes"), &expected, &layer.stride_bytes)?;
    }
    Ok(())
}

/// Parts may lie in any order, but aligned, apart from each other and within the record.
fn check_record(
    file: &Path,
    field: &str,
    model: &ModelConfig,
    record: &RecordLayout,
) -> Result<(), ContainerError> {
    if record.bytes > Limits::RECORD_BYTES {
        let expected = format!("at most {}", Limits::RECORD_BYTES);
        return Err(invalid(file, format!("{field}.bytes"), expected, record.bytes.to_string()));
    }
    let (inner, hidden) = (model.moe.intermediate, model.hidden);
    let mut ranges = Vec::with_capacity(9);
    for projection in Projection::ALL {
        let layout = record.get(projection);
        let shape = if projection == Projection::Down { [hidden, inner] } else { [inner, hidden] };
        let field = format!("{field}.{}", projection.name().trim_end_matches("_proj"));
        equal(file, format_args!("{field}.shape"), &shape.as_slice(), &layout.spec.shape.as_slice())?;
        check_format(file, &field, layout)?;
        for &part in layout.spec.parts() {
            let (start, bytes) = (layout.offsets[part as usize], layout.spec.part_bytes(part) as u64);
            let field = format!("{field}: offset of {}", part.suffix());
            if !start.is_multiple_of(PART_ALIGN as u64) {
                let expected = format!("a multiple of {PART_ALIGN}");
                return Err(invalid(file, field, expected, start.to_string()));
            }
            let Some(end) = start.checked_add(bytes).filter(|&end| end <= record.bytes) else {
                let expected = format!("{bytes} bytes within the record's {}", record.bytes);
                return Err(invalid(file, field, expected, start.to_string()));
            };
            ranges.push((start, end, field));
        }
    }
    ranges.sort();
    for pair in ranges.windows(2) {
        let ((_, end, before), (start, _, field)) = (&pair[0], &pair[1]);
        if start < end {
            let expected = format!("at least {end}, where {before} ends");
            return Err(invalid(file, field.clone(), expected, start.to_string()));
        }
    }
    let end = ranges.last().map_or(0, |r| r.1);
    equal(file, format_args!("{field}.bytes"), &end, &record.bytes)
}
