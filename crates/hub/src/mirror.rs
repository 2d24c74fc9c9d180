//! A static mirror: a folder on any web server. What it holds is found through `manifest.json`, `hashes.json` and the
//! index of a checkpoint; nothing lists the rest.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::client::{Client, Fault, StopFlag};
use crate::error::HubError;
use crate::listing::{Listing, RemoteFile, is_safe_path};
use crate::running::is_sha256;
use crate::url::Url;

const HASHES: &str = "hashes.json";
const HASHES_BYTES: u64 = 16 << 20;

#[derive(Deserialize)]
struct Hashes {
    files: BTreeMap<String, String>,
}

/// What can be known of a mirror before its files are looked at: the hashes, if it has any.
pub(crate) fn list(client: &Client, url: &str, stop: &StopFlag) -> Result<Listing, Fault> {
    let base = Url::parse(url).map_err(|expected| HubError::Setting {
        what: "URL",
        expected,
        found: url.to_owned(),
    })?;
    let name = base.shown();
    let mut listing = Listing { name, commit: None, base, files: BTreeMap::new(), complete: false };
    let at = listing.base.file(HASHES);
    let found = client.small(&at, HASHES_BYTES, stop)?;
    // Where any path is answered with a page, there are no hashes.
    let hashes = found.and_then(|(bytes, _)| serde_json::from_slice::<Hashes>(&bytes).ok());
    for (path, sha256) in hashes.map(|h| h.files).unwrap_or_default() {
        if !is_safe_path(&path) || !is_sha256(&sha256) {
            let found = format!("{path:?}: {sha256:?}");
            let expected = "paths within the folder, and SHA-256 in hexadecimal";
            return Err(HubError::Answer { url: at.shown(), expected, found }.into());
        }
        let sha256 = Some(sha256.to_ascii_lowercase());
        let url = listing.base.file(&path);
        listing.files.insert(path.clone(), RemoteFile { path, url, bytes: None, sha256 });
    }
    Ok(listing)
}
