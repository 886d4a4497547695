//! The nodes of the file system in memory.
//!
//! Invariants: node 1 is the root and never goes; a node lives while it has names or lookups; a directory's
//! `order` and `names` hold the same entries, and the cookies in `order` only grow, so that a listing goes on
//! rightly whatever changes meanwhile.

use silt_fuse::{Attr, Entry, Errno, NodeId, Timestamp};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// The size of the blocks that content lies in, in bytes.
pub const BLOCK: usize = 4096;
/// The longest file in bytes.
pub const SIZE_MAX: u64 = 1 << 44;

pub type Block = Box<[u8; BLOCK]>;

/// A name in a directory.
#[derive(Clone, Copy)]
pub struct Slot {
    pub node: NodeId,
    pub cookie: u64,
}

pub struct Directory {
    pub names: HashMap<Box<[u8]>, Slot>,
    pub order: BTreeMap<u64, (Box<[u8]>, NodeId)>,
    pub parent: NodeId,
    next_cookie: u64,
}

impl Directory {
    /// An empty one. Cookies 1 and 2 are "." and "..".
    pub fn new() -> Self {
        Self { names: HashMap::new(), order: BTreeMap::new(), parent: 1, next_cookie: 2 }
    }
}

pub enum Content {
    File(BTreeMap<u64, Block>),
    Directory(Directory),
    Link(Box<[u8]>),
    Special,
}

pub struct Node {
    pub attr: Attr,
    pub lookups: u64,
    pub generation: u64,
    pub content: Content,
}

/// All nodes; the number of a node is its place.
pub struct Tree {
    nodes: Vec<Option<Node>>,
    free: Vec<NodeId>,
    generation: u64,
    ttl: Duration,
}

fn place(node: NodeId) -> usize {
    usize::try_from(node).unwrap_or(usize::MAX)
}

impl Tree {
    pub fn new(ttl: Duration, uid: u32, gid: u32) -> Self {
        let mut tree = Self { nodes: vec![None], free: Vec::new(), generation: 0, ttl };
        let root = tree.insert(libc::S_IFDIR | 0o755, uid, gid, 0, Content::Directory(Directory::new()));
        if let Ok(root) = tree.get(root) {
            root.attr.nlink = 2;
        }
        tree
    }

    pub fn get(&mut self, node: NodeId) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(place(node)).and_then(Option::as_mut).ok_or(Errno::ESTALE)
    }

    pub fn directory(&mut self, node: NodeId) -> Result<&mut Directory, Errno> {
        match &mut self.get(node)?.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }

    pub fn find(&mut self, parent: NodeId, name: &[u8]) -> Result<NodeId, Errno> {
        self.directory(parent)?.names.get(name).map(|slot| slot.node).ok_or(Errno::ENOENT)
    }

    /// Adds a node without names.
    pub fn insert(&mut self, mode: u32, uid: u32, gid: u32, rdev: u32, content: Content) -> NodeId {
        let node = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() as u64 - 1
        });
        let now = Timestamp::now();
        self.generation += 1;
        let attr = Attr {
            ino: node,
            mode,
            nlink: 0,
            uid,
            gid,
            rdev,
            blksize: 4096,
            atime: now,
            mtime: now,
            ctime: now,
            ..Attr::default()
        };
        let generation = self.generation;
        if let Some(slot) = self.nodes.get_mut(place(node)) {
            *slot = Some(Node { attr, lookups: 0, generation, content });
        }
        node
    }

    /// Adds a name for a node.
    pub fn enter(&mut self, parent: NodeId, name: &[u8], node: NodeId) -> Result<(), Errno> {
        let is_directory = matches!(self.get(node)?.content, Content::Directory(_));
        let directory = self.directory(parent)?;
        let name: Box<[u8]> = name.into();
        directory.next_cookie += 1;
        let cookie = directory.next_cookie;
        directory.order.insert(cookie, (name.clone(), node));
        directory.names.insert(name, Slot { node, cookie });
        let entries = directory.names.len() as u64;
        let now = Timestamp::now();
        let parent_attr = &mut self.get(parent)?.attr;
        parent_attr.size = entries;
        parent_attr.mtime = now;
        parent_attr.ctime = now;
        parent_attr.nlink += u32::from(is_directory);
        let child = self.get(node)?;
        child.attr.nlink += if is_directory { 2 } else { 1 };
        child.attr.ctime = now;
        if let Content::Directory(directory) = &mut child.content {
            directory.parent = parent;
        }
        Ok(())
    }

    /// Takes a name away; the node that had it. It stays even without names: see [`Self::reap`].
    pub fn remove(&mut self, parent: NodeId, name: &[u8]) -> Result<NodeId, Errno> {
        let directory = self.directory(parent)?;
        let slot = directory.names.remove(name).ok_or(Errno::ENOENT)?;
        directory.order.remove(&slot.cookie);
        let entries = directory.names.len() as u64;
        let is_directory = matches!(self.get(slot.node)?.content, Content::Directory(_));
        let now = Timestamp::now();
        let parent_attr = &mut self.get(parent)?.attr;
        parent_attr.size = entries;
        parent_attr.mtime = now;
        parent_attr.ctime = now;
        parent_attr.nlink -= u32::from(is_directory);
        let child = &mut self.get(slot.node)?.attr;
        child.nlink -= if is_directory { 2 } else { 1 };
        child.ctime = now;
        Ok(slot.node)
    }

    /// Frees a node if nothing holds it any more.
    pub fn reap(&mut self, node: NodeId) {
        let dead = self.get(node).is_ok_and(|n| n.attr.nlink == 0 && n.lookups == 0);
        if dead && let Some(slot) = self.nodes.get_mut(place(node)) {
            *slot = None;
            self.free.push(node);
        }
    }

    /// The entry of a node, counted as looked up.
    pub fn entry(&mut self, node: NodeId) -> Result<Entry, Errno> {
        let ttl = self.ttl;
        let found = self.get(node)?;
        found.lookups += 1;
        Ok(Entry { node, generation: found.generation, attr: found.attr, attr_ttl: ttl, entry_ttl: ttl })
    }

    pub fn is_empty_directory(&mut self, node: NodeId) -> Result<bool, Errno> {
        Ok(self.directory(node)?.names.is_empty())
    }

    /// True if `inner` is `outer` or lies below it.
    pub fn is_below(&mut self, mut inner: NodeId, outer: NodeId) -> Result<bool, Errno> {
        while inner != 1 {
            if inner == outer {
                return Ok(true);
            }
            inner = self.directory(inner)?.parent;
        }
        Ok(outer == 1)
    }
}

impl Node {
    /// Cuts or extends a file.
    pub fn truncate(&mut self, size: u64) -> Result<(), Errno> {
        let Content::File(blocks) = &mut self.content else { return Err(Errno::EINVAL) };
        if size > SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        if size < self.attr.size {
            drop(blocks.split_off(&size.div_ceil(BLOCK as u64)));
            let (last, rest) = (size / BLOCK as u64, place(size % BLOCK as u64));
            if rest > 0
                && let Some(block) = blocks.get_mut(&last)
            {
                block.iter_mut().skip(rest).for_each(|byte| *byte = 0);
            }
        }
        self.attr.size = size;
        self.attr.blocks = blocks.len() as u64 * (BLOCK as u64 / 512);
        let now = Timestamp::now();
        self.attr.mtime = now;
        self.attr.ctime = now;
        Ok(())
    }

    pub fn write(&mut self, offset: u64, mut data: &[u8]) -> Result<(), Errno> {
        let Content::File(blocks) = &mut self.content else { return Err(Errno::EINVAL) };
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= SIZE_MAX).ok_or(Errno::EFBIG)?;
        let mut position = offset;
        while !data.is_empty() {
            let (number, inside) = (position / BLOCK as u64, place(position % BLOCK as u64));
            let (part, rest) = data.split_at(data.len().min(BLOCK - inside));
            let block = blocks.entry(number).or_insert_with(|| Box::new([0; BLOCK]));
            block[inside..inside + part.len()].copy_from_slice(part);
            position += part.len() as u64;
            data = rest;
        }
        self.attr.size = self.attr.size.max(end);
        self.attr.blocks = blocks.len() as u64 * (BLOCK as u64 / 512);
        let now = Timestamp::now();
        self.attr.mtime = now;
        self.attr.ctime = now;
        Ok(())
    }

    /// The pieces of a range that lie before the end of the file.
    pub fn pieces(&self, offset: u64, size: u64) -> Result<Vec<&[u8]>, Errno> {
        static ZEROS: [u8; BLOCK] = [0; BLOCK];
        let Content::File(blocks) = &self.content else { return Err(Errno::EISDIR) };
        let end = offset.saturating_add(size).min(self.attr.size);
        let mut pieces = Vec::new();
        let mut position = offset;
        while position < end {
            let (number, inside) = (position / BLOCK as u64, place(position % BLOCK as u64));
            let length = (BLOCK - inside).min(place(end - position));
            let block = blocks.get(&number).map_or(&ZEROS, |block| &**block);
            pieces.push(&block[inside..inside + length]);
            position += length as u64;
        }
        Ok(pieces)
    }
}
