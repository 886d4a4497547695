//! Inodes put together from what is left: blocks from the summaries of logs, made exact by lifetimes, attributes from
//! another checkpoint, and the bitmap of the inode file from its entries (format 6, 8).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use silt_format::checkpoint::CpEntry;
use silt_format::dir;
use silt_format::inode::RawInode;
use silt_format::palloc::Kind as Part;
use silt_format::{Cno, Ino, SegNr, VBlockNr};

use super::bits::Bits;
use super::contents::Content;
use super::doubts::Unsure;
use super::mapped::Whole;
use super::versions::{Evidence, Version};
use crate::block;
use crate::bmap;
use crate::ifile::IFile;
use crate::inode::{self, Inode};
use crate::meta::NodeReader;
use crate::store::Key;
use crate::volume::Volume;
use crate::{Error, Result};

/// Where the attributes of an inode that was put together come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attributes {
    /// Of this checkpoint.
    Of(Cno),
    /// Nowhere: type and size are told by the content.
    Lost,
}

/// An inode that was put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assembled {
    /// Where its attributes come from.
    pub attributes: Attributes,
    /// Of zeroes at its end there may be too few or too many.
    pub size_guessed: bool,
}

impl Volume {
    /// Maps `blocks` into an inode and makes it part of the tree at hand; `nodes` are those of its old map.
    pub(crate) fn put_together(
        &mut self,
        mut inode: Inode,
        blocks: BTreeMap<u64, VBlockNr>,
        nodes: &Bits,
    ) -> Result<u64> {
        let (mut n, max) = (0, self.store.geometry.max_key());
        let mut change = self.change();
        for (offset, v) in blocks.into_iter().filter(|(offset, _)| *offset <= max) {
            change.adopt(&mut inode.map, offset, v)?;
            n += 1;
        }
        for v in nodes.iter() {
            self.dat.end(&mut self.store, VBlockNr(v), self.cno, false)?;
        }
        let ino = inode.ino;
        (inode.dirty, inode.needs_checkpoint) = (true, true);
        self.inodes.insert(ino.0, Box::new(inode));
        self.dirty.insert(ino.0);
        Ok(n)
    }

    /// The inode file of the tree at hand, whose checkpoint's entry does not say where it is. Errors: not every inode
    /// that it has by its bitmaps, and by the entry's count, is there with all its blocks, or it has no root directory. Also
    /// which inodes may be older than those it had.
    pub(crate) fn whole_ifile_from_logs(
        &mut self,
        end_of_log: (SegNr, u64),
        entry: &CpEntry,
    ) -> Result<(IFile, Unsure)> {
        let (ifile, unsure) = self.ifile_from_logs(end_of_log)?;
        let c = entry.cno;
        let not = |what: String| Error::corrupt(format!("checkpoint {c}"), "inode file", what);
        let (mut inodes, wanted) = (0u64, entry.inodes_count.get());
        self.each_taken(&ifile, |nr| {
            inodes += u64::from(ifile.get(&self.store, &self.dat, Ino(nr)).is_ok());
        })?;
        if inodes != wanted || self.count_tree_of(&ifile)?.0 != wanted {
            return Err(not(format!("logs have {inodes} inodes of it, not {wanted}")));
        }
        let mut seen = Whole::default();
        // Its nodes have no place yet.
        for (v, b) in &ifile.file.map.nodes {
            self.store.launch(Key::Virtual(*v), b.clone());
        }
        self.see_tree(&ifile, &mut seen);
        ifile.file.map.nodes.keys().for_each(|v| self.store.forget(Key::Virtual(*v)));
        if seen.broken > 0 {
            return Err(not(format!("{} blocks of its tree cannot be read", seen.broken)));
        }
        let root = ifile.get(&self.store, &self.dat, Ino::ROOT)?;
        if root.file_type() != 0o040_000 {
            return Err(not("it has no root directory".into()));
        }
        Ok((ifile, unsure))
    }

    /// Whether an inode with these blocks is a directory, by its first one, which every directory has.
    pub(super) fn is_directory_by_content(&self, ino: Ino, blocks: &BTreeMap<u64, VBlockNr>) -> Option<bool> {
        if blocks.is_empty() {
            return None;
        }
        let Some(first) = blocks.get(&0) else { return Some(false) };
        let first = self.bytes_of(first.0).ok()?;
        let own =
            dir::entries(&first).next().is_some_and(|e| e.is_ok_and(|e| e.name == b"." && e.ino == ino));
        Some(own)
    }

    /// Makes an inode anew of which nothing is to be believed: its blocks are those that logs have and that live in
    /// the tree at hand, its attributes those of another checkpoint as far as they fit. `None` where nothing is left
    /// of it. `kind`: bits of a mode, where the type is known.
    pub(crate) fn assemble_inode(
        &mut self,
        ino: Ino,
        kind: Option<u32>,
        mut content: Content,
        evidence: &Evidence<'_>,
    ) -> Result<Option<Assembled>> {
        let is_directory = self.is_directory_by_content(ino, &content.blocks).unwrap_or(false);
        let fits = |version: &Version| {
            let kind_fits = (version.raw.file_type() == 0o040_000) == is_directory;
            let content_fits = version.raw.has_map() || content.blocks.is_empty();
            kind_fits && content_fits && kind.is_none_or(|kind| kind == version.raw.file_type())
        };
        let mut versions = self.versions(ino, Some(&content), evidence);
        versions.retain(fits);
        let found = versions.first().copied();
        let empty = content.blocks.is_empty();
        if found.is_none() && empty && kind != Some(0o100_000) {
            return Ok(None);
        }
        if let Some(linked) = found.filter(|v| v.linked) {
            // Its summaries may be lost where the map of another checkpoint is not.
            let more = self.more_of(ino, &linked.raw, &content);
            content.blocks.extend(more);
        }
        let (attributes, mut raw) = match found {
            Some(version) => (Attributes::Of(version.cno), version.raw),
            None => {
                let mut raw = RawInode::zeroed();
                raw.mode = match kind {
                    _ if is_directory => 0o040_700,
                    Some(0o120_000) => 0o120_777,
                    _ => 0o100_600,
                }
                .into();
                raw.links_count = 1.into();
                (Attributes::Lost, raw)
            }
        };
        let mut size_guessed = false;
        if raw.has_map() {
            let size;
            (size, size_guessed) = if raw.file_type() == 0o120_000 {
                // A symlink without a target is none.
                let Some(length) = self.target_length(&content.blocks) else { return Ok(None) };
                (length, false)
            } else {
                self.size_of(&raw, &versions, &content.blocks)
            };
            raw.size = size.into();
            raw.bmap = [0; 56];
            raw.blocks = 0.into();
        }
        let there = self.ifile.get(&self.store, &self.dat, ino).is_ok();
        let mut inode = Inode::load(ino, &raw);
        inode.on_disk = there;
        self.put_together(inode, content.blocks, &content.nodes)?;
        Ok(Some(Assembled { attributes, size_guessed }))
    }

    /// Bytes of the target that a symlink with these blocks has, if it has any: one block, with nothing but zeroes behind it
    /// (format 9.4).
    fn target_length(&self, blocks: &BTreeMap<u64, VBlockNr>) -> Option<u64> {
        let (0, v) = blocks.last_key_value()? else { return None };
        let bytes = self.bytes_of(v.0).ok()?;
        let length = bytes.iter().position(|byte| *byte == 0).filter(|length| *length > 0)?;
        let rest = bytes.get(length..)?;
        rest.iter().all(|byte| *byte == 0).then_some(length as u64)
    }

    /// How long a file is with these blocks, and whether that is a guess. A version with the same last block says it; else
    /// it ends with what versions before and behind agree on, or with the block if one of these does, or if it is all zeroes, or
    /// cannot be read; or with the last byte of it that is not zero.
    fn size_of(&self, raw: &RawInode, versions: &[Version], blocks: &BTreeMap<u64, VBlockNr>) -> (u64, bool) {
        let bs = u64::from(self.store.geometry.block_size);
        let Some((offset, v)) = blocks.last_key_value() else { return (0, false) };
        let (least, most) = (offset.saturating_mul(bs), offset.saturating_add(1).saturating_mul(bs));
        if raw.file_type() == 0o040_000 {
            return (most, false);
        }
        let life = self.dat.entry(&self.store, *v).map_or(0..0, |e| e.start.get()..e.end.get());
        let fits = |size: u64| size > least && size <= most;
        let same = versions
            .iter()
            .find(|version| life.contains(&version.cno.0) && self.has_block(&version.raw, *offset, *v));
        if let Some(same) = same.filter(|version| fits(version.raw.size.get())) {
            return (same.raw.size.get(), false);
        }
        let used = self.bytes_of(v.0).ok();
        let used = used.and_then(|b| b.iter().rposition(|byte| *byte != 0)).map(|n| n as u64 + 1);
        // Nothing says how long a hole behind the last block was.
        let at_least = least.saturating_add(used.unwrap_or(0));
        let nearest = |later: bool| versions.iter().find(|v| self.is_later(v.cno) == later);
        let sizes = [nearest(false), nearest(true)].map(|v| v.map(|v| v.raw.size.get()).filter(|s| fits(*s)));
        let size = match sizes {
            [Some(before), Some(behind)] if before == behind && before >= at_least => before,
            [Some(whole), _] | [_, Some(whole)] if whole == most => whole,
            // The last block is part of the file, whatever is in it.
            _ => least.saturating_add(used.unwrap_or(bs)),
        };
        (size, true)
    }

    /// Makes the bitmaps of the inode file say what its entries say, where a group's count does not agree with its
    /// bitmap or the bitmap is among `lost`; of entries whose block is among `lost` the bits stay. Returns how many
    /// bits were wrong, and blocks of entries that are made anew since they cannot be read, nor could their bitmaps. Counts are
    /// for [`crate::palloc::Palloc::recount`].
    pub(crate) fn mend_inode_bits(&mut self, lost: &BTreeSet<u64>) -> Result<(u64, Vec<u64>)> {
        let (palloc, g) = (self.ifile.palloc, self.store.geometry);
        let layout = palloc.layout;
        let mut entries: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        let mut add = |key: u64| match layout.kind(key) {
            Part::Entries { first } => entries.entry(layout.group(first)).or_default().push((key, first)),
            Part::Bitmap { group } => {
                entries.entry(group).or_default();
            }
            Part::Descriptor { .. } => {}
        };
        self.ifile.file.data.keys().for_each(|key| add(*key));
        let reader = NodeReader { nodes: &self.ifile.file.map.nodes, store: &self.store, resolve: &self.dat };
        bmap::for_each(&self.ifile.file.map.root, &reader, 0, |key, _| {
            add(key);
            ControlFlow::Continue(())
        })?;
        let (mut wrong, mut gone) = (0, Vec::new());
        for (group, blocks) in entries {
            let at = layout.bitmap_block(group);
            let Ok(Some(old)) = self.ifile.file.block(&self.store, &self.dat, at) else { continue };
            let ones: u64 = old.iter().map(|b| u64::from(b.count_ones())).sum();
            let (desc, byte) = layout.desc(group);
            let count = self.ifile.file.block(&self.store, &self.dat, desc).ok().flatten();
            let count = count.and_then(|b| b.get(byte..byte + 4)?.try_into().ok()).map(u32::from_le_bytes);
            if count.map(u64::from) == Some(layout.entries_per_group().saturating_sub(ones))
                && !lost.contains(&at)
            {
                continue;
            }
            let mut new = vec![0u8; old.len()];
            let mut set = |nr: u64| {
                if let Some(byte) = new.get_mut(layout.bit(nr) / 8) {
                    *byte |= 1 << (layout.bit(nr) % 8);
                }
            };
            let was =
                |nr: u64| old.get(layout.bit(nr) / 8).is_some_and(|b| b >> (layout.bit(nr) % 8) & 1 == 1);
            if group == 0 {
                (0..g.first_ino).for_each(&mut set);
            }
            for (key, first) in blocks {
                let read = self.ifile.file.block(&self.store, &self.dat, key);
                if read.is_err() && lost.contains(&at) {
                    // Neither the bitmap nor the entries say what there was.
                    gone.push(key);
                }
                let b = read.ok().flatten().filter(|_| !lost.contains(&key));
                for (slot, nr) in (first..first + layout.entries_per_block()).enumerate() {
                    let byte = slot * g.inode_size as usize;
                    let raw = b.as_ref().map(|b| RawInode::read(b.get(byte..).unwrap_or(&[])));
                    let taken = match raw {
                        // An entry that was never used is empty; one that was given back has no links.
                        Some(Ok(raw)) if raw.mode.get() == 0 || raw.links_count.get() == 0 => false,
                        Some(Ok(raw)) if inode::check(&g, &raw).is_ok() => true,
                        _ => was(nr),
                    };
                    if taken && layout.group(nr) == group {
                        set(nr);
                    }
                }
            }
            let different: u64 = old.iter().zip(&new).map(|(a, b)| u64::from((a ^ b).count_ones())).sum();
            if different > 0 {
                wrong += different;
                let mut bytes = block::zeroed(g.bs());
                block::writable(&mut bytes).copy_from_slice(&new);
                self.ifile.file.data.insert(at, bytes);
            }
        }
        for key in &gone {
            self.ifile.file.data.insert(*key, block::zeroed(g.bs()));
        }
        Ok((wrong, gone))
    }
}
