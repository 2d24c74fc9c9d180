//! The hub's protocol: a revision to its commit, a commit to its files.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::client::{Client, Fault, StopFlag};
use crate::error::HubError;
use crate::listing::{Listing, RemoteFile, is_safe_path};
use crate::running::is_sha256;
use crate::url::{Url, escape};

/// Bytes of one answer: a page of a listing has at most 1000 files.
const PAGE_BYTES: u64 = 16 << 20;
const MAX_PAGES: usize = 256;
const MAX_FILES: usize = 100_000;

#[derive(Deserialize)]
struct Info {
    sha: Option<String>,
}

#[derive(Deserialize)]
struct Item {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: Option<u64>,
    #[serde(default)]
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// Whether `name` is `ORGANISATION/NAME`.
pub(crate) fn is_repository(name: &str) -> bool {
    let part = |s: &str| {
        !s.is_empty()
            && s.len() <= 96
            && !s.starts_with(['.', '-'])
            && s.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    };
    name.split_once('/').is_some_and(|(org, name)| part(org) && part(name))
}

fn fetch<T: for<'de> Deserialize<'de>>(
    client: &Client,
    url: &Url,
    expected: &'static str,
    stop: &StopFlag,
) -> Result<(T, Option<String>), Fault> {
    let Some((bytes, answer)) = client.small(url, PAGE_BYTES, stop)? else {
        return Err(HubError::NotFound { url: url.shown() }.into());
    };
    let value = serde_json::from_slice(&bytes).map_err(|e| HubError::Answer {
        url: url.shown(),
        expected,
        found: e.to_string(),
    })?;
    Ok((value, answer.next))
}

fn api(client: &Client, path: &str) -> Result<Url, HubError> {
    let text = format!("{}/api/models/{path}", client.endpoint().to_string().trim_end_matches('/'));
    let wrong = |expected| HubError::Setting { what: "repository", expected, found: path.to_owned() };
    Url::parse(&text).map_err(wrong)
}

/// Lists the files of a repository at a revision, which is made a commit first so that all files are of one.
pub(crate) fn list(
    client: &Client,
    repository: &str,
    revision: &str,
    stop: &StopFlag,
) -> Result<Listing, Fault> {
    let setting = |what, expected, found: &str| HubError::Setting { what, expected, found: found.to_owned() };
    if !is_repository(repository) {
        return Err(setting("repository", "ORGANISATION/NAME", repository).into());
    }
    if revision.is_empty() || revision.len() > 255 || revision.chars().any(char::is_control) {
        return Err(setting("revision", "a branch, a tag or a commit", revision).into());
    }
    let url = api(client, &format!("{repository}/revision/{}", escape(revision, false)))?;
    let (info, _): (Info, _) = fetch(client, &url, "an object that describes the repository", stop)?;
    let is_commit = |s: &String| (7..=64).contains(&s.len()) && s.bytes().all(|b| b.is_ascii_alphanumeric());
    let Some(commit) = info.sha.filter(is_commit) else {
        let (expected, found) = ("the commit in \"sha\"", "none".to_owned());
        return Err(HubError::Answer { url: url.shown(), expected, found }.into());
    };
    let base = client.endpoint().file(&format!("{repository}/resolve/{commit}"));
    let mut files = BTreeMap::new();
    let mut url = api(client, &format!("{repository}/tree/{commit}"))?.query("recursive=true");
    for _ in 0..MAX_PAGES {
        let (items, next): (Vec<Item>, _) = fetch(client, &url, "a list of files", stop)?;
        for item in items.into_iter().filter(|i| i.kind == "file" && is_safe_path(&i.path)) {
            let sha256 = item.lfs.as_ref().map(|l| l.oid.to_ascii_lowercase()).filter(|s| is_sha256(s));
            let bytes = item.lfs.map(|l| l.size).or(item.size);
            let file = RemoteFile { url: base.file(&item.path), path: item.path, bytes, sha256 };
            files.insert(file.path.clone(), file);
        }
        if files.len() > MAX_FILES {
            let found = format!("more than {MAX_FILES} files");
            return Err(
                HubError::Answer { url: url.shown(), expected: "a repository of a model", found }.into()
            );
        }
        let Some(next) = next else {
            let name = repository.to_owned();
            return Ok(Listing { name, commit: Some(commit), base, files, complete: true });
        };
        let following = url.join(&next).ok().filter(|n| n.origin() == url.origin() && *n != url);
        let Some(following) = following else {
            let expected = "a next page of the same host";
            return Err(HubError::Answer { url: url.shown(), expected, found: format!("{next:?}") }.into());
        };
        url = following;
    }
    let (expected, found) = ("a listing that ends", format!("more than {MAX_PAGES} pages"));
    Err(HubError::Answer { url: url.shown(), expected, found }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_have_two_plain_parts() {
        for good in ["acme/tiny", "Qwen/Qwen3.6-35B-A3B", "a_b/c.d"] {
            assert!(is_repository(good), "{good}");
        }
        for bad in ["tiny", "a/b/c", "/b", "a/", "../x", "a/..", "a b/c", "a/b?x", "a/-b", "a/b#"] {
            assert!(!is_repository(bad), "{bad}");
        }
    }
}
