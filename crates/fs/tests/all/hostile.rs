//! Damaged and crafted volumes: no byte may panic, hang, or grow memory; what is not damaged still
//! reads, and what can be written still can.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use silt_device::{Device, MemoryDevice};
use silt_engine::{OpenOptions, Tree, Volume};
use silt_format::summary::{self, Header};
use silt_format::super_block::SuperBlock;
use silt_format::{BlockNr, Cno, Ino};
use silt_fs::{Context, Fs, WriteFlags};
use silt_verify::golden;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

/// Blocks of metadata (and of directories, which nothing tells from data) in every log.
fn targets(device: &MemoryDevice) -> Vec<u64> {
    let mut bytes = [0; 1024];
    device.read_at(1024, &mut bytes).unwrap();
    let sb = SuperBlock::parse(&bytes).unwrap();
    let g = sb.geometry(device.len()).unwrap();
    let mut found = Vec::new();
    for segment in 0..g.nsegments {
        let mut at = g.segment_start(silt_format::SegNr(segment));
        while at.0 + 2 <= g.segment_end(silt_format::SegNr(segment)).0 {
            let mut head = vec![0; g.bs()];
            device.read_at(g.byte_of(at), &mut head).unwrap();
            let Ok(h) = Header::parse(&g, &head) else { break };
            let mut records = vec![0; h.summary_blocks(&g) as usize * g.bs()];
            device.read_at(g.byte_of(at), &mut records).unwrap();
            let first = at.0 + u64::from(h.summary_blocks(&g));
            let _ = summary::for_each_payload(&g, &h, &records, |p| {
                let weight = if (3..=6).contains(&p.ino.0) || !p.info.is_data() { 4 } else { 1 };
                if weight == 4 || p.index % 3 == 0 {
                    found.extend(std::iter::repeat_n(first + u64::from(p.index), weight));
                }
            });
            at = BlockNr(at.0 + u64::from(h.nblocks.get()));
        }
    }
    found
}

/// Changes some bytes: single bits, small numbers, wild numbers, whole blocks from elsewhere.
fn damage(device: &MemoryDevice, blocks: &[u64], block_size: u64, random: &mut Random) {
    for _ in 0..1 + random.below(6) {
        let block = blocks[random.below(blocks.len() as u64) as usize];
        let offset = block * block_size + (random.below(block_size / 8) * 8);
        let mut word = [0; 8];
        device.read_at(offset, &mut word).unwrap();
        let old = u64::from_le_bytes(word);
        match random.below(7) {
            0 => word = (old ^ (1 << random.below(64))).to_le_bytes(),
            1 => word = random.below(40).to_le_bytes(),
            2 => word = random.next().to_le_bytes(),
            3 => word = u64::MAX.to_le_bytes(),
            4 => word = old.wrapping_add(1).to_le_bytes(),
            5 => word[random.below(8) as usize] = random.next() as u8,
            _ => {
                let from = blocks[random.below(blocks.len() as u64) as usize];
                let mut whole = vec![0; block_size as usize];
                device.read_at(from * block_size, &mut whole).unwrap();
                device.write_at(block * block_size, &[&whole]).unwrap();
                continue;
            }
        }
        device.write_at(offset, &[&word]).unwrap();
    }
}

/// Walks a tree with bounds of its own, since a damaged one may have loops.
fn walk(fs: &mut Fs, tree: Tree) {
    let mut seen = HashSet::new();
    let mut todo = vec![Ino::ROOT];
    let mut left = 3000;
    while let Some(dir) = todo.pop() {
        if !seen.insert(dir) || left == 0 {
            continue;
        }
        let mut entries = Vec::new();
        let _ = fs.readdir(tree, dir, 0, true, |e| {
            entries.push((e.ino, e.name.to_vec(), e.file_type));
            if entries.len() < 3000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        for (ino, name, _) in entries {
            left -= 1;
            if left == 0 {
                break;
            }
            let _ = fs.lookup(tree, dir, &name);
            let Ok(s) = fs.getattr(tree, ino) else { continue };
            if s.is_dir() {
                todo.push(ino);
            } else if s.is_regular() {
                for offset in [0, 4096, s.size / 2, s.size.saturating_sub(5000)] {
                    let _ = fs.read(tree, ino, offset, 64 << 10);
                }
                let _ = fs.seek(tree, ino, 0, silt_fs::Seek::Data);
            } else {
                let _ = fs.readlink(tree, ino);
            }
        }
    }
}

/// Deletes, writes and checkpoints what can be.
fn use_it(fs: &mut Fs) {
    let ctx = Context { privileged: true, ..Context::default() };
    let mut names = Vec::new();
    let _ = fs.readdir(Tree::Live, Ino::ROOT, 0, false, |e| {
        names.push((e.ino, e.name.to_vec()));
        if names.len() < 60 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    for (i, (ino, name)) in names.iter().enumerate() {
        match i % 3 {
            0 => drop(fs.unlink(&ctx, Ino::ROOT, name)),
            1 => {
                let set = silt_fs::SetAttr { size: Some(3000), ..Default::default() };
                drop(fs.setattr(&ctx, *ino, &set));
            }
            _ => drop(fs.write(&ctx, *ino, 5000, &[7; 9000], WriteFlags::default())),
        }
    }
    if let Ok(s) = fs.create(&ctx, Ino::ROOT, b"new", 0o100_644) {
        let _ = fs.write(&ctx, s.ino, 0, &[1; 20_000], WriteFlags::default());
    }
    let _ = fs.sync_all(5_000_000_000);
    while let Ok(true) = fs.collect_orphans(1000) {}
    let _ = fs.sync_all(5_000_000_001);
}

fn campaign(name: &str, cases: u64) {
    let whole = golden::open(name);
    let mut bytes = [0; 1024];
    whole.read_at(1024, &mut bytes).unwrap();
    let block_size = 1u64 << (SuperBlock::parse(&bytes).unwrap().log_block_size.get() + 10);
    let blocks = targets(&whole);
    assert!(blocks.len() > 20);
    let mut opened = 0;
    for case in 0..cases {
        let mut random = Random(case * 7919 + name.len() as u64);
        let device = Arc::new(whole.fork());
        damage(&device, &blocks, block_size, &mut random);
        let read_only = case % 3 == 0;
        let options =
            OpenOptions { read_only, cache_bytes: 1 << 20, now: 4_000_000_000, ..OpenOptions::default() };
        let Ok((mut volume, _)) = Volume::open(device.clone() as Arc<dyn Device>, &options) else { continue };
        if !read_only && volume.take_over(4_000_000_000).is_err() {
            continue;
        }
        opened += 1;
        let _ = volume.stat();
        let _ = volume.snapshots();
        let _ = volume.for_each_checkpoint(Cno(1), |_| ControlFlow::Continue(()));
        let last = volume.last_log().cno;
        let mut fs = Fs::new(volume, &silt_fs::Options { index_bytes: 1 << 20, ..Default::default() });
        walk(&mut fs, Tree::Live);
        for c in [1, 2, 3, last / 2, last] {
            if fs.volume_mut().open_view(Cno(c)).is_ok() {
                walk(&mut fs, Tree::Past(c));
                fs.volume_mut().close_view(Cno(c));
            }
        }
        if !read_only {
            use_it(&mut fs);
            let _ = fs.volume_mut().make_snapshot(Cno(last));
            let _ = fs.volume_mut().delete_checkpoints(1..last);
            let _ = fs.volume_mut().close(5_000_000_002);
        }
    }
    assert!(opened * 4 > cases, "{name}: only {opened} of {cases} opened: too little was tried");
}

/// 60 damaged copies of each volume; `SILT_HOSTILE_CASES` for longer campaigns.
fn cases() -> u64 {
    std::env::var("SILT_HOSTILE_CASES").ok().and_then(|c| c.parse().ok()).unwrap_or(60)
}

#[test]
fn damaged_basic_4k() {
    campaign("basic-4k", cases());
}

#[test]
fn damaged_basic_1k() {
    campaign("basic-1k", cases());
}

#[test]
fn damaged_btree_1k() {
    campaign("btree-1k", cases());
}

#[test]
fn damaged_gc_4k() {
    campaign("gc-4k", cases());
}

#[test]
fn damaged_cut_4k() {
    campaign("cut-4k", cases());
}
