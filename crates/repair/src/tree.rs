//! What findings about files mean, and the mending of inodes.

use std::collections::{BTreeMap, BTreeSet};

use silt_engine::mend::{Mender, Mistyped, Wounds};
use silt_engine::{Tree, Volume};
use silt_format::dir::file_type;
use silt_format::{Cno, Geometry, Ino};
use silt_verify::{Finding, Held, Report};

use crate::coming_back::{bring_back, come_back, tell_more_names, tell_names};
use crate::words::CHANGES_LOST;
use crate::{Result, dirs, tables, words};

/// What to do with an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fix {
    /// Write it anew as it is understood.
    Touch,
    /// Count its blocks.
    Blocks,
    /// Make its size reach over all its blocks, and no further than can be.
    Size,
    /// Give it the generation of another version of it.
    Generation,
    /// Build its map anew from the logs.
    Rebuild,
    /// Put it back to an older version; where there is none, cut it out.
    Restore,
    /// Cut it out.
    Cut,
}

/// What to do with a tree.
#[derive(Debug, Clone, Default)]
pub(crate) struct Work {
    pub inodes: BTreeMap<u64, Fix>,
    /// Inodes of which nothing is to be believed.
    pub doubted: BTreeSet<u64>,
    /// Inodes with values that no writer gives them, whatever is to be done.
    pub impossible: BTreeSet<u64>,
    /// Those in a damaged block that nothing is found about: possible values, by chance, or no inodes at all.
    pub beside: BTreeSet<u64>,
    /// Inodes whose entry cannot be read.
    pub lost: BTreeSet<u64>,
    /// Directories that are written anew whatever they look like.
    pub directories: BTreeSet<u64>,
    /// Look at all directories.
    pub names: bool,
    /// Some logs do not verify: that an inode is free may be wrong.
    pub torn: bool,
    /// Of which checkpoint an inode's generation is right; else that of the current tree is.
    pub generations: BTreeMap<u64, u64>,
    /// Damaged inodes are cut out.
    pub cut: bool,
}

impl Work {
    fn add(&mut self, ino: u64, fix: Fix) {
        let known = self.inodes.entry(ino).or_insert(fix);
        if fix as u8 > *known as u8 {
            *known = fix;
        }
    }

    /// Where many inodes of one block of the ifile are damaged, the block is: no field of them is believed. What is wrong with
    /// those that were `tried` is their own: they are what a round before made of them, and so are all others of the block.
    fn doubt_blocks(&mut self, g: Option<&Geometry>, tried: &BTreeMap<u64, u32>) {
        const MANY: usize = 3;
        let Some(g) = g else { return };
        let per = u64::from((g.block_size / g.inode_size.max(1)).max(1));
        let harsh = |ino: &u64| self.inodes.get(ino).is_some_and(|f| *f as u8 >= Fix::Rebuild as u8);
        let mut blocks: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        let found = self.inodes.keys().filter(|i| harsh(i)).chain(&self.impossible);
        for ino in found.filter(|i| !tried.contains_key(i)) {
            blocks.entry(ino / per).or_default().insert(*ino);
        }
        blocks.retain(|_, all| all.len() >= MANY && all.iter().any(harsh));
        for block in blocks.into_keys() {
            let all = block * per..(block + 1) * per;
            for ino in all.filter(|ino| *ino == Ino::ROOT.0 || *ino >= Ino::FIRST_USER.0) {
                if self.inodes.insert(ino, Fix::Restore).is_none() {
                    self.beside.insert(ino);
                }
                self.doubted.insert(ino);
            }
        }
    }
}

/// Findings about the current tree, and what to do about them.
pub(crate) fn work<'a>(
    found: &[&'a Finding],
    report: &Report,
    g: Option<&Geometry>,
    tried: &mut BTreeMap<u64, u32>,
    cut: bool,
) -> (Work, Vec<&'a Finding>) {
    let current = |f: &Finding| f.place.cno.is_none_or(|c| c == report.stats.last_cno);
    let (mut w, mut mine) = work_of(found, current, g, tried, cut);
    // Where several older checkpoints have another generation than the latest, it is the latest that is wrong.
    let mut others: BTreeMap<u64, Vec<&'a Finding>> = BTreeMap::new();
    for f in found.iter().filter(|f| f.id == "inode-generation") {
        others.entry(f.place.ino.unwrap_or(0)).or_default().push(f);
    }
    for (ino, found) in others.into_iter().filter(|(_, found)| found.len() > 1) {
        let newest = found.iter().filter_map(|f| f.place.cno).max();
        if let Some(c) = newest.filter(|_| tried.insert(GENERATION | ino, 1).is_none()) {
            w.add(ino, Fix::Generation);
            w.generations.insert(ino, c);
            mine.extend(found);
        }
    }
    (w, mine)
}

/// Marks an inode whose generation was set among those that were tried.
const GENERATION: u64 = 1 << 63;

/// Findings about one tree, and what to do about them.
pub(crate) fn work_of<'a>(
    found: &[&'a Finding],
    is_mine: impl Fn(&Finding) -> bool,
    g: Option<&Geometry>,
    tried: &mut BTreeMap<u64, u32>,
    cut: bool,
) -> (Work, Vec<&'a Finding>) {
    let torn = found.iter().any(|f| tables::is_log(f));
    let mut w = Work { cut, torn, ..Work::default() };
    let mut mine = Vec::new();
    for f in found {
        if is_mine(f) && one(f, &mut w) {
            mine.push(*f);
        }
    }
    w.doubt_blocks(g, tried);
    for (ino, fix) in &mut w.inodes {
        if matches!(fix, Fix::Rebuild | Fix::Restore) {
            let n = tried.entry(*ino).or_insert(0);
            // From the mildest to the harshest.
            *fix = match (*fix, *n) {
                (Fix::Rebuild, 0) => Fix::Rebuild,
                (Fix::Rebuild, 1) | (_, 0) if !cut => Fix::Restore,
                _ => Fix::Cut,
            };
            *n += 1;
        }
    }
    (w, mine)
}

fn one(f: &Finding, w: &mut Work) -> bool {
    let Some(ino) = f.place.ino else { return false };
    let file = ino == Ino::ROOT.0 || ino >= Ino::FIRST_USER.0;
    match f.place.held.filter(|_| tables::is_of_map(f)) {
        Some(Held::Inode(_)) => {
            w.add(ino, Fix::Restore);
            w.doubted.insert(ino);
            w.names = true;
            return true;
        }
        Some(Held::Node(_)) => {
            w.add(ino, Fix::Rebuild);
            w.names = true;
            return true;
        }
        None => {}
    }
    match f.id {
        "inode-blocks" => w.add(ino, Fix::Blocks),
        "inode-reserved" => w.add(ino, Fix::Cut),
        _ if !file => return false,
        "inode-size" => w.add(ino, Fix::Size),
        "inode-generation" => w.add(ino, Fix::Generation),
        "inode-special" | "inode-zero" => w.add(ino, Fix::Touch),
        "inode-times" => {
            w.impossible.insert(ino);
            w.add(ino, Fix::Touch);
        }
        "inode-link-max" => {
            w.impossible.insert(ino);
            w.add(ino, Fix::Touch);
            w.names = true;
        }
        "inode-links" | "inode-lost" => w.names = true,
        id if id.starts_with("btree-") || id.starts_with("map-") || id == "direct-map-flags" => {
            w.add(ino, Fix::Rebuild);
            w.names = true;
        }
        "inode-type" | "inode-root" | "symlink-size" | "symlink-target" => {
            w.add(ino, Fix::Restore);
            w.names = true;
        }
        // A node that could not be built anew.
        "device-read" if f.place.vblock.is_some() && f.place.block.is_some() => {
            w.add(ino, Fix::Rebuild);
            w.names = true;
        }
        "device-read" if f.place.offset.is_some() => {
            w.directories.insert(ino);
            w.names = true;
        }
        "device-read" if f.place.block.is_some() && f.place.vblock.is_none() => {
            w.lost.insert(ino);
            w.add(ino, Fix::Restore);
            w.names = true;
        }
        id if id.starts_with("directory-") => {
            w.directories.insert(ino);
            w.names = true;
        }
        _ => return false,
    }
    true
}

/// Whether an inode cannot be understood, or is not what a name says: what seems to be nobody's may be its.
pub(crate) fn is_open(found: &[&Finding], report: &Report) -> bool {
    let current = |f: &Finding| f.place.cno.is_none_or(|c| c == report.stats.last_cno);
    if found.iter().any(|f| f.id == "directory-type" && current(f)) {
        return true;
    }
    let mut tried = BTreeMap::new();
    let (w, _) = work(found, report, None, &mut tried, false);
    w.inodes.values().any(|f| matches!(f, Fix::Rebuild | Fix::Restore | Fix::Cut))
}

/// What has to be done before files can be changed.
pub(crate) fn wounds(work: &Work, keep: bool, snapshot: Option<u64>) -> Wounds {
    Wounds { keep, snapshot, lost_inodes: work.lost.clone(), ..Wounds::default() }
}

/// Whether content or names may be lost.
pub(crate) fn may_lose(work: &Work) -> bool {
    let harsh = |f: &Fix| matches!(f, Fix::Rebuild | Fix::Restore | Fix::Cut);
    !work.directories.is_empty() || work.inodes.values().any(harsh)
}

/// Mends the tree at hand. Returns inodes that were made such that they can be opened: what else is wrong with them
/// shows then.
pub(crate) fn mend(mender: &mut Mender, work: &Work, said: &mut Vec<String>) -> Result<Vec<u64>> {
    let before = said.len();
    // Of an entry that cannot be read nothing is known, whatever takes its place.
    let doubted: BTreeSet<u64> = work.doubted.union(&work.lost).copied().collect();
    let restored = work.inodes.iter().filter(|(_, fix)| **fix == Fix::Restore).map(|(ino, _)| *ino);
    let restored: BTreeSet<u64> = restored.chain(doubted.iter().copied()).collect();
    mender.look_for_blocks(&doubted);
    let mut kinds = tell_names(mender, None, &restored);
    // Before anything is made of their entries: of another type, content is what no writer puts there.
    let mut typed = types(mender, work, said)?;
    // What was put back waits in memory.
    let mut settled: BTreeSet<u64> = doubted.union(&typed).copied().collect();
    let noise = mender.noise(&settled)?;
    if !noise.is_empty() || !typed.is_empty() {
        let all = restored.union(&noise).copied().collect();
        mender.look_for_blocks(&doubted.union(&noise).copied().collect());
        kinds = tell_names(mender, None, &all);
    }
    for ino in &noise {
        if !come_back(mender, Ino(*ino), true, kinds.get(ino), said)? {
            cut(mender, Ino(*ino), said)?;
        }
    }
    settled.extend(&noise);
    typed.extend(&noise);
    let mut opened: Vec<u64> = typed.iter().copied().collect();
    for ino in mender.make_possible(&settled)? {
        said.push(format!("inode {ino} is given possible values where they were impossible"));
        opened.push(ino.0);
    }
    let is_lost = |nr: &u64| {
        let known = typed.contains(nr) || opened.contains(nr);
        let sound = work.beside.contains(nr) && !mender.is_suspect(Ino(*nr));
        work.inodes.get(nr) == Some(&Fix::Restore) && !known && !sound
    };
    let lost = doubted.iter().copied().filter(is_lost).collect();
    let back = directories_back(mender, &lost, &mut kinds, said)?;
    for (nr, fix) in work.inodes.iter().filter(|(nr, _)| !back.contains(nr)) {
        let ino = Ino(*nr);
        match fix {
            // What else is wrong with them shows when they are looked at again.
            _ if typed.contains(nr) => {}
            Fix::Rebuild | Fix::Restore | Fix::Touch if opened.contains(nr) => {}
            Fix::Blocks => {
                mender.recount_blocks(ino)?;
                said.push(format!("the blocks of inode {ino} are counted again"));
            }
            Fix::Touch => {
                mender.volume().attr_mut(ino)?;
                said.push(format!("inode {ino} is written anew as it is understood"));
            }
            Fix::Generation => {
                let generation = mender.take_generation(ino, work.generations.get(nr).map(|c| Cno(*c)))?;
                said.push(format!(
                    "the generation of inode {ino} becomes {generation}, as in other checkpoints"
                ));
            }
            Fix::Rebuild => match mender.rebuild(ino) {
                Ok(n) => said.push(format!("the map of inode {ino} is built anew from the logs: {n} blocks")),
                Err(e) => said.push(format!("the map of inode {ino} cannot be built anew: {e}")),
            },
            Fix::Size => size(mender.volume(), ino, said)?,
            // Its blocks may be all that is wrong.
            Fix::Restore if *nr == Ino::ROOT.0 && !doubted.contains(nr) && sound_root(mender) => {
                mender.recount_blocks(ino)?;
                said.push(format!("the blocks of inode {ino} are counted again"));
            }
            Fix::Restore if work.beside.contains(nr) && !mender.is_suspect(ino) => {}
            Fix::Restore => {
                if !come_back(mender, ino, doubted.contains(nr), kinds.get(nr), said)? {
                    cut(mender, ino, said)?;
                }
            }
            Fix::Cut => cut(mender, ino, said)?,
        }
    }
    if work.names {
        let torn = work.torn || mender.moved_doubtful();
        let revived = if torn { revive(mender, said)? } else { BTreeSet::new() };
        let new = said.get(before..).unwrap_or_default();
        let older = words::inodes(new, |line| line.ends_with(CHANGES_LOST)).collect();
        let told = dirs::Told { forced: work.directories.clone(), revived, older, ..dirs::Told::default() };
        dirs::mend(mender.volume(), told, said)?;
    }
    Ok(opened)
}

/// Brings back the directories among what is lost, from the root downwards: their names tell of the others which files these
/// were, and of which type. Returns those that came, or are gone.
fn directories_back(
    mender: &mut Mender,
    lost: &BTreeSet<u64>,
    kinds: &mut BTreeMap<u64, u8>,
    said: &mut Vec<String>,
) -> Result<BTreeSet<u64>> {
    let mut back = BTreeSet::new();
    loop {
        let is_next = |nr: &u64| {
            let is_directory = *nr == Ino::ROOT.0 || kinds.get(nr) == Some(&file_type::DIR);
            is_directory && !back.contains(nr)
        };
        let next: Vec<u64> = lost.iter().copied().filter(is_next).collect();
        if next.is_empty() {
            return Ok(back);
        }
        let mut exact = BTreeSet::new();
        for nr in next {
            let knows = mender.knows_blocks(Ino(nr));
            if !come_back(mender, Ino(nr), true, kinds.get(&nr), said)? {
                cut(mender, Ino(nr), said)?;
            } else if knows && mender.volume().inode(Tree::Live, Ino(nr)).is_ok_and(|i| i.attr.is_dir()) {
                exact.insert(nr);
            }
            back.insert(nr);
        }
        // An older directory has names of then.
        for (nr, kind) in tell_more_names(mender, &exact, lost) {
            kinds.entry(nr).or_insert(kind);
        }
    }
}

/// Brings back what names lead to and the inode file seems not to have, since the block that would is damaged. From the root
/// downwards: names in a directory that comes back count, too. Returns what came.
fn revive(mender: &mut Mender, said: &mut Vec<String>) -> Result<BTreeSet<u64>> {
    let mut revived = BTreeSet::new();
    let mut seen = BTreeSet::from([Ino::ROOT.0]);
    let mut todo = vec![Ino::ROOT.0];
    while let Some(directory) = todo.pop() {
        let from = BTreeSet::from([directory]);
        let named = dirs::types(mender.volume(), &from);
        let lost = named.keys().copied().filter(|nr| mender.may_be_lost(Ino(*nr))).collect();
        tell_names(mender, Some(&from), &lost);
        for (nr, kind) in named {
            if lost.contains(&nr) && bring_back(mender, Ino(nr), true, Some(file_type::to_mode(kind)), said)?
            {
                revived.insert(nr);
            }
            if kind == file_type::DIR && seen.insert(nr) {
                todo.push(nr);
            }
        }
    }
    Ok(revived)
}

/// Settles of which type inodes are whose names say another one. Returns those that became another.
fn types(mender: &mut Mender, work: &Work, said: &mut Vec<String>) -> Result<BTreeSet<u64>> {
    let mut changed = BTreeSet::new();
    for (ino, kind) in dirs::types(mender.volume(), &work.directories) {
        let cut_anyway = work.inodes.get(&ino) == Some(&Fix::Cut);
        if work.doubted.contains(&ino) || work.lost.contains(&ino) || cut_anyway {
            continue;
        }
        match mender.settle_type(Ino(ino), file_type::to_mode(kind)) {
            Ok(Mistyped::Name) => continue,
            Ok(Mistyped::Mended) => {
                said.push(format!("inode {ino} is {} again, as its name says", type_in_words(kind)));
            }
            Ok(Mistyped::Inode) if work.cut => cut(mender, Ino(ino), said)?,
            // Without older versions and logs it is left to be made possible.
            Ok(Mistyped::Inode) => {
                let kind = Some(file_type::to_mode(kind));
                tell_more_names(mender, &work.directories, &BTreeSet::from([ino]));
                if !bring_back(mender, Ino(ino), true, kind, said)? {
                    continue;
                }
            }
            // What cannot be read is another's to mend.
            Err(silt_engine::Error::Format { .. } | silt_engine::Error::Device(_)) => continue,
            Err(silt_engine::Error::NoInode(_)) => continue,
            Err(e) => return Err(e.into()),
        }
        changed.insert(ino);
    }
    Ok(changed)
}

fn type_in_words(kind: u8) -> &'static str {
    match kind {
        file_type::REG => "a regular file",
        file_type::DIR => "a directory",
        file_type::SYMLINK => "a symbolic link",
        file_type::FIFO => "a pipe",
        file_type::SOCK => "a socket",
        _ => "a device",
    }
}

fn sound_root(mender: &mut Mender) -> bool {
    let root = mender.volume().inode(Tree::Live, Ino::ROOT);
    root.is_ok_and(|i| i.attr.is_dir() && i.attr.links > 0 && i.attr.size > 0 && i.map.blocks == 0)
}

fn cut(mender: &mut Mender, ino: Ino, said: &mut Vec<String>) -> Result<()> {
    if ino.0 < Ino::FIRST_USER.0 {
        mender.clear_inode(ino)?;
        said.push(format!("the reserved inode {ino} is cleared"));
        return Ok(());
    }
    match mender.volume().delete_inode(ino) {
        // What a directory still names is dropped there.
        Err(silt_engine::Error::NoInode(_)) => return Ok(()),
        done => done?,
    }
    said.push(format!("inode {ino} is cut out: no older version of it is whole; its content is lost"));
    Ok(())
}

/// Makes the size of a file fit its blocks.
fn size(v: &mut Volume, ino: Ino, said: &mut Vec<String>) -> Result<()> {
    let bs = u64::from(v.geometry().block_size);
    let mut greatest = None;
    v.for_each_data(Tree::Live, ino, 0, |key| {
        greatest = Some(key);
        std::ops::ControlFlow::Continue(())
    })?;
    let least = greatest.map_or(0, |k| (k + 1).saturating_mul(bs));
    let now = v.inode(Tree::Live, ino)?.attr.size;
    if now.div_ceil(bs) * u64::from(now <= v.geometry().max_file_size()) * bs < least
        || now > v.geometry().max_file_size()
    {
        v.attr_mut(ino)?.size = least;
        said.push(format!(
            "the size of inode {ino} becomes {least} bytes, the end of its last block; it said {now}"
        ));
    }
    Ok(())
}
