//! Blocks that keep their number and get another place, and perhaps other bytes.
//!
//! A block of a checkpoint that is past cannot get another number: nothing that names it can change. But where
//! its number leads can (format 7.6), so damage in old versions is mended the way the cleaner moves them.

use silt_format::summary::BlockInfo;
use silt_format::{BlockNr, Cno, Ino, VBlockNr};

use crate::block::Block;
use crate::construct::LOG_BLOCKS;
use crate::log::{Content, Item};
use crate::store::Key;
use crate::volume::Volume;
use crate::{Error, Result};

/// A block on its way to another place.
#[derive(Debug, Clone)]
pub(crate) struct Moved {
    pub v: u64,
    pub ino: Ino,
    /// `None` for a node.
    pub offset: Option<u64>,
    pub bytes: Block,
}

impl Volume {
    /// Makes a checkpoint of all that waits, the moved blocks in front.
    pub(crate) fn checkpoint_with(&mut self, mut moved: Vec<Moved>, now: u64) -> Result<Cno> {
        self.meta_dirty = true;
        if !self.begin_checkpoint(now)? {
            return Err(Error::Invalid("nothing was to be written".into()));
        }
        if !moved.is_empty() {
            let Some(mut k) = self.construction.take() else { return Err(Error::Constructing) };
            // One record a file and beginning, as the cleaner writes them.
            let mut items = Vec::new();
            moved.sort_by_key(|m| (m.ino, m.v));
            for m in moved {
                let mut e = self.dat.entry(&self.store, VBlockNr(m.v))?;
                let single = m.ino == Ino::CPFILE || m.ino == Ino::SUFILE;
                if e.start.get() > self.last.cno && !single {
                    // A beginning that cannot be would stay in the record.
                    e.start = 1.into();
                }
                let vblock = VBlockNr(m.v);
                let info = match m.offset {
                    Some(offset) => BlockInfo::Data { vblock, offset },
                    None => BlockInfo::Node { vblock },
                };
                let fi_cno = if single { Cno(0) } else { Cno(e.start.get()) };
                self.store.forget(Key::Virtual(m.v));
                self.store.launch(Key::Virtual(m.v), m.bytes.clone());
                items.push((
                    Item { ino: m.ino, fi_cno, info, content: Content::Ready(m.bytes), moved: true },
                    e,
                ));
            }
            items.sort_by_key(|(i, _)| (i.ino, i.fi_cno, !i.info.is_data()));
            let mut log = self.open_log(&mut k, LOG_BLOCKS)?;
            for (item, _) in &items {
                if !log.fit.take(item.ino, item.fi_cno, &item.info, 0) {
                    self.close_data_log(&mut k, log, false)?;
                    log = self.open_log(&mut k, LOG_BLOCKS)?;
                    if !log.fit.take(item.ino, item.fi_cno, &item.info, 0) {
                        return Err(Error::Invalid("a block does not fit into an empty log".into()));
                    }
                }
                log.items.push(item.clone());
            }
            self.close_data_log(&mut k, log, false)?;
            // They were given places as new blocks are: their lives are what they were.
            for (item, was) in &items {
                if let BlockInfo::Data { vblock, .. } | BlockInfo::Node { vblock } = item.info {
                    self.dat.entry_mut(&self.store, vblock, |e| {
                        (e.start, e.end) = (was.start, was.end);
                        Ok(())
                    })?;
                }
            }
            self.construction = Some(k);
        }
        self.finish_construction(now)?;
        Ok(Cno(self.last.cno))
    }

    /// The bytes of a virtual block as they lie on the device.
    pub(crate) fn bytes_of(&self, v: u64) -> Result<Block> {
        let at = self.dat.translate(&self.store, VBlockNr(v))?;
        self.store.read(silt_device::Kind::Data, BlockNr(at.0))
    }
}
