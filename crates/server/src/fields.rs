//! Takes a request's JSON object apart, field by field.
//!
//! Null counts as absent. A field of the wrong type is refused by its name; what nobody took in the end is unknown, and
//! refused or, where the server is lenient, remembered for the log. Must not know any endpoint.

use axum::http::StatusCode;
use serde_json::{Map, Value};

use crate::error::ApiError;

/// The fields that have not been taken yet.
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// What stands before a field's name in messages: `messages[2].`, or nothing.
    prefix: String,
    lenient: bool,
    /// Fields that a lenient server did not look at.
    ignored: Vec<String>,
}

impl Fields {
    pub(crate) fn new(map: Map<String, Value>, lenient: bool) -> Fields {
        Fields { map, prefix: String::new(), lenient, ignored: Vec::new() }
    }

    /// Fields of an object within: `prefix` is its own name.
    pub(crate) fn within(&self, map: Map<String, Value>, prefix: &str) -> Fields {
        Fields { map, prefix: format!("{prefix}."), lenient: self.lenient, ignored: Vec::new() }
    }

    /// A field's full name.
    pub(crate) fn name(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    pub(crate) fn take(&mut self, field: &str) -> Option<Value> {
        self.map.shift_remove(field).filter(|value| !value.is_null())
    }

    pub(crate) fn bool(&mut self, field: &str) -> Result<Option<bool>, ApiError> {
        self.typed(field, "true or false", Value::as_bool)
    }

    pub(crate) fn number(&mut self, field: &str) -> Result<Option<f64>, ApiError> {
        self.typed(field, "a number", Value::as_f64)
    }

    pub(crate) fn integer(&mut self, field: &str) -> Result<Option<i64>, ApiError> {
        self.typed(field, "an integer of 64 bits", Value::as_i64)
    }

    /// A count of at least one.
    pub(crate) fn count(&mut self, field: &str) -> Result<Option<usize>, ApiError> {
        let count = |value: &Value| value.as_u64().filter(|&n| n > 0).map(|n| n as usize);
        self.typed(field, "an integer of at least 1", count)
    }

    pub(crate) fn string(&mut self, field: &str) -> Result<Option<String>, ApiError> {
        self.typed(field, "a string", |value| value.as_str().map(str::to_owned))
    }

    pub(crate) fn object(&mut self, field: &str) -> Result<Option<Map<String, Value>>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(self.wrong(field, "an object", &other)),
        }
    }

    pub(crate) fn array(&mut self, field: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(self.wrong(field, "an array", &other)),
        }
    }

    fn typed<T>(
        &mut self,
        field: &str,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        read(&value).map(Some).ok_or_else(|| self.wrong(field, expected, &value))
    }

    pub(crate) fn wrong(&self, field: &str, expected: &str, found: &Value) -> ApiError {
        ApiError::bad_field(self.name(field), format_args!("expected {expected}, found {}", describe(found)))
    }

    /// A field that changes nothing, whatever it says.
    pub(crate) fn harmless(&mut self, fields: &[&str]) {
        for field in fields {
            self.map.shift_remove(*field);
        }
    }

    /// A field of which only values that ask for nothing are supported.
    pub(crate) fn unsupported(
        &mut self,
        field: &str,
        accepts: impl Fn(&Value) -> bool,
        supported: &str,
    ) -> Result<(), ApiError> {
        let Some(value) = self.take(field) else { return Ok(()) };
        if accepts(&value) {
            return Ok(());
        }
        let name = self.name(field);
        if self.lenient {
            self.ignored.push(name);
            return Ok(());
        }
        let message = format!("{name} is not supported here ({supported}); leave it out");
        Err(ApiError::new(StatusCode::BAD_REQUEST, message).param(name).code("unsupported_parameter"))
    }

    /// Takes over what an object within ignored.
    pub(crate) fn absorb(&mut self, ignored: Vec<String>) {
        self.ignored.extend(ignored);
    }

    /// Refuses what is left; returns the names of what was ignored.
    pub(crate) fn finish(mut self) -> Result<Vec<String>, ApiError> {
        let prefix = std::mem::take(&mut self.prefix);
        for (field, _) in self.map.iter().filter(|(_, value)| !value.is_null()) {
            let name = format!("{prefix}{field}");
            if !self.lenient {
                let message = format!("Unknown parameter: '{name}'.");
                return Err(ApiError::new(StatusCode::BAD_REQUEST, message)
                    .param(name)
                    .code("unknown_parameter"));
            }
            self.ignored.push(name);
        }
        Ok(self.ignored)
    }
}

/// A value in a message: short values as they are, others by their type.
fn describe(value: &Value) -> String {
    const SHORT: usize = 40;
    match value {
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) if text.len() > SHORT => "a string".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value, lenient: bool) -> Fields {
        let Value::Object(map) = value else { panic!("an object") };
        Fields::new(map, lenient)
    }

    #[test]
    fn wrong_types_and_unknown_fields_are_named() {
        let mut f = fields(json!({"a": "x", "b": null, "c": 0, "d": 1, "e": null}), false);
        let error = f.number("a").unwrap_err();
        assert_eq!(error.message, "a: expected a number, found \"x\"");
        assert_eq!(f.bool("b").unwrap(), None);
        assert_eq!(f.count("c").unwrap_err().param.as_deref(), Some("c"));
        assert_eq!(f.finish().unwrap_err().param.as_deref(), Some("d"));
    }

    #[test]
    fn lenient_remembers_what_it_ignored() {
        let mut f = fields(json!({"tools": [1], "x": 1, "n": 1}), true);
        f.unsupported("tools", |v| v == &json!([]), "none").unwrap();
        f.unsupported("n", |v| v == &json!(1), "1").unwrap();
        assert_eq!(f.finish().unwrap(), ["tools", "x"]);
        let mut f = fields(json!({"tools": [1]}), false);
        let error = f.unsupported("tools", |v| v == &json!([]), "none").unwrap_err();
        assert_eq!((error.param.as_deref(), error.code), (Some("tools"), Some("unsupported_parameter")));
    }
}
