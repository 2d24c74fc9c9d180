//! The settings: name, how a text becomes a value, how the value is shown. The bounds are the engine's own.

use std::fmt::Display;
use std::str::FromStr;

use spinetail_engine::text::{SamplingParams, StopStrings};
use spinetail_engine::{Engine, Isa, PolicyKind, UnknownIsa, UnknownPolicy};

use super::{Setting, spelled, word};
use crate::args::{LookaheadArg, PagesArg, PrecisionArg, ReadsArg, Shown, Switch};
use crate::units::{parse_size, size};

/// The key for folders of models; its values are paths, which need not be text.
pub(crate) const MODELS: &str = "models";

/// Threads that read cost little, but not nothing.
const MAX_READERS: usize = 64;

/// Which draws are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seed {
    Fixed(i64),
    Random,
}

pub(crate) const CONTEXT: Setting<u32> =
    Setting { key: "context", parse: |t| at_least_one(t), show: ToString::to_string };
pub(crate) const PRECISION: Setting<PrecisionArg> = Setting { key: "precision", parse: word, show: spelled };
pub(crate) const MEMORY: Setting<u64> = Setting { key: "memory", parse: parse_size, show: |v| size(*v) };
pub(crate) const THREADS: Setting<usize> =
    Setting { key: "threads", parse: |t| at_most(t, Engine::MAX_THREADS), show: ToString::to_string };
pub(crate) const ISA: Setting<Isa> = Setting {
    key: "isa",
    parse: |t| t.parse().map_err(|e: UnknownIsa| e.to_string()),
    show: ToString::to_string,
};
pub(crate) const READS: Setting<ReadsArg> = Setting { key: "reads", parse: word, show: spelled };
pub(crate) const READERS: Setting<usize> =
    Setting { key: "readers", parse: |t| at_most(t, MAX_READERS), show: ToString::to_string };
pub(crate) const PAGES: Setting<PagesArg> = Setting { key: "pages", parse: word, show: spelled };
pub(crate) const VERIFY_READS: Setting<Switch> = Setting { key: "verify-reads", parse: word, show: spelled };
pub(crate) const POLICY: Setting<PolicyKind> = Setting {
    key: "policy",
    parse: |t| match t.parse().map_err(|e: UnknownPolicy| e.to_string())? {
        PolicyKind::Belady => Err("belady knows the future: only `spinetail replay` can".to_owned()),
        policy => Ok(policy),
    },
    show: ToString::to_string,
};
pub(crate) const LOOKAHEAD: Setting<LookaheadArg> = Setting { key: "lookahead", parse: word, show: spelled };
pub(crate) const LEARN: Setting<Switch> = Setting { key: "learn", parse: word, show: spelled };
pub(crate) const HOST: Setting<String> =
    Setting { key: "host", parse: |t| Ok(t.to_owned()), show: Clone::clone };
pub(crate) const PORT: Setting<u16> = Setting { key: "port", parse: whole, show: ToString::to_string };
pub(crate) const MAX_TOKENS: Setting<usize> =
    Setting { key: "max-tokens", parse: whole, show: ToString::to_string };
pub(crate) const TEMPERATURE: Setting<f64> = Setting {
    key: "temperature",
    parse: |t| bounded(t, |p, v| p.temperature = v),
    show: ToString::to_string,
};
pub(crate) const TOP_K: Setting<i64> = Setting { key: "top-k", parse: whole, show: ToString::to_string };
pub(crate) const TOP_P: Setting<f64> =
    Setting { key: "top-p", parse: |t| bounded(t, |p, v| p.top_p = v), show: ToString::to_string };
pub(crate) const MIN_P: Setting<f64> =
    Setting { key: "min-p", parse: |t| bounded(t, |p, v| p.min_p = v), show: ToString::to_string };
pub(crate) const PRESENCE_PENALTY: Setting<f64> = Setting {
    key: "presence-penalty",
    parse: |t| bounded(t, |p, v| p.presence_penalty = v),
    show: ToString::to_string,
};
pub(crate) const FREQUENCY_PENALTY: Setting<f64> = Setting {
    key: "frequency-penalty",
    parse: |t| bounded(t, |p, v| p.frequency_penalty = v),
    show: ToString::to_string,
};
pub(crate) const REPETITION_PENALTY: Setting<f64> = Setting {
    key: "repetition-penalty",
    parse: |t| bounded(t, |p, v| p.repetition_penalty = v),
    show: ToString::to_string,
};
pub(crate) const STOP: Setting<String> =
    Setting { key: "stop", parse: stop, show: |v: &String| format!("{v:?}") };
pub(crate) const SEED: Setting<Seed> = Setting {
    key: "seed",
    parse: |t| match t {
        "random" => Ok(Seed::Random),
        t => whole(t).map(Seed::Fixed).map_err(|e| format!("{e}, or random")),
    },
    show: |v| match v {
        Seed::Fixed(n) => n.to_string(),
        Seed::Random => "random".to_owned(),
    },
};
pub(crate) const THINKING: Setting<Switch> = Setting { key: "thinking", parse: word, show: spelled };
pub(crate) const SYSTEM: Setting<String> =
    Setting { key: "system", parse: |t| Ok(t.to_owned()), show: |v: &String| format!("{v:?}") };
pub(crate) const THOUGHTS: Setting<Shown> = Setting { key: "thoughts", parse: word, show: spelled };
pub(crate) const HISTORY: Setting<Switch> = Setting { key: "history", parse: word, show: spelled };

/// Every key that the configuration file may have.
pub(crate) const KEYS: [&str; 29] = [
    MODELS,
    CONTEXT.key,
    PRECISION.key,
    MEMORY.key,
    THREADS.key,
    ISA.key,
    READS.key,
    READERS.key,
    PAGES.key,
    VERIFY_READS.key,
    POLICY.key,
    LOOKAHEAD.key,
    LEARN.key,
    HOST.key,
    PORT.key,
    MAX_TOKENS.key,
    TEMPERATURE.key,
    TOP_K.key,
    TOP_P.key,
    MIN_P.key,
    PRESENCE_PENALTY.key,
    FREQUENCY_PENALTY.key,
    REPETITION_PENALTY.key,
    STOP.key,
    SEED.key,
    THINKING.key,
    SYSTEM.key,
    THOUGHTS.key,
    HISTORY.key,
];

fn whole<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|e| format!("expected a whole number, found {text:?} ({e})"))
}

fn at_least_one(text: &str) -> Result<u32, String> {
    match whole(text)? {
        0 => Err("expected at least 1, found 0".to_owned()),
        n => Ok(n),
    }
}

fn at_most(text: &str, most: usize) -> Result<usize, String> {
    match at_least_one(text)? as usize {
        n if n <= most => Ok(n),
        n => Err(format!("expected at most {most}, found {n}")),
    }
}

/// A number within the bounds that the engine has for the field that `put` sets.
fn bounded(text: &str, put: fn(&mut SamplingParams, f64)) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("expected a number, found {text:?}"))?;
    let mut params = SamplingParams::default();
    put(&mut params, value);
    params.validate(usize::MAX).map_err(|e| e.reason)?;
    Ok(value)
}

fn stop(text: &str) -> Result<String, String> {
    StopStrings::new(vec![text.to_owned()]).map_err(|e| e.reason)?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_engines_bounds() {
        assert_eq!((TEMPERATURE.parse)("0.7"), Ok(0.7));
        assert_eq!((TEMPERATURE.parse)("1e-40"), Ok(1e-40));
        for wrong in ["-1", "2.5e300", "nan", "inf", "warm", ""] {
            assert!((TEMPERATURE.parse)(wrong).is_err(), "{wrong:?}");
        }
        assert!((TOP_P.parse)("1.01").is_err());
        assert!((REPETITION_PENALTY.parse)("0").is_err());
        assert_eq!((TOP_K.parse)("-1"), Ok(-1));
        assert!((CONTEXT.parse)("0").is_err());
        assert_eq!((THREADS.parse)("512"), Ok(512));
        assert!((THREADS.parse)("513").unwrap_err().contains("at most 512"));
        assert!((READERS.parse)("65").unwrap_err().contains("at most 64"));
        assert!((STOP.parse)("").is_err());
    }

    #[test]
    fn seeds_are_numbers_or_random() {
        assert_eq!((SEED.parse)("-7"), Ok(Seed::Fixed(-7)));
        assert_eq!((SEED.parse)("random"), Ok(Seed::Random));
        assert!((SEED.parse)("Random ").is_err());
        assert!((SEED.parse)("99999999999999999999").unwrap_err().ends_with("or random"));
    }

    /// A key of the file is a flag somewhere, so that help describes it.
    #[test]
    fn every_key_is_a_flag() {
        use clap::CommandFactory;
        let command = crate::args::Cli::command();
        for key in KEYS.iter().filter(|&&key| key != MODELS) {
            let known = |c: &clap::Command| c.get_arguments().any(|a| a.get_long() == Some(key));
            assert!(command.get_subcommands().any(known), "{key}");
        }
    }

    #[test]
    fn every_key_is_in_the_manual() {
        let manual = include_str!("../../../../docs/cli.md");
        for key in KEYS {
            assert!(manual.contains(&format!("`{key}`")), "{key}");
        }
    }
}
