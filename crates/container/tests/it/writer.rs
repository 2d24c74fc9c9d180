//! The writer refuses what is not in the plan, and never leaves half a container under the final name.

use std::path::Path;

use spinetail_container::{Container, ContainerError, Writer};
use spinetail_core::{ExpertId, Format, Part, TensorSpec};

use crate::common::{affine, fill, plan, record_bytes, write};

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn an_output_that_exists_in_any_form_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("m.qpack");
    let exists = || {
        let e = Writer::create(&output, plan()).unwrap_err();
        assert!(matches!(e, ContainerError::Exists { .. }), "{e}");
    };
    std::fs::write(&output, b"").unwrap();
    exists();
    std::fs::remove_file(&output).unwrap();
    std::fs::create_dir(&output).unwrap();
    exists();
    std::fs::remove_dir(&output).unwrap();
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("/nowhere", &output).unwrap();
        exists();
        std::fs::remove_file(&output).unwrap();
    }
    assert!(Writer::create(&dir.path().join("absent/m.qpack"), plan()).is_err());
    assert!(Writer::create(&dir.path().join(".."), plan()).is_err());
    assert!(Writer::create(Path::new("/"), plan()).is_err());
    assert_eq!(entries(dir.path()), [""; 0]);
}

#[test]
fn an_output_that_appears_under_way_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("m.qpack");
    let mut writer = Writer::create(&output, plan()).unwrap();
    fill(&mut writer, &plan());
    std::fs::create_dir(&output).unwrap();
    assert!(matches!(writer.finish(), Err(ContainerError::Exists { .. })));
    assert_eq!(entries(dir.path()), ["m.qpack"]);
    assert_eq!(entries(&output), [""; 0]);
}

#[test]
fn dropping_the_writer_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::create(&dir.path().join("m.qpack"), plan()).unwrap();
    fill(&mut writer, &plan());
    assert_eq!(entries(dir.path()), ["m.qpack.partial"]);
    drop(writer);
    assert_eq!(entries(dir.path()), [""; 0]);
}

#[test]
fn a_second_writer_waits_its_turn_and_a_dead_ones_leavings_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("m.qpack");
    let writer = Writer::create(&output, plan()).unwrap();
    assert!(matches!(Writer::create(&output, plan()), Err(ContainerError::Busy { .. })));
    assert_eq!(entries(dir.path()), ["m.qpack.partial"], "the refused one took nothing away");
    // As after a kill: the folder stays, the lock goes.
    let partial = dir.path().join("m.qpack.partial");
    let kept = dir.path().join("kept");
    std::fs::rename(&partial, &kept).unwrap();
    drop(writer);
    std::fs::rename(&kept, &partial).unwrap();
    std::fs::create_dir(partial.join("stale")).unwrap();
    std::fs::write(partial.join("stale/file"), b"x").unwrap();
    write(&output, &plan());
    assert_eq!(entries(dir.path()), ["m.qpack"]);
    assert!(!entries(&output).iter().any(|n| n == "stale" || n == "writing.lock"));
    Container::open(&output).unwrap();
}

#[test]
fn a_folder_that_is_not_ours_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (output, partial) = (dir.path().join("m.qpack"), dir.path().join("m.qpack.partial"));
    std::fs::create_dir(&partial).unwrap();
    std::fs::write(partial.join("thesis.tex"), b"x").unwrap();
    let in_the_way = || {
        let e = Writer::create(&output, plan()).unwrap_err();
        assert!(matches!(e, ContainerError::InTheWay { .. }), "{e}");
    };
    in_the_way();
    assert_eq!(entries(&partial), ["thesis.tex"]);
    std::fs::remove_dir_all(&partial).unwrap();
    std::fs::write(&partial, b"x").unwrap();
    in_the_way();
    std::fs::remove_file(&partial).unwrap();
    // An empty one is what a run killed in its first moment leaves.
    std::fs::create_dir(&partial).unwrap();
    write(&output, &plan());
}

#[test]
fn what_is_missing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("m.qpack");
    let plan = plan();
    let writer = Writer::create(&output, plan.clone()).unwrap();
    let error = writer.finish().unwrap_err().to_string();
    assert!(error.contains("weight of embed_tokens"), "{error}");

    let mut writer = Writer::create(&output, plan.clone()).unwrap();
    for (name, spec) in &plan.dense {
        for &part in spec.parts() {
            writer.write_dense(name, part, 0, &vec![1; spec.part_bytes(part)]).unwrap();
        }
    }
    for expert in [0, 2] {
        let id = ExpertId { layer: 0, expert };
        writer.write_record(id, &record_bytes(id, &plan.experts[0])).unwrap();
    }
    let error = writer.finish().unwrap_err();
    assert!(
        matches!(&error, ContainerError::Incomplete { what, .. } if what == "expert 1 of layer 0"),
        "{error}"
    );
    assert_eq!(entries(dir.path()), [""; 0]);
}

#[test]
fn writes_that_are_not_in_the_plan_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let plan = plan();
    let mut w = Writer::create(&dir.path().join("m.qpack"), plan.clone()).unwrap();
    let refused = |r: Result<(), ContainerError>, says: &str| {
        let e = r.unwrap_err();
        assert!(matches!(e, ContainerError::Write { .. }) && e.to_string().contains(says), "{e}");
    };
    refused(w.write_dense("nothing", Part::Weight, 0, &[0]), "nothing");
    refused(w.write_dense("norm", Part::Scales, 0, &[0]), "scales of norm");
    refused(w.write_dense("norm", Part::Weight, 4, &[0]), "expected the bytes at 0");
    refused(w.write_dense("norm", Part::Weight, u64::MAX, &[0]), "norm");
    refused(w.write_dense("norm", Part::Weight, 0, &[0; 385]), "384 bytes");
    w.write_dense("norm", Part::Weight, 0, &[0; 384]).unwrap();
    refused(w.write_dense("norm", Part::Weight, 0, &[0; 384]), "once");

    let id = ExpertId { layer: 0, expert: 0 };
    let record = record_bytes(id, &plan.experts[0]);
    refused(w.write_record(id, &record[1..]), "bytes");
    refused(w.write_record(id, &[record.clone(), vec![0]].concat()), "bytes");
    refused(w.write_record(ExpertId { layer: 3, expert: 0 }, &record), "layer 3");
    refused(w.write_record(ExpertId { layer: 0, expert: 3 }, &record), "expert 3");
    w.write_record(id, &record).unwrap();
    refused(w.write_record(id, &record), "once");

    w.add_file("config.json", b"{}").unwrap();
    refused(w.add_file("Config.json", b"{}"), "once");
    for name in ["../x", "/x", "a/b", "manifest.json", "DENSE.BIN", "experts", "nul", "", "checksums.bin"] {
        assert!(matches!(w.add_file(name, b""), Err(ContainerError::Name { .. })), "{name}");
    }
}

#[test]
fn plans_that_cannot_be_are_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let refuse = |says: &str, change: &dyn Fn(&mut spinetail_container::Plan)| {
        let mut plan = plan();
        change(&mut plan);
        let _ = plan.total_bytes();
        let error = Writer::create(&dir.path().join("m.qpack"), plan).expect_err(says).to_string();
        assert!(error.contains(says), "{says}: {error}");
        assert_eq!(entries(dir.path()), [""; 0]);
    };
    refuse("embed_tokens", &|p| drop(p.dense.remove(0)));
    refuse("extra", &|p| {
        p.dense.push(("extra".to_owned(), TensorSpec::plain(&[4], spinetail_core::DType::F32)));
    });
    refuse("norm", &|p| {
        let norm = p.dense.iter().find(|d| d.0 == "norm").unwrap().clone();
        p.dense.push(norm);
    });
    refuse("shape", &|p| p.dense[0].1.shape = vec![usize::MAX, usize::MAX]);
    refuse("group", &|p| {
        let Format::Affine(mut a) = affine(4) else { unreachable!() };
        a.group_size = 128;
        p.dense[0].1.format = Format::Affine(a);
    });
    refuse("f32", &|p| {
        p.dense.iter_mut().find(|d| d.0 == "norm").unwrap().1.format =
            Format::Plain(spinetail_core::DType::Bf16);
    });
    refuse("experts.layers", &|p| drop(p.experts.pop()));
    refuse("record.bytes", &|p| p.experts[0].bytes += 1);
    refuse("record.bytes", &|p| p.experts[0].bytes = u64::MAX);
    refuse("alignment", &|p| p.record_alignment = 512);
    refuse("alignment", &|p| p.record_alignment = 0);
    refuse("hidden_size", &|p| p.config.hidden = 0);
    refuse("source.name", &|p| p.source.name = "\n".to_owned());
}

#[cfg(target_os = "linux")]
#[test]
fn too_little_space_is_an_error_with_both_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let mut plan = plan();
    // 3 layers of 3 experts of 1 GiB would fit many drives; 4096 of them fit none that tests run on.
    let spec = |r, c| TensorSpec { shape: vec![r, c], format: Format::Plain(spinetail_core::DType::F32) };
    plan.config.moe = spinetail_core::MoeConfig { experts: 4096, intermediate: 900_000, ..plan.config.moe };
    for (name, s) in &mut plan.dense {
        if name.ends_with("mlp.gate") {
            s.shape[0] = 4096;
        }
    }
    let record =
        spinetail_core::RecordLayout::packed(spec(900_000, 96), spec(900_000, 96), spec(96, 900_000));
    plan.experts = vec![record; 3];
    let needed = plan.total_bytes();
    let error = Writer::create(&dir.path().join("m.qpack"), plan).unwrap_err();
    assert!(matches!(error, ContainerError::NoSpace { needed: n, .. } if n == needed), "{error}");
    assert!(error.to_string().contains(&needed.to_string()));
    assert_eq!(entries(dir.path()), [""; 0]);
}

#[test]
fn the_order_of_the_plan_does_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a.qpack"), dir.path().join("b.qpack"));
    let mut reversed = plan();
    reversed.dense.reverse();
    write(&a, &plan());
    write(&b, &reversed);
    for name in crate::common::files(&a) {
        assert!(std::fs::read(a.join(&name)).unwrap() == std::fs::read(b.join(&name)).unwrap(), "{name}");
    }
}
