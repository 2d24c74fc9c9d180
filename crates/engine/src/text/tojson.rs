//! `tojson` as Hugging Face defines it for chat templates: Python's `json.dumps` with `ensure_ascii=False`.
//!
//! Jinja's own filter escapes `<`, `>`, `&` and `'`, and minijinja's writes numbers in Rust's way; either would show
//! the model other bytes than it was trained on. Must not sort keys unless asked to.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Deeper values are refused: each level is a level of recursion.
const MAX_DEPTH: usize = 200;

/// What `json.dumps` takes beside the value.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Options {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// The filter: `tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
#[allow(clippy::needless_pass_by_value)] // the signature that minijinja calls
pub(super) fn filter(value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    const NAMES: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];
    if positional.len() > NAMES.len() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut arguments = [const { None::<Value> }; 4];
    for (at, name) in NAMES.into_iter().enumerate() {
        arguments[at] = match positional.get(at) {
            Some(value) => Some(value.clone()),
            None => named.get::<Option<Value>>(name)?,
        };
    }
    named.assert_all_used()?;
    let [ensure_ascii, indent, separators, sort_keys] = arguments;
    let indent = indent_of(indent)?;
    let (item, key) = match separators.filter(|pair| !pair.is_none()) {
        Some(pair) => (text_of(&pair.get_item_by_index(0)?)?, text_of(&pair.get_item_by_index(1)?)?),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let options = Options {
        ensure_ascii: ensure_ascii.is_some_and(|v| v.is_true()),
        indent,
        item_separator: item,
        key_separator: key,
        sort_keys: sort_keys.is_some_and(|v| v.is_true()),
    };
    let mut out = String::new();
    options.write(&mut out, value, 0)?;
    Ok(out)
}

/// A number of spaces, or the indentation itself.
fn indent_of(indent: Option<Value>) -> Result<Option<String>, Error> {
    let Some(indent) = indent.filter(|indent| !indent.is_none()) else { return Ok(None) };
    if let Some(text) = indent.as_str() {
        return Ok(Some(text.to_owned()));
    }
    let spaces =
        indent.as_i64().ok_or_else(|| invalid(format!("tojson: indent must be a number, not {indent}")))?;
    let spaces = usize::try_from(spaces).unwrap_or(0);
    if spaces > 100 {
        return Err(invalid(format!("tojson: an indent of {spaces} is beyond 100")));
    }
    Ok(Some(" ".repeat(spaces)))
}

fn text_of(value: &Value) -> Result<String, Error> {
    value.as_str().map(str::to_owned).ok_or_else(|| invalid(format!("tojson: {value} is not a separator")))
}

fn invalid(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

impl Options {
    fn write(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid(format!("tojson: more than {MAX_DEPTH} levels of nesting")));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => write_number(out, value)?,
            ValueKind::String => self.write_string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked();
                self.write_items(out, ['[', ']'], items, depth, |out, item| {
                    self.write(out, &item, depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
                if self.sort_keys {
                    keys.sort();
                }
                self.write_items(out, ['{', '}'], keys.into_iter().map(Ok), depth, |out, key| {
                    self.write_key(out, &key)?;
                    out.push_str(&self.key_separator);
                    self.write(out, &value.get_item(&key)?, depth + 1)
                })?;
            }
            kind => return Err(invalid(format!("tojson: an {kind} value is not JSON serializable"))),
        }
        Ok(())
    }

    fn write_items(
        &self,
        out: &mut String,
        [open, close]: [char; 2],
        items: impl Iterator<Item = Result<Value, Error>>,
        depth: usize,
        mut write: impl FnMut(&mut String, Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        let mut empty = true;
        for item in items {
            if !empty {
                out.push_str(&self.item_separator);
            }
            empty = false;
            self.new_line(out, depth + 1);
            write(out, item?)?;
        }
        if !empty {
            self.new_line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn new_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    /// Python turns the keys it can into strings.
    fn write_key(&self, out: &mut String, key: &Value) -> Result<(), Error> {
        if let Some(key) = key.as_str() {
            self.write_string(out, key);
            return Ok(());
        }
        let mut text = String::new();
        match key.kind() {
            ValueKind::None | ValueKind::Bool | ValueKind::Number => self.write(&mut text, key, 0)?,
            kind => return Err(invalid(format!("tojson: a key must be a string, not {kind}"))),
        }
        self.write_string(out, &text);
        Ok(())
    }

    fn write_string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..='\u{1f}' => write_escape(out, c as u16),
                // The last private-use plane holds the marks of `protect`, which must come out as they went in.
                '\u{80}'..'\u{10_0000}' if self.ensure_ascii => {
                    c.encode_utf16(&mut [0; 2]).iter().for_each(|&unit| write_escape(out, unit));
                }
                _ => out.push(c),
            }
        }
        out.push('"');
    }
}

fn write_escape(out: &mut String, unit: u16) {
    let _ = write!(out, "\\u{unit:04x}"); // writing to a String cannot fail
}

fn write_number(out: &mut String, value: &Value) -> Result<(), Error> {
    if value.is_integer() {
        let _ = write!(out, "{value}");
        return Ok(());
    }
    let number = f64::try_from(value.clone())?;
    out.push_str(&python_float(number));
    Ok(())
}

/// A float as Python's `repr` writes it (and `json.dumps`, which has names for what JSON does not).
fn python_float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    // Rust's Debug form has the same digits and changes to an exponent at the same sizes; only the exponent differs.
    let text = format!("{number:?}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let digits = digits.strip_suffix(".0").unwrap_or(digits);
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn dumps(value: serde_json::Value, arguments: &str) -> String {
        let mut env = minijinja::Environment::new();
        env.add_filter("tojson", filter);
        let source = format!("{{{{ v|tojson({arguments}) }}}}");
        env.render_str(&source, minijinja::context! { v => minijinja::value::Serde(value) }).unwrap()
    }

    /// Expectations are what Python 3.13's `json.dumps(v, ensure_ascii=False)` prints.
    #[test]
    fn as_python_writes_it() {
        assert_eq!(
            dumps(json!({"b": 1, "a": [true, null, "é<&>'"]}), ""),
            r#"{"b": 1, "a": [true, null, "é<&>'"]}"#
        );
        assert_eq!(
            dumps(json!("\u{1}\u{7f}\u{2028}\"\\\n\r\t\u{8}\u{c}"), ""),
            "\"\\u0001\u{7f}\u{2028}\\\"\\\\\\n\\r\\t\\b\\f\""
        );
        assert_eq!(dumps(json!("é🙂"), "ensure_ascii=true"), r#""\u00e9\ud83d\ude42""#);
        assert_eq!(
            dumps(json!({"a": [], "b": {}, "c": [1, {"d": 2}]}), "indent=2"),
            "{\n  \"a\": [],\n  \"b\": {},\n  \"c\": [\n    1,\n    {\n      \"d\": 2\n    }\n  ]\n}"
        );
        assert_eq!(
            dumps(json!({"b": 1, "a": 2}), "sort_keys=true, separators=(',', ':')"),
            r#"{"a":2,"b":1}"#
        );
        assert_eq!(dumps(json!([1, [2]]), "indent='\t'"), "[\n\t1,\n\t[\n\t\t2\n\t]\n]");
    }

    #[test]
    fn floats_as_python_writes_them() {
        let expected = [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.234e100, "1.234e+100"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
            (f64::NAN, "NaN"),
            (123_456.789, "123456.789"),
        ];
        for (number, text) in expected {
            assert_eq!(python_float(number), text);
        }
        assert_eq!(
            dumps(json!([u64::MAX, i64::MIN, 2.0]), ""),
            "[18446744073709551615, -9223372036854775808, 2.0]"
        );
    }

    #[test]
    fn what_json_cannot_say_is_an_error() {
        let mut env = minijinja::Environment::new();
        env.add_filter("tojson", filter);
        assert!(env.render_str("{{ nothing|tojson }}", ()).is_err());
        assert!(env.render_str("{{ 1|tojson(indnt=2) }}", ()).is_err());
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<f64>().prop_filter("finite", |f| f.is_finite()).prop_map(Into::into),
            ".*".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::vec((".{0,8}", inner), 0..6)
                    .prop_map(|pairs| serde_json::Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Whatever goes in comes out when read back, in every layout, with keys in their order.
        #[test]
        fn reads_back(value in any_json()) {
            for arguments in ["", "indent=1", "ensure_ascii=true", "separators=(',', ':')"] {
                let text = dumps(value.clone(), arguments);
                let back: serde_json::Value = serde_json::from_str(&text).unwrap();
                prop_assert_eq!(back.to_string(), value.to_string());
            }
        }
    }
}
