//! Which files hold how much of the past, and what they are called.
//!
//! Names come from directories: today's tree is walked once, and for what is gone the trees of the last moments that are
//! known to have it, each once for all that it has, at most [`WALKS`] of them. Memory: 16 bytes a directory of the tree
//! that is walked, and its path where it is still to be looked at.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;

use silt_cleaner::{Holding, Past};
use silt_engine::Tree;
use silt_format::{Cno, Ino};
use silt_names::ByteName;

use super::account::{Told, moments};
use super::clean::Via;
use super::{BATCH, Out};
use crate::host::{Host, with, with_fs};
use crate::past::{PastFile, PastQuery, PastTotal};
use crate::{ControlError, Kind, Response, Result};

/// Past trees that are walked for names, at most.
const WALKS: usize = 64;
/// Moments that are asked for a path that is in none of those trees, at most.
const LOOKED: usize = 1000;
/// Entries of a directory that are looked at before the volume is given up for a moment.
const ENTRIES: usize = 500;
/// Bytes of paths that begin a new part of the answer.
const LONG: usize = 256 << 10;
/// While no more than these are to be named, a walk ends when they are.
const FEW: usize = 1000;
/// Directories below one another.
const DEPTH: usize = 256;

/// What is known of a file besides what it holds.
#[derive(Clone, Default)]
struct Named {
    path: Option<Vec<u8>>,
    gone: bool,
    /// It was looked for where it was last.
    sought: bool,
}

struct Naming<'a> {
    host: &'a dyn Host,
    below: &'a [u8],
    holdings: &'a [Holding],
    named: Vec<Named>,
    /// Where they are in the list, by number.
    places: HashMap<u64, Vec<usize>>,
    /// The path asked for was found in a tree.
    is_there: bool,
}

/// Says who holds the past.
pub fn past(host: &dyn Host, query: &PastQuery, mut out: Out<'_>) -> Result<()> {
    let (moments, ..) = moments(host)?;
    let mut kept = [&moments.plain[..], &moments.snapshots].concat();
    kept.sort_unstable();
    let mut told = Told::new(&mut out);
    let found = Past::read(&Via(host), &host.device(), &moments, |part| told.tell(part * 0.8))?;
    let ended = |told: &Told<'_, '_>| told.gone.clone().map_or(Ok(()), Err);
    ended(&told)?;
    let found = found.ok_or_else(|| ControlError::new(Kind::Other, "it was ended"))?;
    let mut holdings = found.holdings();
    let total = holdings.len();
    let below: &[u8] = query.below.as_os_str().as_bytes();
    let all_below = below.iter().all(|b| *b == b'/');
    let top = query.top.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    let block = with(host, |v| u64::from(v.geometry().block_size))?;
    let bytes = |blocks: u64| blocks.saturating_mul(block);
    let mut sum = PastTotal { tables: bytes(found.tables), cut: found.cut, ..PastTotal::default() };
    (sum.others, sum.others_bytes) = (found.others.0, bytes(found.others.1));
    drop(found);
    if all_below {
        sum.files = total as u64;
        sum.bytes = bytes(holdings.iter().map(|h| h.blocks).sum());
        holdings.truncate(top);
        sum.unlisted = (total - holdings.len()) as u64;
    }
    let mut places: HashMap<u64, Vec<usize>> = HashMap::new();
    for (i, h) in holdings.iter().enumerate() {
        places.entry(h.ino).or_default().push(i);
    }
    let named = vec![Named::default(); holdings.len()];
    let mut naming = Naming {
        host,
        below: if all_below { b"" } else { below },
        holdings: &holdings,
        named,
        places,
        is_there: false,
    };
    naming.all(|part| told.tell(0.8 + part * 0.2))?;
    ended(&told)?;
    if !naming.is_there && !naming.was_there(&kept)? {
        let path = query.below.display();
        return Err(ControlError::new(
            Kind::NotFound,
            format!("there is no {path} in the volume now, and none in what is kept of its past"),
        )
        .hint("name a path as it is now or was last; without one all files are listed"));
    }
    let named = naming.named;
    let mut listed = Vec::new();
    for (h, n) in holdings.iter().zip(named) {
        if !all_below && n.path.is_none() {
            if n.gone && !n.sought {
                sum.unplaced += 1;
                sum.unplaced_bytes += bytes(h.blocks);
            }
            continue;
        }
        if !all_below {
            sum.files += 1;
            sum.bytes += bytes(h.blocks);
            if listed.len() >= top {
                sum.unlisted += 1;
                continue;
            }
        }
        listed.push(PastFile {
            path: n.path.map(ByteName::from),
            inode: h.ino,
            generation: h.generation,
            bytes: bytes(h.blocks),
            snapshots: bytes(h.snapshots),
            first: h.first,
            last: h.last,
            gone: n.gone,
        });
    }
    let mut batch = Vec::new();
    let mut long = 0;
    for file in listed {
        long += file.path.as_ref().map_or(0, |path| path.as_bytes().len());
        batch.push(file);
        if batch.len() >= BATCH || long >= LONG {
            out(Response::Past(std::mem::take(&mut batch)))?;
            long = 0;
        }
    }
    if !batch.is_empty() {
        out(Response::Past(batch))?;
    }
    out(Response::PastTotal(Box::new(sum)))
}

impl Naming<'_> {
    /// Finds names: of those that are there today in today's tree, of others where they were last.
    fn all(&mut self, mut watch: impl FnMut(f64) -> bool) -> Result<()> {
        for i in 0..self.holdings.len() {
            let h = self.holdings[i];
            let now = self.fs(|fs| fs.generation(Tree::Live, Ino(h.ino)).ok())?;
            self.named[i].gone = now.is_none() || (h.generation.is_some() && now != h.generation);
        }
        self.walk(Tree::Live, &mut watch)?;
        let mut tried = HashSet::new();
        for walks in 0..WALKS {
            // Who holds most is named first.
            let wanted = |i: &usize| self.named[*i].gone && self.named[*i].path.is_none();
            let next = (0..self.holdings.len())
                .find(|i| wanted(i) && !tried.contains(&self.holdings[*i].last))
                .map(|i| self.holdings[i].last);
            let Some(moment) = next else { break };
            #[expect(clippy::cast_precision_loss, reason = "a part of the way")]
            if !watch(walks as f64 / WALKS as f64) {
                return Ok(());
            }
            tried.insert(moment);
            if with(self.host, |v| v.open_view(Cno(moment)))?.is_ok() {
                let walked = self.walk(Tree::Past(moment), &mut watch);
                with(self.host, |v| v.close_view(Cno(moment)))?;
                walked?;
                let last = self.holdings.iter().map(|h| h.last);
                let there = self.named.iter_mut().zip(last).filter(|(_, last)| *last == moment);
                there.for_each(|(n, _)| n.sought = true);
            }
        }
        Ok(())
    }

    /// Whether a moment has the path, perhaps as a file that holds nothing: of these, newest first, the first [`LOOKED`] are
    /// asked, and where there are more it is not known and taken for granted.
    fn was_there(&self, moments: &[u64]) -> Result<bool> {
        for moment in moments.iter().rev().take(LOOKED) {
            if with(self.host, |v| v.open_view(Cno(*moment)))?.is_ok() {
                let found = self.fs(|fs| fs.resolve(Tree::Past(*moment), self.below).is_ok());
                with(self.host, |v| v.close_view(Cno(*moment)))?;
                if found? {
                    return Ok(true);
                }
            }
        }
        Ok(moments.len() > LOOKED)
    }

    fn fs<R>(&self, f: impl FnMut(&mut silt_fs::Fs) -> R) -> Result<R> {
        with_fs(self.host, f)
            .ok_or_else(|| ControlError::new(Kind::Unavailable, "the volume is being closed"))
    }

    /// Names all that a tree has at or below the path asked for. What cannot be read of it names nothing.
    fn walk(&mut self, tree: Tree, watch: &mut impl FnMut(f64) -> bool) -> Result<()> {
        let below = self.below;
        let Ok(start) = self.fs(|fs| fs.resolve(tree, below))? else { return Ok(()) };
        self.is_there = true;
        let mut path: Vec<u8> = Vec::new();
        for name in below.split(|b| *b == b'/').filter(|n| !n.is_empty() && *n != b".") {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        self.name(tree, start.0, || if path.is_empty() { b"/".to_vec() } else { path.clone() });
        let mut seen = HashSet::from([start.0]);
        let mut stack = vec![(start, path, 0)];
        while let Some((dir, path, depth)) = stack.pop() {
            if !watch(0.0) || (below.is_empty() && self.all_named(tree)) {
                return Ok(());
            }
            let mut from = Some(0);
            while let Some(at) = from.take() {
                let mut entries: Vec<(u64, bool, Vec<u8>)> = Vec::new();
                // A file, or a directory that is damaged, has none.
                self.fs(|fs| {
                    entries.clear();
                    let _ = fs.readdir(tree, dir, at, false, |e| {
                        if e.name != b"." && e.name != b".." {
                            // Where the entry does not say what it is, reading it will.
                            let may_be_dir = matches!(e.file_type, 0 | 0o040_000);
                            entries.push((e.ino.0, may_be_dir, e.name.to_vec()));
                        }
                        if entries.len() < ENTRIES {
                            return ControlFlow::Continue(());
                        }
                        from = Some(e.next);
                        ControlFlow::Break(())
                    });
                })?;
                for (ino, may_be_dir, name) in entries {
                    let whole = || [&path[..], b"/", &name].concat();
                    self.name(tree, ino, whole);
                    if may_be_dir && depth < DEPTH && seen.insert(ino) {
                        stack.push((Ino(ino), whole(), depth + 1));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a walk has nothing more to look for.
    fn all_named(&self, tree: Tree) -> bool {
        let is_past = tree != Tree::Live;
        self.holdings.len() <= FEW && self.named.iter().all(|n| n.path.is_some() || n.gone != is_past)
    }

    /// An inode has a name in a tree: those that were it then are called so.
    fn name(&mut self, tree: Tree, ino: u64, path: impl Fn() -> Vec<u8>) {
        for i in self.places.get(&ino).map_or(&[][..], |all| all) {
            let (h, n) = (&self.holdings[*i], &mut self.named[*i]);
            let is_it = match tree {
                Tree::Live => !n.gone,
                Tree::Past(c) => n.gone && h.first <= c && c <= h.last,
            };
            if is_it && n.path.is_none() {
                n.path = Some(path());
            }
        }
    }
}
