//! A past tree compared with one before it: what lies in the same disk blocks is the same, and is not looked at again.
//!
//! ```text
//! ifile, block by block:  same disk block, all below it alive -> as before     else -> its inodes are checked
//! directories among those, block by block: names of blocks that went are taken away, those of new ones checked
//! -> links of every inode met on the way, ways up where one changed, sums
//! ```
//!
//! What is found here is only believed where it is nothing: at the first error, or where anything is as it should not
//! be, the tree is checked whole, and that says what is wrong.
//!
//! Memory: that of a tree, which is kept from one to the next, and twice the blocks of directories for a moment.

use std::rc::Rc;

use silt_format::BlockNr;
use silt_format::dir::file_type;
use silt_format::palloc::{Kind, Layout};

use crate::context::Context;
use crate::dirs::{self, Ways};
use crate::files::Scope;
use crate::inode::DIRECTORY;
use crate::sparse::SparseBits;
use crate::tree_check::{self, Names, Now, Slot, Sum, Tree};

/// What lies in the blocks of an ifile, by offset, ascending.
type Slots = Vec<(u64, Slot)>;

/// A tree that was found sound.
pub(crate) struct Past {
    pub slots: Slots,
    pub tree: Tree,
    pub ways: Ways,
}

/// Checks a tree by what differs from another one. None: it must be checked whole, since something may be wrong, or it
/// was ended early.
pub(crate) fn follow(
    c: &Context<'_>,
    now: &Now<'_>,
    known: Past,
    allocated: &Rc<SparseBits>,
) -> Option<Past> {
    let Past { slots, mut tree, mut ways } = known;
    let layout = Layout::ifile(&c.r.g);
    let mut follow = Follow { c, now, layout, met: Vec::new() };
    let (mut slots, changed) = follow.compare(slots, &tree, allocated)?;
    let names = std::mem::take(&mut tree.names);
    let before = follow.leave(&mut tree, &slots, &changed, allocated);
    follow.enter(&mut tree, &mut slots, &changed, allocated)?;
    tree.allocated = Rc::clone(allocated);
    let directories = std::mem::take(&mut tree.directories);
    let new_names = std::mem::take(&mut tree.names);
    let mut touched = [before.directories.as_slice(), &directories].concat();
    touched.sort_unstable();
    touched.dedup();
    let gone = lacking(&touched, &names, &new_names);
    let come = lacking(&touched, &new_names, &names);
    for at in &gone {
        follow.take_away(&mut tree, &mut ways, at)?;
    }
    // Names that are left say the kind that the inode had.
    let kind = |ino: u64| tree.inodes.get(ino).mode & KIND;
    if before.kinds.iter().any(|(ino, was)| kind(*ino) != *was && tree.inodes.get(*ino).named != 0) {
        return None;
    }
    let moved = ways.change(&before.directories, &directories) || !gone.is_empty() || !come.is_empty();
    for blocks in come.chunk_by(|a, b| a.directory == b.directory) {
        let all = of(&new_names, blocks.first()?.directory);
        follow.add(&mut tree, &mut ways, blocks, all)?;
    }
    tree.names = names;
    tree.names.retain(|at| touched.binary_search(&at.directory).is_err());
    tree.names.extend(new_names);
    tree.names.sort_by_key(|at| (at.directory, at.offset));
    follow.check_links(&tree)?;
    if moved {
        dirs::check_ancestry(c, now.cno, &ways);
    }
    let mut sum = Sum::default();
    slots.iter().for_each(|(_, slot)| sum.add(slot));
    tree_check::check_sum(c, now, sum);
    if c.stop() {
        return None;
    }
    Some(Past { slots, tree, ways })
}

/// The bits of a mode that say what kind an inode is.
const KIND: u16 = 0o170_000;

/// What the changed part of the tree before was.
#[derive(Default)]
struct Before {
    /// Directories with links, ascending.
    directories: Vec<u64>,
    /// Inodes and what kind they were.
    kinds: Vec<(u64, u16)>,
}

struct Follow<'c, 'a> {
    c: &'c Context<'a>,
    now: &'c Now<'c>,
    layout: Layout,
    /// Inodes whose links must be looked at.
    met: Vec<u64>,
}

impl Follow<'_, '_> {
    /// The inode numbers of a block of the ifile; none of a block that holds no inodes.
    fn numbers(&self, offset: u64) -> std::ops::Range<u64> {
        let Kind::Entries { first } = self.layout.kind(offset) else { return 0..0 };
        first..self.layout.last_of_block(first).saturating_add(1)
    }

    /// The slots of the tree, and which of them must be looked at.
    fn compare(&self, before: Slots, tree: &Tree, allocated: &SparseBits) -> Option<(Slots, Vec<usize>)> {
        let mut slots = Vec::with_capacity(before.len());
        let mut changed = Vec::new();
        let mut before = before.into_iter().peekable();
        for (offset, block) in self.now.blocks {
            // One that is missing now held something.
            if before.peek().is_some_and(|(at, _)| at < offset) {
                return None;
            }
            let old = before.next_if(|(at, _)| at == offset).map(|(_, slot)| slot);
            let lives = |slot: &Slot| slot.lives.0 <= self.now.cno && self.now.cno < slot.lives.1;
            if let Some(slot) = old.filter(|slot| slot.block == *block && lives(slot)) {
                slots.push((*offset, slot));
            } else if old.is_some() || self.numbers(*offset).any(|ino| allocated.contains(ino)) {
                changed.push(slots.len());
                slots.push((*offset, Slot { block: *block, total: 0, in_use: 0, lives: (0, 0) }));
            }
        }
        if before.next().is_some() {
            return None;
        }
        // A number that comes or goes changes its inode, too.
        let is_looked_at = |ino: u64| {
            let offset = self.layout.entry(ino).block;
            let at = slots.binary_search_by_key(&offset, |(offset, _)| *offset);
            at.is_ok_and(|at| changed.binary_search(&at).is_ok())
        };
        let all = tree.allocated.differing(allocated).all(is_looked_at);
        all.then_some((slots, changed))
    }

    /// Forgets what the changed blocks said of their inodes.
    fn leave(
        &mut self,
        tree: &mut Tree,
        slots: &[(u64, Slot)],
        changed: &[usize],
        allocated: &SparseBits,
    ) -> Before {
        let mut before = Before::default();
        let all = changed.iter().flat_map(|i| self.numbers(slots[*i].0));
        let all: Vec<u64> = all.filter(|ino| tree.allocated.contains(*ino)).collect();
        for ino in all.iter().copied() {
            let known = tree.inodes.slot(ino);
            before.kinds.push((ino, known.mode & KIND));
            if u32::from(known.mode & KIND) == DIRECTORY && known.links != 0 {
                before.directories.push(ino);
            }
            if !allocated.contains(ino) {
                (known.mode, known.links) = (0, 0);
            }
        }
        self.met.extend(all);
        before
    }

    /// Checks the inodes of the changed blocks. The tree has the directories among them afterwards, and no others.
    fn enter(
        &mut self,
        tree: &mut Tree,
        slots: &mut [(u64, Slot)],
        changed: &[usize],
        allocated: &SparseBits,
    ) -> Option<()> {
        let mut scope = Scope { cno: self.now.cno, current: false, mapped: SparseBits::default() };
        for i in changed {
            if self.c.stop() {
                return None;
            }
            let (offset, slot) = &mut slots[*i];
            let inos: Vec<u64> = self.numbers(*offset).filter(|ino| allocated.contains(*ino)).collect();
            *slot = tree_check::inodes(self.c, &mut scope, tree, self.now, *offset, &inos);
            if self.c.out.is_failing() {
                return None;
            }
            self.met.extend(inos);
        }
        Some(())
    }

    /// Takes away the names in a block of a directory that is no part of it any more.
    fn take_away(&mut self, tree: &mut Tree, ways: &mut Ways, at: &Names) -> Option<()> {
        let bytes = self.c.r.block(BlockNr(at.block)).ok()?;
        if at.offset == 0 {
            ways.says(at.directory, 0);
        }
        for e in dirs::named(&dirs::split(&bytes).0, at.offset) {
            let target = tree.inodes.slot(e.ino);
            target.named = target.named.checked_sub(1)?;
            if e.kind == file_type::DIR {
                let own = tree.inodes.slot(at.directory);
                own.subdirectories = own.subdirectories.checked_sub(1)?;
                ways.forget(e.ino, at.directory);
            }
            self.met.push(e.ino);
        }
        self.met.push(at.directory);
        Some(())
    }

    /// Checks new blocks of a directory, of which `all` are given, too.
    fn add(&mut self, tree: &mut Tree, ways: &mut Ways, blocks: &[Names], all: &[Names]) -> Option<()> {
        if self.c.stop() {
            return None;
        }
        dirs::check_blocks(self.c, self.now.cno, tree, blocks, ways, |e| self.met.push(e.ino));
        (!dirs::names_twice(self.c, all)?).then_some(())
    }

    fn check_links(&mut self, tree: &Tree) -> Option<()> {
        self.met.sort_unstable();
        self.met.dedup();
        for ino in self.met.iter().copied() {
            let known = tree.inodes.get(ino);
            let there = tree.allocated.contains(ino);
            if known.named != 0 && (!there || known.links == 0 || known.mode == 0) {
                return None;
            }
            if there {
                tree_check::check_link(self.c, self.now.cno, ino, known);
            }
        }
        Some(())
    }
}

/// The blocks of a directory.
fn of(names: &[Names], directory: u64) -> &[Names] {
    let first = names.partition_point(|at| at.directory < directory);
    let rest = &names[first..];
    &rest[..rest.partition_point(|at| at.directory == directory)]
}

/// The blocks of some directories in `names` that are not in `others`.
fn lacking(directories: &[u64], names: &[Names], others: &[Names]) -> Vec<Names> {
    let of_one = |directory: &u64| {
        let others = of(others, *directory);
        let is_there = |at: &Names| {
            others.binary_search_by_key(&at.offset, |o| o.offset).is_ok_and(|i| others[i] == *at)
        };
        of(names, *directory).iter().filter(move |at| !is_there(at)).copied()
    };
    directories.iter().flat_map(of_one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_differ_are_told() {
        let at = |directory, offset, block| Names { directory, offset, block };
        let before = [at(2, 0, 7), at(2, 1, 8), at(5, 0, 9), at(9, 0, 1)];
        let after = [at(2, 0, 7), at(2, 1, 80), at(6, 0, 3)];
        assert_eq!(lacking(&[2, 5, 6], &before, &after), [at(2, 1, 8), at(5, 0, 9)]);
        assert_eq!(lacking(&[2, 5, 6], &after, &before), [at(2, 1, 80), at(6, 0, 3)]);
        assert_eq!(of(&before, 3), []);
    }
}
