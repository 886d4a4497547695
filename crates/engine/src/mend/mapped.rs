//! Who maps a virtual block: walks over maps and trees that may be damaged.
//!
//! A walk asks its caller about each block it comes to and goes no further where the answer is no.
//! Versions of a tree share most of their blocks, so a walk over many of them that says yes once a
//! block costs what the blocks are, not what the trees are. Nothing may wait in memory: what is on
//! disk is walked.

use hashbrown::HashMap;
use silt_format::btree::{self, Node};
use silt_format::direct;
use silt_format::inode::RawInode;
use silt_format::palloc::Kind as Part;
use silt_format::{Cno, Ino};

use super::bits::Bits;
use crate::bmap::Root;
use crate::ifile::IFile;
use crate::meta::{Physical, read_data, read_node};
use crate::volume::Volume;
use crate::{Error, Result};

/// What a map has a block for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The file's block at this offset.
    Data(u64),
    /// A node: level, first key, and the first key behind it if there is one.
    Node(u8, u64, Option<u64>),
}

/// What a walk tells.
pub trait Seen {
    /// A block of `ino`; whether to look at what it leads to.
    fn block(&mut self, ino: Ino, v: u64, role: Role) -> bool;
    /// A block that leads further cannot be read, or is no such block.
    fn damaged(&mut self, ino: Ino, v: u64, role: Role, error: Error);
    /// Whether a node is known to be wrong although it can be read.
    fn distrusts(&self, _v: u64) -> bool {
        false
    }
}

/// Every block of what is walked.
#[derive(Default)]
pub struct Whole {
    pub blocks: Bits,
    /// Blocks that lead further and cannot be read.
    pub broken: u64,
}

impl Seen for Whole {
    fn block(&mut self, _: Ino, v: u64, _: Role) -> bool {
        self.blocks.insert(v)
    }
    fn damaged(&mut self, _: Ino, _: u64, _: Role, _: Error) {
        self.broken += 1;
    }
}

impl Volume {
    /// Walks the map of a file with virtual pointers.
    pub(crate) fn see_map(&self, ino: Ino, root: &Root, seen: &mut dyn Seen) {
        if !btree::is_btree(root) {
            for key in 0..direct::KEYS {
                let v = direct::get(root, key);
                if v != 0 {
                    seen.block(ino, v, Role::Data(key));
                }
            }
            return;
        }
        if let Err(e) = btree::check_root(root) {
            seen.damaged(ino, 0, Role::Node(0, 0, None), Error::at(format!("inode {ino}"), e));
            return;
        }
        self.see_node(ino, Node::root(root), None, seen);
    }

    fn see_node(&self, ino: Ino, node: Node<'_>, behind: Option<u64>, seen: &mut dyn Seen) {
        let level = node.level();
        for i in 0..node.len() {
            let (key, v) = (node.key(i), node.ptr(i));
            if v == 0 {
                continue;
            }
            if level <= 1 {
                seen.block(ino, v, Role::Data(key));
                continue;
            }
            let behind = if i + 1 < node.len() { Some(node.key(i + 1)) } else { behind };
            let role = Role::Node(level - 1, key, behind);
            if !seen.block(ino, v, role) {
                continue;
            }
            let read = if seen.distrusts(v) {
                Err(Error::corrupt(format!("virtual block {v}"), "B-tree node", "does not fit the others"))
            } else {
                read_node(&self.store, &self.dat, v, level - 1)
            };
            match read {
                Ok(b) if Node::block(&b).key(0) == key => self.see_node(ino, Node::block(&b), behind, seen),
                Ok(_) => {
                    let e = Error::corrupt(format!("virtual block {v}"), "B-tree node", "begins elsewhere");
                    seen.damaged(ino, v, role, e);
                }
                Err(e) => seen.damaged(ino, v, role, e),
            }
        }
    }

    /// Walks an ifile and every file it has.
    pub(crate) fn see_tree(&self, ifile: &IFile, seen: &mut dyn Seen) {
        struct Entries<'a> {
            seen: &'a mut dyn Seen,
            blocks: Vec<(u64, u64)>,
        }
        impl Seen for Entries<'_> {
            fn block(&mut self, ino: Ino, v: u64, role: Role) -> bool {
                let new = self.seen.block(ino, v, role);
                if let (true, Role::Data(key)) = (new, role) {
                    self.blocks.push((key, v));
                }
                new
            }
            fn damaged(&mut self, ino: Ino, v: u64, role: Role, error: Error) {
                self.seen.damaged(ino, v, role, error);
            }
            fn distrusts(&self, v: u64) -> bool {
                self.seen.distrusts(v)
            }
        }
        let mut entries = Entries { seen, blocks: Vec::new() };
        self.see_map(Ino::IFILE, &ifile.file.map.root, &mut entries);
        let Entries { seen, blocks } = entries;
        let layout = ifile.palloc.layout;
        for (key, v) in blocks {
            let Part::Entries { first } = layout.kind(key) else { continue };
            let block = match read_data(&self.store, &self.dat, silt_device::Kind::Tables, v) {
                Ok(b) => b,
                Err(e) => {
                    // Where no inode is in use, what the block had is nothing to anybody.
                    if (first..=layout.last_of_block(first)).any(|nr| self.is_file(ifile, Ino(nr))) {
                        seen.damaged(Ino::IFILE, v, Role::Data(key), e);
                    }
                    continue;
                }
            };
            // Bits that are noise say nothing of what is in use.
            let sure = self.bits_agree(ifile, layout.group(first));
            let size = self.store.geometry.inode_size as usize;
            for (slot, bytes) in block.chunks_exact(size).enumerate() {
                let nr = first.saturating_add(slot as u64);
                let Ok(raw) = RawInode::read(bytes) else { continue };
                let used = if sure { self.is_file(ifile, Ino(nr)) } else { raw.links_count.get() > 0 };
                if raw.bmap.iter().all(|b| *b == 0) || !used {
                    continue;
                }
                if raw.has_map() {
                    self.see_map(Ino(nr), &raw.bmap, seen);
                }
            }
        }
    }

    /// Whether the bits of a group of inodes are as many as its count says, or cannot be read: then each counts as set.
    fn bits_agree(&self, ifile: &IFile, group: u64) -> bool {
        let layout = ifile.palloc.layout;
        let read = |offset: u64| ifile.file.block(&self.store, &self.dat, offset).ok().flatten();
        let (desc, byte) = layout.desc(group);
        let (Some(bits), Some(desc)) = (read(layout.bitmap_block(group)), read(desc)) else { return true };
        let ones: u64 = bits.iter().map(|b| u64::from(b.count_ones())).sum();
        let free = desc.get(byte..byte + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
        free.is_none_or(|free| u64::from(free) == layout.entries_per_group().saturating_sub(ones))
    }

    /// Whether a number can be a file's and is taken, as far as can be told.
    fn is_file(&self, ifile: &IFile, ino: Ino) -> bool {
        self.store.geometry.is_for_files(ino)
            && ifile.palloc.layout.check("ifile", ino.0).is_ok()
            && ifile.palloc.bit(&ifile.file, &self.store, &self.dat, ino.0).unwrap_or(true)
    }

    /// Walks cpfile and sufile.
    pub(crate) fn see_metadata(&self, seen: &mut dyn Seen) {
        self.see_map(Ino::CPFILE, &self.cpfile.file.map.root, seen);
        self.see_map(Ino::SUFILE, &self.sufile.file.map.root, seen);
    }

    /// Numbers and ifiles of all checkpoints whose entries can be used, the newest first.
    pub(crate) fn ifiles(&self) -> Vec<(Cno, IFile)> {
        let mut all = Vec::new();
        for e in self.cpfile.every(&self.store, &self.dat) {
            if e.cno.get() < self.cno.0
                && let Ok(ifile) = IFile::new(&self.store.geometry, e.ifile_inode)
            {
                all.push((Cno(e.cno.get()), ifile));
            }
        }
        all.sort_by_key(|(c, _)| std::cmp::Reverse(*c));
        all
    }
}

/// For chosen blocks, who maps them.
#[derive(Default)]
pub(crate) struct Mappers {
    /// Asked for.
    wanted: Bits,
    seen: Bits,
    now: u64,
    /// The newest checkpoint that maps a block (`u64::MAX`: the current tree or metadata), and as what.
    pub newest: HashMap<u64, (u64, Ino, Role)>,
    pub broken: Vec<(Ino, u64, Role)>,
    /// Whether some of these are of the current tree or metadata, which are walked first.
    pub broken_now: bool,
    pub distrust: Bits,
}

impl Seen for Mappers {
    fn block(&mut self, ino: Ino, v: u64, role: Role) -> bool {
        if !self.seen.insert(v) {
            return false;
        }
        if self.wanted.contains(v) {
            self.newest.insert(v, (self.now, ino, role));
        }
        true
    }
    fn damaged(&mut self, ino: Ino, v: u64, role: Role, _: Error) {
        self.broken.push((ino, v, role));
        self.broken_now |= self.now == u64::MAX;
    }
    fn distrusts(&self, v: u64) -> bool {
        self.distrust.contains(v)
    }
}

impl Volume {
    /// Blocks that the current tree, metadata or a checkpoint maps and whose bits say that they are free.
    pub(crate) fn mapped_and_free(&self) -> Result<Bits> {
        let mut whole = Whole::default();
        self.see_metadata(&mut whole);
        self.see_tree(&self.ifile, &mut whole);
        for (_, ifile) in self.ifiles() {
            self.see_tree(&ifile, &mut whole);
        }
        let mut free = Bits::default();
        for v in whole.blocks.iter() {
            let palloc = self.dat.palloc;
            if palloc.layout.check("DAT", v).is_ok()
                && !palloc.bit(&self.dat.file, &self.store, &Physical, v)?
            {
                free.insert(v);
            }
        }
        Ok(free)
    }

    /// Who maps the blocks of `wanted`, in the current tree, metadata and all checkpoints. Memory: a bit a
    /// block in use, and some 50 bytes for each that is wanted.
    pub(crate) fn mappers(&self, wanted: Bits) -> Mappers {
        self.mappers_but(wanted, Bits::default())
    }

    /// As [`Volume::mappers`]; the nodes of `distrust` count as damaged.
    pub(crate) fn mappers_but(&self, wanted: Bits, distrust: Bits) -> Mappers {
        let mut m = Mappers { wanted, now: u64::MAX, distrust, ..Mappers::default() };
        self.see_metadata(&mut m);
        self.see_tree(&self.ifile, &mut m);
        for (c, ifile) in self.ifiles() {
            m.now = c.0;
            self.see_tree(&ifile, &mut m);
        }
        m
    }
}
