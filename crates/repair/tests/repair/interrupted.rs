//! The power goes after every write of a repair: the next one finishes it, and what was saved takes it back.

use std::sync::Arc;

use silt_device::undo::{self, Undo};
use silt_device::{Change, Content, Device, Event, MemoryDevice, Recorder};
use silt_format::super_block::{PRIMARY_OFFSET, secondary_offset};
use silt_repair::{Options, Plan, errors, plan};
use silt_verify::Moment;
use silt_verify::surgeon::{Sums, Surgeon};

use crate::common::{both_lost, checked, noise, options, say, snapshots, tree, trees};

/// The changes that a plan makes, in order.
fn writes(made: &Plan, device: &MemoryDevice) -> Vec<Change> {
    let recorder = Recorder::new(device.fork());
    let record = recorder.record();
    made.apply(&recorder).unwrap();
    let changes = |e| if let Event::Change(c) = e { Some(c) } else { None };
    record.events().into_iter().filter_map(changes).collect()
}

/// The device after the first `cut` changes, and with `torn` half of the next.
fn cut_off(device: &MemoryDevice, writes: &[Change], cut: usize, torn: bool) -> MemoryDevice {
    let device = device.fork();
    for (n, change) in writes.iter().enumerate().take(cut + usize::from(torn)) {
        let Content::Bytes(bytes) = &change.content else { continue };
        let len = if n == cut { bytes.len() / 1024 * 512 } else { bytes.len() };
        device.write_at(change.offset, &[&bytes[..len]]).unwrap();
    }
    device
}

/// Every cut, or of many some.
fn cuts(writes: &[Change]) -> impl Iterator<Item = (usize, bool)> + use<> {
    let step = (writes.len() / 40).max(1);
    (0..=writes.len()).step_by(step).flat_map(|cut| [(cut, false), (cut, true)])
}

/// What is broken, and how.
type Break = (&'static str, fn(&mut Surgeon));

#[test]
fn an_interrupted_repair_is_finished_by_the_next() {
    let breaks: [Break; 10] = [
        ("super block", |s| s.patch_super((true, false), |b| b.last_pseg = 3.into())),
        ("both super blocks", both_lost),
        ("segment usage", |s| {
            let block = s.file(5)[&0];
            s.patch_with(block, Sums::None, |b| b.copy_from_slice(&noise(b.len(), 3)));
        }),
        ("table", |s| {
            let block = *s.dat().blocks.values().last().unwrap();
            s.patch_with(block, Sums::None, |b| b.copy_from_slice(&noise(b.len(), 4)));
        }),
        ("directory", |s| {
            let block = s.file(2)[&0];
            s.patch_with(block, Sums::None, |b| b.copy_from_slice(&noise(b.len(), 5)));
        }),
        ("log", |s| {
            let block = s.latest().pos.0;
            s.patch_with(block, Sums::None, |b| b.copy_from_slice(&noise(b.len(), 6)));
        }),
        ("inode", |s| {
            let ino = s.ino("six");
            s.patch_inode(ino, |i| i.links_count = 7.into());
        }),
        ("translation", |s| {
            let v = s.find_dat(|v, e| v > 0 && e.end.get() == u64::MAX);
            s.patch_dat(v, |e| e.blocknr = 3.into());
        }),
        ("snapshots", |s| {
            let cno = s.cno();
            s.patch_checkpoint(cno, |e| e.inodes_count = 9.into());
        }),
        ("directory of a past tree", |s| {
            let now = s.file(2)[&0];
            let cno = (1..s.cno()).rev().find(|c| s.past_file(*c, 2)[&0] != now).unwrap();
            let block = s.past_file(cno, 2)[&0];
            s.patch_with(block, Sums::None, |b| b.copy_from_slice(&noise(b.len(), 7)));
        }),
    ];
    for (what, plant) in breaks {
        let mut s = Surgeon::golden("basic-4k");
        plant(&mut s);
        let made = plan(Arc::new(s.device.fork()), &options()).unwrap();
        assert!(!made.is_empty(), "{what}");
        // What a repair that is not cut off brings back, or more.
        let whole = s.device.fork();
        made.apply(&whole).unwrap();
        let least = tree(&whole, Moment::Latest).unwrap().len();
        assert!(least > 15, "{what}");
        let writes = writes(&made, &s.device);
        assert!(!writes.is_empty(), "{what}");
        for (cut, torn) in cuts(&writes) {
            let device = cut_off(&s.device, &writes, cut, torn);
            let second = plan(Arc::new(device.fork()), &options()).unwrap();
            assert_eq!(errors(&second.after), 0, "{what}, cut at {cut} ({torn}):\n{}", say(&second));
            second.apply(&device).unwrap();
            assert!(checked(&device).is_clean());
            assert!(tree(&device, Moment::Latest).is_some_and(|t| t.len() >= least), "{what}, cut at {cut}");
        }
    }
}

/// The disk writes the logs of a repair in any order, and the power goes before the first super block: the volume is what it
/// was, and the next repair says and does the same. Its logs have the numbers of none that are there: those would follow its
/// first one. Both repairs have one seed here, which chance alone gives them.
#[test]
fn nothing_follows_a_repair_that_one_before_it_left() {
    let mut s = Surgeon::golden("basic-4k");
    let now = s.file(2)[&0];
    let cno = (1..s.cno()).rev().find(|c| s.past_file(*c, 2)[&0] != now).unwrap();
    let block = s.past_file(cno, 2)[&0];
    s.patch_with(block, Sums::None, |b| b.copy_from_slice(&noise(b.len(), 7)));
    let ino = s.ino("six");
    s.patch_inode(ino, |i| i.links_count = 7.into());
    let made = plan(Arc::new(s.device.fork()), &options()).unwrap();
    let supers = [PRIMARY_OFFSET, secondary_offset(s.device.len())];
    let mut logs = writes(&made, &s.device);
    logs.truncate(logs.iter().position(|w| supers.contains(&w.offset)).unwrap());
    assert!(logs.len() > 2, "{} logs:\n{}", logs.len(), say(&made));
    for landed in 0u64..32 {
        let device = s.device.fork();
        // That which begins a segment, and any others.
        let any = noise(logs.len(), landed);
        for (n, change) in logs.iter().enumerate().filter(|(n, _)| *n == 0 || any[*n].is_multiple_of(2)) {
            let Content::Bytes(bytes) = &change.content else { panic!("write {n} has no bytes") };
            device.write_at(change.offset, &[bytes]).unwrap();
        }
        let second = plan(Arc::new(device.fork()), &options()).unwrap();
        assert_eq!(errors(&second.after), 0, "{landed}:\n{}", say(&second));
        assert_eq!(say(&second), say(&made), "{landed}");
        second.apply(&device).unwrap();
        assert!(checked(&device).is_clean(), "{landed}");
    }
}

/// Synced data behind the newest checkpoint, which rounds set aside until what it belongs to is mended: wherever the repair
/// is cut off, the next one has all of it.
#[test]
fn synced_data_survives_a_repair_that_is_cut_off() {
    for name in ["dsync-4k", "dsync-1k"] {
        let mut s = Surgeon::golden(name);
        let v = s.find_dat(|v, e| v > 0 && e.end.get() == u64::MAX);
        s.patch_dat(v, |e| e.blocknr = 3.into());
        let made = plan(Arc::new(s.device.fork()), &options()).unwrap();
        assert!(made.rounds.len() > 1, "{name}: it is one round:\n{}", say(&made));
        let done = s.device.fork();
        made.apply(&done).unwrap();
        let wanted = tree(&done, Moment::Latest).unwrap();
        let writes = writes(&made, &s.device);
        for (cut, torn) in cuts(&writes) {
            let device = cut_off(&s.device, &writes, cut, torn);
            plan(Arc::new(device.fork()), &options()).unwrap().apply(&device).unwrap();
            let now = tree(&device, Moment::Latest);
            assert!(now.as_ref() == Some(&wanted), "{name}, cut at {cut} ({torn}) of {}", writes.len());
            assert!(checked(&device).is_clean());
        }
    }
}

/// Going back, cut off anywhere: the tree is that of before or that of the moment, no checkpoint is lost, and going
/// back again comes to its end.
#[test]
fn going_back_that_is_cut_off_is_finished_by_the_next() {
    for (name, to) in [("basic-4k", 2), ("gc-4k", 10)] {
        let sound = Surgeon::golden(name).device;
        let before = trees(&sound);
        let (last, present) = before.last().cloned().unwrap();
        let wanted = tree(&sound, Moment::Checkpoint(to)).unwrap();
        assert!(wanted != present);
        let back = Options { to_checkpoint: Some(to), ..options() };
        let made = plan(Arc::new(sound.fork()), &back).unwrap();
        let writes = writes(&made, &sound);
        let mut seen = [0, 0];
        for (cut, torn) in cuts(&writes) {
            let device = cut_off(&sound, &writes, cut, torn);
            let what = format!("{name} to {to}, cut at {cut} ({torn})");
            let now = tree(&device, Moment::Latest).unwrap();
            assert!(now == present || now == wanted, "{what}");
            seen[usize::from(now == wanted)] += 1;
            let again = plan(Arc::new(device.fork()), &back).unwrap();
            assert_eq!((errors(&again.after), &again.stopped), (0, &None), "{what}:\n{}", say(&again));
            again.apply(&device).unwrap();
            assert!(tree(&device, Moment::Latest).as_ref() == Some(&wanted), "{what}");
            assert!(snapshots(&device).contains(&last), "{what}");
            for (c, then) in &before {
                assert!(tree(&device, Moment::Checkpoint(*c)).as_ref() == Some(then), "{what}: {c}");
            }
        }
        assert!(seen.iter().all(|n| *n > 0), "{seen:?}");
    }
}

/// What was saved before a repair takes it back wherever it was cut off.
#[test]
fn a_repair_that_is_cut_off_can_be_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut s = Surgeon::golden("basic-4k");
    let block = s.file(2)[&0];
    s.patch_with(block, Sums::None, |b| b.copy_from_slice(&noise(b.len(), 5)));
    let made = plan(Arc::new(s.device.fork()), &options()).unwrap();
    let file = dir.path().join("undo");
    undo::save(&file, &s.device, [1; 16], made.overlay()).unwrap();
    let writes = writes(&made, &s.device);
    let bytes = |device: &MemoryDevice| {
        let mut all = vec![0; usize::try_from(device.len()).unwrap()];
        device.read_at(0, &mut all).unwrap();
        all
    };
    let (before, second) = (bytes(&s.device), secondary_offset(s.device.len()));
    let is_super = |at: u64| at < PRIMARY_OFFSET + 4096 || at >= second;
    let mut changed = 0;
    for (cut, torn) in cuts(&writes) {
        let device = cut_off(&s.device, &writes, cut, torn);
        changed += u32::from(bytes(&device) != before);
        Undo::read(&file).unwrap().take_back(&device, is_super).unwrap();
        assert!(bytes(&device) == before, "cut at {cut} ({torn})");
    }
    assert!(changed > 2 && !checked(&s.device).is_clean(), "{changed}");
}
