//! Reads version 2 containers: opens them with every cheap check, and hands over dense parts and records.
//!
//! One record is one positioned read. Nothing is cached here.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spinetail_core::{
    DenseSource, ExpertId, Limits, ModelConfig, Part, ReadError, ReadMode, ReadRing, RecordLayout,
    RecordSource, TensorLayout, TensorSpec,
};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::data::{BLOCK_BYTES, DataFile, Reading};
use crate::files::{hex, read_small_file, regular_size, sha256};
use crate::layout::DensePart;
use crate::{Checksums, ContainerError, MANIFEST_BYTES, Manifest};

/// The records of one layer, for those who read them by themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordFile {
    /// The file; record e lies at `e · stride_bytes`.
    pub path: PathBuf,
    /// Bytes from one record to the next.
    pub stride_bytes: u64,
    /// Where each matrix lies within a record.
    pub layout: RecordLayout,
}

/// How a container is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenOptions {
    /// How the system is asked for bytes, as long as it does not refuse. A ring is for records; all else is read directly.
    pub read_mode: ReadMode,
    /// Whether every record that is read is held against its checksum. It makes every miss longer, by about a tenth of
    /// a millisecond for each megabyte.
    pub verify_reads: bool,
}

/// An open version 2 container.
#[derive(Debug)]
pub struct Container {
    path: PathBuf,
    pub(crate) manifest: Manifest,
    pub(crate) checksums: Checksums,
    pub(crate) parts: Vec<DensePart>,
    /// Index of a tensor's first part.
    first_part: HashMap<String, usize>,
    pub(crate) dense: DataFile,
    pub(crate) layers: Vec<DataFile>,
    record_files: Vec<RecordFile>,
    pub(crate) reading: Arc<Reading>,
    pub(crate) verify_reads: bool,
}

/// Refuses a file that is missing, not a regular file, or not as long as it must be.
pub(crate) fn check_size(root: &Path, name: &str, expected: u64) -> Result<(), ContainerError> {
    let found = regular_size(root, name)?;
    if found == expected {
        return Ok(());
    }
    let what = if found < expected { "bytes: it was cut short" } else { "bytes: something was added" };
    Err(ContainerError::invalid(
        &root.join(name),
        "size",
        format!("{expected} bytes"),
        format!("{found} {what}"),
    ))
}

/// What a container says of itself: all that there is to know without opening its large files.
#[derive(Debug)]
pub struct Listing {
    path: PathBuf,
    manifest: Manifest,
    checksums: Checksums,
}

impl Listing {
    /// Reads and checks the manifest and the checksum file in folder `path`. No other file is opened.
    pub fn read(path: &Path) -> Result<Self, ContainerError> {
        if crate::detect(path)?.is_none() {
            return Err(ContainerError::NotAContainer { path: path.to_owned() });
        }
        let file = path.join(crate::manifest::FILE);
        regular_size(path, crate::manifest::FILE)?;
        let bytes = read_small_file(&file, MANIFEST_BYTES)?;
        crate::manifest::head(&file, &bytes)?;
        let checksums = read_checksums(path)?;
        // Before the manifest is understood: damage is then called damage, whatever it would have been read as.
        check_manifest_hash(&file, &bytes, &checksums)?;
        Ok(Self { path: path.to_owned(), manifest: Manifest::parse(&file, &bytes)?, checksums })
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// A small file, checked against its SHA-256.
    pub fn read_file(&self, name: &str) -> Result<Vec<u8>, ContainerError> {
        read_listed(&self.path, &self.manifest, name)
    }
}

fn read_listed(path: &Path, manifest: &Manifest, name: &str) -> Result<Vec<u8>, ContainerError> {
    let Some(entry) = manifest.files.iter().find(|f| f.path == name) else {
        return Err(ContainerError::NoFile { path: path.to_owned(), name: name.to_owned() });
    };
    check_size(path, name, entry.bytes)?;
    let path = path.join(name);
    let bytes = read_small_file(&path, Limits::JSON_BYTES)?;
    let found = hex(&sha256(&bytes));
    if found != entry.sha256 {
        let expected = format!("SHA-256 {}", entry.sha256);
        return Err(ContainerError::invalid(&path, "contents", expected, found));
    }
    Ok(bytes)
}

impl Container {
    /// Opens the container in folder `path`: manifest and checksum file are read and checked, and the length of
    /// every file. Tensors and records are not read; [`crate::verify()`] does that.
    pub fn open(path: &Path) -> Result<Self, ContainerError> {
        Self::open_with(path, &OpenOptions::default())
    }

    /// As [`Container::open`], to be read as `options` say.
    pub fn open_with(path: &Path, options: &OpenOptions) -> Result<Self, ContainerError> {
        let Listing { manifest, checksums, .. } = Listing::read(path)?;
        for (name, bytes) in manifest.expected_sizes() {
            check_size(path, &name, bytes)?;
        }
        let parts = manifest.dense_parts();
        let experts = &manifest.experts;
        let file = path.join(crate::checksums::FILE);
        checksums.check_counts(&file, parts.len(), experts.layers.len(), experts.expert_count)?;
        let record_files: Vec<_> = experts
            .layers
            .iter()
            .map(|l| RecordFile {
                path: path.join(&l.file),
                stride_bytes: l.stride_bytes,
                layout: l.record.clone(),
            })
            .collect();
        let mut first_part = HashMap::with_capacity(manifest.dense.tensors.len());
        for (i, p) in parts.iter().enumerate() {
            first_part.entry(manifest.dense.tensors[p.tensor].name.clone()).or_insert(i);
        }
        let reading = Arc::new(Reading::new(options.read_mode));
        let files = record_files.len() + 1;
        let open = |path: &Path| DataFile::open(path, &reading).map_err(|e| e.name_descriptors(files));
        let open_records = |r: &RecordFile| open(&r.path).inspect(DataFile::expect_random_reads);
        Ok(Self {
            path: path.to_owned(),
            dense: open(&path.join(&manifest.dense.file))?,
            layers: record_files.iter().map(open_records).collect::<Result<_, _>>()?,
            record_files,
            reading,
            verify_reads: options.verify_reads,
            manifest,
            checksums,
            parts,
            first_part,
        })
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the dense tensors, padding included.
    pub fn dense_bytes(&self) -> u64 {
        self.manifest.dense.bytes
    }

    /// The files of records, one per layer: the decoder's layers, then prediction heads.
    pub fn record_files(&self) -> &[RecordFile] {
        &self.record_files
    }

    /// A small file, checked against its SHA-256.
    pub fn read_file(&self, name: &str) -> Result<Vec<u8>, ContainerError> {
        read_listed(&self.path, &self.manifest, name)
    }

    /// Checks a record's whole stride, padding included, against its checksum. Reading does this by itself only when
    /// [`OpenOptions::verify_reads`] asks for it.
    pub fn check_record(&self, id: ExpertId, stride: &[u8]) -> Result<(), ReadError> {
        let file = self.record_files.get(usize::from(id.layer));
        let Some(file) = file.filter(|_| self.checksums.record(id).is_some()) else {
            return Err(ReadError::Unknown { what: id.to_string() });
        };
        if stride.len() as u64 != file.stride_bytes {
            let what = format!("{id} of {} bytes: its stride is {}", stride.len(), file.stride_bytes);
            return Err(ReadError::Unknown { what });
        }
        self.compare_record(id, xxh3_64(stride))
    }

    /// Holds the checksum of a dense part, and the padding after it, against the one recorded.
    pub(crate) fn compare_part(&self, index: usize, found: u64) -> Result<(), ReadError> {
        let (part, expected) = (self.parts[index], self.checksums.dense[index]);
        if expected == found {
            return Ok(());
        }
        let name = &self.manifest.dense.tensors[part.tensor].name;
        let what = format!("{} of {name}", part.part.suffix());
        Err(ReadError::Checksum { what, path: self.dense.path().to_owned(), expected, found })
    }

    fn compare_record(&self, id: ExpertId, found: u64) -> Result<(), ReadError> {
        match self.checksums.record(id) {
            Some(expected) if expected == found => Ok(()),
            Some(expected) => {
                let path = self.record_files[usize::from(id.layer)].path.clone();
                Err(ReadError::Checksum { what: id.to_string(), path, expected, found })
            }
            None => Err(ReadError::Unknown { what: id.to_string() }),
        }
    }

    /// Where a record lies in its layer's file, and how much of it to read to memory of `room` bytes: the whole stride if
    /// there is room for it, or else whole blocks if there is for those.
    pub(crate) fn place(&self, id: ExpertId, room: usize) -> Result<(u64, usize), ReadError> {
        let (Some(record), true) = (
            self.record_files.get(usize::from(id.layer)),
            usize::from(id.expert) < self.manifest.experts.expert_count,
        ) else {
            return Err(ReadError::Unknown { what: id.to_string() });
        };
        let room = room as u64;
        if room < record.layout.bytes {
            let what = format!("{id} of {room} bytes: it has {}", record.layout.bytes);
            return Err(ReadError::Unknown { what });
        }
        let sizes = [record.stride_bytes, record.layout.bytes.next_multiple_of(BLOCK_BYTES as u64)];
        let bytes = sizes.into_iter().find(|&bytes| bytes <= room).unwrap_or(record.layout.bytes);
        Ok((u64::from(id.expert) * record.stride_bytes, bytes as usize))
    }

    /// Checks a record of which `read` has been read; what is missing of its stride is read for the purpose.
    pub(crate) fn check_read(&self, id: ExpertId, read: &[u8]) -> Result<(), ReadError> {
        let layer = usize::from(id.layer);
        let stride = self.record_files[layer].stride_bytes;
        let mut hash = Xxh3::new();
        hash.update(read);
        // Padding, of less than 16 KiB.
        let mut rest = vec![0; stride as usize - read.len()];
        self.layers[layer].read(u64::from(id.expert) * stride + read.len() as u64, &mut rest)?;
        hash.update(&rest);
        self.compare_record(id, hash.digest())
    }
}

pub(crate) fn read_checksums(root: &Path) -> Result<Checksums, ContainerError> {
    let file = root.join(crate::checksums::FILE);
    regular_size(root, crate::checksums::FILE)?;
    Checksums::parse(&file, &read_small_file(&file, crate::checksums::MAX_BYTES)?)
}

pub(crate) fn check_manifest_hash(file: &Path, bytes: &[u8], sums: &Checksums) -> Result<(), ContainerError> {
    let found = sha256(bytes);
    if found == sums.manifest_sha256 {
        return Ok(());
    }
    let expected = format!("SHA-256 {}, as checksums.bin says", hex(&sums.manifest_sha256));
    Err(ContainerError::invalid(file, "contents", expected, hex(&found)))
}

impl DenseSource for Container {
    fn config(&self) -> &ModelConfig {
        &self.manifest.model
    }

    fn dense_spec(&self, name: &str) -> Option<&TensorSpec> {
        let first = *self.first_part.get(name)?;
        Some(&self.manifest.dense.tensors[self.parts[first].tensor].layout.spec)
    }

    /// Also checks the part, and the padding after it, against its checksum.
    fn read_dense(&self, name: &str, part: Part, out: &mut [u8]) -> Result<(), ReadError> {
        let what = || format!("{} of {name}", part.suffix());
        let spec = self.dense_spec(name).ok_or_else(|| ReadError::Unknown { what: what() })?;
        let bytes = spec.part_bytes(part);
        if out.len() != bytes {
            let what = format!("{} of {} bytes: it has {bytes}", what(), out.len());
            return Err(ReadError::Unknown { what });
        }
        let Some(slot) = spec.parts().iter().position(|&p| p == part) else {
            return Ok(()); // A plain tensor's scales and biases are empty.
        };
        let index = self.first_part[name] + slot;
        let p = self.parts[index];
        self.dense.read(p.offset, out)?;
        let mut padding = [0; crate::layout::DENSE_FILE_ALIGN as usize];
        let padding = &mut padding[..(p.end - p.offset - p.bytes) as usize];
        self.dense.read(p.offset + p.bytes, padding)?;
        let mut hash = Xxh3::new();
        hash.update(out);
        hash.update(padding);
        self.compare_part(index, hash.digest())
    }

    fn image_layout(&self, name: &str) -> Option<&TensorLayout> {
        let first = *self.first_part.get(name)?;
        Some(&self.manifest.dense.tensors[self.parts[first].tensor].layout)
    }

    fn read_image(&self, out: &mut [u8], progress: &mut dyn FnMut(u64)) -> Result<(), ReadError> {
        crate::dense::read_image(self, out, progress)
    }
}

impl RecordSource for Container {
    fn record_layout(&self, layer: u16) -> Option<&RecordLayout> {
        self.record_files.get(usize::from(layer)).map(|f| &f.layout)
    }

    fn expert_count(&self) -> usize {
        self.manifest.experts.expert_count
    }

    /// Reads the whole stride if `out` has room for it, or else whole blocks if it has room for those.
    fn read_record(&self, id: ExpertId, out: &mut [u8]) -> Result<(), ReadError> {
        let (offset, bytes) = self.place(id, out.len())?;
        let out = &mut out[..bytes];
        self.layers[usize::from(id.layer)].read(offset, out)?;
        if self.verify_reads { self.check_read(id, out) } else { Ok(()) }
    }

    fn read_mode(&self) -> ReadMode {
        self.reading.mode()
    }

    fn ring(&self, reads: u32) -> Option<Box<dyn ReadRing + '_>> {
        if self.read_mode() != ReadMode::Uring {
            return None;
        }
        crate::uring::ring(self, reads).inspect_err(|e| self.reading.give_up_ring(e)).ok()
    }
}
