//! A surveyed volume: its super roots, and the moments that can be read through them.

use std::sync::{Arc, OnceLock};

use silt_device::Device;
use silt_format::summary::SYNDT;
use silt_format::super_root::SuperRoot;
use silt_format::{BlockNr, Geometry, checkpoint};

use super::behind::Behind;
use super::geometry::{self, Shape};
use super::records::Records;
use super::state::State;
use super::survey::{LogRecord, Survey};
use crate::reader::{Block, Reader};
use crate::super_check;
use crate::{Error, Watch};

/// Bytes of blocks that are kept in memory.
const CACHE: usize = 32 << 20;
/// Super roots that are tried for one whose translation table is complete.
const TRUSTED: usize = 8;

/// A super root that verifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    /// The checkpoint it completes.
    pub cno: u64,
    /// When that was made, seconds since 1970; 0 where not known.
    pub created: u64,
    /// Its block.
    pub block: u64,
    /// First block of its log; `None` where the head of that is lost.
    pub log: Option<u64>,
    /// Order of its log: (sequence number, first block).
    pub order: (u64, u64),
    /// Whether the checksum of its log matches.
    pub whole: bool,
}

/// One moment of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Checkpoint number.
    pub cno: u64,
    /// Seconds since 1970; 0 where not known.
    pub created: u64,
    pub snapshot: bool,
    /// No block of the tree changed in it.
    pub minor: bool,
    /// Whether its own super root was found.
    pub has_root: bool,
}

/// A volume that was surveyed. Reads the device when asked and writes nothing to it; nobody may write meanwhile.
pub struct Rescue<'d> {
    pub(super) r: Reader<'d>,
    pub shape: Shape,
    pub survey: Survey,
    records: OnceLock<Records>,
    pub(super) behind: OnceLock<Option<Behind>>,
    pub(super) watch: &'d dyn Watch,
    /// Whether segments lie where others should. After a crash that may seem so, too.
    pub(super) misplaced: bool,
    /// Newest first.
    roots: Vec<Root>,
    /// Which of them older checkpoints are read through.
    trusted: OnceLock<Option<Root>>,
}

impl<'d> Rescue<'d> {
    /// Surveys a volume: reads all of it once, twice where both super blocks are lost. Errors: nothing of a volume is
    /// there.
    pub fn open(device: &'d dyn Device, watch: &'d dyn Watch) -> Result<Self, Error> {
        let shape = geometry::find(device, watch)?;
        let survey = Survey::run(device, &shape.geometry, watch);
        let mut r = Reader::new(device, shape.geometry, CACHE);
        r.whole = Some(survey.logs.iter().filter(|log| log.whole).map(|log| log.pos).collect());
        let mut rescue = Rescue {
            r,
            shape,
            survey,
            records: OnceLock::new(),
            behind: OnceLock::new(),
            watch,
            misplaced: false,
            roots: Vec::new(),
            trusted: OnceLock::new(),
        };
        let logs = rescue.survey.roots();
        rescue.roots = logs
            .iter()
            .map(|l| Root {
                cno: l.cno,
                created: l.create,
                block: l.end() - 1,
                log: Some(l.pos),
                order: l.order(),
                whole: l.whole,
            })
            .collect();
        rescue.misplaced = super::misplaced::any(&rescue);
        rescue.take_lone_root();
        Ok(rescue)
    }

    /// A super root whose log has lost its head is taken if it is the newest: older ones are in the cpfile, and what a
    /// segment held before its present use must not be taken for new.
    fn take_lone_root(&mut self) {
        let newest = self.roots.first().copied();
        // Only a few are looked at: made up ones would cost time.
        let lone = self.survey.lone_roots.iter().rev().take(64).copied();
        let mut best: Option<Root> = None;
        for block in lone {
            let Some(root) = self.super_root(block) else { continue };
            let state = State::load(self, root, (u64::MAX, block));
            let Some(last) = state.checkpoints().into_iter().next_back() else { continue };
            let newer = |than: Option<&Root>| than.is_none_or(|t| last.cno > t.cno);
            if newer(newest.as_ref()) && newer(best.as_ref()) {
                let order = (u64::MAX, block);
                best = Some(Root {
                    cno: last.cno,
                    created: last.created,
                    block,
                    log: None,
                    order,
                    whole: false,
                });
            }
        }
        if let Some(root) = best {
            self.roots.insert(0, root);
        }
    }

    /// Numbers of the volume.
    pub fn geometry(&self) -> &Geometry {
        &self.r.g
    }

    /// What summaries say of blocks; read at the first call, which takes time and memory.
    pub fn records(&self) -> &Records {
        self.records.get_or_init(|| Records::build(self.r.device, &self.r.g, &self.survey, self.watch))
    }

    /// Whether the summaries had to be read.
    pub fn needed_records(&self) -> bool {
        self.records.get().is_some()
    }

    /// Super roots that verify, newest first.
    pub fn roots(&self) -> &[Root] {
        &self.roots
    }

    /// The greatest checkpoint of which logs are there behind the newest super root, and none of its own. A power cut in
    /// the midst of making it leaves that, too.
    pub fn rootless(&self) -> Option<u64> {
        let newest = self.roots.first()?;
        let behind = |log: &&LogRecord| {
            !log.stale && !log.has(SYNDT) && log.cno > newest.cno && log.order() > newest.order
        };
        self.survey.logs.iter().filter(behind).map(|log| log.cno).max()
    }

    /// What is told of and is not there, in sentences: a newer checkpoint than those found, and the end of the device.
    pub fn missing(&self) -> Vec<String> {
        let mut out = Vec::new();
        let newest = self.roots.first().map_or(0, |root| root.cno);
        let Some(sb) = &self.shape.super_block else {
            // Nothing says whether it was cleanly unmounted.
            out.extend(self.rootless().map(|cno| {
                format!(
                    "logs of checkpoint {cno} are there, behind checkpoint {newest}, and its super root is not: unless a \
                     power cut came before it was done, what was written after checkpoint {newest} is lost"
                )
            }));
            return out;
        };
        let named = sb.last_cno.get();
        if named > newest {
            out.push(format!(
                "checkpoint {named}, which a super block names, is lost: no super root of it is left, and what came after \
                 checkpoint {newest} goes with it"
            ));
        }
        out.extend(super_check::cut_short(sb.dev_size.get(), self.r.device.len()));
        out
    }

    pub(super) fn block(&self, nr: u64) -> Result<Block, String> {
        if self.survey.is_unreadable(nr) {
            return Err(format!("block {nr} cannot be read"));
        }
        self.r.block(BlockNr(nr))
    }

    fn super_root(&self, block: u64) -> Option<SuperRoot> {
        SuperRoot::parse(&self.r.g, &self.block(block).ok()?).ok()
    }

    /// The state of a super root.
    pub fn state(&self, root: &Root) -> Result<Arc<State<'_, 'd>>, Error> {
        let parsed = self
            .super_root(root.block)
            .ok_or_else(|| Error::Damaged(format!("the super root at block {} is gone", root.block)))?;
        Ok(Arc::new(State::load(self, parsed, root.order)))
    }

    /// The newest super root through which a checkpoint is to be read: places of blocks change when they are moved, so
    /// the newest that can be [trusted](Self::trusted); checkpoints behind that have their own.
    pub fn root_for(&self, cno: u64) -> Option<&Root> {
        let trusted = self.trusted();
        match trusted {
            Some(r) if r.cno >= cno => Some(r),
            _ => self.roots.iter().find(|r| r.cno == cno).or(trusted).or(self.roots.first()),
        }
    }

    /// The newest super root whose log verifies and that says which versions of the DAT's blocks are its own; among the
    /// newest few.
    fn trusted(&self) -> Option<&Root> {
        let whole = || self.roots.iter().filter(|r| r.whole);
        let says = |r: &&Root| self.state(r).is_ok_and(|state| state.is_complete());
        self.trusted.get_or_init(|| whole().take(TRUSTED).find(says).or(whole().next()).copied()).as_ref()
    }

    /// All moments, newest first: those of super roots, and those that the newest checkpoint files list.
    pub fn moments(&self) -> Vec<Moment> {
        let mut all: Vec<Moment> = Vec::new();
        let mut read = Vec::new();
        // The newest that verifies, and one that does not if it is newer.
        read.extend(self.roots.first());
        read.extend(self.roots.iter().find(|r| r.whole).filter(|r| Some(*r) != self.roots.first()));
        for root in read {
            if let Ok(state) = self.state(root) {
                all.extend(state.checkpoints());
            }
        }
        all.sort_by_key(|m| std::cmp::Reverse(m.cno));
        all.dedup_by_key(|m| m.cno);
        let mut listed: Vec<Moment> = Vec::new();
        for root in &self.roots {
            match all.binary_search_by_key(&std::cmp::Reverse(root.cno), |m| std::cmp::Reverse(m.cno)) {
                Ok(i) => all[i].has_root = true,
                // Deleted since, unless it is behind what the checkpoint file lists.
                Err(_) if all.first().is_some_and(|newest| root.cno < newest.cno) => {}
                Err(_) => listed.push(Moment {
                    cno: root.cno,
                    created: root.created,
                    snapshot: false,
                    minor: false,
                    has_root: true,
                }),
            }
        }
        all.extend(listed);
        all.sort_by_key(|m| std::cmp::Reverse(m.cno));
        all.dedup_by_key(|m| m.cno);
        all
    }
}

impl State<'_, '_> {
    /// The checkpoints that the checkpoint file lists, oldest first, as far as it can be read.
    pub fn checkpoints(&self) -> Vec<Moment> {
        let g = self.rescue.geometry();
        let ino = silt_format::Ino::CPFILE.0;
        let mapped = self.map(&self.root.cpfile.bmap, ino, u64::MAX, true);
        let mut out: Vec<Moment> = Vec::new();
        for (offset, block, _) in mapped.blocks() {
            let Ok(bytes) = self.rescue.block(block) else { continue };
            for slot in 0..checkpoint::per_block(g) {
                let Some(cno) = checkpoint::cno_at(g, offset, slot) else { continue };
                let byte = usize::try_from(slot * u64::from(g.checkpoint_size)).unwrap_or(usize::MAX);
                let Ok(entry) = checkpoint::entry(&bytes, byte) else { continue };
                // A slot of a block that was never used is zero.
                if entry.is_invalid()
                    || entry.cno.get() != cno.0
                    || entry.ifile_inode.check_metadata("ifile").is_err()
                {
                    continue;
                }
                out.push(Moment {
                    cno: cno.0,
                    created: entry.create.get(),
                    snapshot: entry.is_snapshot(),
                    minor: entry.is_minor(),
                    has_root: false,
                });
            }
        }
        out.sort_by_key(|m| m.cno);
        out.dedup_by_key(|m| m.cno);
        out
    }
}
