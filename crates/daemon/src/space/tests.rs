//! Who is refused space, and when it is looked for more.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use silt_device::MemoryDevice;
use silt_engine::OpenOptions;
use silt_engine::mkfs::{Parameters, Plan};
use silt_format::Ino;
use silt_fs::{Context, Fs, WriteFlags};

use super::*;

const SIZE: u64 = 64 << 20;

/// A volume of 256 segments, without a cleaner.
fn mounted() -> Fs {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let parameters = Parameters { blocks_per_segment: 64, now: 1000, ..Parameters::default() };
    Plan::new(parameters, SIZE).unwrap().write(&*device, false).unwrap();
    let (mut volume, _) = Volume::open(device, &OpenOptions::default()).unwrap();
    volume.take_over(2000).unwrap();
    Fs::new(volume, &silt_fs::Options::default())
}

/// What was kept from use for a smaller size may be there again soon.
#[test]
fn nobody_is_refused_space_while_the_end_is_emptied() {
    let mut fs = mounted();
    let (space, blocks) = (Space::default(), 4096);
    assert!(!space.may_come(fs.volume(), blocks));
    fs.volume_mut().confine(Some(40)).unwrap();
    assert!(fs.volume().check_space(blocks).is_err() && space.may_come(fs.volume(), blocks));
    assert!(!space.may_come(fs.volume(), 1));
    fs.volume_mut().confine(None).unwrap();
    assert!(!space.may_come(fs.volume(), blocks));
    // More than it has in any size.
    assert!(!space.may_come(fs.volume(), SIZE >> 12));
}

/// What was admitted to the whole volume has its room until it is written.
#[test]
fn nothing_that_waits_loses_its_room() {
    let mut fs = mounted();
    let ctx = Context { privileged: true, ..Context::default() };
    let file = fs.create(&ctx, Ino::ROOT, b"f", 0o644).unwrap().ino;
    fs.write(&ctx, file, 0, &vec![7; 8 << 20], WriteFlags::default()).unwrap();
    let blocks = 4096;
    let refused = fs.volume_mut().confine(Some(20));
    assert!(matches!(refused, Err(silt_engine::Error::Constructing)), "{refused:?}");
    assert!(!fs.volume().is_confined() && fs.volume().check_space(blocks).is_ok());
    fs.sync_all(3000).unwrap();
    fs.volume_mut().confine(Some(70)).unwrap();
    assert!(fs.volume().check_space(blocks).is_err());
    // It can be lifted whatever is under way.
    fs.write(&ctx, file, 0, b"8", WriteFlags::default()).unwrap();
    fs.volume_mut().begin_checkpoint(3000).unwrap();
    fs.volume_mut().confine(None).unwrap();
    fs.volume_mut().finish_construction(3000).unwrap();
    assert!(fs.volume().check_space(blocks).is_ok());
}

/// What the removals before it rewrote may be all that is missing.
#[test]
fn a_removal_is_refused_only_after_a_pass_over_what_is_there() {
    let mut fs = mounted();
    let ctx = Context { privileged: true, ..Context::default() };
    for name in [b"a", b"b", b"c"] {
        fs.create(&ctx, Ino::ROOT, name, 0o644).unwrap();
    }
    fs.sync_all(3000).unwrap();
    let space = Space::default();
    assert!(!space.may_help(fs.volume(), 0), "nobody cleans");
    space.enable(true);
    let found_nothing = |fs: &Fs| {
        let v = fs.volume();
        let hour = Duration::from_secs(3600);
        space.ran(None, Some((v.given_up(), v.rewritten_blocks(), hour)));
    };
    assert!(!space.may_help(fs.volume(), 0), "nothing is short");
    // As much is kept from use as makes it so.
    let mut sizes = (2..20).rev();
    let size = sizes.find(|n| fs.volume_mut().confine(Some(*n)).is_ok() && fs.volume().is_short());
    assert!(space.may_help(fs.volume(), 0));
    found_nothing(&fs);
    assert!(!space.may_help(fs.volume(), 0));
    fs.unlink(&ctx, Ino::ROOT, b"a").unwrap();
    assert!(space.may_help(fs.volume(), 0), "something was given up");
    found_nothing(&fs);
    assert!(space.may_help(fs.volume(), 0), "what waits may give some");
    fs.sync_all(3000).unwrap();
    assert!(space.may_help(fs.volume(), 0), "something was rewritten");
    found_nothing(&fs);
    assert!(!space.may_help(fs.volume(), 0));
    // What a pass found while the end was kept from use says nothing of what it finds now.
    let size = size.unwrap();
    fs.volume_mut().confine(Some(size - 1)).unwrap();
    assert!(!space.may_help(fs.volume(), 0), "that is less");
    fs.volume_mut().confine(Some(size)).unwrap();
    assert!(fs.volume().is_short() && space.may_help(fs.volume(), 0));
    found_nothing(&fs);
    assert!(!space.may_help(fs.volume(), 0));
    // Who takes space is refused once nothing was given up since, even if what may come of that is believed for a while.
    assert!(!space.may_help(fs.volume(), 3));
    fs.unlink(&ctx, Ino::ROOT, b"b").unwrap();
    assert!(space.may_help(fs.volume(), 3));
    assert!(space.may_help(fs.volume(), 3), "nothing is known any more");
    found_nothing(&fs);
    fs.sync_all(3000).unwrap();
    assert!(!space.may_help(fs.volume(), 3));
    space.think_again();
    assert!(space.may_help(fs.volume(), 0));
    space.stop();
    assert!(!space.may_help(fs.volume(), 0));
}

/// What a floor by time kept is kept for so long only.
#[test]
fn that_nothing_can_be_gained_is_believed_until_less_is_kept() {
    let mut fs = mounted();
    let space = Space::default();
    space.enable(true);
    let blocks = SIZE >> 12;
    let found_nothing = |fs: &Fs, ages: Option<Duration>| {
        let v = fs.volume();
        space.ages(ages);
        space.ran(None, Some((v.given_up(), v.rewritten_blocks(), Duration::ZERO)));
    };
    let soon = Duration::from_millis(300);
    found_nothing(&fs, Some(soon));
    assert!(!space.may_come(fs.volume(), blocks) && !space.may_help(fs.volume(), blocks));
    space.refused(fs.volume_mut(), 1);
    assert!(!fs.volume().is_refusing());
    std::thread::sleep(soon);
    assert!(space.may_help(fs.volume(), blocks));
    found_nothing(&fs, Some(soon));
    std::thread::sleep(soon);
    assert!(space.may_come(fs.volume(), blocks));
    // It says nothing of the next pass.
    found_nothing(&fs, None);
    std::thread::sleep(soon);
    assert!(!space.may_come(fs.volume(), blocks) && !space.may_help(fs.volume(), blocks));
    space.refused(fs.volume_mut(), 1);
    assert!(fs.volume().is_refusing());
}

#[test]
fn it_is_looked_for_empty_segments_the_less_often_the_fewer_there_are() {
    let mut fs = mounted();
    let ctx = Context { privileged: true, ..Context::default() };
    let file = fs.create(&ctx, Ino::ROOT, b"f", 0o644).unwrap().ino;
    let space = Space::default();
    let mut write = |space: &Space| {
        // A segment and a little.
        fs.write(&ctx, file, 0, &[7; 64 << 12], WriteFlags::default()).unwrap();
        fs.sync_all(3000).unwrap();
        (space.may_be_empty(fs.volume()), fs.volume().rewritten_blocks())
    };
    assert!(!write(&space).0);
    // Four are a 64th of the volume's 256.
    let seen = |space: &Space, write: &mut dyn FnMut(&Space) -> (bool, u64)| {
        (1..)
            .map(|n| (n, write(space)))
            .find(|(_, (due, _))| *due)
            .map(|(n, (_, rewritten))| (n, rewritten))
            .unwrap()
    };
    let (_, mut rewritten) = seen(&space, &mut write);
    let mut turns = Vec::new();
    for in_vain in [false, true, true, true, true, true, true, false] {
        space.swept(rewritten, in_vain);
        let (n, now) = seen(&space, &mut write);
        rewritten = now;
        turns.push(n);
    }
    let most = turns[5];
    assert!(turns[0] < turns[1] && turns[1] < turns[2] && turns[3] < turns[4], "{turns:?}");
    assert!(most == turns[4] && most > 8 * turns[0] && turns[7] == turns[0], "{turns:?}");
}
