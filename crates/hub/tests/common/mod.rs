//! What the tests share: a hub that misbehaves as told, and checkpoints and containers to serve.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests stop at the first surprise and say what they skip"
)]

#[path = "../../../checkpoint/tests/common/mod.rs"]
pub mod checkpoint;
pub mod server;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use spinetail_hub::{Event, HubError, PullRequest, PullSummary, Retry, Secret, Settings, Source, pull};

/// Settings that lose no time.
pub fn settings(endpoint: &str) -> Settings {
    Settings {
        endpoint: endpoint.to_owned(),
        token: Some(Secret::new("hf_x")),
        connect_timeout: Duration::from_secs(5),
        read_timeout: Duration::from_secs(2),
        retry: Retry { attempts: 5, first_pause: Duration::from_millis(2), ..Retry::default() },
        ..Settings::default()
    }
}

pub fn hub_request(output: &Path) -> PullRequest {
    let source = Source::Hub { repository: "acme/tiny".to_owned(), revision: "main".to_owned() };
    let mut request = PullRequest::new(source, output);
    request.options.group_size = None;
    request.journal_bytes = 64 << 10;
    request
}

/// Pulls and keeps what was noted.
pub fn run(request: &PullRequest, settings: &Settings) -> (Result<PullSummary, HubError>, Vec<String>) {
    let mut notes = Vec::new();
    let result = pull(request, settings, &mut |event| {
        if let Event::Note(note) = event {
            notes.push(note.to_owned());
        }
        ControlFlow::Continue(())
    });
    (result, notes)
}

/// The bytes of every file of a folder, by path.
pub fn contents(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut out = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
                out.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    out
}

/// Asserts that a container is whole.
pub fn assert_intact(container: &Path) {
    let report = spinetail_container::verify(container, &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(report.is_intact(), "{:?}", report.damage);
}

/// Asserts that two containers have the same data and small files, wherever each came from.
pub fn assert_same_data(a: &Path, b: &Path) {
    let data = |root: &Path| {
        let mut all = contents(root);
        all.remove("manifest.json");
        all.remove("checksums.bin");
        all
    };
    let (a, b) = (data(a), data(b));
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    for (name, bytes) in &a {
        assert!(*bytes == b[name], "{name}");
    }
}

/// Asserts that no name in the folder but those given is there.
pub fn assert_only(folder: &Path, names: &[&str]) {
    let mut found: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    found.sort();
    assert_eq!(found, names);
}
