//! What the mended tree has not and a rescue reads.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;

use silt_engine::{Attr, Tree, Volume};
use silt_format::Ino;
use silt_format::dir::{self, file_type};
use silt_verify::rescue::{Content, Directory, Inode, Note, Origin, Problem, Sink, Tree as Read};

use super::take::each_block;
use super::{Lack, Wanted};
use crate::dirs::Name;
use crate::{Error, Result};

/// Names of a directory, with number and type of what they name.
type Names = HashMap<Vec<u8>, (u64, u8)>;

/// The names in a directory of the mended tree, as far as it can be read.
fn names_of(v: &mut Volume, ino: u64) -> Names {
    let (mut keys, mut all) = (Vec::new(), Names::new());
    let _ = v.for_each_data(Tree::Live, Ino(ino), 0, |key| {
        keys.push(key);
        ControlFlow::Continue(())
    });
    for key in keys {
        let Ok(Some(b)) = v.read_block(Tree::Live, Ino(ino), key) else { continue };
        for e in dir::entries(&b).map_while(std::result::Result::ok) {
            if e.ino.0 != 0 && e.name != b"." && e.name != b".." {
                all.insert(e.name.to_vec(), (e.ino.0, e.file_type));
            }
        }
    }
    all
}

/// What the mended tree has for an inode of the rescued one.
enum There {
    /// The same file.
    Same(Attr),
    Nothing,
    /// Another file, which the rounds so far made up.
    MadeUp,
    /// Another file, or it cannot be told.
    Other,
}

/// Meets all that a rescue reads, and notes what the mended tree has not.
pub(super) struct Compare<'m, 't, 'r, 'd> {
    v: &'m mut Volume,
    tree: &'t Read<'r, 'd>,
    wanted: &'t Wanted<'t>,
    /// Directories of the mended tree by their path in the rescued one.
    directories: HashMap<Vec<u8>, u64>,
    /// The names in the directory that was looked at last.
    at: Option<(u64, Names)>,
    pub lacks: BTreeMap<u64, Lack>,
    /// Names that are missing, those of a directory behind its own.
    pub names: Vec<Name>,
    /// Names that a newer version of their directory does not have.
    pub gone: BTreeSet<(u64, Vec<u8>)>,
    /// Inodes of which nothing has told so far, and a rescue does not know whether they are those of the moment.
    pub unsure: BTreeSet<u64>,
}

/// The directory and the last name of a path.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(i) => (&path[..i], &path[i + 1..]),
        None => (&[], path),
    }
}

fn same_attributes(a: &Attr, b: &Attr) -> bool {
    Attr { links: 0, ..a.clone() } == Attr { links: 0, ..b.clone() }
}

impl<'m, 't, 'r, 'd> Compare<'m, 't, 'r, 'd> {
    pub fn new(v: &'m mut Volume, tree: &'t Read<'r, 'd>, wanted: &'t Wanted<'t>) -> Self {
        Compare {
            v,
            tree,
            wanted,
            directories: HashMap::new(),
            at: None,
            lacks: BTreeMap::new(),
            names: Vec::new(),
            gone: BTreeSet::new(),
            unsure: BTreeSet::new(),
        }
    }
}

impl Compare<'_, '_, '_, '_> {
    fn there(&mut self, inode: &Inode) -> There {
        match self.v.inode(Tree::Live, Ino(inode.ino)) {
            Err(silt_engine::Error::NoInode(_)) => There::Nothing,
            Ok(i) if inode.raw.file_type() != i.attr.file_type() => {
                if self.wanted.told.contains(&inode.ino) {
                    There::MadeUp
                } else {
                    There::Other
                }
            }
            // An inode that was made up has none. What was put back may have been another file's that had the number before.
            Ok(i)
                if inode.origin == Origin::Made
                    || i.attr.generation == inode.raw.generation.get()
                    || self.wanted.put_back.contains(&inode.ino) =>
            {
                There::Same(i.attr.clone())
            }
            Ok(_) if self.wanted.told.contains(&inode.ino) => There::MadeUp,
            Ok(_) | Err(_) => There::Other,
        }
    }

    /// What a name of a directory is there.
    fn named(&mut self, directory: u64, name: &[u8]) -> Option<(u64, u8)> {
        if self.lacks.contains_key(&directory) {
            return None;
        }
        if self.at.as_ref().is_none_or(|(ino, _)| *ino != directory) {
            let mut names = names_of(self.v, directory);
            names.retain(|name, _| !self.gone.contains(&(directory, name.clone())));
            self.at = Some((directory, names));
        }
        self.at.as_ref()?.1.get(name).copied()
    }

    /// Notes a name that is missing.
    fn want(&mut self, path: &[u8], inode: &Inode) {
        let (parent, name) = split(path);
        if let Some(directory) = self.directories.get(parent).copied()
            && self.named(directory, name).is_none()
        {
            let (ino, links) = (inode.ino, inode.raw.links_count.get().into());
            self.names.push(Name { directory, name: name.to_vec(), ino, links });
        }
    }

    /// Whether a rescue reads enough of a file that is not there to make it.
    fn is_worth(&self, inode: &Inode, content: &Content, problem: &Problem) -> bool {
        // A symlink without a target is none.
        if inode.raw.file_type() == 0o120_000 && self.tree.link(inode).is_none() {
            return false;
        }
        let possible = content.size <= self.v.geometry().max_file_size();
        let something = !content.mapped.extents.is_empty() || !problem.notes.contains(&Note::AttributesLost);
        possible
            && something
            && (!self.wanted.whole_only || (problem.notes.is_empty() && problem.missing.is_empty()))
    }

    fn missing(&mut self, path: &[u8], inode: &Inode, content: &Content, problem: &Problem) -> bool {
        if !self.is_worth(inode, content, problem) {
            return false;
        }
        let parent = self.directories.get(split(path).0).copied().unwrap_or(Ino::ROOT.0);
        let kind = file_type::from_mode(inode.raw.file_type());
        self.lacks.insert(inode.ino, Lack::Inode(kind, parent));
        self.want(path, inode);
        true
    }

    /// Where a directory was put back and the rescue reads a newer one: what only the older has goes.
    fn newer_directory(&mut self, path: &[u8], inode: &Inode, found: &Directory) -> Result<()> {
        let There::Same(attr) = self.there(inode) else { return Ok(()) };
        let own = Attr::of(&inode.raw);
        let guess = !self.wanted.whole_only && self.wanted.put_back.contains(&inode.ino);
        let problem = self.tree.examine(path, inode, &found.content);
        let known =
            |n: &Note| matches!(n, Note::Doubtful | Note::Unverified { .. } | Note::OlderAttributes { .. });
        let complete = found.lost == 0 && problem.notes.iter().all(known);
        if !guess || !complete || own.ctime < attr.ctime {
            return Ok(());
        }
        let there: HashMap<&[u8], u64> = found.entries.iter().map(|e| (&e.name[..], e.ino)).collect();
        for (name, (ino, _)) in names_of(self.v, inode.ino) {
            if there.get(&name[..]) != Some(&ino) {
                self.gone.insert((inode.ino, name));
            }
        }
        if own.ctime > attr.ctime {
            let (links, size) = (attr.links, attr.size);
            *self.v.attr_mut(Ino(inode.ino))? = Attr { links, size, ..own };
        }
        // Names are looked for without those that go.
        self.at = None;
        Ok(())
    }

    /// Whether the content that a rescue reads is that of the mended tree.
    fn same_content(&mut self, inode: &Inode, content: &Content) -> Result<bool> {
        let bs = self.v.geometry().bs();
        let behind = content.size.div_ceil(bs as u64);
        // What only the mended one has.
        let (extents, mut more) = (&content.mapped.extents, false);
        let walked = self.v.for_each_data(Tree::Live, Ino(inode.ino), 0, |key| {
            let n = extents.partition_point(|e| e.offset <= key);
            let is_in = n.checked_sub(1).and_then(|n| extents.get(n)).is_some_and(|e| key - e.offset < e.len);
            more = key < behind && !is_in;
            if key >= behind || more { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if walked.is_err() || more {
            return Ok(false);
        }
        let mut same = true;
        let v = &mut *self.v;
        each_block(self.tree, content, bs, |key, block| {
            same = v.read_block(Tree::Live, Ino(inode.ino), key).is_ok_and(|own| {
                let used = usize::try_from(content.size.saturating_sub(key.saturating_mul(bs as u64)));
                let used = used.unwrap_or(bs).min(bs);
                let zeros = |b: &[u8]| b.iter().all(|byte| *byte == 0);
                own.map_or(zeros(&block[..used]), |own| own.get(..used) == block.get(..used))
            });
            Ok(same)
        })?;
        let size = self.v.inode(Tree::Live, Ino(inode.ino))?.attr.size;
        Ok(same && size == content.size)
    }
}

impl Sink for Compare<'_, '_, '_, '_> {
    type Error = Error;

    fn directory(&mut self, path: &[u8], inode: &Inode, found: &Directory) -> Result<()> {
        if path.is_empty() {
            self.directories.insert(Vec::new(), Ino::ROOT.0);
            return self.newer_directory(path, inode, found);
        }
        self.newer_directory(path, inode, found)?;
        let (parent, name) = split(path);
        let parent = self.directories.get(parent).copied();
        if let Some((ino, kind)) = parent.and_then(|parent| self.named(parent, name)) {
            if kind == file_type::DIR {
                self.directories.insert(path.to_vec(), ino);
            }
            return Ok(());
        }
        match self.there(inode) {
            There::Same(_) => self.want(path, inode),
            There::Nothing => {
                let problem = self.tree.examine(path, inode, &found.content);
                if !self.missing(path, inode, &found.content, &problem) {
                    return Ok(());
                }
            }
            There::MadeUp | There::Other => return Ok(()),
        }
        self.directories.insert(path.to_vec(), inode.ino);
        Ok(())
    }

    fn file(&mut self, path: &[u8], inode: &Inode) -> Result<()> {
        match self.there(inode) {
            There::Other => {}
            There::MadeUp => {
                let content = self.tree.content(inode);
                let problem = self.tree.examine(path, inode, &content);
                // A rescue believes an entry whose log verifies, whatever its name says of its type.
                let (parent, name) = split(path);
                let parent = self.directories.get(parent).copied();
                let named = parent.and_then(|parent| self.named(parent, name));
                let kind = file_type::from_mode(inode.raw.file_type());
                let fits = named.is_none_or(|(_, own)| own == kind);
                if fits && self.is_worth(inode, &content, &problem) && problem.missing.is_empty() {
                    self.lacks.insert(inode.ino, Lack::Content);
                    self.want(path, inode);
                }
            }
            There::Nothing => {
                let content = self.tree.content(inode);
                let problem = self.tree.examine(path, inode, &content);
                self.missing(path, inode, &content, &problem);
            }
            There::Same(attr) => {
                // Taken only if it wants a name.
                self.want(path, inode);
                let own = Attr::of(&inode.raw);
                let differs = !same_attributes(&attr, &own);
                let content = self.tree.content(inode);
                let problem = self.tree.examine(path, inode, &content);
                if !differs && !self.wanted.told.contains(&inode.ino) {
                    if problem.notes.iter().any(|n| !matches!(n, Note::Unverified { .. })) {
                        self.unsure.insert(inode.ino);
                    }
                    return Ok(());
                }
                if content.size > self.v.geometry().max_file_size() {
                    return Ok(());
                }
                let whole = problem.notes.is_empty() && problem.missing.is_empty();
                let guess = !self.wanted.whole_only && self.wanted.put_back.contains(&inode.ino);
                let newer = guess
                    && problem.only_unverified()
                    && (own.ctime > attr.ctime
                        || own.generation != attr.generation
                        || (own.ctime == attr.ctime && !self.same_content(inode, &content)?));
                let own_content = guess
                    && problem.only_older()
                    && own.ctime >= attr.ctime
                    && !self.same_content(inode, &content)?;
                if newer || own_content || (whole && (differs || !self.same_content(inode, &content)?)) {
                    self.lacks.insert(inode.ino, Lack::Content);
                }
            }
        }
        Ok(())
    }

    fn link(&mut self, path: &[u8], inode: &Inode) -> Result<()> {
        if matches!(self.there(inode), There::Same(_) | There::MadeUp) || self.lacks.contains_key(&inode.ino)
        {
            self.want(path, inode);
        }
        Ok(())
    }

    fn lost(&mut self, _: &[u8], _: u64, _: &'static str) -> Result<()> {
        Ok(())
    }
}
