//! `nilfs_cleanerd.conf`: what it says of cleaning (spec 13.2), for who has one already.
//!
//! Lines of a key and a value, `#` begins a comment. What makes no sense is an error, a key that nobody knows is told.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use silt_cleaner::Policy;

/// Where the original cleaner has it.
pub const USUAL: &str = "/etc/nilfs_cleanerd.conf";
/// Longest file in bytes.
const LARGEST: u64 = 64 << 10;
/// So many unknown keys are told one by one.
const TOLD: usize = 8;
/// Longest time between two looks, or two steps, in seconds.
const LONGEST: f64 = 86_400.0;
/// Most characters of a word that are shown.
const SHOWN: usize = 40;

/// Keys that are understood and change nothing: how the original cleaner talks and works inside.
const WITHOUT_EFFECT: [&str; 4] = ["log_priority", "use_mmap", "use_set_suinfo", "retry_interval"];

/// A part of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// In hundredths of a percent.
    Share(u64),
    Bytes(u64),
    /// In units: segments, or blocks.
    Units(u64),
}

impl Amount {
    /// In units of `unit` bytes, of which there are `whole`; parts of one count as one.
    pub fn of(self, whole: u64, unit: u64) -> u64 {
        let units = match self {
            Amount::Share(part) => (u128::from(whole) * u128::from(part)).div_ceil(10_000),
            Amount::Bytes(bytes) => u128::from(bytes.div_ceil(unit.max(1))),
            Amount::Units(n) => u128::from(n),
        };
        u64::try_from(units).unwrap_or(u64::MAX).min(whole)
    }

    fn parse(text: &str) -> Option<Self> {
        if let Some(percent) = text.strip_suffix('%') {
            let percent = decimal(percent)?;
            // Not negative and small: exact enough.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in bounds")]
            return (percent <= 100.0).then(|| Amount::Share((percent * 100.0).round() as u64));
        }
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, suffix) = text.split_at_checked(digits)?;
        let number: u64 = number.parse().ok()?;
        let bits = match suffix.trim_end_matches("iB").trim_end_matches('B') {
            "" if suffix.is_empty() => return Some(Amount::Units(number)),
            "" => 0,
            "k" | "K" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            "P" => 50,
            _ => return None,
        };
        number.checked_mul(1 << bits).map(Amount::Bytes)
    }
}

/// How fast.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Speed {
    /// Segments that one step empties.
    pub segments: Option<u64>,
    /// Rest after a step.
    pub interval: Option<Duration>,
    /// Blocks of a segment that are to be gained at least.
    pub least: Option<Amount>,
}

/// What a file says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conf {
    pub path: PathBuf,
    /// Seconds.
    pub protection_period: Option<u64>,
    pub min_clean_segments: Option<Amount>,
    pub max_clean_segments: Option<Amount>,
    pub clean_check_interval: Option<Duration>,
    pub selection_policy: Option<Policy>,
    pub usual: Speed,
    /// The same where little is clean (`mc_`).
    pub short: Speed,
    /// Keys that nobody knows, in sentences.
    pub unknown: Vec<String>,
}

/// Why a file cannot be gone by.
#[derive(Debug, thiserror::Error)]
pub enum ConfError {
    #[error("{}: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{} is no plain file of at most {} KiB", path.display(), LARGEST >> 10)]
    NoFile { path: PathBuf },
    #[error("{}, line {line}: {key} takes {wanted}, and not {found}", path.display())]
    Value { path: PathBuf, line: usize, key: String, found: String, wanted: &'static str },
}

impl Conf {
    /// Of a file.
    pub fn read(path: &Path) -> Result<Self, ConfError> {
        let unreadable = |source| ConfError::Unreadable { path: path.to_owned(), source };
        let no_file = || ConfError::NoFile { path: path.to_owned() };
        // Opening a pipe would wait for who writes to it.
        if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
            return Err(no_file());
        }
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(unreadable)?;
        let read = file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if read as u64 > LARGEST {
            return Err(no_file());
        }
        Conf::parse(path, &String::from_utf8_lossy(&bytes))
    }

    /// Of what is in it.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfError> {
        let mut conf = Conf { path: path.to_owned(), ..Conf::default() };
        let mut more = 0;
        for (n, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let Some(key) = words.next() else { continue };
            let value = words.collect::<Vec<_>>().join(" ");
            match conf.set(key, &value) {
                Ok(true) => {}
                Ok(false) if conf.unknown.len() < TOLD => {
                    let place = path.display();
                    conf.unknown.push(format!("{place}, line {}: nobody knows {}", n + 1, shown(key)));
                }
                Ok(false) => more += 1,
                Err(wanted) => {
                    let found = if value.is_empty() { "nothing".to_owned() } else { shown(&value) };
                    let (path, key) = (path.to_owned(), key.to_owned());
                    return Err(ConfError::Value { path, line: n + 1, key, found, wanted });
                }
            }
        }
        if more > 0 {
            conf.unknown.push(format!("{}: nobody knows {more} more keys", path.display()));
        }
        Ok(conf)
    }

    /// Takes a line; false if nobody knows the key, else what the key takes where that is no value for it.
    fn set(&mut self, key: &str, value: &str) -> Result<bool, &'static str> {
        let (name, speed) = match key.strip_prefix("mc_") {
            Some(name) => (name, &mut self.short),
            None => (key, &mut self.usual),
        };
        match name {
            "nsegments_per_clean" => {
                let n = value.parse().ok().filter(|n| *n > 0);
                speed.segments = Some(n.ok_or("a number of segments, 1 or more")?);
                return Ok(true);
            }
            "cleaning_interval" => {
                speed.interval = Some(seconds(value).ok_or("seconds, at most 86400")?);
                return Ok(true);
            }
            "min_reclaimable_blocks" => {
                let wanted = "a number of blocks, a percentage, or bytes as 64K";
                speed.least = Some(Amount::parse(value).ok_or(wanted)?);
                return Ok(true);
            }
            _ => {}
        }
        let wanted = "a number of segments, a percentage, or bytes as 1G";
        match key {
            "protection_period" => {
                self.protection_period = Some(value.parse().map_err(|_| "a number of seconds")?);
            }
            "min_clean_segments" => self.min_clean_segments = Some(Amount::parse(value).ok_or(wanted)?),
            "max_clean_segments" => self.max_clean_segments = Some(Amount::parse(value).ok_or(wanted)?),
            "clean_check_interval" => {
                let time = seconds(value).filter(|t| *t >= Duration::from_secs(1));
                self.clean_check_interval = Some(time.ok_or("seconds, 1 to 86400")?);
            }
            "selection_policy" => {
                let policy = value.parse().map_err(|_| "timestamp, oldest, greedy or cost-benefit")?;
                self.selection_policy = Some(policy);
            }
            key if WITHOUT_EFFECT.contains(&key) => {}
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// A number that is not negative, without signs, exponents and names.
fn decimal(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.parse().ok().filter(|n: &f64| plain && n.is_finite())
}

fn seconds(text: &str) -> Option<Duration> {
    let n = decimal(text).filter(|n| *n <= LONGEST)?;
    Duration::try_from_secs_f64(n).ok()
}

/// A word in quotes, not all of it where it is long.
fn shown(word: &str) -> String {
    let some: String = word.chars().take(SHOWN).collect();
    if some.len() < word.len() { format!("{some:?}...") } else { format!("{some:?}") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Conf, ConfError> {
        Conf::parse(Path::new("/c"), text)
    }

    #[test]
    fn every_key_is_understood() {
        let text = "# all of them\n\nprotection_period 3600\nmin_clean_segments\t10%  # a tenth\n\
            max_clean_segments 2.5%\nclean_check_interval 10\nselection_policy timestamp\n\
            nsegments_per_clean 2\nmc_nsegments_per_clean 4\ncleaning_interval 5\nmc_cleaning_interval 0.5\n\
            retry_interval 60\nmin_reclaimable_blocks 10%\nmc_min_reclaimable_blocks 64KB\nuse_mmap\n\
            use_set_suinfo\nlog_priority info\n";
        let speed = |segments, millis, least| Speed {
            segments: Some(segments),
            interval: Some(Duration::from_millis(millis)),
            least: Some(least),
        };
        let conf = Conf {
            path: PathBuf::from("/c"),
            protection_period: Some(3600),
            min_clean_segments: Some(Amount::Share(1000)),
            max_clean_segments: Some(Amount::Share(250)),
            clean_check_interval: Some(Duration::from_secs(10)),
            selection_policy: Some(Policy::Oldest),
            usual: speed(2, 5000, Amount::Share(1000)),
            short: speed(4, 500, Amount::Bytes(64 << 10)),
            unknown: Vec::new(),
        };
        assert_eq!(parse(text).unwrap(), conf);
        assert_eq!(parse("").unwrap(), Conf { path: PathBuf::from("/c"), ..Conf::default() });
        assert_eq!(parse("selection_policy greedy").unwrap().selection_policy, Some(Policy::Greedy));
    }

    #[test]
    fn what_makes_no_sense_is_pointed_at() {
        let said = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(
            said("# one\nmin_clean_segments 110%"),
            "/c, line 2: min_clean_segments takes a number of segments, a percentage, or bytes as 1G, and not \"110%\""
        );
        for (key, values) in [
            ("protection_period", &["", "-1", "1h", "1 2"][..]),
            ("min_clean_segments", &["", "x", "-1%", "nan%", "1e1%", "1X", "99999999999P", "%", "B", "5 %"]),
            ("clean_check_interval", &["", "0", "86401", "inf", "-1"]),
            ("nsegments_per_clean", &["", "0", "-1", "1.5", "99999999999999999999"]),
            ("mc_cleaning_interval", &["", "x", "1e3", "86401", "."]),
            ("mc_min_reclaimable_blocks", &["", "101%"]),
            ("selection_policy", &["", "newest", "timestamp greedy"]),
        ] {
            for value in values {
                let said = said(&format!("{key} {value}"));
                let found = if value.is_empty() { "nothing".into() } else { format!("{value:?}") };
                assert!(said.starts_with(&format!("/c, line 1: {key} takes ")), "{said}");
                assert!(said.ends_with(&format!(", and not {found}")), "{said}");
            }
        }
    }

    #[test]
    fn unknown_keys_are_told_and_not_without_end() {
        let conf = parse("nsegment_per_clean 2\nmc_protection_period 3\nprotection_period 7").unwrap();
        assert_eq!(conf.protection_period, Some(7));
        assert_eq!(conf.unknown.len(), 2);
        assert_eq!(conf.unknown[0], "/c, line 1: nobody knows \"nsegment_per_clean\"");
        let conf = parse(&"x\n".repeat(100)).unwrap();
        assert_eq!((conf.unknown.len(), conf.unknown.last().unwrap().contains("92 more")), (TOLD + 1, true));
        assert!(parse(&"x".repeat(9999)).unwrap().unknown[0].len() < 100);
    }

    #[test]
    fn amounts_are_rounded_up_and_no_more_than_there_is() {
        assert_eq!(Amount::Share(1000).of(101, 1 << 23), 11);
        assert_eq!(Amount::Bytes((1 << 23) + 1).of(101, 1 << 23), 2);
        assert_eq!(Amount::Bytes(u64::MAX).of(101, 0), 101);
        assert_eq!(Amount::Share(10_000).of(u64::MAX, 1), u64::MAX);
        assert_eq!(Amount::Units(0).of(101, 1 << 23), 0);
    }

    #[test]
    fn only_plain_files_of_some_length_are_read() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(Conf::read(dir.path()), Err(ConfError::NoFile { .. })));
        assert!(matches!(Conf::read(&dir.path().join("none")), Err(ConfError::Unreadable { .. })));
        assert!(matches!(Conf::read(Path::new("/dev/zero")), Err(ConfError::NoFile { .. })));
        let file = dir.path().join("c");
        std::fs::write(&file, [b"protection_period 5 # M\xfcnchen\n", &[b'#'; 65_000][..]].concat()).unwrap();
        assert_eq!(Conf::read(&file).unwrap().protection_period, Some(5));
        std::fs::write(&file, vec![b'#'; (64 << 10) + 1]).unwrap();
        assert!(matches!(Conf::read(&file), Err(ConfError::NoFile { .. })));
    }

    proptest! {
        #[test]
        fn anything_is_parsed_or_refused(text in "\\PC{0,400}") {
            let _ = parse(&text);
        }

        /// With keys that there are, and values that come near.
        #[test]
        fn so_is_what_looks_like_it(lines in prop::collection::vec((0usize..15, "[ -~]{0,24}", any::<u64>()), 0..30)) {
            let keys = ["protection_period", "min_clean_segments", "max_clean_segments", "clean_check_interval",
                "selection_policy", "nsegments_per_clean", "mc_nsegments_per_clean", "cleaning_interval",
                "mc_cleaning_interval", "retry_interval", "min_reclaimable_blocks", "mc_min_reclaimable_blocks",
                "use_mmap", "mc_", ""];
            for (key, text, number) in &lines {
                for value in [text.clone(), number.to_string(), format!("{number}%"), format!("{}K", number >> 20)] {
                    if let Ok(conf) = parse(&format!("{} {value}", keys[*key])) {
                        let amounts = [conf.min_clean_segments, conf.max_clean_segments, conf.usual.least];
                        for a in amounts.into_iter().flatten() {
                            prop_assert!(a.of(*number, 4096) <= *number);
                        }
                    }
                }
            }
        }
    }
}
