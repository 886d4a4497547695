//! What the cleaner goes by: mount options, before `nilfs_cleanerd.conf`, before what Silt does by itself.

use std::time::Duration;

use silt_cleaner::Policy;
use silt_control::cleaner::{Cleaner, Pace, Said, Work};
use silt_control::retention::Source;
use silt_engine::Volume;
use silt_format::Geometry;

use crate::cleanerd_conf::{Amount, Conf};

/// How often it is looked whether segments are short.
const LOOK: Duration = Duration::from_secs(5);
/// Most segments that one step empties.
const STEP: u64 = 64;
/// Cleaning begins with less than a tenth of the segments clean and ends with a fifth, or with these shares of what can be
/// clean, where that is less: the longer segments are left alone, the less of them is left to be copied.
const BEGINS: u64 = 10;
const ENDS: u64 = 3;

/// What somebody said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tuning {
    /// `policy=`
    pub policy: Option<Policy>,
    /// `cleanerd_conf`
    pub conf: Option<Conf>,
}

/// Numbers of clean segments that cleaning goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// Cleaning begins with fewer; none: there is always something to do.
    pub low: Option<u64>,
    /// It ends with so many; none: with nothing left that is worth it.
    pub high: Option<u64>,
    /// With fewer segments are short: the wish gives way.
    pub short: u64,
}

impl Marks {
    /// Where so many segments do not count although they are clean; no mark falls below `least`.
    pub fn with_fewer(self, uncounted: u64, least: u64) -> Self {
        let less = |n: u64| n.saturating_sub(uncounted).max(least.min(n));
        Marks {
            low: self.low.map(less),
            high: self.high.map(|n| less(n).max(least.saturating_add(1).min(n))),
            short: less(self.short),
        }
    }
}

impl Tuning {
    fn said<T>(&self, of: impl Fn(&Conf) -> Option<T>) -> Option<Said<T>> {
        let value = self.conf.as_ref().and_then(of)?;
        Some(Said { value, from: Source::File })
    }

    /// The order in which segments are emptied.
    pub fn policy(&self) -> Said<Policy> {
        if let Some(value) = self.policy {
            return Said { value, from: Source::Mount };
        }
        self.said(|c| c.selection_policy).unwrap_or_default()
    }

    /// Time between looks.
    pub fn look(&self) -> Said<Duration> {
        self.said(|c| c.clean_check_interval).unwrap_or(Said { value: LOOK, from: Source::Default })
    }

    /// When it begins and ends, where users wait with fewer than `kept` clean, and `room` can be clean besides those kept
    /// back (none: not known). What is kept back stays beside what anybody says.
    pub fn marks(&self, g: &Geometry, kept: u64, room: Option<u64>) -> Marks {
        let kept = kept.max(kept_back(g));
        let room = room.unwrap_or(g.nsegments);
        let own = kept + (g.nsegments / 10).min(room / BEGINS);
        let own_end = kept + 1 + (g.nsegments / 5).min(room / ENDS);
        let segment = u64::from(g.block_size) * u64::from(g.blocks_per_segment);
        let of = |amount: Amount| match amount.of(g.nsegments, segment) {
            0 => None,
            n => Some(kept_back(g).saturating_add(n).max(kept + 1)),
        };
        let conf = self.conf.as_ref();
        let low = conf.and_then(|c| c.min_clean_segments).map_or(Some(own), of);
        let high = conf.and_then(|c| c.max_clean_segments).and_then(of);
        let high = high.unwrap_or(own_end);
        Marks {
            low,
            // One that is below the beginning ends there.
            high: low.map(|low| high.max(low.saturating_add(1))),
            short: low.map_or(own, |low| own.min(low)),
        }
    }

    /// Segments that one step empties at most.
    pub fn segments(&self, short: bool) -> u64 {
        self.speed(short, |s| s.segments).unwrap_or(STEP).min(STEP)
    }

    /// Rest after each step, where somebody set one.
    pub fn interval(&self, short: bool) -> Option<Duration> {
        self.speed(short, |s| s.interval)
    }

    /// Blocks of a segment that are to be gained at least, where somebody said that.
    pub fn least(&self, short: bool, g: &Geometry) -> Option<u64> {
        let least = self.speed(short, |s| s.least)?;
        Some(least.of(u64::from(g.blocks_per_segment), u64::from(g.block_size)))
    }

    fn speed<T>(&self, short: bool, of: impl Fn(&crate::cleanerd_conf::Speed) -> Option<T>) -> Option<T> {
        let conf = self.conf.as_ref()?;
        of(if short { &conf.short } else { &conf.usual })
    }

    /// For `silt status`.
    pub fn report(&self, volume: &Volume, room: Option<u64>, on: bool) -> Cleaner {
        let g = volume.geometry();
        let marks = self.marks(g, crate::space::kept(volume), room);
        let from = |amount: Option<Amount>| if amount.is_some() { Source::File } else { Source::Default };
        let conf = self.conf.as_ref();
        let seconds = |t: Duration| t.as_secs_f64();
        let policy = self.policy();
        let look = self.look();
        let pace = |short| Pace {
            segments: self.speed(short, |s| s.segments).map(|n| n.min(STEP)),
            interval: self.interval(short).map(seconds),
            least: self.least(short, g),
        };
        Cleaner {
            on,
            file: conf.map(|c| c.path.as_path().into()),
            policy: Said { value: policy.value.name().to_owned(), from: policy.from },
            begins_below: Said { value: marks.low, from: from(conf.and_then(|c| c.min_clean_segments)) },
            ends_at: Said { value: marks.high, from: from(conf.and_then(|c| c.max_clean_segments)) },
            look: Said { value: seconds(look.value), from: look.from },
            usual: pace(false),
            short: pace(true),
            unknown: conf.map_or_else(Vec::new, |c| c.unknown.clone()),
            work: Work::default(),
        }
    }
}

/// Segments that are never counted as clean: the reserve, and what is being written.
pub fn kept_back(g: &Geometry) -> u64 {
    g.reserved_segments() + 2
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use super::*;

    fn geometry(nsegments: u64) -> Geometry {
        Geometry {
            block_size: 4096,
            block_bits: 12,
            blocks_per_segment: 2048,
            nsegments,
            first_data_block: 1,
            inode_size: 128,
            dat_entry_size: 32,
            checkpoint_size: 192,
            segment_usage_size: 16,
            crc_seed: 0,
            first_ino: 11,
            reserved_percent: 5,
        }
    }

    fn tuning(text: &str) -> Tuning {
        Tuning { policy: None, conf: Some(Conf::parse(Path::new("/c"), text).unwrap()) }
    }

    #[test]
    fn nobody_said_anything() {
        let t = Tuning::default();
        let marks = |room| t.marks(&geometry(1000), 0, room);
        assert_eq!(marks(None), Marks { low: Some(152), high: Some(253), short: 152 });
        assert_eq!(marks(Some(1000)), marks(None));
        let m = Marks { low: Some(52 + 15), high: Some(52 + 1 + 50), short: 52 + 15 };
        assert_eq!(marks(Some(150)), m, "a volume that is four fifths full");
        let m = Marks { low: Some(60 + 15), high: Some(60 + 1 + 50), short: 60 + 15 };
        assert_eq!(t.marks(&geometry(1000), 60, Some(150)), m, "where users wait sooner");
        assert_eq!(marks(Some(0)), Marks { low: Some(52), high: Some(53), short: 52 });
        assert_eq!((t.policy().value, t.policy().from), (Policy::default(), Source::Default));
        assert_eq!((t.segments(true), t.interval(true), t.look().value), (STEP, None, LOOK));
    }

    #[test]
    fn a_file_says_when_it_begins_and_ends() {
        let marks = |text: &str| tuning(text).marks(&geometry(1000), 0, None);
        let m = marks("min_clean_segments 30%\nmax_clean_segments 40%");
        assert_eq!(m, Marks { low: Some(352), high: Some(452), short: 152 }, "the wish gives way no sooner");
        let m = marks("min_clean_segments 1\nmax_clean_segments 16M");
        assert_eq!(m, Marks { low: Some(53), high: Some(54), short: 53 }, "what is kept back stays");
        assert_eq!(marks("min_clean_segments 0"), Marks { low: None, high: None, short: 152 });
        let m = marks("min_clean_segments 100%\nmax_clean_segments 0");
        assert_eq!(m, Marks { low: Some(1052), high: Some(1053), short: 152 });
    }

    #[test]
    fn an_option_goes_before_the_file() {
        let t = tuning("selection_policy greedy");
        assert_eq!(t.policy(), Said { value: Policy::Greedy, from: Source::File });
        let t = Tuning { policy: Some(Policy::Oldest), ..t };
        assert_eq!(t.policy(), Said { value: Policy::Oldest, from: Source::Mount });
    }

    #[test]
    fn speeds_are_two() {
        let t = tuning("nsegments_per_clean 2\nmc_nsegments_per_clean 400\nmin_reclaimable_blocks 10%");
        assert_eq!((t.segments(false), t.segments(true)), (2, STEP));
        let g = geometry(1000);
        assert_eq!((t.least(false, &g), t.least(true, &g)), (Some(205), None));
    }
}
