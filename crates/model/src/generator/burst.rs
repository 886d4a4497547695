//! Many names at once: large directories, mass renames and removals, the limit of links.

use super::Generator;
use crate::model::{Id, Kind, Model};
use crate::op::{Each, Op};

/// Names that were made together and may come together again.
#[derive(Clone, Debug)]
pub(super) struct Burst {
    dir: Id,
    prefix: Vec<u8>,
    first: u32,
    count: u32,
}

impl Generator {
    fn prefix(&mut self) -> Vec<u8> {
        self.counter += 1;
        let long = if self.rng.percent(15) { "-with-a-rather-long-name-that-fills-the-blocks" } else { "" };
        format!("b{}{long}-", self.counter).into_bytes()
    }

    fn remember(&mut self, burst: Burst) {
        self.bursts.push(burst);
        if self.bursts.len() > 10 {
            self.bursts.remove(0);
        }
    }

    pub(super) fn burst(&mut self, model: &Model) -> Option<Op> {
        let max = self.profile.burst_max;
        let count = match self.rng.below(4) {
            0 => self.rng.between_u32(max / 2, max),
            1 => self.rng.between_u32(10, max.max(10)),
            _ => self.rng.between_u32(10, 100.min(max.max(10))),
        };
        let id = self.dir(model)?;
        let dir = self.path(model, id)?;
        let long = dir.as_bytes().len() > 3000;
        if long || !self.room(model, usize::try_from(count).unwrap_or(usize::MAX)) {
            return None;
        }
        let each = match self.rng.below(8) {
            0..=2 => Each::Create,
            3..=4 => {
                let len = self.rng.magnitude(12) + 1;
                let cost = u64::from(count) * len.max(4096);
                if cost > self.budget || cost + model.allocated() > self.profile.live_max {
                    return None;
                }
                self.budget -= cost;
                Each::Fill { len, seed: self.rng.next_u64() | 1 }
            }
            5 => Each::Mkdir,
            6 => Each::Symlink(b"somewhere/else".to_vec()),
            _ => Each::Link(self.file_path(model)?),
        };
        let links = model.node(id).nlink.saturating_add(count);
        if matches!(each, Each::Mkdir | Each::Link(_))
            && model.caps().link_max.is_some_and(|max| links >= max)
        {
            return None;
        }
        let prefix = self.prefix();
        self.remember(Burst { dir: id, prefix: prefix.clone(), first: 0, count });
        Some(Op::Many { each, dir, prefix, first: 0, count })
    }

    /// Removes or moves a stretch of the names of an earlier burst.
    pub(super) fn burst_again(&mut self, model: &Model) -> Option<Op> {
        if self.bursts.is_empty() {
            return None;
        }
        let index = self.rng.index(self.bursts.len());
        let Burst { dir, prefix, first, count } = self.bursts[index].clone();
        let to = self.dir(model)?;
        if !model.dirs().contains(dir) {
            self.bursts.remove(index);
            return None;
        }
        let path = model.path_of(dir, 0)?;
        let start = if self.rng.percent(50) { first } else { first + self.rng.between_u32(0, count / 2) };
        let end = first.saturating_add(count);
        // All of the first one's sort, and removable: later ones may be gone, filled or something else by now.
        let sort = |n: u32| {
            let name = [&prefix[..], n.to_string().as_bytes()].concat();
            let id = model.lookup(&path.join(&name)).ok()?;
            match model.node(id).kind {
                Kind::Dir(..) if model.entries_of(id) != 0 || Self::below(model, to, id) => None,
                Kind::Dir(..) => Some(true),
                _ => Some(false),
            }
        };
        let are_dirs = match sort(start) {
            Some(are_dirs) => are_dirs,
            None => {
                self.bursts.remove(index);
                return None;
            }
        };
        let whole = self.rng.percent(40);
        let most = if whole { end - start } else { self.rng.between_u32(1, end - start) };
        let mut count = 0;
        while count < most && sort(start + count) == Some(are_dirs) {
            count += 1;
        }
        let each = match self.rng.below(3) {
            0 => {
                let to_prefix =
                    if to != dir && self.rng.percent(50) { prefix.clone() } else { self.prefix() };
                let to_path = model.path_of(to, 0)?;
                let free = (start..start + count).all(|n| {
                    let name = [&to_prefix[..], n.to_string().as_bytes()].concat();
                    model.lookup(&to_path.join(&name)).is_err()
                });
                let links = model.node(to).nlink.saturating_add(count);
                let fits = !are_dirs || model.caps().link_max.is_none_or(|max| links < max);
                if !free || !fits || to_path.as_bytes().len() > 3000 {
                    return None;
                }
                self.remember(Burst { dir: to, prefix: to_prefix.clone(), first: start, count });
                Each::Rename(to_path, to_prefix)
            }
            _ if are_dirs => Each::Rmdir,
            _ => Each::Unlink,
        };
        Some(Op::Many { each, dir: path, prefix, first: start, count })
    }

    /// As many names for one file as it can have, one more, and all of them gone again.
    pub(super) fn link_burst(&mut self, model: &Model) -> Option<Op> {
        let max = model.caps().link_max?;
        let from = self.file(model)?;
        let path = self.path(model, from)?;
        let dir = self.dir_path(model)?;
        if dir.as_bytes().len() > 3000 {
            return None;
        }
        self.link_burst_done = true;
        let prefix = self.prefix();
        let made = max - model.node(from).nlink;
        self.pending.push_back(Op::Sync);
        self.pending.push_back(Op::Many {
            each: Each::Unlink,
            dir: dir.clone(),
            prefix: prefix.clone(),
            first: 0,
            count: made,
        });
        Some(Op::Many { each: Each::Link(path), dir, prefix, first: 0, count: made + 1 })
    }
}
