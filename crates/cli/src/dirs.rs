//! The platform's folders for what we keep: models, configuration, history. Nothing is made or read here.

use std::path::PathBuf;

use etcetera::BaseStrategy;

const NAME: &str = "spinetail";

/// Where models are kept, unless SPINETAIL_MODELS or the configuration file says otherwise.
pub(crate) fn models() -> Option<PathBuf> {
    strategy().map(|s| s.data_dir().join(NAME).join("models"))
}

/// The configuration file.
pub(crate) fn config_file() -> Option<PathBuf> {
    strategy().map(|s| s.config_dir().join(NAME).join("config.toml"))
}

/// What was typed before.
pub(crate) fn history_file() -> Option<PathBuf> {
    state().map(|s| s.join("history"))
}

/// How drives are best read.
pub(crate) fn drives() -> Option<PathBuf> {
    state().map(|s| s.join("drives"))
}

/// Which experts of each model are used most.
pub(crate) fn learned() -> Option<PathBuf> {
    state().map(|s| s.join("experts"))
}

fn state() -> Option<PathBuf> {
    strategy().map(|s| s.state_dir().unwrap_or_else(|| s.data_dir()).join(NAME))
}

fn strategy() -> Option<impl BaseStrategy> {
    // Without HOME the system's user database would be asked, which a static binary cannot do everywhere.
    if cfg!(unix) && std::env::var_os("HOME").is_none_or(|home| home.is_empty()) {
        return None;
    }
    etcetera::base_strategy::choose_native_strategy().ok()
}
