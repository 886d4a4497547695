//! The device cannot read a block of the newest log, nor write it: the volume is mended around it, whatever block it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use silt_device::{Fault, MemoryDevice, Times};
use silt_engine::{OpenOptions, Volume};
use silt_format::super_block::STATE_VALID;
use silt_format::{BlockNr, Ino, SegNr};
use silt_repair::{Options, Plan, plan};
use silt_verify::surgeon::Surgeon;
use silt_verify::{Moment, Report, Tree};

use crate::common::{both_lost, checked, options, say, tree, unmounted};

/// What the newest log's block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Head,
    Root,
    /// Of a regular file.
    Data,
    Meta,
}

fn broken(device: &MemoryDevice, block: u64, bits: u32) -> Arc<Fault<MemoryDevice>> {
    let device = Fault::new(device.fork());
    let bytes = block << bits..(block + 1) << bits;
    device.fail_reads(bytes.clone(), Times::Always);
    device.fail_writes(bytes, Times::Always);
    Arc::new(device)
}

/// The owner of each block of the newest log, as far as it is data of a regular file of the newest tree.
fn kind(s: &Surgeon, files: &[(u64, Vec<u64>)], block: u64) -> (What, Option<u64>) {
    let log = s.latest();
    if block < log.pos.0 + u64::from(log.header.summary_blocks(&s.g())) {
        return (What::Head, None);
    }
    if block + 1 == log.end() {
        return (What::Root, None);
    }
    let owner = files.iter().find(|(_, blocks)| blocks.contains(&block)).map(|(ino, _)| *ino);
    (if owner.is_some() { What::Data } else { What::Meta }, owner)
}

/// Data blocks of all regular files.
fn regular(s: &Surgeon) -> Vec<(u64, Vec<u64>)> {
    let walked = Tree::open(&s.device, Moment::Latest).unwrap().walk().unwrap();
    let inos = walked.iter().filter(|w| w.attributes.is_regular()).map(|w| w.attributes.ino);
    inos.map(|ino| (ino, s.file(ino).into_values().collect())).collect()
}

/// Whether a segment is marked as bad.
fn is_bad(device: &Arc<Fault<MemoryDevice>>, segment: SegNr) -> bool {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    Volume::open(device.clone(), &options).unwrap().0.segment_info(segment).unwrap().error
}

/// Findings besides those of logs that cannot be read.
fn left(report: &Report) -> Vec<String> {
    let of_log = |f: &silt_verify::Finding| f.id == "device-read" && f.place.segment.is_some();
    report.errors().filter(|f| !of_log(f)).map(ToString::to_string).collect()
}

/// It is mounted, the root directory's times are changed, and it is unmounted.
fn goes_on(device: &Arc<Fault<MemoryDevice>>) -> silt_engine::Result<()> {
    let (mut v, _) = Volume::open(device.clone(), &OpenOptions::default())?;
    v.take_over(1_900_000_001)?;
    v.attr_mut(Ino::ROOT)?.uid += 1;
    v.close(1_900_000_002)
}

fn one(sound: &Surgeon, files: &[(u64, Vec<u64>)], block: u64, zero: bool) -> Result<Plan, String> {
    let g = sound.g();
    let (what, owner) = kind(sound, files, block);
    let device = broken(&sound.device, block, g.block_bits);
    let made =
        plan(device.clone(), &Options { zero_unreadable: zero, ..options() }).map_err(|e| e.to_string())?;
    let err = |why: String| Err(format!("block {block}, {what:?} of {owner:?}: {why}\n{}", say(&made)));
    if made.is_empty() {
        return err("nothing is planned".into());
    }
    if let Err(e) = made.apply(&*device) {
        return err(e.to_string());
    }
    let after = checked(&*device);
    let data_stays = what == What::Data && !zero;
    if !left(&after).is_empty() || (!data_stays && !after.is_clean()) {
        return err(format!(
            "left: {:?}",
            after.errors().take(4).map(ToString::to_string).collect::<Vec<_>>()
        ));
    }
    let segment = g.segment_of(BlockNr(block));
    if !is_bad(&device, segment) {
        return err("its segment is not marked as bad".into());
    }
    let Some(is) = tree(&*device, Moment::Latest) else { return err("the tree cannot be read".into()) };
    let was = tree(&sound.device, Moment::Latest).unwrap();
    let other: Vec<_> = was.iter().filter(|(p, d)| is.get(*p) != Some(*d)).map(|(p, _)| p.clone()).collect();
    let said = say(&made);
    match what {
        What::Data => {
            let Some(owner) = owner else { return err("nobody's".into()) };
            let path = Tree::open(&sound.device, Moment::Latest).unwrap().walk().unwrap();
            let paths: Vec<_> =
                path.into_iter().filter(|w| w.attributes.ino == owner).map(|w| w.path).collect();
            if other.iter().any(|p| !paths.contains(p)) {
                return err(format!("others are different: {other:?}"));
            }
            let named = |p: &Vec<u8>| format!("inode {owner} (/{}): bytes ", String::from_utf8_lossy(p));
            if !paths.iter().any(|p| said.contains(&named(p))) {
                return err("the bytes are not named".into());
            }
        }
        _ if other.is_empty() => {}
        _ => {
            let told =
                said.contains("is lost") || said.contains(" is put back ") || said.contains("names of lost");
            if !told {
                return err(format!("{} files are others, and nothing is said of it", other.len()));
            }
        }
    }
    if let Err(e) = goes_on(&device) {
        return err(format!("it cannot be used: {e}"));
    }
    if !left(&checked(&*device)).is_empty() {
        return err("a mount left errors".into());
    }
    let second = plan(device, &Options { zero_unreadable: zero, ..options() }).map_err(|e| e.to_string())?;
    if !data_stays && !second.is_empty() {
        return err(format!("a second repair finds work:\n{}", say(&second)));
    }
    Ok(made)
}

/// Every block of the newest log in turn; how many of each kind there were.
fn every_block(name: &str, s: &Surgeon) -> BTreeMap<What, u32> {
    let (files, log) = (regular(s), s.latest());
    let (mut run, mut failed) = (BTreeMap::new(), Vec::new());
    for block in log.pos.0..log.end() {
        *run.entry(kind(s, &files, block).0).or_insert(0) += 1;
        for zero in [false, true] {
            if let Err(why) = one(s, &files, block, zero) {
                failed.push(format!("{name}, zero {zero}: {why}"));
            }
        }
    }
    println!("{name}: {run:?}");
    assert!(failed.is_empty(), "{}:\n{}", failed.len(), failed.join("\n"));
    run
}

#[test]
fn every_block_of_the_newest_log_may_be_lost() {
    for name in ["basic-4k", "cut-4k"] {
        for clean in [false, true] {
            let mut s = Surgeon::golden(name);
            if clean {
                unmounted(&mut s);
            } else {
                s.patch_super((true, true), |sb| sb.state = (sb.state.get() & !STATE_VALID).into());
            }
            let run = every_block(&format!("{name}, clean {clean}"), &s);
            assert!(run[&What::Head] > 0 && run[&What::Root] == 1 && run[&What::Meta] > 9, "{run:?}");
        }
    }
}

/// The newest log has a summary of several blocks, and mostly holds data of files.
#[test]
fn every_block_of_a_log_of_file_data_may_be_lost() {
    for clean in [false, true] {
        let mut s = Surgeon::golden("basic-1k");
        let device = Arc::new(s.device.fork());
        let (mut v, _) = Volume::open(device.clone(), &OpenOptions::default()).unwrap();
        v.take_over(1_800_000_000).unwrap();
        let bs = s.g().bs();
        for (path, blocks) in [("big", 70), ("hello.txt", 1)] {
            for n in 0..blocks {
                let mut block = silt_engine::zeroed(bs);
                silt_engine::writable(&mut block).fill(n as u8 + 1);
                v.write_block(Ino(s.ino(path)), n, block).unwrap();
            }
        }
        v.close(1_800_000_001).unwrap();
        drop(v);
        s.device = device.fork();
        if !clean {
            s.patch_super((true, true), |sb| sb.state = (sb.state.get() & !STATE_VALID).into());
        }
        assert!(checked(&s.device).is_clean());
        let run = every_block(&format!("file data, clean {clean}"), &s);
        assert!(run[&What::Head] > 1 && run[&What::Data] > 60, "{run:?}");
    }
}

/// Both super blocks are lost as well: nothing is written over the sector all the same.
#[test]
fn the_newest_log_may_be_lost_together_with_the_super_blocks() {
    let mut s = Surgeon::golden("cut-4k");
    both_lost(&mut s);
    let (g, log) = (Surgeon::golden("cut-4k").g(), Surgeon::golden("cut-4k").latest());
    for block in [log.pos.0, log.end() - 1] {
        let device = broken(&s.device, block, g.block_bits);
        let made = plan(device.clone(), &options()).unwrap();
        made.apply(&*device).unwrap();
        assert!(checked(&*device).is_clean(), "{}", say(&made));
        assert!(is_bad(&device, g.segment_of(BlockNr(block))), "{}", say(&made));
        goes_on(&device).unwrap();
    }
}

/// A sector of any log but the newest costs nothing that does not lie in it.
#[test]
fn a_block_of_an_older_log_may_be_lost() {
    for name in ["basic-4k", "gc-4k"] {
        let mut s = Surgeon::golden(name);
        unmounted(&mut s);
        let (g, newest) = (s.g(), s.latest());
        let whole = tree(&s.device, Moment::Latest).unwrap();
        let logs: Vec<_> = (0..g.nsegments).flat_map(|n| s.logs(n)).filter(|l| l.pos != newest.pos).collect();
        for log in &logs {
            for block in [log.pos.0, log.pos.0 + log.nblocks() / 2, log.end() - 1] {
                let device = broken(&s.device, block, 12);
                let what = format!("{name}: block {block} of {} to {}", log.pos, log.end());
                let head = block == log.pos.0;
                let before = checked(&*device);
                // What a block is that no summary tells of is no fault of its own.
                assert!(!head || before.errors().count() < 3, "{what}: {} errors", before.errors().count());
                let readable = tree(&*device, Moment::Latest);
                let made = plan(device.clone(), &options()).unwrap();
                made.apply(&*device).unwrap();
                let mended = tree(&*device, Moment::Latest).unwrap();
                for (path, digest) in readable.iter().flatten() {
                    let path = String::from_utf8_lossy(path);
                    assert_eq!(mended.get(path.as_bytes()), Some(digest), "{what}: /{path}\n{}", say(&made));
                }
                assert!(!head || mended == whole, "{what}\n{}", say(&made));
                assert!(left(&checked(&*device)).is_empty(), "{what}\n{}", say(&made));
            }
        }
    }
}
