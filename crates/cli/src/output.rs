//! Standard output: buffered, and quiet where nobody reads it any more.

use std::io::{self, BufWriter, StdoutLock, Write};

use serde::Serialize;
use silt_control::{ControlError, Kind};

use crate::failure::{Failure, Result};
use crate::json;

/// Standard output.
pub struct Output {
    to: BufWriter<StdoutLock<'static>>,
    /// A line to be written before the first one.
    header: Option<String>,
}

impl Output {
    pub fn new() -> Self {
        Output { to: BufWriter::new(io::stdout().lock()), header: None }
    }

    /// Output that begins with `header`, unless it ends in an error before its first line.
    pub fn with_header(header: String) -> Self {
        Output { header: Some(header), ..Output::new() }
    }

    /// A line. Labels and paths in it come from others: see [`printable`].
    pub fn line(&mut self, text: impl std::fmt::Display) -> Result<()> {
        self.head()?;
        writeln!(self.to, "{}", printable(&text.to_string())).map_err(failed)
    }

    /// Text as it is, for what commands a terminal on purpose: nothing in it may come from others.
    pub fn raw(&mut self, text: &str) -> Result<()> {
        self.head()?;
        self.to.write_all(text.as_bytes()).map_err(failed)
    }

    fn head(&mut self) -> Result<()> {
        match self.header.take() {
            Some(header) => writeln!(self.to, "{header}").map_err(failed),
            None => Ok(()),
        }
    }

    /// A value as one line of JSON.
    pub fn json(&mut self, value: &impl Serialize) -> Result<()> {
        json::write(&mut self.to, value).map_err(|e| failed(e.into()))?;
        self.line("")
    }

    /// Ends the output; without it the last lines may be lost unseen.
    pub fn finish(mut self) -> Result<()> {
        self.head()?;
        self.to.flush().map_err(failed)
    }
}

/// The text without characters that would command a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// So many things, of which `one` is one: `1 directory`, `2 directories`, `2 days`.
pub fn count(n: u64, one: &str) -> String {
    match one.strip_suffix('y') {
        _ if n == 1 => format!("1 {one}"),
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{n} {stem}ies"),
        _ => format!("{n} {one}s"),
    }
}

/// Why standard output could not be written; nothing is to be said where nobody reads it any more.
pub fn failed(e: io::Error) -> Failure {
    if e.kind() == io::ErrorKind::BrokenPipe {
        Failure::Pipe
    } else {
        // Whatever the reason, it is not the volume's: that it is full is said of what standard output leads to.
        let message = ControlError::io("standard output could not be written", &e).message;
        ControlError::new(Kind::Io, message).into()
    }
}

/// A list as a JSON array that is written as its items come.
pub struct JsonList {
    out: Output,
    any: bool,
}

impl JsonList {
    pub fn new(out: Output) -> Self {
        JsonList { out, any: false }
    }

    /// One more item.
    pub fn item(&mut self, value: &impl Serialize) -> Result<()> {
        let before = if self.any { ",\n " } else { "[\n " };
        self.any = true;
        self.out.to.write_all(before.as_bytes()).map_err(failed)?;
        json::write(&mut self.out.to, value).map_err(|e| failed(e.into()))
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        !self.any
    }

    /// Closes the array.
    pub fn finish(mut self) -> Result<()> {
        if self.any {
            self.out.line("")?;
        }
        self.out.line(if self.any { "]" } else { "[]" })?;
        self.out.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_printed_commands_a_terminal() {
        assert_eq!(printable("a\x1b[31mb\nc\u{9b}d \u{e4}"), "a?[31mb?c?d \u{e4}");
    }
}
