//! Which files hold how much of the past: the records of all logs joined with the lifetimes in the DAT.
//!
//! One walk over the summaries of the segments in use tells of every block whose it is; the DAT, which checkpoints see
//! it; [`Moments`], who keeps one of those. A number that was reused is told apart by the generation that the inode has
//! in a moment that sees the block. Blocks of one user of a number all lie in the time between its first and its last
//! moment, so that the inode file is asked only when a moment is beyond what is known of any: a few times a file.
//!
//! Memory: about 100 bytes a file that holds something of the past, for at most [`MOST`] of them; where there are more,
//! those with least are summed up as others.

use std::collections::HashMap;
use std::sync::Arc;

use silt_device::Device;
use silt_engine::{LogBlock, Result, SegmentWalk, Volume};
use silt_format::{Cno, Ino, SegNr};

use crate::gather::Access;
use crate::moments::{Holder, Moments};

/// Blocks looked up at a time.
const JOINED: usize = 256;
/// Files of which each is known by itself.
pub const MOST: usize = 400_000;

/// A file, past or present, and what it holds of the past. Sizes in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    pub ino: u64,
    /// None where no moment says.
    pub generation: Option<u32>,
    /// Blocks that are kept and not part of the files now, its map included.
    pub blocks: u64,
    /// Of those: held by snapshots alone.
    pub snapshots: u64,
    /// Moments that are known to have it, by number: the first and the last.
    pub first: u64,
    pub last: u64,
}

/// What is held of the past, by whom. In blocks.
#[derive(Debug, Clone, Default)]
pub struct Past {
    files: HashMap<u64, Vec<Holding>>,
    count: usize,
    most: usize,
    /// Of the inode file.
    pub tables: u64,
    /// Files that are not told one by one, and what they hold.
    pub others: (u64, u64),
    /// Segments whose logs cannot be followed to their end: what lies behind is in no figure.
    pub cut: u64,
}

impl Past {
    /// Reads the logs of all segments in use, and joins. `watch` hears which part (0 to 1) is done; none where it breaks
    /// that off. What is written meanwhile may be missing.
    pub fn read(
        access: &impl Access,
        device: &Arc<dyn Device>,
        moments: &Moments,
        watch: impl FnMut(f64) -> bool,
    ) -> Result<Option<Self>> {
        Past::read_at_most(access, device, moments, MOST, watch)
    }

    fn read_at_most(
        access: &impl Access,
        device: &Arc<dyn Device>,
        moments: &Moments,
        most: usize,
        mut watch: impl FnMut(f64) -> bool,
    ) -> Result<Option<Self>> {
        let geometry = access.with(|v| *v.geometry())?;
        let mut past = Past { most: most.max(2), ..Past::default() };
        for segment in (0..geometry.nsegments).map(SegNr) {
            // Nothing is written over a segment that is freed while it is read.
            let (info, settled, _guard) =
                access.with(|v| (v.segment_info(segment), v.is_settled(segment), v.guard()))?;
            let info = info?;
            if !info.dirty || info.blocks == 0 || !settled {
                continue;
            }
            let mut walk = SegmentWalk::new(device.clone(), &geometry, segment, u64::from(info.blocks));
            loop {
                let Ok(blocks) = walk.next(JOINED) else {
                    past.cut += 1;
                    break;
                };
                if blocks.is_empty() {
                    past.cut += u64::from(!walk.is_complete());
                    break;
                }
                access.with(|v| past.join(v, moments, &blocks))?;
            }
            #[expect(clippy::cast_precision_loss, reason = "a part of the way")]
            if !watch(segment.0 as f64 / geometry.nsegments as f64) {
                return Ok(None);
            }
        }
        Ok(Some(past))
    }

    fn join(&mut self, volume: &Volume, moments: &Moments, blocks: &[LogBlock]) {
        let lives = volume.lifetimes(blocks);
        for (block, life) in blocks.iter().zip(lives) {
            let Some((start, end)) = life else { continue };
            let alone = match moments.holder(start, end) {
                Holder::Now | Holder::Nobody { .. } => continue,
                Holder::Snapshots(_) => true,
                Holder::Retention { .. } | Holder::Mounted => false,
            };
            let Some(moment) = moments.witness(start, end) else { continue };
            match block.payload.ino {
                Ino::IFILE | Ino::CPFILE | Ino::SUFILE => self.tables += 1,
                ino => {
                    let generation = || volume.generation_at(Cno(moment), ino).ok();
                    self.add(ino.0, moment, alone, generation);
                }
            }
        }
    }

    fn add(&mut self, ino: u64, moment: u64, alone: bool, generation: impl FnOnce() -> Option<u32>) {
        let users = self.files.entry(ino).or_default();
        let known = users.iter().position(|h| h.first <= moment && moment <= h.last);
        let place = known.unwrap_or_else(|| {
            let generation = generation();
            let same = users.iter().position(|h| h.generation == generation);
            same.unwrap_or_else(|| {
                let none = Holding { ino, generation, blocks: 0, snapshots: 0, first: moment, last: moment };
                users.push(none);
                self.count += 1;
                users.len() - 1
            })
        });
        if let Some(h) = users.get_mut(place) {
            h.blocks += 1;
            h.snapshots += u64::from(alone);
            h.first = h.first.min(moment);
            h.last = h.last.max(moment);
        }
        if self.count > self.most {
            self.sum_up();
        }
    }

    /// Makes room: the half that holds least are others from now on.
    fn sum_up(&mut self) {
        let mut sizes: Vec<u64> = self.files.values().flatten().map(|h| h.blocks).collect();
        let half = sizes.len() / 2;
        let (_, limit, _) = sizes.select_nth_unstable(half);
        let limit = *limit;
        let mut left = half;
        let others = &mut self.others;
        let count = &mut self.count;
        self.files.retain(|_, users| {
            users.retain(|h| {
                let goes = h.blocks < limit || (h.blocks == limit && left > 0);
                if goes {
                    left = left.saturating_sub(1);
                    *others = (others.0 + 1, others.1 + h.blocks);
                    *count -= 1;
                }
                !goes
            });
            !users.is_empty()
        });
    }

    /// All that are known one by one, who holds most first.
    pub fn holdings(&self) -> Vec<Holding> {
        let mut all: Vec<Holding> = self.files.values().flatten().copied().collect();
        all.sort_unstable_by_key(|h| (std::cmp::Reverse(h.blocks), h.ino, h.first));
        all
    }

    /// All of it, in blocks: the account's history, snapshots and mounted moments.
    pub fn sum(&self) -> u64 {
        self.tables + self.others.1 + self.files.values().flatten().map(|h| h.blocks).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_a_number_are_told_apart_and_few_are_asked_for() {
        let mut past = Past { most: 100, ..Past::default() };
        let mut asked = 0;
        // One from 10 to 40, another one from 50 on.
        for moment in [10, 40, 20, 30, 60, 50, 55, 15, 58] {
            past.add(12, moment, moment > 50, || {
                asked += 1;
                Some(if moment < 45 { 1 } else { 2 })
            });
        }
        assert_eq!(asked, 4);
        let h = past.holdings();
        let short: Vec<_> =
            h.iter().map(|h| (h.generation, h.blocks, h.snapshots, h.first, h.last)).collect();
        assert_eq!(short, [(Some(1), 5, 0, 10, 40), (Some(2), 4, 3, 50, 60)]);
    }

    #[test]
    fn those_with_least_are_summed_up() {
        let mut past = Past { most: 10, ..Past::default() };
        for ino in 0..50 {
            for moment in 0..=u64::from(ino % 10 == 0) * 20 {
                past.add(ino, moment, false, || Some(7));
            }
        }
        assert!(past.count <= 10 && past.count == past.holdings().len());
        assert_eq!(past.sum(), 45 + 5 * 21);
        let mut largest: Vec<u64> = past.holdings().iter().take(5).map(|h| h.ino).collect();
        largest.sort_unstable();
        assert_eq!(largest, [0, 10, 20, 30, 40]);
        // One that was summed up and came back counts twice.
        assert!(past.others.0 as usize + past.count >= 50);
    }
}
