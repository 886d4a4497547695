//! Reading a wish: `all for 1 hour, one a minute for a day, 1/hour for 1 month, one a day for ever`.
//!
//! ```text
//! wish  = "nothing" | rule { ("," | ";" | "+" | "and") rule }
//! rule  = ("all" | "everything") "for" age | count ("a" | "an" | "per" | "each" | "every" | "/") [number] unit "for" age
//! age   = "ever" | [number | "a" | "an"] unit
//! ```
//!
//! `;`, `+` and `_` (for a space) are for places where commas and spaces mean something else.

use std::ops::Range;
use std::str::FromStr;

use crate::wish::{DAY, HOUR, MINUTE, MONTH, Rule, WEEK, Wish, YEAR};

/// Longest text, in bytes, and most rules of a wish.
const LONGEST: usize = 1_000;
const MOST: usize = 16;

const NUMBERS: [&str; 12] =
    ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];

/// A wish that makes no sense, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{what}", place(.part, .at))]
pub struct WordsError {
    /// Bytes of the text that are wrong.
    pub at: Range<usize>,
    /// These bytes; empty at the end of the text.
    pub part: String,
    /// What is wrong with them.
    pub what: String,
}

fn place(part: &str, at: &Range<usize>) -> String {
    if part.is_empty() { String::new() } else { format!("at {part:?} (character {}): ", at.start + 1) }
}

impl FromStr for Wish {
    type Err = WordsError;

    fn from_str(text: &str) -> Result<Self, WordsError> {
        let mut reader = Reader { text, words: split(text), next: 0 };
        if text.len() > LONGEST {
            return Err(reader.wrong(format!("more than {LONGEST} characters")));
        }
        reader.wish()
    }
}

/// The words of a text, in small letters, with their places. Numbers are words of their own, and so are signs.
fn split(text: &str) -> Vec<(String, Range<usize>)> {
    #[derive(PartialEq, Clone, Copy)]
    enum Class {
        Space,
        Digit,
        Letter,
        Sign,
    }
    let class = |c: char| match c {
        c if c.is_whitespace() || c == '_' => Class::Space,
        c if c.is_ascii_digit() => Class::Digit,
        ',' | ';' | '+' | '/' => Class::Sign,
        _ => Class::Letter,
    };
    let mut words: Vec<(String, Range<usize>)> = Vec::new();
    let mut before = Class::Space;
    for (at, c) in text.char_indices() {
        let now = class(c);
        let end = at + c.len_utf8();
        match words.last_mut() {
            Some((word, place)) if now == before && now != Class::Sign && now != Class::Space => {
                word.extend(c.to_lowercase());
                place.end = end;
            }
            _ if now != Class::Space => words.push((c.to_lowercase().collect(), at..end)),
            _ => {}
        }
        before = now;
    }
    words
}

struct Reader<'a> {
    text: &'a str,
    words: Vec<(String, Range<usize>)>,
    next: usize,
}

type Read<T> = Result<T, WordsError>;

impl Reader<'_> {
    fn peek(&self) -> &str {
        self.words.get(self.next).map_or("", |(word, _)| word)
    }

    /// Takes the next word if it is one of these.
    fn take(&mut self, words: &[&str]) -> bool {
        let is = words.contains(&self.peek());
        self.next += usize::from(is);
        is
    }

    /// The next word is wrong.
    fn wrong(&self, what: impl Into<String>) -> WordsError {
        let end = self.text.len();
        let at = self.words.get(self.next).map_or(end..end, |(_, at)| at.clone());
        let part = self.text.get(at.clone()).unwrap_or_default().chars().take(40).collect();
        WordsError { at, part, what: what.into() }
    }

    fn wish(&mut self) -> Read<Wish> {
        if self.words.is_empty() {
            return Err(
                self.wrong("there are no words; \"nothing\" keeps nothing, \"all for ever\" everything")
            );
        }
        if self.take(&["nothing", "none"]) {
            return if self.peek().is_empty() {
                Ok(Wish::nothing())
            } else {
                Err(self.wrong("nothing follows \"nothing\""))
            };
        }
        let mut rules = Vec::new();
        loop {
            if rules.len() == MOST {
                return Err(self.wrong(format!("more than {MOST} parts")));
            }
            rules.push(self.rule()?);
            if self.peek().is_empty() {
                return Ok(Wish::new(rules));
            }
            if !self.take(&[",", ";", "+", "and"]) {
                return Err(self.wrong("a comma belongs between two parts"));
            }
            self.take(&["and"]);
            // A comma at the end is no mistake.
            if self.peek().is_empty() {
                return Ok(Wish::new(rules));
            }
        }
    }

    fn rule(&mut self) -> Read<Rule> {
        let every = if self.take(&["all", "everything"]) { 0 } else { self.rate()? };
        if !self.take(&["for"]) {
            return Err(self.wrong("for how long? such as \"for 1 month\" or \"for ever\""));
        }
        let span = self.age()?;
        Ok(Rule::one(every, span))
    }

    /// Seconds from one to the next.
    fn rate(&mut self) -> Read<u64> {
        let start = self.next;
        let Some(count) = self.number()? else {
            return Err(self.wrong("a part begins with \"all\", \"one a day\" or \"1/hour\""));
        };
        if !self.take(&["a", "an", "per", "each", "every", "/"]) {
            return Err(
                self.wrong("how often? such as \"one an hour\", \"one every 10 minutes\" or \"1/day\"")
            );
        }
        let per = self.number()?.unwrap_or(1);
        let unit = self.unit()?;
        let Some(seconds) = per.checked_mul(unit) else {
            self.next = start;
            return Err(self.wrong("that is too long"));
        };
        if seconds < count {
            self.next = start;
            return Err(self.wrong("more than one a second; \"all\" keeps all"));
        }
        Ok(seconds / count)
    }

    fn age(&mut self) -> Read<u64> {
        if self.take(&["ever", "always", "good"]) {
            return Ok(u64::MAX);
        }
        let start = self.next;
        let n = if self.take(&["a", "an"]) { 1 } else { self.number()?.unwrap_or(1) };
        let unit = self.unit()?;
        n.checked_mul(unit).filter(|s| *s < u64::MAX / 2).ok_or_else(|| {
            self.next = start;
            self.wrong("that is too long; there is \"for ever\"")
        })
    }

    /// A number of at least 1, if there is one.
    fn number(&mut self) -> Read<Option<u64>> {
        let word = self.peek();
        let named = NUMBERS.iter().zip(1..).find(|(name, _)| **name == word).map(|(_, n)| n);
        let n = match named {
            Some(n) => n,
            None if !word.starts_with(|c: char| c.is_ascii_digit()) => return Ok(None),
            None => match word.parse() {
                Ok(0) => return Err(self.wrong("0 is no number of anything; \"nothing\" keeps nothing")),
                Ok(n) => n,
                Err(_) => return Err(self.wrong("that number is too large")),
            },
        };
        self.next += 1;
        Ok(Some(n))
    }

    /// A unit of time in seconds.
    fn unit(&mut self) -> Read<u64> {
        let word = self.peek();
        let size = match word {
            "s" | "sec" | "secs" => 1,
            "min" | "mins" => MINUTE,
            "h" | "hr" | "hrs" | "hourly" => HOUR,
            "d" => DAY,
            "w" => WEEK,
            "y" => YEAR,
            "m" => return Err(self.wrong("this could be minutes or months; write min or month")),
            _ => match word.strip_suffix('s').unwrap_or(word) {
                "second" => 1,
                "minute" => MINUTE,
                "hour" => HOUR,
                "day" => DAY,
                "week" => WEEK,
                "month" => MONTH,
                "year" => YEAR,
                _ => {
                    return Err(self.wrong(
                        "this should be a unit of time: second, minute, hour, day, week, month or year",
                    ));
                }
            },
        };
        self.next += 1;
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn canonical(text: &str) -> String {
        text.parse::<Wish>().unwrap().to_string()
    }

    #[test]
    fn words_are_read_and_said() {
        let long = "all for 1 hour, one a minute for 1 day, one an hour for 1 month, one a day for ever";
        for text in [
            long,
            "All for 1 Hour, ONE A MINUTE for a day, one an hour for a month, one a day for ever",
            "1/minute for 1 day; everything for 60 minutes + 1 per hour for month and one a day for ever",
            "all_for_1_hour+1/min_for_1d+1/h_for_31_days+1/day_for_ever",
            "all for an hour, one every minute for 24 hours, and 24 a day for 1 month, one each day for ever,",
        ] {
            assert_eq!(canonical(text), long, "{text}");
        }
        assert_eq!(canonical("four an hour for two weeks"), "one every 15 minutes for 2 weeks");
        assert_eq!(canonical("one every 90 seconds for 90 seconds"), "one every 90 seconds for 90 seconds");
        assert_eq!(canonical("nothing"), "nothing");
        assert_eq!(canonical(" ALL for ever"), "all for ever");
        assert_eq!("all for ever".parse::<Wish>().unwrap(), Wish::everything());
        assert_eq!(canonical("one a year for 10 years"), "one a year for 10 years");
        assert_eq!(
            Wish::usual().to_string(),
            "all for 1 day, one an hour for 1 month, one a day for 1 year, one a week for ever"
        );
    }

    #[test]
    fn what_adds_nothing_is_left_out() {
        assert_eq!(canonical("one an hour for 1 day, all for 1 week"), "all for 1 week");
        assert_eq!(canonical("all for 1 day, all for 1 day, all for 2 days"), "all for 2 days");
        assert_eq!(
            canonical("one every 7 minutes for 1 day, one every 10 minutes for 1 day"),
            "one every 7 minutes for 1 day, one every 10 minutes for 1 day"
        );
    }

    #[test]
    fn mistakes_are_pointed_at() {
        for (text, part) in [
            ("", ""),
            ("all", ""),
            ("all for", ""),
            ("all for 1 fortnight", "fortnight"),
            ("all for 1 m", "m"),
            ("all for 0 days", "0"),
            ("all for 99999999999999999999 days", "99999999999999999999"),
            ("all for 9999999999999999 years", "9999999999999999"),
            ("one a day", ""),
            ("one a day for ever one a week for ever", "one"),
            ("some for ever", "some"),
            ("one day for ever", "day"),
            ("1/fortnight for ever", "fortnight"),
            ("2/second for ever", "2"),
            ("nothing for 1 day", "for"),
            ("all for 1 day, , one a day for ever", ","),
            ("all for 1 day, Ünsinn", "Ünsinn"),
            ("all for -1 days", "-"),
        ] {
            let e = text.parse::<Wish>().unwrap_err();
            assert_eq!(e.part, part, "{text}: {e}");
            assert_eq!(&text[e.at.clone()], part, "{text}");
        }
        let e = "all for 1 day, one an hour for 1 mouth".parse::<Wish>().unwrap_err();
        assert_eq!(
            e.to_string(),
            "at \"mouth\" (character 34): this should be a unit of time: second, minute, hour, day, week, month or year"
        );
        assert!("all for 1 day,".repeat(100).parse::<Wish>().is_err());
        assert!((1..40).map(|n| format!("all for {n} d,")).collect::<String>().parse::<Wish>().is_err());
    }

    proptest! {
        #[test]
        fn what_is_said_is_read_back(rules in prop::collection::vec((0u64..100_000, 1u64..10_000_000), 0..6)) {
            let wish = Wish::new(rules.into_iter().map(|(e, s)| Rule::one(e, if s > 9_000_000 { u64::MAX } else { s })));
            prop_assert_eq!(wish.to_string().parse::<Wish>().unwrap(), wish);
        }

        #[test]
        fn no_text_does_harm(text in "\\PC{0,60}", words in prop::collection::vec(
            prop::sample::select(vec!["all", "for", "one", "a", "1", "/", "day", "ever", ",", "nothing", "0", "every"]), 0..12)) {
            let _ = text.parse::<Wish>();
            if let Ok(wish) = words.join(" ").parse::<Wish>() {
                prop_assert_eq!(wish.to_string().parse::<Wish>().unwrap(), wish);
            }
        }
    }
}
