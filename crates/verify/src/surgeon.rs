//! Finds structures of a volume and changes them, checksums included: how tests break volumes on purpose. Panics where
//! the volume has no such structure.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test support

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use silt_device::{Device, MemoryDevice};
use silt_format::checkpoint::{self, CpEntry};
use silt_format::dat::{DatEntry, LIVE};
use silt_format::inode::RawInode;
use silt_format::palloc::Layout;
use silt_format::segment_usage::{self, SuEntry};
use silt_format::summary::{self, BlockInfo, Builder, Header};
use silt_format::super_block::{self, SuperBlock};
use silt_format::super_root::SuperRoot;
use silt_format::{BlockNr, Cno, Geometry, Ino, SegNr, crc32};
use zerocopy::{FromBytes, IntoBytes};

pub use crate::dat::Dat;
use crate::reader::Reader;
pub use crate::search::Log;
use crate::search::{self, Found};
use crate::{files, golden};

/// Which checksums to make right after a change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sums {
    None,
    /// Of the whole log.
    Log,
    /// Of the summary too.
    Summary,
    /// Of the super root too.
    All,
}

/// A volume under the knife.
pub struct Surgeon {
    pub device: MemoryDevice,
}

static UNPACKED: Mutex<BTreeMap<&'static str, MemoryDevice>> = Mutex::new(BTreeMap::new());

impl Surgeon {
    /// A fork of a golden volume.
    pub fn golden(name: &'static str) -> Self {
        let mut unpacked = UNPACKED.lock().unwrap_or_else(PoisonError::into_inner);
        let device = unpacked.entry(name).or_insert_with(|| golden::open(name)).fork();
        Surgeon { device }
    }

    /// Marks every clean segment as bad: none is left to write to. How many there were.
    pub fn fill(&mut self) -> u64 {
        let (blocks, g) = (self.file(5), self.g());
        let mut clean = 0;
        for nr in (0..g.nsegments).map(SegNr) {
            let (offset, byte) = segment_usage::place(&g, nr);
            self.patch(blocks[&offset], |b| {
                let mut e = SuEntry::read(b, byte).unwrap();
                if !e.is_dirty() {
                    e.flags = (e.flags.get() | segment_usage::ERROR).into();
                    e.store(b, byte);
                    clean += 1;
                }
            });
        }
        self.patch(blocks[&0], |b| {
            let mut h = segment_usage::header(b).unwrap();
            h.ncleansegs = 0.into();
            segment_usage::store_header(b, &h);
        });
        clean
    }

    fn open(&self) -> (Reader<'_>, Found) {
        let (r, start) = search::open(&self.device, 1 << 20).unwrap();
        (r, start.found)
    }

    /// Numbers of the volume.
    pub fn g(&self) -> Geometry {
        self.geometry()
    }

    /// The log with the latest super root.
    pub fn latest(&self) -> Log {
        self.open().1.latest
    }

    /// Number of the latest checkpoint.
    pub fn cno(&self) -> u64 {
        self.open().1.cno
    }

    /// The latest super root.
    pub fn root(&self) -> SuperRoot {
        let (r, found) = self.open();
        SuperRoot::parse(&r.g, &r.block(BlockNr(found.latest.end() - 1)).unwrap()).unwrap()
    }

    /// Where the DAT's blocks lie.
    pub fn dat(&self) -> Dat {
        Dat::load(&self.open().0, &self.root().dat, |_, _, _| {})
    }

    /// Bytes of a block.
    pub fn read(&self, block: u64) -> Vec<u8> {
        let g = self.g();
        let mut bytes = vec![0; g.bs()];
        self.device.read_at(g.byte_of(BlockNr(block)), &mut bytes).unwrap();
        bytes
    }

    fn write(&self, block: u64, bytes: &[u8]) {
        let g = self.g();
        self.device.write_at(g.byte_of(BlockNr(block)), &[bytes]).unwrap();
    }

    /// All logs of a segment, as their headers tell.
    pub fn logs(&self, segment: u64) -> Vec<Log> {
        self.logs_of(&self.g(), segment)
    }

    fn logs_of(&self, g: &Geometry, segment: u64) -> Vec<Log> {
        let mut at = g.segment_start(silt_format::SegNr(segment)).0;
        let end = g.segment_end(silt_format::SegNr(segment)).0;
        let mut out = Vec::new();
        while at + 1 < end {
            let Ok(header) = Header::parse(g, &self.read(at)) else { break };
            out.push(Log { pos: BlockNr(at), header });
            at += u64::from(header.nblocks.get());
        }
        out
    }

    /// The log that holds a block.
    pub fn log_of(&self, block: u64) -> Log {
        let segment = self.g().segment_of(BlockNr(block)).0;
        *self.logs(segment).iter().find(|l| l.pos.0 <= block && block < l.end()).unwrap()
    }

    /// Changes a block and makes the checksums of its log right, as far as asked.
    pub fn patch_with(&mut self, block: u64, sums: Sums, change: impl FnOnce(&mut [u8])) {
        let g = self.g();
        let log = self.log_of(block);
        let mut bytes = self.read(block);
        change(&mut bytes);
        self.write(block, &bytes);
        if sums == Sums::None {
            return;
        }
        // The header may have been what was changed, but not where the log lies.
        let n = log.nblocks() as usize * g.bs();
        let mut all = vec![0; n];
        self.device.read_at(g.byte_of(log.pos), &mut all).unwrap();
        if sums == Sums::All && log.header.has(summary::SR) {
            let sr = &mut all[n - g.bs()..];
            let len = usize::from(u16::from_le_bytes([sr[4], sr[5]])).clamp(4, g.bs());
            let sum = crc32(g.crc_seed, &sr[4..len]);
            sr[..4].copy_from_slice(&sum.to_le_bytes());
        }
        let header = Header::read_from_prefix(&all).unwrap().0;
        if matches!(sums, Sums::All | Sums::Summary) {
            let len = (header.sumbytes.get() as usize).clamp(8, n);
            summary::store_summary_sum(g.crc_seed, &mut all, len);
        }
        let covered = (header.nblocks.get() as usize * g.bs()).clamp(4, n);
        let sum = crc32(g.crc_seed, &all[4..covered]);
        all[..4].copy_from_slice(&sum.to_le_bytes());
        self.write(log.pos.0, &all);
    }

    /// Replaces a block, and makes checksums right where its log can still be told.
    pub fn patch_if_possible(&mut self, block: u64, sums: Sums, bytes: &[u8]) {
        let g = self.geometry();
        let segment = g.segment_of(BlockNr(block)).0;
        let known = self.logs_of(&g, segment).iter().any(|l| l.pos.0 <= block && block < l.end());
        if known && sums != Sums::None && search::open(&self.device, 1 << 20).is_ok() {
            self.patch_with(block, sums, |b| b.copy_from_slice(bytes));
        } else {
            self.device.write_at(g.byte_of(BlockNr(block)), &[bytes]).unwrap();
        }
    }

    /// Changes both super blocks as bytes, checksums made right.
    pub fn patch_super_bytes(&mut self, change: impl Fn(&mut [u8])) {
        let places = [super_block::PRIMARY_OFFSET, super_block::secondary_offset(self.device.len())];
        for at in places {
            let mut bytes = [0; super_block::SIZE];
            self.device.read_at(at, &mut bytes).unwrap();
            change(&mut bytes);
            let mut sb = SuperBlock::read_from_bytes(&bytes).unwrap();
            self.device.write_at(at, &[&sb.to_disk()]).unwrap();
        }
    }

    /// Numbers of the volume, from its primary super block alone.
    fn geometry(&self) -> Geometry {
        let mut bytes = [0; super_block::SIZE];
        self.device.read_at(super_block::PRIMARY_OFFSET, &mut bytes).unwrap();
        SuperBlock::read_from_bytes(&bytes).unwrap().geometry(self.device.len()).unwrap()
    }

    /// Changes a block and makes all checksums of its log right.
    pub fn patch(&mut self, block: u64, change: impl FnOnce(&mut [u8])) {
        self.patch_with(block, Sums::All, change);
    }

    /// Changes the header of a log.
    pub fn patch_header(&mut self, log: Log, change: impl FnOnce(&mut Header)) {
        self.patch(log.pos.0, |b| {
            let (header, _) = Header::mut_from_prefix(b).unwrap();
            change(header);
        });
    }

    /// Changes the latest super root.
    pub fn patch_root(&mut self, change: impl FnOnce(&mut SuperRoot)) {
        let g = self.g();
        let mut root = self.root();
        change(&mut root);
        let at = self.latest().end() - 1;
        self.patch(at, |b| root.store(&g, b));
    }

    /// Changes the copies of the super block: (primary, secondary).
    pub fn patch_super(&mut self, which: (bool, bool), change: impl Fn(&mut SuperBlock)) {
        let places = [super_block::PRIMARY_OFFSET, super_block::secondary_offset(self.device.len())];
        for (at, wanted) in places.into_iter().zip([which.0, which.1]) {
            if wanted {
                let mut bytes = [0; super_block::SIZE];
                self.device.read_at(at, &mut bytes).unwrap();
                let mut sb = SuperBlock::parse(&bytes).unwrap();
                change(&mut sb);
                self.device.write_at(at, &[&sb.to_disk()]).unwrap();
            }
        }
    }

    /// Disk block by offset of a metadata file (4 to 6) or a file of the latest tree.
    pub fn file(&self, ino: u64) -> BTreeMap<u64, u64> {
        let (r, _) = self.open();
        files::plain(&r, &self.dat(), &self.inode(ino)).0
    }

    /// Disk block by offset of a file of a checkpoint's tree, or of its inode file (6).
    pub fn past_file(&self, cno: u64, ino: u64) -> BTreeMap<u64, u64> {
        let inode = self.past_inode(cno, ino);
        let (r, _) = self.open();
        files::plain(&r, &self.dat(), &inode).0
    }

    /// An inode of a checkpoint's tree, or of its inode file (6).
    pub fn past_inode(&self, cno: u64, ino: u64) -> RawInode {
        if ino == 6 {
            return self.checkpoint(cno).ifile_inode;
        }
        let g = self.g();
        let at = Layout::ifile(&g).entry(ino);
        let block = self.past_file(cno, 6)[&at.block];
        RawInode::read(&self.read(block)[at.byte..]).unwrap()
    }

    /// An inode of the super root, of the latest checkpoint, or of its tree.
    pub fn inode(&self, ino: u64) -> RawInode {
        match ino {
            3 => self.root().dat,
            4 => self.root().cpfile,
            5 => self.root().sufile,
            6 => self.checkpoint(self.cno()).ifile_inode,
            _ => {
                let (block, byte) = self.inode_place(ino);
                RawInode::read(&self.read(block)[byte..]).unwrap()
            }
        }
    }

    /// Disk block and byte of an inode of the latest tree.
    pub fn inode_place(&self, ino: u64) -> (u64, usize) {
        let g = self.g();
        let at = Layout::ifile(&g).entry(ino);
        (self.file(6)[&at.block], at.byte)
    }

    /// Changes an inode of the latest tree.
    pub fn patch_inode(&mut self, ino: u64, change: impl FnOnce(&mut RawInode)) {
        let (block, byte) = self.inode_place(ino);
        self.patch(block, |b| {
            let mut raw = RawInode::read(&b[byte..]).unwrap();
            change(&mut raw);
            raw.store(&mut b[byte..]);
        });
    }

    /// Disk block and byte of a checkpoint's entry.
    pub fn checkpoint_place(&self, cno: u64) -> (u64, usize) {
        let (block, byte) = checkpoint::place(&self.g(), Cno(cno)).unwrap();
        (self.file(4)[&block], byte)
    }

    /// A checkpoint's entry.
    pub fn checkpoint(&self, cno: u64) -> CpEntry {
        let (block, byte) = self.checkpoint_place(cno);
        checkpoint::entry(&self.read(block), byte).unwrap()
    }

    /// Changes a checkpoint's entry.
    pub fn patch_checkpoint(&mut self, cno: u64, change: impl FnOnce(&mut CpEntry)) {
        let (block, byte) = self.checkpoint_place(cno);
        self.patch(block, |b| {
            let mut entry = checkpoint::entry(b, byte).unwrap();
            change(&mut entry);
            checkpoint::store_entry(b, byte, &entry);
        });
    }

    /// A DAT entry.
    pub fn dat_entry(&self, v: u64) -> DatEntry {
        let (r, _) = self.open();
        self.dat().entry(&r, v).unwrap().unwrap()
    }

    /// Changes a DAT entry.
    pub fn patch_dat(&mut self, v: u64, change: impl FnOnce(&mut DatEntry)) {
        let dat = self.dat();
        let at = dat.layout.entry(v);
        self.patch(dat.blocks[&at.block], |b| {
            let mut entry = DatEntry::read(b, at.byte).unwrap();
            change(&mut entry);
            assert!(entry.store(b, at.byte));
        });
    }

    /// Sets or clears the bit of an entry of the DAT (3) or the ifile (6), its count kept right.
    pub fn set_bit(&mut self, file: u64, nr: u64, value: bool) {
        let g = self.g();
        let (layout, blocks) = match file {
            3 => (self.dat().layout, self.dat().blocks),
            _ => (Layout::ifile(&g), self.file(file)),
        };
        let group = layout.group(nr);
        let bit = layout.bit(nr);
        self.patch(blocks[&layout.bitmap_block(group)], |b| {
            let mask = 1 << (bit % 8);
            assert_ne!(b[bit / 8] & mask != 0, value, "bit {nr} is so already");
            b[bit / 8] ^= mask;
        });
        let (desc, byte) = layout.desc(group);
        self.patch(blocks[&desc], |b| {
            let at: &mut [u8; 4] = b[byte..].first_chunk_mut().unwrap();
            let frees = u32::from_le_bytes(*at);
            *at = if value { frees - 1 } else { frees + 1 }.to_le_bytes();
        });
    }

    /// Allocated DAT entries that satisfy a condition on (number, entry, inode of the log record).
    pub fn find_dat(&self, mut wanted: impl FnMut(u64, &DatEntry) -> bool) -> u64 {
        let (r, _) = self.open();
        let dat = self.dat();
        (1..100_000)
            .filter(|v| dat.is_allocated(&r, *v).unwrap_or(false))
            .find(|v| matches!(dat.entry(&r, *v), Ok(Some(e)) if wanted(*v, &e)))
            .unwrap()
    }

    /// The disk blocks that past checkpoints alone have, of files and of the table of inodes.
    pub fn past_blocks(&self) -> Vec<u64> {
        let (r, _) = self.open();
        let dat = self.dat();
        let entries = (1..100_000).filter(|v| dat.is_allocated(&r, *v).unwrap_or(false));
        let entries = entries.filter_map(|v| dat.entry(&r, v).ok().flatten());
        let past = entries.filter(|e| e.end.get() != LIVE && e.start != e.end && e.blocknr.get() != 0);
        past.map(|e| e.blocknr.get()).collect()
    }

    /// A free number whose entry block is there.
    pub fn free_vblock(&self) -> u64 {
        let (r, _) = self.open();
        let dat = self.dat();
        (1..100_000)
            .find(|v| !dat.is_allocated(&r, *v).unwrap() && dat.entry(&r, *v).unwrap().is_some())
            .unwrap()
    }

    /// Inode of the record that describes a payload block.
    pub fn owner(&self, block: u64) -> Option<u64> {
        let log = self.log_of(block);
        let (r, _) = self.open();
        let bytes = search::summary_of(&r, &log).unwrap();
        let first = log.pos.0 + u64::from(log.header.summary_blocks(&r.g));
        let mut owner = None;
        summary::for_each_payload(&r.g, &log.header, &bytes, |p| {
            if first + u64::from(p.index) == block {
                owner = Some(p.ino.0);
            }
        })
        .unwrap();
        owner
    }

    /// Number of a file of the latest tree.
    pub fn ino(&self, path: &str) -> u64 {
        crate::Tree::open(&self.device, crate::Moment::Latest).unwrap().lookup(path.as_bytes()).unwrap()
    }

    /// Disk block of virtual block `v`.
    pub fn place_of(&self, v: u64) -> u64 {
        self.dat_entry(v).blocknr.get()
    }

    /// Appends a log of data blocks behind the latest super root, or behind the logs that this
    /// put there before (`at`); returns the block behind it.
    pub fn append_log(&mut self, at: u64, flags: u16, records: &[(u64, u64, Vec<u8>)]) -> u64 {
        let g = self.g();
        let (latest, cno) = (self.latest(), self.cno());
        let mut b = Builder::new(g.bs());
        for (i, (ino, offset, _)) in records.iter().enumerate() {
            b.begin_file(Ino(*ino), Cno(cno + 1));
            let vblock = silt_format::VBlockNr(50_000 + i as u64);
            b.add(&BlockInfo::Data { vblock, offset: *offset });
        }
        let mut h = latest.header;
        h.flags = flags.into();
        h.cno = (cno + 1).into();
        h.nblocks = (b.blocks() + records.len() as u32).into();
        let mut bytes = b.finish(h);
        let sumbytes = Header::read_from_prefix(&bytes).unwrap().0.sumbytes.get() as usize;
        summary::store_summary_sum(g.crc_seed, &mut bytes, sumbytes);
        for (_, _, data) in records {
            bytes.extend_from_slice(data);
            bytes.resize(bytes.len().next_multiple_of(g.bs()), 0);
        }
        let sum = crc32(g.crc_seed, &bytes[4..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        self.write(at, &bytes);
        at + (bytes.len() / g.bs()) as u64
    }
}

/// Sets little-endian u64 `i` of the 56 bytes of a map.
pub fn set_word(bmap: &mut [u8; 56], i: usize, value: u64) {
    bmap[8 * i..8 * i + 8].copy_from_slice(value.as_bytes());
}

/// Little-endian u64 `i` of the 56 bytes of a map.
pub fn word(bmap: &[u8; 56], i: usize) -> u64 {
    u64::from_le_bytes(*bmap[8 * i..].first_chunk().unwrap())
}
