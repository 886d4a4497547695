//! Thinning: of each stretch of time one moment stays.
//!
//! Each rule is looked at by itself and keeps one checkpoint of each of its stretches, which begin at multiples of
//! their length since 1970; a stretch is within the rule's age or not as a whole. A stretch that had a checkpoint when
//! it began to count has one until its age is over, however often is thinned: each thinning leaves one, and a rule
//! never leaves it to another's stretches, which may lie otherwise.

use crate::clock::Clock;
use crate::wish::{Rule, Wish};

/// A checkpoint, as far as retention knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    pub number: u64,
    /// Seconds since 1970.
    pub time: u64,
    /// How much changed with it, such as blocks written.
    pub size: u64,
}

/// The numbers that are kept of some checkpoints, ascending; `points` ascend by number, their times need not.
pub fn thin(points: &[Point], wish: &Wish, clock: &Clock) -> Vec<u64> {
    let mut kept = vec![false; points.len()];
    let ages = clock.ages(points);
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.retain(|at| points.get(*at).is_some_and(|p| wish.concerns(p.number)));
    // Clocks are set back now and then.
    order.sort_by_key(|at| points.get(*at).map_or(0, |p| p.time));
    for rule in wish.rules() {
        apply(*rule, points, &order, &ages, &mut kept);
    }
    points.iter().zip(kept).filter(|(_, kept)| *kept).map(|(p, _)| p.number).collect()
}

/// Whether a moment of this age is in a stretch of which something is within the rule's age.
fn is_young(rule: Rule, time: u64, age: u64) -> bool {
    let slot = |time: u64| time / rule.every.max(1);
    let over = age.saturating_sub(rule.span);
    over == 0 || time.checked_add(over).is_some_and(|first| slot(time) >= slot(first))
}

/// Marks what one rule keeps. `order`: places in `points` by time; their `ages`, in seconds.
fn apply(rule: Rule, points: &[Point], order: &[usize], ages: &[u64], kept: &mut [bool]) {
    let slot = |time: u64| time / rule.every.max(1);
    let mut best: Option<(u64, u128, usize)> = None;
    for at in order {
        let Some(point) = points.get(*at) else { continue };
        let here = slot(point.time);
        let age = ages.get(*at).copied().unwrap_or(0);
        if !is_young(rule, point.time, age) {
            continue;
        }
        if rule.every == 0 {
            mark(kept, *at);
            continue;
        }
        let worth = worth(points, *at, age);
        match &mut best {
            Some((s, w, chosen)) if *s == here => {
                // Of equals the later one.
                if (worth, *at) > (*w, *chosen) {
                    (*w, *chosen) = (worth, *at);
                }
            }
            other => {
                if let Some((_, _, chosen)) = other.replace((here, worth, *at)) {
                    mark(kept, chosen);
                }
            }
        }
    }
    if let Some((_, _, chosen)) = best {
        mark(kept, chosen);
    }
}

fn mark(kept: &mut [bool], at: usize) {
    if let Some(k) = kept.get_mut(at) {
        *k = true;
    }
}

/// A landmark is worth more: how long nothing came after it, times how much then changed.
/// `age`: of the newest nobody knows what comes after it.
fn worth(points: &[Point], at: usize, age: u64) -> u128 {
    let Some(point) = points.get(at) else { return 0 };
    let next = points.get(at + 1);
    let (pause, change) = next.map_or((age, 0), |next| (next.time.saturating_sub(point.time), next.size));
    (u128::from(pause) + 1) * (u128::from(change) + 1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn points(times: &[u64]) -> Vec<Point> {
        times.iter().zip(1..).map(|(time, number)| Point { number, time: *time, size: 10 }).collect()
    }

    fn wish(text: &str) -> Wish {
        text.parse().unwrap()
    }

    #[test]
    fn one_of_each_stretch_stays() {
        let all = points(&(0..300).map(|n| n * 10).collect::<Vec<_>>());
        let kept = thin(&all, &wish("one a minute for ever"), &Clock::at(2_990));
        assert_eq!(kept.len(), 50);
        // They are all alike, so it is the last of each.
        assert_eq!(kept[..3], [6, 12, 18]);
        assert_eq!(thin(&all, &Wish::everything(), &Clock::at(2_990)).len(), 300);
        assert_eq!(thin(&all, &Wish::nothing(), &Clock::at(2_990)).len(), 0);
        let some = thin(&all, &wish("all for 100 seconds, one every 10 minutes for ever"), &Clock::at(2_990));
        assert_eq!(some, [60, 120, 180, 240, 290, 291, 292, 293, 294, 295, 296, 297, 298, 299, 300]);
        assert_eq!(thin(&[], &Wish::usual(), &Clock::at(0)), [0; 0]);
    }

    #[test]
    fn what_comes_after_a_number_is_none_of_its_business() {
        let all = points(&[50, 10, 30, 90]);
        let kept = |wish: Wish| thin(&all, &wish, &Clock::at(90));
        assert_eq!(kept(Wish::everything().up_to(2)), [1, 2]);
        assert_eq!(kept(Wish::everything().up_to(9)), [1, 2, 3, 4]);
        assert_eq!(kept(wish("one a minute for ever").up_to(3)), [3]);
        assert_eq!(kept(Wish::everything().up_to(0)), [0; 0]);
        assert_eq!(Wish::everything().up_to(7).to_string(), "all for ever, up to checkpoint 7");
    }

    #[test]
    fn landmarks_are_preferred() {
        // Work until 1000, a pause until 2500, work again.
        let mut all = points(&[900, 950, 1_000, 2_500, 2_550, 2_600]);
        let hour = wish("one an hour for ever");
        assert_eq!(thin(&all, &hour, &Clock::at(2_601)), [3], "before the pause");
        all[5].size = 100_000;
        assert_eq!(thin(&all, &hour, &Clock::at(2_601)), [5], "before a large change");
    }

    #[test]
    fn clocks_that_jump_do_no_harm() {
        // Set forward by years, and back again; and many at one time. What is from the future is young.
        let all = points(&[100, 100, 100, 9_000_000_000, 100, 101, u64::MAX, 0, 0, 103]);
        assert_eq!(thin(&all, &wish("one a minute for 10 minutes"), &Clock::at(120)), [4, 6, 7, 9]);
        assert_eq!(thin(&all, &wish("all for 10 seconds"), &Clock::at(110)).len(), 10);
        assert_eq!(thin(&all, &wish("all for 10 seconds"), &Clock::at(114)), [0; 0]);
        assert_eq!(thin(&all, &Wish::everything(), &Clock::at(0)).len(), 10);
        let same = points(&[7; 1000]);
        assert_eq!(
            thin(&same, &wish("one a second for ever"), &Clock::at(7)),
            [999],
            "nothing came after the newest"
        );
    }

    #[test]
    fn a_million_is_nothing_special() {
        let all: Vec<Point> =
            (0..1_000_000).map(|n| Point { number: n + 1, time: n * 30, size: n % 97 }).collect();
        let begin = std::time::Instant::now();
        let kept = thin(&all, &Wish::usual(), &Clock::at(30_000_000));
        // A day, 30 days by the hour, most of a year by the day.
        assert!((2_880 + 700..2_880 + 1_200).contains(&kept.len()), "{}", kept.len());
        assert!(begin.elapsed() < std::time::Duration::from_secs(5), "{:?}", begin.elapsed());
    }

    fn a_wish() -> impl Strategy<Value = Wish> {
        let rule = (prop::sample::select(vec![0u64, 1, 7, 10, 60, 97, 600]), 1u64..5_000);
        prop::collection::vec(rule, 0..5).prop_map(|rules| {
            Wish::new(
                rules
                    .into_iter()
                    .map(|(every, span)| Rule::one(every, if span > 4_000 { u64::MAX } else { span })),
            )
        })
    }

    /// Times and sizes; steps may be 0, now and then long, and as far backwards as is said.
    fn a_history(back: i64) -> impl Strategy<Value = Vec<Point>> {
        let step = prop_oneof![8 => 0i64..20, 2 => 0i64..500, 1 => -back..1];
        prop::collection::vec((step, 0u64..1_000), 1..120).prop_map(|steps| {
            let mut time = 1_000u64;
            let point = |(n, (step, size)): (usize, (i64, u64))| {
                time = time.saturating_add_signed(step);
                Point { number: n as u64 + 1, time, size }
            };
            steps.into_iter().enumerate().map(point).collect()
        })
    }

    /// Stretches of a rule that have one of these checkpoints and are not too old.
    fn stretches(rule: &Rule, all: &[Point], numbers: &[u64], now: u64) -> BTreeSet<u64> {
        let of = |(p, age): (&Point, u64)| {
            (numbers.contains(&p.number) && is_young(*rule, p.time, age)).then(|| p.time / rule.every.max(1))
        };
        all.iter().zip(Clock::at(now).ages(all)).filter_map(of).collect()
    }

    fn numbers(all: &[Point]) -> Vec<u64> {
        all.iter().map(|p| p.number).collect()
    }

    /// What is left of a history that is thinned at every so many checkpoints.
    fn thinned(all: &[Point], wish: &Wish, often: usize) -> Vec<Point> {
        let mut left: Vec<Point> = Vec::new();
        for (n, point) in all.iter().enumerate() {
            left.push(*point);
            if n % often == 0 {
                let kept = thin(&left, wish, &Clock::at(point.time));
                // The newest is what the files are now, and never goes.
                left.retain(|p| p.number == point.number || kept.contains(&p.number));
            }
        }
        left
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Thinned with every checkpoint that is made, or once at the end: every stretch that had one has one.
        #[test]
        fn thinning_again_and_again_loses_no_stretch(all in a_history(0), wish in a_wish(), often in 1usize..5, later in 0u64..3_000) {
            let now = all.last().unwrap().time + later;
            let kept = thin(&thinned(&all, &wish, often), &wish, &Clock::at(now));
            for rule in wish.rules() {
                prop_assert_eq!(stretches(rule, &all, &kept, now), stretches(rule, &all, &numbers(&all), now), "{}", rule);
            }
            // Of what is kept whole nothing went.
            let once = thin(&all, &wish, &Clock::at(now));
            for rule in wish.rules().iter().filter(|r| r.every == 0) {
                let young = |n: &&u64| all[**n as usize - 1].time >= now.saturating_sub(rule.span);
                prop_assert!(once.iter().filter(young).all(|n| kept.contains(n)));
            }
        }

        /// Where the clock goes back a little, now and then, too, of stretches that are never too old: of others some may have been by
        /// what it showed once.
        #[test]
        fn nor_where_the_clock_goes_back(all in a_history(300), wish in a_wish(), often in 1usize..5, later in 300u64..3_000) {
            let latest = all.iter().map(|p| p.time).max().unwrap();
            let now = latest + later;
            let kept = thin(&thinned(&all, &wish, often), &wish, &Clock::at(now));
            for rule in wish.rules().iter().filter(|r| r.span == u64::MAX) {
                let whole = stretches(rule, &all, &numbers(&all), now);
                prop_assert_eq!(stretches(rule, &all, &kept, now), whole, "{}", rule);
            }
        }

        #[test]
        fn any_times_do(times in prop::collection::vec(any::<u64>(), 0..60), wish in a_wish(), now in any::<u64>()) {
            let all = points(&times);
            let kept = thin(&all, &wish, &Clock::at(now));
            prop_assert!(kept.is_sorted());
            for rule in wish.rules() {
                prop_assert_eq!(stretches(rule, &all, &kept, now), stretches(rule, &all, &numbers(&all), now), "{}", rule);
            }
        }
    }
}
