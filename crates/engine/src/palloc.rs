//! Allocation bitmaps of the DAT and the ifile (spec section 6).
//!
//! Invariant: a group's `pg_nfrees` equals the zero bits of its bitmap. A group where it does not, or of which a
//! block cannot be read, is damaged: nothing is handed out from it and nothing given back, and whether an entry of
//! it is in use is for the entry to tell.

use silt_format::palloc::{Kind, Layout};

use crate::block::Block;
use crate::meta::{MetaFile, Resolve};
use crate::store::Store;
use crate::{Error, Result};

/// Allocation operations on one file.
#[derive(Debug, Clone, Copy)]
pub struct Palloc {
    pub layout: Layout,
    /// For messages: "DAT" or "ifile".
    pub name: &'static str,
}

/// Where a free entry is looked for.
#[derive(Debug, Clone, Copy)]
pub struct Search {
    /// Entries from this one on.
    pub from: u64,
    /// In groups below this one.
    pub end_group: u64,
    /// A group that the caller found sound before.
    pub trusted: Option<u64>,
}

fn le32(b: &[u8], at: usize) -> u32 {
    match b.get(at..at + 4).and_then(|s| s.try_into().ok()) {
        Some(a) => u32::from_le_bytes(a),
        None => 0,
    }
}

fn word(b: &[u8]) -> u64 {
    b.try_into().map_or(u64::MAX, u64::from_le_bytes)
}

/// Zero bits of a bitmap. Most of one is all taken or all free, and that is told 64 bytes at a time, where counting them
/// takes a few times as long on a processor of the plain kind.
fn zeroes(bitmap: &[u8]) -> u64 {
    let of_part = |part: &[u8]| {
        let words = || part.chunks_exact(8).map(word);
        match words().fold((0, u64::MAX), |(any, all), w| (any | w, all & w)) {
            (0, _) => part.len() as u64 * 8,
            (_, u64::MAX) => 0,
            _ => words().map(|w| u64::from(w.count_zeros())).sum(),
        }
    };
    bitmap.chunks(64).map(of_part).sum()
}

/// First zero bit in `from..to` of a bitmap.
fn zero_bit(bitmap: &[u8], from: usize, to: usize) -> Option<usize> {
    let mut bit = from;
    while bit < to {
        let word = match bitmap.get(bit / 64 * 8..bit / 64 * 8 + 8).and_then(|s| s.try_into().ok()) {
            Some(a) => u64::from_le_bytes(a),
            None => return None,
        };
        let free = !word >> (bit % 64);
        if free != 0 {
            let found = bit + free.trailing_zeros() as usize;
            return (found < to).then_some(found);
        }
        bit = (bit / 64 + 1) * 64;
    }
    None
}

/// Damaged groups that a search passes over. There may be more numbers than blocks: a map that makes no sense behind
/// some place fails for all of them.
const DAMAGED_MOST: u64 = 4096;

impl Palloc {
    /// Whether the two blocks that say which entries of a group are taken agree, and the bitmap (none: all are
    /// free). Takes a few times as long as copying the block: each number of a new file costs it once.
    fn sound_group<R: Resolve>(
        &self,
        file: &MetaFile,
        store: &Store,
        r: &R,
        group: u64,
    ) -> Result<(bool, Option<Block>)> {
        let (block, byte) = self.layout.desc(group);
        let all = self.layout.entries_per_group();
        let said = file.block(store, r, block)?.map_or(all, |b| u64::from(le32(&b, byte)));
        let bitmap = file.block(store, r, self.layout.bitmap_block(group))?;
        let zeroes = bitmap.as_ref().map_or(all, |b| zeroes(b));
        Ok((said == zeroes, bitmap))
    }

    /// Free entries of a group.
    fn group_free<R: Resolve>(&self, file: &MetaFile, store: &Store, r: &R, group: u64) -> Result<u64> {
        let (block, byte) = self.layout.desc(group);
        Ok(match file.block(store, r, block)? {
            Some(b) => u64::from(le32(&b, byte)).min(self.layout.entries_per_group()),
            None => self.layout.entries_per_group(),
        })
    }

    fn change_group_free<R: Resolve>(
        &self,
        file: &mut MetaFile,
        store: &Store,
        r: &R,
        group: u64,
        delta: i32,
    ) -> Result<()> {
        let (block, byte) = self.layout.desc(group);
        let all = u32::try_from(self.layout.entries_per_group()).unwrap_or(u32::MAX);
        let b = file.block_mut(store, r, block, |b| {
            for slot in b.chunks_exact_mut(4) {
                slot.copy_from_slice(&all.to_le_bytes());
            }
        })?;
        let now = le32(b, byte).saturating_add_signed(delta);
        if let Some(slot) = b.get_mut(byte..byte + 4) {
            slot.copy_from_slice(&now.to_le_bytes());
        }
        Ok(())
    }

    /// An entry's bit as it is, whatever its group's count says.
    pub fn bit<R: Resolve>(&self, file: &MetaFile, store: &Store, r: &R, nr: u64) -> Result<bool> {
        let (group, bit) = (self.layout.group(nr), self.layout.bit(nr));
        let bitmap = file.block(store, r, self.layout.bitmap_block(group))?;
        Ok(bitmap.is_some_and(|b| b.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1)))
    }

    /// Whether an entry is allocated; in a damaged group it may be.
    pub fn is_allocated<R: Resolve>(&self, file: &MetaFile, store: &Store, r: &R, nr: u64) -> bool {
        let (group, bit) = (self.layout.group(nr), self.layout.bit(nr));
        match file.block(store, r, self.layout.bitmap_block(group)) {
            Ok(Some(b)) if b.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1) => true,
            Ok(_) => !matches!(self.sound_group(file, store, r, group), Ok((true, _))),
            Err(_) => true,
        }
    }

    /// Blocks of entries among `blocks` of which every entry is free; none of a group that is damaged, or of which something
    /// cannot be read.
    pub fn free_blocks<R: Resolve>(
        &self,
        file: &MetaFile,
        store: &Store,
        r: &R,
        blocks: impl Iterator<Item = u64>,
    ) -> Vec<u64> {
        let per_block = self.layout.entries_per_block();
        let mut bitmap: Option<(u64, Option<Block>)> = None;
        let mut free = Vec::new();
        for block in blocks {
            let Kind::Entries { first } = self.layout.kind(block) else { continue };
            let group = self.layout.group(first);
            if bitmap.as_ref().is_none_or(|(known, _)| *known != group) {
                let sound = self.sound_group(file, store, r, group);
                bitmap = Some((group, sound.ok().and_then(|(is, b)| b.filter(|_| is))));
            }
            let Some((_, Some(bits))) = &bitmap else { continue };
            let taken = |nr| {
                let bit = self.layout.bit(nr);
                bits.get(bit / 8).is_none_or(|byte| byte >> (bit % 8) & 1 == 1)
            };
            // The last block of a group may have places behind its entries.
            let behind = (group + 1).saturating_mul(self.layout.entries_per_group());
            if !(first..first.saturating_add(per_block).min(behind)).any(taken) {
                free.push(block);
            }
        }
        free
    }

    /// The first free entry; damaged groups are passed over. `skip` is asked about each: `None` takes it, else the
    /// search goes on at the number it says, which is greater.
    pub fn find_free<R: Resolve>(
        &self,
        file: &MetaFile,
        store: &Store,
        r: &R,
        search: Search,
        skip: impl Fn(u64) -> Option<u64>,
    ) -> Result<Option<u64>> {
        let Search { from, end_group, trusted } = search;
        let per_group = self.layout.entries_per_group();
        let bits = per_group as usize;
        let mut group = self.layout.group(from);
        let mut bit = self.layout.bit(from);
        let mut damaged = 0;
        'groups: while group < end_group.min(self.layout.ngroups()) {
            let usable = self.usable(file, store, r, group, trusted == Some(group));
            if usable.is_none() && !self.is_full(file, store, r, group) {
                damaged += 1;
                if damaged > DAMAGED_MOST {
                    return Err(Error::corrupt(format!("group {group}"), self.name, "no group is sound"));
                }
            }
            if let Some(bitmap) = usable {
                while bit < bits {
                    let found = match &bitmap {
                        Some(b) => zero_bit(b, bit, bits),
                        None => Some(bit),
                    };
                    let Some(found) = found else { break };
                    let nr = group * per_group + found as u64;
                    let Some(further) = skip(nr) else { return Ok(Some(nr)) };
                    bit = self.layout.bit(further);
                    if self.layout.group(further) != group {
                        group = self.layout.group(further);
                        continue 'groups;
                    }
                }
            }
            group += 1;
            bit = 0;
        }
        Ok(None)
    }

    fn is_full<R: Resolve>(&self, file: &MetaFile, store: &Store, r: &R, group: u64) -> bool {
        self.group_free(file, store, r, group).is_ok_and(|free| free == 0)
    }

    /// The bitmap of a group (none: all are free) that is sound and has free entries.
    #[expect(clippy::option_option, reason = "a bitmap that is not there yet says that all is free")]
    fn usable<R: Resolve>(
        &self,
        file: &MetaFile,
        store: &Store,
        r: &R,
        group: u64,
        trusted: bool,
    ) -> Option<Option<Block>> {
        if self.is_full(file, store, r, group) {
            return None;
        }
        if trusted {
            return file.block(store, r, self.layout.bitmap_block(group)).ok();
        }
        self.sound_group(file, store, r, group).ok().and_then(|(sound, bitmap)| sound.then_some(bitmap))
    }

    /// Marks a free entry allocated.
    pub fn set<R: Resolve>(&self, file: &mut MetaFile, store: &Store, r: &R, nr: u64) -> Result<()> {
        let bit = self.layout.bit(nr);
        let group = self.layout.group(nr);
        // Both blocks are there before either changes.
        self.change_group_free(file, store, r, group, 0)?;
        let b = file.block_mut(store, r, self.layout.bitmap_block(group), |_| {})?;
        match b.get_mut(bit / 8) {
            Some(byte) if *byte >> (bit % 8) & 1 == 0 => *byte |= 1 << (bit % 8),
            _ => return Err(Error::corrupt(format!("entry {nr}"), self.name, "allocated twice")),
        }
        self.change_group_free(file, store, r, group, -1)
    }

    /// Marks an entry free; one that is free already, or of a damaged group, is left alone and reported as `false`. Errors: the
    /// device's; nothing is changed then.
    pub fn clear<R: Resolve>(&self, file: &mut MetaFile, store: &Store, r: &R, nr: u64) -> Result<bool> {
        match self.sound_group(file, store, r, self.layout.group(nr)) {
            Ok((true, _)) => self.unset(file, store, r, nr),
            Err(e @ Error::Device(_)) => Err(e),
            _ => Ok(false),
        }
    }

    /// The same for entries of one group, which is looked at once. How many were freed.
    pub fn clear_all<R: Resolve>(
        &self,
        file: &mut MetaFile,
        store: &Store,
        r: &R,
        numbers: impl Iterator<Item = u64>,
    ) -> Result<u64> {
        let mut numbers = numbers.peekable();
        let Some(group) = numbers.peek().map(|nr| self.layout.group(*nr)) else { return Ok(0) };
        if !matches!(self.sound_group(file, store, r, group), Ok((true, Some(_)))) {
            return Ok(0);
        }
        self.change_group_free(file, store, r, group, 0)?;
        let bitmap = file.block_mut(store, r, self.layout.bitmap_block(group), |_| {})?;
        let mut freed = 0;
        for bit in numbers.map(|nr| self.layout.bit(nr)) {
            let mask = 1 << (bit % 8);
            if let Some(byte) = bitmap.get_mut(bit / 8).filter(|byte| **byte & mask != 0) {
                *byte &= !mask;
                freed += 1;
            }
        }
        self.change_group_free(file, store, r, group, freed)?;
        Ok(u64::from(freed.unsigned_abs()))
    }

    /// The same in any group, for whoever counts it again.
    pub fn unset<R: Resolve>(&self, file: &mut MetaFile, store: &Store, r: &R, nr: u64) -> Result<bool> {
        if !self.bit(file, store, r, nr)? {
            return Ok(false);
        }
        let (group, bit) = (self.layout.group(nr), self.layout.bit(nr));
        self.change_group_free(file, store, r, group, 0)?;
        let b = file.block_mut(store, r, self.layout.bitmap_block(group), |_| {})?;
        if let Some(byte) = b.get_mut(bit / 8) {
            *byte &= !(1 << (bit % 8));
        }
        self.change_group_free(file, store, r, group, 1)?;
        Ok(true)
    }

    /// Counts the free entries of every group again, and returns how many counts were wrong.
    pub fn recount<R: Resolve>(&self, file: &mut MetaFile, store: &Store, r: &R) -> Result<u64> {
        let mut keys: Vec<u64> = file.data.keys().copied().collect();
        let reader = crate::meta::NodeReader { nodes: &file.map.nodes, store, resolve: r };
        crate::bmap::for_each(&file.map.root, &reader, 0, |key, _| {
            keys.push(key);
            std::ops::ControlFlow::Continue(())
        })?;
        keys.sort_unstable();
        keys.dedup();
        let all = self.layout.entries_per_group();
        let mut free = std::collections::BTreeMap::new();
        for key in &keys {
            match self.layout.kind(*key) {
                Kind::Bitmap { group } => {
                    let ones = file
                        .block(store, r, *key)?
                        .map_or(0, |b| b.iter().map(|byte| u64::from(byte.count_ones())).sum());
                    free.insert(group, all.saturating_sub(ones));
                }
                Kind::Descriptor { first_group } => {
                    // Those without a bitmap are free.
                    for group in first_group..first_group + self.layout.groups_per_desc() {
                        free.entry(group).or_insert(all);
                    }
                }
                Kind::Entries { .. } => {}
            }
        }
        let mut wrong = 0;
        for (group, free) in free {
            let (block, byte) = self.layout.desc(group);
            let missing = file.block(store, r, block)?.is_none();
            if missing && free == all {
                continue;
            }
            if missing {
                self.change_group_free(file, store, r, group, 0)?;
            }
            let count = u32::try_from(free).unwrap_or(u32::MAX);
            if file.block(store, r, block)?.is_some_and(|b| le32(&b, byte) == count) {
                continue;
            }
            wrong += 1;
            let b = file.block_mut(store, r, block, |_| {})?;
            if let Some(slot) = b.get_mut(byte..byte + 4) {
                slot.copy_from_slice(&count.to_le_bytes());
            }
        }
        Ok(wrong)
    }

    /// Groups that have a descriptor block so far.
    pub fn existing_groups<R: Resolve>(&self, file: &MetaFile, store: &Store, r: &R) -> Result<u64> {
        let last = file.last_block(store, r)?.unwrap_or(0);
        Ok((last / self.layout.blocks_per_desc() + 1) * self.layout.groups_per_desc())
    }

    /// Groups up to the one that holds the greatest mapped block.
    pub fn used_groups<R: Resolve>(&self, file: &MetaFile, store: &Store, r: &R) -> Result<u64> {
        let last = file.last_block(store, r)?.unwrap_or(0);
        Ok(match self.layout.kind(last) {
            Kind::Descriptor { first_group } => first_group + 1,
            Kind::Bitmap { group } => group + 1,
            Kind::Entries { first } => self.layout.group(first) + 1,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use silt_device::MemoryDevice;

    use super::*;
    use crate::meta::Physical;
    use crate::mkfs::{Parameters, Plan};
    use crate::volume::{OpenOptions, Volume};

    #[test]
    fn zero_bits_are_found_across_words() {
        let mut b = vec![0xffu8; 64];
        assert_eq!(zero_bit(&b, 0, 512), None);
        b[37] = 0b1101_1111;
        assert_eq!(zero_bit(&b, 0, 512), Some(37 * 8 + 5));
        assert_eq!(zero_bit(&b, 37 * 8 + 5, 512), Some(37 * 8 + 5));
        assert_eq!(zero_bit(&b, 37 * 8 + 6, 512), None);
        assert_eq!(zero_bit(&b, 0, 37 * 8 + 5), None);
    }

    #[test]
    fn zero_bits_are_counted() {
        let mut b = vec![0u8; 1024];
        assert_eq!(zeroes(&b), 8192);
        b[..700].fill(0xff);
        assert_eq!(zeroes(&b), 8192 - 5600);
        b[700] = 0b101;
        b[64] = 0x7f;
        b[1023] = 0x80;
        let naive: u64 = b.iter().map(|byte| u64::from(byte.count_zeros())).sum();
        assert_eq!((zeroes(&b), naive), (naive, 8192 - 5600 - 2 + 1 - 1));
    }

    /// Given back together it comes to the same as one by one, also where some are free already.
    #[test]
    fn many_are_cleared_as_one_by_one() {
        let mut v = volume();
        let all: Vec<u64> = (0..300).map(|_| v.dat.allocate(&mut v.store).unwrap().0).collect();
        let palloc = v.dat.palloc;
        let some: Vec<u64> = all.iter().copied().filter(|n| n % 3 != 0).chain([all[299] + 7]).collect();
        let (mut one, mut many) = (v.dat.clone(), v.dat.clone());
        let cleared = |file: &mut MetaFile, n| u64::from(palloc.clear(file, &v.store, &Physical, n).unwrap());
        let singly: u64 = some.iter().map(|n| cleared(&mut one.file, *n)).sum();
        let together =
            |file: &mut MetaFile| palloc.clear_all(file, &v.store, &Physical, some.iter().copied()).unwrap();
        assert_eq!((together(&mut many.file), singly), (200, 200));
        assert!(one.file.data == many.file.data);
        assert_eq!(together(&mut many.file), 0);
        assert!(one.file.data == many.file.data);
    }

    /// Numbers of a group whose blocks disagree are neither handed out nor given back.
    #[test]
    fn a_damaged_group_is_passed_over() {
        let mut v = volume();
        let first = v.dat.allocate(&mut v.store).unwrap().0;
        let (desc, byte) = v.dat.palloc.layout.desc(0);
        let per_group = v.dat.palloc.layout.entries_per_group();
        for damaged in [desc, v.dat.palloc.layout.bitmap_block(0)] {
            let mut dat = v.dat.clone();
            // Another value of the count, or a bit of the bitmap.
            dat.file.block_mut(&v.store, &Physical, damaged, |_| {}).unwrap()[byte + 1] ^= 0x40;
            dat.forget_trust();
            let nr = dat.allocate(&mut v.store).unwrap().0;
            assert!(nr >= per_group, "block {damaged}: {nr}");
            let palloc = dat.palloc;
            assert!(!palloc.clear(&mut dat.file, &v.store, &Physical, first).unwrap());
            let numbers = [first].into_iter();
            assert_eq!(palloc.clear_all(&mut dat.file, &v.store, &Physical, numbers).unwrap(), 0);
            assert!(palloc.is_allocated(&dat.file, &v.store, &Physical, per_group - 1), "it may be");
            assert!(palloc.clear(&mut dat.file, &v.store, &Physical, nr).unwrap());
        }
        assert!(v.dat.allocate(&mut v.store).unwrap().0 < per_group);
    }

    fn volume() -> Volume {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let parameters = Parameters { blocks_per_segment: 256, now: 1000, ..Parameters::default() };
        Plan::new(parameters, 64 << 20).unwrap().write(&*device, false).unwrap();
        Volume::open(device, &OpenOptions::default()).unwrap().0
    }
}
