//! The order in which segments are emptied.

use std::str::FromStr;

use silt_engine::clean::Usage;
use silt_engine::{Result, Volume};
use silt_format::SegNr;

/// How segments are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// What was written longest ago first, as the original cleaner does.
    Oldest,
    /// What gives most space first.
    Greedy,
    /// Space and age against the cost of copying: `(1 - u) * age / (1 + u)` (Rosenblum and Ousterhout, 1991).
    #[default]
    CostBenefit,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Policy; 3] = [Policy::Oldest, Policy::Greedy, Policy::CostBenefit];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Oldest => "oldest",
            Policy::Greedy => "greedy",
            Policy::CostBenefit => "cost-benefit",
        }
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(s: &str) -> std::result::Result<Self, String> {
        if s == "timestamp" {
            return Ok(Policy::Oldest);
        }
        Policy::ALL
            .into_iter()
            .find(|p| p.name() == s)
            .ok_or_else(|| format!("there is no policy {s:?}: oldest, greedy or cost-benefit"))
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
            Policy::CostBenefit => (1.0 - u) * age / (1.0 + u),
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
        // 0.5 / 1.5 * 501 = 167, 0.2 / 1.8 * 1001 = 111, 0.9 / 1.1 * 11 = 9.
        assert_eq!(order(Policy::CostBenefit), [3, 2, 1, 4]);
    }

    #[test]
    fn names_lead_back() {
        for p in Policy::ALL {
            assert_eq!(p.name().parse::<Policy>().unwrap(), p);
        }
        assert!("worst".parse::<Policy>().is_err());
    }
}
