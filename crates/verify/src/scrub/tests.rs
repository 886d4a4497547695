//! Damage of every kind at every kind of place, and what the pass makes of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use silt_device::{Capabilities, Fault, MemoryDevice, Times};
use silt_format::summary::SR;

use super::*;
use crate::golden;
use crate::search::Log;
use crate::surgeon::{Sums, Surgeon};

fn pass(device: &dyn Device) -> State {
    let mut state = State::new();
    let outcome = scrub(device, &Options::default(), &mut state, &Unpaced).unwrap();
    assert_eq!(outcome, Outcome::Finished);
    assert!(state.finished && state.bytes_behind == state.bytes_in_use);
    state
}

fn flip(device: &dyn Device, at: u64, bit: u8) -> (u8, u8) {
    let mut byte = [0];
    device.read_at(at, &mut byte).unwrap();
    let found = byte[0] ^ (1 << bit);
    device.write_at(at, &[&[found]]).unwrap();
    (found, byte[0])
}

/// All logs in use.
fn logs(s: &Surgeon) -> Vec<Log> {
    let view = View::load(&s.device, &Options::default(), None).unwrap();
    let g = view.r.g;
    let behind = |segment: u64, used: u64| g.segment_start(SegNr(segment)).0 + used;
    view.used
        .iter()
        .flat_map(|(n, used)| {
            let end = behind(*n, *used);
            s.logs(*n).into_iter().filter(move |l| l.end() <= end)
        })
        .collect()
}

#[test]
fn golden_volumes_are_sound() {
    for name in golden::NAMES {
        let state = pass(&golden::open(name));
        assert_eq!((state.findings.as_slice(), state.problems.as_slice()), (&[][..], &[][..]), "{name}");
        assert!(state.counts.logs > 0, "{name}: {:?}", state.counts);
    }
}

/// In every log that is needed: each field of the head, the records, payload, super root and the checksum itself.
#[test]
fn a_flipped_bit_is_found_exactly_wherever_it_is() {
    let s = Surgeon::golden("basic-4k");
    let view = View::load(&s.device, &Options::default(), None).unwrap();
    let g = s.g();
    let mut places = 0;
    for log in logs(&s) {
        let h = log.header;
        let needed = view.needed.any(log.pos.0..log.end()) || view.is_on_the_way(h.seq.get(), log.pos.0);
        let bytes = log.nblocks() << g.block_bits;
        let first = u64::from(h.summary_blocks(&g)) << g.block_bits;
        let end = u64::from(h.sumbytes.get());
        let mut at = vec![0, 5, 8, 13, 15, 16, 24, 32, 33, 40, 41, 44, 48, 49, 52, 56, 64, end - 1];
        at.extend([first, first + 1000, first + 4095, bytes - 4096, bytes - 4000, bytes - 1]);
        at.extend((end < first).then_some(end));
        for (i, byte) in at.into_iter().enumerate() {
            let device = s.device.fork();
            let bit = (i % 8) as u8;
            let (found, right) = flip(&device, g.byte_of(log.pos) + byte, bit);
            let state = pass(&device);
            let place = format!("log at {}, byte {byte}, bit {bit}: {:#?}", log.pos, state.findings);
            assert!(state.findings.iter().all(|f| f.log == log.pos.0), "{place}");
            if !needed {
                continue;
            }
            places += 1;
            let [finding] = state.findings.as_slice() else { panic!("{place}") };
            assert_eq!((finding.kind, finding.blocks), (Kind::FlippedBit, log.nblocks()), "{place}");
            let [spot] = finding.spots.as_slice() else { panic!("{place}") };
            let (block, in_block) = (log.pos.0 + byte / 4096, (byte % 4096) as u32);
            assert_eq!((spot.block, spot.byte, spot.bytes), (block, in_block, 1), "{place}");
            assert_eq!(spot.flip, Some(Flip { bit, found, right }), "{place}");
            assert_eq!(
                spot.unused,
                byte >= end && byte < first || unused(&view, &log, block, in_block),
                "{place}"
            );
        }
    }
    assert!(places > 100, "{places}");
}

/// Whether a payload block or its part of the super root is of no use to anybody.
fn unused(view: &View<'_>, log: &Log, block: u64, byte: u32) -> bool {
    let first = log.pos.0 + u64::from(log.header.summary_blocks(&view.r.g));
    if log.header.has(SR) && block == log.end() - 1 {
        return byte >= 400 || !view.is_on_the_way(log.header.seq.get(), log.pos.0);
    }
    block >= first && !view.needed.contains(block)
}

#[test]
fn the_file_and_the_byte_are_named() {
    let s = Surgeon::golden("basic-4k");
    let tree = crate::Tree::open(&s.device, crate::Moment::Latest).unwrap();
    let file = tree
        .walk()
        .unwrap()
        .into_iter()
        .find(|w| w.attributes.is_regular() && w.attributes.size > 9000)
        .unwrap();
    let ino = file.attributes.ino;
    let blocks = s.file(ino);
    let (offset, block) = blocks.iter().nth(1).unwrap();
    flip(&s.device, (block << 12) + 77, 3);
    let state = pass(&s.device);
    let finding = &state.findings[0];
    let spot = &finding.spots[0];
    let path = format!("/{}", String::from_utf8(file.path).unwrap());
    let owner = spot.owner.as_ref().unwrap();
    assert_eq!((owner.inode, &owner.path, owner.until), (ino, &Some(path.as_str().into()), None));
    assert_eq!((spot.block, spot.file_byte, spot.unused), (*block, Some(offset * 4096 + 77), false));
    assert!(finding.one_in.unwrap() >= 64, "nothing else confirms it");
    let lines = finding.lines(4096).join("\n");
    assert!(
        lines.contains(&format!("content of {path} (inode {ino}), byte {}", offset * 4096 + 77)),
        "{lines}"
    );
    // The table of inodes: which inode it is.
    let (block, byte) = s.inode_place(ino);
    flip(&s.device, (s.file(ino).values().nth(1).unwrap() << 12) + 77, 3);
    flip(&s.device, (block << 12) + byte as u64 + 60, 0);
    let state = pass(&s.device);
    let spot = &state.findings[0].spots[0];
    assert_eq!((spot.entry_of, &spot.entry_path), (Some(ino), &Some(path.as_str().into())), "{spot:?}");
}

#[test]
fn more_than_a_bit_leaves_suspects() {
    let s = Surgeon::golden("basic-4k");
    let tree = crate::Tree::open(&s.device, crate::Moment::Latest).unwrap();
    let file = tree
        .walk()
        .unwrap()
        .into_iter()
        .find(|w| w.attributes.is_regular() && w.attributes.size > 9000)
        .unwrap();
    let block = *s.file(file.attributes.ino).values().next().unwrap();
    let log = s.log_of(block);
    for at in [100, 2000, 2001, 3000] {
        flip(&s.device, (block << 12) + at, 1);
    }
    let state = pass(&s.device);
    let [finding] = state.findings.as_slice() else { panic!("{:?}", state.findings) };
    assert_eq!((finding.kind, finding.log, finding.unknown), (Kind::Checksum, log.pos.0, 0), "{finding:?}");
    let path = format!("/{}", String::from_utf8(file.path).unwrap());
    assert!(finding.suspects.iter().any(|o| o.path == Some(path.as_str().into())), "{finding:#?}");
    assert!(finding.spots.is_empty() && state.damaged() == 1);
}

/// Noise over a directory, a node and a block of the DAT is seen for what it is.
#[test]
fn blocks_that_make_no_sense_are_named() {
    let s = Surgeon::golden("btree-1k");
    let noise: Vec<u8> = (0..1024u32).map(|i| (i * 37 + 11) as u8).collect();
    let root = *s.file(2).values().next().unwrap();
    let dat = s.dat();
    let table = *dat
        .blocks
        .iter()
        .find(|(k, _)| matches!(dat.layout.kind(**k), silt_format::palloc::Kind::Entries { .. }))
        .unwrap()
        .1;
    for block in [root, table] {
        let device = s.device.fork();
        device.write_at(block << 10, &[&noise]).unwrap();
        let state = pass(&device);
        let finding = state.findings.iter().find(|f| f.spots.iter().any(|s| s.block == block));
        assert_eq!(finding.map(|f| f.kind), Some(Kind::Structure), "{block}: {:#?}", state.findings);
    }
}

/// Noise over a block of the table of segments, which says how far segments are written: the newest log ends where its
/// summary says.
#[test]
fn noise_over_the_table_of_segments_is_named() {
    for name in ["basic-4k", "btree-1k"] {
        let s = Surgeon::golden(name);
        let log = s.latest();
        let table = s.file(5);
        let block =
            *table.values().find(|b| (log.pos.0..log.end()).contains(b)).expect("the newest log has one");
        let noise: Vec<u8> = (0..s.g().block_size).map(|i| (i * 37 + 11) as u8).collect();
        s.device.write_at(block << s.g().block_bits, &[&noise]).unwrap();
        let state = pass(&s.device);
        let [finding] = state.findings.as_slice() else { panic!("{name}: {:#?}", state.findings) };
        let found = (finding.kind, finding.log, finding.blocks);
        assert_eq!(found, (Kind::Structure, log.pos.0, log.nblocks()), "{name}: {finding:#?}");
        let [spot] = finding.spots.as_slice() else { panic!("{name}: {finding:#?}") };
        assert_eq!((spot.block, spot.bytes), (block, s.g().block_size), "{name}: {spot:?}");
        assert_eq!(spot.owner.as_ref().map(|o| o.inode), Some(5), "{name}: {spot:?}");
        assert!(spot.what.starts_with("makes no sense"), "{name}: {spot:?}");
    }
}

/// Two bits of the summary: the records are lost, and the maps of the tree say whose the blocks are.
#[test]
fn owners_are_known_without_records() {
    let s = Surgeon::golden("basic-4k");
    let tree = crate::Tree::open(&s.device, crate::Moment::Latest).unwrap();
    let file = tree
        .walk()
        .unwrap()
        .into_iter()
        .find(|w| w.attributes.is_regular() && w.attributes.size > 9000)
        .unwrap();
    let ino = file.attributes.ino;
    let log = s.log_of(*s.file(ino).values().next().unwrap());
    for at in [64, 70, 90] {
        flip(&s.device, (log.pos.0 << 12) + at, 1);
    }
    let state = pass(&s.device);
    let [finding] = state.findings.as_slice() else { panic!("{:?}", state.findings) };
    assert_eq!((finding.kind, finding.log), (Kind::Structure, log.pos.0));
    assert!(finding.suspects.iter().any(|o| o.inode == ino), "{finding:#?}");
    // And the head: nothing says how long the log is.
    s.device.write_at(log.pos.0 << 12, &[&[0; 64]]).unwrap();
    let state = pass(&s.device);
    let [finding] = state.findings.as_slice() else { panic!("{:?}", state.findings) };
    assert_eq!((finding.kind, finding.log, finding.blocks), (Kind::Header, log.pos.0, log.nblocks()));
    assert!(finding.suspects.iter().any(|o| o.inode == ino), "{finding:#?}");
}

#[test]
fn sectors_that_cannot_be_read_are_told_exactly() {
    let s = Surgeon::golden("basic-4k");
    let tree = crate::Tree::open(&s.device, crate::Moment::Latest).unwrap();
    let file = tree
        .walk()
        .unwrap()
        .into_iter()
        .find(|w| w.attributes.is_regular() && w.attributes.size > 9000)
        .unwrap();
    let ino = file.attributes.ino;
    let block = *s.file(ino).values().nth(1).unwrap();
    drop(tree);
    let device = Fault::new(s.device);
    device.fail_reads((block << 12) + 1024..(block << 12) + 1536, Times::Always);
    let state = pass(&device);
    let [finding] = state.findings.as_slice() else { panic!("{:#?}", state.findings) };
    let [spot] = finding.spots.as_slice() else { panic!("{finding:#?}") };
    assert_eq!((finding.kind, spot.block, spot.byte, spot.bytes), (Kind::Unreadable, block, 1024, 512));
    assert_eq!(spot.owner.as_ref().map(|o| o.inode), Some(ino));
}

/// A device that tells a lie once.
struct Lies {
    device: MemoryDevice,
    at: u64,
    told: AtomicBool,
}

impl Device for Lies {
    fn len(&self) -> u64 {
        self.device.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> silt_device::Result<()> {
        self.device.read_at(offset, buf)?;
        // The pass itself, not the look at the tables before it.
        let within = (offset..offset + buf.len() as u64).contains(&self.at);
        if within && buf.len() > 4096 && !self.told.swap(true, Ordering::Relaxed) {
            buf[(self.at - offset) as usize] ^= 4;
        }
        Ok(())
    }
    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> silt_device::Result<()> {
        self.device.write_at(offset, bufs)
    }
    fn flush(&self) -> silt_device::Result<()> {
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> silt_device::Result<()> {
        self.device.discard(offset, len)
    }
    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }
}

#[test]
fn what_is_right_the_second_time_is_no_damage() {
    let s = Surgeon::golden("basic-4k");
    let view = View::load(&s.device, &Options::default(), None).unwrap();
    let log =
        logs(&s).into_iter().find(|l| view.needed.any(l.pos.0..l.end()) && l.pos != view.latest.pos).unwrap();
    let at = (log.end() - 1) << 12;
    let device = Lies { device: s.device.fork(), at, told: AtomicBool::new(false) };
    let state = pass(&device);
    let [finding] = state.findings.as_slice() else { panic!("{:#?}", state.findings) };
    assert_eq!((finding.kind, finding.log, state.damaged()), (Kind::Transient, log.pos.0, 0));
}

/// Ends a pass after so many steps.
struct Steps(AtomicU32);

impl Conduct for Steps {
    fn stop(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_err()
    }
}

/// In pieces, each as of another process, a pass finds and counts what it does in one go.
#[test]
fn a_pass_goes_on_where_it_was_left() {
    let s = Surgeon::golden("gc-4k");
    let view = View::load(&s.device, &Options::default(), None).unwrap();
    let needed: Vec<Log> = logs(&s).into_iter().filter(|l| view.needed.any(l.pos.0..l.end())).collect();
    for log in [&needed[0], &needed[needed.len() / 2]] {
        flip(&s.device, (log.end() << 12) - 4096, 5);
    }
    let at_once = pass(&s.device);
    assert_eq!(at_once.findings.len(), 2);
    let mut text = serde_json::to_string(&State::new()).unwrap();
    let mut pieces = 0;
    loop {
        let mut state: State = serde_json::from_str(&text).unwrap();
        let steps = Steps(AtomicU32::new(9 + pieces % 5));
        let outcome = scrub(&s.device, &Options::default(), &mut state, &steps).unwrap();
        text = serde_json::to_string(&state).unwrap();
        pieces += 1;
        assert!(pieces < 10_000);
        if outcome == Outcome::Finished {
            assert_eq!((state.findings, state.counts), (at_once.findings, at_once.counts));
            break;
        }
        assert!(!state.finished);
    }
    assert!(pieces > 3, "{pieces}");
    // Not of another volume.
    let mut state: State = serde_json::from_str(&text).unwrap();
    state.uuid = "0".repeat(36);
    assert!(scrub(&s.device, &Options::default(), &mut state, &Unpaced).is_err());
}

#[test]
fn what_only_checkpoints_need_can_be_left_out() {
    let s = Surgeon::golden("basic-4k");
    let all = pass(&s.device);
    let mut live = State::new();
    let options = Options { live_only: true, ..Options::default() };
    scrub(&s.device, &options, &mut live, &Unpaced).unwrap();
    assert!(live.counts.logs <= all.counts.logs && live.counts.logs > 0);
    assert_eq!(live.counts.logs + live.counts.logs_left_out, all.counts.logs + all.counts.logs_left_out);
    // Damage where nothing is needed is no concern.
    let view = View::load(&s.device, &Options { live_only: true, ..Options::default() }, None).unwrap();
    let needs =
        |l: &Log| view.needed.any(l.pos.0..l.end()) || view.is_on_the_way(l.header.seq.get(), l.pos.0);
    if let Some(log) = logs(&s).iter().find(|l| !needs(l)) {
        flip(&s.device, (log.end() << 12) - 1, 1);
        let mut state = State::new();
        scrub(&s.device, &options, &mut state, &Unpaced).unwrap();
        assert_eq!(state.findings, []);
    }
}

/// Whatever a volume holds, the pass returns.
#[test]
fn mutated_volumes_do_no_harm() {
    let mut seed = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below.max(1)
    };
    let mut begun = 0;
    for name in ["basic-4k", "btree-1k", "cut-4k"] {
        let s = Surgeon::golden(name);
        let g = s.g();
        let all: Vec<Log> = logs(&s);
        for _ in 0..150 {
            let mut s = Surgeon { device: s.device.fork() };
            for _ in 0..=random(3) {
                let log = &all[random(all.len() as u64) as usize];
                // Heads and super roots as often as all else.
                let block = match random(3) {
                    0 => log.pos.0,
                    1 => log.end() - 1,
                    _ => log.pos.0 + random(log.nblocks()),
                };
                let mut bytes = s.read(block);
                for _ in 0..=random(4) {
                    let width = if random(2) == 0 { 64 } else { g.bs() as u64 };
                    let at = (random(width) & !3) as usize;
                    let value = [0, 1, u64::MAX, random(u64::MAX), 1 << random(64), g.end_block()]
                        [random(6) as usize];
                    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes()[..4]);
                }
                let sums = [Sums::All, Sums::Log, Sums::None][random(3) as usize];
                s.patch_if_possible(block, sums, &bytes);
            }
            let mut state = State::new();
            let done = scrub(&s.device, &Options::default(), &mut state, &Unpaced);
            begun += u32::from(done.is_ok());
        }
    }
    assert!(begun > 225, "{begun}");
}

/// A device that becomes another one.
struct Turns {
    before: MemoryDevice,
    after: MemoryDevice,
    turned: AtomicBool,
}

impl Turns {
    fn now(&self) -> &MemoryDevice {
        if self.turned.load(Ordering::Relaxed) { &self.after } else { &self.before }
    }
}

impl Device for Turns {
    fn len(&self) -> u64 {
        self.now().len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> silt_device::Result<()> {
        self.now().read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> silt_device::Result<()> {
        self.now().write_at(offset, bufs)
    }
    fn flush(&self) -> silt_device::Result<()> {
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> silt_device::Result<()> {
        self.now().discard(offset, len)
    }
    fn capabilities(&self) -> Capabilities {
        self.now().capabilities()
    }
}

/// Turns the device before the first log is read.
struct Turn<'a>(&'a Turns);

impl Conduct for Turn<'_> {
    fn pace(&self, _: u64) {
        self.0.turned.store(true, Ordering::Relaxed);
    }
}

/// A segment that was given back and is being overwritten while the pass goes on is no finding.
#[test]
fn a_segment_that_is_needed_no_more_is_no_finding() {
    let s = Surgeon::golden("gc-4k");
    let view = View::load(&s.device, &Options::default(), None).unwrap();
    let g = view.r.g;
    let range = |n: u64, used: u64| {
        let start = g.segment_start(SegNr(n)).0;
        start..start + used
    };
    let own = |block: &u64| view.dat.blocks.values().chain(view.dat.nodes.keys()).any(|b| b == block);
    let way = |n: u64| s.logs(n).iter().any(|l| view.is_on_the_way(l.header.seq.get(), l.pos.0));
    let (segment, used) = view
        .used
        .iter()
        .map(|(n, used)| (*n, *used))
        .filter(|(n, used)| {
            view.needed.any(range(*n, *used)) && !range(*n, *used).any(|b| own(&b)) && !way(*n)
        })
        .min_by_key(|(n, used)| view.needed.known(range(*n, *used)).count())
        .unwrap();
    let mut entries = Vec::new();
    view.for_each_entry(|v, e| {
        if range(segment, used).contains(&e.blocknr.get()) {
            entries.push(v);
        }
    })
    .unwrap();
    let mut after = Surgeon { device: s.device.fork() };
    for v in entries {
        after.patch_dat(v, |e| e.end = e.start);
    }
    let noise = vec![0x77; usize::try_from(used).unwrap() * g.bs()];
    after.device.write_at(g.byte_of(g.segment_start(SegNr(segment))), &[&noise]).unwrap();
    for changing in [true, false] {
        let device =
            Turns { before: s.device.fork(), after: after.device.fork(), turned: AtomicBool::new(false) };
        let mut state = State::new();
        let options = Options { changing, ..Options::default() };
        scrub(&device, &options, &mut state, &Turn(&device)).unwrap();
        // Where nobody writes it would be one.
        assert_eq!(state.findings.is_empty(), changing, "{:#?}", state.findings);
        assert!(state.findings.iter().all(|f| f.segment == segment));
    }
}

/// A pass over a volume that was begun before it changed goes on, and looks at what is there now.
#[test]
fn the_table_of_segments_is_not_trusted_alone() {
    let mut s = Surgeon::golden("basic-4k");
    let view = View::load(&s.device, &Options::default(), None).unwrap();
    let g = view.r.g;
    let all = pass(&s.device);
    let last = view.latest.pos.0;
    let log = logs(&s).into_iter().find(|l| view.needed.any(l.pos.0..l.end()) && l.pos.0 != last).unwrap();
    let segment = g.segment_of(log.pos);
    let (block, byte) = silt_format::segment_usage::place(&g, segment);
    let place = s.file(5)[&block];
    drop(view);
    // The entry says that nothing is in the segment.
    s.patch(place, |b| b[byte + 8..byte + 12].fill(0));
    flip(&s.device, (log.end() << 12) - 1, 7);
    let state = pass(&s.device);
    assert_eq!(state.findings.iter().map(|f| f.log).collect::<Vec<_>>(), [log.pos.0]);
    assert!(state.counts.logs <= all.counts.logs);
}
