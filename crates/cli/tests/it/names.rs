//! Names of models: where they are looked up, and `list`.

use std::fs;
use std::path::Path;

use crate::common::{fixture, repository, run, say, spinetail};

/// A folder of models: a container, a checkpoint, and what is neither.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(&repository().join("models/pip.qpack"), &folder.path().join("tiny one.qpack"));
    copy(&fixture("hf-next"), &folder.path().join("plain"));
    fs::create_dir(folder.path().join("notes")).unwrap();
    fs::write(folder.path().join("file.qpack"), "").unwrap();
    folder
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::hard_link(&path, &target).or_else(|_| fs::copy(&path, &target).map(|_| ())).unwrap();
        }
    }
}

#[test]
fn names_are_looked_up_in_order() {
    let (models, empty) = (folder(), tempfile::tempdir().unwrap());
    let list = std::env::join_paths([empty.path(), models.path()]).unwrap();
    for name in ["tiny one", "tiny one.qpack", "plain"] {
        let out = run(spinetail(["inspect", name]).env("SPINETAIL_MODELS", &list)).ok();
        assert!(out.contains(models.path().to_str().unwrap()), "{out}");
    }
    let refused = run(spinetail(["inspect", "nothing"]).env("SPINETAIL_MODELS", &list)).refused(1);
    for place in [&empty, &models] {
        assert!(refused.contains(place.path().to_str().unwrap()), "{refused}");
    }
    // The shipped one needs no folder, and one that is not there is no error.
    assert!(run(spinetail(["inspect"]).env("SPINETAIL_MODELS", "/nonexistent")).ok().contains("pip.qpack"));
}

#[test]
fn a_path_is_a_path() {
    let models = folder();
    // What only has the name of a model here does not hide the model.
    fs::create_dir(models.path().join("pip")).unwrap();
    let out = run(spinetail(["inspect", "pip"]).current_dir(&models)).ok();
    assert!(out.contains("pip.qpack"), "{out}");
    run(spinetail(["inspect", "./pip"]).current_dir(&models)).refused(1);
    assert!(run(spinetail(["inspect", "plain"]).current_dir(&models)).ok().contains("model        plain\n"));
    assert!(say(["inspect", "/no/such/place"]).refused(1).contains("/no/such/place"));
}

#[cfg(target_os = "linux")]
#[test]
fn the_platforms_folder_is_looked_in() {
    let home = tempfile::tempdir().unwrap();
    let place = home.path().join(".local/share/spinetail/models");
    fs::create_dir_all(&place).unwrap();
    copy(&fixture("hf-next"), &place.join("mine"));
    run(spinetail(["inspect", "mine"]).env("HOME", home.path())).ok();
    // A folder from the configuration file counts before it.
    let (models, config) = (folder(), home.path().join("c.toml"));
    fs::write(&config, format!("models = [{:?}]\n", models.path())).unwrap();
    let out = run(spinetail(["list", "--config"]).arg(&config).env("HOME", home.path())).ok();
    assert!(out.contains("tiny one") && !out.contains("mine"), "{out}");
}

#[test]
fn list_shows_what_can_be_named() {
    let models = folder();
    let out = run(spinetail(["list"]).env("SPINETAIL_MODELS", models.path())).ok();
    let names: Vec<&str> = out.lines().map(|l| l.split("  ").next().unwrap().trim_end()).collect();
    assert_eq!(names, ["plain", "tiny one", "pip"], "{out}");
    assert!(out.lines().nth(1).unwrap().contains("container"), "{out}");
}
