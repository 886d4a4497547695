//! What a repair keeps of the state before.

use std::sync::Arc;

use silt_repair::{Options, errors, plan};
use silt_verify::Moment;
use silt_verify::surgeon::{Sums, Surgeon};

use crate::common::{checked, mends, noise, options, say, snapshots, tree, unmounted};

/// A volume, cleanly unmounted, in which the type of a file of the latest tree is damaged.
fn hurt() -> Surgeon {
    let mut s = Surgeon::golden("basic-4k");
    unmounted(&mut s);
    let (block, byte) = s.inode_place(s.ino("big"));
    s.patch(block, |b| b[byte + 48..byte + 50].fill(0));
    s
}

/// Where files of the newest tree lose something, the newest checkpoint that is whole becomes a snapshot.
#[test]
fn the_newest_whole_checkpoint_becomes_a_snapshot() {
    let s = hurt();
    let before = snapshots(&s.device);
    let (hurt, cno) = (s.inode_place(s.ino("big")).0, s.cno());
    let whole = (1..cno).rev().find(|c| !s.past_file(*c, 6).values().any(|b| *b == hurt)).unwrap();
    let made = plan(Arc::new(s.device.fork()), &options()).unwrap();
    made.apply(&s.device).unwrap();
    let new: Vec<u64> = snapshots(&s.device).into_iter().filter(|c| !before.contains(c)).collect();
    let kept = snapshots(&s.device);
    assert!(
        kept.contains(&whole) && new.len() < 2 && checked(&s.device).is_clean(),
        "{kept:?}\n{}",
        say(&made)
    );
    assert_eq!(new.is_empty(), before.contains(&whole), "{}", say(&made));
    // Counting again loses nothing, and keeps nothing.
    let mut s = Surgeon::golden("basic-4k");
    s.patch_checkpoint(cno, |e| e.inodes_count = 9.into());
    plan(Arc::new(s.device.fork()), &options()).unwrap().apply(&s.device).unwrap();
    assert_eq!(snapshots(&s.device), before);
}

/// What is kept on purpose stays as it was; the next repair mends it.
#[test]
fn a_kept_state_is_mended_by_the_next_repair_alone() {
    let s = hurt();
    let before = snapshots(&s.device);
    let keep = Options { keep: true, drop_snapshots: false, ..options() };
    let made = plan(Arc::new(s.device.fork()), &keep).unwrap();
    made.apply(&s.device).unwrap();
    let report = checked(&s.device);
    let whole = |line: &&String| line.contains("the state before, is kept as a snapshot");
    let said: Vec<_> = made.rounds.iter().flat_map(|r| &r.done).filter(whole).collect();
    assert_eq!(said.len(), 1, "{}", say(&made));
    let cno: u64 = said[0].split([' ', ',']).nth(1).unwrap().parse().unwrap();
    assert!(!before.contains(&cno));
    let places: Vec<_> = report.errors().map(|f| f.place.cno).collect();
    assert!(snapshots(&s.device).contains(&cno), "{}", say(&made));
    assert!(!places.is_empty() && places.iter().all(|c| *c == Some(cno)), "{places:?}\n{}", say(&made));
    let next = Options { drop_snapshots: false, ..options() };
    let made = plan(Arc::new(s.device.fork()), &next).unwrap();
    assert_eq!(errors(&made.after), 0, "{}", say(&made));
    made.apply(&s.device).unwrap();
    assert!(checked(&s.device).is_clean() && snapshots(&s.device).contains(&cno));
    assert!(tree(&s.device, Moment::Checkpoint(cno)).is_some());
}

/// Which inodes are taken follows from their entries: no file is lost with the bits.
#[test]
fn lost_bits_of_the_inode_file_cost_no_file() {
    let sound = Surgeon::golden("basic-4k");
    let block = sound.file(6)[&1];
    let mut s = Surgeon::golden("basic-4k");
    s.patch_with(block, Sums::None, |b| b.copy_from_slice(&noise(b.len(), 3)));
    let o = mends(&sound.device, &s.device).unwrap();
    assert!(o.missing.is_empty(), "{:?}\n{}", o.missing, say(&o.plan));
}
