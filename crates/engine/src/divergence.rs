//! Divergence: how far a model's predictions of a text are from those of another, its reference.
//!
//! Perplexity alone hides what a rounding did: where one token gains what another loses, it stays as it was. The
//! Kullback–Leibler divergence of a prediction does not. Must not average over documents, as `perplexity`.

use std::io::Read;

use crate::documents::encode;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::perplexity::{Perplexity, cost, log_sum_exp};
use crate::session::{Observer, Progress, Session};
use crate::text::SampleError;

/// Tokens of which the reference's logits are held at once.
const ROWS: usize = 64;

/// Bytes of those logits.
pub(crate) fn rows_bytes(vocab: usize) -> u64 {
    (ROWS * vocab * size_of::<f32>()) as u64
}

/// How far a model is from its reference on a text.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Divergence {
    /// How well the model predicts the text.
    pub model: Perplexity,
    /// How well its reference does.
    pub reference: Perplexity,
    /// Predictions whose likeliest token is the same.
    pub same_top: usize,
    /// The divergence of every prediction in nats, ascending.
    kl_nats: Vec<f64>,
}

impl Divergence {
    /// The mean of `KL(reference ‖ model)` over the predictions.
    pub fn kl_nats_mean(&self) -> f64 {
        self.kl_nats.iter().sum::<f64>() / self.kl_nats.len() as f64
    }

    /// The divergence that `part` of the predictions (0.999 is the 99.9th percentile) do not exceed; 1 is the worst.
    pub fn kl_nats_at(&self, part: f64) -> f64 {
        let n = self.kl_nats.len();
        // The smallest of which at least that part is no larger.
        let rank = (part * n as f64).ceil() as usize;
        self.kl_nats.get(rank.clamp(1, n.max(1)) - 1).copied().unwrap_or(f64::NAN)
    }

    /// Part of the predictions whose likeliest token is the same.
    pub fn top_1_agreement(&self) -> f64 {
        self.same_top as f64 / self.kl_nats.len() as f64
    }
}

/// Compares the predictions of `engine` with those of `reference` for each token of the first `documents` documents of
/// `text`, each alone, as [`perplexity`](crate::perplexity()) takes them. The two may be one model in two precisions, or
/// at two widths; they must have the same tokens.
///
/// `progress` is told tokens run by both and tokens to run.
pub fn divergence(
    engine: &Engine,
    reference: &Engine,
    text: &mut dyn Read,
    documents: usize,
    progress: &mut dyn FnMut(Progress),
) -> Result<Divergence, EngineError> {
    if engine.config().vocab != reference.config().vocab {
        return Err(EngineError::incomparable(engine, reference));
    }
    let documents = encode(engine, Some(reference), text, documents)?;
    let total = documents.iter().map(Vec::len).sum();
    let nothing = Perplexity { documents: documents.len(), tokens: 0, nats: 0.0 };
    let mut found = Divergence { model: nothing, reference: nothing, same_top: 0, kl_nats: Vec::new() };
    let (mut session, mut other) = (engine.session()?, reference.session()?);
    let mut done = 0;
    for tokens in &documents {
        session.reset()?;
        other.reset()?;
        for chunk in tokens.chunks(ROWS) {
            compare(&mut session, &mut other, tokens, chunk, &mut found)?;
            done += chunk.len();
            progress(Progress { done, total });
        }
    }
    if found.kl_nats.is_empty() {
        return Err(EngineError::EmptyPrompt);
    }
    found.model.tokens = found.kl_nats.len();
    found.reference.tokens = found.kl_nats.len();
    found.kl_nats.sort_unstable_by(f64::total_cmp);
    Ok(found)
}

/// Runs `chunk`, the next of a document's `tokens`, in both sessions.
fn compare(
    session: &mut Session,
    reference: &mut Session,
    tokens: &[u32],
    chunk: &[u32],
    found: &mut Divergence,
) -> Result<(), EngineError> {
    let mut expected = Rows { first: session.tokens().len(), logits: Vec::new() };
    reference.evaluate(chunk, &mut expected)?;
    let mut comparison = Comparison { tokens, expected, found, failed: None };
    session.evaluate(chunk, &mut comparison)?;
    comparison.failed.map_or(Ok(()), |e| Err(e.into()))
}

/// The logits of a chunk whose first token is at position `first`.
struct Rows {
    first: usize,
    logits: Vec<Vec<f32>>,
}

impl Observer for Rows {
    fn logits(&mut self, _: usize, logits: &[f32]) {
        self.logits.push(logits.to_vec());
    }
}

struct Comparison<'a> {
    tokens: &'a [u32],
    expected: Rows,
    found: &'a mut Divergence,
    failed: Option<SampleError>,
}

impl Observer for Comparison<'_> {
    fn logits(&mut self, position: usize, logits: &[f32]) {
        // The last token predicts nothing that could be checked.
        let Some(&next) = self.tokens.get(position + 1) else { return };
        let expected = &self.expected.logits[position - self.expected.first];
        let mut add = || {
            self.found.kl_nats.push(kl_nats(expected, logits)?);
            self.found.model.nats += cost(logits, next)?;
            self.found.reference.nats += cost(expected, next)?;
            self.found.same_top += usize::from(top(expected) == top(logits));
            Ok(())
        };
        if let Err(error) = add() {
            self.failed.get_or_insert(error);
        }
    }
}

/// `Σ p·(log p − log q)`, where p and q are the softmaxes of `p` and `q`, in f64. Source: Kullback and Leibler, On
/// Information and Sufficiency, 1951.
fn kl_nats(p: &[f32], q: &[f32]) -> Result<f64, SampleError> {
    let (p_log, q_log) = (log_sum_exp(p)?, log_sum_exp(q)?);
    let terms = p.iter().zip(q).map(|(&p, &q)| {
        let (p, q) = (f64::from(p) - p_log, f64::from(q) - q_log);
        // What the reference rules out counts for nothing, whatever the model says of it.
        if p == f64::NEG_INFINITY { 0.0 } else { p.exp() * (p - q) }
    });
    // Rounding may leave a sum of equals below zero.
    Ok(terms.sum::<f64>().max(0.0))
}

/// The first of the largest.
fn top(logits: &[f32]) -> usize {
    let better = |best: usize, i: usize| if logits[i] > logits[best] { i } else { best };
    (0..logits.len()).reduce(better).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergences_are_those_of_the_softmaxes() {
        let third = 3_f32.ln();
        // p is 1/2, 1/2; q is 1/4, 3/4: ½·log 2 + ½·log ⅔.
        let kl = kl_nats(&[7.0, 7.0], &[-3.0, third - 3.0]).unwrap();
        assert!((kl - 0.5 * (4.0_f64 / 3.0).ln()).abs() < 1e-6, "{kl}");
        assert_eq!(kl_nats(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]).unwrap(), 0.0);
        // Shifting logits changes no probability.
        assert!(kl_nats(&[1.0, 2.0, 3.0], &[101.0, 102.0, 103.0]).unwrap() < 1e-12);
        assert_eq!(kl_nats(&[0.0, f32::NEG_INFINITY], &[0.0, f32::NEG_INFINITY]).unwrap(), 0.0);
        assert_eq!(kl_nats(&[0.0, 0.0], &[0.0, f32::NEG_INFINITY]).unwrap(), f64::INFINITY);
        assert!(kl_nats(&[0.0, f32::NAN], &[0.0, 0.0]).is_err());
        assert_eq!(top(&[1.0, 5.0, 5.0]), 1);
    }

    #[test]
    fn percentiles_are_ranks() {
        let nothing = Perplexity { documents: 1, tokens: 0, nats: 0.0 };
        let kl_nats: Vec<f64> = (1..=2000).map(f64::from).collect();
        let d = Divergence { model: nothing, reference: nothing, same_top: 500, kl_nats };
        assert_eq!([0.0, 0.5, 0.999, 1.0].map(|p| d.kl_nats_at(p)), [1.0, 1000.0, 1998.0, 2000.0]);
        assert_eq!((d.kl_nats_mean(), d.top_1_agreement()), (1000.5, 0.25));
    }
}
