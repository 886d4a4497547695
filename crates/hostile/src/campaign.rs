//! Many random images on several threads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use crate::judge::{Cost, Finding, Watchdog, judge_some};
use crate::patch::Changes;
use crate::paths::PATHS;
use crate::story::minimise;
use crate::{Base, mutate};

/// How often each base is used, beside the others.
fn schedule() -> Vec<&'static str> {
    let often = ["small-1k", "cut-1k", "small-4k", "tail-4k", "small-2k"];
    let mut out = Vec::new();
    for name in Base::names() {
        let times = if often.contains(&name) {
            4
        } else if name.starts_with("small") {
            2
        } else {
            1
        };
        out.extend(std::iter::repeat_n(name, times));
    }
    out
}

/// What to run.
#[derive(Debug, Clone)]
pub struct Campaign {
    pub images: u64,
    /// Number of the first.
    pub from: u64,
    pub threads: usize,
    /// This base alone.
    pub base: Option<String>,
    /// Different findings after which it ends.
    pub most_findings: usize,
}

/// A finding, and the image it was found on made simple.
#[derive(Debug, Clone)]
pub struct Found {
    pub number: u64,
    pub base: &'static str,
    pub changes: Changes,
    pub finding: Finding,
}

/// What a path took of a campaign.
#[derive(Debug, Clone, Copy, Default)]
pub struct Share {
    pub images: u64,
    /// Processor time of all.
    pub time: Duration,
    /// The largest figures.
    pub most: Cost,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    pub images: u64,
    pub mounted: u64,
    pub taken_over: u64,
    pub closed: u64,
    pub reopened: u64,
    pub walked: u64,
    /// The check found an error in it.
    pub complained: u64,
    /// Images on which something was found.
    pub failing: u64,
    /// Rescue could read something of it, a scrub came to its end, a repair was planned.
    pub rescued: u64,
    pub scrubbed: u64,
    pub planned: u64,
    pub found: Vec<Found>,
    /// The largest figures by base.
    pub most: std::collections::BTreeMap<&'static str, (u64, Cost)>,
    /// By path, as in [`crate::paths::PATHS`].
    pub paths: [Share; PATHS.len()],
}

/// The base and the changes of image `number`.
pub fn image(number: u64, base: Option<&str>) -> (std::sync::Arc<Base>, Changes) {
    let schedule = schedule();
    let name = base.unwrap_or_else(|| schedule[(number % schedule.len() as u64) as usize]);
    let base = Base::get(name);
    let changes = mutate::decode(&base, &mutate::bytes_of(number));
    (base, changes)
}

/// Runs a campaign; `progress` is told the number of images done.
pub fn run(campaign: &Campaign, progress: impl Fn(u64) + Sync) -> Outcome {
    let next = AtomicU64::new(campaign.from);
    let end = campaign.from + campaign.images;
    let outcome = Mutex::new(Outcome::default());
    let dog = Watchdog::start(Duration::from_secs(60));
    std::thread::scope(|scope| {
        for _ in 0..campaign.threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= end || outcome.lock().found.len() >= campaign.most_findings {
                        break;
                    }
                    let (base, changes) = image(number, campaign.base.as_deref());
                    dog.begin(format!("image {number} of {}\n{changes}", base.name));
                    one(number, &base, &changes, &outcome);
                    dog.end();
                    progress(number - campaign.from);
                }
            });
        }
    });
    outcome.into_inner()
}

fn one(number: u64, base: &Base, changes: &Changes, outcome: &Mutex<Outcome>) {
    let verdict = judge_some(base, &changes.apply(base), number);
    let mut new = Vec::new();
    {
        let mut o = outcome.lock();
        o.images += 1;
        o.mounted += u64::from(verdict.seen.mounted);
        o.taken_over += u64::from(verdict.seen.taken_over);
        o.closed += u64::from(verdict.seen.closed);
        o.reopened += u64::from(verdict.seen.reopened);
        o.walked += u64::from(verdict.seen.walked);
        o.complained += u64::from(verdict.seen.complained);
        o.failing += u64::from(!verdict.findings.is_empty());
        o.rescued += u64::from(verdict.seen.rescued);
        o.scrubbed += u64::from(verdict.seen.scrubbed);
        o.planned += u64::from(verdict.seen.planned);
        for (i, cost) in &verdict.costs {
            let share = &mut o.paths[*i];
            *share =
                Share { images: share.images + 1, time: share.time + cost.time, most: share.most.max(*cost) };
        }
        let most = o.most.entry(base.name).or_default();
        *most = (most.0 + 1, most.1.max(verdict.most));
        for finding in verdict.findings {
            if !o.found.iter().any(|f| f.finding.is_like(&finding)) {
                o.found.push(Found {
                    number,
                    base: base.name,
                    changes: changes.clone(),
                    finding: finding.clone(),
                });
                new.push(finding);
            }
        }
    }
    for finding in new {
        let simple = minimise(base, changes, &finding);
        let mut o = outcome.lock();
        if let Some(f) = o.found.iter_mut().find(|f| f.number == number && f.finding == finding) {
            f.changes = simple;
        }
    }
}
