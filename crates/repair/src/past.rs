//! Past checkpoints that are damaged: their trees are mended one by one, as the current one is.

use std::collections::{BTreeMap, BTreeSet};

use silt_engine::mend::{Mender, Wounds};
use silt_format::{Cno, Geometry, Ino};
use silt_verify::{Finding, Report};

use crate::tree::Work;
use crate::{Result, tables, tree};

/// How often one checkpoint is mended.
const TRIES: u32 = 5;
/// Checkpoints that are mended in one round.
const AT_ONCE: usize = 32;
/// Checkpoints that are mended at all; of more of them the older ones are for [`tables::past`].
const MOST: usize = 256;

/// What to do with the tree of a past checkpoint.
#[derive(Debug, Clone)]
pub(crate) struct Past {
    pub cno: u64,
    /// Build the map of its inode file from the logs.
    rebuild: bool,
    wounds: Wounds,
    work: Work,
}

/// What was tried so far, by checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    rounds: BTreeMap<u64, u32>,
    inodes: BTreeMap<u64, BTreeMap<u64, u32>>,
    /// How often inode files were put together, or could not be.
    roots: BTreeMap<u64, u32>,
}

impl Tries {
    /// How many checkpoints were mended, at most [`MOST`].
    pub fn mended(&self) -> usize {
        self.rounds.len()
    }
}

/// Whether a finding may be about the root of a tree, in the checkpoint's entry: all that is found below it says nothing
/// then.
pub(crate) fn is_root(f: &Finding) -> bool {
    let map = f.id.starts_with("map-") || matches!(f.id, "btree-root" | "direct-map-flags" | "inode-blocks");
    f.id == "cpfile-ifile" || (map && f.place.ino == Some(Ino::IFILE.0))
}

/// Whether nothing is wrong with the table of addresses, by which an inode file is put together.
pub(crate) fn table_is_sound(found: &[&Finding]) -> bool {
    !found
        .iter()
        .any(|f| (f.id.starts_with("dat-") && f.id != "dat-live-unmapped") || f.place.ino == Some(Ino::DAT.0))
}

/// Past checkpoints but `kept` whose entries may not say where their trees are, the newest first, each at most so many
/// `times`.
pub(crate) fn roots<'a>(
    found: &[&'a Finding],
    report: &Report,
    tries: &mut Tries,
    kept: &BTreeSet<u64>,
    times: u32,
) -> (Vec<Past>, Vec<&'a Finding>) {
    let past = |c: &u64| *c < report.stats.last_cno && !kept.contains(c);
    let cno = |f: &Finding| f.place.cno.filter(past).filter(|_| is_root(f));
    let mut all: BTreeSet<u64> = found.iter().filter_map(|f| cno(f)).collect();
    all.retain(|c| tries.roots.get(c).is_none_or(|n| *n < times));
    let all: Vec<u64> = all.into_iter().rev().take(AT_ONCE).collect();
    all.iter().for_each(|c| *tries.roots.entry(*c).or_insert(0) += 1);
    let mine = found.iter().copied().filter(|f| cno(f).is_some_and(|c| all.contains(&c))).collect();
    let wounds = Wounds { ifile_root: true, ..Wounds::default() };
    let past = |cno| Past { cno, rebuild: false, wounds: wounds.clone(), work: Work::default() };
    (all.into_iter().map(past).collect(), mine)
}

impl Tries {
    /// What was to be mended was not tried.
    pub fn take_back(&mut self, past: &[Past]) {
        for past in past {
            if let Some(n) = self.rounds.get_mut(&past.cno) {
                *n = n.saturating_sub(1);
            }
        }
    }
}

/// Findings about trees of past checkpoints but `kept`, and what to do about them: the newest first, `at_once` at a time.
pub(crate) fn works<'a>(
    found: &[&'a Finding],
    report: &Report,
    g: Option<&Geometry>,
    tries: &mut Tries,
    kept: &BTreeSet<u64>,
    cut: bool,
    at_once: usize,
) -> (Vec<Past>, Vec<&'a Finding>) {
    let mut by_cno: BTreeMap<u64, Vec<&'a Finding>> = BTreeMap::new();
    for f in found {
        if let Some(c) = f.place.cno.filter(|c| *c < report.stats.last_cno && !kept.contains(c)) {
            by_cno.entry(c).or_default().push(f);
        }
    }
    let (mut all, mut mine) = (Vec::new(), Vec::new());
    for (cno, found) in by_cno.into_iter().rev() {
        let known = tries.rounds.contains_key(&cno);
        if tries.rounds.get(&cno).is_some_and(|n| *n >= TRIES) || (!known && tries.rounds.len() >= MOST) {
            continue;
        }
        let (mut wounds, mut rebuild) = (Wounds::default(), false);
        let mut tables: Vec<&Finding> = Vec::new();
        for f in &found {
            let map = f.id.starts_with("btree-") || (f.id == "device-read" && f.place.vblock.is_some());
            if map && f.place.ino == Some(Ino::IFILE.0) {
                rebuild = true;
                tables.push(f);
            } else if tables::inode_file(f, &mut wounds) {
                tables.push(f);
            }
        }
        // What is wrong with the inode file shows as damage of files: those are looked at when it is right.
        let (mut work, mut files) = (Work::default(), Vec::new());
        if tables.is_empty() {
            let inodes = tries.inodes.entry(cno).or_default();
            (work, files) = tree::work_of(&found, |f| f.place.cno == Some(cno), g, inodes, cut);
            wounds.lost_inodes.clone_from(&work.lost);
        }
        if tables.is_empty() && files.is_empty() {
            continue;
        }
        *tries.rounds.entry(cno).or_insert(0) += 1;
        mine.extend(tables);
        mine.extend(files);
        all.push(Past { cno, rebuild, wounds, work });
        if all.len() >= at_once.min(AT_ONCE) {
            break;
        }
    }
    (all, mine)
}

/// Mends past trees.
pub(crate) fn mend(
    mender: &mut Mender,
    works: &[Past],
    tries: &mut Tries,
    kept: &BTreeSet<u64>,
    now: u64,
    said: &mut Vec<String>,
) -> Result<()> {
    for p in works {
        let mut own = Vec::new();
        let c = p.cno;
        match mender.enter_past(Cno(c), p.rebuild, &p.wounds, kept, now) {
            Ok(true) => {
                own.append(&mut mender.said);
                match tree::mend(mender, &p.work, &mut own) {
                    Ok(opened) => {
                        let inodes = tries.inodes.entry(c).or_default();
                        opened.iter().for_each(|ino| {
                            inodes.remove(ino);
                        });
                        mender.leave_past(now)?;
                    }
                    Err(e) => {
                        mender.give_up_past();
                        own = vec![format!("it cannot be mended: {e}")];
                        tries.rounds.insert(c, TRIES);
                    }
                }
            }
            Ok(false) => {}
            // It may be something else.
            Err(_) if p.wounds.ifile_root => mender.said.clear(),
            Err(e) => {
                own = vec![format!("it cannot be mended: {e}")];
                tries.rounds.insert(c, TRIES);
            }
        }
        said.extend(own.into_iter().map(|line| format!("checkpoint {c}: {line}")));
    }
    Ok(mender.settle_past(now)?)
}
