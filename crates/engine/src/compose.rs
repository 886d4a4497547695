//! Composing the end of a checkpoint: ifile, cpfile, sufile, DAT and super root (spec section 12).
//!
//! The sufile and the DAT describe the very blocks that they are written in. So the numbers come first, then as
//! many segments as all of it takes are planned, and only then the places are known and told to the DAT. All of
//! it is one step: nothing may change these files in between.

use hashbrown::HashMap;
use silt_format::btree::Node;
use silt_format::summary::{self, BlockInfo};
use silt_format::super_root::SuperRoot;
use silt_format::{BlockNr, Cno, Ino, SegNr, VBlockNr, checkpoint as cp};

use crate::block::{self, Block};
use crate::construct::{Construction, LOG_BLOCKS};
use crate::log::{Content, Fit, Head, Item, LogWrite, OpenLog, sorted_nodes};
use crate::meta::MetaFile;
use crate::store::Key;
use crate::supers::LastLog;
use crate::virt::Change;
use crate::volume::Volume;
use crate::{Error, Result};

/// Fresh numbers of changed blocks, by file block offset.
#[derive(Default)]
struct Fresh {
    ifile: HashMap<u64, VBlockNr>,
    cpfile: HashMap<u64, VBlockNr>,
    sufile: HashMap<u64, VBlockNr>,
}

impl Volume {
    /// Composes ifile, cpfile, sufile, DAT and super root behind what the open log holds.
    pub(crate) fn compose(&mut self, k: &mut Construction) -> Result<()> {
        self.part_from_data(k)?;
        k.before = Some(self.before(k));
        let composed = self.compose_behind(k);
        if composed.as_ref().is_err_and(|e| self.is_patient_with(e)) {
            self.uncompose(k);
        }
        composed
    }

    fn compose_behind(&mut self, k: &mut Construction) -> Result<()> {
        let cno = self.cno;
        if self.ifile.file.is_dirty() {
            k.tree_changed = true;
        }
        let mut fresh = Fresh::default();
        self.drop_empty_inode_blocks()?;
        let (delta, damage, owed) = {
            let change = Change::new(&mut self.store, &mut self.dat, self.cno);
            let mut change = Change { patient: true, ..change };
            change.propagate(&mut self.ifile.file, &mut fresh.ifile)?;
            (change.delta, change.damage.take(), std::mem::take(&mut change.owed))
        };
        self.count_tree(delta);
        self.met(Ino::IFILE, damage);
        self.end_replaced(Ino::IFILE, owed, false)?;
        self.cpfile.create(&self.store, &self.dat, cno)?;
        self.propagate_dead(&mut fresh, true)?;
        let mut first = match k.open.take() {
            Some(log) => log,
            None => self.open_log(k, u64::MAX)?,
        };
        // What was limited for the sake of early writing may use the whole segment now.
        first.fit.widen(first.cursor.room(&self.store.geometry));
        let mut segments = vec![first.cursor.next];
        let items = loop {
            self.propagate_dead(&mut fresh, false)?;
            self.dat.mark_ancestors(&self.store)?;
            let items = self.final_items(&fresh)?;
            let entered = self.count_segments(&first, &items, &segments);
            if entered < segments.len() {
                break items;
            }
            for s in segments.clone() {
                self.sufile.touch(&self.store, &self.dat, s)?;
            }
            while segments.len() <= entered {
                let segment = self.sufile.allocate(&mut self.store, &self.dat)?;
                k.planned.push(segment);
                segments.push(segment);
            }
        };
        let logs = self.lay_out(first, items, &mut segments)?;
        k.planned.retain(|s| segments.contains(s));
        self.finish_logs(k, logs, &fresh)
    }

    /// Takes changed blocks of the ifile that hold no inode any more out of it (spec 6). One that its map does not let go, since
    /// something cannot be read that nobody else may need, is written as it is.
    fn drop_empty_inode_blocks(&mut self) -> Result<()> {
        // From the end, as a truncation goes: nodes empty one after the other.
        for block in self.ifile.empty_blocks(&self.store, &self.dat).into_iter().rev() {
            let change = Change::new(&mut self.store, &mut self.dat, self.cno);
            let mut change = Change { patient: true, ..change };
            let unmapped = change.unmap(&mut self.ifile.file.map, block);
            let (delta, damage) = (change.delta, change.damage.take());
            let owed = std::mem::take(&mut change.owed);
            self.count_tree(delta);
            self.met(Ino::IFILE, damage);
            self.end_replaced(Ino::IFILE, owed, false)?;
            if unmapped.is_ok() {
                self.ifile.file.data.remove(&block);
            }
        }
        Ok(())
    }

    /// Ends blocks of a table whose entries could not be read when they were replaced: what may pass has the attempt made again.
    fn end_replaced(&mut self, table: Ino, owed: Vec<VBlockNr>, dead: bool) -> Result<()> {
        owed.into_iter().try_for_each(|v| self.end_late(table, v, dead))
    }

    /// Where logs of data are to stay small, metadata that would make one larger goes into a log of its own: who
    /// verifies data does not read it.
    fn part_from_data(&mut self, k: &mut Construction) -> Result<()> {
        let files = [&self.ifile.file, &self.cpfile.file, &self.sufile.file, &self.dat.file];
        let dirty: usize = files.iter().map(|f| f.data.len() + f.map.nodes.len()).sum();
        // The metadata makes some more: nodes above, the tables' own blocks, the super root.
        let behind = dirty as u64 + dirty as u64 / 8 + 16;
        match k.open.take() {
            Some(log) if log.fit.total() + behind > self.log_blocks && self.log_blocks < LOG_BLOCKS => {
                self.close_data_log(k, log, false)
            }
            open => {
                k.open = open;
                Ok(())
            }
        }
    }

    /// Gives changed blocks of cpfile or sufile their fresh numbers.
    fn propagate_dead(&mut self, fresh: &mut Fresh, cpfile: bool) -> Result<()> {
        let change = Change::dead(&mut self.store, &mut self.dat, self.cno);
        let mut change = Change { patient: true, ..change };
        let ino = if cpfile {
            change.propagate(&mut self.cpfile.file, &mut fresh.cpfile)?;
            Ino::CPFILE
        } else {
            change.propagate(&mut self.sufile.file, &mut fresh.sufile)?;
            Ino::SUFILE
        };
        let (damage, owed) = (change.damage.take(), std::mem::take(&mut change.owed));
        self.met(ino, damage);
        self.end_replaced(ino, owed, true)
    }

    /// Everything that goes behind the files, in the format's order.
    fn final_items(&self, fresh: &Fresh) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        let virtuals = [
            (&self.ifile.file, &fresh.ifile, self.cno),
            (&self.cpfile.file, &fresh.cpfile, Cno(0)),
            (&self.sufile.file, &fresh.sufile, Cno(0)),
        ];
        for (file, fresh, fi_cno) in virtuals {
            for offset in file.data.keys() {
                let vblock = *fresh.get(offset).ok_or_else(|| {
                    Error::Invalid(format!("block {offset} of inode {} has no number", file.ino))
                })?;
                items.push(Item {
                    ino: file.ino,
                    fi_cno,
                    info: BlockInfo::Data { vblock, offset: *offset },
                    content: Content::MetaData(*offset),
                    moved: false,
                });
            }
            for (ptr, _) in sorted_nodes(&file.map.nodes) {
                items.push(Item {
                    ino: file.ino,
                    fi_cno,
                    info: BlockInfo::Node { vblock: VBlockNr(ptr) },
                    content: Content::MetaNode(ptr),
                    moved: false,
                });
            }
        }
        let dat = &self.dat.file;
        for offset in dat.data.keys() {
            items.push(Item {
                ino: Ino::DAT,
                fi_cno: Cno(0),
                info: BlockInfo::DatData { offset: *offset },
                content: Content::MetaData(*offset),
                moved: false,
            });
        }
        for (ptr, b) in sorted_nodes(&dat.map.nodes) {
            let node = Node::block(&b);
            items.push(Item {
                ino: Ino::DAT,
                fi_cno: Cno(0),
                info: BlockInfo::DatNode { key: node.key(0), level: node.level() },
                content: Content::MetaNode(ptr),
                moved: false,
            });
        }
        Ok(items)
    }

    /// Capacity of the log that begins segment `index` of the plan; unknown segments count as
    /// the shortest there is.
    fn fresh_fit(&self, segments: &[SegNr], index: usize) -> Fit {
        let g = &self.store.geometry;
        let shortest = u64::from(g.blocks_per_segment) - g.first_data_block.min(4);
        let capacity = segments.get(index).map_or(shortest, |s| g.segment_blocks(*s));
        Fit::new(g.bs(), capacity)
    }

    /// How many segments are entered when `items` and a super root follow what `first` holds.
    fn count_segments(&self, first: &OpenLog, items: &[Item], segments: &[SegNr]) -> usize {
        let mut fit = first.fit.clone();
        let mut entered = 0;
        for item in items {
            if !fit.take(item.ino, item.fi_cno, &item.info, 0) {
                fit = self.fresh_fit(segments, entered);
                entered += 1;
                fit.take(item.ino, item.fi_cno, &item.info, 0);
            }
        }
        if fit.has_room(1) { entered } else { entered + 1 }
    }

    /// Packs the items into logs; segments of the plan that are not entered are given back, all
    /// but the one that follows.
    fn lay_out(
        &mut self,
        first: OpenLog,
        items: Vec<Item>,
        segments: &mut Vec<SegNr>,
    ) -> Result<Vec<OpenLog>> {
        let g = self.store.geometry;
        let mut logs = Vec::new();
        let mut log = first;
        let mut entered = 0;
        let enter = |log: &OpenLog, entered: usize| -> Result<OpenLog> {
            let (Some(segment), Some(next)) = (segments.get(entered), segments.get(entered + 1)) else {
                return Err(Error::Invalid("the plan of segments is too short".into()));
            };
            self.check_enters(*segment)?;
            let mut c = log.cursor;
            c.segment = *segment;
            c.next = *next;
            c.offset = 0;
            c.seq = c.seq.wrapping_add(1);
            Ok(OpenLog::new(&g, c, u64::MAX))
        };
        for item in items {
            if !log.fit.take(item.ino, item.fi_cno, &item.info, 0) {
                let new = enter(&log, entered)?;
                entered += 1;
                logs.push(std::mem::replace(&mut log, new));
                if !log.fit.take(item.ino, item.fi_cno, &item.info, 0) {
                    return Err(Error::Invalid("a block does not fit into an empty log".into()));
                }
            }
            log.items.push(item);
        }
        if !log.fit.has_room(1) {
            let new = enter(&log, entered)?;
            entered += 1;
            logs.push(std::mem::replace(&mut log, new));
        }
        logs.push(log);
        for s in segments.split_off(entered + 1) {
            self.sufile.free(&self.store, &self.dat, s)?;
            if self.store.held.is_lent(s) {
                self.store.held.give_back(s);
            } else {
                self.was_not_written(s);
            }
        }
        Ok(logs)
    }

    /// Assigns places, completes the contents that depend on them, and makes the logs.
    fn finish_logs(&mut self, k: &mut Construction, mut logs: Vec<OpenLog>, fresh: &Fresh) -> Result<()> {
        let g = self.store.geometry;
        let cno = self.cno;
        let nlogs = logs.len();
        let total_of = |i: usize, log: &OpenLog| log.fit.total() + u64::from(i + 1 == nlogs);
        let mut dat_places = Vec::new();
        for log in &mut logs {
            let places: Vec<_> = (0..log.items.len()).map(|i| log.place(&g, i)).collect();
            for (item, at) in log.items.iter_mut().zip(places) {
                match item.info {
                    BlockInfo::Data { vblock, .. } | BlockInfo::Node { vblock } => {
                        self.dat.assign(&self.store, vblock, at, (!item.moved).then_some(cno))?;
                    }
                    BlockInfo::DatData { offset } => {
                        self.dat.assign_data(&self.store, offset, at)?;
                        dat_places.push((offset, at));
                    }
                    BlockInfo::DatNode { key, level } => {
                        if let Content::MetaNode(ptr) = item.content {
                            self.dat.assign_node(ptr, key, level, at)?;
                        }
                        item.content = Content::MetaNode(at.0);
                    }
                }
            }
        }
        for (i, log) in logs.iter().enumerate() {
            let total = total_of(i, log);
            k.blocks += total;
            self.used(log, total, k.create)?;
        }
        let (blocks, inodes, tree) = (k.blocks, k.inodes_count, self.tree_blocks);
        let (create, minor) = (k.create, !k.tree_changed);
        let ifile_inode = self.ifile.file.inode();
        self.cpfile.finish(&self.store, &self.dat, cno, |e| {
            e.flags = if minor { cp::MINOR.into() } else { 0.into() };
            e.create = create.into();
            e.nblk_inc = blocks.into();
            e.inodes_count = inodes.into();
            e.blocks_count = tree.into();
            e.ifile_inode = ifile_inode;
        })?;
        let mut root_block = block::zeroed(g.bs());
        let root = SuperRoot {
            nongc_ctime: if k.cleaning { self.nongc_ctime } else { k.create },
            dat: self.dat.file.inode(),
            cpfile: self.cpfile.file.inode(),
            sufile: self.sufile.file.inode(),
        };
        root.store(&g, block::writable(&mut root_block));
        k.composed_in = logs.iter().map(|log| log.cursor.segment).collect();
        for (i, log) in logs.iter().enumerate() {
            let mut payload = Vec::with_capacity(log.items.len() + 1);
            for item in &log.items {
                payload.push(self.resolve(item)?);
            }
            let mut flags = if k.logs == 0 { summary::LOGBGN } else { 0 };
            if i + 1 == nlogs {
                payload.push(root_block.clone());
                flags |= summary::LOGEND | summary::SR;
            }
            let total = total_of(i, log);
            k.ready.push_back(LogWrite::new(
                &g,
                log,
                Head { flags, create: k.create, cno, nblocks: total },
                payload,
            ));
            k.logs += 1;
            self.cursor = log.cursor;
            self.cursor.offset += total;
            k.last = Some(LastLog { pseg: log.cursor.at(&g).0, seq: log.cursor.seq, cno: cno.0 });
        }
        self.launch_metadata(fresh, &dat_places, &mut k.launched);
        k.composed = true;
        Ok(())
    }

    fn resolve(&self, item: &Item) -> Result<Block> {
        let file = match item.ino {
            Ino::DAT => &self.dat.file,
            Ino::CPFILE => &self.cpfile.file,
            Ino::SUFILE => &self.sufile.file,
            _ => &self.ifile.file,
        };
        let found = match &item.content {
            Content::Ready(b) => return Ok(b.clone()),
            Content::MetaData(offset) => file.data.get(offset),
            Content::MetaNode(ptr) => file.map.nodes.get(ptr),
        };
        found.cloned().ok_or_else(|| Error::Invalid(format!("a block of inode {} vanished", item.ino)))
    }

    /// Changed metadata is on its way: from now on it is found under its number or place.
    fn launch_metadata(&mut self, fresh: &Fresh, dat_places: &[(u64, BlockNr)], launched: &mut Vec<Key>) {
        let mut launch = |key: Key, b: Block| {
            launched.push(key);
            self.store.launch(key, b);
        };
        let files = [
            (&mut self.ifile.file, &fresh.ifile),
            (&mut self.cpfile.file, &fresh.cpfile),
            (&mut self.sufile.file, &fresh.sufile),
        ];
        for (file, fresh) in files {
            for (offset, b) in std::mem::take(&mut file.data) {
                if let Some(v) = fresh.get(&offset) {
                    launch(Key::Virtual(v.0), b);
                }
            }
            for (ptr, b) in file.map.nodes.drain() {
                launch(Key::Virtual(ptr), b);
            }
        }
        let dat: &mut MetaFile = &mut self.dat.file;
        for (offset, at) in dat_places {
            if let Some(b) = dat.data.remove(offset) {
                launch(Key::Physical(at.0), b);
            }
        }
        for (ptr, b) in dat.map.nodes.drain() {
            launch(Key::Physical(ptr), b);
        }
    }
}
