//! What is written is read.

use spinetail_container::{Container, Kind, detect};
use spinetail_core::{DenseSource, ExpertId, Part, ReadError, RecordSource};

use crate::common::{SMALL_FILES, bytes_of, files, ids, part_bytes, plan, record_bytes, write};

#[test]
fn everything_written_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.qpack");
    let (plan, total) = (plan(), plan().total_bytes());
    let summary = write(&path, &plan);

    let on_disk: u64 = files(&path).iter().map(|f| path.join(f).metadata().unwrap().len()).sum();
    assert_eq!(summary.bytes, on_disk);
    let small: u64 = SMALL_FILES.iter().map(|f| f.1.len() as u64).sum();
    let manifest = path.join("manifest.json").metadata().unwrap().len();
    assert_eq!(total + small + manifest, on_disk);
    assert_eq!(summary.records, 9);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside the container");

    assert_eq!(detect(&path).unwrap(), Some(Kind::V2));
    let c = Container::open(&path).unwrap();
    assert_eq!(c.config(), &plan.config);
    assert_eq!(c.manifest().source, plan.source);
    assert_eq!(c.dense_bytes() % 4096, 0);
    assert_eq!(c.dense_bytes(), summary.dense_bytes);
    for (name, spec) in &plan.dense {
        assert_eq!(c.dense_spec(name), Some(spec));
        for part in Part::ALL {
            let mut out = vec![0; spec.part_bytes(part)];
            c.read_dense(name, part, &mut out).unwrap();
            assert!(out == part_bytes(name, spec, part), "{name} {part:?}");
        }
    }
    for id in ids(&plan) {
        let file = &c.record_files()[usize::from(id.layer)];
        assert_eq!(c.record_layout(id.layer), Some(&file.layout));
        let expected = record_bytes(id, &file.layout);
        let mut exact = vec![0; file.layout.bytes as usize];
        c.read_record(id, &mut exact).unwrap();
        assert!(exact == expected, "{id}");
        let mut stride = vec![0xff; file.stride_bytes as usize + 5];
        c.read_record(id, &mut stride).unwrap();
        let (stride, rest) = stride.split_at(file.stride_bytes as usize);
        assert!(stride[..expected.len()] == expected && rest == [0xff; 5]);
        assert!(stride[expected.len()..].iter().all(|&b| b == 0), "padding is zero");
        c.check_record(id, stride).unwrap();
    }
    for (name, bytes) in SMALL_FILES {
        assert_eq!(c.read_file(name).unwrap(), bytes);
    }
    assert!(c.read_file("manifest.json").is_err());
}

#[test]
fn dense_parts_of_the_file_are_the_memory_image() {
    let (_dir, path) = crate::common::written();
    let c = Container::open(&path).unwrap();
    let image = std::fs::read(path.join("dense.bin")).unwrap();
    let mut at = 0;
    for p in c.manifest().dense_parts() {
        let entry = &c.manifest().dense.tensors[p.tensor];
        assert_eq!(p.offset, at, "{}", entry.name);
        assert_eq!(p.offset % 64, 0);
        let bytes = part_bytes(&entry.name, &entry.layout.spec, p.part);
        assert!(entry.layout.slice(&image, p.part) == bytes);
        assert!(image[(p.offset + p.bytes) as usize..p.end as usize].iter().all(|&b| b == 0));
        at = p.end;
    }
    assert_eq!(at, image.len() as u64);
}

#[test]
fn asking_for_what_is_not_there_is_an_error() {
    let (_dir, path) = crate::common::written();
    let c = Container::open(&path).unwrap();
    let unknown = |r: Result<(), ReadError>| assert!(matches!(r, Err(ReadError::Unknown { .. })));
    let mut out = bytes_of("", 1 << 16);
    unknown(c.read_record(ExpertId { layer: 3, expert: 0 }, &mut out));
    unknown(c.read_record(ExpertId { layer: 0, expert: 3 }, &mut out));
    unknown(c.read_record(ExpertId { layer: u16::MAX, expert: u16::MAX }, &mut out));
    unknown(c.read_record(ExpertId { layer: 0, expert: 0 }, &mut out[..10]));
    unknown(c.read_dense("norm", Part::Weight, &mut out[..10]));
    unknown(c.read_dense("nothing", Part::Weight, &mut out[..10]));
    assert_eq!(c.record_layout(3), None);
    assert_eq!(c.dense_spec("nothing"), None);
}
