//! Cleaning as the wish has it, and where that leaves too little space, as ever weaker ones have it, down to the floor.

use std::sync::Arc;
use std::time::{Duration, Instant};

use silt_cleaner::{History, Options, Policy, pass};
use silt_control::retention::Effective;
use silt_engine::Result;
use silt_retention::{Ladder, Point};

use crate::cleaning::{Mounted, is_enough, marks, wanted_segments};
use crate::core::{Core, now_secs};

/// What is younger is given up beyond the wish only for those who wait, in seconds.
const RECENT: u64 = 3_600;
/// Longest rest between two steps while nobody waits.
const PAUSE: Duration = Duration::from_millis(200);

/// How a descent ended.
enum End {
    /// There is space, or as much as those want who wait.
    Enough,
    /// There is nothing more to give up.
    Bottom,
    /// It was stopped, or failed.
    Broken,
    /// The wish was changed meanwhile.
    Changed,
}

/// Cleans, giving up as little of the past as will do; whether there is space then.
pub fn clean(core: &Arc<Core>) -> bool {
    loop {
        let end = descend(core).unwrap_or_else(|e| {
            tracing::warn!("segments cannot be emptied: {e}");
            End::Broken
        });
        match end {
            End::Enough => return true,
            End::Broken => return false,
            End::Bottom => break,
            End::Changed => {}
        }
    }
    is_enough(core)
}

/// What counts now; what is wrong with it is told once.
pub fn effective(core: &Core) -> Effective {
    let counts = Effective::read(&mut core.fs.lock(), &core.options.retention);
    if core.space.is_news(counts.problem.as_ref())
        && let Some(problem) = &counts.problem
    {
        tracing::warn!("{problem}; what is kept is: {}", counts.wish);
    }
    counts
}

fn descend(core: &Arc<Core>) -> Result<End> {
    let (_, low, high) = marks(core);
    let counts = effective(core);
    let ladder = Ladder::new(&counts.wish, &counts.floor);
    let mut options = Options { until: Some(high.max(wanted_segments(core))), ..Options::default() };
    let size = u64::from(core.fs.lock().volume().geometry().blocks_per_segment);
    let mut history = History::read(&Mounted(core))?;
    let mut before: Option<Vec<u64>> = None;
    for (step, wish) in ladder.steps().iter().enumerate() {
        options.now = now_secs();
        let is_last = step + 1 == ladder.steps().len();
        let kept = ladder.kept(step, &history.points, options.now);
        if let Some(before) = &before {
            if *before == kept && !is_last {
                continue;
            }
            let since = options.now.saturating_sub(RECENT);
            let takes_recent = recent(&history.points, &kept, since) < recent(&history.points, before, since);
            let reserve = core.fs.lock().volume().geometry().reserved_segments() + 2;
            if takes_recent && !core.space.is_wanted() && marks(core).0 > reserve {
                return Ok(End::Enough);
            }
        }
        history.keep(&kept, &mut options);
        options.aside.extend(core.space.report().aside.keys());
        // Passes that hardly gain anything are not worth it before more is given up.
        options.least = if is_last { size / 50 + 1 } else { size / 16 + 1 };
        if is_last {
            // Every block counts now, and those that cost most come last.
            options.policy = Policy::Greedy;
        }
        let gone = clean_once(core, &options)?;
        let Some(gone) = gone else { return Ok(End::Broken) };
        let down_to = (step > 0).then(|| wish.to_string());
        core.space.note_given_up(gone, options.now, down_to);
        if marks(core).0 >= low && is_enough(core) {
            return Ok(End::Enough);
        }
        let now = effective(core);
        if (&now.wish, &now.floor) != (&counts.wish, &counts.floor) {
            return Ok(End::Changed);
        }
        if !is_last {
            history = History::read(&Mounted(core))?;
        }
        before = Some(ladder.kept(step, &history.points, options.now));
    }
    Ok(End::Bottom)
}

/// How many of the checkpoints made since then are kept.
fn recent(points: &[Point], kept: &[u64], since: u64) -> usize {
    points.iter().filter(|p| p.time > since && kept.binary_search(&p.number).is_ok()).count()
}

/// One pass; how many moments went with it, none where it was stopped.
fn clean_once(core: &Arc<Core>, options: &Options) -> Result<Option<u64>> {
    let mut last = Instant::now();
    let outcome = pass(&Mounted(core), options, |_| {
        let took = last.elapsed();
        if !core.space.is_wanted() && !core.space.is_stopped() {
            std::thread::sleep(took.min(PAUSE));
        }
        last = Instant::now();
        !core.space.is_stopped()
    })?;
    core.space.note(&outcome);
    for a in &outcome.aside {
        tracing::warn!("segment {} is set aside: {}", a.segment, a.why);
    }
    Ok((!outcome.stopped).then_some(outcome.cleaned.checkpoints))
}
