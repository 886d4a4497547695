//! The account of space: every block of a volume is in exactly one class, so that the classes add up to its size.
//!
//! One pass over the DAT, some blocks of it at a time, tells of every block that has a number who needs it
//! ([`Moments::holder`]); the maps of the inode, checkpoint and segment files tell how many of the newest ones belong to
//! those. What nobody needs is told by the state of the segment it lies in. Memory: 4 bytes a segment, 16 a snapshot,
//! besides the [`Moments`].

use hashbrown::HashMap;
use silt_engine::{Owned, Result, Table, Volume};
use silt_format::{BlockNr, SegNr};

use crate::gather::{Access, Medium};
use crate::moments::{Holder, Moments};

/// Blocks of the DAT, or of another table, that are looked at a time: about 60 us where they are in memory.
const SLICE: usize = 16;
/// Segments that are looked at a time.
const SEGMENTS: u64 = 1024;

/// Where the blocks of a volume are. In blocks, of one state at rest; what is written while it is counted may be counted
/// as it was or as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    /// Bytes.
    pub block_size: u64,
    pub blocks_per_segment: u64,
    /// The newest checkpoint when it was counted.
    pub checkpoint: u64,
    /// Seconds since 1970: the clock that retention went by.
    pub time: u64,

    /// The files as they are now, with their maps.
    pub live: u64,
    /// Held by moments that retention keeps, and not part of the files now.
    pub history: u64,
    /// Held by snapshots, and by none of those.
    pub snapshots: u64,
    /// Held by mounted moments, and by none of those.
    pub mounted: u64,
    /// Needed by nothing, in segments that can be emptied now: blocks of moments that are not kept, old metadata,
    /// summaries of logs, ends of segments.
    pub reclaimable: u64,
    /// The newest DAT, inode, checkpoint and segment files, and the ends of the newest log.
    pub metadata: u64,
    /// Needed by nothing, in the segment that is written and the next one, which are not emptied.
    pub log: u64,
    /// Clean, and kept back so that deleting always works.
    pub reserve: u64,
    /// Clean, and free for all.
    pub free: u64,
    /// Needed by nothing, in segments that are marked bad.
    pub bad: u64,
    /// Super blocks, and what is too small for a segment at the end.
    pub outside: u64,

    /// Of `history`: let go within an hour when nothing is written.
    pub history_soon: u64,
    /// Of `history`: held by snapshots as well.
    pub history_shared: u64,
    /// Of `history`: goes where space is short, since neither the floor nor anything but retention holds it.
    pub history_loose: u64,
    /// Of `reclaimable`: still shown by moments that retention does not keep.
    pub shown: u64,
    /// Of `snapshots`: what each snapshot alone holds, by its number, ascending.
    pub alone: Vec<(u64, u64)>,
    /// Of `history_shared`: what each snapshot alone holds where space is short and such history is given up, likewise.
    pub left_to: Vec<(u64, u64)>,

    /// Blocks of the DAT that could not be read: what they tell of is in none of the classes it belongs to.
    pub unreadable: u64,
    /// Blocks that several entries of the DAT claim. The sum of the classes is greater by so many.
    pub overfull: u64,
    /// Something was written while it was counted.
    pub moving: bool,
}

impl Account {
    /// All classes, in blocks: the size of the volume.
    pub fn sum(&self) -> u64 {
        [
            self.live,
            self.history,
            self.snapshots,
            self.mounted,
            self.reclaimable,
            self.metadata,
            self.log,
            self.reserve,
            self.free,
            self.bad,
            self.outside,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }
}

/// What comes next of a count.
#[derive(Debug, Clone, Copy)]
enum Next {
    Dat(u64),
    Table(usize, u64),
    Done,
}

/// A count under way.
pub struct Counting {
    medium: Medium,
    /// What the next step reads.
    ahead: Vec<BlockNr>,
    moments: Moments,
    next: Next,
    account: Account,
    /// Blocks that somebody needs, by segment.
    needed: HashMap<u64, u32>,
    /// Blocks of the newest tables that have numbers.
    tables: u64,
    alone: Vec<u64>,
    left_to: Vec<u64>,
    /// The two segments of the log, of which nothing is reclaimable.
    writing: [SegNr; 2],
}

impl Counting {
    /// Nothing is counted yet.
    pub fn new(volume: &Volume, moments: Moments) -> Self {
        let g = volume.geometry();
        let account = Account {
            block_size: u64::from(g.block_size),
            blocks_per_segment: u64::from(g.blocks_per_segment),
            checkpoint: moments.newest,
            time: moments.time,
            ..Account::default()
        };
        let alone = vec![0; moments.snapshots.len()];
        let left_to = alone.clone();
        // As many as there are blocks to be counted: a volume may say that it has any number of segments.
        let needed = HashMap::new();
        let writing = volume.writing();
        let (medium, ahead) = (Medium::of(volume), volume.dat_ahead(0, SLICE));
        let next = Next::Dat(0);
        Counting { medium, ahead, moments, next, account, needed, tables: 0, alone, left_to, writing }
    }

    /// Whether all of it was looked at, for [`Counting::finish`].
    pub fn is_done(&self) -> bool {
        matches!(self.next, Next::Done)
    }

    /// Goes on for a moment; which part (0 to 1) is done. Nobody waits for the medium meanwhile: what is read of the DAT is
    /// brought where it is at hand before.
    pub fn advance(&mut self, access: &impl Access) -> Result<f64> {
        self.medium.bring(&std::mem::take(&mut self.ahead));
        access.with(|v| {
            self.step(v)?;
            self.ahead = self.ahead(v);
            Ok(self.part(v))
        })?
    }

    fn ahead(&self, volume: &Volume) -> Vec<BlockNr> {
        match self.next {
            Next::Dat(from) => volume.dat_ahead(from, SLICE),
            Next::Table(..) | Next::Done => Vec::new(),
        }
    }

    /// An error where the tables cannot be read.
    fn step(&mut self, volume: &Volume) -> Result<()> {
        self.next = match self.next {
            Next::Dat(from) => match self.count_owned(volume, from)? {
                Some(next) => Next::Dat(next),
                None => Next::Table(0, 0),
            },
            Next::Table(n, from) => match Table::ALL.get(n) {
                Some(table) => {
                    let (blocks, next) = volume.count_table(*table, from, SLICE)?;
                    self.tables = self.tables.saturating_add(blocks);
                    next.map_or(Next::Table(n + 1, 0), |from| Next::Table(n, from))
                }
                None => Next::Done,
            },
            Next::Done => Next::Done,
        };
        Ok(())
    }

    /// About which part is done, 0 to 1.
    fn part(&self, volume: &Volume) -> f64 {
        match self.next {
            Next::Dat(from) => volume.table_part(from) * 0.9,
            Next::Table(..) => 0.9,
            Next::Done => 1.0,
        }
    }

    fn count_owned(&mut self, volume: &Volume, from: u64) -> Result<Option<u64>> {
        let g = volume.geometry();
        let Counting { moments, account, needed, alone, left_to: left, writing, .. } = self;
        volume.for_each_owned(from, SLICE, |owned| {
            let (at, holder) = match owned {
                Owned::Table(at) => {
                    account.metadata += 1;
                    (at, Holder::Now)
                }
                Owned::Numbered { at, start, end } => {
                    let holder = moments.holder(start, end);
                    match holder {
                        Holder::Now => account.live += 1,
                        Holder::Retention { soon, shared, loose, left_to } => {
                            account.history += 1;
                            account.history_soon += u64::from(soon);
                            account.history_shared += u64::from(shared);
                            account.history_loose += u64::from(loose);
                            if let Some(n) = left_to.and_then(|i| left.get_mut(i)) {
                                *n += 1;
                            }
                        }
                        Holder::Snapshots(only) => {
                            account.snapshots += 1;
                            if let Some(n) = only.and_then(|i| alone.get_mut(i)) {
                                *n += 1;
                            }
                        }
                        Holder::Mounted => account.mounted += 1,
                        Holder::Nobody { shown } => {
                            let there = !writing.contains(&g.segment_of(at));
                            account.shown += u64::from(shown && there);
                        }
                    }
                    (at, holder)
                }
                Owned::Unknown => {
                    account.unreadable += 1;
                    return;
                }
            };
            if !matches!(holder, Holder::Nobody { .. }) {
                need(needed, g.segment_of(at), 1);
            }
        })
    }

    /// The account, when all was looked at; none where `go_on` breaks it off. An error where the segment file cannot be read.
    pub fn finish(
        mut self,
        access: &impl Access,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<Option<Account>> {
        let (total, nsegments, newest) = access.with(|v| {
            let g = v.geometry();
            let total = v.device().len() >> g.block_bits;
            // Where its header cannot be read, it is not told from what nobody needs.
            let newest = v.newest_log().ok().filter(|_| v.last_log().cno == self.account.checkpoint);
            if let Some(log) = newest {
                let blocks = log.summary + 1;
                self.account.metadata += blocks;
                need(&mut self.needed, g.segment_of(log.at), u32::try_from(blocks).unwrap_or(u32::MAX));
            }
            (total, g.nsegments, v.last_log().cno)
        })?;
        // Those are the newest state of tables, which no user has.
        let tables = self.tables.min(self.account.live);
        self.account.live -= tables;
        self.account.metadata += tables;
        let mut inside = 0;
        let mut from = 0;
        while from < nsegments {
            let end = from.saturating_add(SEGMENTS).min(nsegments);
            if !go_on() {
                return Ok(None);
            }
            inside += access.with(|v| self.segments(v, from, end))??;
            from = end;
        }
        let back = access.with(|v| v.kept_back_of_clean().saturating_add(1))?;
        let a = &mut self.account;
        a.reserve = a.free.min(back.saturating_mul(a.blocks_per_segment));
        a.free -= a.reserve;
        a.outside = total.saturating_sub(inside);
        a.alone = self.moments.snapshots.iter().copied().zip(self.alone).collect();
        a.left_to = self.moments.snapshots.iter().copied().zip(self.left_to).collect();
        a.moving = newest != a.checkpoint;
        Ok(Some(self.account))
    }

    /// Adds what nobody needs of some segments; how many blocks they have.
    fn segments(&mut self, volume: &Volume, from: u64, end: u64) -> Result<u64> {
        let g = volume.geometry();
        let mut inside = 0u64;
        for segment in (from..end).map(SegNr) {
            let info = volume.segment_info(segment)?;
            let size = g.segment_blocks(segment);
            let needed = u64::from(self.needed.get(&segment.0).copied().unwrap_or(0));
            let rest = size.saturating_sub(needed);
            let a = &mut self.account;
            a.overfull += needed.saturating_sub(size);
            let class = match (info.error, info.active, info.dirty) {
                (true, ..) => &mut a.bad,
                (_, true, _) => &mut a.log,
                (_, _, true) => &mut a.reclaimable,
                _ => &mut a.free,
            };
            *class = class.saturating_add(rest);
            inside = inside.saturating_add(size);
        }
        Ok(inside)
    }
}

fn need(needed: &mut HashMap<u64, u32>, segment: SegNr, blocks: u32) {
    let n = needed.entry(segment.0).or_default();
    *n = n.saturating_add(blocks);
}

/// Counts all of it, with `watch` told which part (0 to 1) is done now and then; none where that breaks it off.
pub fn account(
    access: &impl Access,
    moments: Moments,
    mut watch: impl FnMut(f64) -> bool,
) -> Result<Option<Account>> {
    let mut counting = access.with(|v| Counting::new(v, moments))?;
    let mut steps = 0u32;
    while !counting.is_done() {
        let part = counting.advance(access)?;
        steps = steps.wrapping_add(1);
        if steps.is_multiple_of(256) && !watch(part) {
            return Ok(None);
        }
    }
    counting.finish(access, || watch(1.0))
}
