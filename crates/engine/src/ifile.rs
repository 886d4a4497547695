//! The inode file: one entry an inode, and which numbers are taken (spec section 8).

use silt_format::inode::RawInode;
use silt_format::palloc::Layout;
use silt_format::{Geometry, Ino};

use crate::block::Block;
use crate::dat::Dat;
use crate::meta::{MetaFile, Resolve};
use crate::palloc::{Palloc, Search};
use crate::store::Store;
use crate::{At, Error, Result};

/// Blocks of entries that cannot be read and that a search passes over.
const UNREADABLE_MOST: u64 = 4096;

/// The ifile of the live tree, or of one checkpoint (then it is only read).
pub struct IFile {
    pub file: MetaFile,
    pub palloc: Palloc,
}

impl IFile {
    /// From its inode in a checkpoint's entry.
    pub fn new(geometry: &Geometry, raw: RawInode) -> Result<Self> {
        raw.check_metadata("ifile").at(|| "checkpoint entry".into())?;
        let layout = Layout::ifile(geometry);
        Ok(IFile { file: MetaFile::new(Ino::IFILE, raw), palloc: Palloc { layout, name: "ifile" } })
    }

    /// One that holds nothing, until the right one is known.
    pub fn none(geometry: &Geometry) -> Self {
        let layout = Layout::ifile(geometry);
        let mut raw = RawInode::zeroed();
        (raw.mode, raw.links_count) = (0o100_000.into(), 1.into());
        let file = MetaFile::new(Ino::IFILE, raw);
        IFile { file, palloc: Palloc { layout, name: "ifile" } }
    }

    /// Whether an inode number can be opened through the ifile.
    fn check_number(&self, geometry: &Geometry, ino: Ino) -> Result<()> {
        let ok = ino == Ino::ROOT || ino.0 == 7 || ino.0 == 10 || ino.0 >= geometry.first_ino;
        if ok && self.palloc.layout.check("ifile", ino.0).is_ok() {
            Ok(())
        } else {
            Err(Error::NoInode(ino.0))
        }
    }

    /// The entry of an allocated inode.
    pub fn get<R: Resolve>(&self, store: &Store, r: &R, ino: Ino) -> Result<RawInode> {
        self.check_number(&store.geometry, ino)?;
        if !self.palloc.is_allocated(&self.file, store, r, ino.0) {
            return Err(Error::NoInode(ino.0));
        }
        let place = self.palloc.layout.entry(ino.0);
        let block = self.file.block(store, r, place.block)?.ok_or(Error::NoInode(ino.0))?;
        let bytes = block.get(place.byte..).unwrap_or(&[]);
        let raw = RawInode::read(bytes).at(|| format!("inode {ino}"))?;
        Ok(raw)
    }

    /// Changes an entry in place; `f` is given the whole entry.
    pub fn change(&mut self, store: &Store, dat: &Dat, ino: Ino, f: impl FnOnce(&mut [u8])) -> Result<()> {
        let place = self.palloc.layout.entry(ino.0);
        let size = store.geometry.inode_size as usize;
        let b = self.file.block_mut(store, dat, place.block, |_| {})?;
        match b.get_mut(place.byte..place.byte + size) {
            Some(entry) => {
                f(entry);
                Ok(())
            }
            None => Err(Error::corrupt(format!("inode {ino}"), "ifile", "entry outside its block")),
        }
    }

    /// Changed blocks of entries that hold no inode any more (spec 6, 8.3): all of their numbers are free, and no entry of them
    /// has links.
    pub fn empty_blocks(&self, store: &Store, dat: &Dat) -> Vec<u64> {
        let size = store.geometry.inode_size as usize;
        let mut empty = self.palloc.free_blocks(&self.file, store, dat, self.file.data.keys().copied());
        // A damaged bitmap may call free what is not.
        let holds_none = |b: &Block| {
            b.chunks_exact(size).all(|e| RawInode::read(e).is_ok_and(|raw| raw.links_count.get() == 0))
        };
        empty.retain(|block| self.file.data.get(block).is_some_and(holds_none));
        empty
    }

    /// The next free number from `from` on that `skip` does not pass over ([`Palloc::find_free`]), in blocks and
    /// groups that are not damaged.
    pub fn find_free(
        &self,
        store: &Store,
        dat: &Dat,
        from: u64,
        skip: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64> {
        let from = from.max(store.geometry.first_ino);
        let layout = self.palloc.layout;
        // An entry that could not be written is no place for a new inode. After many of them the search ends.
        let patience = std::cell::Cell::new(UNREADABLE_MOST);
        let unreadable = |nr: u64| {
            let read = self.file.block(store, dat, layout.entry(nr).block);
            patience.set(patience.get().saturating_sub(u64::from(read.is_err())));
            read.is_err().then(|| {
                if patience.get() == 0 { u64::MAX } else { layout.last_of_block(nr).saturating_add(1) }
            })
        };
        let skip = |nr| skip(nr).or_else(|| unreadable(nr));
        self.palloc
            .find_free(
                &self.file,
                store,
                dat,
                Search { from, end_group: layout.ngroups(), trusted: None },
                skip,
            )?
            .ok_or(Error::NoSpace)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeMap;
    use std::sync::Arc;

    use silt_device::{Fault, MemoryDevice, Times};
    use silt_format::Ino;

    use crate::fresh::{file, fresh};
    use crate::mkfs::{Parameters, Plan};
    use crate::volume::{OpenOptions, Volume};
    use crate::{Attr, Step, Tree};

    /// Blocks of the ifile, nodes included.
    fn blocks(v: &Volume) -> u64 {
        v.ifile.file.map.blocks / 8
    }

    fn of_entries(v: &Volume, ino: Ino) -> bool {
        let place = v.ifile.palloc.layout.entry(ino.0);
        v.ifile.file.block(&v.store, &v.dat, place.block).unwrap().is_some()
    }

    /// What held inodes that are all gone is given back, wherever it lies, and made again for new ones; what that takes is
    /// never more than was said.
    #[test]
    fn blocks_without_inodes_go() {
        let (_, mut v) = fresh(512 << 20, 256);
        let files: Vec<Ino> = (0..40_000).map(|_| file(&mut v)).collect();
        v.checkpoint(3000).unwrap();
        let full = blocks(&v);
        assert!(full > 1250, "{full}");
        // All of one block in eight, then of the others all but one.
        let layout = v.ifile.palloc.layout;
        let of = |ino: &Ino| layout.entry(ino.0).block;
        for ino in files.iter().filter(|ino| of(ino) % 8 == 3) {
            v.delete_inode(*ino).unwrap();
        }
        v.checkpoint(3001).unwrap();
        assert_eq!(v.underestimated(), None);
        let less = blocks(&v);
        assert!((150..=165).contains(&(full - less)), "{full}, {less}");
        for ino in files.iter().filter(|ino| of(ino) % 8 != 3 && ino.0 % 32 != 7) {
            v.delete_inode(*ino).unwrap();
        }
        v.checkpoint(3002).unwrap();
        assert_eq!((v.underestimated(), blocks(&v)), (None, less), "each holds an inode");
        let rest: Vec<Ino> =
            files.iter().filter(|ino| of(ino) % 8 != 3 && ino.0 % 32 == 7).copied().collect();
        let (last, others) = rest.split_last().unwrap();
        for ino in others {
            v.delete_inode(*ino).unwrap();
        }
        v.checkpoint(3003).unwrap();
        assert_eq!(v.underestimated(), None);
        // That of the reserved numbers, that of the last inode; descriptors, bitmaps, nodes.
        assert!(blocks(&v) < 10, "{}", blocks(&v));
        assert!(of_entries(&v, Ino::ROOT) && of_entries(&v, *last));
        assert!(!of_entries(&v, files[5000]));
        assert!(v.inode(crate::Tree::Live, *last).is_ok());
        // Numbers are handed out from below again, in blocks that are not there.
        let again: Vec<Ino> = (0..100).map(|_| file(&mut v)).collect();
        v.checkpoint(3004).unwrap();
        assert_eq!((again[0], v.underestimated()), (files[0], None));
        assert!(again.iter().all(|ino| of_entries(&v, *ino)));
    }

    /// A bitmap that says free of what has links is damaged: nothing is thrown away for it.
    #[test]
    fn what_has_links_stays() {
        let (_, mut v) = fresh(64 << 20, 64);
        let files: Vec<Ino> = (0..100).map(|_| file(&mut v)).collect();
        v.checkpoint(3000).unwrap();
        let in_one: Vec<Ino> = files.iter().filter(|ino| ino.0 / 32 == 2).copied().collect();
        let palloc = v.ifile.palloc;
        for ino in &in_one {
            assert!(palloc.clear(&mut v.ifile.file, &v.store, &v.dat, ino.0).unwrap());
        }
        v.ifile.change(&v.store, &v.dat, in_one[0], |_| {}).unwrap();
        assert!(v.ifile.empty_blocks(&v.store, &v.dat).is_empty());
        for ino in &in_one {
            v.ifile.change(&v.store, &v.dat, *ino, |entry| entry.fill(0)).unwrap();
        }
        assert_eq!(v.ifile.empty_blocks(&v.store, &v.dat).len(), 1);
        // Neither where bitmap and count disagree.
        let (desc, byte) = palloc.layout.desc(0);
        v.ifile.file.block_mut(&v.store, &v.dat, desc, |_| {}).unwrap()[byte] ^= 1;
        assert!(v.ifile.empty_blocks(&v.store, &v.dat).is_empty());
    }

    /// Blocks of the inode file end with the checkpoint that replaces them or lets go of them, also where a read that this needs
    /// fails for a moment: nothing stays taken for it.
    #[test]
    fn a_read_that_fails_for_a_moment_keeps_no_block() {
        let (device, mut v) = fresh(64 << 20, 64);
        let mut files = Vec::new();
        for round in 0..16 {
            files.extend((0..32).map(|_| file(&mut v)));
            // So that old blocks have their entries in other blocks of the DAT than new ones.
            for key in 0..120 {
                v.write_block(files[round], key, vec![7; 4096].into()).unwrap();
            }
            v.checkpoint(3000).unwrap();
        }
        v.close(3001).unwrap();
        drop(v);
        let (gone, changed) = files.split_at(files.len() / 2);
        for times in [1, 2] {
            let (mut reads, mut waited) = (0, 0);
            loop {
                let device = Arc::new(Fault::new(device.fork()));
                let o = OpenOptions { cache_bytes: 4096, ..OpenOptions::default() };
                let (mut v, _) = Volume::open(device.clone(), &o).unwrap();
                v.take_over(4000).unwrap();
                v.be_patient(true);
                gone.iter().skip(40).for_each(|ino| v.delete_inode(*ino).unwrap());
                changed.iter().step_by(40).for_each(|ino| v.attr_mut(*ino).unwrap().uid = 7);
                assert!(v.begin_checkpoint(4001).unwrap());
                device.fail_reads(0..u64::MAX, Times::Later { after: reads, times });
                loop {
                    match v.step(50) {
                        Ok(Step::Write(mut log)) => {
                            log.seal();
                            log.write(device.inner()).unwrap();
                            v.log_written();
                        }
                        Ok(Step::Done(_)) => break,
                        Ok(_) => {}
                        Err(e) => {
                            assert!(matches!(e, crate::Error::Device(_)), "{e}");
                            waited += 1;
                        }
                    }
                }
                assert_eq!(v.take_damage(), [], "read {reads}");
                if device.struck().reads == 0 {
                    break;
                }
                reads += 1;
            }
            assert!(reads > 50 && waited > 20, "{waited} of {reads}");
        }
    }

    /// Whatever order inodes come and go in, while checkpoints are made: those that are there stay, those without links that are
    /// still held, too, and no checkpoint takes more than was said.
    #[test]
    fn inodes_that_are_there_stay() {
        for seed in 0..histories() {
            play(seed);
        }
    }

    fn histories() -> u64 {
        std::env::var("SILT_HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(6)
    }

    fn play(seed: u64) {
        let mut state = seed;
        let mut roll = move |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let block_size = [1024, 4096][(seed % 2) as usize];
        let bytes = 256 << 20;
        let device = Arc::new(MemoryDevice::new(bytes));
        let parameters =
            Parameters { blocks_per_segment: 256, block_size, now: 1000, ..Parameters::default() };
        Plan::new(parameters, bytes).unwrap().write(&*device, false).unwrap();
        let open = |device: Arc<MemoryDevice>, seed: u64| {
            let o = OpenOptions { cache_bytes: 100_000, cached_inodes: 20, seed, ..OpenOptions::default() };
            let (mut v, _) = Volume::open(device, &o).unwrap();
            v.take_over(2000).unwrap();
            v
        };
        let mut v = open(device.clone(), seed);
        // Their generations and links.
        let mut live: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
        let check = |v: &mut Volume, live: &BTreeMap<u64, (u32, u32)>| {
            for (nr, (generation, links)) in live {
                let a = &v.inode(Tree::Live, Ino(*nr)).unwrap().attr;
                assert_eq!((a.generation, a.links), (*generation, *links), "{nr}");
            }
        };
        for round in 0..60 {
            let change = |v: &mut Volume,
                          live: &mut BTreeMap<u64, (u32, u32)>,
                          roll: &mut dyn FnMut(u64) -> u64| {
                let nr = |live: &BTreeMap<u64, (u32, u32)>, at: u64| live.keys().nth(at as usize).copied();
                match roll(8) {
                    0..4 => {
                        for _ in 0..roll(600) * (round % 3) / 2 {
                            let root = v.inode(Tree::Live, Ino::ROOT).unwrap().attr.clone();
                            let links = u32::from(roll(20) != 0);
                            let ino = v.create_inode(Attr { mode: 0o100_644, links, ..root }).unwrap();
                            let generation = v.inode(Tree::Live, ino).unwrap().attr.generation;
                            assert_eq!(live.insert(ino.0, (generation, links)), None);
                        }
                    }
                    4 => {
                        // One after the other.
                        let Some(from) = nr(live, roll(live.len().max(1) as u64)) else { return };
                        let some: Vec<u64> =
                            live.range(from..).map(|(nr, _)| *nr).take(roll(1500) as usize).collect();
                        for nr in some {
                            v.delete_inode(Ino(nr)).unwrap();
                            live.remove(&nr);
                        }
                    }
                    5 => {
                        // Nearly all, some of them held.
                        let all: Vec<u64> = live.keys().copied().collect();
                        let keep = roll(1000) + 2;
                        for nr in all {
                            match roll(keep) {
                                0 => {}
                                1 => {
                                    v.attr_mut(Ino(nr)).unwrap().links = 0;
                                    live.get_mut(&nr).unwrap().1 = 0;
                                }
                                _ => {
                                    v.delete_inode(Ino(nr)).unwrap();
                                    live.remove(&nr);
                                }
                            }
                        }
                    }
                    _ => {
                        for _ in 0..roll(300) {
                            let Some(nr) = nr(live, roll(live.len().max(1) as u64)) else { return };
                            v.delete_inode(Ino(nr)).unwrap();
                            live.remove(&nr);
                        }
                    }
                }
            };
            for _ in 0..=roll(3) {
                change(&mut v, &mut live, &mut roll);
            }
            let before = live.clone();
            if v.begin_checkpoint(3000 + round).unwrap() {
                loop {
                    match v.step(30).unwrap() {
                        Step::Write(mut log) => {
                            log.seal();
                            log.write(&*device).unwrap();
                            v.log_written();
                        }
                        Step::Working if roll(4) == 0 => change(&mut v, &mut live, &mut roll),
                        Step::Working | Step::Waiting => {}
                        Step::Done(_) => break,
                    }
                }
            }
            assert_eq!(v.underestimated(), None, "seed {seed}, round {round}");
            check(&mut v, &live);
            // As who comes later finds it.
            let mut other = open(Arc::new(device.fork()), 7);
            check(&mut other, &before);
            let mut n = 0;
            other
                .for_each_inode(0, |ino, _| {
                    n += u64::from(before.contains_key(&ino.0));
                    assert!(before.contains_key(&ino.0) || ino.0 < 11, "{ino}");
                    std::ops::ControlFlow::Continue(())
                })
                .unwrap();
            assert_eq!(n, before.len() as u64);
            if roll(10) == 0 {
                v.checkpoint(4000).unwrap();
                v.close(4000).unwrap();
                v = open(device.clone(), round);
            }
        }
    }
}
