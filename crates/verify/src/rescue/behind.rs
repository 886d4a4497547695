//! Synced data behind the newest checkpoint of a volume that was not cleanly unmounted (spec 12.5). What follows it without
//! a gap is added to its tree, as a mount would, also where the checkpoint's own log does not verify. What lies behind a
//! log that does not is told of, and copied beside.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use silt_format::summary::{self, BlockInfo, Header};
use silt_format::super_block::STATE_VALID;
use silt_format::{BlockNr, Geometry};

use super::extents::Extent;
use super::survey::LogRecord;
use super::tree::{Directory, Inode};
use super::volume::{Rescue, Root};
use super::walk::{Sink, walk};
use crate::chain::{self, Chain};
use crate::search::{self, Found, Log};
use crate::unreached::{self, Torn, Unreached};
use crate::{Error, Watch};

/// What lies behind the newest super root. Read once.
pub(super) struct Behind {
    found: Found,
    chain: Chain,
    /// Blocks that a mount puts in place, by inode.
    synced: Arc<BTreeMap<u64, Vec<Extent>>>,
}

impl<'d> Rescue<'d> {
    /// What was synced behind the newest checkpoint and does not come back with it, of a volume that was not cleanly
    /// unmounted. [`Rescue::copy_out`] puts beside what of it is whole.
    pub fn unreached(&self) -> Option<Unreached> {
        self.not_reached()?.synced
    }

    /// A log behind the newest checkpoint that does not verify, as [`crate::Behind::torn`].
    pub fn torn(&self) -> Option<Torn> {
        self.not_reached()?.torn
    }

    fn not_reached(&self) -> Option<unreached::Behind> {
        let Behind { found, chain, .. } = self.behind()?;
        unreached::Behind::new(&self.r, chain, found.cno)
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

    /// Blocks that a mount would put into files of the newest checkpoint, by inode.
    pub(super) fn synced(&self) -> Arc<BTreeMap<u64, Vec<Extent>>> {
        self.behind().map(|behind| behind.synced.clone()).unwrap_or_default()
    }

    /// Whole blocks of files of the newest checkpoint that no mount puts in place, by inode. Only from logs that were
    /// written before the next checkpoint: in a later one a file may be another.
    pub(super) fn beside(&self) -> BTreeMap<u64, Vec<Extent>> {
        let Some(Behind { found, chain, .. }) = self.behind() else { return BTreeMap::new() };
        let mut blocks = Blocks::new(&self.r.g);
        for log in chain.lost_data(found.cno.saturating_add(1)) {
            let Ok(bytes) = search::summary_of(&self.r, &log) else { continue };
            let first = log.pos.0.saturating_add(u64::from(log.header.summary_blocks(&self.r.g)));
            // The log verifies; a summary that makes no sense ends with what did.
            let _ = summary::for_each_payload(&self.r.g, &log.header, &bytes, |p| {
                if let BlockInfo::Data { offset, .. } = p.info {
                    blocks.add(p.ino.0, offset, first.saturating_add(u64::from(p.index)));
                }
            });
        }
        blocks.by_inode()
    }

    fn behind(&self) -> Option<&Behind> {
        self.behind.get_or_init(|| self.read_behind()).as_ref()
    }

    /// `None` where nothing behind it counts.
    fn read_behind(&self) -> Option<Behind> {
        let root = self.roots().first()?;
        if self.is_clean_at(root) {
            return None;
        }
        let mut found = Found::of(self.newest_log(root)?, root.cno);
        // What cannot be read ends the way: what was come to before counts.
        let _ = search::behind(&self.r, &mut found);
        if found.newer > 0 {
            return None;
        }
        let mut blocks = Blocks::new(&self.r.g);
        let pending = search::pending(&self.r, &found).unwrap_or_default();
        pending.blocks.into_iter().for_each(|(ino, offset, block)| blocks.add(ino, offset, block));
        let chain = chain::follow(&self.r, &found);
        Some(Behind { found, chain, synced: Arc::new(blocks.by_inode()) })
    }

    /// Whether the volume was cleanly unmounted with this super root as its newest.
    fn is_clean_at(&self, root: &Root) -> bool {
        let sb = self.shape.super_block.as_ref();
        sb.is_some_and(|sb| sb.state.get() & STATE_VALID != 0 && sb.last_cno.get() == root.cno)
    }

    /// The log of a super root. Where its head is lost, as much of it as another log of the segment tells: all of them have
    /// its numbers (spec 3.2). `None` where there is no other.
    fn newest_log(&self, root: &Root) -> Option<Log> {
        let header = |pos: u64| Header::parse(&self.r.g, &self.block(pos).ok()?).ok();
        if let Some(pos) = root.log {
            return Some(Log { pos: BlockNr(pos), header: header(pos)? });
        }
        let pos = BlockNr(root.block);
        let segment = self.r.g.segment_of(pos);
        let same = |log: &&LogRecord| !log.stale && self.r.g.segment_of(BlockNr(log.pos)) == segment;
        let mut header = header(self.survey.logs.iter().find(same)?.pos)?;
        (header.nblocks, header.cno) = (1.into(), root.cno.into());
        Some(Log { pos, header })
    }
}

/// Blocks by inode and offset, the last one of each place.
struct Blocks {
    /// Files have none behind it.
    max_key: u64,
    all: BTreeMap<(u64, u64), u64>,
}

impl Blocks {
    fn new(g: &Geometry) -> Self {
        Blocks { max_key: g.max_key(), all: BTreeMap::new() }
    }

    fn add(&mut self, ino: u64, offset: u64, block: u64) {
        if offset <= self.max_key {
            self.all.insert((ino, offset), block);
        }
    }

    fn by_inode(self) -> BTreeMap<u64, Vec<Extent>> {
        let mut out: BTreeMap<u64, Vec<Extent>> = BTreeMap::new();
        for ((ino, offset), block) in self.all {
            out.entry(ino).or_default().push(Extent { offset, block, len: 1, sound: true, by_offset: false });
        }
        out
    }
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
    use silt_format::BlockNr;
    use silt_format::summary::SR;

    use super::super::judge::Note;
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
            let inodes: Vec<u64> = whole.synced().keys().copied().collect();
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
            let first = whole.behind().unwrap().found.tail[0];
            let device = torn(&s, first.end() - 1);
            let rescue = Rescue::open(&device, &Unwatched).unwrap();
            let mut left = (*whole.synced()).clone();
            left.values_mut().for_each(|all| all.retain(|e| !(first.pos.0..first.end()).contains(&e.block)));
            left.retain(|_, all| !all.is_empty());
            let beside = rescue.beside();
            assert!(!left.is_empty() && beside == left, "{name}");
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

    /// A volume that was cut short in the midst of synced data.
    #[test]
    fn synced_data_that_goes_on_behind_the_end_of_the_device_is_told_of() {
        for name in VOLUMES {
            let s = Surgeon::golden(name);
            let whole = Rescue::open(&s.device, &Unwatched).unwrap();
            for log in &whole.behind().unwrap().found.tail {
                let bytes = usize::try_from(s.g().byte_of(BlockNr(log.end() - 1))).unwrap();
                let mut short = vec![0; bytes];
                s.device.read_at(0, &mut short).unwrap();
                let device = MemoryDevice::new(bytes as u64);
                device.write_at(0, &[&short]).unwrap();
                let rescue = Rescue::open(&device, &Unwatched).unwrap();
                let lost = rescue.unreached().unwrap();
                assert_eq!((lost.block, lost.certain), (log.pos.0, true), "{name}");
            }
        }
    }

    /// What a power cut leaves of a log is told, and of one that is whole nothing is.
    #[test]
    fn a_newest_log_that_does_not_verify_is_told_of() {
        for name in ["basic-4k", "basic-1k", "gc-4k"] {
            let mut s = Surgeon::golden(name);
            let (g, latest) = (s.g(), s.latest());
            let mut roots: Vec<_> = (0..g.nsegments).flat_map(|n| s.logs(n)).collect();
            roots.retain(|l| {
                l.header.has(SR) && (l.header.seq.get(), l.pos) <= (latest.header.seq.get(), latest.pos)
            });
            roots.sort_by_key(|l| (l.header.seq.get(), l.pos));
            let base = roots[roots.len() - 2];
            s.patch_super((true, true), |b| {
                b.state = 0.into();
                b.last_pseg = base.pos.0.into();
                b.last_seq = base.header.seq;
                b.last_cno = base.header.cno;
            });
            assert_eq!(crate::behind(&s.device), None, "{name}");
            let device = torn(&s, latest.end() - 1);
            let said = crate::behind(&device).unwrap();
            let log = crate::Torn { checkpoint: base.header.cno.get(), block: latest.pos.0 };
            assert_eq!((said.torn, said.is_lost()), (Some(log), false), "{name}");
            assert_eq!(Rescue::open(&device, &Unwatched).unwrap().torn(), Some(log), "{name}");
        }
    }
}
