//! Damage stays local: each block of metadata of volumes that the real kernel wrote is overwritten in turn, with
//! noise, with zeroes, with another block's content, or cannot be read at all; checksums of the log are made right
//! again, so that only what is behind them can notice. Then:
//!
//! - a file that does not need the block reads as before; any other reads as before or is an error;
//! - what is an error can be deleted and replaced, other files can be written, and all of it is there after the
//!   next mount;
//! - check finds nothing afterwards that was not found before.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use silt_device::{Device, MemoryDevice};
use silt_engine::{OpenOptions, Piece, Tree, Volume};
use silt_format::{BlockNr, Geometry, crc32};
use silt_fs::{Context, Fs, FsError, Ino, Seek, WriteFlags};
use silt_verify::surgeon::{Sums, Surgeon};

const NOW: u64 = 4_000_000_000;

/// Notes which blocks are read, and refuses some.
struct Watch {
    inner: MemoryDevice,
    bits: u32,
    read: Mutex<BTreeSet<u64>>,
    refused: Option<u64>,
}

impl Watch {
    fn new(inner: MemoryDevice, g: &Geometry, refused: Option<u64>) -> Arc<Self> {
        Arc::new(Watch { inner, bits: g.block_bits, read: Mutex::default(), refused })
    }
}

impl Device for Watch {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> silt_device::Result<()> {
        let blocks = offset >> self.bits..(offset + buf.len() as u64).div_ceil(1 << self.bits);
        if self.refused.is_some_and(|r| blocks.contains(&r)) {
            let source = std::io::Error::from_raw_os_error(5);
            let operation = silt_device::Operation::Read;
            return Err(silt_device::Error::Io { operation, offset, len: buf.len() as u64, source });
        }
        self.read.lock().extend(blocks);
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> silt_device::Result<()> {
        self.inner.write_at(offset, bufs)
    }
    fn flush(&self) -> silt_device::Result<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> silt_device::Result<()> {
        self.inner.discard(offset, len)
    }
    fn capabilities(&self) -> silt_device::Capabilities {
        self.inner.capabilities()
    }
}

/// Number of the newest checkpoint, found anew.
fn newest(device: &MemoryDevice) -> u64 {
    open(Arc::new(device.fork()), true).map_or(0, |fs| fs.volume().last_log().cno)
}

fn open(device: Arc<dyn Device>, read_only: bool) -> silt_engine::Result<Fs> {
    let options = OpenOptions { read_only, cache_bytes: 4 << 20, now: NOW, ..OpenOptions::default() };
    let (mut volume, _) = Volume::open(device, &options)?;
    if !read_only {
        volume.take_over(NOW)?;
    }
    // What the device does not give here it never gives.
    let options = silt_fs::Options { index_bytes: 1 << 20, patience: Duration::ZERO, ..Default::default() };
    Ok(Fs::new(volume, &options))
}

/// What a name leads to: type, size, and a checksum of the content.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    mode: u32,
    size: u64,
    sum: u32,
}

/// Everything that can be read behind a path.
fn see(fs: &mut Fs, path: &str) -> Result<Seen, FsError> {
    let ino = fs.resolve(Tree::Live, path.as_bytes())?;
    let stat = fs.getattr(Tree::Live, ino)?;
    let mut sum = 0;
    if stat.is_dir() {
        let mut last = 0;
        let mut names = Vec::new();
        loop {
            let before = last;
            fs.readdir(Tree::Live, ino, last, false, |e| {
                last = e.next;
                names.push((e.name.to_vec(), e.ino.0));
                ControlFlow::Continue(())
            })?;
            if last == before {
                break;
            }
        }
        names.sort();
        sum = crc32(0, format!("{names:?}").as_bytes());
    } else if stat.is_regular() {
        let mut at = 0;
        while at < stat.size {
            let data = match fs.seek(Tree::Live, ino, at, Seek::Data) {
                Ok(data) => data,
                Err(FsError::NoData) => break,
                Err(e) => return Err(e),
            };
            let bytes = fs.read(Tree::Live, ino, data, 256 << 10)?;
            sum = crc32(sum ^ (data as u32), &bytes);
            at = data + bytes.len() as u64;
        }
    } else if let Ok(target) = fs.readlink(Tree::Live, ino) {
        sum = crc32(0, &target);
    } else if stat.mode & 0o170_000 == 0o120_000 {
        return Err(fs.readlink(Tree::Live, ino).unwrap_err());
    }
    Ok(Seen { mode: stat.mode, size: stat.size, sum })
}

/// All paths, directories before what is in them.
fn paths(fs: &mut Fs) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut next = 0;
    let mut dirs = BTreeSet::new();
    while next < all.len() && all.len() < 5000 {
        let path = all[next].clone();
        next += 1;
        let Ok(ino) = fs.resolve(Tree::Live, path.as_bytes()) else { continue };
        if !fs.getattr(Tree::Live, ino).is_ok_and(|s| s.is_dir()) || !dirs.insert(ino) {
            continue;
        }
        let _ = fs.readdir(Tree::Live, ino, 0, false, |e| {
            if e.name != b"." && e.name != b".." {
                all.push(format!("{path}/{}", String::from_utf8_lossy(e.name)));
            }
            ControlFlow::Continue(())
        });
    }
    all
}

/// A sound volume: what is in it, and what each part needs.
struct Whole {
    surgeon: Surgeon,
    g: Geometry,
    seen: BTreeMap<String, Seen>,
    needs: BTreeMap<String, BTreeSet<u64>>,
    /// Blocks that opening reads.
    opening: BTreeSet<u64>,
    /// Blocks of files' content.
    data: BTreeSet<u64>,
    findings: BTreeMap<&'static str, u64>,
    /// Number of the newest checkpoint.
    newest_cno: u64,
}

impl Whole {
    fn new(name: &'static str) -> Self {
        let surgeon = Surgeon::golden(name);
        let g = surgeon.g();
        let (mut seen, mut needs, mut data) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let all = paths(&mut open(Arc::new(surgeon.device.fork()), true).unwrap());
        let watch = Watch::new(surgeon.device.fork(), &g, None);
        drop(open(watch.clone(), true).unwrap());
        let opening = std::mem::take(&mut *watch.read.lock());
        for path in all {
            let mut fs = open(watch.clone(), true).unwrap();
            watch.read.lock().clear();
            seen.insert(path.clone(), see(&mut fs, &path).unwrap());
            needs.insert(path.clone(), std::mem::take(&mut *watch.read.lock()));
            let ino = fs.resolve(Tree::Live, path.as_bytes()).unwrap();
            let stat = fs.getattr(Tree::Live, ino).unwrap();
            if stat.is_regular() {
                let mut at = 0;
                while let Ok(from) = fs.seek(Tree::Live, ino, at, Seek::Data) {
                    at = fs.seek(Tree::Live, ino, from, Seek::Hole).unwrap();
                    for key in from >> g.block_bits..at.div_ceil(u64::from(g.block_size)) {
                        if let Piece::Disk(b) = fs.volume_mut().locate(Tree::Live, ino, key).unwrap() {
                            data.insert(b.0);
                        }
                    }
                }
            }
        }
        let findings = errors(&surgeon.device);
        let newest_cno = newest(&surgeon.device.fork());
        Whole { surgeon, g, seen, needs, opening, data, findings, newest_cno }
    }

    /// Blocks of metadata that the latest tree needs, those for opening included.
    fn metadata(&self) -> BTreeSet<u64> {
        let all = self.needs.values().flatten().chain(&self.opening).copied();
        all.filter(|b| self.g.holds(BlockNr(*b)) && !self.data.contains(b) && self.is_written(*b)).collect()
    }

    /// Whether a log holds a block. Opening looks behind the last one, too.
    fn is_written(&self, block: u64) -> bool {
        let logs = self.surgeon.logs(self.g.segment_of(BlockNr(block)).0);
        logs.iter().any(|l| l.pos.0 <= block && block < l.end())
    }
}

/// How often each invariant is broken.
fn errors(device: &dyn Device) -> BTreeMap<&'static str, u64> {
    let report = silt_verify::check(device, &silt_verify::Options::default());
    let mut all = BTreeMap::new();
    for f in report.errors() {
        *all.entry(f.id).or_default() += 1;
    }
    all
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Noise,
    Zeroes,
    /// The content of another block of metadata.
    Other,
    Unreadable,
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[derive(Debug, Default)]
struct Tally {
    cases: u32,
    /// The volume could not be opened at all.
    unopened: u32,
    /// It could be opened for reading only.
    read_only: u32,
    /// It was opened at an older moment.
    older: u32,
    broken_files: u32,
    why: BTreeMap<String, u32>,
    deleted: u32,
    replaced: u32,
}

fn case(whole: &Whole, block: u64, how: How, other: u64, tally: &mut Tally, wrong: &mut Vec<String>) {
    let g = &whole.g;
    let mut surgeon = Surgeon { device: whole.surgeon.device.fork() };
    let bytes = match how {
        How::Noise => noise(g.bs(), block),
        How::Zeroes => vec![0; g.bs()],
        How::Other => surgeon.read(other),
        How::Unreadable => Vec::new(),
    };
    if how != How::Unreadable {
        surgeon.patch_if_possible(block, Sums::All, &bytes);
    }
    let newest_cno = newest(&surgeon.device);
    let refused = (how == How::Unreadable).then_some(block);
    let device = Watch::new(surgeon.device, g, refused);
    tally.cases += 1;
    let mut say = |what: String| wrong.push(format!("block {block} {how:?}: {what}"));
    let before = errors(&*device);
    let opened = open(device.clone(), false).or_else(|_| {
        tally.read_only += 1;
        open(device.clone(), true)
    });
    let mut fs = match opened {
        Ok(fs) => fs,
        Err(e) => {
            tally.read_only -= 1;
            tally.unopened += 1;
            *tally.why.entry(e.to_string().chars().filter(|c| !c.is_ascii_digit()).collect()).or_default() +=
                1;
            if !whole.opening.contains(&block) {
                say(format!("not opened: {e}"));
            }
            return;
        }
    };
    if std::env::var_os("SILT_LOCAL_BLOCK").is_some() {
        say(format!("next checkpoint {newest_cno}, whole {}", whole.newest_cno));
    }
    if fs.volume().is_read_only() || newest_cno < whole.newest_cno {
        if whole.opening.contains(&block) {
            // A log of the chain is lost, and what changed in it.
            tally.older += u32::from(newest_cno < whole.newest_cno);
        } else {
            say("opened at an older checkpoint or for reading only".into());
        }
        return;
    }
    let mut bad = BTreeSet::new();
    for (path, expected) in &whole.seen {
        let needed = whole.needs[path].contains(&block) || whole.opening.contains(&block);
        match see(&mut fs, path) {
            Ok(seen) if seen == *expected => {}
            // One block of metadata in another's place may make sense there.
            Ok(_) if needed && how == How::Other => {
                bad.insert(path.clone());
            }
            Ok(seen) => {
                say(format!("{path} reads wrong (needed: {needed}): {seen:?} for {expected:?}"));
                bad.insert(path.clone());
            }
            Err(_) if needed => {
                bad.insert(path.clone());
            }
            Err(e) => {
                say(format!("{path}: {e}"));
                bad.insert(path.clone());
            }
        }
    }
    tally.broken_files += bad.len() as u32;
    mend(whole, &mut fs, &bad, tally, &mut say);
    let ctx = Context { privileged: true, ..Context::default() };
    let name = b"quite new";
    let made = fs.create(&ctx, Ino::ROOT, name, 0o644).and_then(|s| {
        fs.write(&ctx, s.ino, 0, &[9; 30_000], WriteFlags::default())?;
        fs.sync_all(NOW + 2)
    });
    let root_is_bad = bad.contains("");
    if let Err(e) = made
        && !root_is_bad
    {
        say(format!("a new file in the root: {e}"));
    }
    if let Some(why) = fs.volume().failure() {
        say(format!("writing ended: {why}"));
        return;
    }
    if let Err(e) = fs.volume_mut().close(NOW + 3) {
        say(format!("closing: {e}"));
        return;
    }
    drop(fs);
    let mut fs = match open(device.clone(), false) {
        Ok(fs) => fs,
        Err(e) => {
            say(format!("not opened again: {e}"));
            return;
        }
    };
    for (path, expected) in whole.seen.iter().filter(|(p, _)| !bad.contains(*p) && !is_dir(&whole.seen[*p])) {
        match see(&mut fs, path) {
            Ok(seen) if seen == *expected => {}
            other => say(format!("{path} was sound and is now {other:?}")),
        }
    }
    if !root_is_bad {
        let new = fs.resolve(Tree::Live, name).and_then(|i| fs.read(Tree::Live, i, 0, 1 << 20));
        if new.as_deref().ok() != Some(&[9; 30_000]) {
            say(format!("the new file is gone: {:?}", new.map(|n| n.len())));
        }
    }
    let _ = fs.volume_mut().close(NOW + 4);
    // It went no further before, and does now.
    let gaps =
        ["super-root-found", "cpfile-header-block", "sufile-header-block", "map-vblock", "palloc-free-count"];
    let blind = gaps.iter().any(|id| before.contains_key(id));
    let after = errors(&*device);
    if std::env::var_os("SILT_LOCAL_BLOCK").is_some() {
        say(format!("{before:?} then {after:?}"));
    }
    for (id, n) in after {
        let was = before.get(id).copied().unwrap_or(0).max(whole.findings.get(id).copied().unwrap_or(0));
        // What cannot be told to belong to what was deleted stays taken.
        let leak = matches!(id, "inode-lost" | "dat-live-unmapped") && n <= was + u64::from(tally.deleted);
        // How many blocks went with what cannot be read is not known.
        let inexact = matches!(id, "cpfile-blocks-count" | "inode-blocks");
        // Where another block's content made sense, what was deleted may have been another file's.
        let mixed = how == How::Other;
        if n > was && !leak && !inexact && !mixed && !blind && id != "device-read" {
            say(format!("check finds {id} {n} times, before {was}"));
        }
    }
}

fn is_dir(seen: &Seen) -> bool {
    seen.mode & 0o170_000 == 0o040_000
}

/// Deletes what cannot be read and puts new files in its place.
fn mend(whole: &Whole, fs: &mut Fs, bad: &BTreeSet<String>, tally: &mut Tally, say: &mut impl FnMut(String)) {
    let ctx = Context { privileged: true, ..Context::default() };
    // What is deepest first.
    let mut all: Vec<&String> = bad.iter().filter(|p| !p.is_empty()).collect();
    all.sort_by_key(|p| std::cmp::Reverse(p.matches('/').count()));
    for path in all {
        let (parent, name) = path.rsplit_once('/').unwrap();
        let Ok(dir) = fs.resolve(Tree::Live, parent.as_bytes()) else { continue };
        // Of a directory that is damaged itself entries may be out of reach: it goes as a whole.
        if bad.contains(parent) && fs.entry(Tree::Live, dir, name.as_bytes()).is_err() {
            continue;
        }
        let gone = if is_dir(&whole.seen[path]) {
            empty(fs, &ctx, path, 8);
            fs.rmdir(&ctx, dir, name.as_bytes())
        } else {
            fs.unlink(&ctx, dir, name.as_bytes())
        };
        if let Err(e) = gone {
            if !bad.contains(parent) {
                say(format!("{path} cannot be deleted: {e}"));
            }
            continue;
        }
        tally.deleted += 1;
        let made = fs
            .create(&ctx, dir, name.as_bytes(), 0o644)
            .and_then(|s| fs.write(&ctx, s.ino, 0, path.as_bytes(), WriteFlags::default()));
        match made {
            Ok(_) => tally.replaced += 1,
            Err(e) if !bad.contains(parent) => say(format!("{path} cannot be replaced: {e}")),
            Err(_) => {}
        }
    }
    if let Err(e) = fs.sync_all(NOW + 1) {
        say(format!("sync: {e}"));
    }
}

/// As `rm -r` does.
fn empty(fs: &mut Fs, ctx: &Context, path: &str, depth: u32) {
    if depth == 0 {
        return;
    }
    let Ok(dir) = fs.resolve(Tree::Live, path.as_bytes()) else { return };
    let mut entries = Vec::new();
    let _ = fs.readdir(Tree::Live, dir, 0, false, |e| {
        if e.name != b"." && e.name != b".." {
            entries.push(e.name.to_vec());
        }
        ControlFlow::Continue(())
    });
    for name in entries {
        if fs.unlink(ctx, dir, &name) == Err(FsError::IsDir) {
            empty(fs, ctx, &format!("{path}/{}", String::from_utf8_lossy(&name)), depth - 1);
            let _ = fs.rmdir(ctx, dir, &name);
        }
    }
}

/// Every `step`th block of metadata; 0: as many as the environment asks for, all with `SILT_LOCAL_ALL`.
fn campaign(name: &'static str, most: usize) {
    let whole = Whole::new(name);
    let metadata: Vec<u64> = whole.metadata().into_iter().collect();
    let most = if std::env::var_os("SILT_LOCAL_ALL").is_some() { usize::MAX } else { most };
    let step = (4 * metadata.len()).div_ceil(most).max(1);
    let mut tally = Tally::default();
    let mut wrong = Vec::new();
    let ways = [How::Noise, How::Zeroes, How::Other, How::Unreadable];
    let cases = metadata.iter().enumerate().flat_map(|(i, b)| ways.map(|how| (i, *b, how)));
    // Each way as often as the others.
    let step = if step.is_multiple_of(2) { step + 1 } else { step };
    if let Some(one) = std::env::var("SILT_LOCAL_BLOCK").ok().and_then(|b| b.parse::<u64>().ok()) {
        let kept: Vec<_> = cases.filter(|(_, block, _)| *block == one).collect();
        for (i, block, how) in kept {
            let other = metadata[(i + metadata.len() / 3 + 1) % metadata.len()];
            wrong.push(format!(
                "{block} of {:?}, other {:?}",
                whole.surgeon.owner(block),
                whole.surgeon.owner(other)
            ));
            case(&whole, block, how, other, &mut tally, &mut wrong);
        }
        panic!("{}", wrong.join("\n"));
    }
    for (i, block, how) in cases.step_by(step) {
        let other = metadata[(i + metadata.len() / 3 + 1) % metadata.len()];
        case(&whole, block, how, other, &mut tally, &mut wrong);
    }
    println!("{name}: {} blocks of metadata, {tally:?}", metadata.len());
    assert!(
        tally.cases > 20 && tally.broken_files + tally.older > 0,
        "{name}: nothing was broken: {tally:?}"
    );
    assert!(wrong.is_empty(), "{name}: {} wrong\n{}", wrong.len(), wrong[..wrong.len().min(60)].join("\n"));
}

#[test]
fn basic_4k() {
    campaign("basic-4k", 60);
}

#[test]
fn basic_1k() {
    campaign("basic-1k", 60);
}

#[test]
fn btree_1k() {
    campaign("btree-1k", 120);
}

#[test]
fn gc_4k() {
    campaign("gc-4k", 120);
}

#[test]
fn cut_4k() {
    campaign("cut-4k", 120);
}
