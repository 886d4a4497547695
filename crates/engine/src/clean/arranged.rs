//! A cleaning put in order: what of it needs no volume, and so no lock.

use std::ops::Range;

use rangemap::RangeSet;
use silt_format::summary::BlockInfo;

use super::{Cleaning, Dead, Taken};
use crate::live::LogBlock;
use crate::log::{Content, Item};

/// A [`Cleaning`] as [`crate::Volume::begin_cleaning`] takes it. Making it takes some tenths of a microsecond a block.
#[derive(Debug, Default)]
pub struct Arranged {
    /// What is copied, in the order of the log: one record a file and beginning; data in front of nodes, in the file's order.
    pub(super) live: Vec<Item>,
    pub(super) table: Vec<LogBlock>,
    /// Ascending by number.
    pub(super) dead: Vec<Dead>,
    pub(super) segments: Vec<Taken>,
    pub(super) bad: Vec<Taken>,
    /// Existing and former checkpoints that nothing will be left of.
    pub(super) periods: RangeSet<u64>,
}

impl From<Cleaning> for Arranged {
    fn from(cleaning: Cleaning) -> Self {
        let Cleaning { live, table, mut dead, segments, bad } = cleaning;
        let item = |(b, bytes): (LogBlock, _)| Item {
            ino: b.payload.ino,
            fi_cno: b.payload.cno,
            info: b.payload.info,
            content: Content::Ready(bytes),
            moved: true,
        };
        let mut live: Vec<Item> = live.into_iter().map(item).collect();
        live.sort_by_key(|i| {
            let place = match i.info {
                BlockInfo::Data { offset, .. } => offset,
                BlockInfo::Node { vblock } => vblock.0,
                _ => 0,
            };
            (i.ino, i.fi_cno, !i.info.is_data(), place)
        });
        dead.sort_by_key(|d| d.v);
        let periods = periods(&dead);
        Arranged { live, table, dead, segments, bad, periods }
    }
}

impl Arranged {
    /// What it changes entries of the DAT for, or blocks of it.
    pub(super) fn infos(&self) -> impl Iterator<Item = BlockInfo> {
        let live = self.live.iter().map(|i| i.info);
        let dead = self.dead.iter().map(|d| d.block.payload.info);
        live.chain(dead).chain(self.table.iter().map(|b| b.payload.info))
    }
}

/// The checkpoints that are gone with dead blocks: many died with the same one.
fn periods(dead: &[Dead]) -> RangeSet<u64> {
    let mut all: Vec<Range<u64>> = dead.iter().map(|d| d.period.clone()).filter(|p| !p.is_empty()).collect();
    all.sort_unstable_by_key(|p| (p.start, p.end));
    all.dedup();
    all.into_iter().collect()
}
