//! Where the structures of a sound volume lie, and which numbers of each kind it holds.
//!
//! Found from the summaries of all logs; which of them matter is seen from what a mount and a walk read.

use std::collections::{BTreeMap, HashMap, HashSet};

use silt_device::Device;
use silt_format::inode::RawInode;
use silt_format::palloc::{self, Layout};
use silt_format::summary::{self, BlockInfo, Header};
use silt_format::super_block::{self, SuperBlock};
use silt_format::{BlockNr, Geometry, SegNr, btree};

use crate::fields::{self, Class};

/// What a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    SuperBlock,
    LogHeader,
    Records,
    SuperRoot,
    DatDescriptors,
    DatBitmap,
    DatEntries,
    DatNode,
    Node,
    Checkpoints,
    Usage,
    InodeDescriptors,
    InodeBitmap,
    Inodes,
    Directory,
    Symlink,
    Data,
}

/// All kinds.
pub const KINDS: [Kind; 17] = [
    Kind::SuperBlock,
    Kind::LogHeader,
    Kind::Records,
    Kind::SuperRoot,
    Kind::DatDescriptors,
    Kind::DatBitmap,
    Kind::DatEntries,
    Kind::DatNode,
    Kind::Node,
    Kind::Checkpoints,
    Kind::Usage,
    Kind::InodeDescriptors,
    Kind::InodeBitmap,
    Kind::Inodes,
    Kind::Directory,
    Kind::Symlink,
    Kind::Data,
];

/// A block that can be changed.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    pub kind: Kind,
    pub block: u64,
    /// Whose it is.
    pub ino: u64,
    /// Its virtual number; 0 where it has none.
    pub vblock: u64,
}

/// A log as it lies on the base.
#[derive(Debug, Clone, Copy)]
pub struct Log {
    pub start: u64,
    pub blocks: u64,
    pub has_root: bool,
}

/// See the module.
pub struct Index {
    pub g: Geometry,
    /// Ascending.
    pub logs: Vec<Log>,
    /// Those that a mount and a walk read, or all of a kind where it reads none.
    pub hot: BTreeMap<Kind, Vec<Target>>,
    pub all: BTreeMap<Kind, Vec<Target>>,
    /// Numbers of each class that the volume holds, sorted.
    pub pools: HashMap<Class, Vec<u64>>,
    /// Virtual numbers of nodes by inode.
    pub nodes: HashMap<u64, Vec<u64>>,
}

/// Bytes of a block.
pub fn block(device: &dyn Device, g: &Geometry, nr: u64) -> Vec<u8> {
    let mut bytes = vec![0; g.bs()];
    device.read_at(g.byte_of(BlockNr(nr)), &mut bytes).expect("a block of the base");
    bytes
}

impl Index {
    /// Indexes a sound volume. `hot`: units of 1024 bytes that its readers read.
    pub fn new(device: &dyn Device, hot: &HashSet<u64>) -> Self {
        let mut bytes = [0; super_block::SIZE];
        device.read_at(super_block::PRIMARY_OFFSET, &mut bytes).expect("a base has a super block");
        let g = SuperBlock::parse(&bytes).and_then(|sb| sb.geometry(device.len())).expect("a sound base");
        let mut logs = Vec::new();
        let mut targets = Vec::new();
        for segment in 0..g.nsegments {
            let mut at = g.segment_start(SegNr(segment)).0;
            while at + 2 <= g.segment_end(SegNr(segment)).0 {
                let head = block(device, &g, at);
                let Ok(h) = Header::parse(&g, &head) else { break };
                let records: Vec<u8> =
                    (at..at + u64::from(h.summary_blocks(&g))).flat_map(|b| block(device, &g, b)).collect();
                let blocks = u64::from(h.nblocks.get());
                logs.push(Log { start: at, blocks, has_root: h.has(summary::SR) });
                describe(&g, at, &h, &records, &mut targets);
                at += blocks;
            }
        }
        let modes = modes(device, &g, &targets);
        for target in &mut targets {
            if target.kind == Kind::Data {
                match modes.get(&target.ino).map(|m| m & 0o170_000) {
                    Some(0o040_000) => target.kind = Kind::Directory,
                    Some(0o120_000) => target.kind = Kind::Symlink,
                    _ => {}
                }
            }
        }
        targets.push(Target { kind: Kind::SuperBlock, block: 0, ino: 0, vblock: 0 });
        let units = u64::from(g.block_size) / 1024;
        let (mut all, mut read): (BTreeMap<Kind, Vec<Target>>, BTreeMap<Kind, Vec<Target>>) =
            Default::default();
        for t in &targets {
            all.entry(t.kind).or_default().push(*t);
            if t.kind == Kind::SuperBlock || hot.contains(&(t.block * units)) {
                read.entry(t.kind).or_default().push(*t);
            }
        }
        for (kind, list) in &all {
            read.entry(*kind).or_insert_with(|| list.clone());
        }
        let mut nodes: HashMap<u64, Vec<u64>> = HashMap::new();
        for t in targets.iter().filter(|t| t.kind == Kind::Node) {
            nodes.entry(t.ino).or_default().push(t.vblock);
        }
        let pools = pools(device, &g, &read, &modes);
        Self { g, logs, hot: read, all, pools, nodes }
    }

    /// The log that holds a block.
    pub fn log_of(&self, block: u64) -> Option<&Log> {
        let after = self.logs.partition_point(|l| l.start <= block);
        self.logs.get(after.checked_sub(1)?).filter(|l| block < l.start + l.blocks)
    }
}

fn describe(g: &Geometry, at: u64, h: &Header, records: &[u8], out: &mut Vec<Target>) {
    let blocks = u64::from(h.nblocks.get());
    let first = at + u64::from(h.summary_blocks(g));
    let plain = |kind, block| Target { kind, block, ino: 0, vblock: 0 };
    out.push(plain(Kind::LogHeader, at));
    out.extend((at..first).map(|b| plain(Kind::Records, b)));
    if h.has(summary::SR) {
        out.push(plain(Kind::SuperRoot, at + blocks - 1));
    }
    let _ = summary::for_each_payload(g, h, records, |p| {
        let block = first + u64::from(p.index);
        let (kind, vblock) = match p.info {
            BlockInfo::DatNode { .. } => (Kind::DatNode, 0),
            BlockInfo::Node { vblock } => (Kind::Node, vblock.0),
            BlockInfo::DatData { offset } => {
                let kind = match Layout::dat(g).kind(offset) {
                    palloc::Kind::Descriptor { .. } => Kind::DatDescriptors,
                    palloc::Kind::Bitmap { .. } => Kind::DatBitmap,
                    palloc::Kind::Entries { .. } => Kind::DatEntries,
                };
                (kind, 0)
            }
            BlockInfo::Data { vblock, offset } => {
                let kind = match p.ino.0 {
                    4 => Kind::Checkpoints,
                    5 => Kind::Usage,
                    6 => match Layout::ifile(g).kind(offset) {
                        palloc::Kind::Descriptor { .. } => Kind::InodeDescriptors,
                        palloc::Kind::Bitmap { .. } => Kind::InodeBitmap,
                        palloc::Kind::Entries { .. } => Kind::Inodes,
                    },
                    2 => Kind::Directory,
                    _ => Kind::Data,
                };
                (kind, vblock.0)
            }
        };
        out.push(Target { kind, block, ino: p.ino.0, vblock });
    });
}

/// Modes of inodes, as any version of them says. Which number an entry has is told by its block's offset, which the
/// order of logs makes the newest.
fn modes(device: &dyn Device, g: &Geometry, targets: &[Target]) -> HashMap<u64, u16> {
    let mut out = HashMap::new();
    let layout = Layout::ifile(g);
    let mut offsets = HashMap::new();
    for segment in 0..g.nsegments {
        let mut at = g.segment_start(SegNr(segment)).0;
        while at + 2 <= g.segment_end(SegNr(segment)).0 {
            let Ok(h) = Header::parse(g, &block(device, g, at)) else { break };
            let first = at + u64::from(h.summary_blocks(g));
            let records: Vec<u8> = (at..first).flat_map(|b| block(device, g, b)).collect();
            let _ = summary::for_each_payload(g, &h, &records, |p| {
                if let (6, BlockInfo::Data { offset, .. }) = (p.ino.0, p.info) {
                    offsets.insert(first + u64::from(p.index), offset);
                }
            });
            at += u64::from(h.nblocks.get());
        }
    }
    for t in targets.iter().filter(|t| t.kind == Kind::Inodes) {
        let Some(palloc::Kind::Entries { first }) = offsets.get(&t.block).map(|o| layout.kind(*o)) else {
            continue;
        };
        for (i, entry) in block(device, g, t.block).chunks_exact(g.inode_size as usize).enumerate() {
            if let Ok(raw) = RawInode::read(entry)
                && raw.mode.get() != 0
            {
                out.insert(first + i as u64, raw.mode.get());
            }
        }
    }
    out
}

fn pools(
    device: &dyn Device,
    g: &Geometry,
    targets: &BTreeMap<Kind, Vec<Target>>,
    modes: &HashMap<u64, u16>,
) -> HashMap<Class, Vec<u64>> {
    let mut pools: HashMap<Class, HashSet<u64>> = HashMap::new();
    for t in targets.values().flatten().filter(|t| t.kind != Kind::SuperBlock) {
        let bytes = block(device, g, t.block);
        for f in fields::of(t.kind, g, &bytes) {
            pools.entry(f.class).or_default().insert(f.read(&bytes));
        }
        pools.entry(Class::Block).or_default().insert(t.block);
        if t.vblock != 0 {
            pools.entry(Class::Vblock).or_default().insert(t.vblock);
        }
        if t.kind == Kind::Node && bytes.get(1).is_some_and(|l| *l < btree::LEVEL_MAX) {
            pools.entry(Class::Level).or_default().insert(u64::from(bytes[1]));
        }
    }
    pools.entry(Class::Ino).or_default().extend(modes.keys().copied().chain(0..12));
    pools.entry(Class::Segment).or_default().extend(0..g.nsegments);
    pools
        .into_iter()
        .map(|(class, set)| {
            let mut list: Vec<u64> = set.into_iter().collect();
            list.sort_unstable();
            (class, list)
        })
        .collect()
}
