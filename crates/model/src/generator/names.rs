//! New names and paths.

use super::Generator;
use crate::model::{Id, Model};
use crate::path::TreePath;

/// Paths stay below this, so that a name of any length can follow within the limit of system calls.
const PATH_MAX: usize = 3500;

impl Generator {
    /// The bytes of a name, not necessarily free.
    pub(super) fn name(&mut self) -> Vec<u8> {
        self.counter += 1;
        let n = self.counter;
        match self.rng.below(20) {
            // Few different names, so that they come again after they were removed.
            0..=6 => format!("n{}", self.rng.below(40)).into_bytes(),
            7..=12 => format!("file-{n}").into_bytes(),
            13 => vec![b'a' + u8::try_from(self.rng.below(26)).unwrap_or(0)],
            14 => self.filled(255, n),
            15..=16 => {
                let len = self.rng.index(255) + 1;
                self.filled(len, n)
            }
            17 => format!("name with blank {n}\n").into_bytes(),
            18 => format!("großer Äther {n} 名前").into_bytes(),
            _ => {
                let len = self.rng.index(30) + 1;
                let odd = |rng: &mut crate::rng::Rng| match u8::try_from(rng.below(256)).unwrap_or(1) {
                    0 | b'/' | b'.' => 0xff,
                    byte => byte,
                };
                (0..len).map(|_| odd(&mut self.rng)).collect()
            }
        }
    }

    /// A name of exactly `len` bytes that ends in a number as far as there is room.
    fn filled(&mut self, len: usize, n: u32) -> Vec<u8> {
        let number = n.to_string().into_bytes();
        let keep = number.len().min(len);
        let mut name = vec![b'x'; len - keep];
        name.extend_from_slice(&number[..keep]);
        name
    }

    /// A path that is free in the directory `dir`.
    pub(super) fn vacancy_in(&mut self, model: &Model, dir: Id) -> Option<TreePath> {
        let dir = model.path_of(dir, 0)?;
        if dir.as_bytes().len() > PATH_MAX {
            return None;
        }
        (0..5).map(|_| dir.join(&self.name())).find(|path| model.lookup(path).is_err())
    }

    /// A path that is free somewhere.
    pub(super) fn vacancy(&mut self, model: &Model) -> Option<TreePath> {
        let dir = self.dir(model)?;
        self.vacancy_in(model, dir)
    }
}
