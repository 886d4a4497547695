//! Operations that must fail, each for one reason.

use super::Generator;
use crate::model::{Kind, Model, ROOT};
use crate::op::{Allocate, FileRef, Op, RenameHow, SLOTS};
use crate::path::TreePath;

impl Generator {
    /// A name longer than any can be.
    fn too_long(&mut self, model: &Model) -> Vec<u8> {
        vec![b'l'; model.caps().name_max + 1 + self.rng.index(20)]
    }

    /// A path that leads through nothing, through a file, or to a name that is too long.
    fn bad_path(&mut self, model: &Model) -> Option<TreePath> {
        Some(match self.rng.below(5) {
            0 => self.dir_path(model)?.join(b"no-such-dir").join(b"x"),
            1 => self.file_path(model)?.join(b"x"),
            2 => self.file_path(model)?.join(b"x").join(b"y"),
            3 => {
                let name = self.too_long(model);
                self.dir_path(model)?.join(&name)
            }
            _ => self.dir_path(model)?.join(b"no-such-name"),
        })
    }

    pub(super) fn wrong(&mut self, model: &Model) -> Option<Op> {
        let caps = model.caps();
        match self.rng.below(24) {
            0 => self.wrong_rename(model),
            1..=3 => self.wrong_path(model),
            4 => Some(Op::Create { path: self.exists(model)?, mode: 0o644 }),
            5 => Some(Op::Mkdir { path: self.exists(model)?, mode: 0o755 }),
            6 => Some(Op::Symlink { path: self.exists(model)?, target: b"t".to_vec() }),
            7 => Some(Op::Link { from: self.file_path(model)?, to: self.exists(model)? }),
            8 => Some(Op::Link { from: self.dir_path(model)?, to: self.vacancy(model)? }),
            9 => Some(Op::Unlink { path: self.dir_path(model).filter(|p| *p != TreePath::root())? }),
            10 => {
                let id = self.any(model)?;
                let full = !matches!(model.node(id).kind, Kind::Dir(..)) || model.entries_of(id) != 0;
                full.then_some(())?;
                Some(Op::Rmdir { path: self.path(model, id)? })
            }
            11 => Some(Op::Write { file: FileRef::Path(self.dir_path(model)?), offset: 0, len: 1, seed: 1 }),
            12 => Some(Op::Truncate { file: FileRef::Path(self.dir_path(model)?), size: 0 }),
            13 => Some(Op::Read { file: FileRef::Path(self.dir_path(model)?), offset: 0, len: 100 }),
            14 => Some(Op::List { path: self.file_path(model)? }),
            15 => Some(Op::Readlink { path: self.file_path(model)? }),
            16 => {
                let len = if caps.symlink_max < 4095 { caps.symlink_max + 1 } else { 5000 };
                Some(Op::Symlink { path: self.vacancy(model)?, target: self.target(len) })
            }
            17 => Some(Op::Symlink { path: self.vacancy(model)?, target: Vec::new() }),
            18 if caps.file_size_max < i64::MAX as u64 => {
                let over = caps.file_size_max + 1 + self.rng.magnitude(12);
                Some(Op::Truncate { file: FileRef::Path(self.file_path(model)?), size: over })
            }
            18 if caps.punch => Some(Op::Fallocate {
                file: FileRef::Path(self.dir_path(model)?),
                how: Allocate::Punch,
                offset: 0,
                len: 10,
            }),
            19 => {
                let links: Vec<_> = model.others().items().to_vec();
                let id = *self.rng.pick(&links)?;
                matches!(model.node(id).kind, Kind::Symlink(_)).then_some(())?;
                let file = FileRef::Path(self.path(model, id)?);
                Some(Op::Write { file, offset: 0, len: 5, seed: 1 })
            }
            20 => Some(Op::Close { slot: (0..SLOTS).find(|&slot| model.slot(slot).is_none())? }),
            21 => Some(Op::Open { slot: self.used_slot(model)?, path: self.file_path(model)? }),
            22 => Some(Op::Open { slot: self.free_slot(model)?, path: self.dir_path(model)? }),
            _ => {
                let slot = self.used_slot(model)?;
                let id = model.slot(slot)?;
                // Only one that lost its last name; one that never had any may still get it.
                let lost = model.node(id).nlink == 0 && caps.tmpfile;
                lost.then_some(())?;
                Some(Op::LinkSlot { slot, to: self.exists(model)? })
            }
        }
    }

    /// Something that exists, not the root.
    fn exists(&mut self, model: &Model) -> Option<TreePath> {
        let id = self.any(model)?;
        self.path(model, id)
    }

    fn wrong_path(&mut self, model: &Model) -> Option<Op> {
        let path = self.bad_path(model)?;
        let file = FileRef::Path(path.clone());
        Some(match self.rng.below(12) {
            0 => Op::Unlink { path },
            1 => Op::Rmdir { path },
            2 => Op::Write { file, offset: 0, len: 1, seed: 1 },
            3 => Op::Truncate { file, size: 0 },
            4 => Op::Chmod { path, mode: 0o600 },
            5 => Op::Stat { path },
            6 => Op::List { path },
            7 => Op::Link { from: path, to: self.vacancy(model)? },
            8 => Op::Rename { from: path, to: self.vacancy(model)?, how: RenameHow::Plain },
            9 => Op::Utimens { path, mtime: self.time(model) },
            10 => Op::Read { file, offset: 0, len: 1 },
            _ => {
                // The same for making something needs a bad directory or a bad name, not a missing name.
                let parent = path.join(b"z");
                match self.rng.below(3) {
                    0 => Op::Create { path: parent, mode: 0o644 },
                    1 => Op::Mkdir { path: parent, mode: 0o755 },
                    _ => Op::Rename { from: self.exists(model)?, to: parent, how: RenameHow::Plain },
                }
            }
        })
    }

    fn wrong_rename(&mut self, model: &Model) -> Option<Op> {
        let how = RenameHow::Plain;
        let dirs = model.dirs().items();
        let dir = *self.rng.pick(dirs)?;
        let dir_path = self.path(model, dir)?;
        if dir == ROOT {
            return None;
        }
        let file = self.file_path(model)?;
        Some(match self.rng.below(6) {
            // Into itself.
            0 => Op::Rename { from: dir_path.clone(), to: dir_path.join(b"inside"), how },
            // A directory over a file, a file over a directory.
            1 => Op::Rename { from: dir_path, to: file, how },
            2 => Op::Rename { from: file, to: dir_path, how },
            // Over a directory that is not empty, possibly one above it.
            3 => {
                let full = *self.rng.pick(dirs)?;
                if full == ROOT || model.entries_of(full) == 0 {
                    return None;
                }
                Op::Rename { from: dir_path, to: self.path(model, full)?, how }
            }
            4 if model.caps().noreplace => {
                Op::Rename { from: file, to: self.exists(model)?, how: RenameHow::NoReplace }
            }
            _ if model.caps().exchange => {
                Op::Rename { from: file, to: self.vacancy(model)?, how: RenameHow::Exchange }
            }
            _ => return None,
        })
    }
}
