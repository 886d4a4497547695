//! A log behind the newest checkpoint whose head is lost, and whose super root is whole: nothing but that tells of it. A
//! power cut in the midst of writing it leaves the same, and then nobody was told that it was written.
//!
//! Looked at are the blocks behind the last log that counts, to the end of its segment, and the segment named as the next
//! one: blocks that whoever follows the chain reads in any case. Where one of them may be such a super root, the tables it
//! leads to are asked which checkpoint it completes: some ten blocks each, for [`MOST`] of them.

use std::fmt::{self, Display};

use silt_format::dat::DatEntry;
use silt_format::inode::RawInode;
use silt_format::palloc::Layout;
use silt_format::super_root::SuperRoot;
use silt_format::{BlockNr, Cno, Geometry, checkpoint};

use crate::map;
use crate::reader::{Block, Reader};
use crate::search::Log;

/// Super roots that are looked into.
const MOST: usize = 64;

/// A newest log of which a mount sees nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headless {
    /// The newest checkpoint that a mount comes to.
    pub checkpoint: u64,
    /// The block where the head of the next log belongs.
    pub block: u64,
    /// The newest checkpoint whose super root is whole behind it.
    pub newest: u64,
}

impl Display for Headless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Headless { checkpoint, block, newest } = self;
        write!(
            f,
            "behind checkpoint {checkpoint} the log at block {block} has no head, and no mount takes it, though a super root \
             is whole behind that, of checkpoint {newest}: a power cut in the midst of a sync leaves that, and then nobody was \
             told that it was done; silt rescue reads it"
        )
    }
}

/// Super roots that lie where no log begins, while the chain is followed.
#[derive(Debug, Default)]
pub(crate) struct Lone {
    /// Time of the newest ordinary log as the latest super root has it: those made before it were left behind by an
    /// earlier use of the segment. `None`: nothing is looked for.
    since: Option<u64>,
    blocks: Vec<u64>,
}

impl Lone {
    /// Behind the log of the latest super root.
    pub fn behind(r: &Reader<'_>, latest: &Log) -> Self {
        let last = latest.end().checked_sub(1).and_then(|last| r.block(BlockNr(last)).ok());
        let since = last.and_then(|block| SuperRoot::parse(&r.g, &block).ok()).map(|root| root.nongc_ctime);
        Lone { since, blocks: Vec::new() }
    }

    /// A block that is no head of a log.
    pub fn meet(&mut self, g: &Geometry, pos: u64, block: &[u8]) {
        let Some(since) = self.since else { return };
        let is_late = |root: &SuperRoot| root.nongc_ctime >= since;
        if self.blocks.len() < MOST
            && SuperRoot::parse(g, block).is_ok_and(|root| is_late(&root))
            && !self.blocks.contains(&pos)
        {
            self.blocks.push(pos);
        }
    }

    /// Those met so far belong to what is known.
    pub fn clear(&mut self) {
        self.blocks.clear();
    }

    /// How many were met.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Leaves out what was met after so many.
    pub fn truncate(&mut self, len: usize) {
        self.blocks.truncate(len);
    }

    /// Of those that complete a later checkpoint than is known, the newest.
    pub fn newest(&self, r: &Reader<'_>, known: Known) -> Option<Headless> {
        let g = &r.g;
        let made = |pos: &u64| {
            let root = SuperRoot::parse(g, &r.block(BlockNr(*pos)).ok()?).ok()?;
            let mut tables = Tables { r, root, last: None };
            // Each completes one, and those of lost heads follow what is known.
            let numbers = (1..=MOST as u64).map_while(|n| known.newest.checked_add(n));
            let mine = numbers.take_while(|cno| tables.has(*cno, known.created)).last()?;
            Some((mine, *pos))
        };
        let all: Vec<(u64, u64)> = self.blocks.iter().filter_map(made).collect();
        let newest = all.iter().map(|(cno, _)| *cno).max()?;
        let segment = |block: u64| g.segment_of(BlockNr(block));
        let here = all.iter().any(|(_, pos)| *pos > known.end && segment(*pos) == segment(known.end));
        let next = all.first().map(|(_, pos)| g.segment_start(segment(*pos)).0)?;
        let block = if here { known.end } else { next };
        Some(Headless { checkpoint: known.checkpoint, block, newest })
    }
}

/// What is known of the chain to its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    /// The checkpoint that a mount comes to.
    pub checkpoint: u64,
    /// The newest one of which a whole log tells.
    pub newest: u64,
    /// When the log of the first was made, seconds since 1970.
    pub created: u64,
    /// The block behind the last log.
    pub end: u64,
}

/// The tables of a super root, of which little is to be read.
struct Tables<'r, 'd> {
    r: &'r Reader<'d>,
    root: SuperRoot,
    /// The block of the checkpoint file that was looked at last, by its offset.
    last: Option<(u64, Option<Block>)>,
}

impl Tables<'_, '_> {
    /// Whether its checkpoint file has this checkpoint, made no earlier than `created`.
    fn has(&mut self, cno: u64, created: u64) -> bool {
        let Ok((offset, byte)) = checkpoint::place(&self.r.g, Cno(cno)) else { return false };
        if self.last.as_ref().is_none_or(|(last, _)| *last != offset) {
            self.last = Some((offset, self.block(&self.root.cpfile, offset)));
        }
        let block = self.last.as_ref().and_then(|(_, block)| block.as_ref());
        let entry = block.and_then(|block| checkpoint::entry(block, byte).ok());
        entry.is_some_and(|e| !e.is_invalid() && e.cno.get() == cno && e.create.get() >= created)
    }

    /// A block of a file whose pointers are virtual.
    fn block(&self, file: &RawInode, offset: u64) -> Option<Block> {
        let read = |vblock: u64| self.translated(vblock);
        read(map::find(&file.bmap, offset, read)?)
    }

    fn translated(&self, vblock: u64) -> Option<Block> {
        let layout = Layout::dat(&self.r.g);
        layout.check("DAT", vblock).ok()?;
        let place = layout.entry(vblock);
        let own = map::find(&self.root.dat.bmap, place.block, |nr| self.read(nr))?;
        let entry = DatEntry::read(&self.read(own)?, place.byte).ok()?;
        self.read(entry.blocknr.get())
    }

    fn read(&self, nr: u64) -> Option<Block> {
        self.r.g.holds(BlockNr(nr)).then(|| self.r.block(BlockNr(nr)).ok())?
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use silt_device::{Device, MemoryDevice};
    use silt_format::summary::SR;

    use super::*;
    use crate::surgeon::Surgeon;
    use crate::{Options, behind, check};

    /// The volume with noise in a block.
    fn noisy(s: &Surgeon, block: u64) -> MemoryDevice {
        let (device, g) = (s.device.fork(), s.g());
        device.write_at(g.byte_of(BlockNr(block)), &[&vec![0xA7; g.bs()]]).unwrap();
        device
    }

    /// Points the super blocks at the checkpoint before the latest, as if it were not cleanly unmounted; the logs of both.
    fn before_the_latest(s: &mut Surgeon) -> (Log, Log) {
        let (g, latest) = (s.g(), s.latest());
        let mut roots: Vec<Log> = (0..g.nsegments).flat_map(|n| s.logs(n)).collect();
        let order = |l: &Log| (l.header.seq.get(), l.pos);
        roots.retain(|l| l.header.has(SR) && order(l) <= order(&latest));
        roots.sort_by_key(order);
        let base = roots[roots.len() - 2];
        s.patch_super((true, true), |b| {
            b.state = 0.into();
            b.last_pseg = base.pos.0.into();
            b.last_seq = base.header.seq;
            b.last_cno = base.header.cno;
        });
        (base, latest)
    }

    #[test]
    fn a_newest_log_without_a_head_is_told_of() {
        for name in ["basic-4k", "basic-1k", "gc-4k", "wrap-4k"] {
            let mut s = Surgeon::golden(name);
            let (base, latest) = before_the_latest(&mut s);
            assert_eq!(behind(&s.device), None, "{name}");
            let device = noisy(&s, latest.pos.0);
            let checkpoint = base.header.cno.get();
            let is = Headless { checkpoint, block: latest.pos.0, newest: latest.header.cno.get() };
            let said = behind(&device).unwrap();
            assert_eq!((said.headless, said.torn, said.is_lost()), (Some(is), None, false), "{name}");
            assert_eq!(said.untold().collect::<Vec<_>>(), [is.to_string()], "{name}");
            // It is beside the verdict.
            let report = check(&device, &Options::default());
            assert!(report.findings.iter().all(|f| f.id != "recovery-reached"), "{name}");
        }
    }

    #[test]
    fn what_is_not_newer_is_not_told_of() {
        for name in ["basic-4k", "basic-1k", "gc-4k", "wrap-4k"] {
            let mut s = Surgeon::golden(name);
            let (g, clean, latest) = (s.g(), s.device.fork(), s.latest());
            // Cleanly unmounted: what a log is missing is an error there, and not told beside.
            assert_eq!(behind(&clean), None, "{name}");
            let (base, _) = before_the_latest(&mut s);
            // Without its super root nothing is left of it.
            let device = noisy(&s, latest.pos.0);
            device.write_at(g.byte_of(BlockNr(latest.end() - 1)), &[&[0xA7; 64]]).unwrap();
            assert_eq!(behind(&device), None, "{name}");
            // An older one that lies where a later log would, and that of the newest log itself.
            for root in [base.end() - 1, s.logs(0)[0].end() - 1] {
                let device = noisy(&s, latest.pos.0);
                device.write_at(g.byte_of(BlockNr(latest.end() - 1)), &[&s.read(root)]).unwrap();
                assert_eq!(behind(&device), None, "{name} {root}");
            }
            // One that a mount went on beside: what it wrote since is younger.
            s.patch_header(base, |h| h.create = (latest.header.create.get() + 1).into());
            assert_eq!(behind(&noisy(&s, latest.pos.0)), None, "{name}");
        }
    }
}
