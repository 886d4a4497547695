//! By what time moments age, whatever the clock did.
//!
//! A clock is set forward and back. What it went forward by while nobody could tell that so much time passed makes nothing
//! older; what it was set back by makes nothing younger. What a checkpoint's time says is believed as long as it fits to what
//! came before: it is not later than now, and no earlier than that of one with a smaller number, and than the volume. Else it
//! is as old as the next one of which that is so: it was made before that.

use crate::thin::Point;

/// A step of the clock, in seconds: forward of more than 0, and back of less. It was made behind the checkpoint `after`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    pub after: u64,
    pub by: i64,
}

/// The time it is, and how the clock came to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clock {
    now: u64,
    /// When the volume was made.
    born: u64,
    steps: Vec<Step>,
}

impl Clock {
    /// A clock that was never set; `now` in seconds since 1970.
    pub fn at(now: u64) -> Self {
        Clock { now, ..Clock::default() }
    }

    /// The same with steps that it made, in their order.
    #[must_use]
    pub fn with_steps(self, steps: Vec<Step>) -> Self {
        Clock { steps, ..self }
    }

    /// The same where no checkpoint is older than this, seconds since 1970, as far as that is no time to come.
    #[must_use]
    pub fn born(self, born: u64) -> Self {
        Clock { born: if born <= self.now { born } else { 0 }, ..self }
    }

    /// What it shows, in seconds since 1970.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// What it would show if it had made no step behind this checkpoint: by that its time tells its age.
    pub fn as_of(&self, number: u64) -> u64 {
        self.now.saturating_add_signed(self.since(number).saturating_neg())
    }

    /// The same clock, so many seconds later.
    #[must_use]
    pub fn later(&self, seconds: u64) -> Self {
        Clock { now: self.now.saturating_add(seconds), ..self.clone() }
    }

    /// Seconds that it was set forward by behind a checkpoint.
    fn since(&self, number: u64) -> i64 {
        let behind = self.steps.iter().filter(|s| s.after >= number);
        behind.fold(0i64, |sum, s| sum.saturating_add(s.by))
    }

    /// How old each point is, in seconds; none is older than one with a smaller number. Points ascend by number.
    pub(crate) fn ages(&self, points: &[Point]) -> Vec<u64> {
        const UNKNOWN: u64 = u64::MAX;
        // When each was made, by the clock as it is now.
        let mut made = Vec::with_capacity(points.len());
        let mut latest = self.born;
        let mut steps = self.steps.iter().peekable();
        let mut since = self.since(0);
        for p in points {
            while let Some(before) = steps.next_if(|s| s.after < p.number) {
                since = since.saturating_sub(before.by);
            }
            // As it is written, or moved by the steps behind it: where both can be, the younger.
            let both = [p.time, p.time.saturating_add_signed(since)];
            let best = both.into_iter().filter(|t| *t <= self.now).max().filter(|t| *t >= latest);
            latest = best.unwrap_or(latest);
            made.push(best.unwrap_or(UNKNOWN));
        }
        let mut next = self.now;
        for age in made.iter_mut().rev() {
            if *age != UNKNOWN {
                next = *age;
            }
            *age = self.now.saturating_sub(next);
        }
        made
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::thin::thin;
    use crate::wish::{Rule, Wish};

    const YEAR: u64 = 365 * 86_400;

    fn points(times: &[u64]) -> Vec<Point> {
        times.iter().zip(1..).map(|(time, number)| Point { number, time: *time, size: 10 }).collect()
    }

    fn all_for(seconds: u64) -> Wish {
        Wish::new([Rule::all(seconds)])
    }

    /// One minute of a clock that is a year ahead.
    #[test]
    fn a_jump_forward_makes_nothing_older() {
        let begin = 2_000_000_000;
        let ahead = Step { after: 3, by: YEAR.cast_signed() };
        let mut all = points(&[begin, begin + 3_000, begin + 3_500]);
        let jumped = Clock::at(begin + 3_600 + YEAR).with_steps(vec![ahead]);
        assert_eq!(thin(&all, &all_for(3_600), &jumped), [1, 2, 3]);
        assert_eq!(thin(&all, &all_for(3_600), &jumped.later(1)), [2, 3], "but time goes on");
        assert_eq!(jumped.as_of(3), begin + 3_600);
        // What is made then, and what after it was set right.
        all.push(Point { number: 4, time: begin + 3_610 + YEAR, size: 10 });
        let back = Step { after: 4, by: -YEAR.cast_signed() };
        all.push(Point { number: 5, time: begin + 3_700, size: 10 });
        let right = Clock::at(begin + 3_700).with_steps(vec![ahead, back]);
        assert_eq!(thin(&all, &all_for(300), &right), [3, 4, 5]);
        assert_eq!(thin(&all, &all_for(50), &right), [5], "90 seconds are 90 seconds");
        // Mounted anew nobody knows of them.
        assert_eq!(thin(&all, &all_for(300), &Clock::at(begin + 3_700)), [3, 4, 5]);
        assert_eq!(thin(&all, &all_for(300), &Clock::at(begin + 3_900)), [4, 5]);
        assert_eq!(
            thin(&all, &all_for(300), &Clock::at(begin + 4_100)),
            [0; 0],
            "nothing is young for years"
        );
    }

    /// One hour of a clock that stands at the beginning of time.
    #[test]
    fn a_jump_back_makes_nothing_older() {
        let begin = 2_000_000_000;
        let all = points(&[begin, 5, 900, begin + 2_000]);
        let right = Clock::at(begin + 2_100);
        assert_eq!(thin(&all, &all_for(200), &right), [2, 3, 4], "no older than what came next");
        assert_eq!(thin(&all, &all_for(50), &right), [0; 0]);
        let while_wrong = Clock::at(1_000);
        assert_eq!(thin(&all[..3], &all_for(200), &while_wrong), [3]);
        assert_eq!(thin(&all[..3], &all_for(995), &while_wrong), [1, 2, 3]);
        // Though nothing of before is left.
        assert_eq!(thin(&all[1..], &all_for(200), &right), [4]);
        assert_eq!(thin(&all[1..], &all_for(200), &right.clone().born(begin - 9)), [2, 3, 4]);
        assert_eq!(thin(&all[1..], &all_for(200), &right.born(begin + 9_999)), [4]);
        // Stretches are those that the times say.
        let hours = points(&[begin, begin + 3_600, begin + 7_200, 5]);
        assert_eq!(thin(&hours, &"one an hour for 1 day".parse().unwrap(), &while_wrong).len(), 4);
    }

    /// Nobody had the volume for a year.
    #[test]
    fn a_stretch_goes_as_a_whole_whatever_the_steps() {
        let all = points(&(0..300).map(|n| 36_000 + n * 60).collect::<Vec<_>>());
        let wish: Wish = "one an hour for 3 hours".parse().unwrap();
        let newest = 36_000 + 299 * 60;
        for later in (0..20_000).step_by(700) {
            let absent = Step { after: 300, by: YEAR.cast_signed() + 123 };
            let clock = Clock::at(newest + later + YEAR + 123).with_steps(vec![absent]);
            assert_eq!(thin(&all, &wish, &clock), thin(&all, &wish, &Clock::at(newest + later)), "{later}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// However the clock is set, while it is known how: what is younger than a floor by time is there.
        #[test]
        fn what_is_young_stays(
            events in prop::collection::vec((0u64..400, prop_oneof![
                6 => Just(0i64), 1 => -4_000i64..4_000, 1 => prop::sample::select(vec![-100_000_000i64, 100_000_000])
            ]), 1..80),
            span in 1u64..3_000,
        ) {
            let (mut time, mut ahead) = (20_000_000_000u64, 0i64);
            let (mut steps, mut made, mut left) = (Vec::new(), Vec::new(), Vec::new());
            for ((wait, by), number) in events.into_iter().zip(1u64..) {
                time += wait;
                if by != 0 {
                    ahead += by;
                    steps.push(Step { after: number - 1, by });
                }
                let shown = time.saturating_add_signed(ahead);
                left.push(Point { number, time: shown, size: 1 });
                made.push((number, time));
                let kept = thin(&left, &all_for(span), &Clock::at(shown).with_steps(steps.clone()));
                left.retain(|p| p.number == number || kept.contains(&p.number));
                for (number, then) in made.iter().filter(|(_, then)| time - then <= span) {
                    prop_assert!(left.iter().any(|p| p.number == *number), "{} is {} old", number, time - then);
                }
            }
        }

        /// And what is older than anything of it could say goes.
        #[test]
        fn any_steps_do(times in prop::collection::vec(any::<u64>(), 0..40), now in any::<u64>(),
            steps in prop::collection::vec((0u64..50, any::<i64>()), 0..5)) {
            let mut steps: Vec<Step> = steps.into_iter().map(|(after, by)| Step { after, by }).collect();
            steps.sort_by_key(|s| s.after);
            let all = points(&times);
            let kept = thin(&all, &all_for(1_000), &Clock::at(now).with_steps(steps));
            prop_assert!(kept.is_sorted());
            // It is by the order of their numbers that they go.
            prop_assert!(kept.windows(2).all(|w| w[0] + 1 == w[1]));
        }
    }
}
