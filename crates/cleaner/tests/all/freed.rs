//! Where a segment was that a checkpoint frees: what is durable, and what recovery walks, stays until the super blocks and
//! the medium say otherwise.

use std::sync::Arc;

use crate::common;
use silt_cleaner::{Gatherer, Limits, Mover, Salvage, Whole};
use silt_device::{Event, MemoryDevice, Recorder};
use silt_engine::clean::Cleaning;
use silt_engine::mkfs::Parameters;
use silt_engine::{Error, OpenOptions, Volume};
use silt_format::{Ino, SegNr};
use silt_fs::{Context, Fs, FsError, Tree, WriteFlags};

const SIZE: u64 = 2 << 20;
/// Blocks of 1 KiB.
const SEGMENT: u32 = 16;

struct Story {
    device: Arc<Recorder<MemoryDevice>>,
    fs: Fs,
    random: u64,
    now: u64,
    /// All happens within a second.
    stands: bool,
}

impl Story {
    fn new(seed: u64) -> Self {
        let device = Arc::new(Recorder::new(MemoryDevice::new(SIZE)));
        let parameters =
            Parameters { block_size: 1024, blocks_per_segment: SEGMENT, ..Parameters::default() };
        let volume = common::volume(&device, parameters);
        let fs = Fs::new(volume, &silt_fs::Options::default());
        Story { device, fs, random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, now: 2000, stands: false }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// A checkpoint with some blocks written over. The super blocks stay as they are.
    fn write(&mut self) {
        self.now += u64::from(!self.stands);
        let ctx = Context { privileged: true, ..Context::default() };
        let name = format!("f{}", self.random(6));
        let ino = match self.fs.create(&ctx, Ino::ROOT, name.as_bytes(), 0o644) {
            Ok(made) => made.ino,
            Err(FsError::Exists) => self.fs.lookup(Tree::Live, Ino::ROOT, name.as_bytes()).unwrap().ino,
            Err(FsError::NoSpace) => return,
            Err(e) => panic!("{e}"),
        };
        for _ in 0..self.random(6) {
            let at = self.random(100) * 1024;
            match self.fs.write(&ctx, ino, at, &[self.random as u8; 1024], WriteFlags::default()) {
                Ok(_) | Err(FsError::NoSpace) => {}
                Err(e) => panic!("{e}"),
            }
        }
        match self.fs.sync_all(self.now) {
            Ok(_) | Err(FsError::NoSpace) => {}
            Err(e) => panic!("{e}"),
        }
    }

    /// All segments, in any order.
    fn order(&mut self) -> Vec<SegNr> {
        let mut order: Vec<SegNr> = (0..self.fs.volume().geometry().nsegments).map(SegNr).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, self.random(i as u64 + 1) as usize);
        }
        order
    }

    /// What would empty some segments.
    fn plan(&mut self) -> Cleaning {
        let order = self.order();
        let whole = Whole::new(self.fs.volume_mut(), self.now);
        whole.settle().unwrap();
        let keep = silt_cleaner::Access::with(&whole, |v| v.keep(None)).unwrap().unwrap();
        let limits = Limits { moves: 48, segments: 8, salvage: Salvage::No, ahead: false };
        Gatherer::new(keep, order, limits).next(&whole).unwrap().cleaning
    }

    /// Empties some segments in any order; those that were freed.
    fn clean(&mut self) -> Vec<SegNr> {
        self.now += u64::from(!self.stands);
        let order = self.order();
        let g = *self.fs.volume().geometry();
        let whole = Whole::new(self.fs.volume_mut(), self.now);
        let keep = silt_cleaner::Access::with(&whole, |v| v.keep(None)).unwrap().unwrap();
        let limits = Limits { moves: 48, segments: 8, salvage: Salvage::No, ahead: false };
        let plan = Gatherer::new(keep, order, limits).next(&whole).unwrap();
        let begun = plan.segments().to_vec();
        let state = |s: SegNr| {
            let info = silt_cleaner::Access::with(&whole, |v| v.segment_info(s).unwrap()).unwrap();
            (info.dirty, info.modified, info.blocks)
        };
        let victims: Vec<_> = begun.into_iter().map(|s| (s, state(s))).filter(|(_, s)| s.0).collect();
        let events = self.device.record().events().len();
        match whole.make(plan.cleaning) {
            Ok(_) => {}
            Err(Error::NoSpace | Error::Stale) => return Vec::new(),
            Err(e) => panic!("{e}"),
        }
        // Those that recovery may have to walk were looked at, and stay as they are.
        let freed: Vec<SegNr> =
            victims.into_iter().filter(|(s, before)| state(*s) != *before).map(|(s, _)| s).collect();
        for event in self.device.record().events().iter().skip(events) {
            let Event::Change(change) = event else { continue };
            for s in &freed {
                let (from, to) = (g.byte_of(g.segment_start(*s)), g.byte_of(g.segment_end(*s)));
                let apart = change.offset + change.len() <= from || change.offset >= to;
                assert!(apart, "segment {s} is written by the checkpoint that frees it");
            }
        }
        freed
    }

    /// After a power cut the newest checkpoint is found.
    fn recovers(&self) {
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let (volume, _) = Volume::open(Arc::new(self.device.inner().fork()), &options).unwrap();
        assert_eq!(volume.last_log().cno, self.fs.volume().last_log().cno);
    }
}

#[test]
fn nothing_is_written_where_the_past_is_still_needed() {
    let (mut freed, mut reused) = (0, 0);
    for seed in 1..13 {
        let mut story = Story::new(seed);
        for turn in 0..100 {
            for _ in 0..1 + story.random(4) {
                story.write();
                story.recovers();
            }
            let gone = story.clean();
            freed += gone.len();
            story.recovers();
            story.write();
            story.recovers();
            reused += gone.iter().filter(|s| story.fs.volume().segment_info(**s).unwrap().dirty).count();
            if turn % 20 == 19 {
                Whole::new(story.fs.volume_mut(), 0).settle().unwrap();
            }
        }
    }
    assert!(freed > 1_000 && reused > 0, "{freed} freed, {reused} written again at once");
}

/// Who cleans judges without the lock. Meanwhile another one may have emptied the same segments, and others have written
/// them full again, all within the second that the table of segments knows.
#[test]
fn what_two_cleaners_take_is_emptied_once() {
    let (mut made, mut stale) = (0, 0);
    for seed in 1..9 {
        let mut story = Story::new(seed);
        story.stands = true;
        for turn in 0..60 {
            (0..3).for_each(|_| story.write());
            let plan = story.plan();
            for _ in 0..6 {
                story.clean();
                (0..3).for_each(|_| story.write());
                Whole::new(story.fs.volume_mut(), story.now).settle().unwrap();
            }
            match Whole::new(story.fs.volume_mut(), story.now).make(plan) {
                Ok(_) => made += 1,
                Err(Error::Stale) => stale += 1,
                Err(Error::NoSpace) => {}
                Err(e) => panic!("{e}"),
            }
            story.write();
            let report = silt_verify::check(&story.device.inner().fork(), &silt_verify::Options::default());
            assert!(report.is_clean(), "seed {seed}, turn {turn}: {}", report.error_text());
        }
    }
    assert!(made > 0 && stale > 0, "{made} made, {stale} stale");
}
