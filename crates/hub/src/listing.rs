//! What a source has: files, where to get them, what is known of them; and which of them make up a model.

use std::collections::BTreeMap;
use std::path::Path;

use spinetail_checkpoint::stream;
use spinetail_container::{Kind, MANIFEST_BYTES, Manifest, manifest_kind, v1};
use spinetail_core::Limits;

use crate::client::{Client, Fault, Linked, StopFlag};
use crate::error::HubError;
use crate::running::is_sha256;
use crate::url::Url;

/// Where a container's manifest lies.
pub(crate) const MANIFEST: &str = "manifest.json";
const LAYOUT: &str = "packed_experts/layout.json";
const CONFIG: &str = "config.json";

/// A file of the source.
#[derive(Debug, Clone)]
pub(crate) struct RemoteFile {
    /// Path within the source.
    pub(crate) path: String,
    pub(crate) url: Url,
    pub(crate) bytes: Option<u64>,
    /// In lower case.
    pub(crate) sha256: Option<String>,
}

/// All that is known of a source.
#[derive(Debug, Clone)]
pub(crate) struct Listing {
    /// The repository or URL, for people and for a container's source identity.
    pub(crate) name: String,
    pub(crate) commit: Option<String>,
    /// Where a file lies that is not listed.
    pub(crate) base: Url,
    /// Files by path. Of a mirror only those that something lists.
    pub(crate) files: BTreeMap<String, RemoteFile>,
    /// Whether a file that is not listed does not exist.
    pub(crate) complete: bool,
}

/// A file that a model needs.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) file: RemoteFile,
    /// Whether the model is complete without it.
    pub(crate) optional: bool,
}

/// What the source holds.
#[derive(Debug)]
pub(crate) enum Content {
    /// A finished container, to be fetched as it is.
    Container { kind: Kind, files: Vec<Wanted> },
    /// A checkpoint, to be repacked on the way.
    Checkpoint { config: Vec<u8>, index: Option<Vec<u8>>, shards: Vec<RemoteFile> },
}

impl Listing {
    /// The file of that path, if there may be one.
    pub(crate) fn file(&self, path: &str) -> Option<RemoteFile> {
        let unlisted =
            || RemoteFile { path: path.to_owned(), url: self.base.file(path), bytes: None, sha256: None };
        self.files.get(path).cloned().or_else(|| (!self.complete).then(unlisted))
    }

    /// A small file's bytes; `None` if there is none.
    pub(crate) fn small(
        &self,
        client: &Client,
        path: &str,
        limit: u64,
        stop: &StopFlag,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let Some(file) = self.file(path) else { return Ok(None) };
        let Some((bytes, answer)) = client.small(&file.url, limit, stop)? else {
            if self.complete {
                return Err(Fault::Changed(format!("{path} is listed but not there")));
            }
            return Ok(None);
        };
        same_file(&file, self.commit.as_deref(), &answer.linked)?;
        check_small(&file, &bytes)?;
        Ok(Some(bytes))
    }

    /// Finds out what the source holds.
    pub(crate) fn content(&self, client: &Client, stop: &StopFlag) -> Result<Content, Fault> {
        let is_json = |b: &[u8]| serde_json::from_slice::<serde::de::IgnoredAny>(b).is_ok();
        if let Some(manifest) = self.small(client, MANIFEST, MANIFEST_BYTES, stop)?
            // Some servers answer any path with a page.
            && (self.complete || is_json(&manifest))
        {
            return self.container(client, &manifest, stop);
        }
        let Some(config) = self.small(client, CONFIG, Limits::JSON_BYTES, stop)? else {
            let found = match (self.complete, self.files.len()) {
                (false, _) => "neither".to_owned(),
                (true, n) => format!("neither among its {n} files"),
            };
            return Err(self
                .not_a_model("a manifest.json, or a config.json with safetensors files", found)
                .into());
        };
        self.checkpoint(client, config, stop)
    }

    fn not_a_model(&self, expected: &'static str, found: String) -> HubError {
        HubError::NotAModel { source_name: self.name.clone(), expected, found }
    }

    fn container(&self, client: &Client, manifest: &[u8], stop: &StopFlag) -> Result<Content, Fault> {
        let label = Path::new(&self.name).join(MANIFEST);
        let kind = manifest_kind(&label, manifest)?;
        let mut wanted: BTreeMap<String, (Option<u64>, Option<String>, bool)> = BTreeMap::new();
        wanted.insert(MANIFEST.to_owned(), (Some(manifest.len() as u64), None, false));
        if kind == Kind::V2 {
            let m = Manifest::parse(&label, manifest)?;
            let sizes =
                m.expected_sizes().into_iter().map(|(path, bytes)| (path, (Some(bytes), None, false)));
            wanted.extend(sizes);
            for f in m.files {
                wanted.insert(f.path, (Some(f.bytes), Some(f.sha256), false));
            }
        } else {
            let Some(layout) = self.small(client, LAYOUT, Limits::JSON_BYTES, stop)? else {
                return Err(self
                    .not_a_model(LAYOUT, "a manifest.json of version 1 without it".to_owned())
                    .into());
            };
            for (path, bytes, optional) in v1::wanted_files(&label, manifest, &layout)? {
                wanted.insert(path, (bytes, None, optional));
            }
        }
        let mut files = Vec::with_capacity(wanted.len());
        for (path, (bytes, sha256, optional)) in wanted {
            match self.file(&path) {
                Some(mut file) => {
                    if let (Some(listed), Some(needed)) = (file.bytes, bytes)
                        && listed != needed
                    {
                        let found = format!("{listed} in the listing");
                        return Err(HubError::Length { file: path, expected: needed, found }.into());
                    }
                    file.bytes = file.bytes.or(bytes);
                    file.sha256 = file.sha256.or(sha256);
                    files.push(Wanted { file, optional });
                }
                None if optional => {}
                None => {
                    return Err(self
                        .not_a_model("every file its manifest.json needs", format!("no {path}"))
                        .into());
                }
            }
        }
        Ok(Content::Container { kind, files })
    }

    fn checkpoint(&self, client: &Client, config: Vec<u8>, stop: &StopFlag) -> Result<Content, Fault> {
        let index = self.small(client, stream::INDEX, Limits::JSON_BYTES, stop)?;
        let listed: Option<Vec<String>> = self.complete.then(|| self.files.keys().cloned().collect());
        let names = stream::shard_names(Path::new(&self.name), index.as_deref(), listed.as_deref())?;
        let shards = names.iter().map(|name| {
            self.file(name)
                .ok_or_else(|| self.not_a_model("every file its index names", format!("no {name}")))
        });
        let shards = shards.collect::<Result<_, _>>()?;
        Ok(Content::Checkpoint { config, index, shards })
    }
}

/// Makes sure that what the hub says of a file on the way to its bytes is what the listing says.
pub(crate) fn same_file(file: &RemoteFile, commit: Option<&str>, linked: &Linked) -> Result<(), Fault> {
    let changed = |what: &str, expected: &str, found: &str| {
        Err(Fault::Changed(format!("{}: {what} is now {found}, not {expected}", file.path)))
    };
    let sha256 = linked.etag.as_ref().filter(|e| is_sha256(e));
    match (&file.sha256, sha256) {
        (Some(expected), Some(found)) if !expected.eq_ignore_ascii_case(found) => {
            return changed("its SHA-256", expected, found);
        }
        _ => {}
    }
    match (commit, &linked.commit) {
        (Some(expected), Some(found)) if expected != found => return changed("its commit", expected, found),
        _ => {}
    }
    match (file.bytes, linked.bytes) {
        (Some(expected), Some(found)) if expected != found => {
            changed("its size", &expected.to_string(), &found.to_string())
        }
        _ => Ok(()),
    }
}

/// Checks a file that came whole against what is known of it.
pub(crate) fn check_small(file: &RemoteFile, bytes: &[u8]) -> Result<(), Fault> {
    sniff(&file.path, bytes)?;
    if let Some(expected) = file.bytes.filter(|&n| n != bytes.len() as u64) {
        let found = bytes.len().to_string();
        return Err(HubError::Length { file: file.path.clone(), expected, found }.into());
    }
    let mut hash = crate::running::Running::default();
    hash.update(bytes);
    let found = hash.digest();
    match &file.sha256 {
        Some(expected) if *expected != found => {
            Err(HubError::Hash { file: file.path.clone(), expected: expected.clone(), found }.into())
        }
        _ => Ok(()),
    }
}

/// Refuses what often comes in place of a file: a page, or the pointer that Git keeps for a large file. `start` is the
/// first bytes.
pub(crate) fn sniff(file: &str, start: &[u8]) -> Result<(), HubError> {
    let refuse = |found, fix| Err(HubError::NotTheFile { file: file.to_owned(), found, fix });
    if start.starts_with(b"version https://git-lfs.github.com/spec/") {
        return refuse(
            "a Git LFS pointer",
            "the mirror was made without its large files: run `git lfs pull` there, or use another source",
        );
    }
    let text = start.trim_ascii_start();
    let is = |tag: &[u8]| text.len() >= tag.len() && text[..tag.len()].eq_ignore_ascii_case(tag);
    if (is(b"<!doctype html") || is(b"<html")) && !file.ends_with(".html") {
        return refuse(
            "an HTML page",
            "a login page, a proxy or a page for errors answers in its place: open the address in a browser and see",
        );
    }
    Ok(())
}

/// Refuses a path that could lead out of the folder it is joined to, or that means something to a system.
pub(crate) fn is_safe_path(path: &str) -> bool {
    let plain = |s: &str| {
        !s.is_empty()
            && s.len() <= 255
            && !s.starts_with('.')
            && !s.ends_with(['.', ' '])
            && s.chars()
                .all(|c| !c.is_control() && !matches!(c, '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|'))
    };
    path.len() <= 1024 && path.split('/').count() <= 16 && path.split('/').all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_the_file_is_recognised_by_its_first_bytes() {
        for (bytes, what) in [
            (&b"version https://git-lfs.github.com/spec/v1\noid sha256:00"[..], "Git LFS"),
            (b"\r\n <!DOCTYPE HTML><p>", "HTML"),
            (b"<html lang=en>", "HTML"),
        ] {
            let e = sniff("model.safetensors", bytes).unwrap_err().to_string();
            assert!(e.contains(what) && e.contains("model.safetensors"), "{e}");
        }
        for bytes in [&b""[..], b"<", b"<htm", b"\x10\0\0\0\0\0\0\0{\"a\"", b"{}"] {
            sniff("x", bytes).unwrap();
        }
        sniff("page.html", b"<html>").unwrap();
    }

    #[test]
    fn paths_stay_within_their_folder() {
        for path in ["a", "a/b.bin", "packed_experts/layer_00.bin", "with space.txt"] {
            assert!(is_safe_path(path), "{path}");
        }
        for path in ["", "/a", "a//b", "../a", "a/..", "a/./b", "a\\b", "C:a", ".hidden", "a\0b", "a/", "a."]
        {
            assert!(!is_safe_path(path), "{path}");
        }
        assert!(!is_safe_path(&"a/".repeat(20)));
    }
}
