//! The habits of CONTRIBUTING.md that a program can watch.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Lines past which a file is probably two things that became one.
const MAX_LINES: usize = 700;

/// Files that may be longer, each with its reason.
const LONGER: &[(&str, &str)] = &[];

/// Where unsafe code is allowed: kernels, I/O and memory handed across crates.
const UNSAFE: &[&str] = &[
    "crates/cpu/",
    "crates/store/",
    "crates/core/src/ring.rs",
    "crates/core/src/slot.rs",
    "crates/container/src/page_cache.rs",
    "crates/container/src/uring.rs",
    "crates/container/tests/it/ring.rs",
    "xtask/src/tidy.rs",
];

/// Crates that must stay free of HTTP, the command line and the environment.
const PURE: &[&str] =
    &["core", "checkpoint", "container", "hub", "store", "cpu", "model", "engine", "server"];

pub(crate) fn run() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    let mut files = Vec::new();
    for folder in ["crates", "xtask", "fuzz"] {
        collect(&root.join(folder), &mut files)?;
    }
    let mut faults = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let name = file.strip_prefix(&root)?.to_string_lossy().replace('\\', "/");
        check(&name, &text, &mut faults);
    }
    for fault in &faults {
        #[allow(clippy::print_stderr)]
        {
            eprintln!("{fault}");
        }
    }
    if !faults.is_empty() {
        bail!("{} habits broken in {} files looked at", faults.len(), files.len());
    }
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Ok(());
    };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn check(name: &str, text: &str, faults: &mut Vec<String>) {
    let lines = text.lines().count();
    if lines > MAX_LINES && !LONGER.iter().any(|(n, _)| *n == name) {
        faults.push(format!(
            "{name}: {lines} lines, expected at most {MAX_LINES}; look for the two things that were one"
        ));
    }
    if !text.starts_with("//!") && !text.starts_with("#![") {
        faults.push(format!("{name}: no module header; begin with //! and what the module is"));
    }
    if text.contains("unsafe ") && !UNSAFE.iter().any(|u| name.starts_with(u)) {
        let code = text.lines().any(|l| !l.trim_start().starts_with("//") && l.contains("unsafe "));
        if code {
            faults.push(format!("{name}: unsafe code; it is allowed in {}", UNSAFE.join(", ")));
        }
    }
    let library = PURE.iter().any(|c| name.starts_with(&format!("crates/{c}/src/")));
    if library && (text.contains("std::env::var") || text.contains("env::args")) {
        faults.push(format!("{name}: reads the environment; take a setting as an argument instead"));
    }
}
