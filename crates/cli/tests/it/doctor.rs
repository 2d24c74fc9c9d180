//! Measuring the machine and a drive, and what is remembered of it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::{Run, fixture, run, say, spinetail};

fn doctor(state: &Path, args: &[&str]) -> Run {
    run(spinetail(["doctor", "--seconds", "0.2"]).args(args).env("XDG_STATE_HOME", state))
}

fn remembered(state: &Path) -> PathBuf {
    let folder = state.join("spinetail/drives");
    let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

fn number(v: &Value, field: &str) -> f64 {
    v[field].as_f64().unwrap_or_else(|| panic!("{field} in {v}"))
}

#[test]
fn a_drive_is_measured_and_remembered() {
    let state = tempfile::tempdir().unwrap();
    let first = doctor(state.path(), &["pip", "--json"]);
    assert_eq!(first.err, "");
    let first = first.json();
    assert!(number(&first["processor"], "cores") >= 1.0);
    let isas = first["processor"]["isas"].as_array().unwrap();
    assert!(isas.contains(&first["processor"]["isa"]) && isas.contains(&"scalar".into()), "{isas:?}");
    for rates in first["rates"].as_array().unwrap() {
        for field in [
            "threads",
            "memory_bytes_per_s",
            "unpack_memory_bytes_per_s",
            "unpack_cache_bytes_per_s",
            "integer_ops_per_s",
        ] {
            assert!(number(rates, field) > 0.0, "{field}");
        }
    }
    let drive = &first["drive"];
    assert!(number(drive, "read_bytes") > 0.0 && number(drive, "burst_records") > 0.0);
    let tried = drive["tried"].as_array().unwrap();
    assert!(tried.len() == 20 || drive["direct_refused"] == true, "{drive}");
    // On a machine that is busy, the short time may be over before the first read of one of them.
    assert!(tried.iter().any(|t| number(t, "read_bytes_per_s") > 0.0), "{drive}");
    let chosen = &drive["chosen"];
    assert!(chosen["mode"].is_string() && chosen["pages"].is_string() && number(chosen, "depth") > 0.0);
    assert_eq!(drive["before"], Value::Null);
    let file = remembered(state.path());
    assert_eq!(drive["file"], file.display().to_string());

    // Another run finds it, unless somebody has put something else there, which is named and replaced.
    fs::write(&file, fs::read_to_string(&file).unwrap().replace("\"version\": 1", "\"version\": 99"))
        .unwrap();
    let second = doctor(state.path(), &["pip"]);
    assert!(second.err.contains("is ignored: version 99, expected 1"), "{second:?}");
    let second = second.ok();
    for part in ["cores", "instruction set", "GB/s", "GOPS", "<- chosen", "remembered in"] {
        assert!(second.contains(part), "{part} in {second}");
    }
    assert!(!second.contains("before"), "{second}");
    let third = doctor(state.path(), &["pip", "--json"]);
    assert_eq!(third.err, "");
    assert!(number(&third.json()["drive"]["before"], "depth") > 0.0);
    assert_eq!(remembered(state.path()), file);
}

#[test]
fn what_cannot_be_measured_or_kept_is_said() {
    let state = tempfile::tempdir().unwrap();
    let checkpoint = fs::read_dir(fixture("")).unwrap().map(|e| e.unwrap().path());
    let checkpoint = checkpoint.into_iter().find(|p| p.join("config.json").is_file()).unwrap();
    let error = doctor(state.path(), &[checkpoint.to_str().unwrap()]).refused(1);
    assert!(error.contains("is not a container") && error.contains("spinetail repack"), "{error}");
    assert!(say(["doctor", "no-such-model"]).refused(1).contains("no-such-model"));
    // A file where the folder should be.
    fs::write(state.path().join("spinetail"), "").unwrap();
    let run = doctor(state.path(), &["pip", "--json"]);
    assert!(run.err.contains("nothing is remembered"), "{run:?}");
    assert_eq!(run.json()["drive"]["file"], Value::Null);
}

/// A profile is no container, and is not spoken of as one.
#[test]
fn a_profile_that_is_none_is_called_what_it_is() {
    let state = tempfile::tempdir().unwrap();
    doctor(state.path(), &["pip"]).ok();
    let file = remembered(state.path());
    for (what, reason) in [(&b"{"[..], "no profile of this program"), (&[b' '; 1 << 20], "more than")] {
        fs::write(&file, what).unwrap();
        let mut command = spinetail(["generate", "--prompt", "a", "--max-tokens", "1"]);
        let run = run(command.env("XDG_STATE_HOME", state.path()));
        assert!(run.err.contains("the drive's profile") && run.err.contains(reason), "{run:?}");
        assert!(
            run.err.contains("`spinetail doctor MODEL` measures") && !run.err.contains("container"),
            "{run:?}"
        );
        run.ok();
    }
}
