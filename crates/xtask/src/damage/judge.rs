//! What is promised of a damaged volume, held against what rescue and repair make of it.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use silt_cleaner::Whole;
use silt_control::{open_with_room, retention::Given};
use silt_device::undo::{Undo, save};
use silt_device::{Device, Overlay};
use silt_engine::OpenOptions;
use silt_format::super_block::{PRIMARY_OFFSET, secondary_offset};
use silt_repair::{Options, Plan, errors, plan};
use silt_verify::rescue::Rescue;
use silt_verify::{Finding, Moment, Options as CheckOptions, Tree, Unwatched, check};

use super::volume::{Aged, Names, digest_of, names, names_at};

/// How often it is repaired again.
const AGAIN: usize = 3;

/// When it is repaired, seconds since 1970.
const NOW: u64 = 1_900_000_000;

/// What came of one damaged volume.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Promises that were not kept, the worst first; empty: all were.
    pub findings: Vec<String>,
    /// Names that are lost or another's after a repair, all told by its plan.
    pub lost: usize,
    /// The checkpoint that is the newest one afterwards is an older one.
    pub older: bool,
    /// The plan writes nothing and says so: what there is, a rescue reads.
    pub given_up: bool,
    /// A repair had too little space, and `silt clean` made some for another.
    pub cleaned: bool,
    /// There is too little space for mended trees of snapshots, which stay as they are.
    pub left_in_snapshots: bool,
    /// What a rescue said.
    pub rescued: Vec<String>,
    /// What the plan said.
    pub said: Vec<String>,
    /// The longest of check, rescue and repair.
    pub slowest: Duration,
}

/// Names in a sentence.
fn some(all: &[&Vec<u8>]) -> String {
    let few: Vec<_> = all.iter().take(4).map(|p| format!("/{}", String::from_utf8_lossy(p))).collect();
    format!("{} ({})", all.len(), few.join(" "))
}

/// Whether a plan's words tell of a name: of itself, of its inode, or, unless its `own` content is at stake, of a directory
/// on the way.
fn told(said: &str, volume: &Aged, path: &[u8], own: bool) -> bool {
    let text = String::from_utf8_lossy(path);
    let above = text.match_indices('/').map(|(n, _)| n).filter(|_| !own);
    let named =
        above.chain([text.len()]).any(|n| said.contains(&format!("(/{})", text.get(..n).unwrap_or(""))));
    let way = volume.ways.get(path).map_or(&[][..], Vec::as_slice);
    let way = if own { way.get(way.len().saturating_sub(1)..).unwrap_or_default() } else { way };
    let name = text.rsplit('/').next().unwrap_or("");
    let numbered = |ino: &u64| [" ", ":", "\n"].iter().any(|end| said.contains(&format!("inode {ino}{end}")));
    named || way.iter().any(numbered) || said.contains(&format!("the name \"{name}\""))
}

/// Whether a plan's words tell that names of the directory are lost in which a name is.
fn names_lost(said: &str, volume: &Aged, path: &[u8]) -> bool {
    let way = volume.ways.get(path).map_or(&[][..], Vec::as_slice);
    let Some(parent) = way.len().checked_sub(2).and_then(|n| way.get(n)) else { return false };
    let directory = format!("directory {parent} ");
    let lost = |l: &str| l.contains(&directory) && l.contains("block ") && l.contains("names");
    said.lines().any(lost)
}

/// Digests of what was copied out.
fn copied(dir: &Path) -> Names {
    let mut found = Names::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(at) = todo.pop() {
        let relative = at.strip_prefix(dir).unwrap_or(&at);
        let path = relative.as_os_str().as_encoded_bytes().to_vec();
        let Ok(meta) = std::fs::symlink_metadata(&at) else { continue };
        let mut h = DefaultHasher::new();
        if meta.is_dir() {
            let entries = std::fs::read_dir(&at).into_iter().flatten().flatten();
            todo.extend(entries.map(|e| e.path()));
        } else if meta.is_file() {
            let content = std::fs::read(&at).unwrap_or_default();
            digest_of(content.len() as u64, &content).hash(&mut h);
        }
        found.insert(path, h.finish());
    }
    found
}

/// Checks, rescues and repairs; `changed` are the blocks that were damaged.
pub fn judge(volume: &Aged, copy: &dyn Fn() -> Arc<dyn Device>, changed: &[u64], dir: &Path) -> Verdict {
    let broken = &*copy();
    let mut verdict = Verdict::default();
    let changed: BTreeSet<u64> = changed.iter().copied().collect();
    let hurt: BTreeSet<u64> = volume
        .needs
        .iter()
        .filter(|(_, needs)| needs.iter().any(|b| changed.contains(b)))
        .map(|(ino, _)| *ino)
        .collect();
    let untouched =
        |path: &Vec<u8>| volume.ways.get(path).is_some_and(|w| !w.iter().any(|i| hurt.contains(i)));
    let started = Instant::now();
    let report = check(broken, &CheckOptions { all_checkpoints: true, ..CheckOptions::default() });
    verdict.slowest = started.elapsed();
    let before = names(broken);
    let rootless = changed.iter().any(|b| volume.root.contains(b));
    rescued(volume, broken, dir, &untouched, rootless, &mut verdict);
    let options = Options {
        now: NOW,
        seed: 7,
        cache_bytes: 64 << 20,
        drop_snapshots: true,
        zero_unreadable: true,
        ..Options::default()
    };
    let started = Instant::now();
    let mut made = plan(copy(), &options);
    verdict.slowest = verdict.slowest.max(started.elapsed());
    let base = copy();
    // One that has too little space says what gets some, and one that is too long wants another.
    for _ in 0..AGAIN {
        let is_more =
            |made: &&mut Plan| errors(&made.after) > 0 && (made.more || (made.no_space && !verdict.cleaned));
        let Some(first) = made.as_mut().ok().filter(is_more) else { break };
        let done = std::mem::take(&mut first.rounds);
        if let Err(e) = first.apply(&*base) {
            verdict.findings.push(format!("REPAIR: not applied: {e}"));
        }
        if first.no_space {
            verdict.cleaned = true;
            if let Err(e) = cleaned(&base) {
                verdict.findings.push(format!("CLEAN: {e}"));
            }
        }
        made = plan(base.clone(), &options).map(|mut made| {
            made.rounds.splice(0..0, done);
            made
        });
    }
    match made {
        Ok(made) => {
            let device: Arc<dyn Device> = Arc::new(Overlay::new(base.clone()));
            let undo = dir.with_extension("undo");
            if let Err(e) = save(&undo, &*device, [7; 16], made.overlay()) {
                verdict.findings.push(format!("UNDO: not saved: {e}"));
            }
            if let Err(e) = made.apply(&*device) {
                verdict.findings.push(format!("REPAIR: not applied: {e}"));
            }
            repaired(volume, &made, &*device, before.as_ref(), &untouched, &changed, &mut verdict);
            if !verdict.older {
                snapshots(volume, &made, broken, &*device, &mut verdict);
            }
            if let Err(e) = taken_back(&undo, &*device, &*base) {
                verdict.findings.push(format!("UNDO: {e}"));
            }
            let _ = std::fs::remove_file(&undo);
        }
        Err(e) => verdict.findings.push(format!("REPAIR: no plan: {e} ({} errors before)", errors(&report))),
    }
    verdict
}

/// Gets space back as `silt clean` does: plain checkpoints go where they are in the way.
fn cleaned(device: &Arc<dyn Device>) -> silt_engine::Result<()> {
    let options = OpenOptions { now: NOW, ..OpenOptions::default() };
    let (mut volume, _, _) = open_with_room(device, &options, &Given::default(), NOW)?;
    volume.take_over(NOW)?;
    let options = silt_cleaner::Options { now: NOW, ..silt_cleaner::Options::default() };
    silt_cleaner::run(&Whole::new(&mut volume, NOW), &options, |_| true)?;
    volume.close(NOW)
}

/// Snapshots: what could be read of them is there, or the plan tells of their trees.
fn snapshots(volume: &Aged, made: &Plan, broken: &dyn Device, device: &dyn Device, verdict: &mut Verdict) {
    let told = |c: u64| {
        let heads =
            [format!("checkpoint {c}: "), format!("checkpoint {c} is "), format!("checkpoint {c} has ")];
        made.rounds.iter().flat_map(|r| &r.done).any(|l| heads.iter().any(|h| l.contains(h)))
    };
    let said: String = made.rounds.iter().flat_map(|r| &r.done).fold(String::new(), |a, l| a + l + "\n");
    let shared_told = |p: &[u8]| self::told(&said, volume, p, true);
    for (c, names) in &volume.snapshots {
        let Some((before, _)) = names_at(broken, Moment::Checkpoint(*c)) else { continue };
        let after = names_at(device, Moment::Checkpoint(*c)).map(|(whole, _)| whole).unwrap_or_default();
        let right = |p: &&Vec<u8>| names.contains_key(*p) && before.get(*p) == names.get(*p);
        let spoiled: Vec<_> =
            before.keys().filter(right).filter(|p| after.get(*p) != names.get(*p)).collect();
        // A block that the live tree shares is told of with it, where the file may have another name by now.
        let tree = Tree::open(broken, Moment::Checkpoint(*c)).ok();
        let renamed_told = |p: &[u8]| {
            let ino = tree.as_ref().and_then(|tree| tree.lookup(p).ok());
            ino.is_some_and(|ino| said.contains(&format!("inode {ino} (/")))
        };
        let spoiled: Vec<_> = spoiled.into_iter().filter(|p| !shared_told(p) && !renamed_told(p)).collect();
        if !spoiled.is_empty() && !told(*c) {
            verdict.findings.push(format!("SNAPSHOT {c}: right before and not after: {}", some(&spoiled)));
        }
    }
}

/// Takes a repair back; an error where anything is another than it was.
fn taken_back(undo: &Path, device: &dyn Device, broken: &dyn Device) -> Result<(), String> {
    let undo = Undo::read(undo).map_err(|e| e.to_string())?;
    let second = secondary_offset(device.len());
    undo.take_back(device, |at| at < PRIMARY_OFFSET + 4096 || at >= second).map_err(|e| e.to_string())?;
    let (mut was, mut is) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let compare = |at: u64, was: &mut [u8], is: &mut [u8]| {
        // What could not be read was not saved.
        broken.read_at(at, was).is_err() || (device.read_at(at, is).is_ok() && was == is)
    };
    for at in (0..device.len()).step_by(was.len()) {
        let n = usize::try_from(device.len() - at).unwrap_or(usize::MAX).min(was.len());
        if broken.read_at(at, &mut was[..n]).is_ok() {
            if !compare(at, &mut was[..n], &mut is[..n]) {
                return Err(format!("the {n} bytes at byte {at} are not as they were"));
            }
            continue;
        }
        let sectors = (at..at + n as u64).step_by(512);
        for at in sectors.filter(|at| at + 512 <= device.len()) {
            if !compare(at, &mut was[..512], &mut is[..512]) {
                return Err(format!("the sector at byte {at} is not as it was"));
            }
        }
    }
    Ok(())
}

fn rescued(
    volume: &Aged,
    broken: &dyn Device,
    dir: &Path,
    untouched: &dyn Fn(&Vec<u8>) -> bool,
    rootless: bool,
    verdict: &mut Verdict,
) {
    let started = Instant::now();
    let rescue = match Rescue::open(broken, &Unwatched) {
        Ok(rescue) => rescue,
        Err(e) => return verdict.findings.push(format!("RESCUE: {e}")),
    };
    let Some(cno) = rescue.newest_readable(&Unwatched) else {
        return verdict.findings.push("RESCUE: nothing can be read".into());
    };
    let tally = match rescue.copy_out(cno, dir, &Unwatched) {
        Ok(tally) => tally,
        Err(e) => return verdict.findings.push(format!("RESCUE: {e}")),
    };
    verdict.slowest = verdict.slowest.max(started.elapsed());
    let got = copied(dir);
    let _ = std::fs::remove_dir_all(dir);
    if cno != volume.cno {
        // A lost super root costs what changed since the one before that is there.
        if rootless {
            return;
        }
        verdict.findings.push(format!("RESCUE: moment {cno} of {}", volume.cno));
        return;
    }
    verdict.rescued = tally
        .problems
        .iter()
        .take(3000)
        .map(|p| format!("rescue: {} {:?} {:?}", String::from_utf8_lossy(&p.path), p.notes, p.missing))
        .collect();
    let synced = rescue.unreached();
    let sentences = rescue.missing().into_iter().chain(synced.iter().map(ToString::to_string));
    let sentences = sentences.chain(rescue.torn().map(|torn| torn.to_string()));
    verdict.rescued.extend(sentences.map(|said| format!("rescue: {said}")));
    let mut blamed: BTreeSet<&Vec<u8>> = tally.problems.iter().map(|p| &p.path).collect();
    // What is said of the whole: what was synced and is lost, and that the end of the device is missing.
    let blocks = broken.len() >> volume.geometry.block_bits;
    let behind = |ino: &u64| {
        let needs_end = volume.needs.get(ino).and_then(|needs| needs.last()).is_some_and(|b| *b >= blocks);
        (volume.crashed && needs_end) || synced.as_ref().is_some_and(|lost| lost.files.contains_key(ino))
    };
    blamed.extend(volume.ways.iter().filter(|(_, way)| way.last().is_some_and(behind)).map(|(path, _)| path));
    let wrong: Vec<_> =
        volume.contents.iter().filter(|(p, d)| got.get(*p) != Some(d)).map(|(p, _)| p).collect();
    let silent: Vec<_> =
        wrong.iter().copied().filter(|p| got.contains_key(*p) && !blamed.contains(p)).collect();
    if !silent.is_empty() {
        verdict.findings.push(format!("RESCUE: wrong and not told: {}", some(&silent)));
    }
    let lost: Vec<_> = wrong.iter().copied().filter(|p| untouched(p)).collect();
    if !lost.is_empty() {
        verdict.findings.push(format!("RESCUE: not damaged and not there: {}", some(&lost)));
    }
    let made_up: Vec<_> =
        got.keys().filter(|p| !volume.contents.contains_key(*p) && !blamed.contains(p)).collect();
    // Beside damaged files lie whole versions, and of a directory that is told to have lost names older ones are there.
    let beside = |p: &[u8]| {
        let text = String::from_utf8_lossy(p);
        let above = text.rsplit_once('/').map_or("", |(above, _)| above);
        text.starts_with("lost+found")
            || text.contains(".checkpoint-")
            || blamed.contains(&above.as_bytes().to_vec())
    };
    let made_up: Vec<_> = made_up.into_iter().filter(|p| !beside(p)).collect();
    if !made_up.is_empty() {
        verdict.findings.push(format!("RESCUE: names that were not there: {}", some(&made_up)));
    }
}

fn repaired(
    volume: &Aged,
    made: &Plan,
    device: &dyn Device,
    before: Option<&(Names, Names)>,
    untouched: &dyn Fn(&Vec<u8>) -> bool,
    changed: &BTreeSet<u64>,
    verdict: &mut Verdict,
) {
    verdict.said = made
        .rounds
        .iter()
        .flat_map(|r| [format!("{:?}", r.classes)].into_iter().chain(r.done.clone()))
        .collect();
    verdict.said.extend(made.checkpoints_lost.clone());
    verdict.said.extend(made.stopped.clone());
    verdict.said.extend(made.before.errors().take(3000).map(|f| format!("before: {f}")));
    verdict.said.extend(made.after.errors().take(3000).map(|f| format!("left: {f}")));
    let left = errors(&made.after);
    verdict.given_up = left > 0 && made.is_empty() && made.stopped.is_some();
    if verdict.given_up {
        return;
    }
    // A snapshot is not given up for want of space for its mended tree, and what it has is not moved.
    let snapshot = |c: u64| volume.snapshots.iter().any(|(snapshot, _)| *snapshot == c);
    let of_tables = |f: &Finding| f.id.starts_with("log-") || f.id.starts_with("dat-");
    let theirs = |f: &Finding| f.place.cno.map_or_else(|| of_tables(f), snapshot);
    let kept = made.no_space && made.after.errors().all(theirs);
    verdict.left_in_snapshots = left > 0 && kept;
    if left > 0 && !kept {
        let first = made.after.errors().next().map(ToString::to_string).unwrap_or_default();
        let stopped = made.stopped.clone().unwrap_or_default();
        verdict
            .findings
            .push(format!("REPAIR: {left} errors left of {}: {first} {stopped}", errors(&made.before)));
    }
    let Some((whole, contents)) = names(device) else {
        return verdict.findings.push("REPAIR: nothing can be read afterwards".into());
    };
    let mut said: String = made.rounds.iter().flat_map(|r| &r.done).fold(String::new(), |a, l| a + l + "\n");
    said.extend(made.checkpoints_lost.iter().map(String::as_str));
    let ways = ["they lead to checkpoint ", "the newest one is that of checkpoint "];
    let first = said.lines().find_map(|l| ways.iter().find_map(|w| l.split(w).nth(1)));
    let first = first.and_then(|l| l.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok());
    verdict.older = first.is_some_and(|c| c < volume.cno);
    // Nothing tells that anything followed.
    verdict.older |= volume.crashed && changed.iter().any(|b| volume.root.contains(b));
    verdict.older |= volume.crashed && made.before.is_clean() && made.after.stats.last_cno < volume.cno;
    verdict.older |=
        made.unreached.is_some() || made.checkpoints_lost.is_some() || made.synced_lost.is_some();
    let rootless = changed.iter().any(|b| volume.root.contains(b)) && first.is_some();
    if verdict.older && !volume.crashed && !rootless {
        verdict.findings.push(format!(
            "REPAIR: older: {:?} {:?}",
            made.unreached,
            made.checkpoints_lost.as_ref().or(made.synced_lost.as_ref().map(|_| &said)).map(|s| s.len())
        ));
    }
    // The root's time and links change where lost+found is made.
    let wrong = volume.names.iter().filter(|(p, d)| whole.get(*p) != Some(d)).map(|(p, _)| p);
    let wrong: Vec<_> =
        wrong.filter(|p| !p.is_empty() || !whole.contains_key(b"lost+found".as_slice())).collect();
    for p in &wrong {
        let way = volume.ways.get(*p).and_then(|w| w.last()).copied().unwrap_or(0);
        let how = match (whole.contains_key(*p), contents.get(*p) == volume.contents.get(*p)) {
            (false, _) => "is not there",
            (true, true) => "has other attributes",
            (true, false) => "has another content",
        };
        verdict.said.push(format!("wrong: inode {way} /{} {how}", String::from_utf8_lossy(p)));
    }
    let silent: Vec<_> = wrong
        .iter()
        .copied()
        .filter(|p| contents.get(*p).is_some_and(|d| volume.contents.get(*p) != Some(d)))
        .filter(|p| !told(&said, volume, p, true))
        .collect();
    if !silent.is_empty() && !verdict.older {
        verdict.findings.push(format!("REPAIR: wrong and not told: {}", some(&silent)));
    }
    let gone: Vec<_> = wrong.iter().copied().filter(|p| !told(&said, volume, p, false)).collect();
    if !gone.is_empty() && !verdict.older {
        verdict.findings.push(format!("REPAIR: another and not told: {}", some(&gone)));
    }
    let lost: Vec<_> = wrong.iter().copied().filter(|p| untouched(p)).collect();
    if !lost.is_empty() && !verdict.older {
        verdict.findings.push(format!("REPAIR: not damaged and not there: {}", some(&lost)));
    }
    if let Some((read, _)) = before {
        let right = |p: &Vec<u8>| read.contains_key(p) && read.get(p) == volume.names.get(p);
        // Behind a damaged log, where a mount did not come to, a newer version may be the damaged one, and told.
        let ahead = |p: &Vec<u8>| {
            volume.crashed && !untouched(p) && (told(&said, volume, p, true) || names_lost(&said, volume, p))
        };
        let spoiled: Vec<_> = wrong.iter().copied().filter(|p| right(p) && !ahead(p)).collect();
        if !spoiled.is_empty() {
            verdict.findings.push(format!("REPAIR: right before and not after: {}", some(&spoiled)));
        }
    }
    verdict.lost = wrong.len();
}
