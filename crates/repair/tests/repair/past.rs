//! Damage in past checkpoints: mended in them, none of them is lost, and nothing else changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use silt_device::{Fault, MemoryDevice, Times};
use silt_format::btree::is_btree;
use silt_format::inode::RawInode;
use silt_format::palloc::Layout;
use silt_repair::{Options, errors, plan};
use silt_verify::surgeon::{Sums, Surgeon};
use silt_verify::{Moment, Tree};

use crate::common::{checked, conflicts, noise, options, say, snapshots, tree, trees, unmounted};

/// Snapshots are not given up.
fn gentle() -> Options {
    Options { drop_snapshots: false, ..options() }
}

/// Blocks of inode files and directories that past checkpoints have and the latest has not, each with one of the
/// checkpoints that have it.
fn past_blocks(s: &Surgeon) -> Vec<(u64, u64, u64)> {
    let last = s.cno();
    let blocks = |cno: u64| {
        let mut all: Vec<(u64, u64)> = s.past_file(cno, 6).into_values().map(|b| (6, b)).collect();
        let walked = Tree::open(&s.device, Moment::Checkpoint(cno)).unwrap().walk().unwrap();
        for w in walked.iter().filter(|w| w.attributes.is_directory()) {
            let ino = w.attributes.ino;
            all.extend(s.past_file(cno, ino).into_values().map(|b| (ino, b)));
        }
        all
    };
    let mut known: BTreeSet<u64> = blocks(last).into_iter().map(|(_, b)| b).collect();
    let mut all = Vec::new();
    for (c, _) in trees(&s.device).into_iter().filter(|(c, _)| *c < last) {
        all.extend(blocks(c).into_iter().filter(|(_, b)| known.insert(*b)).map(|(ino, b)| (c, ino, b)));
    }
    all
}

/// Repairs, and holds every checkpoint against what it was.
fn keeps_all(sound: &MemoryDevice, broken: &MemoryDevice) -> Result<(String, u64), String> {
    let before: BTreeMap<u64, _> = trees(sound).into_iter().collect();
    let readable: BTreeMap<u64, _> = trees(broken).into_iter().collect();
    let device = broken.fork();
    let made = plan(Arc::new(broken.fork()), &gentle()).map_err(|e| e.to_string())?;
    let said = say(&made);
    if errors(&made.after) > 0 {
        return Err(format!("{} errors are left\n{said}", errors(&made.after)));
    }
    made.apply(&device).map_err(|e| e.to_string())?;
    if !checked(&device).is_clean() {
        return Err(format!("a check finds errors\n{said}"));
    }
    let known = conflicts(sound);
    let twice: Vec<_> = conflicts(&device).into_iter().filter(|c| !known.contains(c)).collect();
    if !twice.is_empty() {
        return Err(format!("no cleaner takes {twice:?}\n{said}"));
    }
    if snapshots(&device) != snapshots(sound) {
        return Err(format!("the snapshots are others\n{said}"));
    }
    let hurt: BTreeSet<u64> = made.before.errors().filter_map(|f| f.place.cno).collect();
    let mut lost = 0;
    for (c, was) in &before {
        let Some(is) = tree(&device, Moment::Checkpoint(*c)) else {
            return Err(format!("checkpoint {c} is gone\n{said}"));
        };
        let other = was.iter().filter(|(path, digest)| is.get(*path) != Some(digest)).count();
        if other > 0 && !hurt.contains(c) && readable.get(c) == Some(was) {
            return Err(format!("{other} files of checkpoint {c} are others, and it was sound\n{said}"));
        }
        lost += other as u64;
    }
    let second = plan(Arc::new(device.fork()), &gentle()).map_err(|e| e.to_string())?;
    if second.is_empty() { Ok((said, lost)) } else { Err(format!("a second repair finds work\n{said}")) }
}

/// Every block that only past trees have is overwritten with noise in turn: a sample of them, or every one with
/// `SILT_TEST_ALL_BLOCKS=1`.
#[test]
fn noise_in_past_trees_costs_no_checkpoint() {
    for name in ["basic-4k", "basic-1k", "gc-4k", "btree-1k"] {
        let mut sound = Surgeon::golden(name);
        unmounted(&mut sound);
        let blocks = past_blocks(&sound);
        let all = std::env::var_os("SILT_TEST_ALL_BLOCKS").is_some();
        let step = if all { 1 } else { (blocks.len() / 12).max(1) };
        let (mut failed, mut run, mut lost) = (Vec::new(), 0, 0);
        for (n, (c, ino, block)) in blocks.iter().enumerate().step_by(step) {
            for sums in [Sums::None, Sums::All] {
                let mut s = Surgeon { device: sound.device.fork() };
                s.patch_with(*block, sums, |b| b.copy_from_slice(&noise(b.len(), n as u64 + 5)));
                run += 1;
                match keeps_all(&sound.device, &s.device) {
                    Ok((_, n)) => lost += n,
                    Err(why) => {
                        failed.push(format!("{name}: checkpoint {c}, inode {ino}, block {block}: {why}"))
                    }
                }
            }
        }
        println!("{name}: {run} of {} blocks, {lost} files are others", blocks.len());
        assert!(run > 0 && failed.is_empty(), "{} of {run}:\n{}", failed.len(), failed.join("\n"));
    }
}

/// Inodes with a tree of blocks that past checkpoints have and the latest has not: one of the checkpoints, and the block and the
/// byte of the inode.
fn past_maps(s: &Surgeon) -> Vec<(u64, u64, usize)> {
    let now: BTreeSet<u64> = s.file(6).into_values().collect();
    let layout = Layout::ifile(&s.g());
    let mut all = BTreeMap::new();
    for (c, _) in trees(&s.device) {
        let ifile = s.past_file(c, 6);
        for w in Tree::open(&s.device, Moment::Checkpoint(c)).unwrap().walk().unwrap() {
            let at = layout.entry(w.attributes.ino);
            let is_tree = w.attributes.is_regular() && is_btree(&s.past_inode(c, w.attributes.ino).bmap);
            if is_tree && !now.contains(&ifile[&at.block]) {
                all.insert((ifile[&at.block], at.byte), c);
            }
        }
    }
    all.into_iter().map(|((block, byte), c)| (c, block, byte)).collect()
}

/// The map of a file of the past is made anew from logs: its nodes live as long as the file does.
#[test]
fn lost_maps_of_past_files_cost_no_checkpoint() {
    let (mut failed, mut run) = (Vec::new(), 0);
    for name in ["basic-4k", "basic-1k", "gc-4k", "btree-1k"] {
        let mut sound = Surgeon::golden(name);
        unmounted(&mut sound);
        let maps = past_maps(&sound);
        for (c, block, byte) in maps.iter().step_by((maps.len() / 8).max(1)) {
            let mut s = Surgeon { device: sound.device.fork() };
            s.patch_with(*block, Sums::All, |b| {
                let mut raw = RawInode::read(&b[*byte..]).unwrap();
                raw.bmap.copy_from_slice(&noise(56, block + 5));
                raw.store(&mut b[*byte..]);
            });
            run += 1;
            let what = format!("{name}: checkpoint {c}, block {block}, byte {byte}");
            match keeps_all(&sound.device, &s.device) {
                // What is mended leaves no entries that a later round has to mend.
                Ok((said, 0)) if !said.contains("translation table") => {}
                Ok((said, n)) => failed.push(format!("{what}: {n} files\n{said}")),
                Err(why) => failed.push(format!("{what}: {why}")),
            }
        }
    }
    assert!(run > 0 && failed.is_empty(), "{} of {run}:\n{}", failed.len(), failed.join("\n"));
}

/// The same with sectors that cannot be read.
#[test]
fn unreadable_blocks_of_past_trees_cost_no_checkpoint() {
    let sound = Surgeon::golden("basic-4k");
    let bits = sound.g().block_bits;
    let blocks = past_blocks(&sound);
    for (c, ino, block) in blocks.iter().step_by((blocks.len() / 6).max(1)) {
        let broken = Fault::new(sound.device.fork());
        broken.fail_reads(block << bits..(block + 1) << bits, Times::Always);
        let broken = Arc::new(broken);
        let made = plan(broken.clone(), &gentle()).unwrap();
        let what = format!("checkpoint {c}, inode {ino}, block {block}\n{}", say(&made));
        made.apply(&*broken).unwrap();
        let after = checked(&*broken);
        let left: Vec<_> = after.errors().filter(|f| f.place.cno.is_some()).collect();
        assert!(left.is_empty(), "{what}");
        let now = silt_engine::mend::snapshots(broken).unwrap().into_iter().collect::<Vec<_>>();
        assert_eq!(now, snapshots(&sound.device), "{what}");
    }
}

/// The root directory's inode is noise in every checkpoint that has it: another damaged version is no version.
#[test]
fn a_damaged_version_does_not_take_the_place_of_another() {
    let mut sound = Surgeon::golden("btree-1k");
    unmounted(&mut sound);
    let now: BTreeSet<u64> = sound.file(6).into_values().collect();
    let only =
        |c: u64| -> Vec<u64> { sound.past_file(c, 6).into_values().filter(|b| !now.contains(b)).collect() };
    let block = snapshots(&sound.device).into_iter().map(only).find(|all| !all.is_empty()).unwrap()[2];
    let mut s = Surgeon { device: sound.device.fork() };
    s.patch_with(block, Sums::None, |b| {
        let mut x = 0x9E37_79B9_7F4A_7C15u64;
        for byte in b {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (x >> 33) as u8;
        }
    });
    keeps_all(&sound.device, &s.device).unwrap();
}

type Spoil = fn(&mut silt_format::checkpoint::CpEntry);

/// What is done to the root of a tree in the entry of its checkpoint.
const ROOTS: [(&str, Spoil); 6] = [
    ("noise", |e| e.ifile_inode.bmap.copy_from_slice(&noise(56, 9))),
    ("nothing", |e| e.ifile_inode.bmap.fill(0)),
    ("another pointer", |e| {
        let bmap = &mut e.ifile_inode.bmap;
        // The first pointer of a direct map, or of a B-tree's root.
        let at = if bmap[0] & 1 == 0 { 8 } else { 32 };
        bmap[at] ^= 0x15;
    }),
    ("flags of no map", |e| e.ifile_inode.bmap[0] = 0x7e),
    ("no metadata file", |e| e.ifile_inode.links_count = 0.into()),
    ("an inode of noise", |e| {
        e.ifile_inode.bmap.copy_from_slice(&noise(56, 11));
        e.ifile_inode.mode = 0x1234.into();
        e.ifile_inode.size = 0x7777_7777_7777.into();
    }),
];

/// The entry of a checkpoint does not say where its inode file is: what logs have of it is put together, in the newest
/// checkpoint, plain ones and snapshots, and every tree is what it was.
#[test]
fn a_lost_inode_file_root_costs_no_checkpoint() {
    let mut failed = Vec::new();
    let mut run = 0;
    for name in ["basic-4k", "basic-1k", "gc-4k", "btree-1k"] {
        let mut sound = Surgeon::golden(name);
        unmounted(&mut sound);
        for (c, _) in trees(&sound.device) {
            for (what, damage) in ROOTS {
                let mut s = Surgeon { device: sound.device.fork() };
                s.patch_checkpoint(c, damage);
                if checked(&s.device).is_clean() {
                    continue;
                }
                run += 1;
                match keeps_all(&sound.device, &s.device) {
                    Ok((_, 0)) => {}
                    Ok((said, n)) => {
                        failed.push(format!("{name}: checkpoint {c}, {what}: {n} files\n{said}"))
                    }
                    Err(why) => failed.push(format!("{name}: checkpoint {c}, {what}: {why}")),
                }
            }
        }
    }
    assert!(run > 50 && failed.is_empty(), "{} of {run}:\n{}", failed.len(), failed.join("\n"));
}

/// Not all of the inode file can be found: nothing is made up, and the checkpoint is dropped.
#[test]
fn an_inode_file_of_which_something_is_missing_is_not_put_together() {
    let mut sound = Surgeon::golden("basic-4k");
    unmounted(&mut sound);
    let mut s = Surgeon { device: sound.device.fork() };
    s.patch_checkpoint(3, |e| {
        e.ifile_inode.bmap.copy_from_slice(&noise(56, 9));
        e.inodes_count = (e.inodes_count.get() + 1).into();
    });
    let made = plan(Arc::new(s.device.fork()), &gentle()).unwrap();
    assert_eq!(errors(&made.after), 0, "{}", say(&made));
    assert!(say(&made).contains("checkpoint 3 is dropped"), "{}", say(&made));
    made.apply(&s.device).unwrap();
    let without: Vec<_> = trees(&sound.device).into_iter().filter(|(c, _)| *c != 3).collect();
    let after = trees(&s.device);
    assert!(without.iter().all(|t| after.contains(t)), "{}", say(&made));
}
