//! `repack`, `verify`, `inspect` and `logits`, end to end.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Run, fixture, pip16, run, spinetail};

const TOKENS: &str = "1,5,9,2,3";

fn repack(source: &Path, output: &Path, flags: &[&str]) -> Command {
    let mut command = spinetail(["repack", "--source"]);
    command.arg(source).arg("--output").arg(output).args(flags);
    command
}

fn logits(model: &Path, output: &Path) -> Run {
    let mut command = spinetail(["logits"]);
    run(command.arg(model).args(["--tokens", TOKENS, "--layers", "--output"]).arg(output))
}

#[test]
fn a_container_gives_the_bytes_of_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let container = folder.path().join("next 16.qpack");
    let said = run(&mut repack(&fixture("hf-next"), &container, &["--bits", "16"])).ok();
    assert!(said.contains("next 16.qpack") && said.contains("written"), "{said}");
    let said = run(spinetail(["verify"]).arg(&container)).ok();
    assert!(said.contains("nothing damaged"), "{said}");
    let said = run(spinetail(["inspect"]).arg(&container).args(["--context", "64"])).ok();
    assert!(said.contains("qwen3_next") && said.contains("at least"), "{said}");
    let (before, after) = (folder.path().join("a"), folder.path().join("b"));
    logits(&fixture("hf-next"), &before).ok();
    logits(&container, &after).ok();
    assert_eq!(fs::read(&before).unwrap(), fs::read(&after).unwrap());
    let header = String::from_utf8_lossy(&fs::read(&before).unwrap()[8..200]).into_owned();
    assert!(header.contains("\"logits\":{\"dtype\":\"F32\",\"shape\":[5,"), "{header}");
    // What is there is not written over, and stays whole.
    let refused = run(&mut repack(&fixture("hf-next"), &container, &["--bits", "16"])).refused(1);
    assert!(refused.contains("next 16.qpack"), "{refused}");
    run(spinetail(["verify"]).arg(&container)).ok();
}

#[test]
fn damage_is_found_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let container = folder.path().join("c.qpack");
    run(&mut repack(&fixture("hf-next"), &container, &["--bits", "16"])).ok();
    let file = container.join("experts/layer_001.bin");
    let mut bytes = fs::read(&file).unwrap();
    bytes[100] ^= 1;
    fs::write(&file, bytes).unwrap();
    let run = run(spinetail(["verify"]).arg(&container));
    assert_eq!(run.status, 1, "{run:?}");
    assert!(run.out.contains("layer_001.bin") && run.err.contains("is damaged in 1 places"), "{run:?}");
}

/// One cause may have damaged thousands of records: some are named, and all are counted.
#[test]
fn damage_without_an_end_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let container = folder.path().join("c.qpack");
    run(&mut repack(&fixture("hf-next"), &container, &["--bits", "16"])).ok();
    for layer in fs::read_dir(container.join("experts")).unwrap() {
        let file = layer.unwrap().path();
        let bytes = fs::read(&file).unwrap();
        fs::write(&file, bytes.iter().map(|b| b ^ 1).collect::<Vec<u8>>()).unwrap();
    }
    let run = run(spinetail(["verify"]).arg(&container));
    let lines: Vec<&str> = run.out.lines().collect();
    assert_eq!(lines.len(), 21, "{run:?}");
    let more: usize = lines[20].strip_prefix("and ").unwrap().strip_suffix(" more").unwrap().parse().unwrap();
    assert!(run.err.contains(&format!("is damaged in {} places", 20 + more)), "{run:?}");
}

#[test]
fn what_cannot_be_packed_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("x.qpack");
    for flags in [&["--bits", "7"][..], &["--group-size", "48"]] {
        let run = run(&mut repack(&fixture("hf-next"), &output, flags));
        assert!(run.status != 0 && run.err.starts_with("error: "), "{run:?}");
    }
    run(&mut repack(Path::new("/no/such/folder"), &output, &[])).refused(1);
    run(&mut repack(folder.path(), &output, &[])).refused(1);
    if let Some(pip) = pip16() {
        let refused = run(&mut repack(&pip, &output, &["--group-size", "128"])).refused(1);
        assert!(refused.contains("128") && refused.contains("320"), "{refused}");
    }
    assert!(!output.exists());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// A program that is killed leaves nothing that looks finished, and what it leaves does not stand in the way.
#[test]
fn killed_while_repacking() {
    let source = pip16().unwrap_or_else(|| fixture("hf-next"));
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("k.qpack");
    let mut child = repack(&source, &output, &[]).stdout(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    // Once it has begun to write.
    while fs::read_dir(folder.path()).unwrap().count() == 0 && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    let killed = !child.wait().unwrap().success();
    assert!(!killed || !output.exists());
    if killed {
        run(spinetail(["verify"]).arg(&output)).refused(1);
        run(&mut repack(&fixture("hf-next"), &output, &["--bits", "16"])).ok();
        run(spinetail(["verify"]).arg(&output)).ok();
    }
}
