//! Where the blocks of a file lie, in runs.

use std::ops::Range;

/// A run of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First block of the file.
    pub offset: u64,
    /// First disk block.
    pub block: u64,
    /// Blocks.
    pub len: u64,
    /// Whether the checksums of the logs that hold it match.
    pub sound: bool,
    /// Found by what summaries say of file and offset, as the map does not tell: it may be an earlier version.
    pub by_offset: bool,
}

impl Extent {
    /// First block of the file behind it.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// The map of a file as far as it is known.
#[derive(Debug, Clone, Default)]
pub struct Mapped {
    /// Ascending, without overlaps. What lies between and is not `lost` is a hole.
    pub extents: Vec<Extent>,
    /// Blocks that are mapped and whose place is not known, or of which it is not known whether they are mapped.
    pub lost: Vec<Range<u64>>,
    /// Whether part of the map was read from blocks that do not verify, or put together from summaries.
    pub doubtful: bool,
}

impl Mapped {
    /// Adds a block behind all others.
    pub(super) fn push(&mut self, e: Extent) {
        match self.extents.last_mut() {
            Some(last)
                if last.end() == e.offset
                    && last.block.saturating_add(last.len) == e.block
                    && (last.sound, last.by_offset) == (e.sound, e.by_offset) =>
            {
                last.len += e.len;
            }
            _ => self.extents.push(e),
        }
    }

    /// Adds a lost range behind all others.
    pub(super) fn push_lost(&mut self, range: Range<u64>) {
        match self.lost.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => self.lost.push(range),
        }
    }

    /// The disk block of a file block, and whether it is sound.
    pub fn at(&self, offset: u64) -> Option<(u64, bool)> {
        let e = self.extent(offset)?;
        Some((e.block + (offset - e.offset), e.sound))
    }

    /// Whether a file block was found by its offset alone.
    pub(super) fn is_by_offset(&self, offset: u64) -> bool {
        self.extent(offset).is_some_and(|e| e.by_offset)
    }

    fn extent(&self, offset: u64) -> Option<&Extent> {
        let i = self.extents.partition_point(|e| e.offset <= offset).checked_sub(1)?;
        self.extents.get(i).filter(|e| offset < e.end())
    }

    /// Whether a block is lost.
    pub fn is_lost(&self, offset: u64) -> bool {
        let i = self.lost.partition_point(|r| r.start <= offset);
        i.checked_sub(1).and_then(|i| self.lost.get(i)).is_some_and(|r| r.contains(&offset))
    }

    /// First block behind the last one that is known.
    pub fn end(&self) -> u64 {
        self.extents.last().map_or(0, Extent::end)
    }

    /// All (offset, disk block, sound).
    pub fn blocks(&self) -> impl Iterator<Item = (u64, u64, bool)> + '_ {
        self.extents.iter().flat_map(|e| (0..e.len).map(|i| (e.offset + i, e.block + i, e.sound)))
    }

    /// What lies before a block, or before the last that is known, and is neither mapped nor lost.
    pub(super) fn holes(&self, end: u64) -> Vec<Range<u64>> {
        let mut all = Vec::new();
        let mut at = 0;
        let known = self.extents.iter().map(|e| e.offset..e.end()).chain(self.lost.iter().cloned());
        let mut known: Vec<Range<u64>> = known.collect();
        known.sort_unstable_by_key(|r| r.start);
        for range in known.into_iter().chain(std::iter::once(end..end)) {
            if at < range.start {
                all.push(at..range.start);
            }
            at = at.max(range.end);
        }
        all
    }

    /// Puts blocks over what is there; `over` ascends without overlaps.
    pub(super) fn overlay(&mut self, over: &[Extent]) {
        let mut all: Vec<Extent> = Vec::new();
        for e in &self.extents {
            // What is covered falls away, block by block at its ends.
            let mut at = e.offset;
            for o in touching(over, e.offset..e.end()) {
                if o.offset > at {
                    all.push(part(e, at..o.offset));
                }
                at = at.max(o.end());
            }
            if at < e.end() {
                all.push(part(e, at..e.end()));
            }
        }
        all.extend_from_slice(over);
        all.sort_unstable_by_key(|e| e.offset);
        self.extents.clear();
        all.into_iter().for_each(|e| self.push(e));
        let lost = std::mem::take(&mut self.lost);
        for range in lost {
            let mut at = range.start;
            for o in touching(over, range.clone()) {
                self.push_lost(at..o.offset.max(at));
                at = at.max(o.end());
            }
            self.push_lost(at..range.end.max(at));
        }
    }
}

/// Those of ascending extents that reach into a range.
fn touching(over: &[Extent], range: Range<u64>) -> impl Iterator<Item = &Extent> {
    let first = over.partition_point(|o| o.end() <= range.start);
    over.get(first..).unwrap_or_default().iter().take_while(move |o| o.offset < range.end)
}

fn part(e: &Extent, range: Range<u64>) -> Extent {
    Extent {
        offset: range.start,
        block: e.block + (range.start - e.offset),
        len: range.end - range.start,
        ..*e
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(offset: u64, block: u64, len: u64) -> Extent {
        Extent { offset, block, len, sound: true, by_offset: false }
    }

    #[test]
    fn runs_grow_and_are_found() {
        let mut m = Mapped::default();
        for (offset, block) in [(0, 10), (1, 11), (2, 13), (9, 14)] {
            m.push(extent(offset, block, 1));
        }
        assert_eq!(m.extents, [extent(0, 10, 2), extent(2, 13, 1), extent(9, 14, 1)]);
        assert_eq!((m.at(1), m.at(2), m.at(3), m.end()), (Some((11, true)), Some((13, true)), None, 10));
        m.push_lost(3..5);
        m.push_lost(5..6);
        assert!(m.is_lost(5) && !m.is_lost(6) && m.lost.len() == 1);
    }

    #[test]
    fn an_overlay_covers_and_fills() {
        let mut m = Mapped { extents: vec![extent(0, 10, 10)], ..Mapped::default() };
        m.push_lost(12..20);
        m.overlay(&[extent(3, 50, 2), extent(13, 60, 1)]);
        assert_eq!(m.extents, [extent(0, 10, 3), extent(3, 50, 2), extent(5, 15, 5), extent(13, 60, 1)]);
        assert_eq!(m.lost, [12..13, 14..20]);
        assert_eq!(m.holes(25), [10..12, 20..25]);
    }
}
