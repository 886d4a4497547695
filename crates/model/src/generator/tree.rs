//! Objects, names and attributes.

use super::Generator;
use crate::caps::flag;
use crate::manifest::Time;
use crate::model::{Id, Kind, Model, ROOT};
use crate::op::{FileRef, Op, RenameHow, Special};
use crate::path::TreePath;

impl Generator {
    /// Permission bits, sometimes with the special ones.
    pub(super) fn mode(&mut self, model: &Model) -> u32 {
        let mode = self.rng.between_u32(0, 0o777);
        let special = if model.caps().privileged && self.rng.percent(25) { 0o7000 } else { 0 };
        match self.rng.below(3) {
            0 => 0o644,
            1 => mode,
            _ => mode | (self.rng.between_u32(0, 0o7777) & special),
        }
    }

    /// A time that can be stored: near, before 1970, far off, on borders.
    pub(super) fn time(&mut self, model: &Model) -> Time {
        let caps = model.caps();
        let nsec = match self.rng.below(4) {
            0 => 0,
            1 => 999_999_999,
            _ => self.rng.between_u32(0, 999_999_999),
        };
        let magnitude = |bits: u32, g: &mut Self| i64::try_from(g.rng.magnitude(bits)).unwrap_or(0);
        let sec = match self.rng.below(8) {
            0..=3 => 1_000_000_000 + magnitude(30, self),
            4 => -magnitude(31, self),
            5 => magnitude(34, self),
            6 => magnitude(62, self),
            _ => -magnitude(62, self),
        };
        Time { sec, nsec }.clamp(caps.time_min, caps.time_max)
    }

    pub(super) fn create(&mut self, model: &Model) -> Option<Op> {
        if !self.room(model, 1) {
            return None;
        }
        let path = self.vacancy(model)?;
        if self.rng.percent(60) {
            let len = 1 + self.rng.magnitude(14).min(self.profile.write_max);
            if self.budget > len {
                self.budget -= len;
                let seed = self.rng.next_u64() | 1;
                let file = FileRef::Path(path.clone());
                self.pending.push_back(Op::Write { file, offset: 0, len, seed });
            }
        }
        let mode = self.mode(model);
        Some(Op::Create { path, mode })
    }

    pub(super) fn mkdir(&mut self, model: &Model) -> Option<Op> {
        if !self.room(model, 1) {
            return None;
        }
        let path = self.vacancy(model)?;
        let mode = if self.rng.percent(50) { 0o755 } else { self.mode(model) & 0o1777 };
        Some(Op::Mkdir { path, mode })
    }

    pub(super) fn symlink(&mut self, model: &Model) -> Option<Op> {
        if !self.room(model, 1) {
            return None;
        }
        let path = self.vacancy(model)?;
        let max = model.caps().symlink_max;
        let len = match self.rng.below(6) {
            0 => max,
            1 => self.rng.index(max) + 1,
            _ => self.rng.index(60) + 1,
        };
        Some(Op::Symlink { path, target: self.target(len) })
    }

    /// A symlink target of `len` bytes.
    pub(super) fn target(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| b"abc/. \xc3\xbc"[self.rng.index(8)]).collect()
    }

    pub(super) fn mknod(&mut self, model: &Model) -> Option<Op> {
        if !self.room(model, 1) {
            return None;
        }
        let path = self.vacancy(model)?;
        let kinds: &[Special] = if model.caps().privileged {
            &[Special::Fifo, Special::Socket, Special::Char, Special::Block]
        } else {
            &[Special::Fifo, Special::Socket]
        };
        let kind = *self.rng.pick(kinds)?;
        let (mut major, mut minor) = (0, 0);
        if matches!(kind, Special::Char | Special::Block) {
            let (major_max, minor_max) = model.caps().device_max;
            let big = self.rng.percent(50);
            major = self.rng.between_u32(1, if big { major_max } else { 255 });
            minor = self.rng.between_u32(0, if big { minor_max } else { 255 });
        }
        let mode = self.mode(model);
        Some(Op::Mknod { path, kind, mode, major, minor })
    }

    pub(super) fn link(&mut self, model: &Model) -> Option<Op> {
        let id = if self.rng.percent(85) { self.file(model) } else { self.any(model) }?;
        if matches!(model.node(id).kind, Kind::Dir(..)) {
            return None;
        }
        Some(Op::Link { from: self.path(model, id)?, to: self.vacancy(model)? })
    }

    pub(super) fn unlink(&mut self, model: &Model) -> Option<Op> {
        let id = self.any(model)?;
        if matches!(model.node(id).kind, Kind::Dir(..)) {
            return None;
        }
        Some(Op::Unlink { path: self.path(model, id)? })
    }

    /// An empty directory but the root.
    pub(super) fn empty_dir(&mut self, model: &Model) -> Option<Id> {
        for _ in 0..10 {
            let id = *self.rng.pick(model.dirs().items())?;
            if id != ROOT && model.entries_of(id) == 0 {
                return Some(id);
            }
        }
        None
    }

    pub(super) fn rmdir(&mut self, model: &Model) -> Option<Op> {
        let id = self.empty_dir(model)?;
        Some(Op::Rmdir { path: self.path(model, id)? })
    }

    /// Everything in and under a small directory, and the directory itself.
    pub(super) fn delete_tree(&mut self, model: &Model) -> Option<Op> {
        let top = self.dir(model)?;
        if top == ROOT {
            return None;
        }
        let mut found = vec![(model.path_of(top, 0)?, top)];
        let mut next = 0;
        while let Some((path, id)) = found.get(next).cloned() {
            found.extend(model.names_in(id).map(|(name, child)| (path.join(name), child)));
            next += 1;
            if found.len() > 60 {
                return None;
            }
        }
        for (path, id) in found.into_iter().rev() {
            self.pending.push_back(match model.node(id).kind {
                Kind::Dir(..) => Op::Rmdir { path },
                _ => Op::Unlink { path },
            });
        }
        self.pending.pop_front()
    }

    /// Whether `dir` is `id` or lies below it.
    pub(super) fn below(model: &Model, dir: Id, id: Id) -> bool {
        let mut at = dir;
        loop {
            match model.node(at).kind {
                _ if at == id => return true,
                Kind::Dir(_, parent) if at != ROOT => at = parent,
                _ => return false,
            }
        }
    }

    pub(super) fn rename(&mut self, model: &Model) -> Option<Op> {
        let id = self.any(model)?;
        let dir = self.dir(model)?;
        if Self::below(model, dir, id) {
            return None;
        }
        let how = match model.caps().noreplace && self.rng.percent(25) {
            true => RenameHow::NoReplace,
            false => RenameHow::Plain,
        };
        Some(Op::Rename { from: self.path(model, id)?, to: self.vacancy_in(model, dir)?, how })
    }

    pub(super) fn rename_over(&mut self, model: &Model) -> Option<Op> {
        let id = self.any(model)?;
        let target = match model.node(id).kind {
            Kind::Dir(..) => self.empty_dir(model)?,
            _ => self.any(model).filter(|&id| !matches!(model.node(id).kind, Kind::Dir(..)))?,
        };
        if Self::below(model, target, id) {
            return None;
        }
        let how = RenameHow::Plain;
        Some(Op::Rename { from: self.path(model, id)?, to: self.path(model, target)?, how })
    }

    pub(super) fn exchange(&mut self, model: &Model) -> Option<Op> {
        if !model.caps().exchange {
            return None;
        }
        let (a, b) = (self.any(model)?, self.any(model)?);
        let (from, to) = (self.path(model, a)?, self.path(model, b)?);
        let inside = |outer: &TreePath, inner: &TreePath| {
            inner.as_bytes().strip_prefix(outer.as_bytes()).is_some_and(|rest| rest.starts_with(b"/"))
        };
        if inside(&from, &to) || inside(&to, &from) {
            return None;
        }
        Some(Op::Rename { from, to, how: RenameHow::Exchange })
    }

    /// Everything in a small directory moves elsewhere.
    pub(super) fn rename_all(&mut self, model: &Model) -> Option<Op> {
        let (from, to) = (self.dir(model)?, self.dir(model)?);
        if model.entries_of(from) > 40 {
            return None;
        }
        let (from_path, to_path) = (model.path_of(from, 0)?, model.path_of(to, 0)?);
        let moves: Vec<Op> = model
            .names_in(from)
            .filter(|&(name, id)| name != b".nilfs" && !Self::below(model, to, id))
            .enumerate()
            .map(|(n, (name, _))| Op::Rename {
                from: from_path.join(name),
                to: to_path.join(format!("moved-{}-{n}", self.counter).as_bytes()),
                how: RenameHow::Plain,
            })
            .collect();
        self.counter += 1;
        self.pending.extend(moves);
        self.pending.pop_front()
    }

    pub(super) fn stat(&mut self, model: &Model) -> Option<Op> {
        let id = if self.rng.percent(5) { ROOT } else { self.any(model)? };
        Some(Op::Stat { path: self.path(model, id)? })
    }

    pub(super) fn list(&mut self, model: &Model) -> Option<Op> {
        if self.rng.percent(20) {
            let id = *self.rng.pick(model.others().items())?;
            if matches!(model.node(id).kind, Kind::Symlink(_)) {
                return Some(Op::Readlink { path: self.path(model, id)? });
            }
        }
        Some(Op::List { path: self.dir_path(model)? })
    }

    /// Any object but a symlink, the root included.
    fn not_symlink(&mut self, model: &Model) -> Option<Id> {
        let id = if self.rng.percent(3) { ROOT } else { self.any(model)? };
        (!matches!(model.node(id).kind, Kind::Symlink(_))).then_some(id)
    }

    pub(super) fn chmod(&mut self, model: &Model) -> Option<Op> {
        let id = self.not_symlink(model)?;
        let mode = self.mode(model);
        Some(Op::Chmod { path: self.path(model, id)?, mode })
    }

    pub(super) fn chown(&mut self, model: &Model) -> Option<Op> {
        if !model.caps().privileged {
            return None;
        }
        let id = self.any(model)?;
        let mut owner = || match self.rng.below(5) {
            0 => None,
            1 => Some(0),
            2 => Some(self.rng.between_u32(0, u32::MAX - 1)),
            _ => Some(self.rng.between_u32(1, 2000)),
        };
        let (uid, gid) = (owner(), owner());
        Some(Op::Chown { path: self.path(model, id)?, uid, gid })
    }

    pub(super) fn utimens(&mut self, model: &Model) -> Option<Op> {
        let id = if self.rng.percent(5) { ROOT } else { self.any(model)? };
        let mtime = self.time(model);
        Some(Op::Utimens { path: self.path(model, id)?, mtime })
    }

    /// A regular file or a directory, and the flags it can have.
    fn flaggable(&mut self, model: &Model) -> Option<(Id, u32)> {
        let id = if self.rng.percent(60) { self.file(model)? } else { self.dir(model)? };
        let able = match model.node(id).kind {
            Kind::Dir(..) => model.caps().flags,
            _ => model.caps().flags & !flag::DIRECTORY_ONLY,
        };
        Some((id, able))
    }

    pub(super) fn flags(&mut self, model: &Model) -> Option<Op> {
        let (id, able) = self.flaggable(model)?;
        let able = able & !(flag::IMMUTABLE | flag::APPEND);
        if able == 0 {
            return None;
        }
        let path = self.path(model, id)?;
        let mut flags = self.rng.between_u32(0, u32::MAX) & able;
        let slow = flag::SYNC | flag::DIRSYNC;
        if flags & slow != 0 {
            if self.rng.percent(50) {
                flags &= !slow;
            } else {
                // Children would take it over, and soon everything would be synchronous.
                self.pending.push_back(Op::SetFlags { path: path.clone(), flags: flags & !slow });
                let inner = self.name();
                if matches!(model.node(id).kind, Kind::Dir(..)) && model.lookup(&path.join(&inner)).is_err() {
                    self.pending.push_front(Op::Create { path: path.join(&inner), mode: 0o600 });
                }
            }
        }
        Some(Op::SetFlags { path, flags })
    }

    /// Immutable or append-only for a moment, with an attempt at what that forbids or allows.
    pub(super) fn fixed(&mut self, model: &Model) -> Option<Op> {
        let (id, able) = self.flaggable(model)?;
        let bit = if self.rng.percent(50) { flag::IMMUTABLE } else { flag::APPEND };
        let node = model.node(id);
        if able & bit == 0 || node.handles != 0 || id == ROOT {
            return None;
        }
        let path = self.path(model, id)?;
        let file = FileRef::Path(path.clone());
        let is_dir = matches!(node.kind, Kind::Dir(..));
        let tries = self.rng.between(1, 3);
        for _ in 0..tries {
            let attempt = match self.rng.below(8) {
                0 => Op::Chmod { path: path.clone(), mode: 0o600 },
                1 => Op::Chown { path: path.clone(), uid: Some(1), gid: None },
                2 => Op::Utimens { path: path.clone(), mtime: Time::default() },
                3 => Op::Rename { from: path.clone(), to: self.vacancy(model)?, how: RenameHow::Plain },
                4 if is_dir => Op::Rmdir { path: path.clone() },
                4 => Op::Unlink { path: path.clone() },
                _ if is_dir => match model.names_in(id).next() {
                    Some((name, child)) if matches!(model.node(child).kind, Kind::File(_)) => {
                        Op::Unlink { path: path.join(name) }
                    }
                    _ if bit == flag::IMMUTABLE => Op::Create { path: path.join(b"refused"), mode: 0o600 },
                    _ => Op::List { path: path.clone() },
                },
                5 => Op::Append { path: path.clone(), len: 100, seed: 1 },
                6 => Op::Truncate { file: file.clone(), size: 0 },
                _ => Op::Write { file: file.clone(), offset: 0, len: 10, seed: 1 },
            };
            if !matches!(attempt, Op::Append { .. })
                || matches!(&node.kind, Kind::File(content) if content.size() < model.caps().sparse_max - 1000)
            {
                self.pending.push_back(attempt);
            }
        }
        self.pending.push_back(Op::SetFlags { path: path.clone(), flags: node.flags });
        Some(Op::SetFlags { path, flags: node.flags | bit })
    }
}
