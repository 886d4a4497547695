//! Cleaning as the wish has it, and where that leaves too little space, as ever weaker ones have it, down to the floor.

use std::sync::Arc;
use std::time::{Duration, Instant};

use silt_cleaner::{History, Limits, Options, Policy, clock, pass};
use silt_control::retention::{Effective, PlannedBy};
use silt_engine::Result;
use silt_retention::{Clock, Ladder, Point, Rule, Wish, thin};

use crate::cleaning::{Mounted, Planner, let_run, marks};
use crate::core::{Core, now_secs};
use crate::pace::{Lately, Step};
use crate::space::{is_enough, kept, wanted_segments};
use crate::tuning::kept_back;

/// The order of a pass is old once others have written this part of the volume: what they wrote before may be empty by
/// now, and what is left of the pass is worth least.
const OLD_PART: u64 = 16;
/// Segments that are too few for that.
const OLD_LEAST: u64 = 8;
/// Where what comes next needs so much more copying than the best did, this part of a segment, so many segments are enough:
/// some of what they took the place of may be emptied for nothing.
const WORSE_PART: u64 = 4;
const OLD_WORSE: u64 = 2;
/// A segment of which less than this part is needed costs next to nothing.
const CHEAP_PART: u64 = 16;
/// What is younger is given up beyond the wish only for those who wait, in seconds.
const RECENT: u64 = 3_600;

/// For so long who waits for space waits for those who read where it was gained, and looks so often.
const READERS: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);

/// What the floor keeps for longer, in seconds, is kept for good as far as those are concerned who wait for space.
const FAR: u64 = 1 << 25;

/// What cleaning came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    /// There is space.
    Space,
    /// There is too little, and nothing more to give up.
    Nothing,
    /// It was ended before it could tell.
    Unknown,
    /// Something that it goes by cannot be read, or nothing be written.
    Failed,
}

/// How a descent ended.
enum End {
    /// There is space, or as much as those want who wait.
    Enough,
    /// There is nothing more to give up.
    Bottom,
    /// There would be enough if nobody read where it was gained.
    Read,
    /// It was stopped.
    Broken,
    Failed,
    /// The wish was changed meanwhile.
    Changed,
}

/// Cleans, giving up as little of the past as will do.
pub fn clean(core: &Arc<Core>) -> Came {
    loop {
        let wanted = core.space.wanted();
        match tried(core, descend(core, false)) {
            End::Enough => return Came::Space,
            End::Broken | End::Read => return Came::Unknown,
            End::Failed => return Came::Failed,
            // More is wanted than when it began: passes may have ended too early.
            End::Bottom if core.space.wanted() > wanted && !is_enough(core) => {}
            End::Bottom => break,
            End::Changed => {}
        }
    }
    if is_enough(core) { Came::Space } else { Came::Nothing }
}

/// Empties what costs next to nothing as the wish has it, while nothing is short.
pub fn sweep(core: &Arc<Core>) {
    tried(core, descend(core, true));
}

fn tried(core: &Core, end: Result<End>) -> End {
    let failed = end.as_ref().err().map(ToString::to_string);
    if core.space.failed(failed.clone())
        && let Some(why) = failed
    {
        tracing::warn!("segments cannot be emptied: {why}");
    }
    end.unwrap_or(End::Failed)
}

/// What counts now; what is wrong with it is told once.
pub fn effective(core: &Core) -> Effective {
    let counts = Effective::read(&mut core.fs.lock(), &core.options.retention, &core.retention);
    if core.space.is_news(counts.problem.as_ref())
        && let Some(problem) = &counts.problem
    {
        let Effective { wish, floor, .. } = &counts;
        tracing::warn!("{problem}; what is kept is: {wish}; and whatever comes: {floor}");
    }
    counts
}

/// The tries of a descent: how far down the ladder, and whether each block counts there.
fn tries(steps: usize) -> Vec<(usize, bool)> {
    let last = steps.saturating_sub(1);
    (0..=last).map(|step| (step, false)).chain([(last, true)]).collect()
}

/// `early`: nothing is short yet, so only what costs next to nothing.
fn descend(core: &Arc<Core>, early: bool) -> Result<End> {
    let tuning = &core.options.cleaner;
    let (_, marks) = marks(core);
    let counts = effective(core);
    let ladder = Ladder::new(&counts.wish, &counts.floor);
    let until = marks.high.map(|high| high.max(wanted_segments(core)));
    let policy = tuning.policy().value;
    let mut options = Options { until, policy, ..Options::default() };
    let geometry = *core.fs.lock().volume().geometry();
    options.limits.moves = Step::most_moves(geometry.block_size);
    let size = u64::from(geometry.blocks_per_segment);
    let mut history = History::read(&Mounted(core))?;
    let (mut before, mut last_time): (Option<Vec<u64>>, _) = (None, Clock::default());
    let reserve = || {
        let kept = kept_back(&geometry);
        kept.saturating_sub(core.fs.lock().volume().unbacked_segments())
    };
    for (step, is_last) in tries(ladder.steps().len()) {
        let Some(wish) = ladder.steps().get(step) else { break };
        if step > 0
            && let Some(end) = held_for_readers(core, marks.short, false)
        {
            return Ok(end);
        }
        if is_last && !core.space.is_wanted() && available(core) > reserve() {
            return Ok(End::Enough);
        }
        options.now = now_secs();
        let mut time = clock(&Mounted(core), options.now)?;
        let kept = ladder.kept(step, &history.points, &time);
        if let Some(before) = &before {
            if *before == kept && !is_last {
                continue;
            }
            let young = thin(&history.points, &Wish::new([Rule::all(RECENT)]), &time);
            let takes_recent =
                young.iter().any(|n| before.binary_search(n).is_ok() && kept.binary_search(n).is_err());
            if takes_recent && !core.space.is_wanted() && available(core) > reserve() {
                return Ok(End::Enough);
            }
        }
        history.keep(&kept, &mut options);
        options.aside.extend(core.space.left_alone(Instant::now()));
        let short = available(core) < marks.low.unwrap_or(0);
        options.limits.segments = usize::try_from(tuning.segments(short)).unwrap_or(options.limits.segments);
        // Passes that hardly gain anything are not worth it before more is given up.
        let least = tuning.least(short, &geometry).unwrap_or(size / 16 + 1);
        options.least = if early {
            size - size / CHEAP_PART
        } else if is_last {
            (size / 50 + 1).min(least)
        } else {
            least
        };
        if is_last {
            // Every block counts now, and those that cost most come last.
            options.policy = Policy::Greedy;
        }
        // What was made since is kept as the wish has it, and what died with it is no longer needed.
        let mut chosen = kept.clone();
        let by = PlannedBy::all_of(&counts);
        let is_changed = || !by.still_counts(&effective(core));
        let later = |options: &mut Options| {
            if is_changed() {
                return Ok(false);
            }
            if step == 0 || core.space.is_wanted() || available(core) <= reserve() {
                // What was not kept before may be gone.
                history.points.retain(|p| chosen.binary_search(&p.number).is_ok());
                history.read_on(&Mounted(core))?;
                options.now = now_secs();
                time = clock(&Mounted(core), options.now)?;
                chosen = ladder.kept(step, &history.points, &time);
                history.keep(&chosen, options);
            }
            Ok(true)
        };
        let down_to = (step > 0).then(|| wish.to_string());
        let gone = |moments| core.space.note_given_up(moments, now_secs(), down_to.clone());
        // Who writes may have taken it by the time it is there. Each time round it is one segment more at least, or the end.
        let goes_on = || {
            let available = available(core);
            let is_met = early || (available >= marks.short && is_enough(core));
            (!is_met).then(|| available.saturating_add(1).max(marks.short).max(wanted_segments(core)))
        };
        if !clean_once(core, options.clone(), short, &by, later, goes_on, gone)? {
            return Ok(End::Broken);
        }
        if is_changed() {
            return Ok(End::Changed);
        }
        if early {
            return Ok(End::Enough);
        }
        if available(core) >= marks.short && is_enough(core) {
            return Ok(End::Enough);
        }
        if !is_last {
            history = History::read(&Mounted(core))?;
        }
        last_time = time;
        before = Some(ladder.kept(step, &history.points, &last_time));
    }
    let end = held_for_readers(core, marks.short, true);
    core.space.lacks_what_is_read(false);
    let last = ladder.steps().len().saturating_sub(1);
    let aged = before.and_then(|kept| ages(&ladder, last, &history.points, &kept, &last_time));
    core.space.ages(aged.into_iter().chain(core.retention.may_be_away_for()).min());
    Ok(end.unwrap_or(End::Bottom))
}

/// After how long a step keeps less than these, as moments grow older; none where that is not in sight.
fn ages(ladder: &Ladder, step: usize, points: &[Point], kept: &[u64], now: &Clock) -> Option<Duration> {
    let keeps_less = |after: u64| {
        let then = ladder.kept(step, points, &now.later(after));
        kept.iter().any(|n| then.binary_search(n).is_err())
    };
    if kept.is_empty() {
        return None;
    }
    let mut after = 1;
    while !keeps_less(after) {
        after *= 2;
        if after > FAR {
            return None;
        }
    }
    // It did not with half of that.
    let (mut not, mut less) = (after / 2, after);
    while less - not > 1 {
        let middle = not + (less - not) / 2;
        *(if keeps_less(middle) { &mut less } else { &mut not }) = middle;
    }
    Some(Duration::from_secs(less))
}

/// Where there would be enough if nobody read at places he learned before (a scrub, a check, a slow read), that is no
/// reason to give up any of the past. Who waits for space waits for them; scrub and check let go when somebody does. Nor is
/// it known that nothing more can be gained, at the bottom, as long as anything is held: there may be no place to copy to.
fn held_for_readers(core: &Core, short: u64, is_bottom: bool) -> Option<End> {
    let begin = Instant::now();
    let mut has_waited = false;
    loop {
        let held = core.fs.lock().volume_mut().segments_held_for_readers();
        let is_wanted = core.space.is_wanted();
        if held == 0 {
            return match is_wanted && is_enough(core) {
                true => Some(End::Enough),
                false => has_waited.then_some(End::Read),
            };
        }
        let needed = if is_wanted { wanted_segments(core) } else { short };
        let is_little = available(core) < needed;
        if is_little && !is_wanted && is_bottom {
            return Some(End::Read);
        }
        if is_little && !is_bottom {
            return None;
        }
        if !is_wanted || is_enough(core) {
            return Some(End::Enough);
        }
        if is_little {
            core.space.lacks_what_is_read(true);
        }
        has_waited = true;
        if core.space.is_stopped() || begin.elapsed() >= READERS {
            return Some(End::Read);
        }
        std::thread::sleep(LOOK);
    }
}

/// Segments that can be written, once nobody reads there any more.
fn available(core: &Core) -> u64 {
    core.fs.lock().volume_mut().available_when_read()
}

/// One pass, and others as long as what others write makes its order old: `by`: where it is another wish now, no
/// step more is made as this one has it; `later` says what is kept then, or that it is another wish; `goes_on`, how many segments are
/// to be clean where those that were to be are not enough any more; `gone` hears how many
/// moments went with each. Whether it came to its end.
fn clean_once(
    core: &Arc<Core>,
    mut options: Options,
    short: bool,
    by: &PlannedBy,
    mut later: impl FnMut(&mut Options) -> Result<bool>,
    goes_on: impl Fn() -> Option<u64>,
    gone: impl Fn(u64),
) -> Result<bool> {
    let interval = core.options.cleaner.interval(short);
    let most = options.limits;
    let geometry = *core.fs.lock().volume().geometry();
    loop {
        let limits = || {
            let size = size(core);
            // Reading ahead takes a processor that those who work may want.
            let ahead = core.space.is_outrun() || !core.pace.is_felt(Instant::now());
            let (moves, segments) = (size.moves.min(most.moves), size.segments.min(most.segments));
            Limits { moves, segments, ahead, ..most }
        };
        options.limits = limits();
        // Each is met by whoever syncs.
        options.settle = core.space.is_wanted() || !core.pace.is_felt(Instant::now());
        let (mut last, mut again) = (Instant::now(), false);
        let mut before = None;
        let mut seen = (Instant::now(), core.fs.lock().volume().rewritten_blocks());
        let outcome = pass(&Planner(core, by), &options, |progress, next| {
            if core.space.is_wanted() && is_enough(core) {
                core.space.served();
                let_run(core);
            }
            // Those of cleanings are not counted.
            let rewritten = core.fs.lock().volume().rewritten_blocks();
            let (work, written) = (last.elapsed(), rewritten.saturating_sub(seen.1));
            let lately = Lately { work, written, time: seen.0.elapsed(), outrun: core.space.is_outrun() };
            seen = (Instant::now(), rewritten);
            core.space.rest(interval.unwrap_or_else(|| rest(core, &lately)));
            last = Instant::now();
            let since = *before.get_or_insert(rewritten);
            let written = rewritten.saturating_sub(since) / u64::from(geometry.blocks_per_segment);
            let worse = progress.next >= progress.best + u64::from(geometry.blocks_per_segment) / WORSE_PART;
            again = written >= (geometry.nsegments / OLD_PART).max(OLD_LEAST)
                || (worse && written >= OLD_WORSE)
                || !by.still_counts(&effective(core));
            *next = limits();
            !core.space.is_stopped() && !again
        })?;
        gone(outcome.cleaned.checkpoints);
        core.space.note(&outcome);
        for a in &outcome.aside {
            tracing::warn!("segment {} is set aside: {}", a.segment, a.why);
            options.aside.insert(a.segment.0);
        }
        if outcome.enough
            && !core.space.is_stopped()
            && let (Some(until), Some(more)) = (&mut options.until, goes_on())
        {
            *until = more.max(*until);
            again = true;
        } else if !outcome.stopped {
            return Ok(true);
        }
        if !again || core.space.is_stopped() {
            return Ok(false);
        }
        if !later(&mut options)? {
            return Ok(true);
        }
    }
}

/// How large steps are. Who waits for space, or is about to, is best served by large ones.
fn size(core: &Core) -> Step {
    let is_urgent = core.space.is_wanted() || {
        let fs = core.fs.lock();
        fs.volume().available_segments() <= kept(fs.volume())
    };
    if is_urgent { Step::MOST } else { core.pace.step() }
}

/// Rest after a step.
fn rest(core: &Core, lately: &Lately) -> Duration {
    let (available, marks) = marks(core);
    let (kept, blocks_per_segment) = {
        let fs = core.fs.lock();
        (kept(fs.volume()), fs.volume().geometry().blocks_per_segment)
    };
    let low = marks.low.unwrap_or(marks.short).saturating_sub(kept);
    let clean = available.saturating_sub(kept);
    let blocks = clean.saturating_mul(u64::from(blocks_per_segment));
    core.pace.in_time(core.pace.rest(lately.work, clean, low, Instant::now()), blocks, lately)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::cell::Cell;

    use super::*;
    use crate::ladder_tests::Kept;

    #[test]
    fn it_is_known_when_a_step_keeps_less() {
        let ladder = |floor: &str| Ladder::new(&"all for ever".parse().unwrap(), &floor.parse().unwrap());
        let points: Vec<Point> = (0..50).map(|n| Point { number: n + 1, time: 1000 + n, size: 1 }).collect();
        let of = |floor: &str, now| {
            let ladder = ladder(floor);
            let last = ladder.steps().len() - 1;
            let now = Clock::at(now);
            let kept = ladder.kept(last, &points, &now);
            let after = ages(&ladder, last, &points, &kept, &now)?;
            let less = |after| ladder.kept(last, &points, &now.later(after)).len() < kept.len();
            assert!(less(after.as_secs()) && !less(after.as_secs() - 1), "{floor}: {after:?}");
            Some(after.as_secs())
        };
        let first = of("all for 60 seconds", 1050).unwrap();
        assert!((8..=12).contains(&first), "{first}");
        assert!(of("all for 1 day", 1050).is_some_and(|n| n > 80_000));
        assert_eq!(of("all for ever", 1050), None);
        assert_eq!(of("nothing", 1050), None);
    }

    /// Others take what was gained: the next ones look for more, as long as there is any.
    #[test]
    fn as_many_as_were_to_be_clean_may_not_be_enough() {
        let kept = Kept::new();
        let core = &kept.core;
        let mut options = Options { now: now_secs(), until: Some(1), ..Options::default() };
        History::read(&Mounted(core)).unwrap().keep(&[], &mut options);
        let by = PlannedBy::all_of(&effective(core));
        let clean = |until: u64, options: &Options| {
            let asked = Cell::new(0);
            let goes_on = || {
                asked.set(asked.get() + 1);
                let available = available(core);
                (available < until).then_some(available + 1)
            };
            assert!(clean_once(core, options.clone(), false, &by, |_| Ok(true), goes_on, |_| {}).unwrap());
            (asked.get(), available(core))
        };
        let before = available(core);
        assert_eq!(clean(before, &options), (1, before));
        let (asked, after) = clean(before + 6, &options);
        assert!(asked > 1 && after >= before + 6, "{before} to {after}, asked {asked} times");
        // And it ends where there is no more.
        let (_, all) = clean(u64::MAX, &options);
        assert!(all > after && all < 128, "{all}");
    }
}
