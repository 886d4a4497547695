//! What a rescue reads and the tables have lost; and blocks that are not what they should be.

use std::collections::BTreeSet;
use std::sync::Arc;

use silt_device::{Device, Fault, MemoryDevice, Times};
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Volume};
use silt_format::summary::{BlockInfo, for_each_payload};
use silt_format::{BlockNr, Ino};
use silt_fs::{Context, Fs, WriteFlags};
use silt_repair::plan;
use silt_verify::surgeon::Surgeon;
use silt_verify::{Moment, Tree};

use crate::common::{checked, mends, noise, options, say, tree};

/// Names that are not as they were and of which the plan says nothing.
fn untold(missing: &[String], said: &str) -> Vec<String> {
    missing.iter().filter(|p| !said.contains(&format!("(/{p})"))).cloned().collect()
}

#[test]
fn a_table_that_is_lost_in_large_parts_costs_no_file() {
    for name in ["basic-4k", "basic-1k", "btree-1k", "gc-4k"] {
        let s = Surgeon::golden(name);
        let (g, dat) = (s.g(), s.dat());
        let broken = s.device.fork();
        let zero = |block: u64| broken.write_at(g.byte_of(BlockNr(block)), &[&vec![0; g.bs()]]).unwrap();
        dat.blocks.values().for_each(|block| zero(*block));
        // And the nodes of its map.
        let (latest, mut nodes) = (s.latest(), 0);
        let size = u64::from(latest.header.summary_blocks(&g));
        let summary: Vec<u8> = (0..size).flat_map(|n| s.read(latest.pos.0 + n)).collect();
        let _ = for_each_payload(&g, &latest.header, &summary, |p| {
            if let BlockInfo::DatNode { .. } = p.info {
                zero(latest.pos.0 + size + u64::from(p.index));
                nodes += 1;
            }
        });
        let lost = dat.blocks.len() + nodes;
        let outcome = mends(&s.device, &broken).unwrap_or_else(|e| panic!("{name}, {lost} blocks: {e}"));
        let there = tree(&outcome.device, Moment::Latest).unwrap();
        let before = tree(&s.device, Moment::Latest).unwrap();
        let gone: Vec<_> = before
            .keys()
            .filter(|p| !there.contains_key(*p))
            .map(|p| String::from_utf8_lossy(p).into_owned())
            .collect();
        eprintln!(
            "{name}: {lost} blocks, {} of {} gone, {} other",
            gone.len(),
            before.len(),
            outcome.missing.len()
        );
        assert_eq!(gone, Vec::<String>::new(), "{name}\n{}", say(&outcome.plan));
        let said: String =
            outcome.plan.rounds.iter().flat_map(|r| &r.done).map(|l| format!("{l}\n")).collect();
        let missing: Vec<_> = outcome.missing.iter().filter(|p| !p.is_empty()).cloned().collect();
        assert_eq!(untold(&missing, &said), Vec::<String>::new(), "{name}\n{}", say(&outcome.plan));
    }
}

#[test]
fn a_bitmap_of_the_table_that_is_noise_is_made_anew() {
    for name in ["basic-4k", "btree-1k"] {
        let s = Surgeon::golden(name);
        let (g, dat) = (s.g(), s.dat());
        let broken = s.device.fork();
        let bitmap = dat.blocks[&dat.layout.bitmap_block(0)];
        broken.write_at(g.byte_of(BlockNr(bitmap)), &[&noise(g.bs(), 99)]).unwrap();
        let outcome = mends(&s.device, &broken).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(outcome.missing, Vec::<String>::new(), "{name}\n{}", say(&outcome.plan));
    }
}

#[test]
fn names_in_a_block_of_another_directory_are_not_taken() {
    let s = Surgeon::golden("basic-4k");
    let g = s.g();
    let walked = Tree::open(&s.device, Moment::Latest).unwrap().walk().unwrap();
    let directories: Vec<_> =
        walked.iter().filter(|f| f.attributes.is_directory() && f.attributes.ino > 10).collect();
    let (to, from) = directories
        .iter()
        .flat_map(|a| directories.iter().map(move |b| (a, b)))
        .find(|(a, b)| {
            let has =
                |d: &Vec<u8>| walked.iter().filter(|f| f.path.starts_with(&[d, &b"/"[..]].concat())).count();
            a.attributes.ino != b.attributes.ino
                && !b.path.starts_with(&a.path)
                && !a.path.starts_with(&b.path)
                && has(&a.path) > 0
                && has(&b.path) > 1
        })
        .expect("two directories with names");
    let block = |ino: u64| s.file(ino)[&0];
    let broken = s.device.fork();
    broken
        .write_at(g.byte_of(BlockNr(block(to.attributes.ino))), &[&s.read(block(from.attributes.ino))])
        .unwrap();
    let outcome = mends(&s.device, &broken).unwrap();
    let mended = Tree::open(&outcome.device, Moment::Latest).unwrap().walk().unwrap();
    let under = |d: &[u8]| -> BTreeSet<u64> {
        let inside = mended.iter().filter(|f| f.path.starts_with(&[d, &b"/"[..]].concat()));
        inside.map(|f| f.attributes.ino).collect()
    };
    let both: Vec<_> = under(&to.path).intersection(&under(&from.path)).copied().collect();
    assert_eq!(both, Vec::<u64>::new(), "{}", say(&outcome.plan));
    // An older version of the block has the names.
    let there: BTreeSet<&Vec<u8>> = mended.iter().map(|f| &f.path).collect();
    let gone: Vec<_> = walked.iter().map(|f| &f.path).filter(|p| !there.contains(p)).collect();
    assert!(gone.is_empty(), "{gone:?}\n{}", say(&outcome.plan));
}

/// Inodes lie in the same log as what was written last: where a block of them cannot be read, that log does not verify, and
/// older inodes lead to older blocks. The newer ones are there all the same.
#[test]
fn a_block_of_inodes_that_cannot_be_read_takes_no_new_content_with_it() {
    let s = Surgeon::golden("basic-4k");
    let device = Arc::new(s.device.fork());
    let (mut v, _) = Volume::open(device.clone(), &OpenOptions::default()).unwrap();
    let now = 1_900_000_000;
    v.take_over(now).unwrap();
    let walked = Tree::open(&s.device, Moment::Latest).unwrap().walk().unwrap();
    let full = |w: &&silt_verify::Walked| w.attributes.is_regular() && w.attributes.size >= 4096;
    let mut files: Vec<_> = walked.iter().filter(full).map(|w| Ino(w.attributes.ino)).collect();
    files.dedup();
    for ino in &files {
        let bytes = noise(v.geometry().bs(), ino.0);
        v.write_block(*ino, 0, bytes.into()).unwrap();
    }
    v.close(now + 1).unwrap();
    drop(v);
    let whole = tree(&*device, Moment::Latest).unwrap();
    let new = Surgeon { device: device.fork() };
    let (g, blocks) = (new.g(), new.file(6));
    let inodes: Vec<u64> = blocks.iter().filter(|(offset, _)| **offset >= 2).map(|(_, at)| *at).collect();
    assert!(files.len() > 2 && !inodes.is_empty(), "{} files", files.len());
    for block in inodes {
        let at = g.byte_of(BlockNr(block));
        let device = Arc::new(Fault::new(new.device.fork()));
        device.fail_reads(at..at + 512, Times::Always);
        let made = plan(device.clone(), &options()).unwrap();
        made.apply(&*device).unwrap();
        let mended = tree(&*device, Moment::Latest).unwrap();
        let other: Vec<_> = whole.iter().filter(|(path, digest)| mended.get(*path) != Some(digest)).collect();
        let other: Vec<_> = other.iter().map(|(path, _)| String::from_utf8_lossy(path)).collect();
        assert!(other.is_empty(), "block {block}: {other:?}\n{}", say(&made));
    }
}

/// With one of their blocks of content that cannot be read: that stays where it is, and is there when it can be read again.
#[test]
fn content_that_cannot_be_read_stays_where_inodes_come_back() {
    let s = Surgeon::golden("basic-4k");
    let whole = tree(&s.device, Moment::Latest).unwrap();
    let (g, inodes) = (s.g(), s.file(6));
    let walked = Tree::open(&s.device, Moment::Latest).unwrap().walk().unwrap();
    let full = |w: &&silt_verify::Walked| w.attributes.is_regular() && w.attributes.size >= 4096;
    let mut run = 0;
    for w in walked.iter().filter(full) {
        let layout = silt_format::palloc::Layout::ifile(&g);
        let (Some(inode), Some(data)) = (
            inodes.get(&layout.entry(w.attributes.ino).block),
            s.file(w.attributes.ino).into_values().next(),
        ) else {
            continue;
        };
        let device = Arc::new(Fault::new(s.device.fork()));
        for block in [*inode, data] {
            let at = g.byte_of(BlockNr(block));
            device.fail_reads(at..at + 512, Times::Always);
        }
        let made = plan(device.clone(), &options()).unwrap();
        made.apply(&*device).unwrap();
        device.heal();
        let mended = tree(&*device, Moment::Latest).unwrap();
        let name = String::from_utf8_lossy(&w.path);
        assert_eq!(mended.get(&w.path), whole.get(&w.path), "{name}\n{}", say(&made));
        run += 1;
    }
    assert!(run > 2, "{run}");
}

/// A volume with files and symlinks of one checkpoint: no older inode of any of them is there.
fn young() -> Surgeon {
    let size = 4096 * 64 * 64;
    let device = Arc::new(MemoryDevice::new(size));
    let parameters = Parameters { blocks_per_segment: 64, crc_seed: 77, now: 1000, ..Parameters::default() };
    Plan::new(parameters, size).unwrap().write(&*device, false).unwrap();
    let (mut volume, _) =
        Volume::open(device.clone(), &OpenOptions { now: 2000, ..OpenOptions::default() }).unwrap();
    volume.take_over(2000).unwrap();
    let mut fs = Fs::new(volume, &silt_fs::Options::default());
    let ctx = Context { privileged: true, ..Context::default() };
    for n in 0..8u64 {
        let ino = fs.create(&ctx, Ino::ROOT, format!("file{n}").as_bytes(), 0o644).unwrap().ino;
        fs.write(&ctx, ino, 0, &noise(5000, n), WriteFlags::default()).unwrap();
        fs.symlink(&ctx, Ino::ROOT, format!("link{n}").as_bytes(), b"where/it/leads").unwrap();
    }
    fs.sync_all(3000).unwrap();
    fs.into_volume().close(3001).unwrap();
    Surgeon { device: device.fork() }
}

/// A symlink whose inode and target are lost, and where that lay, is not there any more; all else that a rescue reads is taken all
/// the same.
#[test]
fn a_symlink_without_a_target_is_not_made_and_keeps_nothing_else_out() {
    let s = young();
    let (g, ino, dat) = (s.g(), s.ino("link3"), s.dat());
    let target = s.file(ino)[&0];
    let v = s.find_dat(|_, e| e.blocknr.get() == target);
    let inodes = s.inode_place(ino).0;
    let names = |device: &MemoryDevice| -> BTreeSet<String> {
        let walked = Tree::open(device, Moment::Latest).unwrap().walk().unwrap();
        walked.into_iter().map(|w| String::from_utf8(w.path).unwrap()).collect()
    };
    let mut all = names(&s.device);
    assert!(all.remove("link3") && all.len() == 16);
    for bytes in [vec![0; g.bs()], noise(g.bs(), 3)] {
        let broken = s.device.fork();
        broken.write_at(g.byte_of(BlockNr(target)), &[&bytes]).unwrap();
        for block in [inodes, dat.blocks[&dat.layout.entry(v).block]] {
            broken.write_at(g.byte_of(BlockNr(block)), &[&noise(g.bs(), block)]).unwrap();
        }
        let made = plan(Arc::new(broken.fork()), &options()).unwrap();
        made.apply(&broken).unwrap();
        assert_eq!(names(&broken), all, "{}", say(&made));
        assert!(checked(&broken).is_clean(), "{}", say(&made));
    }
}

/// A symlink whose inode and target are lost is lost, in each checkpoint; what lay in the same block of inodes comes back all the
/// same, and no checkpoint is lost.
#[test]
fn a_symlink_without_a_target_is_not_put_together() {
    let mut run = 0;
    for name in ["basic-4k", "basic-1k"] {
        let s = Surgeon::golden(name);
        let (g, inodes) = (s.g(), s.file(6));
        let walked = Tree::open(&s.device, Moment::Latest).unwrap().walk().unwrap();
        let layout = silt_format::palloc::Layout::ifile(&g);
        for link in walked.iter().filter(|w| w.attributes.is_symlink()) {
            let ino = link.attributes.ino;
            let broken = s.device.fork();
            let block = inodes[&layout.entry(ino).block];
            broken.write_at(g.byte_of(BlockNr(block)), &[&noise(g.bs(), block)]).unwrap();
            for target in s.file(ino).into_values() {
                broken.write_at(g.byte_of(BlockNr(target)), &[&vec![0; g.bs()]]).unwrap();
            }
            let made = plan(Arc::new(broken.fork()), &options()).unwrap();
            made.apply(&broken).unwrap();
            assert!(checked(&broken).is_clean(), "{name}:\n{}", say(&made));
            let there = Tree::open(&broken, Moment::Latest).unwrap().walk().unwrap();
            let gone = walked.iter().filter(|w| there.iter().all(|t| t.path != w.path));
            assert_eq!(gone.map(|w| &w.path).collect::<Vec<_>>(), [&link.path], "{name}:\n{}", say(&made));
            for c in 1..=s.cno() {
                let both = [&s.device, &broken].map(|d| Tree::open(d, Moment::Checkpoint(c)).is_ok());
                assert_eq!(both[0], both[1], "{name}, checkpoint {c}:\n{}", say(&made));
            }
            run += 1;
        }
    }
    assert!(run > 1, "{run}");
}
