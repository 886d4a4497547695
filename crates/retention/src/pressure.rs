//! What is given up when space is short.

use crate::clock::Clock;
use crate::thin::{Point, thin};
use crate::wish::{DAY, HOUR, MINUTE, MONTH, Rule, WEEK, Wish, YEAR};

/// Ages to which those of a wish fall, step by step, in seconds.
const AGES: [u64; 11] = [4 * YEAR, YEAR, 3 * MONTH, MONTH, WEEK, DAY, 6 * HOUR, HOUR, 10 * MINUTE, MINUTE, 0];

/// A wish and ever weaker ones, down to a floor.
///
/// A step shortens every part of the wish to the next lower of a few round ages. So what is old for how dense it is
/// goes first: every moment of yesterday before that of each hour, and that before each day's of last month.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ladder {
    steps: Vec<Wish>,
    floor: Wish,
}

impl Ladder {
    /// From a wish to nothing but the floor.
    pub fn new(wish: &Wish, floor: &Wish) -> Self {
        let mut steps = vec![wish.clone()];
        while let Some(last) = steps.last().filter(|w| !w.is_nothing()) {
            let weaker = Wish::new(last.rules().iter().filter_map(weaken));
            steps.push(weaker);
        }
        Ladder { steps, floor: floor.clone() }
    }

    /// The wish, weaker ones, and nothing.
    pub fn steps(&self) -> &[Wish] {
        &self.steps
    }

    /// What is kept whatever comes.
    pub fn floor(&self) -> &Wish {
        &self.floor
    }

    /// The numbers that are kept at a step, ascending: a part of those of the step before, and at least those of the
    /// floor. As with [`thin`], points ascend by number.
    pub fn kept(&self, step: usize, points: &[Point], clock: &Clock) -> Vec<u64> {
        let mut left = points.to_vec();
        for wish in self.steps.iter().take(step.saturating_add(1)) {
            let kept = thin(&left, wish, clock);
            left.retain(|p| kept.binary_search(&p.number).is_ok());
        }
        let mut kept = thin(points, &self.floor, clock);
        kept.extend(left.iter().map(|p| p.number));
        kept.sort_unstable();
        kept.dedup();
        kept
    }
}

/// A rule that keeps less; `None` where nothing is left of it.
fn weaken(rule: &Rule) -> Option<Rule> {
    let span = AGES.into_iter().find(|age| *age < rule.span)?;
    // One of a stretch longer than the age would be one of any.
    (span > 0 && span >= rule.every).then_some(Rule { span, ..*rule })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_usual_wish_falls_in_round_steps() {
        let ladder = Ladder::new(&Wish::usual(), &Wish::nothing());
        let words: Vec<String> = ladder.steps().iter().map(ToString::to_string).collect();
        assert_eq!(words.len(), 7, "{words:#?}");
        assert_eq!(
            words[1],
            "all for 6 hours, one an hour for 1 week, one a day for 3 months, one a week for 4 years"
        );
        assert_eq!(
            words[4],
            "all for 1 minute, one an hour for 1 hour, one a day for 1 day, one a week for 1 month"
        );
        assert_eq!(words[5], "one a week for 1 week");
        assert_eq!(words.last().unwrap(), "nothing");
    }

    #[test]
    fn nothing_is_a_ladder_of_one_step() {
        let ladder = Ladder::new(&Wish::nothing(), &"all for 1 hour".parse().unwrap());
        assert_eq!(ladder.steps().len(), 1);
        let all = [Point { number: 1, time: 10, size: 0 }, Point { number: 2, time: 5_000, size: 0 }];
        assert_eq!(ladder.kept(0, &all, &Clock::at(5_000)), [2]);
        assert_eq!(ladder.kept(9, &all, &Clock::at(5_000)), [2]);
    }

    fn a_wish() -> impl Strategy<Value = Wish> {
        let every = prop::sample::select(vec![0u64, 1, 10, 97, 60, 600, 3_600, 86_400]);
        let rule = (every, prop_oneof![1u64..400_000, Just(u64::MAX)]);
        prop::collection::vec(rule, 0..5)
            .prop_map(|rules| Wish::new(rules.into_iter().map(|(every, span)| Rule::one(every, span))))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn each_step_keeps_less_and_never_less_than_the_floor(
            times in prop::collection::vec((0u64..300_000, 0u64..500), 0..100),
            wish in a_wish(),
            floor in a_wish(),
            now in 0u64..400_000,
        ) {
            let all: Vec<Point> = times.iter().zip(1..).map(|((time, size), number)| Point { number, time: *time, size: *size }).collect();
            let now = Clock::at(now);
            let ladder = Ladder::new(&wish, &floor);
            let least = thin(&all, &floor, &now);
            let mut before: Vec<u64> = all.iter().map(|p| p.number).collect();
            for step in 0..ladder.steps().len() {
                let kept = ladder.kept(step, &all, &now);
                prop_assert!(kept.iter().all(|n| before.binary_search(n).is_ok()), "step {}", step);
                prop_assert!(least.iter().all(|n| kept.binary_search(n).is_ok()), "step {}", step);
                before = kept;
            }
            prop_assert_eq!(before, least, "at the end there is the floor alone");
        }
    }
}
