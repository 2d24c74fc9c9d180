//! [`probe_drive`]: records of a model read in every way there is, for a few seconds.
//!
//! What is read is thrown away. Each way has its turn several times, so that a disturbance falls on all of them; records
//! are taken in random order and none twice until all have been, and what the page cache has of one is forgotten first.

use std::hash::{BuildHasher as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex, OnceLock, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use spinetail_checkpoint::{CheckpointError, read_config};
use spinetail_container::v1::V1;
use spinetail_container::{Container, ContainerError, DataFile, Kind, Reading, detect};
use spinetail_core::{DenseSource, Pages, ReadError, ReadMode, SlabError};
use spinetail_cpu::HostMemory;
use spinetail_cpu::probe::threads_given;

use super::DriveProfile;
use crate::machine::Machine;
use crate::memory::most_of;

/// Reads under way at once that are tried.
const DEPTHS: [usize; 5] = [1, 2, 4, 8, 12];

/// How files are read. A ring reads them as the first does, and what it saves is threads, of which a drive knows nothing.
const MODES: [ReadMode; 2] = [ReadMode::Direct, ReadMode::Buffered];

/// Memory is taken in each of them.
const PAGE_KINDS: u64 = Pages::ALL.len() as u64;

/// How often each way has its turn.
const ROUNDS: u32 = 2;

/// What a way has to be faster by, to be taken instead of the default.
const MARGIN: f64 = 1.1;

/// A model whose experts take less says too little of a drive to choose by: what is remembered counts for all on it.
const MIN_MODEL_BYTES: u64 = 256 << 20;

/// The least that one read takes. A profile is the drive's, for models of all sizes: reads of a small model's records say
/// more about waking threads than about the drive.
const MIN_READ_BYTES: u64 = 1 << 20;

/// Whether the system forgets parts of its page cache when asked: else buffered reads may come from memory.
const FORGETS: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// Why a drive could not be probed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// A checkpoint's records lie scattered.
    #[error("{} is not a container, so that there are no records to read; make one with `spinetail repack`", path.display())]
    NotAContainer {
        /// What was to be read.
        path: PathBuf,
    },
    /// The container cannot be opened.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// Its configuration cannot be read.
    #[error(transparent)]
    Config(#[from] CheckpointError),
    /// A record cannot be read.
    #[error("{0}; check the container with `spinetail verify`")]
    Read(#[from] ReadError),
    /// A record of each kind of pages does not fit what is free.
    #[error(
        "records of {} MiB cannot be read: that takes {} MiB of memory and {} MiB are free; end other programs, or raise the \
         limit of the control group", .read_bytes >> 20, (2 * .read_bytes).div_ceil(1 << 20), .free_bytes >> 20
    )]
    NoRoom {
        /// Bytes of one read.
        read_bytes: u64,
        /// Memory that may be taken.
        free_bytes: u64,
    },
    /// There is no memory to read into.
    #[error(transparent)]
    Memory(#[from] SlabError),
}

/// What keeps ways of reading from being tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// The system gives no more threads.
    Threads,
    /// There is no memory for more records.
    Memory,
}

/// What was measured, and what follows.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DriveProbe {
    /// Bytes of one read: a record and its padding, or as many small ones as make a mebibyte, where there are so many.
    pub read_bytes: u64,
    /// Records of a burst: those that a token needs of one layer.
    pub burst_records: usize,
    /// Whether the system refuses direct reads of these files.
    pub direct_refused: bool,
    /// Whether buffered reads can be chosen: not where they may have come from memory.
    pub buffered_counts: bool,
    /// Whether the model is too small to choose by, so that the default way is chosen.
    pub small_model: bool,
    /// The most reads at once that there were threads and memory for, where deeper ways could not be tried.
    pub most_depth: Option<(usize, Shortage)>,
    /// Every way that was tried, with its rates.
    pub trials: Vec<DriveProfile>,
    /// The way to read: the default one, unless another was faster by a tenth, twice.
    pub chosen: DriveProfile,
    /// The fastest way in bursts, where it was not chosen.
    pub runner_up: Option<RunnerUp>,
}

/// A way that was faster than the default one, but not by enough.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct RunnerUp {
    /// Which, with its rates.
    pub way: DriveProfile,
    /// Its rate by that of the default way.
    pub faster: f64,
    /// The same when both were measured anew, where that could have changed anything.
    pub again: Option<f64>,
}

/// Reads records of the container at `path` for about `time`, in every way there is.
///
/// Takes memory for two dozen records, or less where less is free. A drive on which a few reads take longer than a way's share makes it longer.
pub fn probe_drive(path: &Path, time: Duration) -> Result<DriveProbe, ProbeError> {
    let free_bytes = Machine::look().free_bytes().map_or(u64::MAX, most_of);
    probe_drive_within(path, time, free_bytes)
}

fn probe_drive_within(path: &Path, time: Duration, free_bytes: u64) -> Result<DriveProbe, ProbeError> {
    let records = Records::open(path, free_bytes)?;
    let wanted = DEPTHS.into_iter().max().unwrap_or(1);
    let (threads, room) = (threads_given(wanted), records.room(free_bytes));
    let depth = threads.min(room);
    if depth == 0 {
        return Err(ProbeError::NoRoom { read_bytes: records.read_bytes as u64, free_bytes });
    }
    let mut memories = Vec::new();
    for pages in Pages::ALL {
        memories.push((pages, HostMemory { pages }.region(records.read_bytes * depth)?));
    }
    let direct_refused = records.direct_refused();
    let modes = MODES.into_iter().filter(|&m| m == ReadMode::Buffered || !direct_refused);
    let mut trials: Vec<Trial> = modes
        .flat_map(|mode| Pages::ALL.map(|pages| DEPTHS.map(|depth| (mode, pages, depth))))
        .flatten()
        .filter(|way| way.2 <= depth)
        .map(|(mode, pages, depth)| Trial {
            profile: DriveProfile { mode, pages, depth, ..DriveProfile::default() },
            read: Sum::default(),
            burst: Sum::default(),
        })
        .collect();
    // A turn is one half reading and one half bursts; the last two are for the final and the default way again.
    let turn = time / (2 * ROUNDS * (trials.len() as u32 + 2));
    let mut take_turn = |trial: &mut Trial, turn| -> Result<(), ReadError> {
        let memory = memories.iter_mut().find(|m| m.0 == trial.profile.pages);
        let Some((_, memory)) = memory else { return Ok(()) };
        trial.read.add(records.read(&trial.profile, memory, None, turn)?);
        trial.burst.add(records.read(&trial.profile, memory, Some(records.burst), turn)?);
        Ok(())
    };
    for _ in 0..ROUNDS {
        for trial in &mut trials {
            take_turn(trial, turn)?;
        }
    }
    // A thread was had before and then refused: what was read by fewer is not to be taken for a depth.
    let threads = threads.min(records.most_threads.load(Relaxed));
    let depth = depth.min(threads);
    trials.retain(|t| t.profile.depth <= depth);
    let margin = if records.is_small { f64::INFINITY } else { MARGIN };
    let usual = DriveProfile::default();
    let (chosen, runner_up) = choose(usual, margin, &mut trials, |trial| take_turn(trial, ROUNDS * turn))?;
    let shortage = if threads < room { Shortage::Threads } else { Shortage::Memory };
    Ok(DriveProbe {
        read_bytes: records.read_bytes as u64,
        burst_records: records.burst,
        direct_refused: direct_refused || records.direct_refused(),
        buffered_counts: FORGETS,
        small_model: records.is_small,
        most_depth: (depth < wanted).then_some((depth, shortage)),
        trials: trials.iter().map(Trial::rated).collect(),
        chosen,
        runner_up,
    })
}

/// The default way, or the fastest if it is faster by the margin, now and when `again` has measured both anew: the best
/// of many is often the luckiest.
fn choose(
    usual: DriveProfile,
    margin: f64,
    trials: &mut [Trial],
    mut again: impl FnMut(&mut Trial) -> Result<(), ReadError>,
) -> Result<(DriveProfile, Option<RunnerUp>), ReadError> {
    // The default depth may not be among them: it is the processors', or the system refuses threads.
    let depth = trials.iter().map(|t| t.profile.depth).filter(|&d| d <= usual.depth).max();
    let is_usual = |t: &Trial| t.profile.pages == usual.pages && Some(t.profile.depth) == depth;
    // The first of them: direct, unless that is refused.
    let Some(default) = trials.iter().position(is_usual) else { return Ok((usual, None)) };
    let counts = |t: &Trial| t.profile.mode == ReadMode::Direct || FORGETS;
    let fastest = (0..trials.len())
        .filter(|&i| counts(&trials[i]))
        .fold(default, |best, i| if trials[i].burst.rate() > trials[best].burst.rate() { i } else { best });
    if fastest == default {
        return Ok((trials[default].rated(), None));
    }
    // The fastest has a rate above 0, and the default one may have none.
    let faster = |trials: &[Trial]| trials[fastest].burst.rate() / trials[default].burst.rate();
    let first = faster(trials);
    if first < margin || margin.is_infinite() {
        let runner_up = RunnerUp { way: trials[fastest].rated(), faster: first, again: None };
        return Ok((trials[default].rated(), Some(runner_up)));
    }
    let before = [default, fastest].map(|i| trials[i]);
    for i in [default, fastest] {
        (trials[i].read, trials[i].burst) = (Sum::default(), Sum::default());
        again(&mut trials[i])?;
    }
    let second = faster(trials);
    for (i, before) in [default, fastest].into_iter().zip(before) {
        trials[i].read.add(before.read);
        trials[i].burst.add(before.burst);
    }
    // Nothing was read of either: NaN.
    if second >= margin {
        return Ok((trials[fastest].rated(), None));
    }
    let again = Some(if second.is_nan() { 1.0 } else { second });
    let runner_up = RunnerUp { way: trials[fastest].rated(), faster: first, again };
    Ok((trials[default].rated(), Some(runner_up)))
}

/// Bytes read in some time.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    bytes: u64,
    seconds: f64,
}

impl Sum {
    fn add(&mut self, o: Self) {
        self.bytes += o.bytes;
        self.seconds += o.seconds;
    }

    fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 / self.seconds } else { 0.0 }
    }
}

/// A way to read, and how it went so far.
#[derive(Debug, Clone, Copy)]
struct Trial {
    profile: DriveProfile,
    read: Sum,
    burst: Sum,
}

impl Trial {
    fn rated(&self) -> DriveProfile {
        DriveProfile {
            read_bytes_per_s: self.read.rate(),
            burst_bytes_per_s: self.burst.rate(),
            ..self.profile
        }
    }
}

/// Records of a model on its drive.
struct Records {
    /// By mode, as [`MODES`].
    files: [Vec<DataFile>; 2],
    direct: Arc<Reading>,
    read_bytes: usize,
    burst: usize,
    /// File and offset, in random order.
    order: Vec<(usize, u64)>,
    next: AtomicUsize,
    /// The fewest threads with which a turn had to do though it wanted more.
    /// Whether all records together are too few to choose by.
    is_small: bool,
    most_threads: AtomicUsize,
}

impl Records {
    /// Reads are to be such that many fit `free_bytes`, where records are small.
    fn open(path: &Path, free_bytes: u64) -> Result<Self, ProbeError> {
        let (paths, stride, experts, burst) = match detect(path)? {
            Some(Kind::V2) => {
                let c = Container::open(path)?;
                let first = c.record_files().first().map_or(0, |f| f.stride_bytes);
                let alike = c.record_files().iter().filter(|f| f.stride_bytes == first);
                let moe = &c.config().moe;
                (alike.map(|f| f.path.clone()).collect::<Vec<_>>(), first, moe.experts, moe.top_k)
            }
            Some(Kind::V1) => {
                let c = V1::open(path)?;
                let moe = read_config(&path.join("config.json"))?.moe;
                (c.record_paths().map(Path::to_owned).collect(), c.stride_bytes(), moe.experts, moe.top_k)
            }
            _ => return Err(ProbeError::NotAContainer { path: path.to_owned() }),
        };
        if paths.is_empty() || stride == 0 || experts == 0 {
            return Err(ProbeError::NotAContainer { path: path.to_owned() });
        }
        let readings = MODES.map(|mode| Arc::new(Reading::new(mode)));
        let open = |reading: &Arc<Reading>| -> Result<Vec<DataFile>, ContainerError> {
            paths.iter().map(|p| DataFile::open(p, reading).inspect(DataFile::expect_random_reads)).collect()
        };
        let most = (free_bytes / (PAGE_KINDS * DEPTHS[DEPTHS.len() - 1] as u64)).max(stride);
        let at_once = MIN_READ_BYTES.div_ceil(stride).min(experts as u64).min(most / stride);
        let read_bytes = at_once * stride;
        let reads = experts as u64 / at_once;
        let mut order: Vec<_> =
            (0..paths.len()).flat_map(|f| (0..reads).map(move |i| (f, i * read_bytes))).collect();
        shuffle(&mut order);
        Ok(Self {
            files: [open(&readings[0])?, open(&readings[1])?],
            direct: Arc::clone(&readings[0]),
            read_bytes: read_bytes as usize,
            burst: burst.max(1),
            order,
            next: AtomicUsize::new(0),
            most_threads: AtomicUsize::new(usize::MAX),
            is_small: (paths.len() * experts) as u64 * stride < MIN_MODEL_BYTES,
        })
    }

    /// How many reads at once `free_bytes` of memory are enough for.
    fn room(&self, free_bytes: u64) -> usize {
        usize::try_from(free_bytes / (PAGE_KINDS * self.read_bytes as u64)).unwrap_or(usize::MAX)
    }

    fn direct_refused(&self) -> bool {
        self.direct.mode() == ReadMode::Buffered
    }

    /// Reads one record, or some small ones, in one way.
    fn read_next(&self, mode: ReadMode, out: &mut [u8]) -> Result<(), ReadError> {
        let (file, offset) = self.order[self.next.fetch_add(1, Relaxed) % self.order.len()];
        let file = &self.files[usize::from(mode == ReadMode::Buffered)][file];
        if mode == ReadMode::Buffered {
            file.forget_cached(offset, self.read_bytes as u64);
        }
        file.read(offset, out)
    }

    /// Reads for `time` with as many threads as the depth says, each into its own part of `memory`: one record after
    /// another, or `burst` of them at a time, all awaited before the next are asked for.
    fn read(
        &self,
        way: &DriveProfile,
        memory: &mut [u8],
        burst: Option<usize>,
        time: Duration,
    ) -> Result<Sum, ReadError> {
        let turn = Turn {
            barrier: OnceLock::new(),
            claimed: AtomicUsize::new(0),
            read: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            over: AtomicBool::new(false),
            error: Mutex::new(None),
        };
        let start = Instant::now();
        let work = |out: &mut [u8]| {
            let barrier = turn.barrier.wait();
            loop {
                let in_time = || burst.is_some() || start.elapsed() < time;
                while turn.claimed.fetch_add(1, Relaxed) < burst.unwrap_or(usize::MAX) && in_time() {
                    if let Err(e) = self.read_next(way.mode, out) {
                        *turn.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
                        turn.failed.store(true, Relaxed);
                        break;
                    }
                    turn.read.fetch_add(1, Relaxed);
                }
                if turn.is_over(barrier, start, time) {
                    break;
                }
            }
        };
        std::thread::scope(|s| {
            let mut parts = memory.chunks_mut(self.read_bytes).take(way.depth);
            let own = parts.next();
            let mut started = usize::from(own.is_some());
            for out in parts {
                if Builder::new().spawn_scoped(s, || work(out)).is_err() {
                    self.most_threads.fetch_min(started, Relaxed);
                    break;
                }
                started += 1;
            }
            turn.barrier.get_or_init(|| Barrier::new(started));
            own.into_iter().for_each(work);
        });
        let seconds = start.elapsed().as_secs_f64();
        match turn.error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(e) => Err(e),
            None => Ok(Sum { bytes: (turn.read.into_inner() * self.read_bytes) as u64, seconds }),
        }
    }
}

/// What the threads of one turn share.
struct Turn {
    /// Of as many threads as the system gave, once that is known: the others would wait for one too few for ever.
    barrier: OnceLock<Barrier>,
    /// Records of the burst at hand that have been taken on.
    claimed: AtomicUsize,
    read: AtomicUsize,
    failed: AtomicBool,
    over: AtomicBool,
    error: Mutex<Option<ReadError>>,
}

impl Turn {
    /// Waits until all threads have ended the burst; whether it was the last.
    fn is_over(&self, barrier: &Barrier, start: Instant, time: Duration) -> bool {
        // One of the threads decides for all, while the others wait to hear it.
        if barrier.wait().is_leader() {
            self.claimed.store(0, Relaxed);
            self.over.store(self.failed.load(Relaxed) || start.elapsed() >= time, Relaxed);
        }
        barrier.wait();
        self.over.load(Relaxed)
    }
}

/// A different order each time: a cache below us may remember the last one.
fn shuffle<T>(items: &mut [T]) {
    let mut state = std::hash::RandomState::new().build_hasher().finish();
    for i in (1..items.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(i, (state >> 33) as usize % (i + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(depth: usize, mode: ReadMode, bytes: u64) -> Trial {
        let profile = DriveProfile { mode, depth, ..DriveProfile::default() };
        Trial { profile, read: Sum::default(), burst: Sum { bytes, seconds: 1.0 } }
    }

    fn chosen(trials: &[Trial], again: &[u64]) -> (usize, Option<(usize, f64, Option<f64>)>) {
        let usual = DriveProfile { depth: 8, ..DriveProfile::default() };
        let mut again = again.iter();
        let measure = |t: &mut Trial| {
            t.burst = Sum { bytes: *again.next().unwrap(), seconds: 1.0 };
            Ok(())
        };
        let (chosen, runner_up) = choose(usual, MARGIN, &mut trials.to_vec(), measure).unwrap();
        (chosen.depth, runner_up.map(|r| (r.way.depth, r.faster, r.again)))
    }

    #[test]
    fn the_default_stays_unless_another_is_faster_twice() {
        use ReadMode::{Buffered, Direct};
        let default = trial(8, Direct, 1000);
        assert_eq!(chosen(&[trial(4, Direct, 1090), default], &[]), (8, Some((4, 1.09, None))));
        assert_eq!(chosen(&[trial(4, Direct, 1200), default], &[1000, 1200]), (4, None));
        assert_eq!(
            chosen(&[trial(4, Direct, 1200), default], &[1000, 1050]),
            (8, Some((4, 1.2, Some(1.05))))
        );
        assert_eq!(chosen(&[default, trial(1, Direct, 900)], &[]), (8, None));
        assert_eq!(chosen(&[trial(4, Direct, 5), trial(8, Direct, 0)], &[0, 0]).0, 8);
        // Where there are not as many threads as the default wants.
        assert_eq!(chosen(&[trial(1, Direct, 100), trial(4, Direct, 95)], &[]).0, 4);
        // Direct reads are refused.
        assert_eq!(chosen(&[trial(4, Buffered, 500), trial(8, Buffered, 500)], &[]), (8, None));
        assert_eq!(chosen(&[trial(4, Direct, 0), trial(8, Direct, 0)], &[]), (8, None));
    }

    #[test]
    fn shuffling_keeps_everything() {
        let mut items: Vec<u32> = (0..1000).collect();
        shuffle(&mut items);
        assert!(items.windows(2).any(|w| w[0] > w[1]));
        items.sort_unstable();
        assert_eq!(items, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn the_shipped_model_can_be_read_in_every_way() {
        let pip = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pip.qpack");
        let probe = probe_drive(&pip, Duration::from_millis(200)).unwrap();
        let ways = if probe.direct_refused { 10 } else { 20 };
        assert_eq!(probe.trials.len(), ways);
        // It is a small one, and whatever was fastest is no reason to read others so.
        assert!(probe.small_model && probe.chosen.pages == DriveProfile::default().pages, "{probe:?}");
        assert!(probe.chosen.depth <= DriveProfile::default().depth, "{probe:?}");
        assert!(
            probe.trials.iter().all(|t| t.read_bytes_per_s > 0.0 && t.burst_bytes_per_s > 0.0),
            "{probe:?}"
        );
        assert!(
            probe.chosen.burst_bytes_per_s > 0.0
                && probe.read_bytes >= MIN_READ_BYTES
                && probe.burst_records > 0
        );
        let folder = tempfile::tempdir().unwrap();
        // Four reads at once of a mebibyte, in both kinds of pages; then smaller ones; then none.
        let within = |bytes: u64| probe_drive_within(&pip, Duration::from_millis(50), bytes);
        let stride = Container::open(&pip).unwrap().record_files()[0].stride_bytes;
        let small = within(8 * stride).unwrap();
        assert_eq!((small.read_bytes, small.most_depth), (stride, Some((4, Shortage::Memory))));
        let usual = DEPTHS.into_iter().filter(|&d| d <= DriveProfile::default().depth.min(4)).max();
        assert!(small.trials.iter().all(|t| t.depth <= 4) && Some(small.chosen.depth) == usual, "{small:?}");
        assert!(matches!(within(2 * stride - 1), Err(ProbeError::NoRoom { .. })));
        assert!(matches!(probe_drive(folder.path(), Duration::ZERO), Err(ProbeError::NotAContainer { .. })));
    }
}
