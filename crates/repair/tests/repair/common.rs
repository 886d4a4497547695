//! What a repair must come to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use silt_device::{Device, MemoryDevice};
use silt_repair::{Options, Plan, errors, plan};
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

/// Snapshots of a sound volume.
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
