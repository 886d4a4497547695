//! How long inodes live: who remembers them, and what becomes of those without links.
//!
//! Invariant: an inode of the live tree without links that nobody remembers is deleted, waits for room to be deleted or
//! goes in parts ([`Fs::reap_late`]), or was left by a crash and waits for [`Fs::collect_orphans`].

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Deref, DerefMut};
use std::time::{Duration, Instant};

use silt_engine::{Part, Tree};

use crate::error::{Of, Result};
use crate::{Fs, Ino};

/// Inodes that are looked at under one hold of the lock when they may end at last.
const LATE: usize = 512;

/// Checkpoints in which nothing of what is late ended, before it is left to the next mount: what goes with one is counted
/// after it.
const IN_VAIN: u32 = 3;

/// What is known of a remembered inode. Small: there may be millions.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Node {
    /// How often it was handed out; at the maximum so often that it is remembered for good.
    pub lookups: u32,
    /// Number of the directory it was last reached through; 0 where that is not known.
    pub parent: u64,
    /// The ".." of the directory is known to be the same.
    pub agrees: bool,
    /// Made without a name and never linked: may still get its first one.
    pub nameless: bool,
    /// It had no links when that was last looked at. Of all others nobody has to read the inode once it is
    /// forgotten, and the kernel may forget a million at once.
    pub unlinked: bool,
}

/// Inodes that wait for their end.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    all: BTreeSet<u64>,
    /// Where the next look begins: what cannot end yet keeps nobody behind it from being looked at.
    from: u64,
}

impl Waiting {
    /// The next ones to look at, [`LATE`] at most: those from where the last look ended, and around.
    fn next(&self) -> Vec<Ino> {
        let around = self.all.range(self.from..).chain(self.all.range(..self.from));
        around.take(LATE).copied().map(Ino).collect()
    }

    /// That one was looked at.
    fn looked_at(&mut self, ino: Ino) {
        self.from = ino.0.saturating_add(1);
    }
}

impl Deref for Waiting {
    type Target = BTreeSet<u64>;

    fn deref(&self) -> &BTreeSet<u64> {
        &self.all
    }
}

impl DerefMut for Waiting {
    fn deref_mut(&mut self) -> &mut BTreeSet<u64> {
        &mut self.all
    }
}

impl Fs {
    /// Says that an inode of the live tree was handed out once more.
    pub fn remember(&mut self, ino: Ino) {
        let node = self.nodes.entry(ino.0).or_default();
        node.lookups = node.lookups.saturating_add(1);
    }

    /// Takes back `n` calls of [`Fs::remember`], or all (`u64::MAX`). With the last one an inode without links is
    /// deleted; an error of that leaves it to [`Fs::collect_orphans`] after the next mount.
    pub fn forget(&mut self, ino: Ino, n: u64) -> Result<()> {
        let Some(node) = self.nodes.get_mut(&ino.0) else { return Ok(()) };
        if node.lookups == u32::MAX && n < u64::MAX {
            return Ok(());
        }
        node.lookups = u32::try_from(u64::from(node.lookups).saturating_sub(n)).unwrap_or(0);
        if node.lookups > 0 {
            return Ok(());
        }
        let unlinked = node.unlinked;
        self.nodes.remove(&ino.0);
        if !unlinked {
            return Ok(());
        }
        match self.volume.inode(Tree::Live, ino) {
            Ok(i) if i.attr.links == 0 => self.reap_or_put_off(ino),
            _ => Ok(()),
        }
    }

    /// Takes back everything: for the end of a mount. The first error is told, the others are
    /// tried all the same.
    pub fn forget_all(&mut self) -> Result<()> {
        let mut result = Ok(());
        for ino in self.nodes.keys().copied().collect::<Vec<_>>() {
            result = result.and(self.forget(Ino(ino), u64::MAX));
        }
        result.and(self.drop_late().map(drop))
    }

    /// Whether somebody holds an inode.
    pub fn is_remembered(&self, ino: Ino) -> bool {
        self.nodes.contains_key(&ino.0)
    }

    /// Number of inodes somebody holds.
    pub fn remembered(&self) -> usize {
        self.nodes.len()
    }

    /// Deletes an inode without links unless somebody holds it.
    pub(crate) fn reap(&mut self, ino: Ino) -> Result<()> {
        if let Some(node) = self.nodes.get_mut(&ino.0) {
            node.unlinked = true;
            return Ok(());
        }
        self.dirs.drop((Tree::Live, ino.0));
        self.refused.forget(ino);
        self.atimes.remove(&ino.0);
        self.reserved.release_all(ino.0);
        self.appends.forget(ino.0);
        // Together with what ends already it is no more than that, too.
        let blocks = self.volume.mapped_blocks(ino);
        if blocks > self.ends || self.volume.ending_blocks().saturating_add(blocks) > 2 * self.ends {
            self.large.insert(ino.0);
            return Ok(());
        }
        // Its number may be another file's before long.
        self.large.remove(&ino.0);
        self.volume.delete_inode(ino).of(ino)
    }

    /// Goes on with large files that end in parts; whether some of one goes with the next checkpoint. Looks at [`LATE`] of them.
    fn reap_large(&mut self, urgent: bool) -> Result<bool> {
        let mut any = false;
        for ino in self.large.next() {
            // Somebody came to it by its number, or it is not that one any more.
            let is_orphan = self.volume.inode(Tree::Live, ino).is_ok_and(|i| i.attr.links == 0);
            let node = self.nodes.get_mut(&ino.0);
            if !is_orphan || node.is_some() {
                self.large.remove(&ino.0);
                if let Some(node) = node {
                    node.unlinked |= is_orphan;
                }
                continue;
            }
            if self.volume.ending_blocks() > self.ends {
                return Ok(true);
            }
            self.large.looked_at(ino);
            if !self.volume.has_room_to_end(ino, self.ends, !urgent) {
                continue;
            }
            let before = std::mem::replace(&mut any, true);
            let part = self.volume.part_to_cut(ino, &(0..u64::MAX), self.ends).unwrap_or(Part::Whole);
            match part {
                Part::Waits => continue,
                Part::From(from) if self.volume.cut(ino, from..u64::MAX).is_ok() => continue,
                // Where nothing can be told of it, it goes as a whole, if there is room for that.
                _ if !self.volume.has_room_to_end(ino, u64::MAX, false) => any = before,
                _ => {
                    self.large.remove(&ino.0);
                    self.volume.delete_inode(ino).of(ino)?;
                }
            }
        }
        Ok(any)
    }

    /// Deletes an inode that nobody holds any more. Nobody can be refused that: where the checkpoint that takes it might not fit,
    /// it is done later.
    pub(crate) fn reap_or_put_off(&mut self, ino: Ino) -> Result<()> {
        if self.large.contains(&ino.0) {
            return Ok(());
        }
        if self.late.is_empty() && self.volume.has_room_to_end(ino, self.ends, true) {
            return self.reap(ino);
        }
        self.late.insert(ino.0);
        Ok(())
    }

    /// Whether inodes wait for room to be deleted.
    pub fn has_late(&self) -> bool {
        !self.late.is_empty() || !self.large.is_empty()
    }

    /// Deletes all of them, with a checkpoint after the other, as long as they become fewer, and for no longer than `limit`:
    /// for the end of a mount. The next one goes on.
    pub fn end_late(&mut self, now: u64, limit: Duration) -> Result<()> {
        let (mut left, mut in_vain) = (u64::MAX, 0);
        let begin = Instant::now();
        // Whoever is behind many that cannot end has his turn.
        let patience = |fs: &Fs| {
            IN_VAIN.max(u32::try_from(fs.late.len().max(fs.large.len()) / LATE + 1).unwrap_or(u32::MAX))
        };
        while self.has_late() && in_vain < patience(self) && begin.elapsed() < limit {
            let blocks = self.late_blocks();
            in_vain = if blocks < left { 0 } else { in_vain + 1 };
            left = blocks;
            self.sync_all(now)?;
        }
        Ok(())
    }

    /// Blocks of them, so that it can be told whether they become fewer.
    pub fn late_blocks(&mut self) -> u64 {
        let all: Vec<u64> = self.late.iter().chain(self.large.iter()).copied().collect();
        all.iter().fold(0, |sum: u64, ino| {
            sum.saturating_add(self.volume.mapped_blocks(Ino(*ino)).saturating_add(1))
        })
    }

    /// Deletes of them those for which there is room, the cleaner's own left aside unless nothing else will come (`urgent`);
    /// whether there were any, or some of a large one. Looks at [`LATE`] of them: to be called again as long as there are. An error leaves one to
    /// [`Fs::collect_orphans`] after the next mount.
    pub fn reap_late(&mut self, urgent: bool) -> Result<bool> {
        let dropped = self.drop_late()?;
        let mut any = self.reap_large(urgent)? || dropped;
        for ino in self.late.next() {
            self.late.looked_at(ino);
            let is_orphan = self.volume.inode(Tree::Live, ino).is_ok_and(|i| i.attr.links == 0);
            let node = self.nodes.get_mut(&ino.0);
            let ends = is_orphan && node.is_none();
            // Who came to it by its number lets go of it again.
            if let Some(node) = node {
                node.unlinked |= is_orphan;
            }
            // A smaller one may have room where a large one has none.
            if ends && !self.volume.has_room_to_end(ino, self.ends, !urgent) {
                continue;
            }
            self.late.remove(&ino.0);
            if ends {
                any = true;
                self.reap(ino)?;
            }
        }
        Ok(any)
    }

    /// Deletes inodes without links that a crash has left, looking at about `budget` inodes;
    /// whether there are more to look at. To be called again and again after opening a volume for
    /// writing; on others it does nothing.
    pub fn collect_orphans(&mut self, budget: usize) -> Result<bool> {
        let Some(from) = self.orphans else { return Ok(false) };
        if self.volume.is_read_only() {
            self.orphans = None;
            return Ok(false);
        }
        let mut left = budget.max(1);
        let mut next = None;
        let mut found = Vec::new();
        let walked = self.volume.for_each_inode(from, |ino, raw| {
            if left == 0 {
                next = Some(ino.0);
                return ControlFlow::Break(());
            }
            left -= 1;
            if raw.links_count.get() == 0 {
                found.push(ino);
            }
            ControlFlow::Continue(())
        });
        self.orphans = next;
        let mut first = Ok(());
        for ino in found {
            if self.nodes.contains_key(&ino.0) {
                continue;
            }
            // What is in memory may be newer: linked since, or deleted already.
            match self.volume.inode(Tree::Live, ino) {
                // One that cannot go keeps none of the others.
                Ok(i) if i.attr.links == 0 => first = first.and(self.reap_or_put_off(ino)),
                // One that is damaged was hardly left by a crash: an entry may name it, and would name
                // somebody else's file once the number is handed out again.
                _ => {}
            }
        }
        walked.of(Ino::IFILE)?;
        first?;
        Ok(self.orphans.is_some())
    }
}
