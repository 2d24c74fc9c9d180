//! The configuration file: TOML, one key a setting, no tables. What is not known in it is refused by name and line.

use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::{KEYS, UsageError};

const MAX_BYTES: u64 = 1 << 20;

/// A file that was read.
#[derive(Debug)]
pub(super) struct ConfigFile {
    pub(super) path: PathBuf,
    entries: Vec<Entry>,
}

/// A key and its values, as text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    key: String,
    pub(super) line: usize,
    pub(super) values: Vec<String>,
    is_list: bool,
}

impl Entry {
    /// The value of a setting that has only one.
    pub(super) fn one(&self) -> Result<&str, String> {
        match self.values.as_slice() {
            [value] if !self.is_list => Ok(value),
            _ => Err("expected one value, found a list".to_owned()),
        }
    }
}

impl ConfigFile {
    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    pub(super) fn wrong(&self, entry: &Entry, reason: &str) -> UsageError {
        let (path, line, key) = (self.path.display(), entry.line, &entry.key);
        UsageError(format!("{path} line {line}: {key}: {reason}; correct the line or remove it"))
    }
}

/// The file at `given`, which must be there, or the platform's, which need not be.
pub(super) fn load(given: Option<&Path>) -> anyhow::Result<Option<ConfigFile>> {
    let platform = crate::dirs::config_file();
    let Some(path) = given.or(platform.as_deref()) else { return Ok(None) };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if given.is_none() && e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(path, &e)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| failed(path, &e))?;
    if bytes.len() as u64 > MAX_BYTES {
        anyhow::bail!("{}: a configuration file has at most {MAX_BYTES} bytes; give another", path.display());
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        UsageError(format!("{}: expected UTF-8 text ({e}); convert the configuration file", path.display()))
    })?;
    let entries = parse(&text).map_err(|Fault { line, reason }| {
        UsageError(format!("{} line {line}: {reason}; correct the configuration file", path.display()))
    })?;
    Ok(Some(ConfigFile { path: path.to_owned(), entries }))
}

fn failed(path: &Path, e: &std::io::Error) -> anyhow::Error {
    let path = path.display();
    anyhow::anyhow!(
        "cannot read the configuration file {path}: {e}; correct --config, or make the file readable"
    )
}

#[derive(Debug)]
struct Fault {
    line: usize,
    reason: String,
}

fn parse(text: &str) -> Result<Vec<Entry>, Fault> {
    let line = |span: Range<usize>| 1 + text[..span.start].matches('\n').count();
    let table = DeTable::parse(text).map_err(|e| Fault {
        line: e.span().map_or(1, line),
        // The parser's message may have several lines.
        reason: e.message().lines().collect::<Vec<_>>().join(", "),
    })?;
    let mut entries = Vec::new();
    for (key, value) in table.get_ref() {
        let (line, name) = (line(key.span()), key.get_ref());
        if !KEYS.contains(&name.as_ref()) {
            let reason = format!("unknown key {name:?}, expected one of {}", KEYS.join(", "));
            return Err(Fault { line, reason });
        }
        let list = match value.get_ref() {
            DeValue::Array(array) => Some(array),
            _ => None,
        };
        let values = match list {
            Some(array) => array.iter().map(|v| scalar(text, v.get_ref(), v.span())).collect(),
            None => scalar(text, value.get_ref(), value.span()).map(|v| vec![v]),
        };
        let values = values.ok_or_else(|| Fault {
            line,
            reason: format!("{name}: expected a text, a number, true or false, or a list of them"),
        })?;
        entries.push(Entry { key: name.to_string(), line, values, is_list: list.is_some() });
    }
    entries.sort_by_key(|entry| entry.line);
    Ok(entries)
}

/// A value as the text that a flag would have.
fn scalar(text: &str, value: &DeValue<'_>, span: Range<usize>) -> Option<String> {
    match value {
        DeValue::String(s) => Some(s.to_string()),
        // TOML groups digits with underscores.
        DeValue::Integer(_) | DeValue::Float(_) => Some(text[span].replace('_', "")),
        DeValue::Boolean(yes) => Some(yes.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_values_and_lines() {
        let entries = parse(
            "# mine\nmemory = '4GiB'\n\ntemperature = 0.5\r\nmax-tokens = 1_000\nstop = ['a', \"b\\n\"]\n",
        )
        .unwrap();
        let seen: Vec<_> = entries.iter().map(|e| (e.key.as_str(), e.line, e.values.clone())).collect();
        let text = |values: &[&str]| values.iter().map(|&v| v.to_owned()).collect::<Vec<_>>();
        assert_eq!(
            seen,
            [
                ("memory", 2, text(&["4GiB"])),
                ("temperature", 4, text(&["0.5"])),
                ("max-tokens", 5, text(&["1000"])),
                ("stop", 6, text(&["a", "b\n"])),
            ]
        );
        assert_eq!(entries[0].one(), Ok("4GiB"));
        assert!(entries[3].one().is_err());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let fault = parse("seed = 1\ntemprature = 0.5\n").unwrap_err();
        assert_eq!(fault.line, 2);
        assert!(fault.reason.starts_with("unknown key \"temprature\""), "{}", fault.reason);
        assert_eq!(parse("seed = 1\nseed = 2\n").unwrap_err().line, 2);
        assert_eq!(parse("seed = 1\n= 2\n").unwrap_err().line, 2);
        assert_eq!(parse("\n[seed]\n").unwrap_err().line, 2);
        assert!(parse("seed = 1979-05-27").is_err());
        assert!(parse("").unwrap().is_empty());
    }
}
