//! What of a moment, and of each file in it, can be read and verifies.

use std::ops::Range;
use std::sync::Arc;

use super::state::State;
use super::tree::{Content, Directory, Inode, Origin, Tree};
use super::volume::{Rescue, Root};
use super::walk::{Sink, walk};
use crate::inode::SYMLINK;
use crate::{Error, Watch};

/// What is wrong with a file beside missing content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    /// So many bytes came from logs whose checksum does not match: most of them are as they were.
    Unverified { bytes: u64 },
    /// The map or the inode was read from a block that does not verify, or was put together from summaries.
    Doubtful,
    /// Attributes are those of an earlier checkpoint.
    OlderAttributes { cno: u64 },
    /// Owner, permissions and times are lost.
    AttributesLost,
    /// The size is told by the last block: zeros at the end are missing.
    SizeGuessed,
    /// So many blocks of a directory are lost: names are missing or from older versions.
    NamesLost { blocks: u64 },
    /// A name whose file could not be found.
    Lost { why: &'static str },
    /// Could not be made at the destination.
    NotMade { why: std::io::ErrorKind },
    /// A whole version of an earlier checkpoint was put beside it.
    WholeVersionBeside { cno: u64 },
    /// What was synced later, behind a log that does not verify, is lost in part: a copy with so many bytes of it that are
    /// whole was put beside it.
    SyncedBeside { bytes: u64 },
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Names from the root joined by "/".
    pub path: Vec<u8>,
    pub ino: u64,
    /// Bytes that are lost, ascending.
    pub missing: Vec<Range<u64>>,
    pub notes: Vec<Note>,
}

impl Problem {
    /// Whether nothing is lost: it only does not verify.
    pub fn only_unverified(&self) -> bool {
        self.missing.is_empty()
            && self.notes.iter().all(|n| matches!(n, Note::Unverified { .. } | Note::Doubtful))
    }

    /// Whether the content is all there but for zeros at its end: it may not verify, and the attributes may be older.
    pub fn only_older(&self) -> bool {
        use Note::{Doubtful, OlderAttributes, SizeGuessed, Unverified};
        let older =
            |n: &Note| matches!(n, Doubtful | SizeGuessed | Unverified { .. } | OlderAttributes { .. });
        self.missing.is_empty() && self.notes.iter().all(older)
    }

    /// Bytes that are lost.
    pub fn missing_bytes(&self) -> u64 {
        self.missing.iter().map(|r| r.end - r.start).fold(0, u64::saturating_add)
    }
}

/// Problems that are kept; more are counted.
pub const PROBLEMS_KEPT: usize = 100_000;

/// What there is in a tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    pub directories: u64,
    /// Files of all other types.
    pub files: u64,
    /// Further names of files.
    pub links: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Files and directories of which something does not verify, and nothing is known to be lost.
    pub unverified: u64,
    /// Files and directories of which something is lost, and names that lead to nothing.
    pub damaged: u64,
    /// The first [`PROBLEMS_KEPT`] of both.
    pub problems: Vec<Problem>,
}

/// How good a moment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// Nothing of its tree can be read.
    Unreadable,
    /// Something of it is lost.
    Partly,
    /// Nothing is known to be lost, but not all of it verifies.
    Unverified,
    /// All that can be verified without reading content verifies; content is covered by checksums that match.
    Whole,
}

impl Tally {
    /// How good a tree is.
    pub fn grade(&self) -> Grade {
        match self {
            _ if self.directories + self.files == 0 => Grade::Unreadable,
            _ if self.damaged > 0 => Grade::Partly,
            _ if self.unverified > 0 => Grade::Unverified,
            _ => Grade::Whole,
        }
    }

    pub(super) fn add(&mut self, problem: Problem) {
        if problem.missing.is_empty() && problem.notes.is_empty() {
            return;
        }
        if problem.only_unverified() {
            self.unverified += 1;
        } else {
            self.damaged += 1;
        }
        if self.problems.len() < PROBLEMS_KEPT {
            self.problems.push(problem);
        }
    }
}

/// Adds a range behind others.
pub(super) fn add_range(to: &mut Vec<Range<u64>>, range: Range<u64>) {
    match to.last_mut() {
        _ if range.is_empty() => {}
        Some(last) if last.end == range.start => last.end = range.end,
        _ => to.push(range),
    }
}

/// What is wrong with a file, by its map and its inode. Unreadable sectors within its blocks are not looked for.
pub(super) fn examine(tree: &Tree<'_, '_>, path: &[u8], inode: &Inode, content: &Content) -> Problem {
    let bs = tree.block_size();
    let cut = |r: Range<u64>| r.start.saturating_mul(bs)..r.end.saturating_mul(bs).min(content.size);
    let mut p = Problem { path: path.to_vec(), ino: inode.ino, missing: Vec::new(), notes: Vec::new() };
    for range in &content.mapped.lost {
        add_range(&mut p.missing, cut(range.clone()));
    }
    let unsound = content.mapped.extents.iter().filter(|e| !e.sound);
    let bytes = unsound.map(|e| cut(e.offset..e.end())).map(|r| r.end.saturating_sub(r.start));
    match bytes.fold(0, u64::saturating_add) {
        0 => {}
        bytes => p.notes.push(Note::Unverified { bytes }),
    }
    match inode.origin {
        Origin::Sound | Origin::Doubtful if content.mapped.doubtful || inode.origin == Origin::Doubtful => {
            p.notes.push(Note::Doubtful);
        }
        Origin::Sound | Origin::Doubtful => {}
        Origin::Older { cno } => p.notes.push(Note::OlderAttributes { cno }),
        Origin::Made => p.notes.push(Note::AttributesLost),
    }
    if content.guessed {
        p.notes.push(Note::SizeGuessed);
    }
    p
}

impl Tree<'_, '_> {
    /// What is wrong with a file of this content, sectors within its blocks that could not be read included.
    pub fn examine(&self, path: &[u8], inode: &Inode, content: &Content) -> Problem {
        let mut problem = examine(self, path, inode, content);
        let bs = self.block_size();
        for e in &content.mapped.extents {
            for r in self.survey().unreadable_in(e.block..e.block.saturating_add(e.len)) {
                let offset = |block: u64| (block - e.block + e.offset).saturating_mul(bs).min(content.size);
                problem.missing.push(offset(r.start)..offset(r.end));
            }
        }
        problem.missing.retain(|r| !r.is_empty());
        problem.missing.sort_unstable_by_key(|r| r.start);
        problem
    }
}

/// The same of a directory.
pub(super) fn examine_directory(
    tree: &Tree<'_, '_>,
    path: &[u8],
    inode: &Inode,
    found: &Directory,
) -> Problem {
    let mut p = examine(tree, path, inode, &found.content);
    p.missing.clear();
    p.notes.retain(|n| *n != Note::SizeGuessed);
    if found.lost > 0 {
        p.notes.push(Note::NamesLost { blocks: found.lost });
    }
    p
}

struct Judge<'t, 'r, 'd> {
    tree: &'t Tree<'r, 'd>,
    tally: Tally,
}

impl Sink for Judge<'_, '_, '_> {
    type Error = std::convert::Infallible;

    fn directory(&mut self, path: &[u8], inode: &Inode, found: &Directory) -> Result<(), Self::Error> {
        // A root that nothing is known of is not a tree.
        if path.is_empty() && inode.origin == Origin::Made && found.entries.is_empty() {
            return self.lost(path, inode.ino, "the root directory is lost");
        }
        self.tally.directories += 1;
        let problem = examine_directory(self.tree, path, inode, found);
        self.tally.add(problem);
        Ok(())
    }

    fn file(&mut self, path: &[u8], inode: &Inode) -> Result<(), Self::Error> {
        self.tally.files += 1;
        let content = self.tree.content(inode);
        let mut problem = self.tree.examine(path, inode, &content);
        if inode.raw.file_type() == SYMLINK && self.tree.link(inode).is_none() {
            problem.notes.push(Note::Lost { why: "its target is lost" });
        }
        self.tally.bytes = self.tally.bytes.saturating_add(content.size);
        self.tally.add(problem);
        Ok(())
    }

    fn link(&mut self, _: &[u8], _: &Inode) -> Result<(), Self::Error> {
        self.tally.links += 1;
        Ok(())
    }

    fn lost(&mut self, path: &[u8], ino: u64, why: &'static str) -> Result<(), Self::Error> {
        let notes = vec![Note::Lost { why }];
        self.tally.add(Problem { path: path.to_vec(), ino, missing: Vec::new(), notes });
        Ok(())
    }
}

/// The state that was used last: moments are mostly read through the same super root.
pub(super) type Last<'r, 'd> = Option<(Root, Arc<State<'r, 'd>>)>;

impl<'d> Rescue<'d> {
    /// The tree of a checkpoint. Errors: no such checkpoint, no super root that can be read.
    pub fn tree(&self, cno: u64) -> Result<Tree<'_, 'd>, Error> {
        self.tree_with(cno, &mut None)
    }

    pub(super) fn tree_with<'r>(&'r self, cno: u64, last: &mut Last<'r, 'd>) -> Result<Tree<'r, 'd>, Error> {
        let root = *self.root_for(cno).ok_or_else(|| Error::Damaged("no super root was found".into()))?;
        let state = match last.take() {
            Some((of, state)) if of == root => state,
            _ => self.state(&root)?,
        };
        *last = Some((root, state.clone()));
        Tree::open(state, &root, cno)
    }

    /// Walks the tree of a checkpoint, reads its metadata, and says what of it can be read. `watch` is told in files.
    pub fn judge(&self, cno: u64, watch: &dyn Watch) -> Result<Tally, Error> {
        self.judge_with(cno, watch, &mut None)
    }

    pub(super) fn judge_with<'r>(
        &'r self,
        cno: u64,
        watch: &dyn Watch,
        last: &mut Last<'r, 'd>,
    ) -> Result<Tally, Error> {
        let tree = self.tree_with(cno, last)?;
        let mut judge = Judge { tree: &tree, tally: Tally::default() };
        let Ok(()) = walk(&tree, watch, &mut judge);
        Ok(judge.tally)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::surgeon::Surgeon;
    use crate::{Unwatched, golden};

    #[test]
    fn sound_volumes_are_whole_at_every_moment_without_records() {
        for name in ["basic-4k", "basic-1k", "gc-4k", "btree-1k", "full-4k"] {
            let s = Surgeon::golden(name);
            let rescue = Rescue::open(&s.device, &Unwatched).unwrap();
            let moments = rescue.moments();
            assert_eq!(moments[0].cno, s.cno());
            let sections = golden::manifest(name);
            for m in &moments {
                let tally = rescue.judge(m.cno, &Unwatched).unwrap();
                assert_eq!(tally.grade(), Grade::Whole, "{name} {}: {:?}", m.cno, tally.problems.first());
                let section = if m.cno == s.cno() { "cur".to_owned() } else { format!("cp={}", m.cno) };
                if let Some(files) = sections.get(&section) {
                    let names = tally.directories + tally.files + tally.links;
                    assert_eq!(names, files.len() as u64, "{name} {section}");
                }
            }
            assert!(!rescue.needed_records(), "{name}: summaries are read where there is damage alone");
        }
    }
}
