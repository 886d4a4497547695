//! The checkpoint file: checkpoints, snapshots and their list (spec section 10).

use std::ops::{ControlFlow, Range};

use silt_format::checkpoint::{self as cp, CpEntry, CpHeader};
use silt_format::inode::RawInode;
use silt_format::{Cno, Geometry, Ino};

use crate::bmap;
use crate::dat::Dat;
use crate::meta::{MetaFile, NodeReader};
use crate::store::Store;
use crate::virt::Change;
use crate::{At, Error, Result};

fn broken(at: u64) -> Error {
    Error::corrupt("cpfile", "cpfile", format!("the snapshot list is broken at {at}"))
}

/// An entry of a block by its slot.
fn entry_in(g: &Geometry, b: &[u8], block: u64, slot: u64) -> Result<CpEntry> {
    // What does not fit is beyond the block.
    let byte = usize::try_from(slot.saturating_mul(u64::from(g.checkpoint_size))).unwrap_or(usize::MAX);
    cp::entry(b, byte).at(|| format!("cpfile block {block}"))
}

/// The cpfile of a volume.
#[derive(Clone)]
pub struct CpFile {
    pub file: MetaFile,
    header: CpHeader,
}

impl CpFile {
    /// From its inode; reads the header.
    pub fn open(store: &Store, dat: &Dat, raw: RawInode) -> Result<Self> {
        Self::of(store, dat, MetaFile::new(Ino::CPFILE, raw))
    }

    /// The same, of a file with changes.
    pub(crate) fn of(store: &Store, dat: &Dat, file: MetaFile) -> Result<Self> {
        let block = file
            .block(store, dat, 0)?
            .ok_or_else(|| Error::corrupt("cpfile block 0", "cpfile", "missing"))?;
        let header = cp::header(&block).at(|| "cpfile block 0".into())?;
        Ok(CpFile { file, header })
    }

    /// From its inode alone, where the header cannot be read: its counters are zero.
    pub fn bare(raw: RawInode) -> Self {
        let header = CpHeader {
            ncheckpoints: 0.into(),
            nsnapshots: 0.into(),
            list_next: 0.into(),
            list_prev: 0.into(),
        };
        CpFile { file: MetaFile::new(Ino::CPFILE, raw), header }
    }

    /// Sets counters and the ends of the snapshot list; tells whether that changed anything.
    pub fn set_header(&mut self, store: &Store, dat: &Dat, header: CpHeader) -> Result<bool> {
        if zerocopy::IntoBytes::as_bytes(&header) == zerocopy::IntoBytes::as_bytes(&self.header) {
            return Ok(false);
        }
        self.header = header;
        self.store_header(store, dat).map(|()| true)
    }

    /// Existing checkpoints, snapshots included.
    pub fn checkpoints(&self) -> u64 {
        self.header.ncheckpoints.get()
    }

    /// Snapshots.
    pub fn snapshots(&self) -> u64 {
        self.header.nsnapshots.get()
    }

    /// The oldest and the newest snapshot as the header names them; 0 where there is none.
    pub(crate) fn ends_of_list(&self) -> (u64, u64) {
        (self.header.list_next.get(), self.header.list_prev.get())
    }

    /// The entry of checkpoint `c`; `None` where there is none.
    pub fn get(&self, store: &Store, dat: &Dat, c: Cno) -> Result<Option<CpEntry>> {
        let Ok((block, byte)) = cp::place(&store.geometry, c) else { return Ok(None) };
        let Some(b) = self.file.block(store, dat, block)? else { return Ok(None) };
        let e = cp::entry(&b, byte).at(|| format!("cpfile block {block}"))?;
        if e.is_invalid() {
            return Ok(None);
        }
        if e.cno.get() != c.0 {
            return Err(Error::corrupt(
                format!("cpfile block {block}"),
                "cpfile",
                format!("the entry of checkpoint {c} says {}", e.cno),
            ));
        }
        Ok(Some(e))
    }

    fn require(&self, store: &Store, dat: &Dat, c: Cno) -> Result<CpEntry> {
        self.get(store, dat, c)?.ok_or(Error::NoCheckpoint(c.0))
    }

    /// Calls `f` for every checkpoint from `from` on, ascending; holes of the file are skipped.
    pub fn for_each(
        &self,
        store: &Store,
        dat: &Dat,
        from: Cno,
        mut f: impl FnMut(CpEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        let g = &store.geometry;
        let (mut first, _) = cp::place(g, Cno(from.0.max(1))).at(|| "cpfile".into())?;
        let reader = NodeReader { nodes: &self.file.map.nodes, store, resolve: dat };
        loop {
            // In batches, so that a caller who wants few pays for few.
            let mut blocks = Vec::new();
            bmap::for_each(&self.file.map.root, &reader, first, |key, _| {
                blocks.push(key);
                if blocks.len() < 64 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            let end = if blocks.len() < 64 { u64::MAX } else { blocks[63].saturating_add(1) };
            blocks.extend(self.file.data.range(first..end).map(|(k, _)| *k));
            blocks.sort_unstable();
            blocks.dedup();
            for block in blocks {
                let Some(b) = self.file.block(store, dat, block)? else { continue };
                for slot in 0..cp::per_block(g) {
                    let Some(cno) = cp::cno_at(g, block, slot) else { continue };
                    if cno < from {
                        continue;
                    }
                    let e = entry_in(g, &b, block, slot)?;
                    if !e.is_invalid() && e.cno.get() == cno.0 && f(e).is_break() {
                        return Ok(());
                    }
                }
            }
            if end == u64::MAX {
                return Ok(());
            }
            first = end;
        }
    }

    /// Calls `f` for every checkpoint from `from` on, descending; holes of the file are skipped: numbers may be any.
    pub fn for_each_back(
        &self,
        store: &Store,
        dat: &Dat,
        from: Cno,
        mut f: impl FnMut(CpEntry) -> ControlFlow<()>,
    ) -> Result<()> {
        let g = &store.geometry;
        let Ok((mut block, _)) = cp::place(g, from) else { return Ok(()) };
        let reader = NodeReader { nodes: &self.file.map.nodes, store, resolve: dat };
        loop {
            if let Some(b) = self.file.block(store, dat, block)? {
                for slot in (0..cp::per_block(g)).rev() {
                    let Some(cno) = cp::cno_at(g, block, slot).filter(|c| *c <= from) else { continue };
                    let e = entry_in(g, &b, block, slot)?;
                    if !e.is_invalid() && e.cno.get() == cno.0 && f(e).is_break() {
                        return Ok(());
                    }
                }
            }
            let Some(below) = block.checked_sub(1) else { return Ok(()) };
            let mapped = bmap::last_key_to(&self.file.map.root, &reader, below)?;
            let changed = self.file.data.range(..=below).next_back().map(|(k, _)| *k);
            let Some(next) = mapped.max(changed) else { return Ok(()) };
            // A node may hold other keys than its place says.
            block = next.min(below);
        }
    }

    /// Snapshot numbers in ascending order, walking the list; ends with an error at the first
    /// link that does not ascend.
    pub fn snapshot_list(&self, store: &Store, dat: &Dat) -> Result<Vec<Cno>> {
        let mut all = Vec::new();
        let mut at = self.header.list_next.get();
        let mut before = 0;
        while at != 0 {
            if at <= before {
                return Err(Error::corrupt(
                    "cpfile",
                    "cpfile",
                    format!("the snapshot list turns back at {at}"),
                ));
            }
            let e = self.require(store, dat, Cno(at))?;
            if !e.is_snapshot() {
                return Err(Error::corrupt(
                    "cpfile",
                    "cpfile",
                    format!("checkpoint {at} is listed as a snapshot"),
                ));
            }
            all.push(Cno(at));
            before = at;
            at = e.list_next.get();
        }
        Ok(all)
    }

    fn store_header(&mut self, store: &Store, dat: &Dat) -> Result<()> {
        cp::store_header(self.file.block_mut(store, dat, 0, |_| {})?, &self.header);
        Ok(())
    }

    fn block_for(&mut self, store: &Store, dat: &Dat, c: Cno) -> Result<(u64, usize, &mut [u8])> {
        let g: Geometry = store.geometry;
        let (block, byte) = cp::place(&g, c).at(|| "cpfile".into())?;
        let b = self.file.block_mut(store, dat, block, |b| cp::init_block(&g, b, block))?;
        Ok((block, byte, b))
    }

    pub(crate) fn change(
        &mut self,
        store: &Store,
        dat: &Dat,
        c: Cno,
        f: impl FnOnce(&mut CpEntry),
    ) -> Result<()> {
        let (block, byte, b) = self.block_for(store, dat, c)?;
        let mut e = cp::entry(b, byte).at(|| format!("cpfile block {block}"))?;
        f(&mut e);
        cp::store_entry(b, byte, &e);
        Ok(())
    }

    /// Counts the valid entries of a block other than 0, which its first slot keeps: what that said before may be wrong, and
    /// a block with a checkpoint must not go.
    fn count_in_block(&mut self, store: &Store, dat: &Dat, c: Cno) -> Result<u32> {
        let (block, _, b) = self.block_for(store, dat, c)?;
        if block == 0 {
            return Ok(u32::MAX);
        }
        let mut n = 0;
        for slot in 0..cp::per_block(&store.geometry) {
            n += u32::from(!entry_in(&store.geometry, b, block, slot)?.is_invalid());
        }
        let mut first = entry_in(&store.geometry, b, block, 0)?;
        first.checkpoints_count = n.into();
        cp::store_entry(b, 0, &first);
        Ok(n)
    }

    /// Makes the entry of the checkpoint under construction valid (spec 10.2 step 1).
    pub fn create(&mut self, store: &Store, dat: &Dat, c: Cno) -> Result<()> {
        let mut was_invalid = false;
        self.change(store, dat, c, |e| {
            was_invalid = e.is_invalid();
            e.flags = (e.flags.get() & !cp::INVALID).into();
            e.cno = c.0.into();
        })?;
        if was_invalid {
            self.count_in_block(store, dat, c)?;
            self.header.ncheckpoints = self.checkpoints().saturating_add(1).into();
        }
        self.store_header(store, dat)
    }

    /// Fills the entry of the checkpoint under construction; `fill` is given an entry whose block
    /// count field is kept.
    pub fn finish(
        &mut self,
        store: &Store,
        dat: &Dat,
        c: Cno,
        fill: impl FnOnce(&mut CpEntry),
    ) -> Result<()> {
        self.change(store, dat, c, |e| {
            e.list_next = 0.into();
            e.list_prev = 0.into();
            fill(e);
            e.cno = c.0.into();
        })
    }

    /// The snapshots before and behind `c`, which is none; 0 where there is none. Looked for from both sides at
    /// once: down the list from the newest one, and up the file from `c`, a block for each that the list leads to.
    fn neighbours(&self, store: &Store, dat: &Dat, c: Cno) -> Result<(u64, u64)> {
        let block_of =
            |c: u64| cp::place(&store.geometry, Cno(c)).map(|(block, _)| block).at(|| "cpfile".into());
        let mut next = 0;
        let mut prev = self.header.list_prev.get();
        let mut up = block_of(c.0)?;
        let mut last = None;
        while prev > c.0 {
            let here = block_of(prev)?;
            if last.replace(here) != Some(here) {
                // The list decides: what cannot be read of the file or is not in the list is passed over.
                if let Ok(Some(found)) = self.listed_in(store, dat, up, c) {
                    return Ok(found);
                }
                up += 1;
            }
            let e = self.require(store, dat, Cno(prev))?;
            let further = e.list_prev.get();
            if !e.is_snapshot() || further >= prev {
                return Err(broken(prev));
            }
            (next, prev) = (prev, further);
        }
        if prev == c.0 { Err(broken(prev)) } else { Ok((prev, next)) }
    }

    /// The first snapshot behind `c` that a block of the file has, if the list has it behind one before `c`: the
    /// neighbours of `c`.
    fn listed_in(&self, store: &Store, dat: &Dat, block: u64, c: Cno) -> Result<Option<(u64, u64)>> {
        let g = &store.geometry;
        let Some(b) = self.file.block(store, dat, block)? else { return Ok(None) };
        for slot in 0..cp::per_block(g) {
            let Some(cno) = cp::cno_at(g, block, slot).filter(|cno| *cno > c) else { continue };
            let e = entry_in(g, &b, block, slot)?;
            if e.is_invalid() || !e.is_snapshot() || e.cno.get() != cno.0 {
                continue;
            }
            let prev = e.list_prev.get();
            let back = match prev {
                0 => self.header.list_next.get(),
                _ => self.require(store, dat, Cno(prev))?.list_next.get(),
            };
            return Ok((prev < c.0 && back == cno.0).then_some((prev, cno.0)));
        }
        Ok(None)
    }

    /// Makes a checkpoint a snapshot (spec 10.4). Nothing happens if it is one.
    pub fn set_snapshot(&mut self, store: &Store, dat: &Dat, c: Cno) -> Result<()> {
        if self.require(store, dat, c)?.is_snapshot() {
            return Ok(());
        }
        let (prev, next) = self.neighbours(store, dat, c)?;
        self.have_at_hand(store, dat, c, prev, next)?;
        self.change(store, dat, c, |e| {
            e.flags = (e.flags.get() | cp::SNAPSHOT).into();
            e.list_next = next.into();
            e.list_prev = prev.into();
        })?;
        self.link(store, dat, prev, next, Some(c.0))?;
        self.header.nsnapshots = self.snapshots().saturating_add(1).into();
        self.store_header(store, dat)
    }

    /// Reads all that linking `c` between `prev` and `next` changes, so that a read that fails leaves it as it was.
    fn have_at_hand(&mut self, store: &Store, dat: &Dat, c: Cno, prev: u64, next: u64) -> Result<()> {
        for n in [prev, next].into_iter().filter(|n| *n != 0) {
            if !self.require(store, dat, Cno(n))?.is_snapshot() {
                return Err(broken(n));
            }
            self.block_for(store, dat, Cno(n))?;
        }
        self.block_for(store, dat, c)?;
        self.file.block_mut(store, dat, 0, |_| {}).map(|_| ())
    }

    /// Points the neighbours `prev` and `next` (0 = the header) to `c`, or to each other.
    fn link(&mut self, store: &Store, dat: &Dat, prev: u64, next: u64, c: Option<u64>) -> Result<()> {
        if prev == 0 {
            self.header.list_next = c.unwrap_or(next).into();
        } else {
            self.change(store, dat, Cno(prev), |e| e.list_next = c.unwrap_or(next).into())?;
        }
        if next == 0 {
            self.header.list_prev = c.unwrap_or(prev).into();
        } else {
            self.change(store, dat, Cno(next), |e| e.list_prev = c.unwrap_or(prev).into())?;
        }
        Ok(())
    }

    /// Makes a snapshot a plain checkpoint (spec 10.4). Nothing happens if it is none.
    pub fn clear_snapshot(&mut self, store: &Store, dat: &Dat, c: Cno) -> Result<()> {
        let e = self.require(store, dat, c)?;
        if !e.is_snapshot() {
            return Ok(());
        }
        let (prev, next) = (e.list_prev.get(), e.list_next.get());
        for neighbour in [prev, next] {
            if neighbour != 0 && self.get(store, dat, Cno(neighbour))?.is_none_or(|n| !n.is_snapshot()) {
                return Err(broken(c.0));
            }
        }
        self.have_at_hand(store, dat, c, prev, next)?;
        self.change(store, dat, c, |e| {
            e.flags = (e.flags.get() & !cp::SNAPSHOT).into();
            e.list_next = 0.into();
            e.list_prev = 0.into();
        })?;
        self.link(store, dat, prev, next, None)?;
        self.header.nsnapshots = self.snapshots().saturating_sub(1).into();
        self.store_header(store, dat)
    }

    /// The plain checkpoints of a range, for [`CpFile::delete`], and the snapshots in it. Whatever deleting them changes is at
    /// hand then: a read that fails leaves all of them.
    pub fn have_to_delete(
        &mut self,
        store: &Store,
        dat: &Dat,
        range: Range<u64>,
    ) -> Result<(Vec<Cno>, Vec<Cno>)> {
        let mut victims = Vec::new();
        let mut kept = Vec::new();
        self.for_each(store, dat, Cno(range.start.max(1)), |e| {
            if e.cno.get() >= range.end {
                return ControlFlow::Break(());
            }
            if e.is_snapshot() {
                kept.push(Cno(e.cno.get()))
            } else {
                victims.push(Cno(e.cno.get()))
            }
            ControlFlow::Continue(())
        })?;
        for c in &victims {
            self.block_for(store, dat, *c)?;
        }
        if !victims.is_empty() {
            self.file.block_mut(store, dat, 0, |_| {})?;
        }
        Ok((victims, kept))
    }

    /// Deletes plain checkpoints (spec 10.5), which [`CpFile::have_to_delete`] gave. A block without any that its map does not
    /// let go, since something cannot be read, is written as it is.
    pub fn delete(&mut self, change: &mut Change<'_>, victims: &[Cno]) -> Result<()> {
        let g = change.store.geometry;
        let block_of = |c: Cno| cp::place(&g, c).map_or(0, |(block, _)| block);
        for of_block in victims.chunk_by(|a, b| block_of(*a) == block_of(*b)) {
            for c in of_block {
                self.change(change.store, change.dat, *c, |e| {
                    e.flags = (e.flags.get() | cp::INVALID).into()
                })?;
                self.header.ncheckpoints = self.checkpoints().saturating_sub(1).into();
            }
            let Some(c) = of_block.first() else { continue };
            let block = block_of(*c);
            if self.count_in_block(change.store, change.dat, *c)? == 0
                && change.unmap(&mut self.file.map, block).is_ok()
            {
                self.file.data.remove(&block);
            }
        }
        if !victims.is_empty() {
            self.store_header(change.store, change.dat)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::ops::ControlFlow;

    use silt_format::Cno;
    use silt_format::checkpoint::SNAPSHOT;

    use crate::fresh::fresh;

    /// An entry that says it is a snapshot and is in no list, just behind one that becomes one.
    #[test]
    fn what_is_not_in_the_list_is_no_neighbour() {
        let (_, mut v) = fresh(64 << 20, 256);
        while v.cno.0 < 300 {
            v.meta_dirty = true;
            v.checkpoint(3000).unwrap();
        }
        for c in [5, 250, 260] {
            v.make_snapshot(Cno(c)).unwrap();
        }
        v.cpfile.change(&v.store, &v.dat, Cno(21), |e| e.flags = (e.flags.get() | SNAPSHOT).into()).unwrap();
        v.make_snapshot(Cno(20)).unwrap();
        assert_eq!(v.snapshots().unwrap(), [5, 20, 250, 260].map(Cno));
    }

    /// A block whose count is too low loses none of the others with one checkpoint.
    #[test]
    fn a_wrong_count_takes_no_checkpoint_away() {
        let (_, mut v) = fresh(64 << 20, 256);
        while v.cno.0 < 80 {
            v.meta_dirty = true;
            v.checkpoint(3000).unwrap();
        }
        v.make_snapshot(Cno(50)).unwrap();
        let first =
            super::cp::cno_at(v.geometry(), super::cp::place(v.geometry(), Cno(51)).unwrap().0, 0).unwrap();
        v.cpfile.change(&v.store, &v.dat, first, |e| e.checkpoints_count = 1.into()).unwrap();
        v.delete_checkpoints(51..52).unwrap();
        assert_eq!(v.snapshots().unwrap(), [Cno(50)]);
        let mut seen = Vec::new();
        v.cpfile
            .for_each(&v.store, &v.dat, Cno(1), |e| {
                seen.push(e.cno.get());
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(seen, (1..80).filter(|c| *c != 51).collect::<Vec<_>>());
    }

    /// A volume may say that its newest checkpoint has any number: what lies between costs nothing.
    #[test]
    fn walking_back_skips_what_is_not_there() {
        let (_, mut v) = fresh(64 << 20, 256);
        while v.cno.0 < 100 {
            v.meta_dirty = true;
            v.checkpoint(3000).unwrap();
        }
        let mut seen = Vec::new();
        v.cpfile
            .for_each_back(&v.store, &v.dat, Cno(1 << 55), |e| {
                seen.push(e.cno.get());
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(seen, (1..100).rev().collect::<Vec<_>>());
    }
}
