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

/// What an engine is opened with is the same for every command that opens one, from flags and from the environment.
#[test]
fn every_command_that_runs_a_model_has_the_engines_settings() {
    let folder = tempfile::tempdir().unwrap();
    let (text, output) = (folder.path().join("text"), folder.path().join("logits"));
    fs::write(&text, "The cat sat.").unwrap();
    let (text, output) = (text.to_str().unwrap(), output.to_str().unwrap());
    let commands: [&[&str]; 3] = [
        &["generate", "pip", "--prompt", "a", "--max-tokens", "1"],
        &["perplexity", "pip", "--text", text],
        &["logits", "pip", "--tokens", "1,2", "--output", output],
    ];
    let said = |command: &[&str], flags: &[&str], vars: &[(&str, &str)]| {
        let run = run(spinetail(command).arg("--verbose").args(flags).envs(vars.iter().copied()));
        assert_eq!(run.status, 0, "{run:?}");
        run.err.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let values = [
        ("threads", "2"),
        ("readers", "3"),
        ("reads", "buffered"),
        ("pages", "small"),
        ("verify-reads", "on"),
        ("policy", "lru"),
        ("lookahead", "off"),
        ("learn", "off"),
        ("isa", "scalar"),
    ];
    let flags: Vec<String> = values.iter().map(|(key, value)| format!("--{key}={value}")).collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let vars: Vec<(String, &str)> = values
        .iter()
        .map(|&(key, value)| (format!("SPINETAIL_{}", key.to_uppercase().replace('-', "_")), value))
        .collect();
    let vars: Vec<(&str, &str)> = vars.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    for command in commands {
        let (given, found) = (said(command, &flags, &[]), said(command, &[], &vars));
        for ((key, value), (name, _)) in values.iter().zip(&vars) {
            assert!(given.contains(&format!("{key} {value} given")), "{command:?} {key} {given:?}");
            let line = format!("{key} {value} environment, {name}");
            assert!(found.contains(&line), "{command:?} {key} {found:?}");
        }
    }
    // What a setting is there for happens: a ring of readers that cannot be is refused by all of them.
    for command in commands {
        run(spinetail(command).env("SPINETAIL_READERS", "65")).refused(2);
        run(spinetail(command).args(["--threads", "1024"])).refused(2);
    }
}

/// A number alone is bytes, which nobody means by 4.
#[test]
fn a_size_without_its_unit_is_asked_about() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.toml");
    fs::write(&file, "memory = 4\n").unwrap();
    for mut command in [
        spinetail(["generate", "--prompt", "a", "--memory", "4"]),
        spinetail(["inspect", "pip", "--memory=4"]),
        spinetail(["generate", "--prompt", "a", "--config", file.to_str().unwrap()]),
    ] {
        let refused = run(&mut command).refused(2);
        assert!(refused.contains("was 4GiB meant"), "{refused}");
    }
    run(&mut spinetail(["generate", "--prompt", "a", "--max-tokens", "1", "--memory", "2147483648"])).ok();
}

/// A state folder that is none is said once, with what to do; and the model answers.
#[test]
fn a_state_folder_that_is_none() {
    let state = tempfile::tempdir().unwrap();
    fs::write(state.path().join("spinetail"), "").unwrap();
    let mut command = spinetail(["perplexity", "pip", "--text", "-", "--against", "pip"]);
    command.env("XDG_STATE_HOME", state.path());
    let run = crate::common::run_with_input(&mut command, b"The cat sat.");
    let place = state.path().join("spinetail").display().to_string();
    assert_eq!(run.err.matches(&format!("{place} is no folder; move it away")).count(), 1, "{run:?}");
    assert!(!run.err.contains("container"), "{run:?}");
    run.ok();
}
