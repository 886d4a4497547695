//! The contents of a fresh volume (spec section 16).

use silt_device::Device;
use silt_format::checkpoint::{self as cp, CpEntry, CpHeader};
use silt_format::dat::{DatEntry, LIVE};
use silt_format::inode::RawInode;
use silt_format::palloc::Layout;
use silt_format::segment_usage::{self as su, SuEntry, SuHeader};
use silt_format::summary::{self, BlockInfo};
use silt_format::super_block::{self as sb, SuperBlock};
use silt_format::super_root::SuperRoot;
use silt_format::{Cno, Geometry, Ino, SegNr, VBlockNr, dir, direct};

use crate::block::{self, Block};
use crate::log::{Content, Cursor, Head, Item, LogWrite, OpenLog};
use crate::{Error, Result};

/// What mkfs.nilfs2's options say.
#[derive(Debug, Clone)]
pub struct Parameters {
    /// Bytes; a power of two from 1024 to 65536.
    pub block_size: u32,
    /// A power of two of at least 16.
    pub blocks_per_segment: u32,
    /// 1 to 99.
    pub reserved_percent: u32,
    /// At most 80 bytes count.
    pub label: Vec<u8>,
    pub uuid: [u8; 16],
    pub crc_seed: u32,
    /// Seconds.
    pub now: u64,
    /// Feature bits (`block_count`).
    pub block_count: bool,
    /// Owner of the root directory.
    pub owner: (u32, u32),
}

impl Default for Parameters {
    /// What mkfs.nilfs2 does without options, with no identity and no time yet.
    fn default() -> Self {
        Parameters {
            block_size: 4096,
            blocks_per_segment: 2048,
            reserved_percent: 5,
            label: Vec::new(),
            uuid: [0; 16],
            crc_seed: 0,
            now: 0,
            block_count: false,
            owner: (0, 0),
        }
    }
}

/// A plan for a fresh volume, checked.
#[derive(Debug, Clone)]
pub struct Plan {
    pub super_block: SuperBlock,
    pub geometry: Geometry,
    pub device_size: u64,
    parameters: Parameters,
}

impl Plan {
    /// Checks the parameters against a device of `device_size` bytes.
    pub fn new(parameters: Parameters, device_size: u64) -> Result<Plan> {
        let p = &parameters;
        let bad = |what: String| Err(Error::Invalid(what));
        if !p.block_size.is_power_of_two() || !(1024..=65536).contains(&p.block_size) {
            return bad(format!("block size {} is not a power of two from 1024 to 65536", p.block_size));
        }
        if !p.blocks_per_segment.is_power_of_two() || !(16..=1 << 24).contains(&p.blocks_per_segment) {
            return bad(format!(
                "{} blocks a segment is not a power of two of at least 16",
                p.blocks_per_segment
            ));
        }
        if !(1..=99).contains(&p.reserved_percent) {
            return bad(format!("{} percent reserved is not from 1 to 99", p.reserved_percent));
        }
        if device_size < sb::MIN_DEVICE_SIZE {
            return bad(format!("{device_size} bytes are too few for a volume"));
        }
        let bs = u64::from(p.block_size);
        let nsegments = sb::secondary_offset(device_size) / bs / u64::from(p.blocks_per_segment);
        let minimum = silt_format::Geometry::minimum_segments(nsegments, p.reserved_percent);
        if nsegments < minimum {
            let need = (minimum * u64::from(p.blocks_per_segment) * bs + 8191) >> 12 << 12;
            return bad(format!(
                "too small: {device_size} bytes hold {nsegments} segments of {} bytes, {minimum} are needed \
                 (at least {need} bytes, or smaller segments with -B)",
                u64::from(p.blocks_per_segment) * bs
            ));
        }
        let mut s = SuperBlock::zeroed();
        s.rev_level = 2.into();
        s.magic = sb::MAGIC.into();
        s.bytes = sb::CHECKED_BYTES.into();
        s.crc_seed = p.crc_seed.into();
        s.log_block_size = (p.block_size.trailing_zeros() - 10).into();
        s.nsegments = nsegments.into();
        s.dev_size = device_size.into();
        s.first_data_block = 4096u64.div_ceil(bs).into();
        s.blocks_per_segment = p.blocks_per_segment.into();
        s.r_segments_percentage = p.reserved_percent.into();
        s.last_cno = 1.into();
        s.last_pseg = s.first_data_block;
        s.last_seq = 0.into();
        s.free_blocks_count = ((nsegments - 1) * u64::from(p.blocks_per_segment)).into();
        s.ctime = p.now.into();
        s.wtime = p.now.into();
        s.max_mnt_count = 50.into();
        s.state = sb::STATE_VALID.into();
        s.errors = 1.into();
        s.lastcheck = p.now.into();
        s.checkinterval = 15_552_000.into();
        s.first_ino = 11.into();
        s.inode_size = 128.into();
        s.dat_entry_size = 32.into();
        s.checkpoint_size = 192.into();
        s.segment_usage_size = 16.into();
        s.uuid = p.uuid;
        s.set_label(&p.label);
        if p.block_count {
            s.feature_compat_ro = sb::FEATURE_RO_BLOCK_COUNT.into();
        }
        let geometry = s.geometry(device_size).map_err(Error::Unusable)?;
        Ok(Plan { super_block: s, geometry, device_size, parameters })
    }

    fn inode(&self, mode: u16, links: u16, size: u64, blocks: u64) -> RawInode {
        let mut i = RawInode::zeroed();
        i.mode = mode.into();
        i.links_count = links.into();
        i.size = size.into();
        i.blocks = blocks.into();
        i.ctime = self.parameters.now.into();
        i.mtime = self.parameters.now.into();
        i
    }

    /// The first log and its super root.
    fn log(&self) -> Result<LogWrite> {
        let g = &self.geometry;
        let bs = g.bs();
        let now = self.parameters.now;
        let ilayout = Layout::ifile(g);
        let dlayout = Layout::dat(g);
        // The direct map reaches offset 5; inodes 0 to 10 need ceil(11 / per block) blocks.
        let ifile_blocks = 2 + 11u64.div_ceil(ilayout.entries_per_block());
        let vblocks = 1 + ifile_blocks + 2;
        let dat_blocks = 2 + (vblocks + 1).div_ceil(dlayout.entries_per_block());

        let cursor = Cursor { segment: SegNr(0), next: SegNr(1), offset: 0, seq: 0 };
        let mut log = OpenLog::new(g, cursor, u64::MAX);
        let mut next_vblock = 1;
        let mut take = |log: &mut OpenLog, ino: Ino, blocks: u64| -> Result<[u8; 56]> {
            let mut map = [0; 56];
            for offset in 0..blocks {
                let info = if ino == Ino::DAT {
                    BlockInfo::DatData { offset }
                } else {
                    direct::set(&mut map, offset, next_vblock);
                    next_vblock += 1;
                    BlockInfo::Data { vblock: VBlockNr(next_vblock - 1), offset }
                };
                if offset >= direct::KEYS || !log.fit.take(ino, Cno(1), &info, 1) {
                    return Err(Error::Invalid("the segments are too small for these blocks".into()));
                }
                let content = Content::MetaData(offset);
                log.items.push(Item { ino, fi_cno: Cno(1), info, content, moved: false });
            }
            Ok(map)
        };
        let root_map = take(&mut log, Ino::ROOT, 1)?;
        let ifile_map = take(&mut log, Ino::IFILE, ifile_blocks)?;
        let cpfile_map = take(&mut log, Ino::CPFILE, 1)?;
        let sufile_map = take(&mut log, Ino::SUFILE, 1)?;
        let mut dat_map = take(&mut log, Ino::DAT, dat_blocks)?;
        let total = log.fit.total() + 1;
        for (i, item) in log.items.iter().enumerate() {
            if let BlockInfo::DatData { offset } = item.info {
                direct::set(&mut dat_map, offset, log.place(g, i).0);
            }
        }
        let metadata =
            |map: [u8; 56], blocks: u64| RawInode { bmap: map, ..self.inode(0o100_000, 1, 0, blocks) };
        let ifile_inode = metadata(ifile_map, ifile_blocks);

        let mut blocks: Vec<Block> = (0..log.items.len()).map(|_| block::zeroed(bs)).collect();
        let entry_groups = |b: &mut [u8], per_group: u64, used: u64| {
            for slot in b.chunks_exact_mut(4) {
                slot.copy_from_slice(&u32::try_from(per_group).unwrap_or(0).to_le_bytes());
            }
            b[..4].copy_from_slice(&u32::try_from(per_group - used).unwrap_or(0).to_le_bytes());
        };
        let bits = |b: &mut [u8], n: u64| {
            for bit in 0..n as usize {
                b[bit / 8] |= 1 << (bit % 8);
            }
        };
        for (i, item) in log.items.iter().enumerate() {
            let b = block::writable(&mut blocks[i]);
            let offset = match item.content {
                Content::MetaData(o) => o,
                _ => 0,
            };
            match item.ino {
                Ino::IFILE if offset == 0 => entry_groups(b, ilayout.entries_per_group(), 11),
                Ino::IFILE if offset == 1 => bits(b, 11),
                Ino::IFILE => {
                    for nr in [1u64, 2, 7, 8, 9, 10] {
                        let place = ilayout.entry(nr);
                        if place.block == offset {
                            let inode = if nr == 2 {
                                let mut root = self.inode(0o040_755, 2, u64::from(g.block_size), 1);
                                root.uid = self.parameters.owner.0.into();
                                root.gid = self.parameters.owner.1.into();
                                RawInode { bmap: root_map, ..root }
                            } else {
                                self.inode(0o100_000, 1, 0, 0)
                            };
                            inode.store(&mut b[place.byte..place.byte + g.inode_size as usize]);
                        }
                    }
                }
                Ino::CPFILE => {
                    cp::init_block(g, b, 0);
                    let header = CpHeader {
                        ncheckpoints: 1.into(),
                        nsnapshots: 0.into(),
                        list_next: 0.into(),
                        list_prev: 0.into(),
                    };
                    cp::store_header(b, &header);
                    for slot in cp::first_offset(g)..cp::per_block(g) {
                        if let Some(cno) = cp::cno_at(g, 0, slot) {
                            let mut e = CpEntry::zeroed();
                            e.cno = cno.0.into();
                            e.flags = cp::INVALID.into();
                            if cno.0 == 1 {
                                e.flags = 0.into();
                                e.create = now.into();
                                e.nblk_inc = total.into();
                                e.inodes_count = 1.into();
                                e.blocks_count = (1 + ifile_blocks).into();
                                e.ifile_inode = ifile_inode;
                            }
                            cp::store_entry(b, (slot * u64::from(g.checkpoint_size)) as usize, &e);
                        }
                    }
                }
                Ino::SUFILE => {
                    let header = SuHeader {
                        ncleansegs: (g.nsegments - 2).into(),
                        ndirtysegs: 2.into(),
                        last_alloc: (g.nsegments - 1).into(),
                    };
                    su::store_header(b, &header);
                    for (segment, nblocks, lastmod) in [(0, total, now), (1, 0, 0)] {
                        let (_, byte) = su::place(g, SegNr(segment));
                        let e = SuEntry {
                            lastmod: lastmod.into(),
                            nblocks: u32::try_from(nblocks).unwrap_or(0).into(),
                            flags: (su::ACTIVE | su::DIRTY).into(),
                        };
                        e.store(b, byte);
                    }
                }
                Ino::DAT if offset == 0 => entry_groups(b, dlayout.entries_per_group(), vblocks + 1),
                Ino::DAT if offset == 1 => bits(b, vblocks + 1),
                Ino::DAT => {}
                _ => dir::init_first(b, Ino::ROOT, Ino::ROOT),
            }
        }
        for (i, item) in log.items.iter().enumerate() {
            if let BlockInfo::Data { vblock, .. } = item.info {
                let place = dlayout.entry(vblock.0);
                let e = DatEntry {
                    blocknr: log.place(g, i).0.into(),
                    start: 1.into(),
                    end: LIVE.into(),
                    rsv: 0.into(),
                };
                let holder = log
                    .items
                    .iter()
                    .position(|it| matches!(it.info, BlockInfo::DatData { offset } if offset == place.block));
                if let Some(j) = holder {
                    e.store(block::writable(&mut blocks[j]), place.byte);
                }
            }
        }
        let mut root_block = block::zeroed(bs);
        SuperRoot {
            nongc_ctime: now,
            dat: metadata(dat_map, dat_blocks),
            cpfile: metadata(cpfile_map, 1),
            sufile: metadata(sufile_map, 1),
        }
        .store(g, block::writable(&mut root_block));
        blocks.push(root_block);
        let flags = summary::LOGBGN | summary::LOGEND | summary::SR;
        let mut write =
            LogWrite::new(g, &log, Head { flags, create: now, cno: Cno(1), nblocks: total }, blocks);
        write.seal();
        Ok(write)
    }

    /// Writes the volume: discards what was there if asked, clears what could be mistaken for
    /// another file system, then the log, then both super blocks. Durable when it returns.
    pub fn write(&self, device: &dyn Device, discard: bool) -> Result<()> {
        let log = self.log()?;
        let mut boot = [0u8; 1024];
        device.read_at(0, &mut boot)?;
        let start = if boot[510..512] == [0x55, 0xAA] { 1024 } else { 0 };
        // An old volume's super blocks go first: a cut must not leave one that points at what is gone.
        for at in [sb::PRIMARY_OFFSET, sb::secondary_offset(self.device_size)] {
            device.write_at(at, &[&[0; sb::SIZE]])?;
        }
        device.flush()?;
        if discard {
            // A device that cannot discard is no error: zeroes below do what matters.
            let _ = device.discard(start, self.device_size - start);
        }
        let mib = 1u64 << 20;
        let zero = vec![0u8; 1 << 20];
        let tail = self.device_size.saturating_sub(mib).max(start);
        zero_range(device, tail..self.device_size, &zero)?;
        zero_range(device, start..mib.min(self.device_size), &zero)?;
        log.write(device)?;
        device.flush()?;
        let bytes = self.super_block.clone().to_disk();
        device.write_at(sb::PRIMARY_OFFSET, &[&bytes])?;
        device.write_at(sb::secondary_offset(self.device_size), &[&bytes])?;
        device.flush()?;
        Ok(())
    }
}

fn zero_range(device: &dyn Device, range: std::ops::Range<u64>, zero: &[u8]) -> Result<()> {
    let mut at = range.start;
    while at < range.end {
        let n = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(zero.len());
        device.write_at(at, &[&zero[..n]])?;
        at += n as u64;
    }
    Ok(())
}
