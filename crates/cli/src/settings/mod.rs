//! What the flags mean: flags over environment over configuration file over defaults, resolved once.
//!
//! A setting is defined once, in the table below: the same function reads it from a flag, from the variable
//! `SPINETAIL_…` and from the file. Nothing below the commands reads the environment.

mod file;
mod groups;
mod table;

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::ValueEnum;

use crate::args::GlobalArgs;
use file::ConfigFile;
pub(crate) use groups::{EngineSettings, SamplingSettings};
pub(crate) use table::*;

/// What a setting is called and how it is read and shown.
pub(crate) struct Setting<T: 'static> {
    /// The flag without its dashes, and the key in the file.
    pub(crate) key: &'static str,
    pub(crate) parse: fn(&str) -> Result<T, String>,
    pub(crate) show: fn(&T) -> String,
}

impl<T> Setting<T> {
    fn variable(&self) -> String {
        variable(self.key)
    }
}

fn variable(key: &str) -> String {
    format!("SPINETAIL_{}", key.to_ascii_uppercase().replace('-', "_"))
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag,
    Environment(String),
    File(usize),
    Model,
    /// Looked up.
    Found,
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("given"),
            Self::Environment(name) => write!(f, "environment, {name}"),
            Self::File(line) => write!(f, "configuration file, line {line}"),
            Self::Model => f.write_str("the model"),
            Self::Found => f.write_str("found"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A value that somebody got wrong; ends with status 2, as a wrong flag does.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// The sources of settings, and what has been found in them so far.
pub(crate) struct Settings {
    file: Option<ConfigFile>,
    environment: fn(&str) -> Option<OsString>,
    verbose: bool,
    notes: Vec<(&'static str, String, Origin)>,
}

impl Settings {
    /// Reads the configuration file: the one that was given, or the platform's where there is one.
    pub(crate) fn load(globals: &GlobalArgs) -> anyhow::Result<Self> {
        let file = file::load(globals.config.as_deref())?;
        // Windows and some shells cannot unset a variable, only empty it.
        let environment = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Ok(Self { file, environment, verbose: globals.verbose, notes: Vec::new() })
    }

    /// The value of a setting and its origin, if anybody gave one.
    fn find<T>(&self, setting: &Setting<T>, flag: Option<T>) -> Result<Option<(T, Origin)>, UsageError> {
        if let Some(value) = flag {
            return Ok(Some((value, Origin::Flag)));
        }
        let name = setting.variable();
        if let Some(text) = (self.environment)(&name) {
            let text = text.to_str().ok_or_else(|| {
                UsageError(format!("{name} is not UTF-8 text; correct the environment variable or unset it"))
            })?;
            let value = (setting.parse)(text).map_err(|reason| {
                UsageError(format!("{name}={text}: {reason}; correct the environment variable or unset it"))
            })?;
            return Ok(Some((value, Origin::Environment(name))));
        }
        let Some((file, entry)) = self.file.as_ref().and_then(|f| Some((f, f.get(setting.key)?))) else {
            return Ok(None);
        };
        let value = entry
            .one()
            .and_then(|text| (setting.parse)(text))
            .map_err(|reason| file.wrong(entry, &reason))?;
        Ok(Some((value, Origin::File(entry.line))))
    }

    /// The value of a setting, if anybody gave one.
    pub(crate) fn pick<T>(&mut self, setting: &Setting<T>, flag: Option<T>) -> anyhow::Result<Option<T>> {
        let Some((value, origin)) = self.find(setting, flag)? else { return Ok(None) };
        self.note(setting.key, (setting.show)(&value), origin);
        Ok(Some(value))
    }

    /// The value of a setting, or its default.
    pub(crate) fn pick_or<T>(
        &mut self,
        setting: &Setting<T>,
        flag: Option<T>,
        default: T,
    ) -> anyhow::Result<T> {
        if let Some(value) = self.pick(setting, flag)? {
            return Ok(value);
        }
        self.note(setting.key, (setting.show)(&default), Origin::Default);
        Ok(default)
    }

    /// The values of a setting that may be given several times. The environment has room for one.
    pub(crate) fn list<T>(&mut self, setting: &Setting<T>, flags: &[T]) -> anyhow::Result<Vec<T>>
    where
        T: Clone,
    {
        let (values, origin) = if !flags.is_empty() {
            (flags.to_vec(), Origin::Flag)
        } else if (self.environment)(&setting.variable()).is_none()
            && let Some((file, entry)) = self.file.as_ref().and_then(|f| Some((f, f.get(setting.key)?)))
        {
            let read = |text: &String| (setting.parse)(text).map_err(|reason| file.wrong(entry, &reason));
            (entry.values.iter().map(read).collect::<Result<_, _>>()?, Origin::File(entry.line))
        } else {
            match self.find(setting, None)? {
                Some((value, origin)) => (vec![value], origin),
                None => return Ok(Vec::new()),
            }
        };
        let shown: Vec<String> = values.iter().map(setting.show).collect();
        self.note(setting.key, shown.join(", "), origin);
        Ok(values)
    }

    /// The folders in which names of models are looked up.
    pub(crate) fn model_folders(&mut self) -> anyhow::Result<Vec<PathBuf>> {
        let name = variable(MODELS);
        let (folders, origin) = if let Some(list) = (self.environment)(&name) {
            // An empty element would mean the folder at hand.
            let folders = std::env::split_paths(&list).filter(|p| !p.as_os_str().is_empty());
            (folders.collect(), Origin::Environment(name))
        } else if let Some(entry) = self.file.as_ref().and_then(|f| f.get(MODELS)) {
            (entry.values.iter().map(PathBuf::from).collect(), Origin::File(entry.line))
        } else {
            (crate::dirs::models().into_iter().collect::<Vec<_>>(), Origin::Default)
        };
        let shown: Vec<String> = folders.iter().map(|p: &PathBuf| p.display().to_string()).collect();
        self.note(MODELS, shown.join(", "), origin);
        Ok(folders)
    }

    /// Remembers a value for [`print`](Self::print).
    pub(crate) fn note(&mut self, key: &'static str, value: String, origin: Origin) {
        if self.verbose && !self.notes.iter().any(|(k, ..)| *k == key) {
            self.notes.push((key, value, origin));
        }
    }

    /// With --verbose, prints what has been resolved to standard error.
    pub(crate) fn print(&self) {
        if !self.verbose {
            return;
        }
        let file = match &self.file {
            Some(file) => file.path.display().to_string(),
            None => match crate::dirs::config_file() {
                Some(path) => format!("none at {}", path.display()),
                None => "none".to_owned(),
            },
        };
        let mut text =
            format!("spinetail {}\n{:20} {file}\n", env!("CARGO_PKG_VERSION"), "configuration file");
        for (key, value, origin) in &self.notes {
            text.push_str(&format!("{key:20} {value:24} {origin}\n"));
        }
        // Nobody is left to tell if standard error is closed.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

/// Reads one of the words that a flag takes.
fn word<T: ValueEnum>(text: &str) -> Result<T, String> {
    T::from_str(text, false).map_err(|_| {
        let words: Vec<String> = T::value_variants()
            .iter()
            .filter_map(|v| Some(v.to_possible_value()?.get_name().to_owned()))
            .collect();
        format!("expected {}, found {text:?}", words.join(" or "))
    })
}

/// The word for a value.
fn spelled<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default()
}
