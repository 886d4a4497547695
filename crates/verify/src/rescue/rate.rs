//! Which moments can be read, and how well: the answer to "what do I still have?".

use super::judge::{Grade, Tally};
use super::volume::{Moment, Rescue};
use crate::Watch;

/// A moment and what its tree is worth; `None` where it was not looked at.
#[derive(Debug, Clone)]
pub struct Rated {
    pub moment: Moment,
    pub tally: Option<Tally>,
}

impl Rated {
    /// How good it is, where it was looked at.
    pub fn grade(&self) -> Option<Grade> {
        self.tally.as_ref().map(Tally::grade)
    }
}

/// What survives.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// All moments, newest first.
    pub moments: Vec<Rated>,
    /// The newest of which anything can be read: what is copied out where no moment is named.
    pub newest: Option<u64>,
    /// The newest that is whole; among those that were looked at.
    pub newest_whole: Option<u64>,
}

/// Newest moments that are looked at in any case.
const FEW: usize = 3;
/// Older ones that are looked at until one is whole.
const SEARCHED: usize = 64;

impl Rescue<'_> {
    /// Looks at the newest few moments, at older ones until one is whole, and at snapshots; at all where `all`.
    /// `watch` is told in files of each moment.
    pub fn rate(&self, all: bool, watch: &dyn Watch) -> Answer {
        let (mut answer, mut last) = (Answer::default(), None);
        for (i, moment) in self.moments().into_iter().enumerate() {
            let searching = answer.newest_whole.is_none() && i < SEARCHED;
            let wanted = all || i < FEW || searching || moment.snapshot;
            let tally = if wanted && !watch.stop() {
                watch.stage("reading a moment's metadata", 0);
                self.judge_with(moment.cno, watch, &mut last).ok()
            } else {
                None
            };
            let rated = Rated { moment, tally };
            let readable = rated.grade().is_some_and(|g| g > Grade::Unreadable);
            if readable && answer.newest.is_none() {
                answer.newest = Some(moment.cno);
            }
            if rated.grade() == Some(Grade::Whole) && answer.newest_whole.is_none() {
                answer.newest_whole = Some(moment.cno);
            }
            answer.moments.push(rated);
        }
        answer
    }

    /// The newest moment of which anything can be read.
    pub fn newest_readable(&self, watch: &dyn Watch) -> Option<u64> {
        let mut last = None;
        self.moments().into_iter().take(SEARCHED).map(|m| m.cno).find(|cno| {
            watch.stage("reading a moment's metadata", 0);
            self.judge_with(*cno, watch, &mut last).is_ok_and(|tally| tally.grade() > Grade::Unreadable)
        })
    }
}
