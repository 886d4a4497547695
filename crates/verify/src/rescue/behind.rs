//! Synced data behind the newest checkpoint of a volume that was not cleanly unmounted (spec 12.5). What follows it without
//! a gap is added to its tree, as a mount would, also where the checkpoint's own log does not verify. What lies behind a
//! log that does not is told of, and copied beside.

use std::collections::{BTreeMap, BTreeSet};

use silt_format::BlockNr;
use silt_format::summary::{self, BlockInfo, Header, SYNDT};
use silt_format::super_block::STATE_VALID;

use super::extents::Extent;
use super::tree::{Directory, Inode};
use super::volume::{Rescue, Root};
use super::walk::{Sink, walk};
use crate::chain::{self, Chain};
use crate::search::{self, Found, Log};
use crate::unreached::{self, Unreached};
use crate::{Error, Watch};

impl<'d> Rescue<'d> {
    /// What was synced behind the newest checkpoint and does not come back with it, of a volume that was not cleanly
    /// unmounted. [`Rescue::copy_out`] puts beside what of it is whole.
    pub fn unreached(&self) -> Option<Unreached> {
        let found = self.behind_newest()?;
        unreached::in_chain(&self.r, &chain::follow(&self.r, &found), found.cno)
    }

    /// Names of files of a checkpoint by inode, as far as its directories can be read: a walk over all of them.
    pub fn names(
        &self,
        cno: u64,
        inodes: BTreeSet<u64>,
        watch: &dyn Watch,
    ) -> Result<BTreeMap<u64, Vec<u8>>, Error> {
        let mut names = Names { wanted: inodes, found: BTreeMap::new() };
        // It ends early where all are found.
        let _ = walk(&self.tree(cno)?, watch, &mut names);
        Ok(names.found)
    }

    /// Blocks that a mount would put into files of the newest checkpoint: (inode, block offset, disk block), in the order
    /// in which they apply.
    pub(super) fn synced(&self) -> Vec<(u64, u64, u64)> {
        let found = self.behind_newest();
        found.and_then(|f| search::pending(&self.r, &f).ok()).map(|p| p.blocks).unwrap_or_default()
    }

    /// Whole blocks that no mount puts into files of the newest checkpoint, by inode; the last one of each place.
    pub(super) fn beside(&self) -> BTreeMap<u64, Vec<Extent>> {
        let Some(found) = self.behind_newest() else { return BTreeMap::new() };
        let chain = chain::follow(&self.r, &found);
        let mut blocks = Vec::new();
        for log in first_lost(&chain) {
            let Ok(bytes) = search::summary_of(&self.r, &log) else { continue };
            let first = log.pos.0 + u64::from(log.header.summary_blocks(&self.r.g));
            // The log verifies; a summary that makes no sense ends with what did.
            let _ = summary::for_each_payload(&self.r.g, &log.header, &bytes, |p| {
                if let BlockInfo::Data { offset, .. } = p.info {
                    blocks.push((p.ino.0, offset, first + u64::from(p.index)));
                }
            });
        }
        by_inode(blocks)
    }

    /// The newest super root with what a search finds behind it. `None` where nothing behind it counts.
    fn behind_newest(&self) -> Option<Found> {
        let root = self.roots().first()?;
        if self.is_clean_at(root) {
            return None;
        }
        let mut found = Found::of(self.newest_log(root)?, root.cno);
        // What cannot be read ends the way: what was come to before counts.
        let _ = search::behind(&self.r, &mut found);
        (found.newer == 0).then_some(found)
    }

    /// Whether the volume was cleanly unmounted with this super root as its newest.
    fn is_clean_at(&self, root: &Root) -> bool {
        let sb = self.shape.super_block.as_ref();
        sb.is_some_and(|sb| sb.state.get() & STATE_VALID != 0 && sb.last_cno.get() == root.cno)
    }

    /// The log of a super root. Where its head is lost, as much of it as the next log in the same segment tells: that has
    /// the numbers of the segment.
    fn newest_log(&self, root: &Root) -> Option<Log> {
        let header = |pos: u64| Header::parse(&self.r.g, &self.block(pos).ok()?).ok();
        if let Some(pos) = root.log {
            return Some(Log { pos: BlockNr(pos), header: header(pos)? });
        }
        let (pos, next) = (BlockNr(root.block), BlockNr(root.block.checked_add(1)?));
        if !self.r.g.holds(next) || self.r.g.segment_of(next) != self.r.g.segment_of(pos) {
            return None;
        }
        // One that an earlier use of the segment left there belongs to another checkpoint.
        let mut header = header(next.0).filter(|h| Some(h.cno.get()) == root.cno.checked_add(1))?;
        (header.nblocks, header.cno) = (1.into(), root.cno.into());
        Some(Log { pos, header })
    }
}

/// Logs of synced data that verify, behind the first one that does not.
fn first_lost(chain: &Chain) -> Vec<Log> {
    let logs = chain.broken.first().map(|first| chain.unreached(first)).unwrap_or_default();
    logs.into_iter().filter(|log| log.header.has(SYNDT)).collect()
}

/// Blocks that verify, by inode, of each place the last one, ascending.
pub(super) fn by_inode(blocks: Vec<(u64, u64, u64)>) -> BTreeMap<u64, Vec<Extent>> {
    let mut all: BTreeMap<u64, Vec<Extent>> = BTreeMap::new();
    for (ino, offset, block) in blocks {
        let e = Extent { offset, block, len: 1, sound: true, rebuilt: false };
        all.entry(ino).or_default().push(e);
    }
    for list in all.values_mut() {
        // The last one wins.
        list.reverse();
        list.sort_by_key(|e| e.offset);
        list.dedup_by_key(|e| e.offset);
    }
    all
}

/// Looks for the names of a few files.
struct Names {
    wanted: BTreeSet<u64>,
    found: BTreeMap<u64, Vec<u8>>,
}

impl Names {
    /// `Err` where all are found.
    fn meet(&mut self, path: &[u8], ino: u64) -> Result<(), ()> {
        if self.wanted.remove(&ino) {
            self.found.insert(ino, path.to_vec());
        }
        if self.wanted.is_empty() { Err(()) } else { Ok(()) }
    }
}

impl Sink for Names {
    type Error = ();

    fn directory(&mut self, _: &[u8], _: &Inode, _: &Directory) -> Result<(), ()> {
        Ok(())
    }

    fn file(&mut self, path: &[u8], inode: &Inode) -> Result<(), ()> {
        self.meet(path, inode.ino)
    }

    fn link(&mut self, _: &[u8], _: &Inode) -> Result<(), ()> {
        Ok(())
    }

    fn lost(&mut self, _: &[u8], _: u64, _: &'static str) -> Result<(), ()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeMap;
    use std::path::Path;

    use silt_device::{Device, MemoryDevice};

    use super::super::judge::Note;
    use super::by_inode;
    use crate::Unwatched;
    use crate::rescue::{Rescue, Tally};
    use crate::surgeon::Surgeon;

    const VOLUMES: [&str; 2] = ["dsync-4k", "dsync-1k"];

    /// The volume with noise in a block.
    fn torn(s: &Surgeon, block: u64) -> MemoryDevice {
        let (device, g) = (s.device.fork(), s.g());
        let noise: Vec<u8> = (0..g.bs()).map(|i| (i * 7 + 13) as u8).collect();
        device.write_at(g.byte_of(silt_format::BlockNr(block)), &[&noise]).unwrap();
        device
    }

    /// Content of the files in which synced data lies, by name, with what was put beside them.
    fn copied(rescue: &Rescue<'_>, cno: u64, inodes: &[u64]) -> (BTreeMap<String, Vec<u8>>, Tally) {
        let dir = tempfile::tempdir().unwrap();
        let tally = rescue.copy_out(cno, dir.path(), &Unwatched).unwrap();
        let names = rescue.names(cno, inodes.iter().copied().collect(), &Unwatched).unwrap();
        assert_eq!(names.len(), inodes.len());
        let mut out = BTreeMap::new();
        for name in names.into_values().map(|name| String::from_utf8(name).unwrap()) {
            for name in [name.clone(), format!("{name}.synced")] {
                if let Ok(bytes) = std::fs::read(Path::new(dir.path()).join(&name)) {
                    out.insert(name, bytes);
                }
            }
        }
        (out, tally)
    }

    #[test]
    fn what_follows_a_checkpoint_comes_back_though_its_own_log_does_not_verify() {
        for name in VOLUMES {
            let s = Surgeon::golden(name);
            let (latest, cno) = (s.latest(), s.cno());
            let whole = Rescue::open(&s.device, &Unwatched).unwrap();
            let inodes: Vec<u64> = by_inode(whole.synced()).into_keys().collect();
            assert!(!inodes.is_empty(), "{name}");
            let (right, _) = copied(&whole, cno, &inodes);
            // Its head, and what lies before its super root.
            for block in [latest.pos.0, latest.end() - 2] {
                let device = torn(&s, block);
                let rescue = Rescue::open(&device, &Unwatched).unwrap();
                assert_eq!(rescue.roots()[0].cno, cno, "{name} {block}");
                assert_eq!(rescue.roots()[0].log.is_none(), block == latest.pos.0);
                assert_eq!(rescue.synced(), whole.synced(), "{name} {block}");
                assert_eq!(rescue.unreached(), None, "{name} {block}");
                assert!(copied(&rescue, cno, &inodes).0 == right, "{name} {block}");
            }
        }
    }

    #[test]
    fn whole_data_behind_a_log_that_does_not_verify_is_put_beside() {
        for name in VOLUMES {
            let s = Surgeon::golden(name);
            let cno = s.cno();
            let whole = Rescue::open(&s.device, &Unwatched).unwrap();
            assert!(whole.beside().is_empty());
            let first = whole.behind_newest().unwrap().tail[0];
            let device = torn(&s, first.end() - 1);
            let rescue = Rescue::open(&device, &Unwatched).unwrap();
            let behind = |block: &u64| !(first.pos.0..first.end()).contains(block);
            let left = whole.synced().into_iter().filter(|(.., block)| behind(block)).collect();
            let beside = rescue.beside();
            assert_eq!(beside, by_inode(left), "{name}");
            assert!(rescue.synced().is_empty() && rescue.unreached().is_some());
            let inodes: Vec<u64> = beside.keys().copied().collect();
            let (right, _) = copied(&whole, cno, &inodes);
            let (got, tally) = copied(&rescue, cno, &inodes);
            assert_eq!(got.len(), 2 * right.len(), "{name}");
            let names = rescue.names(cno, inodes.iter().copied().collect(), &Unwatched).unwrap();
            for (ino, blocks) in &beside {
                let path = String::from_utf8(names[ino].clone()).unwrap();
                let (right, with) = (&right[&path], &got[&format!("{path}.synced")]);
                assert_eq!(right.len(), with.len());
                let bs = s.g().bs();
                let bytes: usize =
                    blocks.iter().map(|e| right.chunks(bs).nth(e.offset as usize).unwrap().len()).sum();
                for e in blocks {
                    let at = e.offset as usize;
                    assert!(right.chunks(bs).nth(at) == with.chunks(bs).nth(at), "{name} {path} {at}");
                }
                let problem = tally.problems.iter().find(|p| p.ino == *ino).unwrap();
                assert!(problem.notes.contains(&Note::SyncedBeside { bytes: bytes as u64 }), "{problem:?}");
            }
            assert!(got != right);
        }
    }
}
