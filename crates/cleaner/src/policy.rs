//! The order in which segments are emptied.

use std::str::FromStr;

use silt_engine::clean::Usage;
use silt_engine::{Result, Volume};
use silt_format::SegNr;

use crate::gather::Access;

/// Segments that are looked at under one hold of the lock.
const AT_A_TIME: u64 = 1024;

/// How segments are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// What was written longest ago first, as the original cleaner does.
    Oldest,
    /// What gives most space first.
    Greedy,
    /// Space against the cost of copying, and age: `(1 - u) / 2u * sqrt(age)`, `u` the share that is needed.
    ///
    /// Rosenblum and Ousterhout (1991) have `1 + u` for `2u`, since they read a segment as a whole, and the age
    /// itself. What is needed alone is read here, so an empty segment costs nothing and goes first. And the more
    /// age counts, the longer old blocks of tables, dead with the next checkpoint, take up space: that costs more
    /// than waiting for data to die brings.
    #[default]
    CostBenefit,
    /// As cost-benefit, and now and then a segment that was left alone while the log went round, however much of
    /// it is needed: so that all segments wear alike (see `Rotation`).
    WearLevelling,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Policy; 4] = [Policy::Oldest, Policy::Greedy, Policy::CostBenefit, Policy::WearLevelling];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Oldest => "oldest",
            Policy::Greedy => "greedy",
            Policy::CostBenefit => "cost-benefit",
            Policy::WearLevelling => "wear-levelling",
        }
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(s: &str) -> std::result::Result<Self, String> {
        if s == "timestamp" {
            return Ok(Policy::Oldest);
        }
        Policy::ALL.into_iter().find(|p| p.name() == s).ok_or_else(|| {
            format!("there is no policy {s:?}: oldest, greedy, cost-benefit or wear-levelling")
        })
    }
}

/// A segment that may be emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    pub segment: SegNr,
    /// Seconds; when its last log was written.
    pub modified: u64,
    /// Blocks written in it.
    pub written: u64,
    /// Blocks that have to be copied.
    pub needed: u64,
}

impl Candidate {
    /// Blocks that emptying it gains, what its copies cost besides aside.
    pub fn reclaimable(&self, blocks_per_segment: u64) -> u64 {
        blocks_per_segment.saturating_sub(self.needed)
    }

    /// Greater goes first.
    fn worth(&self, policy: Policy, now: u64, blocks_per_segment: u64) -> f64 {
        let size = blocks_per_segment.max(1) as f64;
        let u = (self.needed as f64 / size).min(1.0);
        let age = now.saturating_sub(self.modified) as f64 + 1.0;
        match policy {
            Policy::Oldest => age,
            Policy::Greedy => 1.0 - u,
            // Infinite where nothing is needed.
            Policy::CostBenefit | Policy::WearLevelling => (1.0 - u) * age.sqrt() / (2.0 * u),
        }
    }

    /// Sorts candidates, first the one to be emptied first; equal ones by number.
    pub fn sort(all: &mut [Candidate], policy: Policy, now: u64, blocks_per_segment: u64) {
        all.sort_by(|a, b| {
            let (a_worth, b_worth) =
                (a.worth(policy, now, blocks_per_segment), b.worth(policy, now, blocks_per_segment));
            b_worth.total_cmp(&a_worth).then(a.segment.cmp(&b.segment))
        });
    }
}

/// Segments of a range that may be emptied and would give at least `least` blocks. Clean ones, bad ones, and those that
/// are being written are not among them.
pub fn candidates(
    volume: &Volume,
    usage: &Usage,
    range: std::ops::Range<u64>,
    least: u64,
) -> Result<Vec<Candidate>> {
    let size = u64::from(volume.geometry().blocks_per_segment);
    let mut all = Vec::new();
    for segment in range.start..range.end.min(volume.geometry().nsegments) {
        let info = volume.segment_info(SegNr(segment))?;
        if info.active || info.error || !info.dirty {
            continue;
        }
        let counted = usage.of(SegNr(segment));
        let candidate = Candidate {
            segment: SegNr(segment),
            modified: info.modified,
            written: u64::from(info.blocks),
            needed: u64::from(counted.live) + u64::from(counted.kept),
        };
        if candidate.reclaimable(size) >= least {
            all.push(candidate);
        }
    }
    Ok(all)
}

/// The same of the volume of a mount, some segments at a time.
pub fn all_candidates(
    access: &impl Access,
    usage: &Usage,
    range: std::ops::Range<u64>,
    least: u64,
) -> Result<Vec<Candidate>> {
    let mut all = Vec::new();
    let mut from = range.start;
    while from < range.end.min(access.with(|v| v.geometry().nsegments)?) {
        let end = from.saturating_add(AT_A_TIME).min(range.end);
        all.append(&mut access.with(|v| candidates(v, usage, from..end, least))??);
        from = end;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn candidate(segment: u64, modified: u64, needed: u64) -> Candidate {
        Candidate { segment: SegNr(segment), modified, written: 100, needed }
    }

    fn order(policy: Policy) -> Vec<u64> {
        let mut all =
            vec![candidate(1, 990, 10), candidate(2, 0, 80), candidate(3, 500, 50), candidate(4, 990, 10)];
        Candidate::sort(&mut all, policy, 1000, 100);
        all.iter().map(|c| c.segment.0).collect()
    }

    #[test]
    fn each_policy_has_its_order() {
        assert_eq!(order(Policy::Oldest), [2, 3, 1, 4]);
        assert_eq!(order(Policy::Greedy), [1, 4, 3, 2]);
        for policy in [Policy::CostBenefit, Policy::WearLevelling] {
            // 0.9 / 0.2 * sqrt 11 = 15, 0.5 / 1.0 * sqrt 501 = 11, 0.2 / 1.6 * sqrt 1001 = 4.
            assert_eq!(order(policy), [1, 4, 3, 2]);
        }
    }

    /// Of segments of which as much is needed the older goes first, an empty one before all, and a full one last.
    #[test]
    fn age_counts_and_empty_ones_cost_nothing() {
        let mut all =
            vec![candidate(1, 900, 50), candidate(2, 0, 50), candidate(3, 0, 100), candidate(4, 1000, 0)];
        // 0.7 / 0.6 * sqrt 11 = 3.9, less than 0.5 / 1.0 * sqrt 101 = 5.0 of the first.
        all.push(candidate(5, 990, 30));
        Candidate::sort(&mut all, Policy::CostBenefit, 1000, 100);
        let order: Vec<u64> = all.iter().map(|c| c.segment.0).collect();
        assert_eq!(order, [4, 2, 1, 5, 3]);
    }

    #[test]
    fn names_lead_back() {
        for p in Policy::ALL {
            assert_eq!(p.name().parse::<Policy>().unwrap(), p);
        }
        assert!("worst".parse::<Policy>().is_err());
    }
}
