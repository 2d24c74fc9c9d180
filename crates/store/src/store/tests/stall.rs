//! A drive that does not answer for a while.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::*;

/// Counts warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<AtomicU32>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Warnings while a record is fetched that takes up to `delay`, with `patience`.
fn warnings(delay: Duration, patience: Duration) -> u32 {
    let warnings = Warnings::default();
    let options = StoreOptions { patience, ..plain(8) };
    tracing::subscriber::with_default(warnings.clone(), || {
        let mut store = faulty(vec![Fault::Delay(delay)], options);
        let found = fetch_how(&mut store, &[id(0, 1)], Use::DECODE).unwrap();
        assert_eq!((found, store.stats().reads), (vec![0], 1));
    });
    warnings.0.load(Relaxed)
}

#[test]
fn a_drive_that_stalls_is_waited_for_and_named_now_and_then() {
    // The seed of `faulty` makes the first read take 73 thousandths of this: 219 ms.
    let delay = Duration::from_secs(3);
    let several = warnings(delay, Duration::from_millis(20));
    assert!((1..=20).contains(&several), "{several}");
    assert_eq!(warnings(delay, StoreOptions::new(0, 0).patience), 0);
}
