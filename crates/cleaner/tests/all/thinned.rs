//! Cleaning that keeps single moments: every one that is kept stays what it was, with the least wish as with the floor.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use silt_cleaner::{Access, History, Mover, Options, Whole, pass, preview, run};
use silt_device::MemoryDevice;
use silt_engine::clean::{Cleaned, Cleaning};
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{Error, OpenOptions, Result, Time, Tree, Volume};
use silt_format::{Cno, Ino};
use silt_fs::{Context, Fs, WriteFlags};
use silt_retention::{Clock, Ladder, Wish};

/// Of each file its size and what is in it.
type State = BTreeMap<String, (u64, u64)>;

struct Story {
    fs: Fs,
    device: Arc<MemoryDevice>,
    now: u64,
    state: State,
    /// The tree of each checkpoint made.
    made: BTreeMap<u64, State>,
    random: u64,
}

fn content(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|i| (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(i / 3) >> 5) as u8).collect()
}

impl Story {
    fn new(seed: u64) -> Self {
        const SIZE: u64 = 48 << 20;
        let device = Arc::new(MemoryDevice::new(SIZE));
        let parameters = Parameters {
            block_size: 1024,
            blocks_per_segment: 128,
            uuid: [7; 16],
            crc_seed: 77,
            now: 1_000,
            ..Parameters::default()
        };
        Plan::new(parameters, SIZE).unwrap().write(&*device, false).unwrap();
        let options = OpenOptions { now: 2_000, ..Default::default() };
        let (mut volume, _) = Volume::open(device.clone(), &options).unwrap();
        volume.take_over(2_000).unwrap();
        let fs = Fs::new(volume, &silt_fs::Options::default());
        Story { fs, device, now: 1_000_000, state: State::new(), made: BTreeMap::new(), random: seed + 1 }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// Writes one of a few files anew and makes a checkpoint, some time later.
    fn turn(&mut self) {
        self.now += if self.random(10) == 0 { self.random(20_000) } else { self.random(60) };
        let now = Time { secs: self.now.cast_signed(), nanos: 0 };
        let ctx = Context { now, privileged: true, ..Context::default() };
        let name = format!("f{}", self.random(6));
        if self.state.remove(&name).is_some() {
            self.fs.unlink(&ctx, Ino::ROOT, name.as_bytes()).unwrap();
        }
        let (seed, len) = (self.random(u64::MAX), self.random(120_000));
        let file = self.fs.create(&ctx, Ino::ROOT, name.as_bytes(), 0o644).unwrap();
        self.fs.write(&ctx, file.ino, 0, &content(seed, len), WriteFlags::default()).unwrap();
        self.state.insert(name, (seed, len));
        let cno = self.fs.sync_all(self.now).unwrap();
        self.made.insert(cno, self.state.clone());
    }

    fn exists(&self, c: u64) -> bool {
        self.fs.volume().checkpoint_info(Cno(c)).is_ok()
    }

    /// A moment is what it was.
    fn compare(&mut self, c: u64) {
        let state = self.made.get(&c).unwrap().clone();
        self.fs.volume_mut().open_view(Cno(c)).unwrap();
        for (name, (seed, len)) in state {
            let file = self.fs.lookup(Tree::Past(c), Ino::ROOT, name.as_bytes()).unwrap();
            let found = self.fs.read(Tree::Past(c), file.ino, 0, 200_000).unwrap();
            assert!(found == content(seed, len), "{name} of checkpoint {c}");
        }
        self.fs.volume_mut().close_view(Cno(c));
    }

    fn sound(&self) {
        let report = silt_verify::check(&*self.device, &silt_verify::Options::default());
        let errors: Vec<String> = report.errors().map(|f| format!("{f:?}")).collect();
        assert!(errors.is_empty(), "{errors:#?}");
        let device: Arc<dyn silt_device::Device> = self.device.clone();
        let wrong = silt_cleaner::agree::at_rest(&device, self.now);
        assert!(wrong.is_empty(), "the account: {wrong:#?}");
    }
}

#[test]
fn what_is_kept_stays_what_it_was() {
    let wish: Wish =
        "all for 10 minutes, one every 5 minutes for 3 hours, one an hour for 1 day".parse().unwrap();
    let floor: Wish = "one every 2 hours for ever".parse().unwrap();
    let ladder = Ladder::new(&wish, &floor);
    for seed in 0..4 {
        let mut story = Story::new(seed);
        let (mut given_up, mut compared) = (0, 0);
        for _ in 0..8 {
            (0..40).for_each(|_| story.turn());
            let step = story.random(ladder.steps().len() as u64) as usize;
            let now = story.now;
            let whole = Whole::new(story.fs.volume_mut(), now);
            let history = History::read(&whole).unwrap();
            let kept = ladder.kept(step, &history.points, &Clock::at(now));
            let said = preview(&whole, &history, &kept).unwrap();
            let mut options = Options { now, ..Options::default() };
            history.keep(&kept, &mut options);
            let outcome = run(&whole, &options, |_| true).unwrap();
            assert!(outcome.cleaned.checkpoints <= said.gone, "{outcome:?} {said:?}");
            given_up += outcome.cleaned.checkpoints;
            for c in kept {
                if story.made.contains_key(&c) {
                    story.compare(c);
                    compared += 1;
                }
            }
            // What still exists of the others can be read as well.
            let others: Vec<u64> = story.made.keys().copied().filter(|c| story.exists(*c)).collect();
            others.into_iter().for_each(|c| story.compare(c));
            story.sound();
        }
        assert!(given_up > 100 && compared > 50, "seed {seed}: {given_up} given up, {compared} compared");
    }
}

/// Makes a moment a snapshot just before the first cleaning begins that would take it.
struct Meddler<'a> {
    whole: Whole<'a>,
    doomed: Cell<Option<u64>>,
    stale: Cell<bool>,
}

impl Access for Meddler<'_> {
    fn with<R>(&self, f: impl FnOnce(&mut Volume) -> R) -> Result<R> {
        self.whole.with(f)
    }
}

impl Mover for Meddler<'_> {
    fn make(&self, cleaning: Cleaning) -> Result<Cleaned> {
        if let Some(c) = self.doomed.take() {
            self.whole.with(|v| v.make_snapshot(Cno(c)))??;
        }
        let made = self.whole.make(cleaning);
        self.stale.set(self.stale.get() || matches!(made, Err(Error::Stale)));
        made
    }

    fn settle(&self) -> Result<()> {
        self.whole.settle()
    }
}

#[test]
fn a_moment_that_becomes_a_snapshot_meanwhile_stays() {
    let mut story = Story::new(9);
    (0..60).for_each(|_| story.turn());
    let doomed = *story.made.keys().nth(20).unwrap();
    let now = story.now;
    let whole = Whole::new(story.fs.volume_mut(), now);
    let history = History::read(&whole).unwrap();
    let kept: Vec<u64> =
        history.points.iter().map(|p| p.number).filter(|n| n % 7 == 0 && *n != doomed).collect();
    let mut options = Options { now, ..Options::default() };
    history.keep(&kept, &mut options);
    let meddler = Meddler { whole, doomed: Cell::new(Some(doomed)), stale: Cell::new(false) };
    run(&meddler, &options, |_| true).unwrap();
    assert!(meddler.stale.get(), "the plan that would take it is refused");
    // The next one knows.
    let outcome = run(&meddler, &options, |_| true).unwrap();
    assert!(outcome.cleaned.checkpoints > 20, "{outcome:?}");
    story.compare(doomed);
    kept.into_iter()
        .filter(|c| story.made.contains_key(c))
        .collect::<Vec<_>>()
        .into_iter()
        .for_each(|c| story.compare(c));
    story.sound();
}

/// Counts how often what waits is written before a pass.
struct Settled<'a> {
    whole: Whole<'a>,
    times: Cell<u32>,
}

impl Access for Settled<'_> {
    fn with<R>(&self, f: impl FnOnce(&mut Volume) -> R) -> Result<R> {
        self.whole.with(f)
    }
}

impl Mover for Settled<'_> {
    fn make(&self, cleaning: Cleaning) -> Result<Cleaned> {
        self.whole.make(cleaning)
    }

    fn settle(&self) -> Result<()> {
        self.times.set(self.times.get() + 1);
        self.whole.settle()
    }
}

/// Who is felt writes nothing before a pass, but where recovery would walk so much that little is left to choose from.
#[test]
fn what_waits_is_written_before_a_pass_only_where_that_pays() {
    let mut story = Story::new(4);
    let times = |story: &mut Story, settle: bool| {
        let now = story.now;
        let settled = Settled { whole: Whole::new(story.fs.volume_mut(), now), times: Cell::new(0) };
        // Ends where it begins: no segment may be taken.
        pass(&settled, &Options { now, settle, range: 0..0, ..Options::default() }, |_, _| true).unwrap();
        settled.times.get()
    };
    (0..20).for_each(|_| story.turn());
    assert_eq!(times(&mut story, true), 1);
    assert_eq!(times(&mut story, false), 0, "nothing to walk");
    let (mut turns, mut asked) = (0, 0);
    while asked == 0 {
        story.turn();
        turns += 1;
        assert!(turns < 2000, "it is never written");
        asked = times(&mut story, false);
    }
    assert_eq!((times(&mut story, false), turns > 1), (0, true));
}
