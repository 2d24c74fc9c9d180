//! Sources that misbehave: either the download gets over it, byte for byte, or it says what is wrong and publishes
//! nothing.

#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::checkpoint::build::{self, Form, HF_35};
use common::server::{Fault, Request, Script, Server};
use common::{assert_intact, assert_only, assert_same_data, contents, hub_request, run, settings};
use spinetail_checkpoint::{RepackOptions, repack};
use spinetail_core::{DType, Family, ModelConfig, MoeConfig};
use spinetail_hub::{HubError, PullRequest, PullSummary, Source};

const WEIGHTS: &str = "model.safetensors";

fn options() -> RepackOptions {
    RepackOptions { group_size: Some(32), ..RepackOptions::default() }
}

/// A checkpoint of some 600 KB, the container it makes, and a place for more.
struct Case {
    dir: tempfile::TempDir,
    files: BTreeMap<String, Vec<u8>>,
}

impl Case {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        let c = build::shape(Family::Qwen35Moe);
        let c = ModelConfig { moe: MoeConfig { experts: 12, ..c.moe }, ..c };
        build::write(&from, &c, &Form { dtype: DType::Bf16, ..HF_35 });
        std::fs::write(from.join("tokenizer.json"), "{}").unwrap();
        let files = contents(&from);
        repack(&from, &dir.path().join("expected"), options(), &mut |_| true).unwrap();
        std::fs::create_dir(dir.path().join("out")).unwrap();
        Self { dir, files }
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    fn request(&self, name: &str) -> PullRequest {
        let mut request = hub_request(&self.out().join(name));
        request.options = options();
        request
    }

    fn bytes(&self) -> u64 {
        self.files[WEIGHTS].len() as u64
    }

    fn check(&self, output: &Path) {
        assert_intact(output);
        assert_same_data(&self.dir.path().join("expected"), output);
    }

    /// Gets over it.
    fn survives(
        &self,
        script: impl Fn(&Request) -> Option<Fault> + Send + Sync + 'static,
    ) -> (PullSummary, Vec<String>) {
        let server = Server::of(self.files.clone(), script);
        let output = self.out().join("m");
        let (result, notes) = run(&self.request("m"), &settings(&server.endpoint()));
        let summary = result.unwrap();
        self.check(&output);
        assert!(server.requests().iter().all(|r| r.authorization.is_some() != r.cdn));
        std::fs::remove_dir_all(&output).unwrap();
        assert_only(&self.out(), &[]);
        (summary, notes)
    }

    /// Does not get over it, and says so.
    #[track_caller]
    fn fails(
        &self,
        says: &[&str],
        script: impl Fn(&Request) -> Option<Fault> + Send + Sync + 'static,
    ) -> HubError {
        let server = Server::of(self.files.clone(), script);
        let error = run(&self.request("m"), &settings(&server.endpoint())).0.unwrap_err();
        let text = error.to_string();
        for s in says {
            assert!(text.contains(s), "{s:?} is not in: {text}");
        }
        assert!(!text.contains("hf_x") && !text.contains("sig="), "{text}");
        assert!(!self.out().join("m").exists());
        let _ = std::fs::remove_dir_all(self.out().join("m.partial"));
        error
    }
}

/// The first request for the weights is for their header: the data come with the second.
fn data(r: &Request) -> bool {
    r.is_bytes_of(WEIGHTS) && r.before > 0
}

#[test]
fn what_a_second_attempt_mends() {
    let case = Case::new();
    let some: Vec<(&str, Box<Script>)> = vec![
        ("closed at once", Box::new(|r| (r.before == 0).then_some(Fault::CloseAtOnce))),
        ("closed in the head", Box::new(|r| (r.before == 0).then_some(Fault::CloseInHead))),
        ("500", Box::new(|r| (r.before < 2).then(|| Fault::Answer(500, String::new(), b"oops".to_vec())))),
        (
            "503 on data",
            Box::new(|r| (data(r) && r.before < 3).then(|| Fault::Answer(503, String::new(), vec![]))),
        ),
        ("cut bodies", Box::new(|r| (r.before == 0).then_some(Fault::CloseAfter(100)))),
        ("wrong range", Box::new(|r| (data(r) && r.before < 3).then_some(Fault::WrongRange))),
        (
            "expired links",
            Box::new(|r| {
                (data(r) && r.before < 3)
                    .then(|| Fault::Answer(403, String::new(), b"<Error>expired".to_vec()))
            }),
        ),
        (
            "links gone",
            Box::new(|r| (data(r) && r.before < 3).then(|| Fault::Answer(410, String::new(), vec![]))),
        ),
        ("a flipped bit", Box::new(|r| (data(r) && r.before == 1).then_some(Fault::Flip(300_000)))),
        ("all for a range", Box::new(|r| r.cdn.then_some(Fault::IgnoreRange))),
    ];
    for (what, script) in some {
        println!("{what}");
        case.survives(script);
    }
}

#[test]
fn drops_cost_only_what_was_on_its_way() {
    let case = Case::new();
    let third = case.bytes() / 3;
    let (summary, notes) =
        case.survives(move |r| (data(r) && r.before < 4).then_some(Fault::CloseAfter(third)));
    assert!(notes.len() >= 2 && notes.iter().all(|n| n.contains("trying again")), "{notes:?}");
    assert!(summary.received_bytes < case.bytes() + 10_000, "{summary:?}");
}

#[test]
fn all_of_a_file_for_the_rest_of_it_starts_it_over() {
    let case = Case::new();
    let (summary, notes) = case.survives(move |r| match (data(r), r.before) {
        (true, 1) => Some(Fault::CloseAfter(200_000)),
        (true, _) => Some(Fault::IgnoreRange),
        _ => None,
    });
    assert!(notes.iter().any(|n| n.contains("starts over: the server sends all of it")), "{notes:?}");
    assert!(summary.received_bytes >= case.bytes() + 200_000);
}

#[test]
fn a_busy_server_says_when() {
    let case = Case::new();
    let busy = |after: &'static str| {
        move |r: &Request| {
            (data(r) && r.before == 1)
                .then(|| Fault::Answer(429, format!("Retry-After: {after}\r\n"), vec![]))
        }
    };
    let start = std::time::Instant::now();
    case.survives(busy("1"));
    assert!(start.elapsed() >= Duration::from_secs(1));
    let e = case.fails(&["429", "100000 s", "run the same command again"], busy("100000"));
    assert!(matches!(e, HubError::RateLimited { .. }));
}

#[test]
fn silence_ends() {
    let case = Case::new();
    case.survives(|r| (data(r) && r.before == 1).then_some(Fault::Silent(Duration::from_secs(3))));
    case.survives(|r| data(r).then_some(Fault::Slow(Duration::from_millis(2))));
}

#[test]
fn what_no_attempt_mends_is_said() {
    let case = Case::new();
    let page = b"<!DOCTYPE html><title>Log in</title>".to_vec();
    let html = page.clone();
    case.fails(&[WEIGHTS, "HTML page"], move |r| {
        r.is_bytes_of(WEIGHTS).then(|| Fault::Answer(200, String::new(), html.clone()))
    });
    let html = page.clone();
    case.fails(&[WEIGHTS, "HTML page"], move |r| {
        data(r).then(|| Fault::Answer(200, String::new(), html.clone()))
    });
    let html = page.clone();
    case.fails(&["config.json", "HTML page"], move |r| {
        r.path.ends_with("config.json").then(|| Fault::Answer(200, String::new(), html.clone()))
    });
    case.fails(&["a list of files"], move |r| {
        r.path.contains("/tree/").then(|| Fault::Answer(200, String::new(), page.clone()))
    });
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n".to_vec();
    case.fails(&[WEIGHTS, "Git LFS pointer", "git lfs pull"], move |r| {
        r.is_bytes_of(WEIGHTS).then(|| Fault::Answer(200, String::new(), pointer.clone()))
    });
    let e = case.fails(&["SHA-256", "twice"], |r| r.is_bytes_of(WEIGHTS).then_some(Fault::Flip(300_000)));
    assert!(matches!(e, HubError::Hash { .. }));
    let e = case.fails(&[WEIGHTS, "expected", "found 7"], |r| {
        data(r).then(|| Fault::Answer(200, String::new(), vec![7; 7]))
    });
    assert!(matches!(e, HubError::Length { .. }));
    let e = case.fails(&["gave up after 5 attempts", "run the same command again"], |r| {
        data(r).then_some(Fault::CloseAtOnce)
    });
    assert!(matches!(e, HubError::Network { .. }));
    case.fails(&["gave up", "got those from"], |r| data(r).then_some(Fault::WrongRange));
    case.fails(&["encoded as \"gzip\"", "not asked for"], |r| {
        data(r).then(|| Fault::Answer(200, "Content-Encoding: gzip\r\n".to_owned(), vec![0x1f, 0x8b]))
    });
}

#[test]
fn answers_have_bounds() {
    let case = Case::new();
    let huge = |r: &Request, path: &str| {
        r.path.contains(path).then(|| Fault::Answer(200, String::new(), vec![b' '; (16 << 20) + 1]))
    };
    for path in ["/revision/", "/tree/"] {
        let e = case.fails(&["at most 16777216 bytes"], move |r| huge(r, path));
        assert!(matches!(e, HubError::TooLarge { .. }));
    }
    // Pages that go on for ever, or to another host.
    case.fails(&["more than 256 pages"], |r| {
        let next = format!("Link: <?recursive=true&cursor={}>; rel=\"next\"\r\n", r.before);
        r.path.contains("/tree/").then(|| Fault::Answer(200, next, b"[]".to_vec()))
    });
    case.fails(&["a next page of the same host", "evil.invalid"], |r| {
        let next = "Link: <http://evil.invalid/>; rel=\"next\"\r\n".to_owned();
        r.path.contains("/tree/").then(|| Fault::Answer(200, next, b"[]".to_vec()))
    });
    case.fails(&["redirected more than 10 times"], |r| {
        let to = format!("Location: /loop/{}\r\n", r.before);
        (!r.cdn).then(|| Fault::Answer(302, to, vec![]))
    });
    case.fails(&["ftp://", "only https"], |r| {
        (!r.cdn).then(|| Fault::Answer(302, "Location: ftp://x/\r\n".to_owned(), vec![]))
    });
    // A header of a safetensors file that is none.
    let mut files = case.files.clone();
    files.get_mut(WEIGHTS).unwrap()[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let server = Server::of(files, |_| None);
    let e = run(&case.request("m"), &settings(&server.endpoint())).0.unwrap_err().to_string();
    assert!(e.contains("header length") && e.contains(WEIGHTS), "{e}");
    assert_only(&case.out(), &[]);
}

#[test]
fn who_may_not_is_told_what_to_do() {
    let case = Case::new();
    let gated = |r: &Request| {
        let headers = "X-Error-Code: GatedRepo\r\n".to_owned();
        (!r.cdn).then(|| Fault::Answer(401, headers, b"{\"error\": \"restricted\"}".to_vec()))
    };
    case.fails(&["401", "GatedRepo", "accept the model's licence"], gated);
    let server = Server::of(case.files.clone(), gated);
    let anonymous = spinetail_hub::Settings { token: None, ..settings(&server.endpoint()) };
    let e = run(&case.request("m"), &anonymous).0.unwrap_err();
    assert!(
        matches!(&e, HubError::Refused { token: false, .. }) && e.to_string().contains("HF_TOKEN"),
        "{e}"
    );
    let e = case
        .fails(&["404", "check the name"], |r| (!r.cdn).then(|| Fault::Answer(404, String::new(), vec![])));
    assert!(matches!(e, HubError::NotFound { .. }));
    let server = Server::of(BTreeMap::from([("x.txt".to_owned(), vec![1])]), |_| None);
    let e = run(&case.request("m"), &settings(&server.endpoint())).0.unwrap_err().to_string();
    assert!(e.contains("acme/tiny is not a model") && e.contains("its 1 files"), "{e}");
    for (repository, revision) in [("tiny", "main"), ("a/b/c", "main"), ("../x", "main"), ("a/b", "")] {
        let source = Source::Hub { repository: repository.to_owned(), revision: revision.to_owned() };
        let request = PullRequest { source, ..case.request("m") };
        let e = run(&request, &settings(&server.endpoint())).0.unwrap_err();
        assert!(matches!(e, HubError::Setting { .. }), "{e}");
    }
}

#[test]
fn the_token_stays_at_home() {
    let case = Case::new();
    // To a path of the same host first, as renamed repositories do, and only then to the CDN.
    case.survives(|r| {
        let to = r.path.strip_prefix("/acme/tiny/").map(|rest| format!("Location: /acme/tiny-2/{rest}\r\n"));
        to.map(|to| Fault::Answer(307, to, vec![]))
    });
    // A CDN on the hub's host but another port is another host: asserted by `survives` throughout. One that calls
    // itself the hub in a redirect back gets nothing it did not have.
    let e = case.fails(&["gave up"], |r| {
        r.cdn.then(|| Fault::Answer(400, String::new(), b"only one auth mechanism allowed".to_vec()))
    });
    assert!(e.to_string().contains("400"));
}

#[test]
fn a_source_that_changes_is_taken_from_one_commit_or_not_at_all() {
    let case = Case::new();
    let mut other = case.files.clone();
    let weights = other.get_mut(WEIGHTS).unwrap();
    let n = weights.len();
    weights[n / 2] ^= 1;
    weights[n - 1] ^= 1;
    let changed = case.dir.path().join("changed");
    std::fs::create_dir(&changed).unwrap();
    other.iter().for_each(|(name, bytes)| std::fs::write(changed.join(name), bytes).unwrap());
    repack(&changed, &case.dir.path().join("expected-2"), options(), &mut |_| true).unwrap();

    // The new commit comes between a dropped connection and the next attempt.
    let server =
        Server::of(case.files.clone(), |r| (data(r) && r.before == 1).then_some(Fault::CloseAfter(300_000)));
    let (mut seen, mut notes) = (false, Vec::new());
    let output = case.out().join("m");
    let result = spinetail_hub::pull(&case.request("m"), &settings(&server.endpoint()), &mut |event| {
        if let spinetail_hub::Event::Note(note) = event {
            notes.push(note.to_owned());
        }
        if !seen && server.sent() > 300_000 {
            seen = true;
            server.change(&"d".repeat(40), other.clone());
        }
        std::ops::ControlFlow::Continue(())
    });
    // The listener may have been too late to come between; then all is of the first commit.
    let summary = result.unwrap();
    let late = summary.commit == Some("a".repeat(40));
    assert_intact(&output);
    let expected = if late { "expected" } else { "expected-2" };
    assert_same_data(&case.dir.path().join(expected), &output);
    if !late {
        assert!(notes.iter().any(|n| n.contains("the source has changed")), "{notes:?}");
    }
    std::fs::remove_dir_all(&output).unwrap();

    // For certain: stopped, changed, run again.
    let server =
        Server::of(case.files.clone(), |r| data(r).then_some(Fault::Slow(Duration::from_millis(20))));
    let mut request = case.request("m");
    request.journal_time = Duration::ZERO;
    let stopped = spinetail_hub::pull(&request, &settings(&server.endpoint()), &mut |_| match server.sent()
        > 400_000
    {
        true => std::ops::ControlFlow::Break(()),
        false => std::ops::ControlFlow::Continue(()),
    });
    assert!(matches!(stopped, Err(HubError::Cancelled)), "{stopped:?}");
    assert_only(&case.out(), &["m.partial"]);
    server.change(&"d".repeat(40), other.clone());
    let (result, notes) = run(&request, &settings(&server.endpoint()));
    assert_eq!(result.unwrap().commit, Some("d".repeat(40)));
    assert!(notes.iter().any(|n| n.contains("starts over: it is another file")), "{notes:?}");
    assert_intact(&output);
    assert_same_data(&case.dir.path().join("expected-2"), &output);
}

#[test]
fn a_source_that_never_rests_is_given_up() {
    let case = Case::new();
    let e = case.fails(&["4 times", "name a commit"], |r| {
        // Every answer about the weights speaks of another commit than the listing.
        let to = "Location: /nowhere\r\nX-Repo-Commit: 0123456\r\n".to_owned();
        (!r.cdn && r.path.contains("/resolve/")).then(|| Fault::Answer(302, to, vec![]))
    });
    let _ = e;
}

#[test]
fn stopping_keeps_and_going_on_asks_only_for_the_rest() {
    let case = Case::new();
    let server = Server::of(case.files.clone(), |r| {
        (data(r) && r.before == 1).then_some(Fault::Slow(Duration::from_millis(20)))
    });
    let mut request = case.request("m");
    request.journal_time = Duration::ZERO;
    let stopped = spinetail_hub::pull(&request, &settings(&server.endpoint()), &mut |_| match server.sent()
        > 400_000
    {
        true => std::ops::ControlFlow::Break(()),
        false => std::ops::ControlFlow::Continue(()),
    });
    assert!(matches!(stopped, Err(HubError::Cancelled)), "{stopped:?}");
    let _ = server.requests();
    let summary = run(&request, &settings(&server.endpoint())).0.unwrap();
    let ranges: Vec<_> =
        server.requests().into_iter().filter(|r| r.is_bytes_of(WEIGHTS)).filter_map(|r| r.range).collect();
    // The header again, and the rest.
    assert_eq!(ranges.len(), 2, "{ranges:?}");
    let from: u64 = ranges[1].trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap();
    assert!(from > 50_000 && summary.received_bytes < case.bytes() - from + 300_000, "{from}, {summary:?}");
    case.check(&request.output);
}

#[test]
fn plain_files_are_looked_at_again_before_they_are_gone_on_with() {
    let case = Case::new();
    let container = contents(&case.dir.path().join("expected"));
    let slow = |r: &Request| (r.cdn && r.before == 0).then_some(Fault::Slow(Duration::from_millis(20)));
    let server = Server::of(container.clone(), slow);
    let mut request = case.request("m");
    request.options = RepackOptions::default();
    (request.journal_time, request.connections) = (Duration::ZERO, 1);
    let enough = 100_000;
    let stopped =
        spinetail_hub::pull(&request, &settings(&server.endpoint()), &mut |_| match server.sent() > enough {
            true => std::ops::ControlFlow::Break(()),
            false => std::ops::ControlFlow::Continue(()),
        });
    assert!(matches!(stopped, Err(HubError::Cancelled)), "{stopped:?}");
    // The first bytes of what was fetched so far rot.
    let partial = case.out().join("m.partial");
    let largest = contents(&partial)
        .into_iter()
        .filter(|(n, _)| n.ends_with(".bin"))
        .max_by_key(|(_, b)| b.len())
        .unwrap();
    let mut rotten = largest.1;
    rotten[10] ^= 1;
    std::fs::write(partial.join(&largest.0), rotten).unwrap();
    let (result, notes) = run(&request, &settings(&server.endpoint()));
    result.unwrap();
    assert!(notes.iter().any(|n| n.contains("not what was written")), "{notes:?}");
    assert!(contents(&request.output) == container);
}

#[test]
fn files_of_unknown_length_end_where_the_server_says() {
    let case = Case::new();
    let mut files = contents(&case.dir.path().join("expected"));
    files.remove("config.json");
    // Nothing tells the length of a version 1 container's small files: a resume may ask past the end.
    let manifest = br#"{"magic": "QPACK", "version": 1, "files": {}}"#.to_vec();
    let layout = br#"{"expertCount": 1, "layerCount": 1, "expertStride": 16384,
        "sections": [{"name": "gate_proj.weight", "dtype": "BF16", "shape": [2, 4], "offset": 0, "size": 16}]}"#;
    let files = BTreeMap::from([
        ("manifest.json".to_owned(), manifest),
        ("config.json".to_owned(), b"{}".to_vec()),
        ("packed_experts/layout.json".to_owned(), layout.to_vec()),
        ("packed_experts/layer_00.bin".to_owned(), vec![5; 16384]),
        ("model.safetensors".to_owned(), (0..300_000u32).map(|i| (i / 7) as u8).collect()),
    ]);
    for fault in [None, Some(Fault::NoLength), Some(Fault::CloseAfter(100_000))] {
        let again = fault.clone();
        let server = Server::of(files.clone(), move |r| {
            again.clone().filter(|_| r.is_bytes_of(WEIGHTS) && r.before == 0)
        });
        let mut request = case.request("v1");
        (request.source, request.options) = (Source::Url(server.mirror()), RepackOptions::default());
        let summary = run(&request, &settings(&server.endpoint())).0.unwrap();
        assert!(contents(&request.output) == files, "{fault:?}");
        assert_eq!(summary.unverified.len(), files.len());
        std::fs::remove_dir_all(&request.output).unwrap();
    }
}

#[test]
fn two_pulls_of_one_output_do_not_fight() {
    let case = Case::new();
    let server =
        Server::of(case.files.clone(), |r| data(r).then_some(Fault::Slow(Duration::from_millis(10))));
    let (request, settings) = (case.request("m"), settings(&server.endpoint()));
    let mut second = None;
    let first = spinetail_hub::pull(&request, &settings, &mut |_| {
        if second.is_none() && server.sent() > 100_000 {
            second = Some(run(&request, &settings).0);
        }
        std::ops::ControlFlow::Continue(())
    });
    first.unwrap();
    let e = second.unwrap().unwrap_err().to_string();
    assert!(e.contains("being written by another process"), "{e}");
    case.check(&request.output);
}
