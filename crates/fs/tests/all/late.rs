//! What nobody holds any more and cannot end yet, where there is much of it.

use crate::common::{Form, device, open, root_at};
use silt_fs::{Fs, Ino, Options, Tree, WriteFlags};

const ROOT: Ino = Ino::ROOT;
/// More than are looked at under one hold of the lock.
const MANY: usize = 520;
/// Blocks of each of those that have no room to end, and of one that has.
const BLOCKS: usize = 70;
const FEW: usize = 25;

/// A volume with so many files and a smaller one behind them, all without a name and held.
fn unlinked(ends: u64) -> (Fs, Vec<Ino>, Ino) {
    let form = Form { block_size: 1024, blocks_per_segment: 16, size: 96 << 20 };
    let mut fs = open(device(form), &Options { ends, ..Options::default() });
    let c = root_at(10);
    let mut all = Vec::new();
    for n in 0..=MANY {
        let blocks = if n < MANY { BLOCKS } else { FEW };
        let ino = fs.create(&c, ROOT, format!("f{n}").as_bytes(), 0o644).unwrap().ino;
        fs.remember(ino);
        fs.write(&c, ino, 0, &vec![5; blocks << 10], WriteFlags::default()).unwrap();
        all.push(ino);
    }
    fs.sync_all(20).unwrap();
    for n in 0..=MANY {
        fs.unlink(&root_at(30), ROOT, format!("f{n}").as_bytes()).unwrap();
    }
    fs.sync_all(40).unwrap();
    let last = all.pop().unwrap();
    assert!(all.iter().all(|ino| *ino < last));
    (fs, all, last)
}

/// Leaves so little room that none but the small one can end.
fn confine(fs: &mut Fs, ends: u64, large: Ino, small: Ino) {
    let segments = fs.volume().geometry().nsegments;
    let v = fs.volume_mut();
    let mut fits = |n: &u64| {
        let confined = v.confine(Some(*n)).is_ok();
        confined && !v.has_room_to_end(large, ends, true) && v.has_room_to_end(small, ends, true)
    };
    assert!((10..segments).any(|n| fits(&n)), "none or all");
}

/// Also behind more than are looked at at once: those that are put off, and those that go in parts.
#[test]
fn what_has_no_room_to_end_keeps_nobody_behind_it_waiting_for_ever() {
    for ends in [Options::default().ends, 20] {
        let (mut fs, large, small) = unlinked(ends);
        let in_parts = ends < FEW as u64;
        if !in_parts {
            confine(&mut fs, ends, large[0], small);
        }
        large.iter().chain([&small]).for_each(|ino| fs.forget(*ino, u64::MAX).unwrap());
        if in_parts {
            confine(&mut fs, ends, large[0], small);
        }
        let rounds = (0..5).map(|_| fs.reap_late(false).unwrap()).collect::<Vec<_>>();
        assert!(rounds.contains(&true), "{ends} at a time: it was never looked at");
        fs.volume_mut().confine(None).unwrap();
        for n in 0..2000 {
            if !fs.has_late() {
                break;
            }
            fs.sync_all(50 + n).unwrap();
        }
        assert!(!fs.has_late(), "{ends} at a time");
        for ino in large.into_iter().chain([small]) {
            assert!(fs.getattr(Tree::Live, ino).is_err(), "{ends} at a time");
        }
    }
}

/// Who comes by its number to what waits for its end holds it, and it ends when he lets go of it.
#[test]
fn what_is_held_again_while_it_waits_ends_when_it_is_let_go() {
    let ends = Options::default().ends;
    let (mut fs, large, small) = unlinked(ends);
    confine(&mut fs, ends, large[0], small);
    fs.forget(large[0], u64::MAX).unwrap();
    assert!(fs.has_late());
    fs.remember(large[0]);
    fs.reap_late(false).unwrap();
    assert!(!fs.has_late() && fs.getattr(Tree::Live, large[0]).is_ok());
    fs.volume_mut().confine(None).unwrap();
    let before = fs.volume().stat().unwrap().inodes;
    fs.forget(large[0], 1).unwrap();
    assert_eq!(fs.volume().stat().unwrap().inodes, before - 1);
}
