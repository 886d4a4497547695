//! The file in which a volume has its wish: `.silt/retention`.
//!
//! ```text
//! # a comment
//! all for 1 day, one an hour for 1 month
//! keep: all for 1 hour
//! ```

use crate::wish::Wish;
use crate::words::WordsError;

/// Largest file that is read, in bytes.
pub const LARGEST: usize = 4_096;

/// What a file says; what it says nothing about is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    pub wish: Option<Wish>,
    /// What is kept even where it leaves no space.
    pub floor: Option<Wish>,
}

/// A file that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    #[error("line {line}: {error}")]
    Words { line: usize, error: WordsError },
    #[error("line {line}: there is a {what} already")]
    Twice { line: usize, what: &'static str },
    #[error("it is larger than {LARGEST} bytes")]
    TooLarge,
    #[error("it is no text")]
    NoText,
}

impl Settings {
    /// Reads a file's content.
    pub fn parse(bytes: &[u8]) -> Result<Self, FileError> {
        if bytes.len() > LARGEST {
            return Err(FileError::TooLarge);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| FileError::NoText)?;
        if text.contains('\0') {
            return Err(FileError::NoText);
        }
        let mut settings = Settings::default();
        for (text, line) in text.lines().zip(1..) {
            let text = text.split_once('#').map_or(text, |(before, _)| before).trim();
            if text.is_empty() {
                continue;
            }
            let floor = text.get(..5).filter(|t| t.eq_ignore_ascii_case("keep:")).and_then(|_| text.get(5..));
            let (field, words, what) = match floor {
                Some(words) => (&mut settings.floor, words, "floor"),
                None => (&mut settings.wish, text, "wish"),
            };
            if field.is_some() {
                return Err(FileError::Twice { line, what });
            }
            *field = Some(words.parse().map_err(|error| FileError::Words { line, error })?);
        }
        Ok(settings)
    }

    /// What is to be in the file.
    pub fn text(&self) -> String {
        let mut text = String::from("# What is kept of the past: silt retain says more.\n");
        if let Some(wish) = &self.wish {
            text += &format!("{wish}\n");
        }
        if let Some(floor) = &self.floor {
            text += &format!("keep: {floor}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn files_are_read_back() {
        let wish = Some(Wish::usual());
        let floor = Some("all for 1 hour".parse().unwrap());
        for settings in [
            Settings { wish: wish.clone(), floor: floor.clone() },
            Settings { wish, floor: None },
            Settings { wish: None, floor },
            Settings::default(),
        ] {
            assert_eq!(Settings::parse(settings.text().as_bytes()).unwrap(), settings);
        }
        let by_hand =
            Settings::parse(b"\r\n# mine\r\n1/day for ever # all I need\r\n\r\nKEEP: Nothing").unwrap();
        assert_eq!(by_hand.wish.unwrap().to_string(), "one a day for ever");
        assert_eq!(by_hand.floor, Some(Wish::nothing()));
    }

    #[test]
    fn nonsense_is_told() {
        for (bytes, part) in [
            (&b"all for ever\nall for ever\n"[..], "line 2: there is a wish already"),
            (b"keep: all\n", "line 1: for how long?"),
            (b"\nnonsense", "line 2: at \"nonsense\""),
            (b"\xff", "no text"),
            (b"all for ever\0", "no text"),
            (&[b'\n'; LARGEST + 1], "larger"),
        ] {
            let e = Settings::parse(bytes).unwrap_err().to_string();
            assert!(e.contains(part), "{e}");
        }
    }
}
