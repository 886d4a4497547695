//! What appends to append-only files left out behind the end: the parts of one large write may come in any order, and
//! those that belong there overwrite nothing.

use std::collections::VecDeque;
use std::ops::Range;

/// Gaps kept in mind over all files. Those of a write are filled soon, so the oldest are forgotten first.
const MOST: usize = 256;

/// Such gaps, in bytes of a file.
#[derive(Default)]
pub struct Appends {
    gaps: VecDeque<(u64, Range<u64>)>,
}

impl Appends {
    /// Bytes were written, and those before them were not.
    pub fn leave(&mut self, ino: u64, gap: Range<u64>) {
        if gap.is_empty() {
            return;
        }
        if self.gaps.len() >= MOST {
            self.gaps.pop_front();
        }
        self.gaps.push_back((ino, gap));
    }

    /// Whether nothing was written there yet.
    pub fn allow(&self, ino: u64, bytes: &Range<u64>) -> bool {
        self.gaps.iter().any(|(of, gap)| *of == ino && gap.start <= bytes.start && bytes.end <= gap.end)
    }

    /// That was written now.
    pub fn fill(&mut self, ino: u64, bytes: Range<u64>) {
        let found =
            |(of, gap): &(u64, Range<u64>)| *of == ino && gap.start <= bytes.start && bytes.end <= gap.end;
        if let Some((_, gap)) = self.gaps.iter().position(found).and_then(|at| self.gaps.remove(at)) {
            self.leave(ino, gap.start..bytes.start);
            self.leave(ino, bytes.end..gap.end);
        }
    }

    /// The file is no longer append-only, or no more.
    pub fn forget(&mut self, ino: u64) {
        self.gaps.retain(|(of, _)| *of != ino);
    }
}
