//! Typed access to the fields of a JSON object; a field that is `null` counts as absent.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::CheckpointError;

type Result<T> = std::result::Result<T, CheckpointError>;

/// An object within a file; `at` is its place in dots, empty for the root.
#[derive(Debug, Clone)]
pub(crate) struct Fields<'a> {
    path: PathBuf,
    at: String,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(crate) fn root(path: &Path, value: &'a Value) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Self { path: path.to_owned(), at: String::new(), map }),
            other => Err(CheckpointError::Field {
                path: path.to_owned(),
                field: "the file".to_owned(),
                expected: "an object".to_owned(),
                found: brief(other),
                fix: String::new(),
            }),
        }
    }

    /// The object's place, in dots; empty for the root.
    pub(crate) fn at(&self) -> &str {
        &self.at
    }

    /// The full name of a field.
    pub(crate) fn name(&self, field: &str) -> String {
        if self.at.is_empty() { field.to_owned() } else { format!("{}.{field}", self.at) }
    }

    pub(crate) fn wrong(&self, field: &str, expected: &str, found: impl Into<String>) -> CheckpointError {
        self.wrong_but(field, expected, found, "")
    }

    pub(crate) fn wrong_but(
        &self,
        field: &str,
        expected: &str,
        found: impl Into<String>,
        fix: &str,
    ) -> CheckpointError {
        CheckpointError::Field {
            path: self.path.clone(),
            field: self.name(field),
            expected: expected.to_owned(),
            found: found.into(),
            fix: fix.to_owned(),
        }
    }

    pub(crate) fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|v| !v.is_null())
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
        self.map.iter()
    }

    pub(crate) fn object(&self, field: &str) -> Result<Option<Fields<'a>>> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                Ok(Some(Fields { path: self.path.clone(), at: self.name(field), map }))
            }
            Some(other) => Err(self.wrong(field, "an object", brief(other))),
        }
    }

    pub(crate) fn count(&self, field: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) => Ok(Some(n)),
            None => Err(self.wrong(field, "a whole number", brief(value))),
        }
    }

    pub(crate) fn need(&self, field: &str) -> Result<usize> {
        self.count(field)?.ok_or_else(|| self.wrong(field, "a whole number", "nothing"))
    }

    pub(crate) fn number(&self, field: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match value.as_f64().filter(|n| n.is_finite()) {
            Some(n) => Ok(Some(n)),
            None => Err(self.wrong(field, "a number", brief(value))),
        }
    }

    pub(crate) fn flag(&self, field: &str) -> Result<Option<bool>> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(other) => Err(self.wrong(field, "true or false", brief(other))),
        }
    }

    pub(crate) fn text(&self, field: &str) -> Result<Option<&'a str>> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(other) => Err(self.wrong(field, "a string", brief(other))),
        }
    }

    pub(crate) fn list(&self, field: &str) -> Result<Option<&'a [Value]>> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Array(a)) => Ok(Some(a)),
            Some(other) => Err(self.wrong(field, "a list", brief(other))),
        }
    }
}

/// A value as it would be printed, cut to what fits a message.
pub(crate) fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        None => text,
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}
