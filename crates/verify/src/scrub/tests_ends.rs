//! What lies outside the newest checkpoint and what it leads to: the super blocks, and synced data behind it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use silt_device::{Fault, Times};
use silt_format::BlockNr;
use silt_format::summary::{LOGBGN, LOGEND, SR, SYNDT};
use silt_format::super_block::secondary_offset;

use super::*;
use crate::surgeon::{Sums, Surgeon};

const WHOLE: u16 = LOGBGN | SYNDT | LOGEND;

fn pass(device: &dyn Device) -> State {
    let mut state = State::new();
    scrub(device, &Options::default(), &mut state, &Unpaced).unwrap();
    assert!(state.bytes_behind == state.bytes_in_use);
    state
}

fn not_reached(device: &dyn Device) -> Option<crate::Unreached> {
    crate::behind(device)?.synced
}

fn turn(device: &dyn Device, at: u64, mask: u8) {
    let mut byte = [0];
    device.read_at(at, &mut byte).unwrap();
    device.write_at(at, &[&[byte[0] ^ mask]]).unwrap();
}

#[test]
fn a_damaged_super_block_is_told() {
    let s = Surgeon::golden("basic-4k");
    assert_eq!(pass(&s.device).damaged(), 0);
    let second = secondary_offset(s.device.len());
    for (primary, at) in [(true, 1024), (false, second)] {
        let one = |change: &dyn Fn(&dyn Device)| {
            let device = s.device.fork();
            change(&device);
            let state = pass(&device);
            let [found] = state.super_blocks.as_slice() else { panic!("{:?}", state.super_blocks) };
            assert_eq!((found.primary, state.damaged()), (primary, 1));
            assert!(state.findings.is_empty(), "{:?}", state.findings);
            found.clone()
        };
        // A field, the magic number, the checksum itself.
        for byte in [60, 6, 17] {
            let found = one(&|d| turn(d, at + byte, 4));
            assert_eq!((found.kind, found.byte, found.bytes), (Kind::FlippedBit, at + byte, 1), "{found:?}");
            assert_eq!(found.flip.map(|f| (f.bit, f.found ^ f.right)), Some((2, 4)));
        }
        let found = one(&|d| {
            turn(d, at + 60, 4);
            turn(d, at + 90, 9);
        });
        assert_eq!((found.kind, found.byte, found.flip), (Kind::Checksum, at, None));
        assert_eq!(one(&|d| d.write_at(at, &[&[0; 1024]]).unwrap()).kind, Kind::Header);
        // What the checksum does not cover counts for nobody.
        let device = s.device.fork();
        turn(&device, at + 1000, 1);
        assert_eq!(pass(&device).damaged(), 0);
        let device = Fault::new(s.device.fork());
        device.fail_reads(at + 512..at + 1024, Times::Always);
        let state = pass(&device);
        let [found] = state.super_blocks.as_slice() else { panic!("{:?}", state.super_blocks) };
        assert_eq!((found.primary, found.kind), (primary, Kind::Unreadable));
        assert_eq!((found.byte, found.bytes), (at + 512, 512));
        assert!(found.line().contains("512 bytes cannot be read"), "{}", found.line());
    }
}

#[test]
fn a_device_that_was_cut_or_copied_to_a_longer_one_is_told_apart() {
    let s = Surgeon::golden("basic-4k");
    let whole = s.device.len();
    let second = secondary_offset(whole);
    let mut bytes = vec![0; usize::try_from(whole).unwrap()];
    s.device.read_at(0, &mut bytes).unwrap();
    bytes.truncate(bytes.len() - 4096);
    let state = pass(&silt_device::MemoryDevice::from_bytes(&bytes));
    let [found] = state.super_blocks.as_slice() else { panic!("{:?}", state.super_blocks) };
    assert_eq!((found.primary, found.kind, found.byte, state.damaged()), (false, Kind::Header, second, 1));
    assert!(found.line().contains(&format!("ends before it, at byte {}", whole - 4096)), "{}", found.line());
    // On a longer one it is where it was, until `silt resize`.
    let longer = s.device.fork();
    longer.grow(whole + (20 << 20));
    assert_eq!(pass(&longer).damaged(), 0);
    turn(&longer, second + 60, 4);
    let state = pass(&longer);
    let [found] = state.super_blocks.as_slice() else { panic!("{:?}", state.super_blocks) };
    assert_eq!((found.primary, found.kind, found.byte), (false, Kind::FlippedBit, second + 60));
}

/// Three groups of synced data behind the newest checkpoint: their first blocks, and the inode.
fn synced() -> (Surgeon, Vec<u64>, u64) {
    let mut s = Surgeon::golden("cut-4k");
    let ino = s.ino("a0");
    let mut at = s.latest().end();
    let mut starts = Vec::new();
    for offset in 0..3 {
        starts.push(at);
        at = s.append_log(at, WHOLE, &[(ino, offset, vec![b'1' + offset as u8; 4096])]);
    }
    (s, starts, ino)
}

#[test]
fn synced_data_behind_the_newest_checkpoint_is_verified() {
    let (s, starts, ino) = synced();
    let sound = pass(&s.device);
    assert_eq!(sound.damaged(), 0, "{sound:#?}");
    let without = pass(&Surgeon::golden("cut-4k").device);
    assert_eq!(sound.counts.logs, without.counts.logs + 3);
    // One bit of any of them.
    for (n, start) in starts.iter().enumerate() {
        for byte in [4096 + 77, 16, 100] {
            if (n, byte) == (2, 16) {
                // With another sequence number nothing tells that this was the last log.
                continue;
            }
            let device = s.device.fork();
            turn(&device, (start << 12) + byte, 0x10);
            let state = pass(&device);
            let [finding] = state.findings.as_slice() else { panic!("{n}, {byte}: {:#?}", state.findings) };
            assert_eq!((finding.kind, finding.log, finding.blocks), (Kind::FlippedBit, *start, 2), "{n}");
            let spot = &finding.spots[0];
            assert_eq!((spot.block, u64::from(spot.byte)), (start + byte / 4096, byte % 4096));
            if byte >= 4096 {
                let owner = spot.owner.as_ref().unwrap();
                assert_eq!((owner.inode, &owner.path, owner.until), (ino, &Some("/a0".into()), None));
                assert_eq!((spot.file_byte, spot.unused), (Some(n as u64 * 4096 + 77), false));
            }
        }
    }
}

#[test]
fn damage_is_told_from_what_a_power_cut_leaves() {
    let (s, starts, ino) = synced();
    for (n, start) in starts.iter().enumerate() {
        let last = n == 2;
        // Data, and the head.
        for byte in [4096, 0] {
            let device = s.device.fork();
            device.write_at((start << 12) + byte, &[&[0xEE; 64]]).unwrap();
            let state = pass(&device);
            // Without its head nothing tells that the middle one was not another file's, which shares its flush.
            if last || (n, byte) == (1, 0) {
                assert_eq!(state.damaged(), 0, "{byte}: {state:#?}");
                continue;
            }
            let [finding] = state.findings.as_slice() else { panic!("{n}, {byte}: {state:#?}") };
            assert_eq!((finding.log, finding.blocks), (*start, 2), "{n}, {byte}");
            if byte > 0 {
                assert_eq!(finding.kind, Kind::Checksum);
                assert_eq!(finding.suspects.iter().map(|o| o.inode).collect::<Vec<_>>(), [ino]);
            } else {
                assert_eq!((finding.kind, finding.unknown), (Kind::Header, 2));
            }
            let [problem] = state.problems.as_slice() else { panic!("{:?}", state.problems) };
            let follow = if n == 0 { "2 whole logs follow" } else { "1 whole log follows" };
            let said =
                format!("a mount comes no further than block {start}, behind which {follow}; silt rescue");
            assert!(problem.starts_with(&said), "{problem}");
        }
        let device = Fault::new(s.device.fork());
        device.fail_reads(((start + 1) << 12) + 512..((start + 1) << 12) + 1024, Times::Always);
        let state = pass(&device);
        let [finding] = state.findings.as_slice() else { panic!("{n}: {state:#?}") };
        let spot = &finding.spots[0];
        assert_eq!((finding.kind, spot.block, spot.byte), (Kind::Unreadable, start + 1, 512));
        assert_eq!(spot.owner.as_ref().map(|o| (o.inode, o.first)), Some((ino, n as u64)));
    }
}

/// A group of two logs of which the first is torn is what a power cut leaves, and so is one without its last log.
#[test]
fn torn_groups_are_no_damage() {
    for damaged in [false, true] {
        let mut s = Surgeon::golden("cut-4k");
        let ino = s.ino("a0");
        let first = s.latest().end();
        let second = s.append_log(first, LOGBGN | SYNDT, &[(ino, 0, vec![1; 4096])]);
        let third = s.append_log(second, LOGEND | SYNDT, &[(ino, 1, vec![2; 4096])]);
        s.device.write_at((first + 1) << 12, &[&[0xEE; 64]]).unwrap();
        if damaged {
            // Whoever wrote this had written the others before.
            s.append_log(third, WHOLE, &[(ino, 2, vec![3; 4096])]);
        }
        let state = pass(&s.device);
        assert_eq!(state.findings.len(), usize::from(damaged), "{state:#?}");
    }
}

/// Logs of several files may have been written before one flush, but not two of one file.
#[test]
fn files_that_share_a_flush_are_no_damage() {
    for (names, damaged) in [(["a0", "a1"], false), (["a0", "a0"], true)] {
        let mut s = Surgeon::golden("cut-4k");
        let first = s.latest().end();
        let mut at = first;
        for name in names {
            let ino = s.ino(name);
            at = s.append_log(at, WHOLE, &[(ino, 0, vec![1; 4096])]);
        }
        s.device.write_at((first + 1) << 12, &[&[0xEE; 64]]).unwrap();
        assert_eq!(pass(&s.device).findings.len(), usize::from(damaged), "{names:?}");
        let lost = not_reached(&s.device).unwrap();
        assert_eq!((lost.certain, lost.logs), (damaged, 1));
        assert_eq!(lost.to_string().contains("may be lost"), !damaged, "{lost}");
    }
}

/// A power cut in one large sync may leave its last log alone.
#[test]
fn a_torn_sync_of_several_logs_is_no_damage() {
    let mut s = Surgeon::golden("cut-4k");
    let ino = s.ino("a0");
    let first = s.latest().end();
    let second = s.append_log(first, LOGBGN | SYNDT, &[(ino, 0, vec![1; 4096])]);
    let third = s.append_log(second, SYNDT, &[(ino, 1, vec![2; 4096])]);
    s.append_log(third, LOGEND | SYNDT, &[(ino, 2, vec![3; 4096])]);
    s.device.write_at((first + 1) << 12, &[&[0xEE; 64]]).unwrap();
    s.device.write_at(second << 12, &[&[0xEE; 64]]).unwrap();
    assert_eq!(pass(&s.device).damaged(), 0);
    assert!(!not_reached(&s.device).unwrap().certain);
}

/// A log that belongs to a later checkpoint than the next tells that one is missing.
#[test]
fn a_missing_checkpoint_is_told_by_any_log_behind_it() {
    for later in [false, true] {
        let mut s = Surgeon::golden("cut-4k");
        let first = s.latest().end();
        let (a, b) = (s.ino("a0"), s.ino("a1"));
        let second = s.append_log(first, WHOLE, &[(a, 0, vec![1; 4096])]);
        s.append_log(second, WHOLE, &[(b, 0, vec![2; 4096])]);
        if later {
            // ss_cno (spec 3.3).
            s.patch_with(second, Sums::Summary, |head| head[56] += 1);
        }
        s.device.write_at((first + 1) << 12, &[&[0xEE; 64]]).unwrap();
        assert_eq!(pass(&s.device).findings.len(), usize::from(later));
        assert_eq!(not_reached(&s.device).unwrap().certain, later);
    }
}

/// An earlier mount that went on in this segment may have left logs behind those of the last one (spec 4.6).
#[test]
fn what_an_earlier_mount_left_is_not_told_as_lost() {
    for (byte, earlier) in [(0, 0), (0, 1), (4096, 0), (4096, 1)] {
        let (mut s, starts, _) = synced();
        // ss_create (spec 3.3): made before all others.
        s.patch_with(starts[2], Sums::Summary, |head| head[24] -= earlier);
        s.device.write_at((starts[1] << 12) + byte, &[&[0xEE; 64]]).unwrap();
        let lost = not_reached(&s.device).map(|lost| (lost.logs, lost.certain));
        if earlier == 0 {
            assert_eq!(lost, Some((1, byte > 0)));
            continue;
        }
        assert_eq!(pass(&s.device).damaged(), 0, "{byte}");
        // The torn one has a head of its own.
        assert_eq!(lost, (byte > 0).then_some((0, false)));
    }
    // What directly follows is taken by a mount, whatever the clock did.
    let (mut s, starts, _) = synced();
    s.patch_with(starts[1], Sums::Summary, |head| head[24] -= 1);
    s.device.write_at((starts[2] << 12) + 4096, &[&[0xEE; 64]]).unwrap();
    let lost = not_reached(&s.device).unwrap();
    assert_eq!((lost.block, lost.logs), (starts[2], 0));
}

/// A block behind the newest log that cannot be read: a mount looks there.
#[test]
fn the_block_behind_the_newest_log_is_looked_at() {
    let s = Surgeon::golden("cut-4k");
    let end = s.latest().end();
    let device = Fault::new(s.device);
    device.fail_reads(end << 12..(end << 12) + 512, Times::Always);
    let state = pass(&device);
    let [finding] = state.findings.as_slice() else { panic!("{state:#?}") };
    assert_eq!((finding.kind, finding.log), (Kind::Unreadable, end));
}

/// Every log in it verifies, but a sequence number is given out once.
#[test]
fn a_segment_over_another_one_is_told() {
    let mut told = 0;
    for name in ["basic-4k", "gc-4k"] {
        let s = Surgeon::golden(name);
        let g = s.g();
        let used: Vec<u64> =
            View::load(&s.device, &Options::default(), None).unwrap().used.into_keys().collect();
        for (from, over) in used.iter().zip(used.iter().skip(1)).filter(|(from, _)| **from > 0) {
            let torn = s.device.fork();
            let blocks = g.segment_blocks(SegNr(*from)).min(g.segment_blocks(SegNr(*over)));
            let mut bytes = vec![0; usize::try_from(blocks).unwrap() * g.bs()];
            torn.read_at(g.byte_of(g.segment_start(SegNr(*from))), &mut bytes).unwrap();
            torn.write_at(g.byte_of(g.segment_start(SegNr(*over))), &[&bytes]).unwrap();
            let mut state = State::new();
            // Where the newest super root went with it, none can be made.
            if scrub(&torn, &Options::default(), &mut state, &Unpaced).is_ok() {
                let words = format!("segments {from} and {over} have the same sequence number");
                told += usize::from(state.problems.iter().any(|p| p.starts_with(&words)));
            }
        }
    }
    assert!(told > 2, "{told}");
}

/// Where the last checkpoint's own log has a flipped bit, what lies in it is not of the past.
#[test]
fn what_was_written_last_is_not_of_the_past() {
    let mut s = Surgeon::golden("basic-4k");
    let (g, newest) = (s.g(), s.latest());
    let mut roots: Vec<_> = (0..g.nsegments)
        .flat_map(|n| s.logs(n))
        .filter(|l| l.header.has(silt_format::summary::SR) && l.header.seq.get() <= newest.header.seq.get())
        .collect();
    roots.sort_by_key(|l| (l.header.seq.get(), l.pos.0));
    let base = roots.iter().rev().find(|l| l.pos != newest.pos).unwrap();
    s.patch_super((true, true), |b| {
        b.state = 0.into();
        b.last_pseg = base.pos.0.into();
        b.last_seq = base.header.seq;
        b.last_cno = base.header.cno;
    });
    turn(&s.device, g.byte_of(BlockNr(newest.end() - 2)) + 70, 4);
    let state = pass(&s.device);
    let finding =
        state.findings.iter().find(|f| f.log == newest.pos.0).unwrap_or_else(|| panic!("{state:#?}"));
    let spot = &finding.spots[0];
    assert_eq!((&*spot.what, spot.unused), ("a block written behind the newest checkpoint", false));
}

/// Logs in the segments behind them are found by what is left of these.
#[test]
fn segments_in_a_row_without_a_head_hide_nothing_behind_them() {
    for (name, row) in [("basic-1k", 4), ("basic-4k", 6)] {
        let mut s = Surgeon::golden(name);
        let (g, newest) = (s.g(), s.latest());
        let logs = s.logs(0);
        let base = logs.iter().find(|l| l.header.has(SR)).unwrap();
        s.patch_super((true, true), |b| {
            b.state = 0.into();
            b.last_pseg = base.pos.0.into();
            b.last_seq = base.header.seq;
            b.last_cno = base.header.cno;
        });
        // The rest of the first segment, and the heads of all others.
        for log in logs.iter().filter(|l| l.pos.0 > base.pos.0) {
            s.device.write_at(g.byte_of(log.pos), &[&vec![0xEE; g.bs()]]).unwrap();
        }
        for segment in 1..=row {
            s.device.write_at(g.byte_of(g.segment_start(SegNr(segment))), &[&vec![0xEE; g.bs()]]).unwrap();
        }
        assert_eq!(g.segment_of(newest.pos).0, row);
        let logs = crate::behind(&s.device).unwrap().logs.unwrap();
        assert!(logs.contains(&format!("checkpoint {}", newest.header.cno.get())), "{name}: {logs}");
    }
}
