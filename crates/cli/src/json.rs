//! JSON that does not command a terminal: of the characters that would, the format asks for some to be written by their
//! numbers only; here all are.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{CompactFormatter, Formatter};

/// Writes a value on one line.
pub fn write(to: impl Write, value: &impl Serialize) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(to, Printable(CompactFormatter)))
}

struct Printable(CompactFormatter);

impl Formatter for Printable {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, to: &mut W, text: &str) -> io::Result<()> {
        let mut rest = text;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| c.is_control()) {
            self.0.write_string_fragment(to, &rest[..at])?;
            write!(to, "\\u{:04x}", u32::from(c))?;
            rest = &rest[at + c.len_utf8()..];
        }
        self.0.write_string_fragment(to, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_printable_and_the_same() {
        let value =
            serde_json::json!({"a\u{9b}": ["\x1b[31m\u{7f}\u{9b}31m", "\u{85}", "\u{e4}\"", 1, null, {}]});
        let mut bytes = Vec::new();
        write(&mut bytes, &value).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(!text.chars().any(char::is_control), "{text:?}");
        assert!(text.contains("\u{e4}"), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
