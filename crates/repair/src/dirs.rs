//! Directories of the current tree: entries that are sound are kept, files without a name get one in `lost+found`,
//! links are counted.
//!
//! Memory: some 100 bytes an inode, and the names of directories that are written anew.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;

use silt_engine::{Attr, Tree, Volume, writable, zeroed};
use silt_format::dir::{self, file_type};
use silt_format::inode::LINK_MAX;
use silt_format::{Cno, Ino};

use crate::Result;

/// Names of what is put into `lost+found` begin with this.
const LOST: &[u8] = b"lost+found";

/// Older versions of a directory that are looked at.
const VERSIONS: usize = 64;

#[derive(Clone, Debug)]
struct Entry {
    name: Vec<u8>,
    ino: u64,
    kind: u8,
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
}

struct Mend<'a> {
    v: &'a mut Volume,
    forced: &'a BTreeSet<u64>,
    inodes: BTreeMap<u64, Known>,
    /// Directories to be written, with all their entries but "." and "..", and the parent.
    written: BTreeMap<u64, (u64, Vec<Entry>)>,
    todo: VecDeque<(u64, u64)>,
    /// Directories that have lost names.
    gaps: Vec<u64>,
    said: &'a mut Vec<String>,
}

/// Looks at every directory and mends what is wrong. `forced` are written anew; `revived` are only in memory so far.
pub(crate) fn mend(
    v: &mut Volume,
    forced: &BTreeSet<u64>,
    revived: &BTreeSet<u64>,
    said: &mut Vec<String>,
) -> Result<()> {
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
    let mut m =
        Mend { v, forced, inodes, written: BTreeMap::new(), todo: VecDeque::new(), gaps: Vec::new(), said };
    m.walk(Ino::ROOT.0, Ino::ROOT.0)?;
    m.fill_gaps()?;
    m.orphans()?;
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

impl Mend<'_> {
    /// Reads directories from one on, downwards.
    fn walk(&mut self, from: u64, parent: u64) -> Result<()> {
        if let Some(k) = self.inodes.get_mut(&from) {
            k.reached = true;
        }
        self.todo.push_back((from, parent));
        while let Some((ino, parent)) = self.todo.pop_front() {
            self.directory(ino, parent)?;
        }
        Ok(())
    }

    fn directory(&mut self, ino: u64, parent: u64) -> Result<()> {
        let bs = u64::from(self.v.geometry().block_size);
        let size = self.v.inode(Tree::Live, Ino(ino))?.attr.size;
        let blocks = self.blocks(ino)?;
        let whole = size > 0 && size % bs == 0 && blocks.len() as u64 == size / bs;
        let whole = whole && blocks.last().is_none_or(|k| *k + 1 == size / bs);
        let mut bad = self.forced.contains(&ino) || !whole;
        let mut names: BTreeSet<Vec<u8>> = BTreeSet::new();
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
                if let Some(entry) = self.entry(ino, &e, &mut names) {
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
            self.written.insert(ino, (parent, kept));
        }
        Ok(())
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
    fn entry(&mut self, directory: u64, e: &dir::Entry<'_>, names: &mut BTreeSet<Vec<u8>>) -> Option<Entry> {
        let name = String::from_utf8_lossy(e.name).into_owned();
        let mut drop = |why: &str| {
            self.said.push(format!("the name {name:?} in directory {directory} is dropped: {why}"));
            None
        };
        let known = match self.inodes.get_mut(&e.ino.0) {
            _ if e.ino == Ino::ROOT => return drop("it names the root"),
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
        if !names.insert(own.clone()) {
            let more = format!("#{}", e.ino);
            own.truncate(255 - more.len());
            own.extend_from_slice(more.as_bytes());
            if !names.insert(own.clone()) {
                return drop("it occurs twice");
            }
        }
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

    /// Names that a directory has lost come back from its newest older version that can be read, where what they
    /// name is still there and has lost a name.
    fn fill_gaps(&mut self) -> Result<()> {
        let mut past = Vec::new();
        self.v.for_each_checkpoint_back(Cno(u64::MAX), |c| {
            past.push(c.cno);
            if past.len() < VERSIONS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        let mut next = 0;
        while let Some(ino) = self.gaps.get(next).copied() {
            next += 1;
            for c in &past {
                let (found, whole) = self.older_names(ino, *c);
                for e in found {
                    let Some(k) = self.inodes.get(&e.ino).copied() else { continue };
                    let taken = self.entries_of(ino)?.iter().any(|own| own.name == e.name);
                    let wanting = if k.is_dir() { !k.reached } else { k.named < k.links };
                    if taken || !wanting || k.kind() != e.kind {
                        continue;
                    }
                    self.said.push(format!(
                        "the name {:?} in directory {ino} comes back from checkpoint {c}",
                        String::from_utf8_lossy(&e.name)
                    ));
                    self.name(ino, e.ino, e.name);
                    if k.is_dir() {
                        self.walk(e.ino, ino)?;
                    }
                }
                // What cannot be read there an older one may have.
                if whole {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The names a directory had at a checkpoint, as far as they can be read, and whether these are all.
    fn older_names(&mut self, ino: u64, c: u64) -> (Vec<Entry>, bool) {
        let mut all = Vec::new();
        if self.v.open_view(Cno(c)).is_err() {
            return (all, false);
        }
        let tree = Tree::Past(c);
        let mut keys = Vec::new();
        if self.v.inode(tree, Ino(ino)).is_ok_and(|i| i.attr.is_dir()) {
            let _ = self.v.for_each_data(tree, Ino(ino), 0, |key| {
                keys.push(key);
                ControlFlow::Continue(())
            });
        }
        let mut whole = !keys.is_empty();
        for key in keys {
            let Ok(Some(b)) = self.v.read_block(tree, Ino(ino), key) else {
                whole = false;
                continue;
            };
            // Names in a block that makes no sense may be others.
            if dir::check(&b).is_err() {
                whole = false;
                continue;
            }
            for e in dir::entries(&b).map_while(std::result::Result::ok) {
                if e.ino.0 != 0 && e.name != b"." && e.name != b".." {
                    all.push(Entry { name: e.name.to_vec(), ino: e.ino.0, kind: e.file_type });
                }
            }
        }
        self.v.close_view(Cno(c));
        (all, whole)
    }

    /// What has no name: without links it goes, else it gets a name.
    fn orphans(&mut self) -> Result<()> {
        let nameless: Vec<u64> = self
            .inodes
            .iter()
            .filter(|(nr, k)| !k.reached && **nr != Ino::ROOT.0)
            .map(|(nr, _)| *nr)
            .collect();
        if nameless.is_empty() {
            return Ok(());
        }
        // Directories first that no other of them names, so that trees stay together.
        let mut inside: BTreeSet<u64> = BTreeSet::new();
        for nr in &nameless {
            if self.inodes.get(nr).is_some_and(Known::is_dir) {
                for key in self.blocks(*nr)? {
                    let Ok(Some(b)) = self.v.read_block(Tree::Live, Ino(*nr), key) else { continue };
                    inside.extend(dir::entries(&b).map_while(std::result::Result::ok).filter_map(|e| {
                        (e.name != b"." && e.name != b".." && e.ino.0 != *nr).then_some(e.ino.0)
                    }));
                }
            }
        }
        let mut order = nameless.clone();
        order.sort_by_key(|nr| (inside.contains(nr), !self.inodes.get(nr).is_some_and(Known::is_dir), *nr));
        let mut found: Option<u64> = None;
        for nr in order {
            let Some(k) = self.inodes.get(&nr).copied() else { continue };
            if k.reached {
                continue;
            }
            if k.links == 0 {
                self.v.delete_inode(Ino(nr))?;
                self.inodes.remove(&nr);
                self.said.push(format!("inode {nr} has neither name nor link: its space is freed"));
                continue;
            }
            let home = match found {
                Some(home) => home,
                None => *found.insert(self.lost_and_found()?),
            };
            self.name(home, nr, format!("#{nr}").into_bytes());
            self.said.push(format!("a file without a name becomes lost+found/#{nr}"));
            if k.is_dir() {
                self.walk(nr, home)?;
            }
        }
        Ok(())
    }

    /// The directory for what has no name, made if need be.
    fn lost_and_found(&mut self) -> Result<u64> {
        let root = Ino::ROOT.0;
        let entries = self.entries_of(root)?;
        if let Some(e) = entries.iter().find(|e| e.name == LOST && e.kind == file_type::DIR) {
            return Ok(e.ino);
        }
        let mut name = LOST.to_vec();
        while entries.iter().any(|e| e.name == name) {
            name.push(b'+');
        }
        let like = self.v.inode(Tree::Live, Ino::ROOT)?.attr.clone();
        let attr = Attr { mode: 0o040_700, links: 2, size: 0, flags: 0, device: (0, 0), ..like };
        let ino = self.v.create_inode(attr)?.0;
        self.inodes.insert(ino, Known { mode: 0o040_700, links: 2, reached: true, ..Known::default() });
        self.written.insert(ino, (root, Vec::new()));
        self.name(root, ino, name);
        Ok(ino)
    }

    /// The entries of a directory that is about to be written.
    fn entries_of(&mut self, ino: u64) -> Result<Vec<Entry>> {
        if let Some((_, entries)) = self.written.get(&ino) {
            return Ok(entries.clone());
        }
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
        self.written.insert(ino, (parent, all.clone()));
        Ok(all)
    }

    /// Adds a name to a directory.
    fn name(&mut self, directory: u64, ino: u64, name: Vec<u8>) {
        let _ = self.entries_of(directory);
        let Some(k) = self.inodes.get_mut(&ino) else { return };
        (k.named, k.reached) = (k.named + 1, true);
        let kind = k.kind();
        if let Some((_, entries)) = self.written.get_mut(&directory) {
            entries.push(Entry { name, ino, kind });
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
        for (ino, (parent, entries)) in std::mem::take(&mut self.written) {
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
