//! Naming a moment: by a checkpoint's number or by a time.

use std::ops::{ControlFlow, Range, RangeInclusive};

use serde::{Deserialize, Serialize};
use silt_engine::{CheckpointInfo, Volume};
use silt_format::Cno;

use crate::host::{Host, with};
use crate::named::{LISTS_MOMENTS, MAKES_SNAPSHOT};
use crate::{ControlError, Kind, Result, brief, when};

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
    /// `@1764090000`, `now`, `yesterday 14:00`, `last monday`, `Nov 21` or `10 minutes ago`, in the local time zone where none
    /// is given. Errors: it is none of them, with examples.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            return match text.parse() {
                Ok(0) | Err(_) => Err(bad(text)),
                Ok(n) => Ok(Moment::Checkpoint(n)),
            };
        }
        when::seconds(text, &jiff::Zoned::now()).map(|(_, last)| Moment::Time(last)).ok_or_else(|| bad(text))
    }

    /// Whether a text names a time all of which is still to come.
    pub fn is_to_come(text: &str) -> bool {
        let now = jiff::Zoned::now();
        let seconds = u64::try_from(now.timestamp().as_second()).unwrap_or(0);
        when::seconds(text.trim(), &now).is_some_and(|(first, _)| first > seconds)
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

fn bad(text: &str) -> ControlError {
    let hint = match when::seconds(&format!("{text} ago"), &jiff::Zoned::now()) {
        // Which side of now is meant has to be said.
        Some(_) => format!("write {:?} if it is that", format!("{} ago", brief(text))),
        None => format!("write a checkpoint number, or a time as {EXAMPLES}"),
    };
    ControlError::new(Kind::Invalid, format!("{:?} names no moment", brief(text))).hint(hint)
}

/// Times that one can write.
const EXAMPLES: &str =
    "14:00, yesterday 14:00, last monday, Nov 21 14:00, 2026-11-21 14:03:05, 10 minutes ago or now";

/// The checkpoint that was the newest at a time. Looked for as if time never went back, in ever larger steps from the
/// newest of all, then in ever smaller ones: where the clock was set back, another may be as old. Those from the future, and
/// from before the volume was made, say nothing and are passed over, unless the newest is one.
fn newest_at(host: &dyn Host, seconds: u64) -> Result<u64> {
    let now = host.now();
    let found = with(host, |v| -> silt_engine::Result<Option<u64>> {
        let is_past = v.stat()?.last_checkpoint_time <= now;
        let made = v.super_block().ctime.get();
        let told = if is_past && made <= now { made..=now.max(seconds) } else { 0..=u64::MAX };
        // From `from` to before `to` it is not known whether they are younger; those behind are.
        let mut to = v.last_log().cno.saturating_add(1);
        let (mut from, mut step, mut found) = (1, 1, None);
        while from < to {
            let at = match found {
                None => to.saturating_sub(step).max(1),
                Some(_) => from + (to - from) / 2,
            };
            step = step.saturating_mul(2);
            match first(v, at..to, &told)? {
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

/// The first checkpoint with one of these numbers and times.
fn first(
    v: &Volume,
    numbers: Range<u64>,
    times: &RangeInclusive<u64>,
) -> silt_engine::Result<Option<CheckpointInfo>> {
    let mut found = None;
    v.for_each_checkpoint(Cno(numbers.start), |c| {
        if c.cno < numbers.end && !times.contains(&c.created) {
            return ControlFlow::Continue(());
        }
        found = Some(c).filter(|c| c.cno < numbers.end);
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
            "1969-01-01T00:00:00Z",
            "last night",
        ] {
            let error = Moment::parse(text).unwrap_err();
            assert!(error.hint.is_some_and(|hint| hint.ends_with(EXAMPLES)), "{text:?}");
        }
        let error = Moment::parse("10 minutes").unwrap_err();
        assert_eq!(error.hint.unwrap(), "write \"10 minutes ago\" if it is that");
        for text in EXAMPLES.split(", ").flat_map(|some| some.split(" or ")) {
            assert!(matches!(Moment::parse(text), Ok(Moment::Time(_))), "{text}");
        }
    }
}
