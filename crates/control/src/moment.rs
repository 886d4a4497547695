//! Naming a moment: by a checkpoint's number or by a time.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};
use silt_engine::{CheckpointInfo, Volume};
use silt_format::Cno;

use crate::host::{Host, with};
use crate::{ControlError, Kind, Result};

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
    /// Parses `1234`, `2026-11-21T14:03:05Z`, `2026-11-21 14:03`, or `2026-11-21` (its end), in
    /// the local time zone where none is given.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            return match text.parse() {
                Ok(0) | Err(_) => Err(bad(text)),
                Ok(n) => Ok(Moment::Checkpoint(n)),
            };
        }
        let seconds = if let Ok(t) = text.parse::<jiff::Timestamp>() {
            t.as_second()
        } else if let Ok(t) = text.parse::<jiff::Zoned>() {
            t.timestamp().as_second()
        } else {
            let zone = jiff::tz::TimeZone::system();
            let day_only = text.len() == "2026-11-21".len();
            let local = if day_only {
                text.parse::<jiff::civil::Date>().map(|d| d.at(23, 59, 59, 0))
            } else {
                text.parse::<jiff::civil::DateTime>()
            };
            let zoned = local.and_then(|t| t.to_zoned(zone)).map_err(|_| bad(text))?;
            zoned.timestamp().as_second()
        };
        Ok(Moment::Time(u64::try_from(seconds).map_err(|_| bad(text))?))
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
            .hint(format!("use at={number}, or make it one with: silt chcp ss {number}")));
        }
        Ok(number)
    }
}

fn bad(text: &str) -> ControlError {
    ControlError::new(Kind::Invalid, format!("{text:?} names no moment"))
        .hint("write a checkpoint number, or a time as 2026-11-21 14:03:05")
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
        ControlError::new(Kind::NotFound, "there is no checkpoint that old").hint("silt lscp lists them")
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
        for text in ["", "0", "-1", "x", "2026-13-01", "99999999999999999999", "1969-01-01T00:00:00Z"] {
            assert!(Moment::parse(text).is_err(), "{text:?}");
        }
    }
}
