//! Images on hosts that fill up: what was promised is written, deleting and cleaning go on, and the volume is found again.

use std::collections::BTreeMap;
use std::sync::Arc;

use silt_cleaner::{Options, Policy, Whole, run};
use silt_device::{Device, Hosted, MemoryDevice};
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Volume};
use silt_format::Ino;
use silt_fs::{Context, Fs, FsError, Tree, WriteFlags};

const SEGMENTS: u64 = 96;
const BLOCKS: u64 = 32;

struct Story {
    device: Arc<Hosted>,
    block: u64,
    fs: Option<Fs>,
    files: BTreeMap<String, (Ino, BTreeMap<u64, u8>)>,
    random: u64,
    now: u64,
    seen: Seen,
}

/// What the stories came across.
#[derive(Debug, Default)]
struct Seen {
    refused: u64,
    removed: u64,
    freed: u64,
    opened: u64,
    cut: u64,
}

impl Story {
    fn new(seed: u64, block: u64, copies: bool) -> Self {
        let segment = block * BLOCKS;
        let image = MemoryDevice::new(segment * (SEGMENTS + 1));
        let parameters = Parameters {
            block_size: block as u32,
            blocks_per_segment: BLOCKS as u32,
            now: 1000,
            ..Parameters::default()
        };
        Plan::new(parameters, image.len()).unwrap().write(&image, false).unwrap();
        let left = segment * 60;
        let device = Arc::new(if copies { Hosted::copying(image, left) } else { Hosted::new(image, left) });
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut story = Story {
            device,
            block,
            fs: None,
            files: BTreeMap::new(),
            random,
            now: 2000,
            seen: Seen::default(),
        };
        story.open();
        story
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn fs(&mut self) -> &mut Fs {
        self.fs.as_mut().unwrap()
    }

    fn open(&mut self) {
        self.now += 1;
        let options =
            OpenOptions { backed: true, now: self.now, seed: self.random, ..OpenOptions::default() };
        let (mut volume, _) = Volume::open(self.device.clone(), &options).unwrap();
        volume.take_over(self.now).unwrap();
        self.fs = Some(Fs::new(volume, &silt_fs::Options::default()));
        for (name, (ino, _)) in &mut self.files {
            let found = self.fs.as_mut().unwrap().lookup(Tree::Live, Ino::ROOT, name.as_bytes()).unwrap();
            *ino = found.ino;
        }
        let device = self.device.clone();
        let v = self.fs().volume_mut();
        let (found, rest) = Volume::with_data(&*device, v.geometry(), 0);
        assert!(rest.is_none());
        v.told_of_data(&found).unwrap();
        self.look();
        assert!(self.fs().volume().counts_backed_only());
    }

    /// What the daemon does once a second.
    fn look(&mut self) {
        let (device, segment) = (self.device.clone(), self.block * BLOCKS);
        let v = self.fs().volume_mut();
        let target = v.backing_for(16);
        let mut full = false;
        while !full {
            let new = (device.backing_free().unwrap() / segment).saturating_sub(1);
            let Some(next) = v.next_backing(target, new).unwrap() else {
                full = v.backed_segments() < target;
                break;
            };
            let mut parts = vec![next.clone()];
            if next.is_renewed {
                let (discard, of) = v.begin_renewal(&next).unwrap();
                discard.run(&*device).unwrap();
                v.end_discard(discard);
                parts = of;
            }
            for part in parts {
                let asked = part.ask(&*device);
                full |= part.is_new && asked.is_err();
                v.told_of_backing(&part, asked.ok()).unwrap();
            }
        }
        v.judge_backing(true, full, target);
    }

    fn sync(&mut self) {
        self.now += 1;
        let now = self.now;
        // An error of the device is what must not be.
        self.fs().sync_all(now).unwrap();
        self.fs().volume_mut().freed_are_durable();
    }

    fn write(&mut self) {
        let ctx = Context { privileged: true, ..Context::default() };
        let block = self.block;
        let name = format!("f{}", self.random(8));
        if !self.files.contains_key(&name) {
            match self.fs().create(&ctx, Ino::ROOT, name.as_bytes(), 0o644) {
                Ok(made) => drop(self.files.insert(name.clone(), (made.ino, BTreeMap::new()))),
                Err(FsError::NoSpace) => {
                    self.seen.refused += 1;
                    return;
                }
                Err(e) => panic!("{e}"),
            }
        }
        for _ in 0..self.random(40) {
            let (at, with) = (self.random(200), self.random(255) as u8 + 1);
            let ino = self.files[&name].0;
            let written =
                self.fs().write(&ctx, ino, at * block, &vec![with; block as usize], WriteFlags::default());
            match written {
                Ok(_) => drop(self.files.get_mut(&name).unwrap().1.insert(at, with)),
                Err(FsError::NoSpace) => {
                    self.seen.refused += 1;
                    return;
                }
                Err(e) => panic!("{e}"),
            }
        }
    }

    /// Nobody is ever refused that.
    fn remove(&mut self) {
        let n = self.random(self.files.len().max(1) as u64) as usize;
        let Some(name) = self.files.keys().nth(n).cloned() else { return };
        let ctx = Context { privileged: true, ..Context::default() };
        match self.fs().unlink(&ctx, Ino::ROOT, name.as_bytes()) {
            Ok(_) => {}
            // What waits comes first.
            Err(FsError::NoSpace) => {
                self.sync();
                self.clean();
                self.fs().unlink(&ctx, Ino::ROOT, name.as_bytes()).unwrap();
            }
            Err(e) => panic!("{e}"),
        }
        let (ino, _) = self.files.remove(&name).unwrap();
        let _ = self.fs().forget(ino, u64::MAX);
        self.seen.removed += 1;
    }

    fn clean(&mut self) {
        self.now += 1;
        let now = self.now;
        let policy = [Policy::Greedy, Policy::Oldest][self.random(2) as usize];
        let volume = self.fs().volume_mut();
        let options = Options { policy, now, ..Options::default() };
        let outcome = run(&Whole::new(volume, now), &options, |_| true).unwrap();
        volume.freed_are_durable();
        self.seen.freed += outcome.cleaned.segments;
    }

    /// Others write to the host, or remove something; as a rule they take all there is.
    fn others(&mut self) {
        let left = if self.random(3) > 0 { 0 } else { self.random(12) * self.block * BLOCKS / 2 };
        self.device.set_left(left);
    }

    fn compare(&mut self) {
        let block = self.block;
        for (name, (ino, blocks)) in self.files.clone() {
            let fs = self.fs();
            for at in 0..200 {
                let bytes = fs.read(Tree::Live, ino, at * block, block as usize).unwrap();
                let with = blocks.get(&at).copied().unwrap_or(0);
                assert!(bytes.iter().all(|b| *b == with), "{name}, block {at}");
            }
        }
    }

    fn again(&mut self, cut: bool) {
        self.sync();
        // So that the segments which the log is in are whole; after a mount the daemon does that, too.
        self.look();
        let mut volume = self.fs.take().unwrap().into_volume();
        if !cut {
            self.now += 1;
            volume.close(self.now).unwrap();
        }
        drop(volume);
        self.others();
        self.open();
        *(if cut { &mut self.seen.cut } else { &mut self.seen.opened }) += 1;
    }
}

fn tell(seeds: std::ops::Range<u64>, block: u64, copies: bool) -> Vec<Seen> {
    let all = seeds.map(|seed| {
        let mut story = Story::new(seed, block, copies);
        for turn in 0..120 {
            match story.random(10) {
                0..=3 => story.write(),
                4 => story.remove(),
                5 => story.clean(),
                6 => story.look(),
                7 => story.others(),
                8 => story.sync(),
                _ => {
                    let cut = story.random(2) == 0;
                    story.again(cut);
                }
            }
            if turn % 20 == 19 {
                story.compare();
            }
        }
        // With nothing left on the host all can be removed, and then written anew.
        story.device.set_left(0);
        while !story.files.is_empty() {
            story.remove();
        }
        story.sync();
        (0..3).for_each(|_| story.clean());
        let ctx = Context { privileged: true, ..Context::default() };
        let made = story.fs().create(&ctx, Ino::ROOT, b"new", 0o644);
        let ino = made.unwrap_or_else(|e| panic!("seed {seed}: after all was removed: {e}")).ino;
        story.fs().write(&ctx, ino, 0, b"new", WriteFlags::default()).unwrap();
        story.sync();
        story.compare();
        let report = silt_verify::check(&story.device.image().fork(), &silt_verify::Options::default());
        assert!(report.is_clean(), "seed {seed}: {}", report.error_text());
        story.seen
    });
    all.collect()
}

#[test]
fn what_was_promised_is_written_on_hosts_that_fill_up() {
    // What two logs share is written elsewhere as a whole, there nothing is promised.
    for (block, copies) in [(1024, false), (4096, false), (4096, true)] {
        let all = tell(1..60, block, copies);
        let sum = |of: fn(&Seen) -> u64| all.iter().map(of).sum::<u64>();
        let counts =
            [sum(|s| s.refused), sum(|s| s.removed), sum(|s| s.freed), sum(|s| s.opened), sum(|s| s.cut)];
        assert!(counts.iter().all(|n| *n > 50), "{block} {copies}: {counts:?}");
    }
}
