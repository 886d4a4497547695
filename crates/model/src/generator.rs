//! Histories: a seed and a profile give an endless, always equal stream of operations.
//!
//! [`Generator::next`] looks at the model (never changes it) and makes an operation that is valid there; a few
//! in a hundred are made to fail. The caller applies it to the model and to the target. What comes next depends on
//! the seed, the profile and the model alone, so a history can be played again anywhere.

mod burst;
mod data;
mod names;
mod profile;
mod tree;
mod wrong;

use std::collections::VecDeque;

pub use profile::{Flavour, Profile};

use crate::model::{Id, Model};
use crate::op::{FileRef, Op, SLOTS};
use crate::path::TreePath;
use crate::rng::Rng;
use burst::Burst;
use profile::Choice;

/// How many recently touched objects are kept in mind, to be touched again.
const HOT: usize = 12;

/// Makes the operations of one turn of a history.
#[derive(Clone, Debug)]
pub struct Generator {
    rng: Rng,
    profile: Profile,
    /// Operations that must follow as they are.
    pending: VecDeque<Op>,
    hot_files: VecDeque<Id>,
    hot_dirs: VecDeque<Id>,
    bursts: Vec<Burst>,
    /// For new names.
    counter: u32,
    /// Bytes that may still be written.
    budget: u64,
    link_burst_done: bool,
}

impl Generator {
    /// The stream for `seed`.
    pub fn new(seed: u64, profile: Profile) -> Self {
        Self {
            rng: Rng::new(seed),
            budget: profile.write_budget,
            profile,
            pending: VecDeque::new(),
            hot_files: VecDeque::new(),
            hot_dirs: VecDeque::new(),
            bursts: Vec::new(),
            counter: 0,
            link_burst_done: false,
        }
    }

    /// The next operation for a tree in the state of `model`.
    pub fn next(&mut self, model: &Model) -> Op {
        if let Some(op) = self.pending.pop_front() {
            return op;
        }
        if self.profile.link_burst
            && !self.link_burst_done
            && self.rng.percent(3)
            && let Some(op) = self.link_burst(model)
        {
            return op;
        }
        for _ in 0..100 {
            let choice = self.profile.choose(&mut self.rng);
            if let Some(op) = self.make(choice, model) {
                return op;
            }
        }
        Op::Stat { path: TreePath::root() }
    }

    /// What must still follow for the history to end as it should (a flag set for a moment is taken back).
    pub fn rest(&mut self) -> impl Iterator<Item = Op> {
        self.pending.drain(..)
    }

    fn make(&mut self, choice: Choice, model: &Model) -> Option<Op> {
        match choice {
            Choice::Create => self.create(model),
            Choice::Mkdir => self.mkdir(model),
            Choice::Symlink => self.symlink(model),
            Choice::Mknod => self.mknod(model),
            Choice::Link => self.link(model),
            Choice::Unlink => self.unlink(model),
            Choice::Rmdir => self.rmdir(model),
            Choice::DeleteTree => self.delete_tree(model),
            Choice::Rename => self.rename(model),
            Choice::RenameOver => self.rename_over(model),
            Choice::Exchange => self.exchange(model),
            Choice::RenameAll => self.rename_all(model),
            Choice::Write => self.write(model),
            Choice::Append => self.append(model),
            Choice::MapWrite => self.map_write(model),
            Choice::Truncate => self.truncate(model),
            Choice::Fallocate => self.fallocate(model),
            Choice::Read => self.read(model),
            Choice::Stat => self.stat(model),
            Choice::List => self.list(model),
            Choice::Chmod => self.chmod(model),
            Choice::Chown => self.chown(model),
            Choice::Utimens => self.utimens(model),
            Choice::Flags => self.flags(model),
            Choice::Fixed => self.fixed(model),
            Choice::Fsync => self.fsync(model),
            Choice::DataSync => self.data_sync(model),
            Choice::Sync => Some(Op::Sync),
            Choice::Open => self.open(model),
            Choice::Tmpfile => self.tmpfile(model),
            Choice::LinkSlot => self.link_slot(model),
            Choice::Close => self.close(model),
            Choice::Burst => self.burst(model),
            Choice::BurstAgain => self.burst_again(model),
            Choice::Checkpoint => model.caps().checkpoints.then_some(Op::Checkpoint),
            Choice::Snapshot => {
                let room = model.snapshots().len() < self.profile.snapshots_max;
                (model.caps().snapshots && room).then_some(Op::Snapshot)
            }
            Choice::RemoveSnapshot => {
                let ids: Vec<u32> = model.snapshots().keys().copied().collect();
                let id = *self.rng.pick(&ids)?;
                model.caps().snapshots.then_some(Op::RemoveSnapshot { id })
            }
            Choice::Remount => model.caps().remount.then_some(Op::Remount),
            Choice::Wrong => self.wrong(model),
        }
    }

    /// A regular file with a name, often one that was touched lately.
    fn file(&mut self, model: &Model) -> Option<Id> {
        let hot = self.hot_files.get(self.rng.index(HOT)).copied();
        let id = match hot {
            Some(id) if model.files().contains(id) => id,
            _ => *self.rng.pick(model.files().items())?,
        };
        Self::warm(&mut self.hot_files, id);
        Some(id)
    }

    /// A directory, often one that was touched lately.
    fn dir(&mut self, model: &Model) -> Option<Id> {
        let hot = self.hot_dirs.get(self.rng.index(HOT)).copied();
        let id = match hot {
            Some(id) if model.dirs().contains(id) => id,
            _ => *self.rng.pick(model.dirs().items())?,
        };
        Self::warm(&mut self.hot_dirs, id);
        Some(id)
    }

    /// Any object but the root.
    fn any(&mut self, model: &Model) -> Option<Id> {
        let id = match self.rng.below(10) {
            0..=5 => self.file(model)?,
            6..=7 => *self.rng.pick(model.others().items())?,
            _ => self.dir(model)?,
        };
        (id != crate::model::ROOT).then_some(id)
    }

    fn warm(hot: &mut VecDeque<Id>, id: Id) {
        if !hot.contains(&id) {
            hot.push_front(id);
            hot.truncate(HOT);
        }
    }

    /// One of the names of an object.
    fn path(&mut self, model: &Model, id: Id) -> Option<TreePath> {
        model.path_of(id, self.rng.index(8))
    }

    /// An existing regular file by name.
    fn file_path(&mut self, model: &Model) -> Option<TreePath> {
        let id = self.file(model)?;
        self.path(model, id)
    }

    /// An existing directory by name.
    fn dir_path(&mut self, model: &Model) -> Option<TreePath> {
        let id = self.dir(model)?;
        self.path(model, id)
    }

    /// A regular file by name, now and then one that is held open by its slot.
    fn file_ref(&mut self, model: &Model) -> Option<(FileRef, Id)> {
        if self.rng.percent(20) {
            let slot = u8::try_from(self.rng.below(u64::from(SLOTS))).unwrap_or(0);
            if let Some(id) = model.slot(slot) {
                return Some((FileRef::Slot(slot), id));
            }
        }
        let id = self.file(model)?;
        Some((FileRef::Path(self.path(model, id)?), id))
    }

    /// An empty slot.
    fn free_slot(&mut self, model: &Model) -> Option<u8> {
        let free: Vec<u8> = (0..SLOTS).filter(|&slot| model.slot(slot).is_none()).collect();
        self.rng.pick(&free).copied()
    }

    /// A slot in use.
    fn used_slot(&mut self, model: &Model) -> Option<u8> {
        let used: Vec<u8> = (0..SLOTS).filter(|&slot| model.slot(slot).is_some()).collect();
        self.rng.pick(&used).copied()
    }

    /// Room for `more` new objects.
    fn room(&self, model: &Model, more: usize) -> bool {
        let now = model.files().items().len() + model.dirs().items().len() + model.others().items().len();
        now + more <= self.profile.entries_max
    }
}

#[cfg(test)]
mod tests;
