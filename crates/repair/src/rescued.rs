//! What a rescue reads of the damaged volume and the mended tree has not: it is taken from there.
//!
//! A repair trusts the tables and mends them; a rescue trusts nothing and reads each file by itself. Where tables are lost in
//! large parts the second brings more. So when all is mended both trees are compared: files that are not there are made
//! anew with what a rescue reads of them, names come back, and files that the rounds before had to touch get the content
//! that verifies in every block.
//!
//! Memory: that of a rescue, the names of one directory, 100 bytes for each file or name that is missing, and content up to
//! 64 MiB before it is written.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;

use silt_device::{Device, Overlay};
use silt_engine::mend::Mender;
use silt_engine::{Attr, Block, Tree, Volume, writable, zeroed};
use silt_format::dir::{self, file_type};
use silt_format::{Cno, Ino};
use silt_verify::rescue::{
    Content, Directory, Extent, Inode, Note, Origin, Problem, Rescue, Sink, Tree as Read,
};
use silt_verify::{Unwatched, Watch};

use crate::dirs::{self, Name};
use crate::{Error, Result};

/// Bytes in memory of what is planned from which on no further file is brought.
const MEMORY: u64 = 1 << 30;

/// What is wanted of a rescue.
pub(crate) struct Wanted<'a> {
    /// The damaged volume.
    pub original: &'a dyn Device,
    /// The checkpoint of which the mended tree is.
    pub checkpoint: u64,
    /// Inodes that were not as they were when they were mended, or may not be.
    pub told: &'a BTreeSet<u64>,
    /// Of those, the ones that were put back to an older version or put together.
    pub put_back: &'a BTreeSet<u64>,
    /// Only what verifies.
    pub whole_only: bool,
    pub now: u64,
}

/// How a file of the mended tree differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    /// It is not there. Its type by the directory that names it, and the directory.
    Inode(u8, u64),
    /// It has other content or attributes than the rescue reads, which verify; or older ones, and those of the rescue are not
    /// known to be wrong.
    Content,
}

/// Takes from a rescue what is not there. Whether there was anything. `doubts` gets what holds also where nothing is taken.
pub(crate) fn bring(
    mender: &mut Mender,
    trial: &Arc<Overlay>,
    wanted: &Wanted<'_>,
    watch: &dyn Watch,
    said: &mut Vec<String>,
    doubts: &mut Vec<String>,
) -> Result<bool> {
    watch.stage("reading what a rescue reads", 0);
    let Ok(rescue) = Rescue::open(wanted.original, &Unwatched) else { return Ok(false) };
    if rescue.moments().first().is_none_or(|m| m.cno != wanted.checkpoint) {
        return Ok(false);
    }
    let Ok(tree) = rescue.tree(wanted.checkpoint) else { return Ok(false) };
    let mut compare = Compare {
        v: mender.volume(),
        tree: &tree,
        wanted,
        directories: HashMap::new(),
        at: None,
        lacks: BTreeMap::new(),
        names: Vec::new(),
        gone: BTreeSet::new(),
        unsure: BTreeSet::new(),
    };
    tree.walk(watch, &mut compare)?;
    if watch.stop() {
        return Err(Error::Stopped);
    }
    let Compare { lacks, names, gone, unsure, .. } = compare;
    doubts.extend(unsure.difference(&lacks.keys().copied().collect()).map(|ino| {
        format!("inode {ino}: not all that a rescue reads of it verifies: it may be wrong, and nothing tells of that from now on")
    }));
    if lacks.is_empty() && names.is_empty() && gone.is_empty() {
        return Ok(false);
    }
    let mut made = BTreeSet::new();
    for (ino, lack) in &lacks {
        if watch.stop() {
            return Err(Error::Stopped);
        }
        if trial.memory() > MEMORY {
            said.push(format!("there is more that a rescue reads, and too little memory for it: {FIRST}"));
            break;
        }
        if let Lack::Inode(..) = lack {
            made.insert(*ino);
        }
        take(mender, &tree, *ino, *lack, wanted.put_back, said)?;
        mender.relieve(wanted.now)?;
    }
    let told = dirs::Told { revived: made, gone, names, ..dirs::Told::default() };
    dirs::mend(mender.volume(), told, said)?;
    Ok(true)
}

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
struct Compare<'m, 't, 'r, 'd> {
    v: &'m mut Volume,
    tree: &'t Read<'r, 'd>,
    wanted: &'t Wanted<'t>,
    /// Directories of the mended tree by their path in the rescued one.
    directories: HashMap<Vec<u8>, u64>,
    /// The names in the directory that was looked at last.
    at: Option<(u64, Names)>,
    lacks: BTreeMap<u64, Lack>,
    /// Names that are missing, those of a directory behind its own.
    names: Vec<Name>,
    /// Names that a newer version of their directory does not have.
    gone: BTreeSet<(u64, Vec<u8>)>,
    /// Inodes of which nothing has told so far, and a rescue does not know whether they are those of the moment.
    unsure: BTreeSet<u64>,
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
        let mut keys = BTreeSet::new();
        let walked = self.v.for_each_data(Tree::Live, Ino(inode.ino), 0, |key| {
            keys.insert(key);
            ControlFlow::Continue(())
        });
        if walked.is_err() {
            return Ok(false);
        }
        let bs = self.v.geometry().bs();
        let mut same = true;
        let v = &mut *self.v;
        each_block(self.tree, content, bs, |key, block| {
            keys.remove(&key);
            same = v.read_block(Tree::Live, Ino(inode.ino), key).is_ok_and(|own| {
                let used = usize::try_from(content.size.saturating_sub(key.saturating_mul(bs as u64)));
                let used = used.unwrap_or(bs).min(bs);
                let zeros = |b: &[u8]| b.iter().all(|byte| *byte == 0);
                own.map_or(zeros(&block[..used]), |own| own.get(..used) == block.get(..used))
            });
            Ok(same)
        })?;
        let behind = content.size.div_ceil(bs as u64);
        let size = self.v.inode(Tree::Live, Ino(inode.ino))?.attr.size;
        Ok(same && size == content.size && keys.iter().all(|key| *key >= behind))
    }
}

/// Calls `f` with the blocks of a file up to its end, what lies behind that and what cannot be read as zeros, until it
/// returns false.
fn each_block(
    tree: &Read<'_, '_>,
    content: &Content,
    bs: usize,
    mut f: impl FnMut(u64, Block) -> Result<bool>,
) -> Result<()> {
    let behind = content.size.div_ceil(bs as u64);
    for e in &content.mapped.extents {
        if e.offset >= behind {
            break;
        }
        let len = e.len.min(behind - e.offset);
        let (mut done, mut block, mut filled) = (Ok(true), zeroed(bs), 0);
        let mut key = e.offset;
        tree.read_run(&Extent { len, ..*e }, |_, bytes| {
            let mut bytes = bytes.unwrap_or(&[0; 512]);
            while !bytes.is_empty() {
                let n = bytes.len().min(bs - filled);
                let (some, rest) = bytes.split_at(n);
                writable(&mut block)[filled..filled + n].copy_from_slice(some);
                (bytes, filled) = (rest, filled + n);
                if filled == bs {
                    let used = usize::try_from(content.size - key * bs as u64).unwrap_or(bs).min(bs);
                    writable(&mut block)[used..].fill(0);
                    done = f(key, std::mem::replace(&mut block, zeroed(bs)));
                    (key, filled) = (key + 1, 0);
                    if !matches!(done, Ok(true)) {
                        return false;
                    }
                }
            }
            true
        });
        if !done? {
            break;
        }
    }
    Ok(())
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

/// Makes a file what the rescue reads of it.
fn take(
    mender: &mut Mender,
    tree: &Read<'_, '_>,
    ino: u64,
    lack: Lack,
    put_back: &BTreeSet<u64>,
    said: &mut Vec<String>,
) -> Result<()> {
    let (kind, parent) = match lack {
        Lack::Inode(kind, parent) => (kind, parent),
        Lack::Content => (file_type::UNKNOWN, Ino::ROOT.0),
    };
    let Some(inode) = tree.inode(ino, kind) else { return Ok(()) };
    let nr = Ino(ino);
    let bs = mender.volume().geometry().bs();
    let content = tree.content(&inode);
    let mut problem = tree.examine(b"", &inode, &content);
    let mut attr = Attr::of(&inode.raw);
    let mut own = false;
    match lack {
        Lack::Inode(..) => mender.make(nr, Attr { size: 0, ..attr.clone() })?,
        Lack::Content => {
            let v = mender.volume();
            let there = v.inode(Tree::Live, nr)?.attr.clone();
            attr.links = there.links;
            // Which file an older inode was is known of what was mended, and not of what a rescue takes.
            own = put_back.contains(&ino)
                && matches!(inode.origin, Origin::Older { .. })
                && there.file_type() == attr.file_type();
            if own {
                attr = there.clone();
            }
            // It may have been of another type.
            *v.attr_mut(nr)? = Attr { size: there.size, ..attr.clone() };
            v.cut(nr, 0..u64::MAX)?;
        }
    }
    let v = mender.volume();
    attr.size = 0;
    match inode.raw.file_type() {
        0o040_000 => {
            let mut block = zeroed(bs);
            dir::init_first(writable(&mut block), nr, Ino(parent));
            v.write_block(nr, 0, block)?;
            attr.size = bs as u64;
        }
        0o120_000 => {
            let target = tree.link(&inode).unwrap_or_default();
            for (key, part) in target.chunks(bs).enumerate() {
                let mut block = zeroed(bs);
                writable(&mut block)[..part.len()].copy_from_slice(part);
                v.write_block(nr, key as u64, block)?;
            }
            attr.size = target.len() as u64;
        }
        0o100_000 => {
            each_block(tree, &content, bs, |key, block| {
                v.write_block(nr, key, block)?;
                Ok(true)
            })?;
            attr.size = content.size;
        }
        _ => {}
    }
    *v.attr_mut(nr)? = attr;
    problem.notes.retain(|note| !own || !matches!(note, Note::OlderAttributes { .. }));
    said.push(in_words(ino, &problem, own));
    Ok(())
}

/// What a file is now.
fn in_words(ino: u64, problem: &Problem, own: bool) -> String {
    let mut but = Vec::new();
    if own {
        but.push("its owner, permissions and times are those that it was mended with".into());
    }
    if problem.missing_bytes() > 0 {
        but.push(format!("{} bytes are lost", problem.missing_bytes()));
    }
    for note in &problem.notes {
        but.push(match note {
            Note::Unverified { bytes } => format!("{bytes} bytes lie in logs that do not verify"),
            Note::Doubtful => "its inode or its map lies in a log that does not verify".into(),
            Note::OlderAttributes { cno } => format!("its attributes are those of checkpoint {}", Cno(*cno)),
            Note::AttributesLost => "its owner, permissions and times are lost".into(),
            Note::SizeGuessed => "of zeros at its end there may be too few or too many".into(),
            _ => continue,
        });
    }
    if but.is_empty() {
        return format!("inode {ino} {AS_IT_WAS}");
    }
    format!("inode {ino} is there as a rescue reads it: {}", but.join(", "))
}

/// What is said where not all is taken.
pub(crate) const FIRST: &str = "silt rescue copies it out: do that first";

/// What is said of a file that is whole again.
pub(crate) const AS_IT_WAS: &str = "is as it was: a rescue reads all of it, and all of it verifies";
