//! Random weights, written as codes: nothing is quantized, because codes are drawn and scales are set.

use spinetail_core::{Format, ModelConfig, Part, Projection, RecordLayout, TensorSpec};

use super::routing::biases;

/// xoshiro256++ (Blackman and Vigna), for speed: a model is 20 GB of draws.
pub(super) struct Random([u64; 4]);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        // splitmix64 spreads the seed over the state.
        let mut z = seed;
        Self(std::array::from_fn(|_| {
            z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut x = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ (x >> 31)
        }))
    }

    fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// From 0 to 1.
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// About standard normal: a sum of uniforms, whose tails are long enough for routing.
    pub(super) fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        let mut words = bytes.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.next().to_le_bytes());
        }
        let rest = words.into_remainder();
        let last = self.next().to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }

    pub(super) fn shuffle(&mut self, items: &mut [usize]) {
        for i in (1..items.len()).rev() {
            items.swap(i, (self.next() % (i as u64 + 1)) as usize);
        }
    }
}

/// The direction all tokens share: this many last dimensions of the residual stream have the same mean everywhere.
const SHARED_DIMS: usize = 128;
/// Their mean in the embedding, whose other dimensions have mean 0 and variance 1.
const SHARED_MEAN: f32 = 2.0;
/// Variance that all layers together add to a dimension of the residual stream.
const ADDED_VARIANCE: f32 = 1.0;
/// Tokens belong to topics in turn, and the next token is likely of the same topic as the last: routing then has, besides
/// favourites that are always the same, some that change after ten tokens or so, as text has phrases.
const TOPICS: usize = 64;
/// Variance of the embedding that tokens of a topic share, of 1 in all.
const TOPIC_VARIANCE: f32 = 0.15;
/// What a topic adds to the logits of its own tokens.
const TOPIC_LOGIT: f32 = 8.8;
/// Groups of columns that share a scale.
const GROUP: usize = 64;

/// Draws the tensors of one model.
pub(super) struct Weights {
    random: Random,
    config: ModelConfig,
    skew: f64,
    /// The direction of each topic: a sign for every group of dimensions that is not shared by all tokens.
    topics: Vec<Vec<f32>>,
}

/// How the codes of a matrix are read: per row and group of columns.
#[derive(Default)]
struct Scaling {
    /// Standard deviation of a weight.
    deviation: f32,
    /// Mean of the weights of the shared dimensions, by row; empty for zero.
    shared_means: Vec<f32>,
    /// Whether the weights of the shared dimensions are all equal to their mean.
    shared_even: bool,
    /// Mean of the weights of other dimensions, up to the sign that the topic of the row has there.
    topic_mean: f32,
}

type Write<'w> = dyn FnMut(Part, u64, &[u8]) -> anyhow::Result<()> + 'w;

impl Weights {
    pub(super) fn new(config: &ModelConfig, seed: u64, skew: f64) -> Self {
        let mut random = Random::new(seed);
        let mut sign = |_| if random.next() >> 63 == 0 { 1.0 } else { -1.0 };
        let groups = config.hidden.div_ceil(GROUP);
        let topics = (0..TOPICS).map(|_| (0..groups).map(&mut sign).collect()).collect();
        Self { random, config: config.clone(), skew, topics }
    }

    /// Root mean square that one mixer or MoE adds to a dimension.
    fn contribution(&self) -> f32 {
        (ADDED_VARIANCE / (2 * self.config.layers.len()) as f32).sqrt()
    }

    /// Mean square of the residual stream at the router of `layer`, by design: what tokens share, and all of it.
    fn squares_at(&self, layer: usize) -> (f32, f32) {
        let shared = self.shared_dims() as f32 / self.config.hidden as f32 * SHARED_MEAN * SHARED_MEAN;
        let added = ADDED_VARIANCE * (layer as f32 + 0.5) / self.config.layers.len() as f32;
        (shared, shared + 1.0 + added)
    }

    /// The shared dimensions: whole groups, at most half of all.
    fn shared_dims(&self) -> usize {
        SHARED_DIMS.min(self.config.hidden / 2 / GROUP * GROUP)
    }

    pub(super) fn dense(
        &mut self,
        name: &str,
        spec: &TensorSpec,
        write: &mut Write<'_>,
    ) -> anyhow::Result<()> {
        match spec.format {
            Format::Plain(_) => {
                let values = self.vector(name, spec);
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                write(Part::Weight, 0, &bytes)
            }
            Format::Affine(_) => {
                let scaling = self.scaling(name, spec);
                self.matrix(spec, &scaling, write)
            }
        }
    }

    fn vector(&mut self, name: &str, spec: &TensorSpec) -> Vec<f32> {
        let n = spec.shape.iter().product();
        let random = &mut self.random;
        let mut draw = |f: &dyn Fn(&mut Random) -> f32| (0..n).map(|_| f(random)).collect();
        match name.rsplit('.').next().unwrap_or(name) {
            // Decays from a few tokens to thousands, as trained models have them.
            "A_log" => draw(&|r| (0.5 + 7.5 * r.uniform()).ln()),
            "dt_bias" => draw(&|r| -6.0 + 4.0 * r.uniform()),
            "conv1d" => draw(&|r| 0.5 * r.normal()),
            _ => vec![1.0; n],
        }
    }

    fn scaling(&mut self, name: &str, spec: &TensorSpec) -> Scaling {
        // Inputs are normed, so that unit variance out needs 1/columns.
        let unit = 1.0 / (spec.columns() as f32).sqrt();
        let (mut shared_means, mut shared_even, mut topic_mean) = (Vec::new(), false, 0.0);
        let last = name.rsplit('.').next().unwrap_or(name);
        let deviation = match last {
            "embed_tokens" => {
                shared_means = vec![SHARED_MEAN; spec.rows()];
                topic_mean = TOPIC_VARIANCE.sqrt();
                (1.0 - TOPIC_VARIANCE).sqrt()
            }
            // What comes in has been multiplied by a gate: about half of unit size.
            "o_proj" | "out_proj" | "down_proj" => 2.0 * self.contribution() * unit,
            "gate" if name.ends_with("mlp.gate") => {
                let layer = name.split('.').nth(1).and_then(|l| l.parse().ok()).unwrap_or(0);
                let m = self.config.moe;
                let biases = biases(&mut self.random, m.experts, m.top_k, self.skew);
                let (shared, all) = self.squares_at(layer);
                let per_unit = all.sqrt() / (self.shared_dims() as f32 * SHARED_MEAN);
                shared_means = biases.iter().map(|b| b * per_unit).collect();
                // Favourites are as asked for and no more: where all tokens are alike chance must add none, and where
                // they differ logits have unit variance.
                shared_even = true;
                unit * (all / (all - shared)).sqrt()
            }
            // Logits of a few units, so that probabilities differ.
            "lm_head" => {
                let (_, all) = self.squares_at(self.config.layers.len());
                let topical = (spec.columns() - self.shared_dims()) as f32 * TOPIC_VARIANCE.sqrt();
                topic_mean = TOPIC_LOGIT * all.sqrt() / topical;
                3.0 * unit
            }
            _ => unit,
        };
        Scaling { deviation, shared_means, shared_even, topic_mean }
    }

    fn matrix(&mut self, spec: &TensorSpec, scaling: &Scaling, write: &mut Write<'_>) -> anyhow::Result<()> {
        let rows_at_once = (4 << 20) / spec.row_bytes(Part::Weight).max(1) + 1;
        let mut codes = Vec::new();
        for row in (0..spec.rows()).step_by(rows_at_once) {
            let rows = rows_at_once.min(spec.rows() - row);
            codes.resize(rows * spec.row_bytes(Part::Weight), 0);
            self.random.fill(&mut codes);
            write(Part::Weight, (row * spec.row_bytes(Part::Weight)) as u64, &codes)?;
        }
        let (scales, biases) = self.groups(spec, scaling);
        write(Part::Scales, 0, &scales)?;
        write(Part::Biases, 0, &biases)
    }

    /// Scales and biases for uniform codes: mean as asked for, half of the scales negative.
    fn groups(&mut self, spec: &TensorSpec, scaling: &Scaling) -> (Vec<u8>, Vec<u8>) {
        let Format::Affine(a) = spec.format else { return (Vec::new(), Vec::new()) };
        let levels = f32::from(1u16 << a.bits);
        let scale = scaling.deviation / ((levels * levels - 1.0) / 12.0).sqrt();
        let per_row = spec.columns() / a.group_size;
        let first_shared = (spec.columns() - self.shared_dims().min(spec.columns())) / a.group_size;
        let (mut scales, mut biases) = (Vec::new(), Vec::new());
        for row in 0..spec.rows() {
            for group in 0..per_row {
                let sign = if self.random.next() >> 63 == 0 { 1.0 } else { -1.0 };
                let mean = scaling.shared_means.get(row).filter(|_| group >= first_shared);
                let scale = if mean.is_some() && scaling.shared_even { 0.0 } else { sign * scale };
                a.scales.put(scale, &mut scales);
                let topic = self.topics[row % TOPICS].get(group).unwrap_or(&0.0) * scaling.topic_mean;
                let mean = *mean.unwrap_or(if group >= first_shared { &0.0 } else { &topic });
                a.scales.put(mean - scale * (levels - 1.0) / 2.0, &mut biases);
            }
        }
        (scales, biases)
    }

    /// One expert. Its codes are drawn anew, its scales are the same as every other's.
    pub(super) fn record(&mut self, layout: &RecordLayout, out: &mut [u8]) {
        self.random.fill(out);
        let down = 2.0 * self.contribution();
        let mut end = 0;
        for projection in Projection::ALL {
            let t = layout.get(projection);
            let unit = 1.0 / (t.spec.columns() as f32).sqrt();
            let deviation = if projection == Projection::Down { down * unit } else { unit };
            let scaling = Scaling { deviation, ..Scaling::default() };
            let (scales, biases) = self.groups(&t.spec, &scaling);
            out[t.range(Part::Scales)].copy_from_slice(&scales);
            out[t.range(Part::Biases)].copy_from_slice(&biases);
            for part in Part::ALL {
                out[end..t.range(part).start].fill(0);
                end = t.range(part).end;
            }
        }
    }
}
