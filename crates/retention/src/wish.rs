//! What is wished for, and how it is said.

use std::fmt;

pub(crate) const MINUTE: u64 = 60;
pub(crate) const HOUR: u64 = 3_600;
pub(crate) const DAY: u64 = 86_400;
pub(crate) const WEEK: u64 = 7 * DAY;
/// The longest month, so that what is kept for a month reaches back to the same day of the last one.
pub(crate) const MONTH: u64 = 31 * DAY;
pub(crate) const YEAR: u64 = 365 * DAY;

/// Units of time in seconds, the longest first.
pub(crate) const UNITS: [(u64, &str); 7] = [
    (YEAR, "year"),
    (MONTH, "month"),
    (WEEK, "week"),
    (DAY, "day"),
    (HOUR, "hour"),
    (MINUTE, "minute"),
    (1, "second"),
];

/// Keeps one checkpoint of each stretch of time, or all, up to an age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Length of a stretch in seconds; 0: all are kept.
    pub(crate) every: u64,
    /// In seconds; `u64::MAX`: for ever.
    pub(crate) span: u64,
}

impl Rule {
    /// All that are younger than so many seconds.
    pub fn all(span: u64) -> Self {
        Rule { every: 0, span }
    }

    /// One of every so many seconds (0: all) of what is younger than `span` seconds.
    pub fn one(every: u64, span: u64) -> Self {
        Rule { every, span }
    }

    /// Whether what another rule keeps is kept by this one, too, as far as it is the same moments that are chosen.
    fn covers(&self, other: &Rule) -> bool {
        let as_dense = self.every == 0 || (other.every != 0 && other.every.is_multiple_of(self.every));
        as_dense && self.span >= other.span
    }
}

/// What is to be kept: the moments of any of its rules. Without a rule it is nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Wish {
    /// The shortest span first; none is covered by another.
    rules: Vec<Rule>,
    /// The last number that it is about; none: of all.
    until: Option<u64>,
}

impl Wish {
    /// Nothing.
    pub fn nothing() -> Self {
        Wish::default()
    }

    /// Everything.
    pub fn everything() -> Self {
        Wish::new([Rule::all(u64::MAX)])
    }

    /// What is kept where nobody wished for anything: all of a day, and ever less of what is older.
    pub fn usual() -> Self {
        Wish::protecting(DAY)
    }

    /// The same with all of another period in seconds.
    pub fn protecting(seconds: u64) -> Self {
        let thinned = [Rule::one(HOUR, MONTH), Rule::one(DAY, YEAR), Rule::one(WEEK, u64::MAX)];
        Wish::new(thinned.into_iter().chain([Rule::all(seconds)]))
    }

    /// Of these rules; those that add nothing are left out.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        let mut all: Vec<Rule> = rules.into_iter().filter(|r| r.span > 0).collect();
        all.sort_by_key(|r| (r.span, r.every));
        all.dedup();
        let needed = |r: &Rule| !all.iter().any(|other| other != r && other.covers(r));
        Wish { rules: all.iter().copied().filter(needed).collect(), until: None }
    }

    /// The same of checkpoints up to that number alone. No words say that, and no other rule is added to it.
    #[must_use]
    pub fn up_to(mut self, number: u64) -> Self {
        self.until = Some(number);
        self
    }

    /// Whether it is about a checkpoint.
    pub(crate) fn concerns(&self, number: u64) -> bool {
        self.until.is_none_or(|last| number <= last)
    }

    /// This, and everything younger than so many seconds.
    pub fn and_all(&self, seconds: u64) -> Self {
        Wish::new(self.rules.iter().copied().chain([Rule::all(seconds)]))
    }

    /// Its rules, the shortest span first.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether it asks for nothing.
    pub fn is_nothing(&self) -> bool {
        self.rules.is_empty()
    }
}

/// As it is read back, unless it is [`Wish::up_to`] some number: `all for 1 day, one an hour for 1 month`.
impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_nothing() {
            return f.write_str("nothing");
        }
        for (n, rule) in self.rules.iter().enumerate() {
            if n > 0 {
                f.write_str(", ")?;
            }
            rule.fmt(f)?;
        }
        self.until.map_or(Ok(()), |last| write!(f, ", up to checkpoint {last}"))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match parts(self.every) {
            _ if self.every == 0 => f.write_str("all")?,
            (1, "hour") => f.write_str("one an hour")?,
            (1, unit) => write!(f, "one a {unit}")?,
            (n, unit) => write!(f, "one every {n} {unit}s")?,
        }
        match parts(self.span) {
            _ if self.span == u64::MAX => f.write_str(" for ever"),
            (1, unit) => write!(f, " for 1 {unit}"),
            (n, unit) => write!(f, " for {n} {unit}s"),
        }
    }
}

/// A time in the longest unit that it is a multiple of.
fn parts(seconds: u64) -> (u64, &'static str) {
    let unit = UNITS.iter().find(|(size, _)| seconds.is_multiple_of(*size));
    unit.map_or((seconds, "second"), |(size, name)| (seconds / size, name))
}
