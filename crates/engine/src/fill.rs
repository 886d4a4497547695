//! Filling logs with blocks of files: where they lie follows from the order they come in (spec section 12).

use silt_format::summary::{self, BlockInfo};
use silt_format::{Ino, SegNr};

use crate::block::Block;
use crate::construct::{Construction, Kind};
use crate::log::{Content, Head, Item, LogWrite, OpenLog};
use crate::volume::Volume;
use crate::{Error, Result};

impl Volume {
    /// Opens a log where the last one ended, in the next segment if too little is left.
    pub(crate) fn open_log(&mut self, k: &mut Construction, limit: u64) -> Result<OpenLog> {
        let g = self.store.geometry;
        let mut c = self.cursor;
        // Each step counts at once: after an error it goes on from there.
        if c.next == c.segment {
            c.next = self.sufile.allocate(&mut self.store, &self.dat)?;
            k.allocated.push(c.next);
            self.cursor = c;
        }
        if c.room(&g) < 2 {
            self.check_enters(c.next)?;
            c.segment = c.next;
            c.next = self.sufile.allocate(&mut self.store, &self.dat)?;
            k.allocated.push(c.next);
            c.offset = 0;
            c.seq = c.seq.wrapping_add(1);
            self.cursor = c;
        }
        self.sufile.touch(&self.store, &self.dat, c.segment)?;
        Ok(OpenLog::new(&g, c, limit))
    }

    /// Whether logs may go on in a segment: one that this very construction frees still holds what is durable.
    pub(crate) fn check_enters(&self, segment: SegNr) -> Result<()> {
        if self.store.held.is_lent(segment) { Err(Error::NoSpace) } else { Ok(()) }
    }

    /// Adds a new block of a file to the open log.
    pub(crate) fn add_new(
        &mut self,
        k: &mut Construction,
        ino: Ino,
        info: BlockInfo,
        block: Block,
    ) -> Result<()> {
        let item = self.new_item(ino, info, block);
        self.add(k, item)
    }

    /// A new block of a file, for a log.
    pub(crate) fn new_item(&self, ino: Ino, info: BlockInfo, block: Block) -> Item {
        let fi_cno = self.dat.past.map_or(self.cno, |(from, _)| from);
        Item { ino, fi_cno, info, content: Content::Ready(block), moved: false }
    }

    /// Adds a block to the open log, closing it first if it is full. After an error it is the next to be added.
    pub(crate) fn add(&mut self, k: &mut Construction, item: Item) -> Result<()> {
        match self.make_room(k, &item) {
            Ok(mut log) => {
                log.items.push(item);
                k.open = Some(log);
                Ok(())
            }
            Err(e) => {
                k.moves.push_front(item);
                Err(e)
            }
        }
    }

    /// The open log, or a new one, with room taken for a block.
    fn make_room(&mut self, k: &mut Construction, item: &Item) -> Result<OpenLog> {
        for _ in 0..2 {
            let mut log = match k.open.take() {
                Some(log) => log,
                None => self.open_log(k, self.log_blocks)?,
            };
            if log.fit.take(item.ino, item.fi_cno, &item.info, 0) {
                return Ok(log);
            }
            self.close_data_log(k, log, false)?;
        }
        Err(Error::Invalid("a block does not fit into an empty log".into()))
    }

    /// Finishes a log that holds blocks of files only. After an error it is the open one.
    pub(crate) fn close_data_log(&mut self, k: &mut Construction, log: OpenLog, end: bool) -> Result<()> {
        let g = self.store.geometry;
        if let Err(e) = self.place(&log, k.create) {
            k.open = Some(log);
            return Err(e);
        }
        let mut payload = Vec::with_capacity(log.items.len());
        for item in &log.items {
            if let Content::Ready(b) = &item.content {
                payload.push(b.clone());
            }
        }
        let total = log.fit.total();
        let mut flags = if k.logs == 0 { summary::LOGBGN } else { 0 };
        if k.kind == Kind::DataSync {
            flags |= summary::SYNDT;
        }
        if end {
            flags |= summary::LOGEND;
        }
        let head = Head { flags, create: k.create, cno: self.cno, nblocks: total };
        k.ready.push_back(LogWrite::new(&g, &log, head, payload));
        k.logs += 1;
        k.blocks += total;
        self.cursor.offset = log.cursor.offset + total;
        k.items.extend(log.items);
        Ok(())
    }

    /// Gives the blocks of a log their places. May be done again.
    fn place(&mut self, log: &OpenLog, create: u64) -> Result<()> {
        for (index, item) in log.items.iter().enumerate() {
            if let BlockInfo::Data { vblock, .. } | BlockInfo::Node { vblock } = item.info {
                let start = (!item.moved).then_some(self.cno);
                self.dat.assign(&self.store, vblock, log.place(&self.store.geometry, index), start)?;
            }
        }
        self.used(log, log.fit.total(), create)
    }

    /// Records how far a log fills its segment.
    pub(crate) fn used(&mut self, log: &OpenLog, total: u64, create: u64) -> Result<()> {
        let nblocks = u32::try_from(log.cursor.offset + total).unwrap_or(u32::MAX);
        self.sufile
            .change(&self.store, &self.dat, log.cursor.segment, |e| {
                e.nblocks = nblocks.into();
                e.lastmod = create.into();
            })
            .map(|_| ())
    }
}
