//! Inode numbers that several files had one after the other: a damaged inode of the past gets nothing of another's.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use silt_device::{Device, Fault, MemoryDevice, Times};
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Time, Volume};
use silt_format::palloc::Layout;
use silt_format::{BlockNr, Cno, Ino, SegNr};
use silt_fs::{Context, Fs, SetAttr, Tree as At, WriteFlags};
use silt_repair::{Options, plan};
use silt_verify::rescue::{Directory, Inode, Origin, Rescue, Sink};
use silt_verify::surgeon::{Sums, Surgeon};
use silt_verify::{Moment, Tree, Unwatched};

use crate::common::{checked, noise, options, say, snapshots};

/// Numbers that follow from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A volume on which files come and go, so that their numbers are taken again, each step a checkpoint and every third
/// a snapshot.
fn history(seed: u64, steps: u64) -> MemoryDevice {
    let size = 1024 * 128 * 64;
    let device = Arc::new(MemoryDevice::new(size));
    let parameters = Parameters {
        block_size: 1024,
        blocks_per_segment: 128,
        uuid: [7; 16],
        crc_seed: 77,
        now: 1000,
        ..Parameters::default()
    };
    Plan::new(parameters, size).unwrap().write(&*device, false).unwrap();
    let opened = OpenOptions { now: 2000, seed, ..OpenOptions::default() };
    let (mut volume, _) = Volume::open(device.clone(), &opened).unwrap();
    volume.take_over(2000).unwrap();
    let mut fs = Fs::new(volume, &silt_fs::Options::default());
    let mut dice = Dice(seed);
    // By name: the inode, and its length in bytes.
    let mut files: BTreeMap<String, (Ino, u64)> = BTreeMap::new();
    for step in 0..steps {
        let now = 3000 + step * 10;
        let ctx = Context {
            now: Time { secs: now as i64, nanos: 0 },
            privileged: true,
            uid: (step % 5 * 100) as u32,
            gid: (step % 7 * 100) as u32,
            ..Context::default()
        };
        for n in 0..1 + dice.roll(4) {
            let name = format!("{step}-{n}");
            let mode = 0o100_600 + dice.roll(64) as u32;
            let ino = fs.create(&ctx, Ino::ROOT, name.as_bytes(), mode).unwrap().ino;
            let len = dice.roll(9000) * u64::from(dice.roll(6) > 0);
            let bytes = noise(len as usize, step * 100 + n);
            fs.write(&ctx, ino, 0, &bytes, WriteFlags::default()).unwrap();
            files.insert(name, (ino, len));
        }
        for _ in 0..dice.roll(5) {
            let (name, (ino, len)) = files
                .iter()
                .nth(dice.roll(files.len() as u64) as usize)
                .map(|(n, f)| (n.clone(), *f))
                .unwrap();
            match dice.roll(5) {
                0 | 1 if files.len() > 2 => {
                    fs.unlink(&ctx, Ino::ROOT, name.as_bytes()).unwrap();
                    files.remove(&name);
                }
                2 => {
                    let at = dice.roll(len + 1);
                    let bytes = noise(1 + dice.roll(2000) as usize, step * 7);
                    fs.write(&ctx, ino, at, &bytes, WriteFlags::default()).unwrap();
                    files.insert(name, (ino, len.max(at + bytes.len() as u64)));
                }
                3 => {
                    let bytes = noise(len as usize, step * 9);
                    fs.write(&ctx, ino, 0, &bytes, WriteFlags::default()).unwrap();
                }
                _ => {
                    let set = SetAttr { mode: Some(0o640), uid: Some(step as u32), ..SetAttr::default() };
                    fs.setattr(&ctx, ino, &set).unwrap();
                }
            }
        }
        let c = fs.sync_all(now).unwrap();
        if step % 3 == 0 {
            fs.volume_mut().make_snapshot(Cno(c)).unwrap();
        }
    }
    assert!(fs.getattr(At::Live, Ino::ROOT).is_ok());
    fs.sync_all(9000).unwrap();
    fs.into_volume().close(9001).unwrap();
    device.fork()
}

/// What a file is at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct File {
    ino: u64,
    content: u64,
    size: u64,
    generation: u32,
    mode: u32,
    owner: (u32, u32),
}

type Files = BTreeMap<Vec<u8>, File>;

/// All files of a moment, by path.
fn files(device: &MemoryDevice, moment: Moment) -> Option<Files> {
    let tree = Tree::open(device, moment).ok()?;
    let mut all = Files::new();
    for w in tree.walk().ok()?.into_iter().filter(|w| w.attributes.is_regular()) {
        let a = &w.attributes;
        let mut h = DefaultHasher::new();
        let mut bytes = Vec::new();
        tree.for_each_part(a.ino, |at, part| {
            bytes.resize(at as usize, 0);
            bytes.extend_from_slice(part);
        })
        .ok()?;
        bytes.hash(&mut h);
        let owner = (a.uid, a.gid);
        let (size, generation, mode) = (a.size, a.generation, a.mode);
        all.insert(w.path.clone(), File { ino: a.ino, content: h.finish(), size, generation, mode, owner });
    }
    Some(all)
}

/// A volume and all its moments.
struct Sound {
    volume: Surgeon,
    trees: BTreeMap<u64, Files>,
}

impl Sound {
    fn new(seed: u64) -> Self {
        let volume = Surgeon { device: history(seed, 24) };
        let tree = |c| Some((c, files(&volume.device, Moment::Checkpoint(c))?));
        let trees = (1..=volume.cno()).filter_map(tree).collect();
        Sound { volume, trees }
    }

    /// Inodes of snapshots of which the block is no more the latest tree's, or those that it has: checkpoint, inode, block and
    /// byte.
    fn inodes(&self, past: bool) -> Vec<(u64, u64, u64, usize)> {
        let s = &self.volume;
        let now: Vec<u64> = s.file(6).into_values().collect();
        let layout = Layout::ifile(&s.g());
        let moments = if past { snapshots(&s.device) } else { vec![s.cno()] };
        let mut all = Vec::new();
        for c in moments {
            let ifile = s.past_file(c, 6);
            for f in self.trees[&c].values() {
                let at = layout.entry(f.ino);
                if now.contains(&ifile[&at.block]) != past {
                    all.push((c, f.ino, ifile[&at.block], at.byte));
                }
            }
        }
        all
    }

    /// Overwrites entries of inodes in a block, repairs, and holds every file of every moment against what it was: its content
    /// is the same, its owner and permissions, where the block was that of its inode, those of this file at some moment, or
    /// lost; and no other is touched. How many of those whose inodes were lost are what they were.
    fn is_mended(&self, block: u64, bytes: Range<usize>, sums: Sums, fill: &[u8]) -> Result<usize, String> {
        let mut s = Surgeon { device: self.volume.device.fork() };
        s.patch_with(block, sums, |b| b[bytes.clone()].copy_from_slice(&fill[..bytes.len()]));
        let sick = Arc::new(s.device.fork());
        self.is_mended_from(s, sick, block, bytes)
    }

    /// The same of a block that cannot be read.
    fn is_mended_without(&self, block: u64) -> Result<usize, String> {
        let s = Surgeon { device: self.volume.device.fork() };
        let sick = Fault::new(s.device.fork());
        let at = s.g().byte_of(BlockNr(block));
        sick.fail_reads(at..at + 1024, Times::Always);
        self.is_mended_from(s, Arc::new(sick), block, 0..1024)
    }

    fn is_mended_from(
        &self,
        s: Surgeon,
        sick: Arc<dyn Device>,
        block: u64,
        bytes: Range<usize>,
    ) -> Result<usize, String> {
        let has_block =
            |c: u64| self.volume.past_file(c, 6).iter().find(|(_, b)| **b == block).map(|(key, _)| *key);
        let layout = Layout::ifile(&self.volume.g());
        let lost: BTreeMap<u64, u64> = self.trees.keys().filter_map(|c| Some((*c, has_block(*c)?))).collect();
        let is_lost = |c: u64, ino: u64| {
            let at = layout.entry(ino);
            lost.get(&c) == Some(&at.block) && bytes.contains(&at.byte)
        };
        let gentle = Options { drop_snapshots: false, ..options() };
        let made = plan(sick, &gentle).map_err(|e| e.to_string())?;
        made.apply(&s.device).map_err(|e| e.to_string())?;
        let said = say(&made);
        if !checked(&s.device).is_clean() {
            return Err(format!("a check finds errors\n{said}"));
        }
        let mut exact = 0;
        let last = self.volume.cno();
        let moments = self.trees.keys().map(|c| (Moment::Checkpoint(*c), *c)).chain([(Moment::Latest, last)]);
        for (moment, c) in moments {
            let are = match files(&s.device, moment) {
                Some(are) => are,
                // A plain checkpoint whose damage is in the tree that goes on is mended there.
                None if c == last => continue,
                None => return Err(format!("checkpoint {c} is gone\n{said}")),
            };
            let were = &self.trees[&c];
            for (path, was) in were {
                let name = String::from_utf8_lossy(path);
                let Some(is) = are.get(path) else {
                    return Err(format!("{name} of {c} is gone\n{said}"));
                };
                if is == was {
                    exact += usize::from(is_lost(c, was.ino));
                    continue;
                }
                let own = self.trees.values().filter_map(|t| t.get(path));
                let mut own = own.filter(|f| f.generation == was.generation);
                let no_owner = is.mode & 0o777 == 0o600 && is.owner == (0, 0);
                let attributes = no_owner || own.any(|f| (f.mode, f.owner) == (is.mode, is.owner));
                let same = (is.content, is.size) == (was.content, was.size);
                if !is_lost(c, was.ino) || !same || !attributes {
                    return Err(format!("{name} of {c} is {is:?} and was {was:?}\n{said}"));
                }
            }
            // Noise that verifies may look like a file.
            let new = are.keys().filter(|path| !path.starts_with(b"lost+found/")).count();
            if new > were.len() {
                return Err(format!("checkpoint {c} has other files\n{said}"));
            }
        }
        Ok(exact)
    }
}

/// So many damages were mended, with so many files that are as they were.
#[track_caller]
fn none_failed(run: usize, exact: usize, failed: &[String]) {
    println!("{run} damages, {exact} files are as they were in all they have, {} failed", failed.len());
    let first: Vec<_> = failed.iter().take(6).cloned().collect();
    assert!(run > 20 && failed.is_empty(), "{} of {run}:\n{}", failed.len(), first.join("\n"));
}

/// Inodes of past checkpoints or of the latest tree are lost, one or a block of them, whether the log verifies or not.
fn lose(past: bool, whole: bool) {
    let (mut run, mut exact, mut failed) = (0, 0, Vec::new());
    let seeds = std::env::var("SILT_TEST_SEEDS").map_or(3, |n| n.parse().unwrap());
    for seed in 1..=seeds {
        let sound = Sound::new(seed);
        let mut damages = sound.inodes(past);
        if whole {
            damages.dedup_by_key(|d| d.2);
        }
        let all = std::env::var_os("SILT_TEST_ALL_BLOCKS").is_some();
        let step = if all { 1 } else { 1 + damages.len() / 12 };
        for (n, (c, ino, block, byte)) in damages.iter().enumerate().step_by(step) {
            let noise = noise(1024, n as u64 + 3);
            let bytes = if whole { 0..1024 } else { *byte..byte + 128 };
            let fills = [(Sums::None, &noise[..]), (Sums::None, &[0; 1024][..]), (Sums::All, &noise[..])];
            for (way, (sums, fill)) in fills.into_iter().enumerate() {
                run += 1;
                match sound.is_mended(*block, bytes.clone(), sums, fill) {
                    Ok(n) => exact += n,
                    Err(why) => failed.push(format!(
                        "seed {seed}, checkpoint {c}, inode {ino}, block {block}, way {way}: {why}"
                    )),
                }
            }
        }
    }
    none_failed(run, exact, &failed);
}

#[test]
fn a_lost_inode_of_the_past_gets_nothing_of_another_file() {
    lose(true, false);
}

#[test]
fn lost_blocks_of_inodes_of_the_past_get_nothing_of_other_files() {
    lose(true, true);
}

#[test]
fn a_lost_inode_gets_nothing_of_another_file() {
    lose(false, false);
}

#[test]
fn lost_blocks_of_inodes_get_nothing_of_other_files() {
    lose(false, true);
}

/// However few inodes a block has: nothing else tells that none of them is to be believed.
#[test]
fn blocks_of_inodes_that_cannot_be_read_get_nothing_of_other_files() {
    let (mut run, mut exact, mut failed) = (0, 0, Vec::new());
    let seeds = std::env::var("SILT_TEST_SEEDS").map_or(9, |n| n.parse().unwrap());
    for seed in 1..=seeds {
        let sound = Sound::new(seed);
        for past in [false, true] {
            let mut damages = sound.inodes(past);
            damages.dedup_by_key(|d| d.2);
            for (c, _, block, _) in damages {
                run += 1;
                match sound.is_mended_without(block) {
                    Ok(n) => exact += n,
                    Err(why) => failed.push(format!("seed {seed}, checkpoint {c}, block {block}: {why}")),
                }
            }
        }
    }
    none_failed(run, exact, &failed);
}

/// A whole segment is lost, with blocks of the latest tree and of past ones: files that have none there are what they were, with
/// their owners or without any.
#[test]
fn a_lost_segment_takes_no_file_along_that_lies_elsewhere() {
    let (mut run, mut refused, mut failed) = (0, 0, Vec::new());
    let seeds = std::env::var("SILT_TEST_SEEDS").map_or(8, |n| n.parse().unwrap());
    for seed in 1..=seeds {
        let sound = Sound::new(seed);
        let s = &sound.volume;
        let (g, last) = (s.g(), s.cno());
        let segment = |block: u64| g.segment_of(BlockNr(block)).0;
        let newest = segment(s.latest().pos.0);
        // Where part of the translation table is lost, what it says of blocks elsewhere is, too.
        let table: BTreeSet<u64> = s.dat().blocks.values().map(|b| segment(*b)).collect();
        for nr in
            (0..g.nsegments).filter(|nr| *nr != newest && !table.contains(nr) && !s.logs(*nr).is_empty())
        {
            let device = s.device.fork();
            let (first, blocks) = (g.segment_start(SegNr(nr)).0, g.segment_blocks(SegNr(nr)));
            let noise = noise(g.bs() * blocks as usize, nr + 1);
            device.write_at(g.byte_of(BlockNr(first)), &[&noise]).unwrap();
            let made = plan(Arc::new(device.fork()), &options()).unwrap();
            if made.stopped.is_some() && made.is_empty() {
                // Without the newest tables nothing is written.
                refused += 1;
                continue;
            }
            made.apply(&device).unwrap();
            let what = format!("seed {seed}, segment {nr}\n{}", say(&made));
            run += 1;
            let are = files(&device, Moment::Latest).unwrap_or_default();
            let ifile = s.file(6);
            let layout = Layout::ifile(&g);
            for (path, was) in &sound.trees[&last] {
                let name = String::from_utf8_lossy(path);
                if s.file(was.ino).values().any(|b| segment(*b) == nr) {
                    continue;
                }
                let inode_lost = segment(ifile[&layout.entry(was.ino).block]) == nr;
                let mut own = sound.trees.values().filter_map(|t| t.get(path));
                match are.get(path) {
                    Some(is) if File { generation: was.generation, ..is.clone() } == *was => {}
                    Some(is)
                        if inode_lost
                            && (is.content, is.size) == (was.content, was.size)
                            && (is.owner == (0, 0) && is.mode & 0o777 == 0o600
                                || own.any(|f| (f.mode, f.owner) == (is.mode, is.owner))) => {}
                    is => failed.push(format!("{name} is {is:?} and was {was:?}: {what}")),
                }
            }
        }
    }
    let first: Vec<_> = failed.iter().take(6).cloned().collect();
    println!("{run} segments, {refused} are for a rescue, {} failed", failed.len());
    assert!(run > 5 && failed.is_empty(), "{} in {run}:\n{}", failed.len(), first.join("\n"));
}

/// A segment is lost with what past trees need: errors in these do not keep the latest tree from having what a rescue reads.
#[test]
fn what_a_rescue_reads_is_taken_although_past_trees_are_damaged() {
    for (seed, nr) in [(1, 3), (5, 5), (7, 4), (12, 5), (18, 5)] {
        let s = Sound::new(seed).volume;
        let g = s.g();
        let (first, blocks) = (g.segment_start(SegNr(nr)).0, g.segment_blocks(SegNr(nr)));
        let noise = noise(g.bs() * blocks as usize, nr + 1);
        s.device.write_at(g.byte_of(BlockNr(first)), &[&noise]).unwrap();
        let made = plan(Arc::new(s.device.fork()), &options()).unwrap();
        let mut rescued = made.rounds.iter().filter(|r| r.classes.contains_key("rescued"));
        let taken = |line: &String| line.contains("as a rescue reads it") || line.contains(" is as it was");
        assert!(rescued.any(|r| r.done.iter().any(taken)), "seed {seed}, segment {nr}\n{}", say(&made));
    }
}

/// Whatever segment is lost, with the tables in it: no file of the latest tree gets owner and permissions that it never had.
#[test]
fn no_file_gets_the_owner_of_another() {
    let seeds = std::env::var("SILT_TEST_SEEDS").map_or(6, |n| n.parse().unwrap());
    let (mut run, mut failed) = (0, Vec::new());
    for seed in 1..=seeds {
        let sound = Sound::new(seed);
        let (s, g) = (&sound.volume, sound.volume.g());
        for nr in (0..g.nsegments).filter(|nr| !s.logs(*nr).is_empty()) {
            let device = s.device.fork();
            let (first, blocks) = (g.segment_start(SegNr(nr)).0, g.segment_blocks(SegNr(nr)));
            let noise = noise(g.bs() * blocks as usize, nr + 1);
            device.write_at(g.byte_of(BlockNr(first)), &[&noise]).unwrap();
            let made = plan(Arc::new(device.fork()), &options()).unwrap();
            made.apply(&device).unwrap();
            for (path, is) in files(&device, Moment::Latest).unwrap_or_default() {
                run += 1;
                let own: Vec<&File> = sound.trees.values().filter_map(|t| t.get(&path)).collect();
                let is_own = own.iter().any(|f| (f.mode, f.owner) == (is.mode, is.owner));
                let no_owner = is.mode & 0o777 == 0o600 && is.owner == (0, 0);
                if !own.is_empty() && !is_own && !no_owner {
                    let name = String::from_utf8_lossy(&path);
                    failed.push(format!("seed {seed}, segment {nr}: {name} is {is:?}\n{}", say(&made)));
                }
            }
        }
    }
    println!("{run} files, {} failed", failed.len());
    let first: Vec<_> = failed.iter().take(4).cloned().collect();
    assert!(run > 100 && failed.is_empty(), "{} of {run}:\n{}", failed.len(), first.join("\n"));
}

/// What a rescue reads of files: their attributes and their content.
#[derive(Default)]
struct Met(BTreeMap<Vec<u8>, Inode>);

impl Sink for Met {
    type Error = std::convert::Infallible;
    fn directory(&mut self, _: &[u8], _: &Inode, _: &Directory) -> Result<(), Self::Error> {
        Ok(())
    }
    fn file(&mut self, path: &[u8], inode: &Inode) -> Result<(), Self::Error> {
        self.0.insert(path.to_vec(), *inode);
        Ok(())
    }
    fn link(&mut self, path: &[u8], inode: &Inode) -> Result<(), Self::Error> {
        self.file(path, inode)
    }
    fn lost(&mut self, _: &[u8], _: u64, _: &'static str) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// The sum of what a rescue reads of a file, and whether there is any, of a size that is known.
fn rescued(tree: &silt_verify::rescue::Tree<'_, '_>, inode: &Inode) -> (u64, bool) {
    let content = tree.content(inode);
    let mut bytes = vec![0; content.size as usize];
    for e in &content.mapped.extents {
        let start = (e.offset * tree.block_size()) as usize;
        tree.read_run(e, |at, part| {
            let start = start + at as usize;
            if let (Some(part), Some(to)) = (part, bytes.get_mut(start..)) {
                let n = part.len().min(to.len());
                to[..n].copy_from_slice(&part[..n]);
            }
            true
        });
    }
    let mut h = DefaultHasher::new();
    bytes.hash(&mut h);
    (h.finish(), !content.guessed && bytes.iter().any(|b| *b != 0))
}

/// Files of a moment that a rescue does not find the attributes of, held against what they were: how many there are, how many have
/// owners, and those that have another's.
fn hold_rescued(sound: &Sound, device: &MemoryDevice, c: u64) -> (usize, usize, Vec<String>) {
    let (mut run, mut kept, mut failed) = (0, 0, Vec::new());
    let rescue = Rescue::open(device, &Unwatched).unwrap();
    let Ok(tree) = rescue.tree(c) else { return (run, kept, failed) };
    let mut met = Met::default();
    let Ok(()) = tree.walk(&Unwatched, &mut met);
    for (path, inode) in &met.0 {
        if !matches!(inode.origin, Origin::Older { .. } | Origin::Made) {
            continue;
        }
        let Some(was) = sound.trees[&c].get(path) else { continue };
        run += 1;
        let raw = &inode.raw;
        let is = (u32::from(raw.mode.get()), (raw.uid.get(), raw.gid.get()));
        let own = sound.trees.values().filter_map(|t| t.get(path));
        let mut own = own.filter(|f| f.generation == was.generation);
        let no_owner = is.0 & 0o777 == 0o600 && is.1 == (0, 0);
        kept += usize::from(!no_owner);
        // Of what has no content nothing tells which file it was, and an older file may be found with all that it had.
        let content = rescued(&tree, inode);
        let mut all = sound.trees.values().flat_map(BTreeMap::values);
        let fits = |f: &File| (f.mode, f.owner, f.content) == (is.0, is.1, content.0);
        if !no_owner && content.1 && !own.any(|f| (f.mode, f.owner) == is) && !all.any(fits) {
            let name = String::from_utf8_lossy(path);
            failed.push(format!("{c}: {name} is {is:?} ({:?}) and was {was:?}", inode.origin));
        }
    }
    (run, kept, failed)
}

/// A block of inodes or a segment is lost: a rescue gives each file the attributes that it had once, or none.
#[test]
fn a_rescue_gives_no_file_the_owner_of_another() {
    let seeds = std::env::var("SILT_TEST_SEEDS").map_or(60, |n| n.parse().unwrap());
    let (mut run, mut kept, mut failed) = (0, 0, Vec::new());
    let mut take = |what: String, (r, k, f): (usize, usize, Vec<String>)| {
        run += r;
        kept += k;
        failed.extend(f.into_iter().map(|f| format!("{what}, {f}")));
    };
    for seed in 1..=seeds {
        let sound = Sound::new(seed);
        for (past, way) in [(true, 0), (true, 1), (false, 0), (false, 1)] {
            let mut damages = sound.inodes(past);
            damages.dedup_by_key(|d| d.2);
            for (n, (c, _, block, _)) in damages.iter().enumerate() {
                let mut s = Surgeon { device: sound.volume.device.fork() };
                let noise = if way == 0 { noise(1024, n as u64 + 3) } else { vec![0; 1024] };
                s.patch_with(*block, Sums::None, |b| b.copy_from_slice(&noise));
                take(format!("seed {seed}, block {block}"), hold_rescued(&sound, &s.device, *c));
            }
        }
        let (s, g) = (&sound.volume, sound.volume.g());
        for nr in (0..g.nsegments).filter(|nr| !s.logs(*nr).is_empty()) {
            let device = s.device.fork();
            let (first, blocks) = (g.segment_start(SegNr(nr)).0, g.segment_blocks(SegNr(nr)));
            let noise = noise(g.bs() * blocks as usize, nr + 1);
            device.write_at(g.byte_of(BlockNr(first)), &[&noise]).unwrap();
            for c in snapshots(&s.device).into_iter().chain([s.cno()]) {
                take(format!("seed {seed}, segment {nr}"), hold_rescued(&sound, &device, c));
            }
        }
    }
    println!("{run} files, {kept} with owners, {} failed", failed.len());
    let first: Vec<_> = failed.iter().take(8).cloned().collect();
    assert!(run > 100 && kept > 50 && failed.is_empty(), "{} of {run}:\n{}", failed.len(), first.join("\n"));
}

/// A segment of a log that does not verify has nothing that anybody needs: it is emptied, nothing is moved, and nothing is told to
/// be done before.
#[test]
fn of_a_segment_that_nobody_needs_nothing_is_moved() {
    let device = Arc::new(history(2, 24));
    let names = files(&device, Moment::Latest).unwrap();
    let opened = OpenOptions { now: 9100, ..OpenOptions::default() };
    let (mut volume, _) = Volume::open(device.clone(), &opened).unwrap();
    volume.take_over(9100).unwrap();
    let mut fs = Fs::new(volume, &silt_fs::Options::default());
    let ctx = Context { now: Time { secs: 9200, nanos: 0 }, privileged: true, ..Context::default() };
    for name in names.keys() {
        fs.unlink(&ctx, Ino::ROOT, name).unwrap();
    }
    let c = fs.sync_all(9250).unwrap();
    for snapshot in snapshots(&device) {
        fs.volume_mut().unmake_snapshot(Cno(snapshot)).unwrap();
    }
    fs.volume_mut().delete_checkpoints(0..c).unwrap();
    fs.sync_all(9300).unwrap();
    fs.into_volume().close(9301).unwrap();
    let s = Surgeon { device: device.fork() };
    let (mut emptied, mut moved) = (0, 0);
    for log in (0..s.g().nsegments).flat_map(|nr| s.logs(nr)) {
        let mut copy = Surgeon { device: s.device.fork() };
        copy.patch_with(log.pos.0 + log.nblocks() / 2, Sums::None, |b| b.fill(7));
        let made = plan(Arc::new(copy.device.fork()), &options()).unwrap();
        let said = say(&made);
        emptied += usize::from(said.contains("emptied: ") && !made.moves_unverified());
        moved += usize::from(made.moves_unverified());
        assert!(!said.contains(": 0 blocks"), "{said}");
    }
    assert!(emptied > 0 && moved > 0, "{emptied} {moved}");
}
