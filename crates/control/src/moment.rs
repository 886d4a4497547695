//! Naming a moment: by a checkpoint's number or by a time.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};
use silt_engine::{CheckpointInfo, Volume};
use silt_format::Cno;

use crate::host::{Host, with};
use crate::named::{LISTS_MOMENTS, MAKES_SNAPSHOT};
use crate::{ControlError, Kind, Result, brief};

/// A moment of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moment {
    /// A checkpoint or snapshot by its number.
    Checkpoint(u64),
    /// The checkpoint that was the newest then; seconds since 1970.
    Time(u64),
}

impl Moment {
    /// Parses `1234`, `2026-11-21T14:03:05Z`, `2026-11-21 14:03`, `2026-11-21` (a minute, an hour and a day mean their end),
    /// `@1764090000`, `now`, `yesterday` or `10 minutes ago`, in the local time zone where none is given.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            return match text.parse() {
                Ok(0) | Err(_) => Err(bad(text)),
                Ok(n) => Ok(Moment::Checkpoint(n)),
            };
        }
        Self::time(text).map(|(_, last)| Moment::Time(last)).ok_or_else(|| bad(text))
    }

    /// Whether a text names a time all of which is still to come.
    pub fn is_to_come(text: &str) -> bool {
        let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
        Self::time(text.trim()).is_some_and(|(first, _)| first > now)
    }

    /// The first and the last second of what a text names.
    fn time(text: &str) -> Option<(u64, u64)> {
        let now = jiff::Zoned::now();
        let one = |t: jiff::Timestamp| u64::try_from(t.as_second()).ok().map(|t| (t, t));
        if let Some(seconds) = text.strip_prefix('@') {
            return one(jiff::Timestamp::from_second(seconds.parse().ok()?).ok()?);
        }
        if text.eq_ignore_ascii_case("now") {
            return one(now.timestamp());
        }
        if text.ends_with("ago") {
            let then = now.checked_add(ago(text)?).ok()?.timestamp();
            // No volume is as old as that, and which are there is said where it is looked for.
            return one(then).or(Some((0, 0)));
        }
        // How far it was written, so far it is meant, in every zone.
        let whole =
            |t: jiff::Timestamp| one(t).map(|(first, _)| (first, first.saturating_add(unwritten(text))));
        if let Ok(t) = text.parse::<jiff::Timestamp>() {
            return whole(t);
        }
        if let Ok(t) = text.parse::<jiff::Zoned>() {
            return whole(t.timestamp());
        }
        let text = match text.to_ascii_lowercase().as_str() {
            "today" => now.date().to_string(),
            "yesterday" => now.date().yesterday().ok()?.to_string(),
            _ => text.to_owned(),
        };
        const WHOLE: [(&str, &str); 3] = [("T00:00:00", "T23:59:59"), (":00:00", ":59:59"), (":00", ":59")];
        let (first, last) = match text.len() {
            10 => WHOLE[0],
            13 => WHOLE[1],
            16 => WHOLE[2],
            _ => ("", ""),
        };
        let ambiguous = |rest: &str| {
            let local = format!("{text}{rest}").parse::<jiff::civil::DateTime>().ok()?;
            Some(jiff::tz::TimeZone::system().to_ambiguous_timestamp(local))
        };
        // What the clock showed twice, since it was set back, means both, and so its end is the later one.
        let first = ambiguous(first)?.compatible().ok()?;
        let last = ambiguous(last)?.later().ok()?;
        Some((u64::try_from(first.as_second()).ok()?, u64::try_from(last.as_second()).ok()?))
    }

    /// The number of the checkpoint that shows the moment.
    pub fn resolve(&self, host: &dyn Host, snapshot_only: bool) -> Result<u64> {
        let number = match *self {
            Moment::Checkpoint(n) => n,
            Moment::Time(seconds) => newest_at(host, seconds)?,
        };
        let info = with(host, |v| v.checkpoint_info(Cno(number)))??;
        if snapshot_only && !info.snapshot {
            return Err(ControlError::new(
                Kind::Invalid,
                format!("checkpoint {number} is not a snapshot, and cp= takes snapshots only"),
            )
            .hint(format!("use at={number}, or make it one with: {MAKES_SNAPSHOT} {number}")));
        }
        Ok(number)
    }
}

/// A time before now, of which one may be written as a word: `an hour ago`.
fn ago(text: &str) -> Option<jiff::Span> {
    let (first, rest) = text.split_once(' ').unwrap_or((text, ""));
    let is_one = ["a", "an", "one"].iter().any(|one| first.eq_ignore_ascii_case(one));
    let span = if is_one { format!("1 {}", rest.trim_start()).parse() } else { text.parse() };
    span.ok()
}

/// Seconds that lie in a time with a zone besides its first: those of a minute or an hour, where no more was written.
fn unwritten(text: &str) -> u64 {
    // Written without dashes it begins elsewhere, and is meant to the second.
    let (day, time) = text.split_at_checked(11).unwrap_or((text, ""));
    if day.ends_with(|c: char| c.is_ascii_digit()) {
        return 0;
    }
    let end = time.find(|c: char| !c.is_ascii_digit() && c != ':').unwrap_or(time.len());
    match time.get(..end).unwrap_or("").len() {
        2 => 3_599,
        5 => 59,
        _ => 0,
    }
}

fn bad(text: &str) -> ControlError {
    ControlError::new(Kind::Invalid, format!("{:?} names no moment", brief(text)))
        .hint("write a checkpoint number, or a time as 2026-11-21 14:03:05, yesterday or 10 minutes ago")
}

/// The checkpoint that was the newest at a time. Looked for as if time never went back, in ever larger steps from the
/// newest of all, then in ever smaller ones: where the clock was set back, another may be as old.
fn newest_at(host: &dyn Host, seconds: u64) -> Result<u64> {
    let found = with(host, |v| -> silt_engine::Result<Option<u64>> {
        // From `from` to before `to` it is not known whether they are younger; those behind are.
        let mut to = v.last_log().cno.saturating_add(1);
        let (mut from, mut step, mut found) = (1, 1, None);
        while from < to {
            let at = match found {
                None => to.saturating_sub(step).max(1),
                Some(_) => from + (to - from) / 2,
            };
            step = step.saturating_mul(2);
            match first(v, at, to)? {
                Some(c) if c.created <= seconds => {
                    found = Some(c.cno);
                    from = c.cno.saturating_add(1);
                }
                _ => to = at,
            }
        }
        Ok(found)
    })??;
    found.ok_or_else(|| {
        ControlError::new(Kind::NotFound, "there is no checkpoint that old").hint(LISTS_MOMENTS)
    })
}

/// The first checkpoint with a number from `from` to before `to`.
fn first(v: &Volume, from: u64, to: u64) -> silt_engine::Result<Option<CheckpointInfo>> {
    let mut found = None;
    v.for_each_checkpoint(Cno(from), |c| {
        found = Some(c).filter(|c| c.cno < to);
        ControlFlow::Break(())
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_told_apart() {
        assert_eq!(Moment::parse("12").unwrap(), Moment::Checkpoint(12));
        let z = Moment::parse("2026-11-21T06:17:32Z").unwrap();
        assert_eq!(z, Moment::Time(1_795_241_852));
        assert_eq!(Moment::parse("2026-11-21T07:17:32+01:00").unwrap(), z);
        assert!(matches!(Moment::parse("2026-11-21 06:17").unwrap(), Moment::Time(_)));
        let (day, noon) =
            (Moment::parse("2026-11-21").unwrap(), Moment::parse("2026-11-21 12:00:00").unwrap());
        match (day, noon) {
            (Moment::Time(d), Moment::Time(n)) => assert_eq!(d - n, 11 * 3600 + 59 * 60 + 59),
            other => panic!("{other:?}"),
        }
        // What is written to the minute or the hour means its end, as a day does.
        let end = Moment::parse("2026-11-25 16:40:59").unwrap();
        assert_eq!(Moment::parse("2026-11-25 16:40").unwrap(), end);
        assert_eq!(Moment::parse("2026-11-25T16:40").unwrap(), end);
        assert_eq!(Moment::parse("2026-11-25 16").unwrap(), Moment::parse("2026-11-25 16:59:59").unwrap());
        for (short, long) in [
            ("2026-11-25T16:40Z", "2026-11-25T16:40:59Z"),
            ("2026-11-25 16:40+01:00", "2026-11-25T15:40:59Z"),
            ("2026-11-25T16:40+01:00[Europe/Berlin]", "2026-11-25T15:40:59Z"),
            ("2026-11-25T16Z", "2026-11-25T16:59:59Z"),
            ("2026-11-25T16:40:00Z", "2026-11-25T16:40:00+00:00"),
            ("2026-11-25T16:40:00.5+00:00", "2026-11-25T16:40:00Z"),
        ] {
            assert_eq!(Moment::parse(short).unwrap(), Moment::parse(long).unwrap(), "{short}");
        }
        assert_eq!(Moment::parse("@1764090000").unwrap(), Moment::Time(1_764_090_000));
        let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap();
        let age = |text: &str| match Moment::parse(text).unwrap() {
            Moment::Time(t) => now.saturating_sub(t),
            other => panic!("{other:?}"),
        };
        assert!(age("now") < 5 && (600..605).contains(&age("10 minutes ago")));
        for text in ["an hour ago", "An  hour ago", "one hour ago", "1 hour ago"] {
            assert!((3600..3605).contains(&age(text)), "{text}");
        }
        assert!((60..65).contains(&age("a minute ago")));
        // Older than any volume, and a time all the same.
        assert_eq!(Moment::parse("1000 years ago").unwrap(), Moment::Time(0));
        assert!((7200..7205).contains(&age("2h ago")) && age("yesterday") < 25 * 3600);
        for (text, is) in
            [("2999-01-01", true), ("today", false), ("now", false), ("12", false), ("x", false)]
        {
            assert_eq!(Moment::is_to_come(text), is, "{text}");
        }
        for text in [
            "",
            "0",
            "-1",
            "x",
            "2026-13-01",
            "99999999999999999999",
            "@x",
            "ago",
            "x ago",
            "a ago",
            "an ago",
            "a x ago",
            "an 2 hours ago",
            "1969-01-01T00:00:00Z",
        ] {
            assert!(Moment::parse(text).is_err(), "{text:?}");
        }
    }
}
