//! How a model wants to be sampled when nobody says otherwise.
//!
//! First what its `generation_config.json` says, then what Qwen recommends, then neutral values. Must not be asked
//! about single requests: what a client sends replaces these values field by field.

use serde::Deserialize;

use super::sampling::SamplingParams;

/// Sampling values of a model's files, and which family's recommendation stands in for those it does not have.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct SamplingDefaults {
    do_sample: Option<bool>,
    temperature: Option<f64>,
    top_k: Option<i64>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    repetition_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    /// Whether the model is of the `qwen3_next` family.
    #[serde(skip)]
    pub(super) is_qwen3_next: bool,
}

impl SamplingDefaults {
    /// The values for an answer with or without thinking.
    ///
    /// Qwen's model cards give, without thinking, temperature 0.7, top-p 0.8, top-k 20; with thinking, 1.0 (Qwen3-Next:
    /// 0.6), 0.95, 20; min-p 0 in all. The presence penalty that some of them add is left out: it would change greedy
    /// answers of clients that never asked for one.
    pub fn params(&self, thinking: bool) -> SamplingParams {
        let (temperature, top_p) = match (thinking, self.is_qwen3_next) {
            (false, _) => (0.7, 0.8),
            (true, false) => (1.0, 0.95),
            (true, true) => (0.6, 0.95),
        };
        let is_greedy = self.do_sample == Some(false);
        SamplingParams {
            temperature: if is_greedy { 0.0 } else { self.temperature.unwrap_or(temperature) },
            top_k: self.top_k.unwrap_or(20),
            top_p: self.top_p.unwrap_or(top_p),
            min_p: self.min_p.unwrap_or(0.0),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            repetition_penalty: self.repetition_penalty.unwrap_or(1.0),
            ..SamplingParams::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_first_then_recommendations() {
        let pip: SamplingDefaults =
            serde_json::from_str(r#"{"do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.9}"#)
                .unwrap();
        for thinking in [false, true] {
            let params = pip.params(thinking);
            assert_eq!(
                (params.temperature, params.top_k, params.top_p, params.presence_penalty),
                (0.7, 20, 0.9, 0.0)
            );
        }
        let nothing = SamplingDefaults::default();
        assert_eq!((nothing.params(false).temperature, nothing.params(false).top_p), (0.7, 0.8));
        assert_eq!((nothing.params(true).temperature, nothing.params(true).top_p), (1.0, 0.95));
        let greedy = SamplingDefaults { do_sample: Some(false), ..pip };
        assert_eq!(greedy.params(true).temperature, 0.0);
    }
}
