//! What a repair must come to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use silt_device::{Device, MemoryDevice};
use silt_format::super_block::{PRIMARY_OFFSET, STATE_VALID, secondary_offset};
use silt_repair::{Options, Plan, errors, plan};
use silt_verify::surgeon::Surgeon;
use silt_verify::{Moment, Options as CheckOptions, Report, Tree, check};

pub fn options() -> Options {
    Options { now: 1_900_000_000, seed: 7, cache_bytes: 64 << 20, drop_snapshots: true, ..Options::default() }
}

pub fn checked(device: &dyn Device) -> Report {
    check(device, &CheckOptions { all_checkpoints: true, ..CheckOptions::default() })
}

/// Paths of a tree with a digest of content and attributes; files that cannot be read are left out.
pub fn tree(device: &dyn Device, moment: Moment) -> Option<BTreeMap<Vec<u8>, u64>> {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let tree = Tree::open(device, moment).ok()?;
    let mut found = BTreeMap::new();
    for file in tree.walk().ok()? {
        let a = &file.attributes;
        let mut h = DefaultHasher::new();
        (a.ino, a.mode, a.uid, a.gid, a.mtime, a.generation, a.device).hash(&mut h);
        if a.is_regular() {
            a.size.hash(&mut h);
            let part =
                |at: u64, bytes: &[u8]| (at, bytes.iter().any(|b| *b != 0).then_some(bytes)).hash(&mut h);
            if tree.for_each_part(a.ino, part).is_err() {
                continue;
            }
        } else if a.is_symlink() {
            tree.read_link(a.ino).ok().hash(&mut h);
        }
        found.insert(file.path, h.finish());
    }
    Some(found)
}

/// A plan in words.
pub fn say(plan: &Plan) -> String {
    let mut out = String::new();
    for (n, r) in plan.rounds.iter().enumerate() {
        out += &format!("  round {}: {:?}\n", n + 1, r.classes);
        r.done.iter().take(12).for_each(|d| out += &format!("    {d}\n"));
    }
    plan.stopped.iter().for_each(|s| out += &format!("  stopped: {s}\n"));
    plan.after.errors().take(8).for_each(|f| out += &format!("  left: {f}\n"));
    out
}

/// Names of the files that a repair may not bring back: missing or different in the mended tree.
pub struct Outcome {
    pub plan: Plan,
    pub device: MemoryDevice,
    /// Paths of the sound volume's latest tree that are not there any more, or not the same.
    pub missing: Vec<String>,
}

/// Repairs `broken`; errors where anything is left, where a file that could be read with all its path is not there
/// any more, or where a second repair finds work.
pub fn mends(sound: &MemoryDevice, broken: &MemoryDevice) -> Result<Outcome, String> {
    let readable = tree(broken, Moment::Latest);
    let device = broken.fork();
    let made = plan(Arc::new(broken.fork()), &options()).map_err(|e| e.to_string())?;
    let said = say(&made);
    if errors(&made.before) > 0 && made.rounds.is_empty() {
        let found: Vec<_> = made.before.errors().take(5).map(ToString::to_string).collect();
        return Err(format!("nothing is planned for {}\n{said}", found.join("; ")));
    }
    made.apply(&device).map_err(|e| e.to_string())?;
    let after = checked(&device);
    if !after.is_clean() {
        return Err(format!("{} errors are left\n{said}", errors(&after)));
    }
    let mended =
        tree(&device, Moment::Latest).ok_or_else(|| format!("the mended tree cannot be read\n{said}"))?;
    // What findings are about is damaged, and becomes another.
    let hurt: BTreeSet<u64> = made.before.errors().filter_map(|f| f.place.ino).collect();
    // So does what the plan says is lost.
    let told = made
        .rounds
        .iter()
        .flat_map(|r| &r.done)
        .filter(|l| l.contains(" is put back ") || l.contains(" is cut out"));
    let told = told.filter_map(|l| l.strip_prefix("inode ")?.split(' ').next()?.parse::<u64>().ok());
    let hurt: BTreeSet<u64> = hurt.into_iter().chain(told).collect();
    let hurt: Vec<Vec<u8>> = Tree::open(broken, Moment::Latest)
        .and_then(|t| t.walk())
        .unwrap_or_default()
        .into_iter()
        .filter_map(|w| hurt.contains(&w.attributes.ino).then_some(w.path))
        .collect();
    let newer = made.before.errors().any(|f| f.id == "super-root-newer");
    let whole = tree(sound, Moment::Latest).unwrap_or_default();
    for (path, digest) in readable.iter().flatten().filter(|(p, _)| !newer && whole.contains_key(*p)) {
        // Super blocks may have led to an older state before.
        let same = mended.contains_key(path) && mended.get(path) == whole.get(path);
        let same = same || mended.get(path) == Some(digest) || mended.values().any(|d| d == digest);
        if !same && !hurt.contains(path) {
            let path = String::from_utf8_lossy(path);
            return Err(format!("/{path} could be read before and is another now\n{said}"));
        }
    }
    let missing = tree(sound, Moment::Latest)
        .unwrap_or_default()
        .iter()
        .filter(|(path, digest)| mended.get(*path) != Some(digest))
        .map(|(path, _)| String::from_utf8_lossy(path).into_owned())
        .collect();
    let second = plan(Arc::new(device.fork()), &options()).map_err(|e| e.to_string())?;
    if !second.is_empty() {
        return Err(format!("a second repair finds work:\n{}\nafter\n{said}", say(&second)));
    }
    Ok(Outcome { plan: made, device, missing })
}

/// Numbers of the snapshots.
pub fn snapshots(device: &MemoryDevice) -> Vec<u64> {
    silt_engine::mend::snapshots(Arc::new(device.fork())).unwrap_or_default().into_iter().collect()
}

/// Bytes that make no sense.
pub fn noise(n: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let mut byte = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    };
    (0..n).map(|_| byte()).collect()
}

/// Every checkpoint that can be read, as it is read.
pub fn trees(device: &MemoryDevice) -> Vec<(u64, BTreeMap<Vec<u8>, u64>)> {
    let last = checked(device).stats.last_cno;
    (1..=last).filter_map(|c| Some((c, tree(device, Moment::Checkpoint(c))?))).collect()
}

/// As a clean unmount would have left it.
pub fn unmounted(s: &mut Surgeon) {
    let (log, cno) = (s.latest(), s.cno());
    s.patch_super((true, true), |sb| {
        sb.last_pseg = log.pos.0.into();
        sb.last_seq = log.header.seq;
        sb.last_cno = cno.into();
        sb.state = (sb.state.get() | STATE_VALID).into();
    });
}

/// Both super blocks are overwritten.
pub fn both_lost(s: &mut Surgeon) {
    for at in [PRIMARY_OFFSET, secondary_offset(s.device.len())] {
        s.device.write_at(at, &[&[0; 1024]]).unwrap();
    }
}

/// Blocks that no cleaner takes (format 13.5): records of live blocks, as a cleaner reads them from segments in use,
/// that name one file, offset and beginning, as (inode, beginning, offset).
pub fn conflicts(device: &MemoryDevice) -> Vec<(u64, u64, u64)> {
    use silt_format::dat::DatEntry;
    use silt_format::segment_usage::DIRTY;
    use silt_format::summary::{BlockInfo, for_each_payload};
    let s = Surgeon { device: device.fork() };
    let (g, dat, usage) = (s.g(), s.dat(), s.file(5));
    let entry = |v: u64| {
        let at = dat.layout.entry(v);
        let bits = dat.blocks.get(&dat.layout.bitmap_block(dat.layout.group(v)))?;
        let bit = dat.layout.bit(v);
        let taken = s.read(*bits)[bit / 8] >> (bit % 8) & 1 == 1;
        DatEntry::read(&s.read(*dat.blocks.get(&at.block)?), at.byte).ok().filter(|_| taken)
    };
    let (size, per) = (u64::from(g.segment_usage_size), u64::from(g.block_size / g.segment_usage_size));
    let used = |nr: u64| {
        let slot = nr + 24u64.div_ceil(size);
        let flags = usize::try_from(slot % per * size).unwrap() + 12;
        usage.get(&(slot / per)).is_some_and(|b| u32::from(s.read(*b)[flags]) & DIRTY != 0)
    };
    // Behind the end of the newest logs those of an earlier use of the segment may lie.
    let logs = |nr: u64| {
        let all = s.logs(nr);
        let seq = all.first().map(|l| l.header.seq.get());
        all.into_iter().take_while(move |l| Some(l.header.seq.get()) == seq)
    };
    let (mut seen, mut twice) = (std::collections::BTreeSet::new(), Vec::new());
    for log in (0..g.nsegments).filter(|n| used(*n)).flat_map(logs) {
        let blocks = log.header.summary_blocks(&g);
        let summary: Vec<u8> = (0..u64::from(blocks)).flat_map(|n| s.read(log.pos.0 + n)).collect();
        let _ = for_each_payload(&g, &log.header, &summary, |p| {
            let BlockInfo::Data { vblock, offset } = p.info else { return };
            let Some(e) = entry(vblock.0) else { return };
            // One that ended with its beginning is dead, and one without a beginning is of the tables.
            let live = e.start.get() < e.end.get() && e.end.get() != p.cno.0 && p.cno.0 != 0;
            if p.ino.0 > 5 && live && !seen.insert((p.ino.0, p.cno.0, offset)) {
                twice.push((p.ino.0, p.cno.0, offset));
            }
        });
    }
    twice
}
