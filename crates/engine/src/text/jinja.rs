//! Jinja as Hugging Face sets it up for chat templates, on minijinja.
//!
//! Python's string methods, `tojson`, `raise_exception`, `strftime_now`, loop controls, trimmed blocks. Must not know
//! messages: `template` decides what a template sees.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::tojson;

/// What a template said in `raise_exception`; travels as the source of minijinja's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// An environment without templates.
pub(super) fn environment() -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    // A prompt is plain text whatever the template is called.
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(method);
    env.add_filter("tojson", tojson::filter);
    env.add_filter("trim", trim);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", |format: &str| strftime(format, SystemTime::now()));
    Ok(env)
}

/// The words of `raise_exception`, if it is what ended the rendering.
pub(super) fn raised(error: &Error) -> Option<&str> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(Raised(message)) = error.downcast_ref() {
            return Some(message);
        }
        cause = error.source();
    }
    None
}

/// Whether the rendering ended because it ran out of fuel.
pub(super) fn out_of_fuel(error: &Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return true;
        }
        cause = error.source();
    }
    false
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = message.to_string();
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// Python's idea of white space: Unicode's, and the four separators U+001C to U+001F.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// The filter, which like Python's takes anything that can be printed.
fn trim(value: &Value, chars: Option<&str>) -> String {
    let text = value.to_string();
    match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)).to_owned(),
        None => text.trim_matches(is_space).to_owned(),
    }
}

/// Methods of Python's types; those that strip white space differ from Rust's in what white space is.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let no_argument = arguments.iter().all(Value::is_none);
    match (value.as_str(), name) {
        (Some(text), "strip") if no_argument => Ok(text.trim_matches(is_space).into()),
        (Some(text), "lstrip") if no_argument => Ok(text.trim_start_matches(is_space).into()),
        (Some(text), "rstrip") if no_argument => Ok(text.trim_end_matches(is_space).into()),
        // `{}.copy()`, `[].append()` and the like change nothing that a sandboxed template may change.
        _ if value.kind() == ValueKind::Undefined => Err(Error::from(ErrorKind::UndefinedError)),
        _ => pycompat::unknown_method_callback(state, value, name, arguments),
    }
}

/// The current date in the given form, in UTC: the time zone is the environment's, which this crate does not read.
fn strftime(format: &str, now: SystemTime) -> Result<String, Error> {
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let days = seconds / 86_400;
    let (year, month, day, day_of_year) = civil(days);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let (weekday, month_name) = (DAYS[(days % 7) as usize], MONTHS[(month - 1) as usize]);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = chars.next();
        let padded = code != Some('-');
        if !padded {
            code = chars.next();
        }
        let two = |n: u64| if padded { format!("{n:02}") } else { n.to_string() };
        out.push_str(&match code {
            Some('Y') => year.to_string(),
            Some('y') => two(year % 100),
            Some('m') => two(month),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('d') => two(day),
            Some('j') => {
                if padded {
                    format!("{day_of_year:03}")
                } else {
                    day_of_year.to_string()
                }
            }
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('H') => two(hour),
            Some('I') => two((hour + 11) % 12 + 1),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            other => {
                let reason =
                    format!("strftime_now: the directive %{} is not supported", other.unwrap_or(' '));
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
        });
    }
    Ok(out)
}

/// Year, month, day and day of the year of a day counted from 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut rest) = (1970, days);
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if rest < length {
            break;
        }
        (year, rest) = (year + 1, rest - length);
    }
    let day_of_year = rest + 1;
    let february = if leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if rest < length {
            break;
        }
        (month, rest) = (month + 1, rest - length);
    }
    (year, month, rest + 1, day_of_year)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Expectations from Python's `datetime`.
    #[test]
    fn dates() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let all = "%Y-%m-%d %y %b %B %a %A %j %H:%M:%S %I %p %-d %-m %%";
        let text = strftime(all, at(1_709_210_096)).unwrap();
        assert_eq!(text, "2024-02-29 24 Feb February Thu Thursday 060 12:34:56 12 PM 29 2 %");
        assert_eq!(strftime("%d %b %Y %F", at(0)).unwrap(), "01 Jan 1970 1970-01-01");
        assert_eq!(strftime("%F %A", at(4_102_444_799)).unwrap(), "2099-12-31 Thursday");
        assert!(strftime("%Q", at(0)).is_err());
    }

    #[test]
    fn python_white_space_is_trimmed() {
        let env = environment().unwrap();
        let render =
            |source: &str| env.render_str(source, minijinja::context! { s => "\u{1f}\u{a0} x \u{85}\u{1c}" });
        for source in ["{{ s|trim }}", "{{ s.strip() }}", "{{ s.lstrip().rstrip() }}", "{{ s.strip(none) }}"]
        {
            assert_eq!(render(source).unwrap(), "x");
        }
        assert_eq!(render("{{ 'xaxx'|trim('x') }}{{ nothing|trim }}{{ none|trim }}").unwrap(), "aNone");
    }

    #[test]
    fn what_is_raised_comes_back_in_its_own_words() {
        let env = environment().unwrap();
        let source =
            "{%- macro m(x) %}{{ raise_exception('No ' ~ x ~ '!') }}{% endmacro %}{{ m('cats')|trim }}";
        let error = env.render_str(source, ()).unwrap_err();
        assert_eq!(raised(&error), Some("No cats!"));
        assert_eq!(raised(&env.render_str("{{ a.b.c }}", ()).unwrap_err()), None);
    }
}
