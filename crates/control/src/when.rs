//! Times as people write them: `2026-11-21 14:03`, `yesterday 14:00`, `last monday`, `Nov 21 2pm`, `10 minutes ago`.
//!
//! What is written out as in ISO 8601 is read as that. The rest is words, in any case: a day, a time of day, in any order, or
//! how long ago. Where there can be no blanks, as in fstab, `_` and `.` part them.

use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, Zoned};

/// First and last second, counted since 1970.
type Seconds = (u64, u64);

/// What a text names. How far it was written, so far it is meant: a minute, an hour and a day are all of their seconds.
/// `None`: it names no time.
pub(crate) fn seconds(text: &str, now: &Zoned) -> Option<Seconds> {
    if let Some(seconds) = text.strip_prefix('@') {
        return one(Timestamp::from_second(seconds.parse().ok()?).ok()?);
    }
    let zone = now.time_zone();
    written_out(text, zone)
        .or_else(|| written_out(&text.replacen('_', " ", 1), zone))
        .or_else(|| in_words(text, now))
}

fn one(t: Timestamp) -> Option<Seconds> {
    u64::try_from(t.as_second()).ok().map(|t| (t, t))
}

/// As in ISO 8601, with a zone or in this one.
fn written_out(text: &str, zone: &TimeZone) -> Option<Seconds> {
    let stamp = text.parse::<Timestamp>().or_else(|_| text.parse::<Zoned>().map(|z| z.timestamp()));
    if let Ok(stamp) = stamp {
        return one(stamp).map(|(first, _)| (first, first.saturating_add(unwritten(text))));
    }
    const WHOLE: [(&str, &str); 3] = [("T00:00:00", "T23:59:59"), (":00:00", ":59:59"), (":00", ":59")];
    let (first, last) = match text.len() {
        10 => WHOLE[0],
        13 => WHOLE[1],
        16 => WHOLE[2],
        _ => ("", ""),
    };
    let local = |rest: &str| format!("{text}{rest}").parse::<DateTime>().ok();
    between(local(first)?, local(last)?, zone)
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

/// What the clock showed twice, since it was set back, means both, and so its end is the later one.
fn between(first: DateTime, last: DateTime, zone: &TimeZone) -> Option<Seconds> {
    let first = zone.to_ambiguous_timestamp(first).compatible().ok()?;
    let last = zone.to_ambiguous_timestamp(last).later().ok()?;
    Some((u64::try_from(first.as_second()).ok()?, u64::try_from(last.as_second()).ok()?))
}

fn in_words(text: &str, now: &Zoned) -> Option<Seconds> {
    let words = words(text);
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    let said = words.len();
    words.retain(|w| !["utc", "gmt"].contains(w));
    let now = if words.len() < said { now.with_time_zone(TimeZone::UTC) } else { now.clone() };
    if let ["now"] = words[..] {
        return one(now.timestamp());
    }
    let (mut clock, mut words) = clock(&words)?;
    // `yesterday 14`, as `2026-11-21 14`; behind a number another one may be anything.
    if let (None, [day @ .., hour]) = (clock, &words[..])
        && !day.is_empty()
        && !day.iter().any(|w| w.contains(|c: char| c.is_ascii_digit()))
        && let Some(day_of) = day_of(day, &now)
        && let Ok(hour) = hour.parse()
    {
        clock = Some((Time::new(hour, 0, 0, 0).ok()?, Time::new(hour, 59, 59, 0).ok()?));
        return within(day_of, clock, &now);
    }
    if words.is_empty() && clock.is_some() {
        words.push("today");
    }
    within(day_of(&words, &now)?, clock, &now)
}

/// What a day, or a time so long ago, is with a time of day or without.
fn within(day: Day, clock: Option<Clock>, now: &Zoned) -> Option<Seconds> {
    let whole = (Time::midnight(), Time::new(23, 59, 59, 0).ok()?);
    let (date, (first, last)) = match (day, clock) {
        (Day::Whole(date), clock) => (date, clock.unwrap_or(whole)),
        // Of what is hours ago the time of day is said already.
        (Day::Ago(span), Some(_)) if is_finer_than_a_day(&span) => return None,
        (Day::Ago(span), Some(clock)) => (now.checked_sub(span).ok()?.date(), clock),
        // No volume is as old as that, and which are there is said where it is looked for.
        (Day::Ago(span), None) => {
            return now.checked_sub(span).ok().and_then(|t| one(t.timestamp())).or(Some((0, 0)));
        }
    };
    between(date.to_datetime(first), date.to_datetime(last), now.time_zone())
}

/// The words in lower case, without those that say nothing.
fn words(text: &str) -> Vec<String> {
    let is_letter = |c: Option<char>| c.is_some_and(char::is_alphabetic);
    let (mut spaced, mut before) = (String::new(), None);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let next = rest.peek().copied();
        match c {
            '_' | ',' => spaced.push(' '),
            // Not that of a number.
            '.' if is_letter(before) || next.is_none_or(char::is_alphabetic) => spaced.push(' '),
            // As periods have it, so that it is never taken for a minute.
            'M' if !is_letter(before) && !is_letter(next) => spaced.push_str("mo"),
            c => spaced.extend(c.to_lowercase()),
        }
        before = Some(c);
    }
    let silent = ["at", "on", "the", "and"];
    spaced.split_whitespace().filter(|w| !silent.contains(w)).map(str::to_owned).collect()
}

/// First and last second of what is meant by a time of day.
type Clock = (Time, Time);

/// Finds the time of day, and what is left. `None`: there are two, or it is none.
fn clock<'a>(words: &[&'a str]) -> Option<(Option<Clock>, Vec<&'a str>)> {
    let mut found = None;
    let mut left = Vec::new();
    let mut rest = words.iter().copied().peekable();
    while let Some(word) = rest.next() {
        let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let half = match word.strip_prefix(digits) {
            Some("") => rest.peek().copied(),
            behind => behind,
        };
        let half = half.filter(|half| ["am", "pm"].contains(half));
        let is_clock = digits.contains(':') || (half.is_some() && !digits.is_empty());
        // Letters that mean nothing here may mean something, as those of a time zone do.
        if is_clock && digits != word && half.is_none() {
            return None;
        }
        let time = match word {
            "noon" => Time::constant(12, 0, 0, 0),
            _ if is_clock => time_of_day(digits, half)?,
            _ => {
                left.push(word);
                continue;
            }
        };
        if half.is_some() && digits == word {
            rest.next();
        }
        // To the end of its minute, if the seconds were not written.
        let is_exact = digits.matches(':').count() > 1;
        let last = if is_exact { time } else { Time::new(time.hour(), time.minute(), 59, 0).ok()? };
        if found.replace((time, last)).is_some() {
            return None;
        }
    }
    Some((found, left))
}

/// `14`, `14:03` or `14:03:05`, or up to 12 with a half of the day.
fn time_of_day(digits: &str, half: Option<&str>) -> Option<Time> {
    let parts = digits.split(':').map(|part| part.parse().ok().filter(|_| part.len() <= 2));
    let (hour, minute, second) = match parts.collect::<Option<Vec<i8>>>()?[..] {
        [hour] => (hour, 0, 0),
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return None,
    };
    let hour = match half {
        None => hour,
        Some(_) if !(1..=12).contains(&hour) => return None,
        Some(half) => hour % 12 + if half == "pm" { 12 } else { 0 },
    };
    Time::new(hour, minute, second, 0).ok()
}

/// A day, or how long ago.
enum Day {
    Whole(Date),
    Ago(Span),
}

fn day_of(words: &[&str], now: &Zoned) -> Option<Day> {
    let today = now.date();
    let date = match words {
        ["today"] => today,
        ["yesterday"] => today.yesterday().ok()?,
        ["day", "before", "yesterday"] => today.yesterday().ok()?.yesterday().ok()?,
        ["last", unit @ ("week" | "month" | "year")] => return span(&["a", unit]).map(Day::Ago),
        [time @ .., "ago"] => return span(time).map(Day::Ago),
        [first, rest @ ..] if first.starts_with('-') => {
            return span(&[&[first.trim_start_matches('-')], rest].concat()).map(Day::Ago);
        }
        ["last", name] => today.nth_weekday(-1, weekday(name)?).ok()?,
        [name] if weekday(name).is_some() => today.tomorrow().ok()?.nth_weekday(-1, weekday(name)?).ok()?,
        [name, date @ ..] if !date.is_empty() && weekday(name).is_some() => {
            date_of(date, today).filter(|d| Some(d.weekday()) == weekday(name))?
        }
        date => date_of(date, today)?,
    };
    Some(Day::Whole(date))
}

/// A date in numbers or with the name of its month; without a year the last one that there was.
fn date_of(words: &[&str], today: Date) -> Option<Date> {
    let (day, month, year) = match *words {
        [date] => return numbers(date),
        [first, second] | [first, second, _] => match (month(first), month(second)) {
            (Some(month), _) => (second, month, words.get(2)),
            (None, month) => (first, month?, words.get(2)),
        },
        _ => return None,
    };
    let day = day.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let day = day.parse().ok()?;
    if let Some(year) = year {
        return Date::new(year.parse().ok().filter(|_| year.len() == 4)?, month, day).ok();
    }
    // A 29th of February may be years ago.
    let dates = (0..8).filter_map(|years| Date::new(today.year().checked_sub(years)?, month, day).ok());
    dates.into_iter().find(|date| *date <= today)
}

/// `2026-11-21`, `2026/11/21` or `21.11.2026`.
fn numbers(date: &str) -> Option<Date> {
    match date.split(['-', '/', '.']).collect::<Vec<_>>()[..] {
        [year, month, day] if year.len() == 4 && !date.contains('.') => {
            Date::new(year.parse().ok()?, month.parse().ok()?, day.parse().ok()?).ok()
        }
        [day, month, year] if year.len() == 4 && date.contains('.') => {
            Date::new(year.parse().ok()?, month.parse().ok()?, day.parse().ok()?).ok()
        }
        _ => None,
    }
}

/// The place of a name, written out or begun with three letters and more, in a list.
fn place(name: &str, all: &[&str]) -> Option<i8> {
    let found = all.iter().position(|full| name.len() >= 3 && full.starts_with(name))?;
    i8::try_from(found).ok()
}

fn weekday(name: &str) -> Option<Weekday> {
    const ALL: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
    Weekday::from_monday_zero_offset(place(name, &ALL)?).ok()
}

fn month(name: &str) -> Option<i8> {
    const ALL: [&str; 12] = [
        "january",
        "february",
        "march",
        "april",
        "may",
        "june",
        "july",
        "august",
        "september",
        "october",
        "november",
        "december",
    ];
    place(name, &ALL).map(|n| n + 1)
}

/// How long, with small numbers as words: `10 minutes`, `an hour`, `2h30m`.
fn span(words: &[&str]) -> Option<Span> {
    const NUMBERS: [&str; 12] =
        ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];
    if let ["half", "an", "hour"] = words {
        return Span::new().try_minutes(30).ok();
    }
    let number = |word: &str| match word {
        "a" | "an" => Some(1),
        word => NUMBERS.iter().position(|n| *n == word).map(|n| n + 1),
    };
    let words: Vec<String> =
        words.iter().map(|w| number(w).map_or_else(|| (*w).to_owned(), |n| n.to_string())).collect();
    words.join(" ").parse().ok().filter(|span: &Span| !span.is_negative())
}

fn is_finer_than_a_day(span: &Span) -> bool {
    span.get_hours() != 0 || span.get_minutes() != 0 || span.get_seconds() != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Wednesday in Berlin.
    fn now() -> Zoned {
        "2026-11-25T09:30:20+01:00[Europe/Berlin]".parse().unwrap()
    }

    fn local(text: &str) -> u64 {
        let at: DateTime = text.parse().unwrap();
        u64::try_from(at.to_zoned(now().time_zone().clone()).unwrap().timestamp().as_second()).unwrap()
    }

    #[test]
    fn days_with_a_time_of_day_and_without() {
        for (text, first, last) in [
            ("today", "2026-11-25T00:00:00", "2026-11-25T23:59:59"),
            ("Yesterday", "2026-11-24T00:00:00", "2026-11-24T23:59:59"),
            ("the day before yesterday", "2026-11-23T00:00:00", "2026-11-23T23:59:59"),
            ("yesterday 14:00", "2026-11-24T14:00:00", "2026-11-24T14:00:59"),
            ("Yesterday at 14:03:05", "2026-11-24T14:03:05", "2026-11-24T14:03:05"),
            ("14:00 yesterday", "2026-11-24T14:00:00", "2026-11-24T14:00:59"),
            ("yesterday_14:00", "2026-11-24T14:00:00", "2026-11-24T14:00:59"),
            ("yesterday 14", "2026-11-24T14:00:00", "2026-11-24T14:59:59"),
            ("yesterday 2pm", "2026-11-24T14:00:00", "2026-11-24T14:00:59"),
            ("yesterday, 2:30 PM", "2026-11-24T14:30:00", "2026-11-24T14:30:59"),
            ("yesterday noon", "2026-11-24T12:00:00", "2026-11-24T12:00:59"),
            ("12am", "2026-11-25T00:00:00", "2026-11-25T00:00:59"),
            ("8:15", "2026-11-25T08:15:00", "2026-11-25T08:15:59"),
            ("last monday", "2026-11-23T00:00:00", "2026-11-23T23:59:59"),
            ("Last Wednesday", "2026-11-18T00:00:00", "2026-11-18T23:59:59"),
            ("wednesday 8:00", "2026-11-25T08:00:00", "2026-11-25T08:00:59"),
            ("Fri", "2026-11-20T00:00:00", "2026-11-20T23:59:59"),
            ("Nov 21", "2026-11-21T00:00:00", "2026-11-21T23:59:59"),
            ("Dec 30", "2025-12-30T00:00:00", "2025-12-30T23:59:59"),
            ("Feb 29 14:00", "2024-02-29T14:00:00", "2024-02-29T14:00:59"),
            ("2026-11-21_14:03:05Z", "2026-11-21T15:03:05", "2026-11-21T15:03:05"),
            ("21 november 2025 2pm", "2025-11-21T14:00:00", "2025-11-21T14:00:59"),
            ("November 3rd, 2026", "2026-11-03T00:00:00", "2026-11-03T23:59:59"),
            ("Sat Nov 21 14:03:05 2026", "2026-11-21T14:03:05", "2026-11-21T14:03:05"),
            ("Sat Nov 21 14:03:05 UTC 2026", "2026-11-21T15:03:05", "2026-11-21T15:03:05"),
            ("2026-11-21 2pm", "2026-11-21T14:00:00", "2026-11-21T14:00:59"),
            ("2026/11/21 14:03", "2026-11-21T14:03:00", "2026-11-21T14:03:59"),
            ("21.11.2026 14:03", "2026-11-21T14:03:00", "2026-11-21T14:03:59"),
            ("2 days ago 14:00", "2026-11-23T14:00:00", "2026-11-23T14:00:59"),
            ("at 14:00 two days ago", "2026-11-23T14:00:00", "2026-11-23T14:00:59"),
        ] {
            assert_eq!(seconds(text, &now()), Some((local(first), local(last))), "{text}");
        }
    }

    #[test]
    fn how_long_ago() {
        for (text, then) in [
            ("now", "2026-11-25T09:30:20"),
            ("10 Minutes Ago", "2026-11-25T09:20:20"),
            ("10_minutes_ago", "2026-11-25T09:20:20"),
            ("2.hours.ago", "2026-11-25T07:30:20"),
            ("10 min. ago", "2026-11-25T09:20:20"),
            ("1.5 hours ago", "2026-11-25T08:00:20"),
            ("half an hour ago", "2026-11-25T09:00:20"),
            ("TWO HOURS AGO", "2026-11-25T07:30:20"),
            ("2 hours and 30 minutes ago", "2026-11-25T07:00:20"),
            ("2h30m ago", "2026-11-25T07:00:20"),
            ("1 day, 2 hours ago", "2026-11-24T07:30:20"),
            ("2D ago", "2026-11-23T09:30:20"),
            ("1M ago", "2026-10-25T09:30:20"),
            ("-10min", "2026-11-25T09:20:20"),
            ("-2 hours", "2026-11-25T07:30:20"),
            ("last week", "2026-11-18T09:30:20"),
            ("a month ago", "2026-10-25T09:30:20"),
        ] {
            assert_eq!(seconds(text, &now()), Some((local(then), local(then))), "{text}");
        }
        assert_eq!(seconds("15000 years ago", &now()), Some((0, 0)), "before there was a calendar");
    }

    #[test]
    fn what_names_no_time() {
        for text in [
            "",
            " ",
            "ago",
            "a ago",
            "an ago",
            "a x ago",
            "an 2 hours ago",
            "at",
            "-",
            "-1",
            "x ago",
            "2 hours",
            "last",
            "last x",
            "last night",
            "monday tuesday",
            "yesterday today",
            "yesterday 25:00",
            "yesterday 24",
            "yesterday 14:00Z",
            "14:00xyz",
            "Nov 21 14:03utc",
            "14:00 15:00",
            "13pm",
            "0am",
            "pm",
            "2:5:7:9",
            "14:",
            "yesterday yesterday 14",
            "2 hours ago 14:00",
            "2 hours ago ago",
            "-2 hours ago",
            "now 14:00",
            "sunday Nov 21 2026",
            "Feb 30",
            "Nov 21 26",
            "nov",
            "21",
            "11/21/2026",
            "2026.11.21",
            "32.11.2026",
            "1969-12-01",
            "\u{e4}\u{df}pm",
            "\u{1f600}:",
        ] {
            assert_eq!(seconds(text, &now()), None, "{text:?}");
        }
    }
}
