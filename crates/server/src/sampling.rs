//! The request fields that both endpoints share: length, stops, samplers, streaming.
//!
//! Values are passed on as they are: what they mean, and which make no sense, is the engine's to say.

use serde_json::{Map, Value};
use spinetail_engine::GenerateOptions;
use spinetail_engine::text::{ParamError, SamplingParams, StopStrings, TextModel, parse_logit_bias};

use crate::error::ApiError;
use crate::fields::Fields;

/// What a client may say about how an answer is made and delivered.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) model: Option<String>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    max_tokens: Option<usize>,
    stop: Vec<String>,
    overrides: Overrides,
}

/// Sampling values that the client gave.
#[derive(Debug)]
struct Overrides {
    temperature: Option<f64>,
    top_k: Option<i64>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    repetition_penalty: Option<f64>,
    seed: Option<i64>,
    logit_bias: Option<Map<String, Value>>,
}

impl Common {
    /// Takes the shared fields out of a request.
    pub(crate) fn take(fields: &mut Fields) -> Result<Common, ApiError> {
        let stream = fields.bool("stream")?.unwrap_or(false);
        let include_usage = take_stream_options(fields, stream)?;
        refuse_unsupported(fields)?;
        Ok(Common {
            model: fields.string("model")?,
            stream,
            include_usage,
            max_tokens: take_max_tokens(fields)?,
            stop: take_stop(fields)?,
            overrides: Overrides {
                temperature: fields.number("temperature")?,
                top_k: fields.integer("top_k")?,
                top_p: fields.number("top_p")?,
                min_p: fields.number("min_p")?,
                presence_penalty: fields.number("presence_penalty")?,
                frequency_penalty: fields.number("frequency_penalty")?,
                repetition_penalty: fields.number("repetition_penalty")?,
                seed: fields.integer("seed")?,
                logit_bias: fields.object("logit_bias")?,
            },
        })
    }

    /// Options for the engine: what the client gave over the model's own values, checked. `default_max_tokens` is for
    /// a client that gives no limit.
    pub(crate) fn options(
        &self,
        text: &TextModel,
        thinking: bool,
        default_max_tokens: usize,
    ) -> Result<GenerateOptions, ParamError> {
        let vocabulary_size = text.tokens().vocabulary_size();
        let sampling = self.overrides.over(text.defaults().params(thinking), vocabulary_size)?;
        sampling.validate(vocabulary_size)?;
        StopStrings::new(self.stop.clone())?;
        let max_tokens = self.max_tokens.unwrap_or(default_max_tokens);
        Ok(GenerateOptions { max_tokens, sampling, stop: self.stop.clone(), show_special: false })
    }
}

impl Overrides {
    fn over(&self, base: SamplingParams, vocabulary_size: usize) -> Result<SamplingParams, ParamError> {
        let logit_bias = match &self.logit_bias {
            Some(map) => parse_logit_bias(map, vocabulary_size)?,
            None => base.logit_bias,
        };
        Ok(SamplingParams {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            seed: self.seed.or(base.seed),
            logit_bias,
        })
    }
}

fn take_stream_options(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(map) = fields.object("stream_options")? else { return Ok(false) };
    if !stream {
        let reason = "only allowed when stream is true";
        return Err(ApiError::bad_field("stream_options", reason));
    }
    let mut options = fields.within(map, "stream_options");
    let include_usage = options.bool("include_usage")?.unwrap_or(false);
    options.unsupported("include_obfuscation", |v| v == false, "chunks are not padded")?;
    let ignored = options.finish()?;
    fields.absorb(ignored);
    Ok(include_usage)
}

/// `max_completion_tokens` is the newer name.
fn take_max_tokens(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let old = fields.count("max_tokens")?;
    let new = fields.count("max_completion_tokens")?;
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            let reason = format!("{new} contradicts max_tokens, which is {old}; give one of them");
            Err(ApiError::bad_field("max_completion_tokens", reason))
        }
        (old, new) => Ok(new.or(old)),
    }
}

fn take_stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let expected = "a string or an array of strings";
    match fields.take("stop") {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![text]),
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| match item {
                Value::String(text) => Ok(text.clone()),
                other => Err(fields.wrong("stop", expected, other)),
            })
            .collect(),
        Some(other) => Err(fields.wrong("stop", expected, &other)),
    }
}

fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    fields.harmless(&["user", "metadata", "safety_identifier", "prompt_cache_key"]);
    fields.unsupported("n", |v| v.as_u64() == Some(1), "one answer a request: n is 1")?;
    fields.unsupported("store", |v| v == false, "nothing is stored: store is false")?;
    let tier = |v: &Value| v == "auto" || v == "default";
    fields.unsupported("service_tier", tier, "there is one tier: auto or default")
}
