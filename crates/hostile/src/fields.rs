//! The fields of each structure: where they lie in a block, and what kind of number they hold.

use silt_format::summary::{self, Header};
use silt_format::{Geometry, btree, checkpoint, dir};

use crate::index::Kind;

/// What a number means; others of the same class make the most telling replacements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// A virtual block number.
    Vblock,
    /// A disk block number.
    Block,
    Segment,
    Cno,
    Ino,
    /// An offset in blocks within a file.
    Key,
    Count,
    /// Bytes of a file.
    Size,
    Flags,
    Mode,
    Level,
    Seq,
    /// Bytes of a structure.
    Length,
    /// Nothing depends on it, or it is text.
    Plain,
}

/// A number in a block.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    pub name: &'static str,
    /// Byte in the block.
    pub at: usize,
    /// Bytes: 1, 2, 4 or 8.
    pub width: usize,
    pub class: Class,
}

impl Field {
    /// The number in the block.
    pub fn read(&self, block: &[u8]) -> u64 {
        let mut word = [0; 8];
        if let Some(bytes) = block.get(self.at..self.at + self.width) {
            word[..self.width].copy_from_slice(bytes);
        }
        u64::from_le_bytes(word)
    }
}

/// (name, byte in the structure, bytes, class).
type Shape = &'static [(&'static str, usize, usize, Class)];

use Class::{Block, Cno, Count, Flags, Ino, Key, Length, Level, Mode, Plain, Segment, Seq, Size, Vblock};

const SUPER_BLOCK: Shape = &[
    ("s_rev_level", 0, 4, Plain),
    ("s_magic", 6, 2, Plain),
    ("s_bytes", 8, 2, Length),
    ("s_flags", 10, 2, Flags),
    ("s_crc_seed", 12, 4, Plain),
    ("s_log_block_size", 20, 4, Level),
    ("s_nsegments", 24, 8, Segment),
    ("s_dev_size", 32, 8, Size),
    ("s_first_data_block", 40, 8, Block),
    ("s_blocks_per_segment", 48, 4, Count),
    ("s_r_segments_percentage", 52, 4, Count),
    ("s_last_cno", 56, 8, Cno),
    ("s_last_pseg", 64, 8, Block),
    ("s_last_seq", 72, 8, Seq),
    ("s_free_blocks_count", 80, 8, Count),
    ("s_wtime", 104, 8, Plain),
    ("s_mnt_count", 112, 2, Count),
    ("s_max_mnt_count", 114, 2, Count),
    ("s_state", 116, 2, Flags),
    ("s_errors", 118, 2, Flags),
    ("s_first_ino", 140, 4, Ino),
    ("s_inode_size", 144, 2, Length),
    ("s_dat_entry_size", 146, 2, Length),
    ("s_checkpoint_size", 148, 2, Length),
    ("s_segment_usage_size", 150, 2, Length),
    ("s_volume_name", 168, 8, Plain),
    ("s_c_interval", 248, 4, Plain),
    ("s_c_block_max", 252, 4, Count),
    ("s_feature_compat", 256, 8, Flags),
    ("s_feature_compat_ro", 264, 8, Flags),
    ("s_feature_incompat", 272, 8, Flags),
];

const LOG_HEADER: Shape = &[
    ("ss_magic", 8, 4, Plain),
    ("ss_bytes", 12, 2, Length),
    ("ss_flags", 14, 2, Flags),
    ("ss_seq", 16, 8, Seq),
    ("ss_create", 24, 8, Plain),
    ("ss_next", 32, 8, Block),
    ("ss_nblocks", 40, 4, Count),
    ("ss_nfinfo", 44, 4, Count),
    ("ss_sumbytes", 48, 4, Length),
    ("ss_cno", 56, 8, Cno),
];

const INODE: Shape = &[
    ("i_blocks", 0, 8, Count),
    ("i_size", 8, 8, Size),
    ("i_ctime", 16, 8, Plain),
    ("i_ctime_nsec", 32, 4, Plain),
    ("i_mtime_nsec", 36, 4, Plain),
    ("i_mode", 48, 2, Mode),
    ("i_links_count", 50, 2, Count),
    ("i_flags", 52, 4, Flags),
    ("i_xattr", 112, 8, Plain),
    ("i_generation", 120, 4, Plain),
];

const DAT_ENTRY: Shape =
    &[("de_blocknr", 0, 8, Block), ("de_start", 8, 8, Cno), ("de_end", 16, 8, Cno), ("de_rsv", 24, 8, Plain)];

const CP_HEADER: Shape = &[
    ("ch_ncheckpoints", 0, 8, Count),
    ("ch_nsnapshots", 8, 8, Count),
    ("ch_list_next", 16, 8, Cno),
    ("ch_list_prev", 24, 8, Cno),
];

const CP_ENTRY: Shape = &[
    ("cp_flags", 0, 4, Flags),
    ("cp_checkpoints_count", 4, 4, Count),
    ("cp_list_next", 8, 8, Cno),
    ("cp_list_prev", 16, 8, Cno),
    ("cp_cno", 24, 8, Cno),
    ("cp_create", 32, 8, Plain),
    ("cp_nblk_inc", 40, 8, Count),
    ("cp_inodes_count", 48, 8, Count),
    ("cp_blocks_count", 56, 8, Count),
];

const SU_HEADER: Shape =
    &[("sh_ncleansegs", 0, 8, Count), ("sh_ndirtysegs", 8, 8, Count), ("sh_last_alloc", 16, 8, Segment)];

const SU_ENTRY: Shape =
    &[("su_lastmod", 0, 8, Plain), ("su_nblocks", 8, 4, Count), ("su_flags", 12, 4, Flags)];

fn add(out: &mut Vec<Field>, shape: Shape, base: usize) {
    out.extend(shape.iter().map(|(name, at, width, class)| Field {
        name,
        at: base + at,
        width: *width,
        class: *class,
    }));
}

fn map(out: &mut Vec<Field>, bytes: &[u8], base: usize, physical: bool) {
    let ptr = if physical { Block } else { Vblock };
    out.push(Field { name: "i_bmap flags", at: base, width: 1, class: Flags });
    let Some(map) = bytes.get(base..base + btree::ROOT_BYTES) else { return };
    if map[0] & 1 == 0 {
        out.extend((1..7).map(|i| Field { name: "direct pointer", at: base + 8 * i, width: 8, class: ptr }));
        return;
    }
    out.push(Field { name: "root level", at: base + 1, width: 1, class: Level });
    out.push(Field { name: "root children", at: base + 2, width: 2, class: Count });
    out.extend((1..4).map(|i| Field { name: "root key", at: base + 8 * i, width: 8, class: Key }));
    out.extend((4..7).map(|i| Field { name: "root pointer", at: base + 8 * i, width: 8, class: ptr }));
}

fn inode(out: &mut Vec<Field>, bytes: &[u8], base: usize, physical: bool) {
    add(out, INODE, base);
    map(out, bytes, base + 56, physical);
}

fn node(g: &Geometry, bytes: &[u8], physical: bool) -> Vec<Field> {
    let ptr = if physical { Block } else { Vblock };
    let mut out = vec![
        Field { name: "node flags", at: 0, width: 1, class: Flags },
        Field { name: "node level", at: 1, width: 1, class: Level },
        Field { name: "node children", at: 2, width: 2, class: Count },
    ];
    let capacity = btree::node_capacity(g.bs());
    let n = usize::from(u16::from_le_bytes([bytes[2], bytes[3]])).min(capacity);
    for i in 0..n {
        out.push(Field { name: "node key", at: 16 + 8 * i, width: 8, class: Key });
        out.push(Field { name: "node pointer", at: 16 + 8 * (capacity + i), width: 8, class: ptr });
    }
    out
}

fn directory(bytes: &[u8]) -> Vec<Field> {
    let mut out = Vec::new();
    for e in dir::entries(bytes).map_while(Result::ok) {
        out.push(Field { name: "de_inode", at: e.offset, width: 8, class: Ino });
        out.push(Field { name: "de_rec_len", at: e.offset + 8, width: 2, class: Length });
        out.push(Field { name: "de_name_len", at: e.offset + 10, width: 1, class: Length });
        out.push(Field { name: "de_file_type", at: e.offset + 11, width: 1, class: Mode });
        out.push(Field { name: "de_name", at: e.offset + 12, width: 1, class: Plain });
    }
    out
}

/// Records of the first summary block: those that lie in it whole.
fn records(g: &Geometry, bytes: &[u8]) -> Vec<Field> {
    let mut out = Vec::new();
    let Ok(h) = Header::parse(g, bytes) else {
        return words(bytes, Count);
    };
    let bs = g.bs();
    let end = (h.sumbytes.get() as usize).min(bs);
    let mut pos = usize::from(h.bytes.get());
    for _ in 0..h.nfinfo.get() {
        let (at, next) = summary::place(bs, pos, summary::FINFO_SIZE);
        if next > end {
            break;
        }
        pos = next;
        for (name, offset, width, class) in [
            ("fi_ino", 0, 8, Ino),
            ("fi_cno", 8, 8, Cno),
            ("fi_nblocks", 16, 4, Count),
            ("fi_ndatablk", 20, 4, Count),
        ] {
            out.push(Field { name, at: at + offset, width, class });
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (blocks, data, dat) = (word(at + 16), word(at + 20), word(at) == 3);
        for i in 0..blocks {
            let size = if dat == (i < data) { 8 } else { 16 };
            let (at, next) = summary::place(bs, pos, size);
            if next > end {
                return out;
            }
            pos = next;
            if dat {
                out.push(Field { name: "bi_blkoff of the DAT", at, width: 8, class: Key });
            } else {
                out.push(Field { name: "bi_vblocknr", at, width: 8, class: Vblock });
            }
            if size == 16 {
                out.push(Field { name: "bi_blkoff", at: at + 8, width: 8, class: Key });
            }
        }
    }
    out
}

fn words(bytes: &[u8], class: Class) -> Vec<Field> {
    (0..bytes.len() / 8).map(|i| Field { name: "word", at: 8 * i, width: 8, class }).collect()
}

fn is_used(bytes: &[u8], at: usize, size: usize) -> bool {
    bytes.get(at..at + size).is_some_and(|b| b.iter().any(|x| *x != 0))
}

/// The fields of a block of this kind. Entries that are not in use are left out.
pub fn of(kind: Kind, g: &Geometry, bytes: &[u8]) -> Vec<Field> {
    let mut out = Vec::new();
    match kind {
        Kind::SuperBlock => add(&mut out, SUPER_BLOCK, 0),
        Kind::LogHeader => add(&mut out, LOG_HEADER, 0),
        Kind::Records => out = records(g, bytes),
        Kind::SuperRoot => {
            out.push(Field { name: "sr_bytes", at: 4, width: 2, class: Length });
            out.push(Field { name: "sr_flags", at: 6, width: 2, class: Flags });
            for i in 0..3 {
                inode(&mut out, bytes, 16 + i * g.inode_size as usize, i == 0);
            }
        }
        Kind::DatDescriptors | Kind::InodeDescriptors => {
            let n = (bytes.len() / 4).min(4);
            out.extend((0..n).map(|i| Field { name: "pg_nfrees", at: 4 * i, width: 4, class: Count }));
        }
        Kind::DatBitmap | Kind::InodeBitmap => {
            let used = bytes.iter().rposition(|b| *b != 0).map_or(1, |last| last + 1);
            out.extend((0..used).map(|at| Field { name: "bitmap", at, width: 1, class: Flags }));
        }
        Kind::DatEntries => {
            let size = g.dat_entry_size as usize;
            for at in (0..bytes.len() / size).map(|i| i * size).filter(|at| is_used(bytes, *at, 32)) {
                add(&mut out, DAT_ENTRY, at);
            }
        }
        Kind::DatNode => out = node(g, bytes, true),
        Kind::Node => out = node(g, bytes, false),
        Kind::Checkpoints => {
            let size = g.checkpoint_size as usize;
            // Whether this is the first block is not known here: both readings of its beginning are tried.
            add(&mut out, CP_HEADER, 0);
            for i in 0..bytes.len() / size {
                let entry = checkpoint::entry(bytes, i * size);
                if entry.is_ok_and(|e| !e.is_invalid() && e.cno.get() != 0) {
                    add(&mut out, CP_ENTRY, i * size);
                    inode(&mut out, bytes, i * size + 64, false);
                }
            }
        }
        Kind::Usage => {
            add(&mut out, SU_HEADER, 0);
            let size = g.segment_usage_size as usize;
            for at in (0..bytes.len() / size).map(|i| i * size).filter(|at| is_used(bytes, *at, 16)) {
                add(&mut out, SU_ENTRY, at);
            }
        }
        Kind::Inodes => {
            let size = g.inode_size as usize;
            for at in (0..bytes.len() / size).map(|i| i * size).filter(|at| is_used(bytes, *at, 128)) {
                inode(&mut out, bytes, at, false);
            }
        }
        Kind::Directory => out = directory(bytes),
        Kind::Symlink | Kind::Data => {}
    }
    if out.is_empty() { words(bytes, Plain) } else { out }
}
