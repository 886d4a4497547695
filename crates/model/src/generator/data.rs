//! Writing, cutting, reading, syncing and holding regular files.

use super::{Flavour, Generator};
use crate::caps::flag;
use crate::model::{Id, Kind, Model};
use crate::op::{Allocate, FileRef, Op};
use crate::rng::Rng;

fn size_of(model: &Model, id: Id) -> u64 {
    match &model.node(id).kind {
        Kind::File(content) => content.size(),
        _ => 0,
    }
}

/// Pushed onto or next to a block border, if luck says so.
fn near_border(rng: &mut Rng, at: u64) -> u64 {
    match rng.below(6) {
        0 => at & !4095,
        1 => at & !1023,
        2 => (at & !4095).saturating_sub(1),
        3 => (at | 1023) + 1,
        _ => at,
    }
}

impl Generator {
    /// A pattern; now and then all zeroes.
    fn seed(&mut self) -> u64 {
        if self.rng.percent(8) { 0 } else { self.rng.next_u64() | 1 }
    }

    /// A length that the budget still allows, and charges it.
    fn length(&mut self, model: &Model) -> u64 {
        let room = self.profile.live_max.saturating_sub(model.allocated()).min(self.budget);
        let max = self.profile.write_max.min(room);
        let bits = 64 - max.leading_zeros();
        let len = match self.rng.below(8) {
            0 => 1,
            1 => 4096,
            2 => 1024,
            _ => self.rng.magnitude(bits) + 1,
        };
        let len = len.min(max.max(512));
        self.budget = self.budget.saturating_sub(len.max(4096));
        len
    }

    /// An offset for `len` bytes in a file of `size` bytes: inside, at its end, behind it, far out.
    fn offset(&mut self, model: &Model, size: u64, len: u64) -> u64 {
        let limit = model.caps().sparse_max;
        let deep = if self.profile.flavour == Flavour::Deep { 35 } else { 4 };
        let offset = if self.rng.percent(deep) {
            self.far(limit)
        } else {
            match self.rng.below(10) {
                0..=4 => self.rng.below(size.clamp(1, 1 << 40)),
                5..=6 => size,
                7 => 0,
                _ => {
                    let gap = self.rng.magnitude(20);
                    size.saturating_add(gap)
                }
            }
        };
        near_border(&mut self.rng, offset).min(limit.saturating_sub(len))
    }

    /// Far out, every order of magnitude alike.
    fn far(&mut self, limit: u64) -> u64 {
        if self.rng.percent(6) {
            let back = self.rng.magnitude(16);
            return limit.saturating_sub(back);
        }
        let bits = self.rng.between_u32(13, 50);
        self.rng.below(1 << bits).min(limit)
    }

    pub(super) fn write(&mut self, model: &Model) -> Option<Op> {
        let (file, id) = self.file_ref(model)?;
        let len = self.length(model);
        let offset = self.offset(model, size_of(model, id), len);
        if let (FileRef::Path(path), true) = (&file, self.rng.percent(25)) {
            let mtime = self.time(model);
            self.pending.push_back(Op::Utimens { path: path.clone(), mtime });
        }
        Some(Op::Write { file, offset, len, seed: self.seed() })
    }

    pub(super) fn append(&mut self, model: &Model) -> Option<Op> {
        let id = self.file(model)?;
        let len = self.length(model);
        if size_of(model, id) > model.caps().sparse_max.saturating_sub(len) {
            return None;
        }
        Some(Op::Append { path: self.path(model, id)?, len, seed: self.seed() })
    }

    /// A range inside the file.
    fn inside(&mut self, model: &Model, id: Id) -> Option<(u64, u64)> {
        let size = size_of(model, id);
        if size == 0 {
            return None;
        }
        let wish = self.rng.below(size);
        let offset = near_border(&mut self.rng, wish).min(size - 1);
        Some((offset, self.length(model).min(size - offset)))
    }

    pub(super) fn map_write(&mut self, model: &Model) -> Option<Op> {
        let id = self.file(model)?;
        let (offset, len) = self.inside(model, id)?;
        if !model.caps().mmap {
            return None;
        }
        Some(Op::MapWrite { path: self.path(model, id)?, offset, len, seed: self.seed() })
    }

    pub(super) fn truncate(&mut self, model: &Model) -> Option<Op> {
        let (file, id) = self.file_ref(model)?;
        let size = size_of(model, id);
        let limit = model.caps().sparse_max;
        let wish = match self.rng.below(10) {
            0 => 0,
            1 => size,
            2..=6 => self.rng.below(size.max(1)),
            7 => {
                let bits = 64 - size.leading_zeros();
                self.rng.magnitude(bits)
            }
            8 => {
                let more = self.rng.magnitude(20);
                size.saturating_add(more)
            }
            _ => self.far(limit),
        };
        Some(Op::Truncate { file, size: near_border(&mut self.rng, wish).min(limit) })
    }

    pub(super) fn fallocate(&mut self, model: &Model) -> Option<Op> {
        let (file, id) = self.file_ref(model)?;
        let caps = model.caps();
        let (how, able) = match self.rng.below(8) {
            0..=3 => (Allocate::Punch, caps.punch),
            4 => (Allocate::Zero, caps.zero_range),
            5 => (Allocate::ZeroKeep, caps.zero_range),
            6 => (Allocate::Extend, caps.allocate),
            _ => (Allocate::Keep, caps.allocate),
        };
        if !able {
            return None;
        }
        let size = size_of(model, id);
        let (offset, len) = match how {
            // Only a hole costs nothing however long it is.
            Allocate::Punch if self.rng.percent(20) => (self.rng.below(size.max(1)), size.max(1)),
            Allocate::Punch => {
                let len = self.rng.magnitude(22) + 1;
                (self.rng.below(size.max(1)), len)
            }
            _ => {
                let len = self.length(model);
                (self.rng.below(size.clamp(1, 1 << 40)), len)
            }
        };
        let offset = near_border(&mut self.rng, offset).min(caps.sparse_max - 1);
        Some(Op::Fallocate { file, how, offset, len: len.min(caps.sparse_max - offset) })
    }

    pub(super) fn read(&mut self, model: &Model) -> Option<Op> {
        let (file, id) = self.file_ref(model)?;
        let size = size_of(model, id);
        let len = self.rng.magnitude(19) + 1;
        let wish = if self.rng.percent(10) { size } else { self.rng.below(size.max(1)) };
        let offset = near_border(&mut self.rng, wish).min((i64::MAX as u64) - len);
        Some(Op::Read { file, offset, len })
    }

    pub(super) fn fsync(&mut self, model: &Model) -> Option<Op> {
        let file =
            if self.rng.percent(15) { FileRef::Path(self.dir_path(model)?) } else { self.file_ref(model)?.0 };
        Some(if self.rng.percent(25) { Op::Fdatasync { file } } else { Op::Fsync { file } })
    }

    /// Overwrites in place and makes just that durable: what a data-sync log is for.
    pub(super) fn data_sync(&mut self, model: &Model) -> Option<Op> {
        let (file, id) = self.file_ref(model)?;
        let (offset, len) = self.inside(model, id)?;
        self.pending.push_back(Op::Fdatasync { file: file.clone() });
        Some(Op::Write { file, offset, len, seed: self.seed() })
    }

    /// An overwrite of a file that is found by name, and its fdatasync; nothing if there is no such file.
    pub fn overwrite_and_sync(&mut self, model: &Model) -> Vec<Op> {
        for _ in 0..20 {
            let Some(id) = self.file(model) else { break };
            let fixed = model.node(id).flags & (flag::IMMUTABLE | flag::APPEND) != 0;
            let Some((path, (offset, len))) = self.path(model, id).zip(self.inside(model, id)) else {
                continue;
            };
            if !fixed {
                let file = FileRef::Path(path);
                let seed = self.seed();
                return vec![Op::Write { file: file.clone(), offset, len, seed }, Op::Fdatasync { file }];
            }
        }
        Vec::new()
    }

    pub(super) fn open(&mut self, model: &Model) -> Option<Op> {
        let slot = self.free_slot(model)?;
        let path = self.file_path(model)?;
        if self.rng.percent(50) {
            // Held open without a name from here on, unless it has others.
            self.pending.push_back(Op::Unlink { path: path.clone() });
        }
        Some(Op::Open { slot, path })
    }

    pub(super) fn tmpfile(&mut self, model: &Model) -> Option<Op> {
        if !model.caps().tmpfile {
            return None;
        }
        let slot = self.free_slot(model)?;
        let dir = self.dir_path(model)?;
        let mode = self.mode(model);
        Some(Op::Tmpfile { slot, dir, mode })
    }

    pub(super) fn link_slot(&mut self, model: &Model) -> Option<Op> {
        if !model.caps().tmpfile {
            return None;
        }
        let slot = self.used_slot(model)?;
        Some(Op::LinkSlot { slot, to: self.vacancy(model)? })
    }

    pub(super) fn close(&mut self, model: &Model) -> Option<Op> {
        Some(Op::Close { slot: self.used_slot(model)? })
    }
}
