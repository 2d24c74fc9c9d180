//! Logits to a token: penalties, bias, temperature, top-k, top-p, min-p, in this order.
//!
//! Must not sort the whole vocabulary for a token (Qwen3.6 has 248,077), must not draw an id that no token has, and must
//! not turn a NaN into a random token.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};

use rand_pcg::Pcg64;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::error::{ParamError, SampleError};

/// Temperatures below this are zero: the division would leave one token anyway, or overflow.
const COLDEST: f64 = 1e-5;
const HOTTEST: f64 = 100.0;
/// Exponent of the weight below which a token is not looked at: 250,000 such tokens do not change a sum of `f64`.
const NEGLIGIBLE: f64 = -45.0;
/// Logits that are compared at once.
const BLOCK: usize = 16;
/// How many of the likeliest tokens top-p looks at first; it looks at more when they do not suffice.
const FIRST_LOOK: usize = 256;

/// How a token is chosen. The default is greedy.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 takes the likeliest token (the lowest id of equals); up to 100.
    pub temperature: f64,
    /// Only the k likeliest tokens; 0, negative or beyond the vocabulary: all.
    pub top_k: i64,
    /// Only the likeliest tokens that together have at least this probability; 1: all. After top-k, whose tokens count
    /// as the whole.
    pub top_p: f64,
    /// Only tokens at least this likely in relation to the likeliest; 0: all.
    pub min_p: f64,
    /// Subtracted once from the logit of every token that has been generated; −2 to 2.
    pub presence_penalty: f64,
    /// Subtracted for every time that a token has been generated; −2 to 2.
    pub frequency_penalty: f64,
    /// Divides positive and multiplies negative logits of tokens in the prompt or the answer; 1: off.
    pub repetition_penalty: f64,
    /// Added to logits, by token id; −100 to 100.
    pub logit_bias: BTreeMap<u32, f32>,
    /// The same seed gives the same draws; `None` picks one.
    pub seed: Option<i64>,
}

impl Default for SamplingParams {
    fn default() -> SamplingParams {
        SamplingParams {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: BTreeMap::new(),
            seed: None,
        }
    }
}

impl SamplingParams {
    /// Refuses what has no meaning, naming the field. `vocabulary_size` is the tokenizer's.
    pub fn validate(&self, vocabulary_size: usize) -> Result<(), ParamError> {
        let within = |param: &'static str, value: f64, low: f64, high: f64| {
            // NaN is in no range.
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(ParamError { param, reason: format!("expected {low} to {high}, found {value}") })
        };
        within("temperature", self.temperature, 0.0, HOTTEST)?;
        within("top_p", self.top_p, 0.0, 1.0)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        within("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        within("repetition_penalty", self.repetition_penalty, 0.01, 100.0)?;
        for (&id, &bias) in &self.logit_bias {
            check_bias(&id.to_string(), i64::from(id), f64::from(bias), vocabulary_size)?;
        }
        Ok(())
    }
}

/// Reads the map of a request, whose keys are token ids in strings.
pub fn parse_logit_bias(
    given: &serde_json::Map<String, serde_json::Value>,
    vocabulary_size: usize,
) -> Result<BTreeMap<u32, f32>, ParamError> {
    let mut biases = BTreeMap::new();
    for (key, value) in given {
        let id: i64 = key.parse().map_err(|_| bias_error(key, "is not a token id"))?;
        let bias = value.as_f64().ok_or_else(|| bias_error(key, "has a value that is not a number"))?;
        biases.insert(check_bias(key, id, bias, vocabulary_size)?, bias as f32);
    }
    Ok(biases)
}

fn check_bias(key: &str, id: i64, bias: f64, vocabulary_size: usize) -> Result<u32, ParamError> {
    if !(-100.0..=100.0).contains(&bias) {
        return Err(bias_error(key, &format!("has the value {bias}, expected -100 to 100")));
    }
    let in_vocabulary = |&id: &u32| (id as usize) < vocabulary_size;
    u32::try_from(id).ok().filter(in_vocabulary).ok_or_else(|| {
        bias_error(key, &format!("is no token id, expected 0 to {}", vocabulary_size.saturating_sub(1)))
    })
}

fn bias_error(key: &str, reason: &str) -> ParamError {
    ParamError { param: "logit_bias", reason: format!("the key {key:?} {reason}") }
}

/// Draws the tokens of one answer.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    vocabulary_size: usize,
    seed: i64,
    rng: Pcg64,
    /// How often each token has been generated.
    generated: HashMap<u32, u32>,
    prompt: HashSet<u32>,
    adjusted: Vec<f32>,
    candidates: Vec<Candidate>,
}

/// A token that may be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    id: u32,
    logit: f32,
    /// Probability up to a common factor: 1 for the likeliest token.
    weight: f64,
}

impl Candidate {
    fn new(id: usize, logit: f32) -> Candidate {
        Candidate { id: id as u32, logit, weight: 0.0 }
    }

    /// Likelier first, then lower ids: a total order without NaN.
    fn order(&self, other: &Candidate) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.id.cmp(&other.id))
    }
}

impl Sampler {
    /// A sampler for an answer to `prompt`.
    pub fn new(
        params: SamplingParams,
        vocabulary_size: usize,
        prompt: &[u32],
    ) -> Result<Sampler, ParamError> {
        params.validate(vocabulary_size)?;
        let seed = params.seed.unwrap_or_else(random_seed);
        let repeats = params.repetition_penalty != 1.0;
        Ok(Sampler {
            vocabulary_size,
            seed,
            rng: Pcg64::seed_from_u64(seed as u64),
            generated: HashMap::new(),
            prompt: if repeats { prompt.iter().copied().collect() } else { HashSet::new() },
            adjusted: Vec::new(),
            candidates: Vec::new(),
            params,
        })
    }

    /// The seed in use, so that an answer with a picked one can be had again.
    pub fn seed(&self) -> i64 {
        self.seed
    }

    /// Takes note that a token is part of the answer. The penalties count only such tokens.
    pub fn accept(&mut self, id: u32) {
        *self.generated.entry(id).or_default() += 1;
    }

    /// Chooses the next token. `logits` has one value a token and possibly padding after the vocabulary, which is never
    /// chosen; minus infinity rules a token out. Above temperature 0 each call takes one draw from the seed's sequence.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SampleError> {
        let mut adjusted = std::mem::take(&mut self.adjusted);
        let result = self.sample_with(logits, &mut adjusted);
        self.adjusted = adjusted;
        result
    }

    fn sample_with(&mut self, logits: &[f32], adjusted: &mut Vec<f32>) -> Result<u32, SampleError> {
        let (found, expected) = (logits.len(), self.vocabulary_size);
        let logits = logits.get(..expected).ok_or(SampleError::TooFew { found, expected })?;
        // Also false for NaN. One pass without branches finds out whether any is bad; a second one, if need be, which.
        let is_good = |logit: f32| logit < f32::INFINITY;
        if !logits.iter().fold(true, |good, &logit| good & is_good(logit)) {
            let id = logits.iter().position(|&logit| !is_good(logit)).unwrap_or_default() as u32;
            return Err(SampleError::NotANumber { id });
        }
        let logits = if self.adjusts() {
            adjusted.clear();
            adjusted.extend_from_slice(logits);
            self.adjust(adjusted);
            &*adjusted
        } else {
            logits
        };
        let likeliest = argmax(logits).ok_or(SampleError::NothingAllowed)?;
        if self.params.temperature < COLDEST {
            return Ok(likeliest.id);
        }
        self.narrow(logits, likeliest);
        Ok(self.draw())
    }

    fn adjusts(&self) -> bool {
        let params = &self.params;
        let penalties = params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
        penalties || params.repetition_penalty != 1.0 || !params.logit_bias.is_empty()
    }

    /// Penalties, then bias.
    fn adjust(&self, logits: &mut [f32]) {
        let params = &self.params;
        let repetition = params.repetition_penalty as f32;
        if repetition != 1.0 {
            let answer = self.generated.keys().filter(|id| !self.prompt.contains(id));
            for &id in self.prompt.iter().chain(answer) {
                if let Some(logit) = logits.get_mut(id as usize) {
                    let penalized = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
                    // A penalty below 1 must not make an infinity, whose weight would be NaN.
                    *logit = penalized.min(f32::MAX);
                }
            }
        }
        for (&id, &count) in &self.generated {
            if let Some(logit) = logits.get_mut(id as usize) {
                let penalty = params.presence_penalty + params.frequency_penalty * f64::from(count);
                *logit = (f64::from(*logit) - penalty) as f32;
            }
        }
        for (&id, &bias) in &params.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
    }

    /// Fills `candidates` with the tokens that may be drawn and their weights.
    fn narrow(&mut self, logits: &[f32], likeliest: Candidate) {
        let (temperature, top_p, min_p) = (self.params.temperature, self.params.top_p, self.params.min_p);
        let weight = |logit: f32| ((f64::from(logit) - f64::from(likeliest.logit)) / temperature).exp();
        let candidates = &mut self.candidates;
        candidates.clear();
        match usize::try_from(self.params.top_k) {
            Ok(k) if (1..logits.len()).contains(&k) => top(candidates, logits, k),
            _ => {
                // Top-p needs the whole mass; otherwise min-p rules most tokens out before any is weighed.
                let lowest = if top_p < 1.0 { NEGLIGIBLE } else { NEGLIGIBLE.max(min_p.ln() - 1e-3) };
                let floor = ((f64::from(likeliest.logit) + temperature * lowest) as f32).next_down();
                scan(logits, floor, |id, logit| {
                    candidates.push(Candidate::new(id, logit));
                    floor
                });
            }
        }
        for candidate in candidates.iter_mut() {
            candidate.weight = weight(candidate.logit);
        }
        if top_p < 1.0 {
            keep_mass(candidates, top_p);
        }
        let least = min_p.max(NEGLIGIBLE.exp());
        candidates.retain(|candidate| candidate.weight >= least);
    }

    fn draw(&mut self) -> u32 {
        // 53 random bits: every such number below 1 is exact.
        let uniform = (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let total: f64 = self.candidates.iter().map(|candidate| candidate.weight).sum();
        let mut rest = uniform * total;
        let mut chosen = 0;
        for candidate in &self.candidates {
            chosen = candidate.id;
            rest -= candidate.weight;
            if rest < 0.0 {
                break;
            }
        }
        chosen
    }
}

/// The likeliest token, the lowest id of equals; `None` if all are ruled out.
fn argmax(logits: &[f32]) -> Option<Candidate> {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (blocks, rest) = logits.as_chunks::<BLOCK>();
    let mut lanes = [f32::NEG_INFINITY; BLOCK];
    for block in blocks {
        lanes.iter_mut().zip(block).for_each(|(lane, &logit)| *lane = larger(*lane, logit));
    }
    let best = lanes.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, larger);
    let id = logits.iter().position(|&logit| logit == best)?;
    (best > f32::NEG_INFINITY).then(|| Candidate::new(id, best))
}

/// Calls `take` with every token above `floor`, ids ascending; `take` says what the floor is from there on. Nearly all
/// blocks have none and cost one comparison a lane.
fn scan(logits: &[f32], mut floor: f32, mut take: impl FnMut(usize, f32) -> f32) {
    for (block, values) in logits.chunks(BLOCK).enumerate() {
        if values.iter().fold(false, |any, &logit| any | (logit > floor)) {
            for (lane, &logit) in values.iter().enumerate() {
                if logit > floor {
                    floor = take(block * BLOCK + lane, logit);
                }
            }
        }
    }
}

/// The `k` first candidates in order. Ids ascend, so an equal that comes later is behind.
fn top(candidates: &mut Vec<Candidate>, logits: &[f32], k: usize) {
    let mut floor = f32::NEG_INFINITY;
    scan(logits, floor, |id, logit| {
        candidates.push(Candidate::new(id, logit));
        if candidates.len() == 4 * k {
            candidates.select_nth_unstable_by(k - 1, Candidate::order);
            candidates.truncate(k);
            floor = candidates[k - 1].logit;
        }
        floor
    });
    candidates.sort_unstable_by(Candidate::order);
    candidates.truncate(k);
}

/// Keeps the likeliest candidates that together have at least the share `top_p` of all weight, at least one.
fn keep_mass(candidates: &mut Vec<Candidate>, top_p: f64) {
    let wanted = top_p * candidates.iter().map(|candidate| candidate.weight).sum::<f64>();
    let mut look = FIRST_LOOK;
    loop {
        if look < candidates.len() {
            candidates.select_nth_unstable_by(look, Candidate::order);
        }
        let first = look.min(candidates.len());
        candidates[..first].sort_unstable_by(Candidate::order);
        let mut mass = 0.0;
        let enough = candidates[..first].iter().position(|candidate| {
            mass += candidate.weight;
            mass >= wanted
        });
        if let Some(last) = enough {
            candidates.truncate(last + 1);
            return;
        }
        if first == candidates.len() {
            return;
        }
        look *= 8;
    }
}

/// A seed from the operating system's randomness, by way of the standard library.
fn random_seed() -> i64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() as i64
}

#[cfg(test)]
#[path = "sampling_tests.rs"]
mod tests;
