//! The reference model and the CPU backend against transformers and mlx-lm, on the checkpoints in `fixtures/parity`.
//!
//! Each layer is fed the library's own input, so that a difference is found where it arises; then whole sequences of
//! several lengths are compared by their logits, in one batch and in uneven pieces.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests stop at the first surprise and say what they skip"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::SafeTensors;
use spinetail_checkpoint::Checkpoint;
use spinetail_core::{DenseSource, LayerKind, ModelConfig, ModelSource, RecordSource};
use spinetail_cpu::{CpuBackend, CpuOptions, HostMemory, Precision};
use spinetail_model::reference::Reference;
use spinetail_model::{Backend, Routing, Row, Scratch, SequenceId, step};
use spinetail_store::{ExpertStore, StoreOptions};

/// What the library computed: tensors by name, and whether the checkpoint is quantized.
struct Expected {
    floats: BTreeMap<String, Vec<f32>>,
    ints: BTreeMap<String, Vec<i32>>,
    quantized: bool,
}

impl Expected {
    fn load(case: &Path) -> Self {
        let bytes = std::fs::read(case.join("expected.safetensors")).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let meta = header.metadata().clone().unwrap();
        let (mut floats, mut ints) = (BTreeMap::new(), BTreeMap::new());
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let words = view.data().chunks_exact(4).map(|b| <[u8; 4]>::try_from(b).unwrap());
            match view.dtype() {
                safetensors::Dtype::F32 => {
                    floats.insert(name, words.map(f32::from_le_bytes).collect()).is_some()
                }
                _ => ints.insert(name, words.map(i32::from_le_bytes).collect()).is_some(),
            };
        }
        Self {
            floats,
            ints,
            quantized: meta.get("quantized").is_some_and(|q| q.eq_ignore_ascii_case("true")),
        }
    }

    fn tokens(&self, name: &str) -> Vec<u32> {
        self.ints[name].iter().map(|&t| t as u32).collect()
    }

    /// Part of the logit range that ours may differ by.
    fn tolerance(&self) -> f32 {
        if self.quantized { 2e-3 } else { 1e-4 }
    }

    /// Largest minus smallest logit of the main run.
    fn range(&self) -> f32 {
        let logits = &self.floats["logits"];
        let fold = |f: fn(f32, f32) -> f32, start| logits.iter().copied().fold(start, f);
        fold(f32::max, f32::MIN) - fold(f32::min, f32::MAX)
    }
}

fn cases() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/parity");
    let mut cases: Vec<_> = std::fs::read_dir(root).unwrap().map(|e| e.unwrap().path()).collect();
    cases.retain(|c| c.join("expected.safetensors").exists());
    cases.sort();
    assert!(cases.len() >= 8, "fixtures are missing: {cases:?}");
    cases
}

fn max_difference(ours: &[f32], theirs: &[f32], what: &str) -> f32 {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[track_caller]
fn assert_close(ours: &[f32], theirs: &[f32], tolerance: f32, what: &str) {
    let scale = theirs.iter().fold(0f32, |m, v| m.max(v.abs()));
    let d = max_difference(ours, theirs, what);
    assert!(d <= tolerance * scale, "{what}: differs by {d:e} of {scale}");
}

/// Router choices may differ only where probabilities all but tie; the fixtures have no such ties.
#[track_caller]
fn assert_routing(ids: &[u16], weights: &[f32], expected: &Expected, layer: usize, what: &str) {
    let (their_ids, their_weights) = (
        &expected.ints[&format!("layers.{layer}.router_ids")],
        &expected.floats[&format!("layers.{layer}.router_weights")],
    );
    let k = their_ids.len() / expected.ints["tokens"].len();
    assert_eq!(ids.len(), their_ids.len(), "{what}");
    for (row, (ids, theirs)) in ids.chunks(k).zip(their_ids.chunks(k)).enumerate() {
        for (rank, &id) in ids.iter().enumerate() {
            let at = theirs.iter().position(|&t| t == i32::from(id));
            let at = at.unwrap_or_else(|| panic!("{what}: row {row} chose {id}, expected {theirs:?}"));
            let (ours, theirs) = (weights[row * k + rank], their_weights[row * k + at]);
            assert!((ours - theirs).abs() < 1e-5, "{what}: row {row} weighs {id} {ours}, expected {theirs}");
        }
    }
}

#[test]
fn the_reference_agrees_layer_by_layer() {
    for case in cases() {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let (source, expected) = (Checkpoint::open(&case).unwrap(), Expected::load(&case));
        let reference = Reference::new(&source);
        let hidden = source.config().hidden;
        let rows = |name: &str| -> Vec<Vec<f32>> {
            expected.floats[name].chunks(hidden).map(<[f32]>::to_vec).collect()
        };
        let embed = reference.embed(&expected.tokens("tokens")).unwrap();
        assert_close(&embed.concat(), &expected.floats["embed"], 0.0, &format!("{name}: embedding"));
        let mut last = Vec::new();
        for n in 0..source.config().layers.len() {
            let taps = reference.layer(n, &rows(&format!("layers.{n}.input"))).unwrap();
            let check = |ours: &[Vec<f32>], tap: &str| {
                let theirs = &expected.floats[&format!("layers.{n}.{tap}")];
                assert_close(&ours.concat(), theirs, 1e-5, &format!("{name}: layer {n} {tap}"));
            };
            check(&taps.input_norm, "input_norm");
            check(&taps.mixer, "mixer");
            let what = format!("{name}: layer {n} router");
            assert_routing(&taps.router_ids.concat(), &taps.router_weights.concat(), &expected, n, &what);
            check(&taps.output, "output");
            last = taps.output;
        }
        let logits = reference.head(&last).unwrap().concat();
        let d = max_difference(&logits, &expected.floats["logits"], &name);
        println!("{name}: reference logits differ by {:.1e} of the range", d / expected.range());
        assert!(d <= expected.tolerance() * expected.range(), "{name}: logits differ by {d}");
    }
}

/// A backend, its store and one sequence.
struct Run {
    config: ModelConfig,
    backend: CpuBackend,
    store: ExpertStore,
    sequence: SequenceId,
    scratch: Scratch,
}

impl Run {
    fn new(source: &Arc<dyn ModelSource>, slots: usize, threads: usize) -> Self {
        Self::with(source, slots, threads, Precision::Exact)
    }

    fn with(source: &Arc<dyn ModelSource>, slots: usize, threads: usize, precision: Precision) -> Self {
        let config = source.config().clone();
        let mut backend = CpuBackend::load(
            &**source,
            &CpuOptions { threads: Some(threads), precision, ..CpuOptions::default() },
            &mut |_| {},
        )
        .unwrap();
        let records: Arc<dyn RecordSource> = Arc::clone(source) as _;
        let layers = config.layers.len() as u16;
        let one = ExpertStore::new(
            Arc::clone(&records),
            Box::new(HostMemory::default()),
            StoreOptions::new(0, layers),
        );
        let options = StoreOptions::new(slots * one.slot_bytes(), layers);
        let sequence = backend.create_sequence(4096).unwrap();
        let store = ExpertStore::new(records, Box::new(HostMemory::default()), options);
        Self { config, backend, store, sequence, scratch: Scratch::default() }
    }

    fn rows(&self, tokens: &[u32], start: usize) -> Vec<Row> {
        let row = |(i, &token)| Row { sequence: self.sequence, position: (start + i) as u32, token };
        tokens.iter().enumerate().map(row).collect()
    }

    /// Logits of every token, run in pieces of the given lengths (the last one repeated).
    fn logits(&mut self, tokens: &[u32], pieces: &[usize]) -> Vec<f32> {
        self.backend.drop_sequence(self.sequence);
        self.sequence = self.backend.create_sequence(4096).unwrap();
        let (mut out, mut done) = (Vec::new(), 0);
        for piece in pieces.iter().chain(std::iter::repeat(pieces.last().unwrap())) {
            if done == tokens.len() {
                break;
            }
            let n = (*piece).min(tokens.len() - done);
            let rows = self.rows(&tokens[done..done + n], done);
            step(&mut self.backend, &mut self.store, &self.config, &rows, &mut self.scratch, &mut |_, _| {
                Ok(())
            })
            .unwrap();
            let mut logits = vec![0.0; n * self.config.vocab];
            self.backend.head(&(0..n as u32).collect::<Vec<_>>(), &mut logits).unwrap();
            out.extend(logits);
            done += n;
        }
        out
    }
}

#[test]
fn the_cpu_backend_agrees_layer_by_layer() {
    for case in cases() {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let expected = Expected::load(&case);
        let source: Arc<dyn ModelSource> = Arc::new(Checkpoint::open(&case).unwrap());
        let mut run = Run::new(&source, 4, 1);
        let tokens = expected.tokens("tokens");
        for (n, kind) in run.config.layers.clone().into_iter().enumerate() {
            let input = &expected.floats[&format!("layers.{n}.input")];
            run.backend.drop_sequence(run.sequence);
            run.sequence = run.backend.create_sequence(tokens.len() as u32).unwrap();
            run.backend.set_hidden(&run.rows(&tokens, 0), input).unwrap();
            match kind {
                LayerKind::Attention => run.backend.attention(n).unwrap(),
                LayerKind::Delta => run.backend.delta_net(n).unwrap(),
            }
            let mut x = Vec::new();
            run.backend.hidden(&mut x).unwrap();
            let mixer: Vec<f32> = x.iter().zip(input).map(|(x, i)| x - i).collect();
            let theirs = &expected.floats[&format!("layers.{n}.mixer")];
            // The mixer is seen as a difference of sums, which costs it a few more digits.
            assert_close(&mixer, theirs, 5e-5, &format!("{name}: layer {n} mixer"));
            let mut routing = Routing::default();
            run.backend.route(n, &mut routing).unwrap();
            let what = format!("{name}: layer {n} router");
            assert_routing(&routing.ids, &routing.weights, &expected, n, &what);
            // The prediction is the router on the same residual stream: here it must say the same.
            let mut predicted = Routing::default();
            run.backend.predict(n, &mut predicted).unwrap();
            assert_eq!(predicted, routing, "{what}");
        }
    }
}

#[test]
fn cpu_logits_agree_at_every_length_and_do_not_depend_on_how_they_were_run() {
    for case in cases() {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let expected = Expected::load(&case);
        let source: Arc<dyn ModelSource> = Arc::new(Checkpoint::open(&case).unwrap());
        let mut run = Run::new(&source, 1000, 1);
        let vocab = run.config.vocab;
        let lengths = ["", ".1", ".63", ".64", ".130"];
        let mut worst = 0f32;
        for length in lengths {
            let tokens = expected.tokens(&format!("tokens{length}"));
            let logits = run.logits(&tokens, &[64]);
            let theirs = match length {
                "" => &expected.floats["logits"],
                l => &expected.floats[&format!("logits_tail{l}")],
            };
            let d = max_difference(&logits[logits.len() - theirs.len()..], theirs, &name);
            worst = worst.max(d / expected.range());
            assert!(d <= expected.tolerance() * expected.range(), "{name}{length}: logits differ by {d}");
        }
        println!("{name}: logits differ by {worst:.1e} of the range");
        let tokens = expected.tokens("tokens.130");
        let whole = run.logits(&tokens, &[64]);
        for pieces in [&[1][..], &[130], &[3, 61, 1, 64], &[63, 7], &[65]] {
            assert!(run.logits(&tokens, pieces) == whole, "{name}: pieces of {pieces:?} give other bytes");
        }
        for slots in [0, 1, 5] {
            assert!(
                Run::new(&source, slots, 1).logits(&tokens, &[64]) == whole,
                "{name}: {slots} slots give other bytes"
            );
        }
        for threads in [2, 3] {
            let run = &mut Run::new(&source, 5, threads);
            assert!(run.logits(&tokens, &[64]) == whole, "{name}: {threads} threads give other bytes");
        }
        let prefix = run.logits(&tokens[..63], &[64]);
        assert!(prefix == whole[..63 * vocab], "{name}: later tokens change earlier logits");
    }
}

/// Rows one by one, in batches that are multiplied panel by panel, and anything between: the same bytes in `fast`, too.
#[test]
fn fast_logits_do_not_depend_on_how_they_were_run() {
    for case in cases() {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let source: Arc<dyn ModelSource> = Arc::new(Checkpoint::open(&case).unwrap());
        let tokens: Vec<u32> = (0..150).map(|i| i * i % 191).collect();
        let with = |slots, threads| Run::with(&source, slots, threads, Precision::Fast);
        let whole = with(1000, 1).logits(&tokens, &[64]);
        for pieces in [&[1][..], &[150], &[2, 3, 4, 55, 64], &[63, 5]] {
            let found = with(1000, 1).logits(&tokens, pieces);
            assert!(found == whole, "{name}: pieces of {pieces:?} give other bytes");
        }
        for (slots, threads) in [(0, 1), (5, 2), (1000, 3)] {
            let found = with(slots, threads).logits(&tokens, &[128]);
            assert!(found == whole, "{name}: {slots} slots and {threads} threads give other bytes");
        }
    }
}

/// Two sequences in one batch, in every mixture, give what each gives alone.
#[test]
fn sequences_in_one_batch_do_not_see_each_other() {
    for case in cases() {
        let source: Arc<dyn ModelSource> = Arc::new(Checkpoint::open(&case).unwrap());
        let mut run = Run::new(&source, 1000, 2);
        let vocab = run.config.vocab;
        let tokens: [Vec<u32>; 2] =
            [(0..20).map(|i| i * 7 % 200).collect(), (0..20).map(|i| i * 11 % 190).collect()];
        let alone = [0, 1].map(|s| run.logits(&tokens[s], &[20]));
        let ids = [run.backend.create_sequence(64).unwrap(), run.backend.create_sequence(64).unwrap()];
        let mut done = [0usize; 2];
        // Rows of the first and of the second sequence in each batch.
        for batch in [[1, 1], [5, 0], [2, 7], [0, 3], [12, 9]] {
            let mut rows = Vec::new();
            for s in 0..2 {
                let row = |i: usize| Row { sequence: ids[s], position: i as u32, token: tokens[s][i] };
                rows.extend((done[s]..done[s] + batch[s]).map(row));
            }
            step(&mut run.backend, &mut run.store, &run.config, &rows, &mut run.scratch, &mut |_, _| Ok(()))
                .unwrap();
            let mut logits = vec![0.0; rows.len() * vocab];
            run.backend.head(&(0..rows.len() as u32).collect::<Vec<_>>(), &mut logits).unwrap();
            let (first, second) = logits.split_at(batch[0] * vocab);
            for (s, ours) in [first, second].into_iter().enumerate() {
                assert!(
                    ours == &alone[s][done[s] * vocab..][..ours.len()],
                    "{}: sequence {s}",
                    case.display()
                );
                done[s] += batch[s];
            }
        }
        assert_eq!(done, [20, 20]);
    }
}

/// The backend against the reference itself, on tokens that the fixtures do not have.
#[test]
fn the_cpu_backend_agrees_with_the_reference() {
    for case in cases() {
        let source: Arc<dyn ModelSource> = Arc::new(Checkpoint::open(&case).unwrap());
        let tokens: Vec<u32> = (0..17).map(|i| (i * i * 31 + 5) % source.config().vocab as u32).collect();
        let theirs = Reference::new(&*source).logits(&tokens).unwrap().concat();
        let ours = Run::new(&source, 3, 1).logits(&tokens, &[17]);
        assert_close(&ours, &theirs, 1e-4, &case.display().to_string());
    }
}

#[test]
fn a_saved_state_takes_a_sequence_back() {
    let case = cases().remove(0);
    let source: Arc<dyn ModelSource> = Arc::new(Checkpoint::open(&case).unwrap());
    let mut run = Run::new(&source, 1000, 1);
    let tokens: Vec<u32> = (0..40).map(|i| i * 7 % 200).collect();
    let straight = run.logits(&tokens, &[40]);
    run.logits(&tokens[..25], &[25]);
    let saved = run.backend.save_state(run.sequence).unwrap();
    let advance = |run: &mut Run, tokens: &[u32]| {
        let rows = run.rows(tokens, 25);
        step(&mut run.backend, &mut run.store, &run.config, &rows, &mut run.scratch, &mut |_, _| Ok(()))
            .unwrap();
        let mut logits = vec![0.0; tokens.len() * run.config.vocab];
        run.backend.head(&(0..tokens.len() as u32).collect::<Vec<_>>(), &mut logits).unwrap();
        logits
    };
    advance(&mut run, &[1, 2, 3, 4, 5, 6]);
    run.backend.restore_state(run.sequence, &saved).unwrap();
    assert!(advance(&mut run, &tokens[25..]) == straight[25 * run.config.vocab..]);
    // A state from further on than the sequence has come is refused.
    let later = run.backend.save_state(run.sequence).unwrap();
    run.backend.restore_state(run.sequence, &saved).unwrap();
    assert!(run.backend.restore_state(run.sequence, &later).is_err());
}

#[test]
fn rows_that_do_not_continue_their_sequence_are_refused() {
    let source: Arc<dyn ModelSource> = Arc::new(Checkpoint::open(&cases().remove(0)).unwrap());
    let mut run = Run::new(&source, 0, 1);
    let mut row = |sequence, position, token| run.backend.embed(&[Row { sequence, position, token }]);
    let mine = run.sequence;
    assert!(row(mine, 1, 0).is_err(), "a gap");
    assert!(row(SequenceId(99), 0, 0).is_err(), "an unknown sequence");
    assert!(row(mine, 0, 1 << 20).is_err(), "an unknown token");
    assert!(row(mine, 0, 0).is_ok());
    assert!(row(mine, 0, 0).is_err(), "a position twice");
}
