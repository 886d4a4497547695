//! Directories of the current tree: entries that are sound are kept, files without a name get one in `lost+found`,
//! links are counted.
//!
//! Memory: some 100 bytes an inode, and the names of directories that are written anew.

mod come_back;
mod nameless;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::ops::ControlFlow;

use silt_engine::mend::InDirectory;
use silt_engine::{Tree, Volume, writable, zeroed};
use silt_format::Ino;
use silt_format::dir::{self, file_type};
use silt_format::inode::LINK_MAX;

use crate::Result;
pub(crate) use nameless::name_of_lost;

/// Numbers this far above all others are noise.
const NUMBERS: u64 = 1 << 16;

#[derive(Clone, Debug)]
struct Entry {
    name: Vec<u8>,
    ino: u64,
    kind: u8,
}

/// A name that a directory has lost.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    pub directory: u64,
    pub name: Vec<u8>,
    pub ino: u64,
    /// How many names a file has where this one was found.
    pub links: u32,
}

/// A directory to be written.
#[derive(Debug, Default)]
struct Written {
    parent: u64,
    /// All but "." and "..".
    entries: Vec<Entry>,
    /// Names of these.
    taken: HashSet<Vec<u8>>,
}

impl Written {
    fn new(parent: u64, entries: Vec<Entry>) -> Self {
        let taken = entries.iter().map(|e| e.name.clone()).collect();
        Written { parent, entries, taken }
    }
}

/// What is known of an inode.
#[derive(Clone, Copy, Default)]
struct Known {
    mode: u32,
    links: u32,
    /// Names found for it.
    named: u32,
    /// Directories in it.
    below: u32,
    reached: bool,
}

impl Known {
    fn kind(&self) -> u8 {
        file_type::from_mode(self.mode & 0o170_000)
    }
    fn is_dir(&self) -> bool {
        self.kind() == file_type::DIR
    }
    fn wants_name(&self) -> bool {
        if self.is_dir() { !self.reached } else { self.named < self.links }
    }
}

struct Mend<'a> {
    v: &'a mut Volume,
    forced: BTreeSet<u64>,
    inodes: BTreeMap<u64, Known>,
    written: BTreeMap<u64, Written>,
    /// Names that are dropped.
    gone: BTreeSet<(u64, Vec<u8>)>,
    /// What has its name again: entries of `lost+found` for it go.
    home: BTreeSet<u64>,
    /// Directories that are older than the tree: names in them count only for what wants one.
    older: BTreeSet<u64>,
    todo: VecDeque<(u64, u64)>,
    /// Older ones, to be read when all others are.
    todo_older: VecDeque<(u64, u64)>,
    /// Names of files in those, with their directories.
    doubtful: Vec<(u64, Entry)>,
    /// Directories that something left for its right name.
    left: BTreeSet<u64>,
    /// The greatest number that an inode has or a name tells of.
    greatest: u64,
    /// Directories that have lost names.
    gaps: Vec<u64>,
    /// What is in blocks of a directory that lie in the place of another's, by whose they are.
    astray: BTreeMap<u64, Vec<Entry>>,
    /// What is in first blocks of directories that lie in the place of other ones of their own.
    copies: BTreeMap<u64, Vec<Entry>>,
    said: &'a mut Vec<String>,
}

/// What is known of directories.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// These are written anew.
    pub forced: BTreeSet<u64>,
    /// Inodes that are only in memory so far.
    pub revived: BTreeSet<u64>,
    /// Files that were put back to an older version, and directories among them.
    pub older: BTreeSet<u64>,
    /// Names that a newer version of their directory does not have.
    pub gone: BTreeSet<(u64, Vec<u8>)>,
    /// What comes back, those of a directory behind its own, if what they name is there and wants a name.
    pub names: Vec<Name>,
}

/// Looks at every directory and mends what is wrong.
pub(crate) fn mend(v: &mut Volume, told: Told, said: &mut Vec<String>) -> Result<()> {
    let Told { forced, revived, older, gone, names } = told;
    let mut numbers = vec![Ino::ROOT.0];
    v.for_each_inode(0, |ino, _| {
        numbers.push(ino.0);
        ControlFlow::Continue(())
    })?;
    let mut inodes = BTreeMap::new();
    for nr in numbers.into_iter().chain(revived.iter().copied()) {
        // As it is in memory: some were changed already, and some are gone.
        if let Ok(i) = v.inode(Tree::Live, Ino(nr)) {
            let (mode, links) = (i.attr.mode, i.attr.links);
            inodes.insert(nr, Known { mode, links, ..Known::default() });
        }
    }
    let mut m = Mend {
        v,
        forced,
        older,
        gone,
        todo_older: VecDeque::new(),
        doubtful: Vec::new(),
        left: BTreeSet::new(),
        greatest: inodes.keys().next_back().copied().unwrap_or(0),
        inodes,
        written: BTreeMap::new(),
        home: names.iter().map(|n| n.ino).collect(),
        todo: VecDeque::new(),
        gaps: Vec::new(),
        astray: BTreeMap::new(),
        copies: BTreeMap::new(),
        said,
    };
    m.walk(Ino::ROOT.0, Ino::ROOT.0)?;
    m.take_names(names)?;
    m.take_doubtful()?;
    m.fill_gaps()?;
    m.orphans()?;
    m.drop_empty()?;
    m.write()?;
    m.links()
}

/// Of which type files are by their names in these directories, where all agree.
pub(crate) fn types(v: &mut Volume, directories: &BTreeSet<u64>) -> BTreeMap<u64, u8> {
    let mut named: BTreeMap<u64, Option<u8>> = BTreeMap::new();
    for nr in directories {
        let mut keys = Vec::new();
        // What cannot be read says nothing.
        let _ = v.for_each_data(Tree::Live, Ino(*nr), 0, |key| {
            keys.push(key);
            ControlFlow::Continue(())
        });
        for key in keys {
            let Ok(Some(block)) = v.read_block(Tree::Live, Ino(*nr), key) else { continue };
            for e in dir::entries(&block).map_while(std::result::Result::ok) {
                let file = e.ino >= Ino::FIRST_USER && e.name != b"." && e.name != b"..";
                if !file || file_type::to_mode(e.file_type) == 0 {
                    continue;
                }
                let all = named.entry(e.ino.0).or_insert(Some(e.file_type));
                *all = all.filter(|kind| *kind == e.file_type);
            }
        }
    }
    named.into_iter().filter_map(|(nr, kind)| Some((nr, kind?))).collect()
}

/// All directories of the tree at hand, as far as inodes can be read.
pub(crate) fn all(v: &Volume) -> BTreeSet<u64> {
    let mut directories = BTreeSet::from([Ino::ROOT.0]);
    let _ = v.for_each_inode(0, |ino, raw| {
        if raw.file_type() == file_type::to_mode(file_type::DIR) {
            directories.insert(ino.0);
        }
        ControlFlow::Continue(())
    });
    directories
}

/// Of some inodes one name each that these directories have for them, as far as they can be read, and the type it says.
pub(crate) fn names_in(
    v: &mut Volume,
    directories: &BTreeSet<u64>,
    inodes: &BTreeSet<u64>,
) -> BTreeMap<u64, (u8, InDirectory)> {
    let mut names = BTreeMap::new();
    for directory in directories.iter().copied().map(Ino) {
        let mut keys = Vec::new();
        // What cannot be read says nothing.
        let _ = v.for_each_data(Tree::Live, directory, 0, |key| {
            keys.push(key);
            ControlFlow::Continue(())
        });
        for key in keys {
            let Ok(Some(block)) = v.read_block(Tree::Live, directory, key) else { continue };
            for Entry { name, ino, kind } in named(&block).into_iter().filter(|e| inodes.contains(&e.ino)) {
                names.entry(ino).or_insert((kind, InDirectory { directory, name }));
            }
        }
    }
    names
}

/// The entries of a block but "." and "..", as far as they make sense.
fn named(block: &[u8]) -> Vec<Entry> {
    let all = dir::entries(block).map_while(std::result::Result::ok);
    let named = all.filter(|e| e.ino.0 != 0 && e.name != b"." && e.name != b"..");
    named.map(|e| Entry { name: e.name.to_vec(), ino: e.ino.0, kind: e.file_type }).collect()
}

/// Of which directory a block is the first one, by the "." that it begins with, as no other does.
fn first_of(block: &[u8]) -> Option<u64> {
    dir::entries(block).next()?.ok().filter(|e| e.name == b".").map(|e| e.ino.0)
}

impl Mend<'_> {
    /// Reads directories from one on, downwards.
    fn walk(&mut self, from: u64, parent: u64) -> Result<()> {
        if let Some(k) = self.inodes.get_mut(&from) {
            k.reached = true;
        }
        self.todo.push_back((from, parent));
        loop {
            if let Some((ino, parent)) = self.todo.pop_front() {
                if self.older.contains(&ino) {
                    self.todo_older.push_back((ino, parent));
                } else {
                    self.directory(ino, parent)?;
                }
            } else if let Some((ino, parent)) = self.todo_older.pop_front() {
                self.directory(ino, parent)?;
            } else {
                return Ok(());
            }
        }
    }

    fn directory(&mut self, ino: u64, parent: u64) -> Result<()> {
        let bs = u64::from(self.v.geometry().block_size);
        let size = self.v.inode(Tree::Live, Ino(ino))?.attr.size;
        let blocks = self.blocks(ino)?;
        let whole = size > 0 && size % bs == 0 && blocks.len() as u64 == size / bs;
        let whole = whole && blocks.last().is_none_or(|k| *k + 1 == size / bs);
        let older = self.older.contains(&ino);
        let mut bad = self.forced.contains(&ino) || !whole || older;
        let mut names: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        let mut kept: Vec<Entry> = Vec::new();
        let mut subdirectories = 0;
        let mut lost = !whole;
        for (n, key) in blocks.iter().enumerate() {
            let read = self.v.read_block(Tree::Live, Ino(ino), *key);
            let Ok(Some(block)) = read else {
                self.said.push(format!("block {key} of directory {ino} is lost, and the names in it"));
                (bad, lost) = (true, true);
                continue;
            };
            if let Some(other) = self.owner(&block, ino) {
                self.said.push(format!(
                    "block {key} of directory {ino} is one of directory {other}; the names that were in it are lost"
                ));
                (bad, lost) = (true, true);
                self.astray.entry(other).or_default().extend(named(&block));
                if self.gaps.contains(&other) {
                    self.gaps.push(other);
                }
                continue;
            }
            if n > 0 && first_of(&block) == Some(ino) {
                self.said.push(format!(
                    "block {key} of directory {ino} is a copy of its first one; the names that were in it are lost"
                ));
                (bad, lost) = (true, true);
                // Maybe an older one: what was renamed since is not to have both names.
                self.copies.entry(ino).or_default().extend(named(&block));
                continue;
            }
            for (i, e) in dir::entries(&block).enumerate() {
                let Ok(e) = e else {
                    self.said.push(format!(
                        "part of block {key} of directory {ino} makes no sense; its names are lost"
                    ));
                    (bad, lost) = (true, true);
                    break;
                };
                let dots = e.name == b"." || e.name == b"..";
                if n == 0 && i < 2 {
                    let (name, own): (&[u8], u64) = if i == 0 { (b".", ino) } else { (b"..", parent) };
                    bad |= e.name != name || e.ino.0 != own || e.file_type != file_type::DIR;
                }
                if e.ino.0 == 0 || dots {
                    bad |= dots && !(n == 0 && i < 2);
                    continue;
                }
                if e.ino.0 < self.greatest.saturating_add(NUMBERS) {
                    self.greatest = self.greatest.max(e.ino.0);
                }
                if self.gone.remove(&(ino, e.name.to_vec())) {
                    self.said.push(format!(
                        "the name {:?} in directory {ino} is dropped: a newer version of it has other names",
                        String::from_utf8_lossy(e.name)
                    ));
                    bad = true;
                    continue;
                }
                let known = self.inodes.get(&e.ino.0);
                if older && let Some(k) = known.filter(|k| k.mode != 0 && !k.is_dir()) {
                    let name = e.name.to_vec();
                    self.doubtful.push((ino, Entry { name, ino: e.ino.0, kind: k.kind() }));
                } else if let Some(entry) = self.entry(ino, &e, &mut names) {
                    bad |= entry.kind != e.file_type || entry.name != e.name;
                    subdirectories += u32::from(entry.kind == file_type::DIR);
                    kept.push(entry);
                } else {
                    bad = true;
                }
            }
        }
        if lost {
            self.gaps.push(ino);
        }
        if let Some(k) = self.inodes.get_mut(&ino) {
            k.below = subdirectories;
        }
        if bad {
            self.written.insert(ino, Written::new(parent, kept));
        }
        Ok(())
    }

    /// Which directory a block is of by its first entry, if that is there and not this one.
    fn owner(&self, block: &[u8], ino: u64) -> Option<u64> {
        first_of(block).filter(|other| *other != ino && self.inodes.get(other).is_some_and(Known::is_dir))
    }

    fn blocks(&mut self, ino: u64) -> Result<Vec<u64>> {
        let mut keys = Vec::new();
        self.v.for_each_data(Tree::Live, Ino(ino), 0, |key| {
            keys.push(key);
            ControlFlow::Continue(())
        })?;
        Ok(keys)
    }

    /// Judges one name; `None` if it is dropped.
    fn entry(
        &mut self,
        directory: u64,
        e: &dir::Entry<'_>,
        names: &mut BTreeMap<Vec<u8>, u64>,
    ) -> Option<Entry> {
        let name = String::from_utf8_lossy(e.name).into_owned();
        let mut drop = |why: &str| {
            self.said.push(format!("the name {name:?} in directory {directory} is dropped: {why}"));
            None
        };
        let known = match self.inodes.get_mut(&e.ino.0) {
            _ if e.ino == Ino::ROOT => return drop("it names the root"),
            Some(_) if self.home.contains(&e.ino.0) && e.name == name_of_lost(e.ino.0) => {
                self.left.insert(directory);
                return None;
            }
            Some(k) if k.links > 0 || k.mode != 0 => k,
            _ => return drop(&format!("there is no inode {}", e.ino)),
        };
        if known.is_dir() && known.reached {
            return drop("the directory it names has a name already");
        }
        if known.kind() == file_type::UNKNOWN {
            return drop(&format!("inode {} is damaged", e.ino));
        }
        if known.named >= u32::from(LINK_MAX) {
            return drop(&format!("inode {} has too many names", e.ino));
        }
        let mut own = e.name.to_vec();
        match names.get(&own) {
            None => {}
            Some(ino) if *ino == e.ino.0 => return drop("it occurs twice, for the same file"),
            Some(_) => {
                let more = format!("#{}", e.ino);
                own.truncate(255 - more.len());
                own.extend_from_slice(more.as_bytes());
            }
        }
        if own != e.name && names.contains_key(&own) {
            return drop("it occurs twice");
        }
        names.insert(own.clone(), e.ino.0);
        known.named += 1;
        known.reached = true;
        if known.is_dir() {
            self.todo.push_back((e.ino.0, directory));
        }
        let entry = Entry { name: own, ino: e.ino.0, kind: known.kind() };
        if entry.name != e.name {
            let to = String::from_utf8_lossy(&entry.name).into_owned();
            self.said.push(format!(
                "the name {name:?} occurs twice in directory {directory}: the second is {to:?} now"
            ));
        }
        Some(entry)
    }

    /// The entries of a directory that is about to be written.
    fn entries_of(&mut self, ino: u64) -> Result<&Written> {
        if !self.written.contains_key(&ino) {
            let (mut all, mut parent) = (Vec::new(), Ino::ROOT.0);
            for key in self.blocks(ino)? {
                let Ok(Some(b)) = self.v.read_block(Tree::Live, Ino(ino), key) else { continue };
                for e in dir::entries(&b).map_while(std::result::Result::ok).filter(|e| e.ino.0 != 0) {
                    match e.name {
                        b"." => {}
                        b".." => parent = e.ino.0,
                        name => all.push(Entry { name: name.to_vec(), ino: e.ino.0, kind: e.file_type }),
                    }
                }
            }
            self.written.insert(ino, Written::new(parent, all));
        }
        Ok(self.written.entry(ino).or_default())
    }

    /// Adds a name to a directory.
    fn name(&mut self, directory: u64, ino: u64, name: Vec<u8>) {
        let _ = self.entries_of(directory);
        let Some(k) = self.inodes.get_mut(&ino) else { return };
        (k.named, k.reached) = (k.named + 1, true);
        let kind = k.kind();
        if let Some(d) = self.written.get_mut(&directory) {
            d.taken.insert(name.clone());
            d.entries.push(Entry { name, ino, kind });
        }
        if kind == file_type::DIR
            && let Some(d) = self.inodes.get_mut(&directory)
        {
            d.below += 1;
        }
    }

    /// Writes the directories that are not as they should be.
    fn write(&mut self) -> Result<()> {
        let bs = self.v.geometry().bs();
        for (ino, Written { parent, entries, .. }) in std::mem::take(&mut self.written) {
            let mut blocks = Vec::new();
            let mut block = zeroed(bs);
            dir::init_first(writable(&mut block), Ino(ino), Ino(parent));
            for e in &entries {
                if dir::insert(writable(&mut block), &e.name, Ino(e.ino), e.kind)
                    .map_err(|e| silt_engine::Error::at(format!("directory {ino}"), e))?
                    .is_none()
                {
                    let mut next = zeroed(bs);
                    dir::init_empty(writable(&mut next));
                    blocks.push(std::mem::replace(&mut block, next));
                    let _ = dir::insert(writable(&mut block), &e.name, Ino(e.ino), e.kind);
                }
            }
            blocks.push(block);
            let n = blocks.len() as u64;
            self.v.cut(Ino(ino), n..u64::MAX)?;
            for (key, block) in blocks.into_iter().enumerate() {
                self.v.write_block(Ino(ino), key as u64, block)?;
            }
            self.v.attr_mut(Ino(ino))?.size = n * bs as u64;
            self.said.push(format!("directory {ino} is written anew with {} names", entries.len()));
        }
        Ok(())
    }

    fn links(&mut self) -> Result<()> {
        for (nr, k) in &self.inodes {
            let wanted = if k.is_dir() { k.below + 2 } else { k.named };
            if k.reached && wanted != k.links && k.kind() != file_type::UNKNOWN {
                self.v.attr_mut(Ino(*nr))?.links = wanted;
                let links = if wanted == 1 { "link" } else { "links" };
                self.said.push(format!("inode {nr} has {wanted} {links}, not {}", k.links));
            }
        }
        Ok(())
    }
}
