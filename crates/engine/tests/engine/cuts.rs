//! Making large files smaller and deleting them: a bounded piece of work for every request and step,
//! and nothing lost or left behind.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use silt_device::{Counter, Device, Fault, MemoryDevice, Times};
use silt_engine::{LogWrite, Redo, Step, Tree, Volume};
use silt_format::{Cno, Ino};

use crate::common::{file, formatted, judge, open};

const BS: usize = 1024;
/// Three levels of nodes: more than 3 * 63 * 63.
const BLOCKS: u64 = 40_000;
const SIZE: u64 = 256 << 20;

fn fill(v: &mut Volume, ino: Ino, keys: Range<u64>, with: u8) {
    for key in keys {
        v.write_block(ino, key, vec![with; BS].into()).unwrap();
    }
}

/// A large file and the inode before it, on a volume of which nothing is cached.
fn large<D: Device + 'static>(wrap: impl Fn(MemoryDevice) -> D) -> (Arc<D>, Volume, Ino, Ino) {
    let device = Arc::new(wrap(formatted(MemoryDevice::new(SIZE), BS as u32, 2048)));
    let mut v = open(device.clone());
    let (other, ino) = (file(&mut v), file(&mut v));
    fill(&mut v, other, 0..2, 9);
    for from in (0..BLOCKS).step_by(10_000) {
        fill(&mut v, ino, from..from + 10_000, 1);
        v.checkpoint(2100).unwrap();
    }
    v.close(2200).unwrap();
    drop(v);
    let v = open(device.clone());
    (device, v, other, ino)
}

fn keys(v: &mut Volume, tree: Tree, ino: Ino) -> Vec<u64> {
    let mut keys = Vec::new();
    v.for_each_data(tree, ino, 0, |k| {
        keys.push(k);
        ControlFlow::Continue(())
    })
    .unwrap();
    keys
}

fn blocks(v: &mut Volume, ino: Ino) -> u64 {
    v.inode(Tree::Live, ino).unwrap().blocks_512(BS as u32) / (BS as u64 / 512)
}

fn write(device: &dyn Device, mut log: LogWrite) {
    log.seal();
    log.write(device).unwrap();
}

#[derive(Debug, Clone, Copy)]
enum Change {
    /// Cuts these blocks off.
    Cut(u64, u64),
    Delete,
}

impl Change {
    const ALL: [Change; 6] = [
        Change::Cut(4, u64::MAX),
        Change::Cut(0, u64::MAX),
        Change::Cut(BLOCKS / 2 + 7, u64::MAX),
        Change::Cut(100, BLOCKS - 3),
        Change::Cut(700, u64::MAX),
        Change::Delete,
    ];

    fn apply(self, v: &mut Volume, ino: Ino) {
        match self {
            Change::Cut(start, end) => v.cut(ino, start..end).unwrap(),
            Change::Delete => v.delete_inode(ino).unwrap(),
        }
    }

    /// What stays.
    fn stays(self) -> Vec<u64> {
        match self {
            Change::Cut(start, end) => (0..BLOCKS).filter(|k| *k < start || *k >= end).collect(),
            Change::Delete => Vec::new(),
        }
    }

    fn check(self, v: &mut Volume, ino: Ino) {
        match self {
            Change::Delete => assert!(v.inode(Tree::Live, ino).is_err()),
            Change::Cut(..) => assert_eq!(keys(v, Tree::Live, ino), self.stays()),
        }
    }
}

/// Counted in reads of the device, since time depends on the machine.
#[test]
fn requests_and_steps_do_a_bounded_amount_of_work() {
    for change in Change::ALL {
        let (device, mut v, _, ino) = large(Counter::new);
        let past = v.last_log().cno;
        device.reset();
        change.apply(&mut v, ino);
        let request = device.reset().reads.requests;
        let told = (!matches!(change, Change::Delete)).then(|| blocks(&mut v, ino));
        // Nothing that asks for what is left walks over what is gone.
        let asked = match change {
            Change::Cut(start, u64::MAX) => {
                v.for_each_data(Tree::Live, ino, start, |_| unreachable!()).unwrap();
                v.cut(ino, start..u64::MAX).unwrap();
                device.reset().reads.requests
            }
            _ => 0,
        };
        assert!(v.begin_checkpoint(2300).unwrap());
        let (mut steps, mut most) = (0, 0);
        loop {
            device.reset();
            let step = v.step(256).unwrap();
            most = most.max(device.reset().reads.requests);
            match step {
                Step::Write(log) => {
                    write(&*device, log);
                    v.log_written();
                }
                Step::Done(_) => break,
                _ => steps += 1,
            }
        }
        println!("{change:?}: {request} reads, then {asked}, then {steps} steps of up to {most} reads");
        assert!(request <= 40 && asked <= 20, "{change:?}: {request} and {asked} reads in a request");
        let gone = BLOCKS as usize - change.stays().len();
        assert!(steps >= gone / 256, "{change:?}: {steps} steps");
        assert!(most <= 40, "{change:?}: {most} reads in a step");
        change.check(&mut v, ino);
        if let Some(told) = told {
            let after = blocks(&mut v, ino);
            let stays = change.stays().len() as u64;
            // One node for 63 blocks, or two where leaves are half full.
            assert!(after >= stays && after <= stays + stays / 31 + 4, "{after} of {stays}");
            let off = told.abs_diff(after);
            assert!(off <= BLOCKS / 20, "{change:?}: {told} blocks were told, {after} they are");
            assert!(stays > 500 || (told >= stays && off <= stays / 20 + 4), "{told}, {after}");
        }
        v.open_view(Cno(past)).unwrap();
        assert!(keys(&mut v, Tree::Past(past), ino).into_iter().eq(0..BLOCKS));
        v.close(2400).unwrap();
        judge(device.inner());
        drop(v);
        change.check(&mut open(device), ino);
    }
}

/// While a cut is applied the file reads as it will be, and what is written meanwhile stays.
#[test]
fn requests_between_the_steps_of_a_cut_see_it_done() {
    for change in Change::ALL {
        let (device, mut v, other, ino) = large(|d| d);
        let past = v.last_log().cno;
        change.apply(&mut v, ino);
        v.begin_checkpoint(2300).unwrap();
        let mut expected = change.stays();
        let mut steps = 0u64;
        loop {
            match v.step(1000).unwrap() {
                Step::Write(log) => {
                    write(&*device, log);
                    v.log_written();
                    continue;
                }
                Step::Done(_) => break,
                _ => steps += 1,
            }
            if steps % 8 != 3 {
                continue;
            }
            fill(&mut v, other, steps..steps + 1, 9);
            v.open_view(Cno(past)).unwrap();
            assert_eq!(v.read_block(Tree::Past(past), ino, BLOCKS - 9).unwrap().unwrap()[0], 1);
            v.close_view(Cno(past));
            if matches!(change, Change::Delete) {
                assert!(v.inode(Tree::Live, ino).is_err());
                let new = file(&mut v);
                assert_ne!(new, ino, "the number of an inode that is being deleted");
                v.delete_inode(new).unwrap();
                continue;
            }
            let key = BLOCKS - 10 - 500 * steps;
            if expected.binary_search(&key).is_err() {
                assert!(v.read_block(Tree::Live, ino, key).unwrap().is_none());
            }
            fill(&mut v, ino, key..key + 1, 2);
            expected.push(key);
            expected.sort_unstable();
            expected.dedup();
            assert_eq!(keys(&mut v, Tree::Live, ino), expected);
        }
        assert!(steps > 10, "{steps}");
        if matches!(change, Change::Delete) {
            change.check(&mut v, ino);
            // Its number is free.
            assert_eq!(file(&mut v), ino);
        } else {
            assert_eq!(keys(&mut v, Tree::Live, ino), expected);
        }
        v.close(2400).unwrap();
        judge(&*device);
        let mut v = open(device);
        assert_eq!(keys(&mut v, Tree::Live, ino), expected);
    }
}

/// A file without data takes no blocks, whatever was going on when it was emptied.
#[test]
fn an_emptied_file_takes_no_blocks_at_once() {
    let (device, mut v, _, ino) = large(|d| d);
    // Guessed, and being applied.
    v.cut(ino, 20_001..u64::MAX).unwrap();
    fill(&mut v, ino, 30_000..30_100, 3);
    v.begin_checkpoint(2300).unwrap();
    assert!(matches!(v.step(300).unwrap(), Step::Working));
    v.cut(ino, 10_000..15_000).unwrap();
    v.cut(ino, 0..u64::MAX).unwrap();
    assert_eq!(blocks(&mut v, ino), 0);
    v.step(300).unwrap();
    assert_eq!(blocks(&mut v, ino), 0);
    fill(&mut v, ino, 5..9, 4);
    assert_eq!(blocks(&mut v, ino), 4);
    v.finish_construction(2300).unwrap();
    assert_eq!(blocks(&mut v, ino), 4);
    v.begin_checkpoint(2400).unwrap();
    assert_eq!(blocks(&mut v, ino), 4);
    v.step(300).unwrap();
    assert_eq!(blocks(&mut v, ino), 4);
    v.finish_construction(2400).unwrap();
    // One node.
    assert_eq!(blocks(&mut v, ino), 5);
    // In two pieces.
    v.cut(ino, 7..u64::MAX).unwrap();
    v.cut(ino, 0..7).unwrap();
    assert_eq!(blocks(&mut v, ino), 0);
    v.close(2500).unwrap();
    assert_eq!(blocks(&mut v, ino), 0);
    judge(&*device);
}

/// Holes that are many are not looked at again with every step.
#[test]
fn many_holes_are_made_in_steps() {
    let (_, mut v, _, ino) = large(|d| d);
    let mut expected: Vec<u64> = (0..BLOCKS).collect();
    for key in (0..20_000).step_by(2) {
        v.cut(ino, key..key + 1).unwrap();
    }
    expected.retain(|k| *k >= 20_000 || k % 2 == 1);
    v.begin_checkpoint(2300).unwrap();
    let mut steps = 0;
    while let Step::Working = v.step(256).unwrap() {
        steps += 1;
        if steps % 16 == 0 {
            assert_eq!(keys(&mut v, Tree::Live, ino), expected);
        }
    }
    // Each counts with its range.
    assert!((70..90).contains(&steps), "{steps}");
}

/// A log that has no place while a cut is half done goes elsewhere, and the cut goes on.
#[test]
fn a_log_may_move_while_a_cut_is_half_done() {
    for change in Change::ALL {
        let (device, mut v, other, ino) = large(Fault::new);
        fill(&mut v, other, 0..1500, 7);
        change.apply(&mut v, ino);
        v.begin_checkpoint(2300).unwrap();
        let mut waiting: Option<LogWrite> = None;
        let mut working = 0;
        while working < 8 {
            match v.step(300).unwrap() {
                Step::Write(mut log) => {
                    if let Some(log) = waiting.take() {
                        log.write(&*device).unwrap();
                        v.log_written();
                    }
                    log.seal();
                    waiting = Some(log);
                }
                Step::Working => working += usize::from(waiting.is_some()),
                step => unreachable!("{step:?}"),
            }
        }
        let log = waiting.unwrap();
        device.fail_writes(log.byte..log.byte + 1, Times::Always);
        assert!(log.write(&*device).is_err());
        assert_eq!(v.log_failed(&log, 2300).unwrap(), Redo::Elsewhere);
        v.finish_construction(2300).unwrap();
        change.check(&mut v, ino);
        assert_eq!(keys(&mut v, Tree::Live, other).len(), 1500);
        let copy = Arc::new(device.inner().fork());
        judge(&*copy);
        let mut v = open(copy);
        change.check(&mut v, ino);
        assert_eq!(keys(&mut v, Tree::Live, other).len(), 1500);
    }
}

/// A leaf in the middle cannot be read: it is told, what is left and right of it goes, the number of a
/// deleted file is free.
#[test]
fn a_damaged_node_keeps_nothing_else_from_going() {
    for change in Change::ALL {
        let (device, mut v, other, ino) = large(Fault::new);
        v.make_snapshot(Cno(v.last_log().cno)).unwrap();
        v.checkpoint(2250).unwrap();
        let live = |v: &mut Volume| v.stat().unwrap().tree_blocks;
        let before = live(&mut v);
        drop(v);
        // The leaf with key 30,000: a node of level 1 that begins with it or up to 62 before.
        let mut image = vec![0; SIZE as usize];
        device.read_at(0, &mut image).unwrap();
        let mut bad = Vec::new();
        for (n, block) in image.chunks_exact(BS).enumerate() {
            let first = u64::from_le_bytes(block[16..24].try_into().unwrap());
            let second = u64::from_le_bytes(block[24..32].try_into().unwrap());
            let is_leaf = block[0] == 0 && block[1] == 1 && block[2..4] == [63, 0];
            if is_leaf && (29_938..=30_000).contains(&first) && second == first + 1 {
                bad.push(n as u64 * BS as u64);
            }
        }
        assert!(!bad.is_empty());
        let mut v = open(device.clone());
        bad.iter().for_each(|at| device.fail_reads(*at..at + 1, Times::Always));
        change.apply(&mut v, ino);
        v.begin_checkpoint(2300).unwrap();
        v.finish_construction(2300).unwrap();
        let gone = before - live(&mut v);
        let expected = BLOCKS - change.stays().len() as u64;
        assert!(gone > expected - 200 && gone <= expected + BLOCKS / 60, "{change:?}: {gone} of {expected}");
        match change {
            Change::Delete => assert_eq!(file(&mut v), ino),
            Change::Cut(start, end) => {
                assert!(v.take_inode_error(ino).is_some(), "{change:?}");
                for key in [start, 25_000, 29_900, 30_100, 35_000, BLOCKS - 4] {
                    match v.read_block(Tree::Live, ino, key) {
                        Ok(block) => assert_eq!(block.is_none(), (start..end).contains(&key), "block {key}"),
                        // The bad leaf is all that is left between the ends of a hole.
                        Err(_) => assert!(end < BLOCKS && key > start && key < end, "block {key}"),
                    }
                }
            }
        }
        fill(&mut v, other, 0..10, 3);
        v.close(2400).unwrap();
    }
}
