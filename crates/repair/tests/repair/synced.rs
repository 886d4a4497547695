//! Synced data behind the newest checkpoint: what of it is lost is said, and all else stays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use silt_device::{Device, Fault, MemoryDevice, Times};
use silt_format::BlockNr;
use silt_format::summary::SYNDT;
use silt_repair::{errors, plan};
use silt_verify::rescue::Rescue;
use silt_verify::surgeon::Surgeon;
use silt_verify::{Moment, Tree, Unreached, Unwatched, behind};

use crate::common::{checked, noise, options, say};

/// Logs of synced data behind the newest checkpoint, in order.
fn synced(s: &Surgeon) -> Vec<silt_verify::surgeon::Log> {
    let (g, latest) = (s.g(), s.latest());
    let mut all: Vec<_> = (0..g.nsegments).flat_map(|n| s.logs(n)).collect();
    let behind = |l: &silt_verify::surgeon::Log| {
        (l.header.seq.get(), l.pos.0) > (latest.header.seq.get(), latest.pos.0)
            && l.header.seq.get() < latest.header.seq.get() + 100
    };
    all.retain(|l| l.header.has(SYNDT) && behind(l));
    all.sort_by_key(|l| (l.header.seq.get(), l.pos.0));
    all
}

/// Synced data that no mount comes to.
fn unreached(device: &dyn Device) -> Option<Unreached> {
    behind(device)?.synced
}

/// What a repair and a rescue say; both say the same.
fn said(device: Arc<dyn Device>) -> Option<Unreached> {
    let made = plan(device.clone(), &options()).unwrap();
    assert_eq!(errors(&made.after), 0, "{}", say(&made));
    let found = unreached(&*device);
    assert_eq!(found, made.synced_lost, "{}", say(&made));
    assert_eq!(found, Rescue::open(&*device, &Unwatched).unwrap().unreached());
    found
}

#[test]
fn what_was_synced_and_is_lost_is_said() {
    for name in ["dsync-4k", "dsync-1k"] {
        let s = Surgeon::golden(name);
        let (g, logs) = (s.g(), synced(&s));
        assert!(logs.len() > 2, "{name}: {}", logs.len());
        let whole = said(Arc::new(s.device.fork()));
        assert_eq!(whole, None, "{name}: nothing is lost");
        for (n, log) in logs
            .iter()
            .enumerate()
            .step_by((logs.len() / 4).max(1))
            .chain(logs.iter().enumerate().next_back())
        {
            let behind = (logs.len() - n - 1) as u64;
            for place in [0, 1, log.nblocks() / 2, log.nblocks() - 1] {
                let what = format!("{name}: log {n} of {} at {}, block {place}", logs.len(), log.pos);
                let (at, bytes) = (g.byte_of(BlockNr(log.pos.0 + place)), u64::from(g.block_size));
                let torn: MemoryDevice = s.device.fork();
                torn.write_at(at, &[&noise(g.bs(), at)]).unwrap();
                let found = said(Arc::new(torn));
                let head = place < u64::from(log.header.summary_blocks(&g));
                if head && behind == 0 {
                    // As if it had never been written.
                    continue;
                }
                let found = found.unwrap_or_else(|| panic!("{what}: nothing is said"));
                assert_eq!((found.checkpoint, found.logs), (s.cno(), behind), "{what}");
                assert_eq!(found.unknown, head, "{what}");
                assert_eq!(found.block, log.pos.0, "{what}");
                let told = found.to_string();
                // The last ones may have been torn before anybody was told that they were there.
                assert!(found.certain || n > 0, "{what}: its file is synced again behind it");
                assert!(!found.certain || behind > 0, "{what}");
                let is = if found.certain { "is lost" } else { "may be lost" };
                assert!(told.contains(&format!("synced data behind checkpoint {} {is}", s.cno())), "{told}");
                assert!(head || (!found.files.is_empty() && told.contains(": bytes ")), "{what}: {told}");
                // The same where the device cannot read it.
                let broken = Fault::new(s.device.fork());
                broken.fail_reads(at..at + bytes, Times::Always);
                let made = plan(Arc::new(broken), &options()).unwrap();
                assert!(made.synced_lost.is_some() || say(&made).contains(" lost"), "{what}: {}", say(&made));
            }
        }
    }
}

/// A repair of something else takes in what can be, and leaves a sound volume.
#[test]
fn what_lies_before_the_damage_is_taken_in() {
    let s = Surgeon::golden("dsync-4k");
    let logs = synced(&s);
    let torn = s.device.fork();
    let at = s.g().byte_of(BlockNr(logs[logs.len() / 2].end() - 1));
    torn.write_at(at, &[&noise(s.g().bs(), 3)]).unwrap();
    torn.write_at(silt_format::super_block::secondary_offset(torn.len()), &[&[7; 512]]).unwrap();
    let made = plan(Arc::new(torn.fork()), &options()).unwrap();
    assert!(made.synced_lost.is_some() && !made.is_empty(), "{}", say(&made));
    made.apply(&torn).unwrap();
    assert!(checked(&torn).is_clean(), "{}", say(&made));
}

/// Every block of the newest checkpoint's own log in turn, but of files' data: what was synced behind it is there in the
/// files it belongs to, also where their inodes had to be mended first.
#[test]
fn synced_data_waits_for_its_files() {
    for name in ["dsync-4k", "dsync-1k"] {
        let s = Surgeon::golden(name);
        let (g, logs, latest) = (s.g(), synced(&s), s.latest());
        let rescue = Rescue::open(&s.device, &Unwatched).unwrap();
        let files: BTreeSet<u64> = logs
            .iter()
            .flat_map(|log| log.pos.0..log.end())
            .filter_map(|block| rescue.records().at(block).map(|c| c.ino))
            .collect();
        let sound = contents(&s.device, &files);
        assert!(!files.is_empty() && sound.len() == files.len(), "{name}: {files:?}");
        let mut taken_in = 0;
        for block in latest.pos.0..latest.end() {
            if rescue.records().at(block).is_some_and(|c| c.ino >= 11) {
                continue;
            }
            let torn = s.device.fork();
            torn.write_at(g.byte_of(BlockNr(block)), &[&noise(g.bs(), block)]).unwrap();
            let made = plan(Arc::new(torn.fork()), &options()).unwrap();
            let what = format!("{name}: block {block}\n{}", say(&made));
            assert_eq!(errors(&made.after), 0, "{what}");
            made.apply(&torn).unwrap();
            // Without its head or its super root nothing tells that it was ever there.
            if made.after.stats.last_cno < s.cno() || made.unreached.is_some() || made.synced_lost.is_some() {
                continue;
            }
            taken_in += 1;
            assert_eq!(contents(&torn, &files), sound, "{what}");
        }
        assert!(taken_in > 4, "{name}: {taken_in}");
    }
}

/// Contents of files by inode number.
fn contents(device: &MemoryDevice, files: &BTreeSet<u64>) -> BTreeMap<u64, Vec<u8>> {
    let tree = Tree::open(device, Moment::Latest).unwrap();
    let read = |ino: &u64| {
        let mut content = Vec::new();
        let part = |at: u64, bytes: &[u8]| {
            content.resize(usize::try_from(at).unwrap(), 0);
            content.extend_from_slice(bytes);
        };
        tree.for_each_part(*ino, part).ok()?;
        Some((*ino, content))
    };
    files.iter().filter_map(read).collect()
}

#[test]
fn a_length_that_is_wrong_hides_no_log_behind_it() {
    for name in ["dsync-4k", "dsync-1k"] {
        let s = Surgeon::golden(name);
        let (g, logs) = (s.g(), synced(&s));
        for log in logs.iter().take(logs.len() - 1) {
            for bit in 0..8 {
                let torn: MemoryDevice = s.device.fork();
                // The number of blocks (format 3.2).
                let at = g.byte_of(BlockNr(log.pos.0)) + 40;
                let mut byte = [0];
                torn.read_at(at, &mut byte).unwrap();
                torn.write_at(at, &[&[byte[0] ^ 1 << bit]]).unwrap();
                let found = unreached(&torn).unwrap_or_else(|| panic!("{name}: {} bit {bit}", log.pos));
                assert_eq!(found.block, log.pos.0, "{name}: {} bit {bit}", log.pos);
            }
        }
    }
}
