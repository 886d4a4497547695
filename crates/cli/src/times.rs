//! Times as people read them, in the local time zone.

use jiff::{Timestamp, Zoned, tz::TimeZone};

fn local(seconds: u64) -> Option<Zoned> {
    let stamp = Timestamp::from_second(i64::try_from(seconds).ok()?).ok()?;
    Some(stamp.to_zoned(TimeZone::system()))
}

/// `2026-11-21 14:03:05`; dashes for 0 where that means "never", and for times out of range.
pub fn stamp(seconds: u64, zero_is_never: bool) -> String {
    match local(seconds).filter(|_| seconds != 0 || !zero_is_never) {
        Some(t) => t.strftime("%Y-%m-%d %H:%M:%S").to_string(),
        None => "---------- --:--:--".to_owned(),
    }
}

/// `Sat Nov 21 14:03:05 2026`.
pub fn long(seconds: u64) -> String {
    local(seconds).map_or_else(|| format!("{seconds} s"), |t| t.strftime("%a %b %e %H:%M:%S %Y").to_string())
}

/// RFC 3339 with the zone's offset, for programs.
pub fn iso(seconds: u64) -> Option<String> {
    local(seconds).map(|t| t.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string())
}

/// `5 minutes ago`.
pub fn ago(seconds: u64) -> String {
    let now = Timestamp::now().as_second();
    let then = i64::try_from(seconds).unwrap_or(i64::MAX);
    match u64::try_from(now.saturating_sub(then)) {
        Ok(age) => format!("{} ago", span(age)),
        Err(_) => "in the future".to_owned(),
    }
}

/// `5 minutes`.
pub fn span(seconds: u64) -> String {
    const UNITS: [(u64, &str); 5] =
        [(365 * 86400, "year"), (7 * 86400, "week"), (86400, "day"), (3600, "hour"), (60, "minute")];
    let (size, name) = UNITS.iter().find(|(size, _)| seconds >= 2 * size).copied().unwrap_or((1, "second"));
    let n = seconds / size;
    crate::output::count(n, name)
}

/// What is to be said of a moment that is a time still to come.
pub fn to_come(text: &str) -> Option<String> {
    let is = silt_control::Moment::is_to_come(text);
    is.then(|| format!("{text} is still to come: the newest checkpoint is taken"))
}

/// Says it.
pub fn tell_of_one_to_come(text: &str) {
    to_come(text).iter().for_each(|note| crate::target::eprintln_quiet(&format!("note: {note}")));
}

/// Parses a time span in seconds: `90`, `10m`, `1d`.
pub fn period(text: &str) -> std::result::Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let size: u64 = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 7 * 86_400,
        "M" => 31 * 86_400,
        "Y" => 365 * 86_400,
        _ => return Err(format!("{unit:?} is not a unit of time; there are s, m, h, d, w, M and Y")),
    };
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is not a period"))?;
    number.checked_mul(size).ok_or_else(|| format!("{text} is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_in_words() {
        assert_eq!(span(0), "0 seconds");
        assert_eq!(span(1), "1 second");
        assert_eq!(span(119), "119 seconds");
        assert_eq!(span(120), "2 minutes");
        assert_eq!(span(3 * 86400 + 5), "3 days");
        assert_eq!(span(15 * 86400), "2 weeks");
    }

    #[test]
    fn times_out_of_range_do_no_harm() {
        assert_eq!(stamp(u64::MAX, false), "---------- --:--:--");
        assert_eq!(stamp(0, true), "---------- --:--:--");
        assert!(stamp(0, false).starts_with("19"));
        assert_eq!(iso(u64::MAX), None);
        assert_eq!(ago(u64::MAX), "in the future");
        assert!(long(1_795_241_852).ends_with(" 2026"));
    }
}
