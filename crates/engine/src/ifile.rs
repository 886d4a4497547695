//! The inode file: one entry an inode, and which numbers are taken (spec section 8).

use silt_format::inode::RawInode;
use silt_format::palloc::Layout;
use silt_format::{Geometry, Ino};

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
