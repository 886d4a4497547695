//! Damage that requests met: said once for each file, kept in a bounded list for `silt status`.
//!
//! Whoever meets damage may hold the lock of the tree, and a path takes looking into directories. So a note is
//! left at once, and a thread of its own finds the path and writes the line of the log.
//!
//! Invariants: one entry a file of a tree; at most [`MOST`] entries, what comes later is counted only; the lock of
//! the list is held for moments and nothing else is locked under it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use silt_control::Damage;
use silt_engine::Tree;
use silt_format::Ino;
use silt_fs::Fs;
use silt_names::ByteName;

use crate::core::{Core, now_secs};

/// Entries kept.
const MOST: usize = 1000;

/// What was met.
#[derive(Debug)]
pub struct Met<'a> {
    pub tree: Tree,
    pub ino: Ino,
    /// Bytes of the file that were wanted.
    pub bytes: Option<Range<u64>>,
    /// The directory and the name by which it was asked for.
    pub name: Option<(Ino, &'a [u8])>,
    pub what: String,
    /// First block of a log that is damaged, where no file is known to be.
    pub log: Option<u64>,
}

impl<'a> Met<'a> {
    /// Of an inode.
    pub fn of(tree: Tree, ino: Ino, what: impl Into<String>) -> Self {
        Met { tree, ino, bytes: None, name: None, what: what.into(), log: None }
    }
}

struct Entry {
    tree: Tree,
    ino: Ino,
    name: Option<(Ino, Vec<u8>)>,
    bytes: Option<Range<u64>>,
    path: Option<Vec<u8>>,
    what: String,
    first: u64,
    times: u64,
    log: Option<u64>,
}

#[derive(Default)]
struct List {
    entries: Vec<Entry>,
    places: HashMap<(Option<u64>, u64, Option<u64>), usize>,
    /// Entries whose path was looked for: the first so many.
    named: usize,
    /// What was met when the list was full.
    more: u64,
    stop: bool,
}

/// See the module.
#[derive(Default)]
pub struct DamageLog {
    list: Mutex<List>,
    wake: Condvar,
}

fn checkpoint(tree: Tree) -> Option<u64> {
    match tree {
        Tree::Live => None,
        Tree::Past(c) => Some(c),
    }
}

impl DamageLog {
    /// Notes it.
    pub fn note(&self, met: Met<'_>) {
        let mut list = self.list.lock();
        let key = (checkpoint(met.tree), met.ino.0, met.log);
        if let Some(&place) = list.places.get(&key) {
            let entry = &mut list.entries[place];
            entry.times += 1;
            if let Some(bytes) = met.bytes {
                let all = entry.bytes.get_or_insert_with(|| bytes.clone());
                *all = all.start.min(bytes.start)..all.end.max(bytes.end);
            }
            return;
        }
        if list.entries.len() >= MOST {
            list.more += 1;
            return;
        }
        let place = list.entries.len();
        list.places.insert(key, place);
        list.entries.push(Entry {
            tree: met.tree,
            ino: met.ino,
            name: met.name.map(|(dir, name)| (dir, name.to_vec())),
            bytes: met.bytes,
            path: None,
            what: met.what,
            first: now_secs(),
            times: 1,
            log: met.log,
        });
        self.wake.notify_one();
    }

    /// Everything kept, the first met first, and how often something was met when the list was full.
    pub fn all(&self) -> (Vec<Damage>, u64) {
        let list = self.list.lock();
        let all = list.entries.iter().map(|e| Damage {
            path: e.path.as_deref().map(ByteName::from),
            inode: e.ino.0,
            checkpoint: checkpoint(e.tree),
            start: e.bytes.as_ref().map(|b| b.start),
            end: e.bytes.as_ref().map(|b| b.end),
            what: e.what.clone(),
            first: e.first,
            times: e.times,
            block: e.log,
        });
        (all.collect(), list.more)
    }

    /// Ends [`DamageLog::run`].
    pub fn stop(&self) {
        self.list.lock().stop = true;
        self.wake.notify_one();
    }

    /// Finds paths and writes lines until told to stop.
    pub fn run(&self, core: &Arc<Core>) {
        loop {
            {
                let mut list = self.list.lock();
                while !list.stop && list.named == list.entries.len() {
                    self.wake.wait(&mut list);
                }
                if list.stop && list.named == list.entries.len() {
                    return;
                }
            }
            self.name_all(&core.fs);
        }
    }

    /// Finds the paths of what has none yet, and says what was met.
    pub fn name_all(&self, fs: &Mutex<Fs>) {
        loop {
            let (tree, ino, name, log) = {
                let list = self.list.lock();
                let Some(entry) = list.entries.get(list.named) else { return };
                (entry.tree, entry.ino, entry.name.clone(), entry.log)
            };
            let path = match log {
                Some(at) => Some(format!("(log at block {at})").into_bytes()),
                None => path_of(&mut fs.lock(), tree, ino, name),
            };
            let mut list = self.list.lock();
            let place = list.named;
            // Another may have done it meanwhile.
            let Some(entry) =
                list.entries.get_mut(place).filter(|e| (e.ino, e.tree, e.log) == (ino, tree, log))
            else {
                continue;
            };
            entry.path = path;
            say(entry);
            list.named += 1;
        }
    }
}

fn say(entry: &Entry) {
    let path = entry.path.as_ref().map(|p| String::from_utf8_lossy(p));
    let path = path.as_deref().unwrap_or("(no path known)");
    let moment = checkpoint(entry.tree).map_or_else(String::new, |c| format!(" of checkpoint {c}"));
    let bytes = entry.bytes.as_ref();
    let bytes = bytes.map_or_else(String::new, |b| format!(", bytes {} to {}", b.start, b.end));
    match entry.log {
        Some(_) => tracing::error!("damage: {path}: {}", entry.what),
        None => tracing::error!("damage: {path} (inode {}{moment}{bytes}): {}", entry.ino, entry.what),
    }
}

fn path_of(fs: &mut Fs, tree: Tree, ino: Ino, name: Option<(Ino, Vec<u8>)>) -> Option<Vec<u8>> {
    match ino {
        Ino::DAT => return Some(b"(table of block addresses)".to_vec()),
        Ino::CPFILE => return Some(b"(table of checkpoints)".to_vec()),
        Ino::SUFILE => return Some(b"(table of segments)".to_vec()),
        Ino::IFILE => return Some(b"(table of inodes)".to_vec()),
        _ => {}
    }
    match name.filter(|(dir, _)| *dir != ino) {
        Some((dir, name)) => {
            let mut path = fs.path_of(tree, dir)?;
            if path != b"/" {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
            Some(path)
        }
        None => fs.path_of(tree, ino),
    }
}
