//! Flags over environment over configuration file over defaults.

use std::fs;
use std::path::Path;

use crate::common::{run, spinetail};

/// What --verbose says about a setting of a short run.
fn origin(key: &str, flags: &[&str], vars: &[(&str, &str)], file: Option<&Path>) -> String {
    let mut command = spinetail(["generate", "--prompt", "a", "--max-tokens", "1", "--verbose"]);
    command.args(flags).envs(vars.iter().copied());
    if let Some(file) = file {
        command.arg("--config").arg(file);
    }
    let run = run(&mut command);
    assert_eq!(run.status, 0, "{run:?}");
    let line =
        run.err.lines().find_map(|l| l.strip_prefix(key)).unwrap_or_else(|| panic!("{key} in {run:?}"));
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn flag_over_environment_over_file_over_model() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    fs::write(&file, "\ntemperature = 0.25\nstop = ['x', 'y z']\n").unwrap();
    let (file, var) = (Some(file.as_path()), [("SPINETAIL_TEMPERATURE", "0.5")]);
    let temperature = |flags: &[&str], vars: &[(&str, &str)], file| origin("temperature", flags, vars, file);
    assert_eq!(temperature(&["--temperature", "0.75"], &var, file), "0.75 given");
    assert_eq!(temperature(&[], &var, file), "0.5 environment, SPINETAIL_TEMPERATURE");
    assert_eq!(temperature(&[], &[("SPINETAIL_TEMPERATURE", "")], file), "0.25 configuration file, line 2");
    assert_eq!(temperature(&[], &[], None), "0.7 the model");
    assert_eq!(origin("seed", &[], &[], None), "0 default");
    assert_eq!(origin("stop", &[], &[], file), "\"x\", \"y z\" configuration file, line 3");
    assert_eq!(origin("stop", &["--stop", "q"], &[], file), "\"q\" given");
}

#[test]
fn the_platforms_file_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("spinetail/config.toml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "max-tokens = 1\ntop-k = 3\n").unwrap();
    let run = run(spinetail(["generate", "--prompt", "a", "-v"]).env("XDG_CONFIG_HOME", folder.path()));
    if cfg!(target_os = "linux") {
        assert!(run.err.contains("configuration file, line 2"), "{run:?}");
    }
}

#[test]
fn what_is_wrong_is_refused_by_name_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.toml");
    let refused = |text: &[u8]| {
        fs::write(&file, text).unwrap();
        run(spinetail(["list", "--config"]).arg(&file)).refused(2)
    };
    let unknown = refused(b"seed = 1\ntemprature = 2\n");
    assert!(unknown.contains("c.toml line 2: unknown key \"temprature\""), "{unknown}");
    assert!(refused(b"seed = \n").contains("line 1"));
    assert!(refused(b"[engine]\nseed = 1\n").contains("line 1"));
    refused(b"\xFF\xFE");
    fs::write(&file, "top-p = 2\n").unwrap();
    let wrong = run(spinetail(["generate", "--prompt", "a", "--config"]).arg(&file)).refused(2);
    assert!(wrong.contains("line 1: top-p: expected 0 to 1, found 2"), "{wrong}");
    fs::remove_file(&file).unwrap();
    run(spinetail(["list", "--config"]).arg(&file)).refused(1);
    run(spinetail(["list", "--config"]).arg(folder.path())).refused(1);
    let wrong = run(spinetail(["generate", "--prompt", "a"]).env("SPINETAIL_SEED", "soon")).refused(2);
    assert!(wrong.contains("SPINETAIL_SEED=soon"), "{wrong}");
}
