//! Segments that the cleaner could not empty, and leaves alone for a while.
//!
//! A device that cannot be read for a moment is no reason to leave them alone for ever: each is tried again, less and less
//! often.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A segment is tried again after this, and each further time after twice as long, up to [`LONGEST`].
const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(3600);

/// See the module. Memory: one entry a segment that could not be emptied.
#[derive(Debug, Default)]
pub struct Aside {
    segments: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    /// None while it is tried again.
    why: Option<String>,
    until: Instant,
    /// How long it is left alone the next time.
    pause: Duration,
}

impl Aside {
    /// A segment could not be emptied.
    pub fn add(&mut self, segment: u64, why: String, now: Instant) {
        let entry = self.segments.entry(segment).or_insert(Entry { why: None, until: now, pause: FIRST });
        // One pass may tell of it more than once.
        if entry.why.replace(why).is_none() {
            entry.until = now + entry.pause;
            entry.pause = (entry.pause * 2).min(LONGEST);
        }
    }

    /// Those that are not tried now. The others are, and told of no more unless they are added again.
    pub fn left_alone(&mut self, now: Instant) -> Vec<u64> {
        let mut left = Vec::new();
        for (segment, entry) in &mut self.segments {
            if entry.why.is_some() && now < entry.until {
                left.push(*segment);
            } else {
                entry.why = None;
            }
        }
        left
    }

    /// Why each is left alone.
    pub fn reasons(&self) -> BTreeMap<u64, String> {
        self.segments.iter().filter_map(|(segment, entry)| Some((*segment, entry.why.clone()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_tried_again_and_less_and_less_often() {
        let (mut aside, begin) = (Aside::default(), Instant::now());
        let mut tried = Vec::new();
        for second in 0..8000u64 {
            let now = begin + Duration::from_secs(second);
            if aside.left_alone(now).is_empty() {
                tried.push(second);
                aside.add(7, "it cannot be read".to_owned(), now);
                aside.add(7, "it cannot be read".to_owned(), now);
            }
        }
        assert_eq!(tried, [0, 10, 30, 70, 150, 310, 630, 1270, 2550, 5110]);
        assert_eq!(aside.reasons().len(), 1);
        // Where it was emptied nothing is told of it.
        assert!(aside.left_alone(begin + Duration::from_secs(9000)).is_empty() && aside.reasons().is_empty());
    }
}
