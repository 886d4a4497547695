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
}

/// Findings about trees of past checkpoints but `kept`, and what to do about them: the newest first, some at a time.
pub(crate) fn works<'a>(
    found: &[&'a Finding],
    report: &Report,
    g: Option<&Geometry>,
    tries: &mut Tries,
    kept: &BTreeSet<u64>,
    cut: bool,
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
        if all.len() == AT_ONCE {
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
            Err(e) => {
                own = vec![format!("it cannot be mended: {e}")];
                tries.rounds.insert(c, TRIES);
            }
        }
        said.extend(own.into_iter().map(|line| format!("checkpoint {c}: {line}")));
    }
    Ok(mender.settle_past(now)?)
}
