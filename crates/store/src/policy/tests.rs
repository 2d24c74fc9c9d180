//! Each policy against a naive model of itself, and what all of them owe the store.

use proptest::prelude::*;

use super::*;

const RECORDS: u32 = 24;

/// What the store does with one record.
#[derive(Debug, Clone)]
enum Step {
    Use { record: u32, weight: f32 },
    Guess(u32),
    Sweep(u32),
    Tick,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // A square makes low numbers likelier: with all alike no policy would differ from another.
    let record = (0..RECORDS, 0..RECORDS).prop_map(|(a, b)| a * b / RECORDS);
    let weight = prop_oneof![Just(1.0f32), Just(0.25), Just(0.0)];
    let step = prop_oneof![
        8 => (record.clone(), weight).prop_map(|(record, weight)| Step::Use { record, weight }),
        1 => record.clone().prop_map(Step::Guess),
        1 => record.prop_map(Step::Sweep),
        4 => Just(Step::Tick),
    ];
    prop::collection::vec(step, 0..400)
}

/// A naive policy over a few records; `victim` is what it would choose among `may_go`.
trait Naive {
    fn used(&mut self, record: u32, weight: f32);
    fn inserted(&mut self, record: u32, arrival: Arrival);
    fn removed(&mut self, record: u32);
    fn agrees(&mut self, victim: u32, may_go: &dyn Fn(u32) -> bool);
    fn tick(&mut self) {}
}

/// Drives both through `steps` with `slots` slots, none of which may be taken from records divisible by `pinned`.
fn drive(policy: &mut dyn Policy, naive: &mut dyn Naive, steps: &[Step], slots: usize, pinned: u32) {
    let mut resident: Vec<u32> = Vec::new();
    for step in steps {
        let (record, arrival) = match *step {
            Step::Tick => {
                policy.tick();
                naive.tick();
                continue;
            }
            Step::Use { record, weight } => {
                policy.used(record, weight);
                naive.used(record, weight);
                (record, Arrival::Demand)
            }
            Step::Guess(record) => (record, Arrival::Guess),
            Step::Sweep(record) => (record, Arrival::Sweep),
        };
        if resident.contains(&record) {
            continue;
        }
        if resident.len() == slots {
            let may_go = |r: u32| !r.is_multiple_of(pinned);
            let victim = policy.victim(&mut |r| may_go(r));
            assert_eq!(victim.is_some(), resident.iter().any(|&r| may_go(r)));
            let Some(victim) = victim else { continue };
            assert!(may_go(victim));
            let at = resident.iter().position(|&r| r == victim).expect("a victim is in a slot");
            naive.agrees(victim, &may_go);
            resident.swap_remove(at);
            policy.removed(victim);
            naive.removed(victim);
        }
        resident.push(record);
        policy.inserted(record, arrival);
        naive.inserted(record, arrival);
    }
}

/// No opinion: for what every policy owes the store.
struct Anything;

impl Naive for Anything {
    fn used(&mut self, _: u32, _: f32) {}
    fn inserted(&mut self, _: u32, _: Arrival) {}
    fn removed(&mut self, _: u32) {}
    fn agrees(&mut self, _: u32, _: &dyn Fn(u32) -> bool) {}
}

/// From the least recently used on.
struct NaiveLru(Vec<u32>);

impl Naive for NaiveLru {
    fn used(&mut self, record: u32, weight: f32) {
        if let Some(at) = self.0.iter().position(|&r| r == record)
            && weight > 0.0
        {
            self.0.remove(at);
            self.0.push(record);
        }
    }
    fn inserted(&mut self, record: u32, arrival: Arrival) {
        let at = if arrival == Arrival::Sweep { 0 } else { self.0.len() };
        self.0.insert(at, record);
    }
    fn removed(&mut self, record: u32) {
        self.0.retain(|&r| r != record);
    }
    fn agrees(&mut self, victim: u32, may_go: &dyn Fn(u32) -> bool) {
        assert_eq!(self.0.iter().copied().find(|&r| may_go(r)), Some(victim));
    }
}

/// Every use with its time, added up anew each time.
struct NaiveDecayed {
    uses: Vec<Vec<(f64, f64)>>,
    resident: Vec<u32>,
    now: f64,
    half_life: f64,
}

impl NaiveDecayed {
    fn score(&self, record: u32) -> f64 {
        let decayed = |&(at, weight): &(f64, f64)| weight * (-(self.now - at) / self.half_life).exp2();
        self.uses[record as usize].iter().map(decayed).sum()
    }
}

impl Naive for NaiveDecayed {
    fn used(&mut self, record: u32, weight: f32) {
        self.uses[record as usize].push((self.now, f64::from(weight)));
    }
    fn inserted(&mut self, record: u32, _: Arrival) {
        self.resident.push(record);
    }
    fn removed(&mut self, record: u32) {
        self.resident.retain(|&r| r != record);
    }
    fn agrees(&mut self, victim: u32, may_go: &dyn Fn(u32) -> bool) {
        let lowest = self.resident.iter().filter(|&&r| may_go(r)).map(|&r| self.score(r));
        let lowest = lowest.fold(f64::INFINITY, f64::min);
        // A bucket is a sixteenth of a doubling wide. Below 2^-30 all are in the bottom bucket or near it.
        let most = (lowest * (1.0f64 / 16.0).exp2() * (1.0 + 1e-9)).max(1e-9);
        assert!(self.score(victim) <= most, "{} of at least {lowest}", self.score(victim));
    }
    fn tick(&mut self) {
        self.now += 1.0;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_policy_finds_a_victim_where_one_may_go(
        steps in steps(), slots in 1usize..20, pinned in 1u32..5, kind in 0usize..5
    ) {
        let mut policy = PolicyKind::ALL[kind].build(RECORDS, 3.0).expect("a live policy");
        drive(&mut *policy, &mut Anything, &steps, slots, pinned);
    }

    #[test]
    fn lru_is_a_vector(steps in steps(), slots in 1usize..20, pinned in 2u32..5) {
        drive(&mut Lru::new(RECORDS), &mut NaiveLru(Vec::new()), &steps, slots, pinned);
    }

    #[test]
    fn decayed_counts_are_sums_over_all_uses(
        steps in steps(), slots in 1usize..20, pinned in 2u32..5,
        half_life in prop_oneof![Just(0.5), Just(3.0), Just(100.0), Just(f64::INFINITY)]
    ) {
        let mut naive = NaiveDecayed {
            uses: vec![Vec::new(); RECORDS as usize], resident: Vec::new(), now: 0.0, half_life
        };
        let mut policy = DecayedLfu::new(RECORDS, half_life);
        drive(&mut policy, &mut naive, &steps, slots, pinned);
        for record in 0..RECORDS {
            let (a, b) = (policy.score(record), naive.score(record));
            prop_assert!((a - b).abs() <= 1e-6 * b, "{record}: {a} {b}");
        }
    }
}

#[test]
fn ages_far_apart_are_no_trouble() {
    let mut policy = DecayedLfu::new(4, 1.0);
    for (record, ticks) in [(0, 10), (1, 1000), (2, 100_000), (3, 0)] {
        policy.used(record, 1.0);
        policy.inserted(record, Arrival::Demand);
        (0..ticks).for_each(|_| policy.tick());
    }
    // 0 and 1 are both below the ring: the least recently used of them goes first.
    for expected in [0, 1, 2, 3] {
        assert_eq!(policy.victim(&mut |_| true), Some(expected));
        policy.removed(expected);
    }
    assert_eq!(policy.victim(&mut |_| true), None);
}

#[test]
fn counts_survive_eviction_and_a_restart() {
    let mut policy = DecayedLfu::new(8, 100.0);
    for (record, uses) in [(5, 9), (2, 4), (7, 1)] {
        (0..uses).for_each(|_| policy.used(record, 1.0));
        policy.inserted(record, Arrival::Demand);
        policy.removed(record);
    }
    assert_eq!(policy.hottest(10), [5, 2, 7]);
    assert_eq!(policy.hottest(1), [5]);
    let mut next = DecayedLfu::new(6, 100.0);
    next.seed(&policy.hottest(10));
    assert_eq!(next.hottest(10), [5, 2]);
    assert!(next.score(5) > 8.0 && next.score(2) > 1.0);
}

/// Decode's favourites stay while a chunk goes through, whatever the policy.
#[test]
fn a_sweep_does_not_push_out_what_decoding_uses() {
    for kind in PolicyKind::ALL {
        let Some(mut policy) = kind.build(100, 50.0) else { continue };
        for record in 0..10 {
            policy.inserted(record, Arrival::Demand);
        }
        for _ in 0..5 {
            (1..10).for_each(|r| policy.used(r, 1.0));
            policy.tick();
        }
        let mut gone = Vec::new();
        for record in 10..100 {
            policy.used(record, 0.0);
            let victim = policy.victim(&mut |_| true).expect("a record that may go");
            policy.removed(victim);
            policy.inserted(record, Arrival::Sweep);
            gone.push(victim);
        }
        let kept = (1..10).filter(|r| !gone.contains(r)).count();
        assert_eq!(kept, 9, "{kind}: {gone:?}");
    }
}

#[test]
fn names_are_parsed_and_others_refused() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    let error = "LRU-2".parse::<PolicyKind>().expect_err("no such policy").to_string();
    assert!(error.contains("LRU-2") && error.contains("s3-fifo"), "{error}");
}
