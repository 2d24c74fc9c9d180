//! What a model computes does not depend on where its experts lie: the same bytes for every budget, read mode, number of
//! readers, policy and guess, and however late or flaky the drive.

#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use spinetail_checkpoint::{OpenOptions, open_model_with};
use spinetail_core::ModelSource;
use spinetail_cpu::CpuOptions;
use spinetail_engine::{
    Engine, EngineError, EngineOptions, ExpertOptions, Isa, LookaheadMode, MemoryPlan, Pages, PolicyKind,
    Precision, ReadMode,
};
use spinetail_store::{Fault, FaultySource};

fn pip() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pip.qpack")
}

fn source() -> Arc<dyn ModelSource> {
    Arc::from(open_model_with(&pip(), &OpenOptions::default()).unwrap())
}

fn minimum(options: &EngineOptions) -> u64 {
    match Engine::open(&pip(), &EngineOptions { memory_bytes: Some(1), ..options.clone() }, &mut |_, _| {}) {
        Err(EngineError::Budget { minimum, .. }) => minimum,
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("a model in one byte"),
    }
}

/// Tokens of a greedy answer to a prompt of more than one chunk, with the logits before each. `between` is called
/// before each token.
fn answer(engine: &Engine, between: &mut dyn FnMut(usize)) -> Vec<(u32, Vec<f32>)> {
    let prompt = "The capital of Spain is Madrid. The opposite of hot is cold. ".repeat(12);
    let tokens = engine.encode(&prompt).unwrap();
    assert!(tokens.len() > 130, "{}", tokens.len());
    let mut session = engine.session().unwrap();
    session.prefill(&tokens, Some(70), &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    let mut seen = Vec::new();
    for i in 0..24 {
        between(i);
        let logits = session.logits().to_vec();
        let token = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32;
        seen.push((token, logits));
        session.push(token).unwrap();
    }
    seen
}

fn same(a: &[(u32, Vec<f32>)], b: &[(u32, Vec<f32>)]) -> bool {
    let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0 && bits(&a.1) == bits(&b.1))
}

/// Every way of reading and keeping experts, with a name.
fn ways() -> Vec<(&'static str, ExpertOptions)> {
    let with = |f: &dyn Fn(&mut ExpertOptions)| {
        let mut options = ExpertOptions { lookahead: LookaheadMode::Off, ..ExpertOptions::default() };
        f(&mut options);
        options
    };
    vec![
        ("direct", with(&|_| {})),
        ("buffered", with(&|e| e.read_mode = ReadMode::Buffered)),
        ("uring", with(&|e| e.read_mode = ReadMode::Uring)),
        ("uring, verified", with(&|e| (e.read_mode, e.verify_reads) = (ReadMode::Uring, true))),
        (
            "uring, lookahead, one read",
            with(&|e| {
                (e.read_mode, e.lookahead, e.readers) = (ReadMode::Uring, LookaheadMode::On, 1);
            }),
        ),
        ("small pages", with(&|e| e.pages = Pages::Small)),
        ("one reader", with(&|e| e.readers = 1)),
        ("many readers", with(&|e| e.readers = 16)),
        ("verified", with(&|e| e.verify_reads = true)),
        ("lookahead", with(&|e| e.lookahead = LookaheadMode::On)),
        ("lookahead, one reader", with(&|e| (e.lookahead, e.readers) = (LookaheadMode::On, 1))),
        ("measured lookahead", with(&|e| e.lookahead = LookaheadMode::Auto)),
        ("lru", with(&|e| e.policy = PolicyKind::Lru)),
        ("clock", with(&|e| e.policy = PolicyKind::Clock)),
        ("s3-fifo", with(&|e| e.policy = PolicyKind::S3Fifo)),
    ]
}

#[test]
fn no_way_of_reading_or_keeping_experts_changes_a_byte() {
    for precision in [Precision::Exact, Precision::Fast] {
        let options =
            |experts| EngineOptions { precision, context: 512, experts, ..EngineOptions::default() };
        let open = |o: &EngineOptions| Engine::open(&pip(), o, &mut |_, _| {}).unwrap();
        let resident = open(&options(ExpertOptions::default()));
        assert!(resident.plan().slots_bytes >= resident.plan().records_bytes);
        let expected = answer(&resident, &mut |_| {});
        let slot = resident.plan().slot_bytes;
        for (name, experts) in ways() {
            for (more, threads) in [(0, 1), (9 * slot, 2), (200 * slot, 2)] {
                let mut o = EngineOptions { threads: Some(threads), ..options(experts.clone()) };
                // Threads and readers are part of it.
                let budget = minimum(&o) + more;
                o.memory_bytes = Some(budget);
                let engine = open(&o);
                assert!(same(&answer(&engine, &mut |_| {}), &expected), "{precision:?} {name} {budget}");
                let stats = engine.store_stats();
                assert!(stats.misses > 0, "{name}");
                // With the fewest slots none is free for a guess.
                assert!(name != "lookahead" || more == 0 || stats.guesses > 0, "{stats:?}");
            }
        }
    }
}

#[test]
fn no_instruction_set_changes_a_byte() {
    for precision in [Precision::Exact, Precision::Fast] {
        let options = EngineOptions { precision, context: 512, ..EngineOptions::default() };
        let open =
            |isa| Engine::open(&pip(), &EngineOptions { isa, ..options.clone() }, &mut |_, _| {}).unwrap();
        let expected = answer(&open(None), &mut |_| {});
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            assert!(same(&answer(&open(Some(isa)), &mut |_| {}), &expected), "{precision:?} {isa}");
        }
    }
}

#[test]
fn late_reordered_and_retried_reads_change_no_byte() {
    let options = |readers, lookahead| EngineOptions {
        context: 512,
        experts: ExpertOptions { readers, lookahead, ..ExpertOptions::default() },
        ..EngineOptions::default()
    };
    let base = options(8, LookaheadMode::Off);
    let expected = answer(&Engine::open(&pip(), &base, &mut |_, _| {}).unwrap(), &mut |_| {});
    let minimum = minimum(&base);
    for (seed, readers, lookahead) in
        [(1, 1, LookaheadMode::Off), (2, 5, LookaheadMode::On), (3, 8, LookaheadMode::Off)]
    {
        let faults = vec![Fault::Delay(Duration::from_micros(150)), Fault::Flaky(200)];
        let faulty: Arc<dyn ModelSource> = Arc::new(FaultySource::new(source(), faults, seed));
        let o = EngineOptions { memory_bytes: Some(minimum + (20 << 14)), ..options(readers, lookahead) };
        let engine = Engine::from_source(faulty, &pip(), &o, &mut |_, _| {}).unwrap();
        assert!(same(&answer(&engine, &mut |_| {}), &expected), "seed {seed}");
        assert!(engine.store_stats().retries > 0);
    }
}

#[test]
fn a_budget_that_changes_amid_an_answer_changes_no_byte() {
    let base = EngineOptions { context: 512, ..EngineOptions::default() };
    let engine = Engine::open(&pip(), &base, &mut |_, _| {}).unwrap();
    let expected = answer(&engine, &mut |_| {});
    let (most, minimum) = (engine.plan().total_bytes(), minimum(&base));
    let seen = answer(&engine, &mut |i| {
        let budget = if i % 2 == 0 { minimum } else { most };
        engine.set_memory_budget(budget).unwrap();
        assert!(engine.plan().total_bytes() <= budget);
    });
    assert!(same(&seen, &expected));
    assert!(matches!(engine.set_memory_budget(minimum - 1), Err(EngineError::Budget { .. })));
}

/// What a run learned makes the next one start with it in memory.
#[test]
fn the_hottest_experts_are_there_when_the_next_run_starts() {
    let folder = tempfile::tempdir().unwrap();
    let experts = ExpertOptions { state_dir: Some(folder.path().to_owned()), ..ExpertOptions::default() };
    let options = EngineOptions { context: 512, experts, ..EngineOptions::default() };
    let options = EngineOptions { memory_bytes: Some(minimum(&options) + (40 << 14)), ..options };
    let open = || Engine::open(&pip(), &options, &mut |_, _| {}).unwrap();
    let engine = open();
    let expected = answer(&engine, &mut |_| {});
    let cold = engine.store_stats();
    drop(engine);
    let engine = open();
    assert!(same(&answer(&engine, &mut |_| {}), &expected));
    let warm = engine.store_stats();
    assert!(warm.misses < cold.misses, "{warm:?} {cold:?}");
}

/// Threads hold partial results of attention, and what they hold is in the plan.
#[test]
fn the_plan_counts_what_mixers_hold() {
    let source = source();
    let mixers = |threads| {
        let cpu = CpuOptions { threads: Some(threads), ..CpuOptions::default() };
        cpu.mixer_scratch_bytes(source.config(), 4096)
    };
    let scratch = |threads| {
        let options =
            EngineOptions { memory_bytes: Some(1 << 30), threads: Some(threads), ..EngineOptions::default() };
        MemoryPlan::new(&*source, &options).unwrap().scratch_bytes
    };
    assert!(mixers(64) > mixers(1) + (1 << 20));
    assert_eq!(scratch(64) - scratch(1), mixers(64) - mixers(1));
}

/// A drive that fails says so, and the session goes on once it works again.
#[test]
fn a_broken_record_is_an_error_and_no_more() {
    let id = spinetail_core::ExpertId { layer: 1, expert: 3 };
    let faulty: Arc<dyn ModelSource> = Arc::new(FaultySource::new(source(), vec![Fault::Short(id)], 1));
    let options = EngineOptions { context: 512, ..EngineOptions::default() };
    let engine = Engine::from_source(faulty, &pip(), &options, &mut |_, _| {}).unwrap();
    let mut session = engine.session().unwrap();
    let tokens = engine.encode(&"every expert is needed by some word of a long story ".repeat(20)).unwrap();
    let go = |_| std::ops::ControlFlow::Continue(());
    let error = session.prefill(&tokens, None, &mut { go }).unwrap_err().to_string();
    assert!(error.contains("expert 3 of layer 1") && error.contains("ends too early"), "{error}");
    // Another prompt begins anew; whether it needs that expert is its own affair.
    match session.prefill(&tokens[..1], None, &mut { go }) {
        Ok(_) => {}
        Err(e) => assert!(e.to_string().contains("expert 3 of layer 1"), "{e}"),
    }
}
