//! The writer that takes bytes in any order, across runs.

use std::path::Path;

use spinetail_container::partial::Partial;
use spinetail_container::{Container, ContainerError, Opened, PlacedWriter, Plan, Summary};
use spinetail_core::{ExpertId, Part};

use crate::common::{SMALL_FILES, files, ids, part_bytes, plan, record_bytes, write};

fn open(output: &Path, plan: &Plan) -> (PlacedWriter, Opened) {
    PlacedWriter::open(output, plan.clone(), &["mine"]).unwrap()
}

/// Everything that can be written, as pieces of at most `most` bytes: a tensor's part or a record, offset, bytes.
enum Piece {
    Dense(String, Part, u64, Vec<u8>),
    Record(ExpertId, u64, Vec<u8>),
}

fn pieces(plan: &Plan, most: usize) -> Vec<Piece> {
    let mut out = Vec::new();
    for (name, spec) in &plan.dense {
        for &part in spec.parts() {
            for (i, bytes) in part_bytes(name, spec, part).chunks(most).enumerate() {
                out.push(Piece::Dense(name.clone(), part, (i * most) as u64, bytes.to_vec()));
            }
        }
    }
    for id in ids(plan) {
        let record = record_bytes(id, &plan.experts[usize::from(id.layer)]);
        for (i, bytes) in record.chunks(most).enumerate() {
            out.push(Piece::Record(id, (i * most) as u64, bytes.to_vec()));
        }
    }
    out
}

fn put(writer: &PlacedWriter, piece: &Piece) {
    match piece {
        Piece::Dense(name, part, offset, bytes) => writer.write_dense(name, *part, *offset, bytes).unwrap(),
        Piece::Record(id, offset, bytes) => writer.write_record_part(*id, *offset, bytes).unwrap(),
    }
}

fn finish(mut writer: PlacedWriter) -> Summary {
    for (name, bytes) in SMALL_FILES {
        writer.add_file(name, bytes).unwrap();
    }
    let (mut last, total) = (0, writer.data_bytes());
    let summary = writer.finish(&["mine"], &mut |done| {
        last = done;
        true
    });
    assert_eq!(last, total);
    summary.unwrap()
}

fn same(a: &Path, b: &Path) {
    assert_eq!(files(a), files(b));
    for name in files(a) {
        assert!(std::fs::read(a.join(&name)).unwrap() == std::fs::read(b.join(&name)).unwrap(), "{name}");
    }
}

#[test]
fn any_order_gives_the_same_container() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a.qpack"), dir.path().join("b.qpack"));
    let plan = plan();
    let expected = write(&a, &plan);
    let (mut writer, opened) = open(&b, &plan);
    assert_eq!(opened, Opened::New);
    let all = pieces(&plan, 777);
    // A stride that shares no factor with the count visits each once; and some are written twice.
    let step = (1..).map(|i| all.len() / 3 + i).find(|s| gcd(*s, all.len()) == 1).unwrap();
    (0..all.len()).for_each(|i| put(&writer, &all[i * step % all.len()]));
    all.iter().step_by(5).for_each(|p| put(&writer, p));
    writer.set_source(plan.source.clone());
    let summary = finish(writer);
    assert_eq!((summary.bytes, summary.records), (expected.bytes, expected.records));
    same(&a, &b);
    Container::open(&b).unwrap();
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[test]
fn a_run_goes_on_where_another_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a.qpack"), dir.path().join("b.qpack"));
    let plan = plan();
    write(&a, &plan);
    let all = pieces(&plan, 4096);
    for (i, some) in all.chunks(all.len() / 5 + 1).enumerate() {
        let (mut writer, opened) = open(&b, &plan);
        assert_eq!(opened, if i == 0 { Opened::New } else { Opened::Resumed });
        some.iter().for_each(|p| put(&writer, p));
        writer.sync().unwrap();
        // As small files come anew with every run, and what else lies about goes.
        writer.add_file("config.json", b"{}").unwrap();
        std::fs::write(writer.folder().join("mine"), b"x").unwrap();
        std::fs::write(writer.folder().join("manifest.json"), b"torn").unwrap();
        assert!(matches!(PlacedWriter::open(&b, plan.clone(), &[]), Err(ContainerError::Busy { .. })));
    }
    let (writer, _) = open(&b, &plan);
    assert_eq!(std::fs::read(writer.folder().join("mine")).unwrap(), b"x");
    assert!(!writer.folder().join("manifest.json").exists());
    finish(writer);
    same(&a, &b);
}

#[test]
fn another_plan_starts_over_but_another_source_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("m.qpack");
    let mut changed = plan();
    drop(open(&output, &changed));
    changed.source.revision = Some("other".to_owned());
    assert_eq!(open(&output, &changed).1, Opened::Resumed);
    changed.record_alignment = 16384;
    assert_eq!(open(&output, &changed).1, Opened::Replaced);
    assert_eq!(open(&output, &changed).1, Opened::Resumed);
    // A file of another length was not laid out by this plan, whoever cut it.
    let dense = dir.path().join("m.qpack.partial/dense.bin");
    std::fs::write(&dense, b"short").unwrap();
    assert_eq!(open(&output, &changed).1, Opened::Replaced);
    // What a writer that starts afresh finds, it removes.
    drop(spinetail_container::Writer::create(&output, plan()).unwrap());
    assert_eq!(open(&output, &plan()).1, Opened::New);
}

#[test]
fn stopping_keeps_and_publishing_refuses_what_exists() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("m.qpack");
    let plan = plan();
    let (writer, _) = open(&output, &plan);
    pieces(&plan, 5000).iter().for_each(|p| put(&writer, p));
    assert!(matches!(writer.finish(&[], &mut |_| false), Err(ContainerError::Interrupted { .. })));
    let (writer, opened) = open(&output, &plan);
    assert_eq!(opened, Opened::Resumed);
    std::fs::create_dir(&output).unwrap();
    assert!(matches!(writer.finish(&[], &mut |_| true), Err(ContainerError::Exists { .. })));
    std::fs::remove_dir(&output).unwrap();
    finish(open(&output, &plan).0);
    Container::open(&output).unwrap();
    assert!(matches!(PlacedWriter::open(&output, plan, &[]), Err(ContainerError::Exists { .. })));
}

#[test]
fn writes_outside_their_place_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let plan = plan();
    let (mut w, _) = open(&dir.path().join("m.qpack"), &plan);
    let refused = |r: Result<(), ContainerError>, says: &str| {
        let e = r.unwrap_err();
        assert!(matches!(e, ContainerError::Write { .. }) && e.to_string().contains(says), "{e}");
    };
    refused(w.write_dense("nothing", Part::Weight, 0, &[0]), "nothing");
    refused(w.write_dense("norm", Part::Scales, 0, &[0]), "scales of norm");
    refused(w.write_dense("norm", Part::Weight, 384, &[0]), "384");
    refused(w.write_dense("norm", Part::Weight, u64::MAX, &[0]), "norm");
    let bytes = plan.experts[0].bytes;
    let id = ExpertId { layer: 0, expert: 0 };
    refused(w.write_record_part(id, bytes, &[0]), "bytes");
    refused(w.write_record_part(id, u64::MAX, &[0]), "bytes");
    refused(w.write_record_part(ExpertId { layer: 3, expert: 0 }, 0, &[0]), "layer 3");
    refused(w.write_record_part(ExpertId { layer: 0, expert: 3 }, 0, &[0]), "expert 3");
    assert!(matches!(w.add_file("writing.plan", b""), Err(ContainerError::Name { .. })));
    w.add_file("config.json", b"{}").unwrap();
    refused(w.add_file("config.json", b"{}"), "once");
}

#[test]
fn a_partial_that_is_not_published_is_kept_only_if_it_can_be_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("m.qpack");
    let partial = Partial::resume(&output).unwrap();
    std::fs::write(partial.path("half"), b"x").unwrap();
    assert!(matches!(Partial::resume(&output), Err(ContainerError::Busy { .. })));
    drop(partial);
    let partial = Partial::resume(&output).unwrap();
    assert!(partial.path("half").exists() && partial.folder().ends_with("m.qpack.partial"));
    drop(partial);
    let partial = Partial::create(&output).unwrap();
    assert!(!partial.path("half").exists());
    drop(partial);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
