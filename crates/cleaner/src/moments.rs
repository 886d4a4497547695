//! What holds on to blocks of the past: which moments are kept, and by what.

use silt_engine::Result;
use silt_retention::Ladder;

use crate::gather::Access;
use crate::history::{History, clock};

/// Seconds ahead for which it is said what retention will let go.
pub const SOON: u64 = 3600;

/// Who needs a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// The newest checkpoint.
    Now,
    /// A moment that retention keeps.
    Retention {
        /// Those that keep it are all let go within [`SOON`] when nothing is written, and nothing else holds it.
        soon: bool,
        /// A snapshot holds it as well.
        shared: bool,
        /// It goes where space is short: neither the floor nor anything but retention holds it.
        loose: bool,
        /// The place of the snapshot that alone holds it where space is short and such history is given up.
        left_to: Option<usize>,
    },
    /// Snapshots and nothing else that retention keeps; the place of the only one among them, if it is one and no mount
    /// shows it.
    Snapshots(Option<usize>),
    /// Moments that are mounted and nothing else.
    Mounted,
    /// Nothing.
    Nobody {
        /// A moment that retention does not keep still shows it.
        shown: bool,
    },
}

/// Checkpoints by what keeps them, each list ascending. Memory: 8 bytes an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moments {
    /// Seconds since 1970: the clock that retention went by for the newest. It may be behind the one on the wall, which is not
    /// believed everything ([`clock`]).
    pub time: u64,
    /// The newest.
    pub newest: u64,
    /// Plain ones that there are.
    pub plain: Vec<u64>,
    /// Those of them that retention keeps, and that it would keep [`SOON`] later.
    pub kept: Vec<u64>,
    pub soon: Vec<u64>,
    /// Those that are kept whatever comes.
    pub firm: Vec<u64>,
    pub snapshots: Vec<u64>,
    pub mounted: Vec<u64>,
}

/// Entries of a list from `start` to before `end`.
fn within(list: &[u64], start: u64, end: u64) -> std::ops::Range<usize> {
    let from = list.partition_point(|c| *c < start);
    from..list.partition_point(|c| *c < end).max(from)
}

impl Moments {
    /// As they are `now`, in seconds since 1970, by a wish (the ladder's first step) and its floor. Besides what is
    /// returned 24 bytes a checkpoint are needed meanwhile.
    pub fn read(access: &impl Access, ladder: &Ladder, now: u64) -> Result<Self> {
        let history = History::read(access)?;
        let clock = clock(access, now)?;
        let (newest, mounted) = access.with(|v| (v.last_log().cno, v.viewed()))?;
        let plain: Vec<u64> = history.points.iter().map(|p| p.number).collect();
        let kept = ladder.kept(0, &history.points, &clock);
        let mut soon = ladder.kept(0, &history.points, &clock.later(SOON));
        soon.retain(|c| kept.binary_search(c).is_ok());
        let firm = match ladder.floor().is_nothing() {
            true => Vec::new(),
            false => ladder.kept(ladder.steps().len(), &history.points, &clock),
        };
        let snapshots = history.snapshots().to_vec();
        let mounted = mounted.into_iter().map(|c| c.0).collect();
        let time = clock.as_of(newest);
        Ok(Moments { time, newest, plain, kept, soon, firm, snapshots, mounted })
    }

    /// Who holds a block that the checkpoints from `start` to before `end` see.
    pub fn holder(&self, start: u64, end: u64) -> Holder {
        if end > self.newest.max(start) {
            return Holder::Now;
        }
        let any = |list: &[u64]| !within(list, start, end).is_empty();
        let snapshots = within(&self.snapshots, start, end);
        let mounted = any(&self.mounted);
        if any(&self.kept) {
            let shared = !snapshots.is_empty();
            let only = !shared && !mounted;
            let soon = only && !any(&self.soon);
            let goes = !mounted && !any(&self.firm);
            let left_to = (goes && snapshots.len() == 1).then_some(snapshots.start);
            return Holder::Retention { soon, shared, loose: goes && !shared, left_to };
        }
        match snapshots.len() {
            0 if mounted => Holder::Mounted,
            0 => Holder::Nobody { shown: any(&self.plain) },
            1 if !mounted => Holder::Snapshots(Some(snapshots.start)),
            _ => Holder::Snapshots(None),
        }
    }

    /// The newest moment that is kept, in whatever way, of those that see a block; none where none is.
    pub fn witness(&self, start: u64, end: u64) -> Option<u64> {
        let last = |list: &[u64]| within(list, start, end).next_back().and_then(|i| list.get(i).copied());
        [&self.kept, &self.snapshots, &self.mounted].into_iter().filter_map(|list| last(list)).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_block() {
        let m = Moments {
            newest: 100,
            plain: vec![10, 20, 30, 60, 69, 100],
            kept: vec![20, 60, 69, 100],
            soon: vec![60, 69, 100],
            firm: vec![60],
            snapshots: vec![40, 50, 70, 80],
            mounted: vec![30, 50],
            ..Moments::default()
        };
        let cases = [
            (100, u64::MAX, Holder::Now),
            (5, 101, Holder::Now),
            (101, 101, Holder::Nobody { shown: false }),
            (15, 25, Holder::Retention { soon: true, shared: false, loose: true, left_to: None }),
            (15, 35, Holder::Retention { soon: false, shared: false, loose: false, left_to: None }),
            (15, 45, Holder::Retention { soon: false, shared: true, loose: false, left_to: None }),
            (55, 70, Holder::Retention { soon: false, shared: false, loose: false, left_to: None }),
            (65, 75, Holder::Retention { soon: false, shared: true, loose: false, left_to: Some(2) }),
            (65, 85, Holder::Retention { soon: false, shared: true, loose: false, left_to: None }),
            (55, 75, Holder::Retention { soon: false, shared: true, loose: false, left_to: None }),
            (35, 45, Holder::Snapshots(Some(0))),
            (35, 55, Holder::Snapshots(None)),
            (45, 55, Holder::Snapshots(None)),
            (25, 35, Holder::Mounted),
            (5, 15, Holder::Nobody { shown: true }),
            (11, 20, Holder::Nobody { shown: false }),
            (20, 20, Holder::Nobody { shown: false }),
        ];
        for (start, end, holder) in cases {
            assert_eq!(m.holder(start, end), holder, "{start}..{end}");
        }
        assert_eq!((m.witness(15, 45), m.witness(45, 55), m.witness(5, 15)), (Some(40), Some(50), None));
    }
}
