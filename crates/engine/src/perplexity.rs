//! Perplexity: how well a model predicts a text.
//!
//! Must not average over documents: every predicted token weighs the same, whatever document it stands in.

use std::io::Read;

use crate::documents::encode;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::session::{Observer, Progress};
use crate::text::SampleError;

/// How well a text was predicted.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Perplexity {
    /// Documents looked at.
    pub documents: usize,
    /// Tokens that were predicted: all but each document's first.
    pub tokens: usize,
    /// Sum over those tokens of minus the natural logarithm of the probability that the model gave them.
    pub nats: f64,
}

impl Perplexity {
    /// The mean of [`nats`](Self::nats); NaN when nothing was predicted.
    pub fn nats_per_token(&self) -> f64 {
        self.nats / self.tokens as f64
    }

    /// The exponential of [`nats_per_token`](Self::nats_per_token).
    pub fn perplexity(&self) -> f64 {
        self.nats_per_token().exp()
    }
}

/// Predicts each token of the first `documents` documents of `text`, each alone. A document ends with `<|endoftext|>`,
/// which is part of it; what follows the last one counts if it is more than white space. The text is read as far as it is
/// needed; each document has to fit the context, which is seen before any is run.
///
/// `progress` is told tokens run and tokens to run.
pub fn perplexity(
    engine: &Engine,
    text: &mut dyn Read,
    documents: usize,
    progress: &mut dyn FnMut(Progress),
) -> Result<Perplexity, EngineError> {
    let documents = encode(engine, None, text, documents)?;
    let total = documents.iter().map(Vec::len).sum();
    let mut result = Perplexity { documents: documents.len(), tokens: 0, nats: 0.0 };
    let mut session = engine.session()?;
    let mut run = 0;
    for tokens in &documents {
        session.reset()?;
        let mut score = Score { tokens, done: run, total, nats: 0.0, failed: None, progress: &mut *progress };
        session.evaluate(tokens, &mut score)?;
        if let Some(error) = score.failed {
            return Err(error.into());
        }
        run += tokens.len();
        result.nats += score.nats;
        result.tokens += tokens.len().saturating_sub(1);
    }
    if result.tokens == 0 {
        return Err(EngineError::EmptyPrompt);
    }
    Ok(result)
}

/// Adds up what one document's tokens cost.
struct Score<'d> {
    tokens: &'d [u32],
    done: usize,
    total: usize,
    nats: f64,
    failed: Option<SampleError>,
    progress: &'d mut dyn FnMut(Progress),
}

impl Observer for Score<'_> {
    fn logits(&mut self, position: usize, logits: &[f32]) {
        (self.progress)(Progress { done: self.done + position + 1, total: self.total });
        // The last token predicts nothing that could be checked.
        let Some(&next) = self.tokens.get(position + 1) else { return };
        match cost(logits, next) {
            Ok(nats) => self.nats += nats,
            Err(error) => self.failed = self.failed.take().or(Some(error)),
        }
    }
}

/// Minus the logarithm of the softmax of `logits` at `token`, in f64.
pub(crate) fn cost(logits: &[f32], token: u32) -> Result<f64, SampleError> {
    let (found, expected) = (logits.len(), token as usize + 1);
    let own = *logits.get(token as usize).ok_or(SampleError::TooFew { found, expected })?;
    Ok(log_sum_exp(logits)? - f64::from(own))
}

/// `log Σ exp(x)`, as `log Σ exp(x − max) + max`, in f64: what is to be taken from a logit for the logarithm of its
/// probability.
pub(crate) fn log_sum_exp(logits: &[f32]) -> Result<f64, SampleError> {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - max).exp()).sum();
    let log = sum.ln() + max;
    if log.is_nan() {
        // `max` ignores NaN, so the sum has it.
        let bad = |x: &f32| x.is_nan() || *x == f32::INFINITY;
        let id = logits.iter().position(bad).unwrap_or_default() as u32;
        return Err(SampleError::NotANumber { id });
    }
    Ok(log)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_those_of_the_softmax() {
        let uniform = cost(&[3.0; 8], 5).unwrap();
        assert!((uniform - 8_f64.ln()).abs() < 1e-12);
        // Far apart: the naive form would overflow or give the logarithm of zero.
        assert_eq!(cost(&[1000.0, -1000.0], 0).unwrap(), 0.0);
        assert_eq!(cost(&[1000.0, -1000.0], 1).unwrap(), 2000.0);
        assert_eq!(cost(&[0.0, f32::NEG_INFINITY], 1).unwrap(), f64::INFINITY);
        assert_eq!(cost(&[0.0, f32::NAN], 0), Err(SampleError::NotANumber { id: 1 }));
        assert!(cost(&[0.0], 1).is_err());
    }
}
