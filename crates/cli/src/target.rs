//! Which volume a command means.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use silt_control::{Control, ControlError, Kind, Request, Response, connect, missing, only_mount};
use silt_device::{Access, FileDevice, OpenOptions};
use silt_names::quoted;

use crate::failure::{Failure, Result, by_own_name, complain};
use crate::output::printable;

/// The volume named, or the only one mounted.
pub fn open(named: Option<&Path>) -> Result<Box<dyn Control>> {
    match named {
        Some(path) => Ok(connect(path)?),
        None => Ok(connect(&only_mount()?.dir)?),
    }
}

/// Opens the image or device that was named, past any daemon.
pub fn device(named: &Path, access: Access) -> Result<FileDevice> {
    silt_device::open(named, access, &OpenOptions::default()).map_err(|e| match ControlError::from(e) {
        e if e.kind == Kind::NotFound => missing(named).into(),
        e => e.into(),
    })
}

/// Runs a request, warns of what is to be warned of, and hands the rest to `each`.
pub fn call(
    control: &mut dyn Control,
    request: Request,
    mut each: impl FnMut(Response) -> Result<()>,
) -> Result<()> {
    let mut own = None;
    let result = control.call(request, &mut |part| {
        if let Response::Notice(text) = part {
            eprintln_quiet(&format!("note: {text}"));
            return Ok(());
        }
        each(part).map_err(|failure| {
            let error = match &failure {
                Failure::Error(e) => e.clone(),
                Failure::Told
                | Failure::Missing
                | Failure::Damaged
                | Failure::Interrupted
                | Failure::Ended(_)
                | Failure::Fsck(_)
                | Failure::Pipe => {
                    silt_control::ControlError::new(silt_control::Kind::Other, "the output ended")
                }
            };
            own = Some(failure);
            error
        })
    });
    match own {
        Some(failure) => Err(failure),
        None => Ok(result?),
    }
}

/// A line on standard error, which may be closed. Names and labels in it come from others: see [`printable`].
pub fn eprintln_quiet(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr().lock(), "{}", printable(text));
}

/// Items of a list that failed, each told when it did.
#[derive(Default)]
pub struct Refusals {
    pub all: u64,
    missing: u64,
}

impl Refusals {
    /// Says that one failed.
    pub fn tell(&mut self, what: impl std::fmt::Display, error: &silt_control::ControlError) {
        self.all += 1;
        self.missing += u64::from(error.kind == silt_control::Kind::NotFound);
        refused(what, error);
    }

    /// How a verb ends that was asked for so many.
    pub fn end(&self, asked: u64) -> Result<()> {
        match self.all {
            0 => Ok(()),
            n if n == self.missing && n >= asked => Err(Failure::Missing),
            _ => Err(Failure::Told),
        }
    }
}

/// Says that one item of a list failed.
pub fn refused(what: impl std::fmt::Display, error: &silt_control::ControlError) {
    complain(&error.clone().about(what));
}

/// Takes a volume off the front of arguments that otherwise begin with a number: everything that
/// does not look like an `item`.
pub fn split(
    args: &[std::ffi::OsString],
    item: fn(&str) -> bool,
) -> (Option<PathBuf>, &[std::ffi::OsString]) {
    match args.split_first() {
        Some((first, rest)) if !is(first, item) => (Some(PathBuf::from(first)), rest),
        _ => (None, args),
    }
}

fn is(arg: &OsStr, item: fn(&str) -> bool) -> bool {
    arg.to_str().is_some_and(item)
}

/// Whether an argument is a number.
pub fn is_number(arg: &str) -> bool {
    !arg.is_empty() && arg.bytes().all(|b| b.is_ascii_digit())
}

/// A number from `least` on. Errors: it is none, and `hint` says what helps.
pub fn number(arg: &OsStr, what: &str, least: u64, hint: &str) -> Result<u64> {
    let number = arg.to_str().filter(|a| is_number(a)).and_then(|a| a.parse().ok());
    number
        .filter(|n| *n >= least)
        .ok_or_else(|| unnamed(format!("{}: invalid {what}", arg.to_string_lossy()), hint))
}

/// Nothing, or nothing that makes sense, was named of what `hint` says how to find.
pub fn unnamed(message: impl Into<String>, hint: &str) -> Failure {
    let error = ControlError::new(Kind::Invalid, message);
    if by_own_name() { error.hint(hint).into() } else { error.into() }
}

/// What `command` lists, of the volume that was named or of the only one.
pub fn lists(command: &str, volume: Option<&Path>) -> String {
    let volume = volume.map(|v| format!(" {}", quoted(v))).unwrap_or_default();
    format!("{command}{volume} lists them")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_before_numbers_is_told_apart() {
        let args: Vec<std::ffi::OsString> = ["/dev/x", "3", "4"].iter().map(Into::into).collect();
        let (volume, rest) = split(&args, is_number);
        assert_eq!((volume, rest.len()), (Some(PathBuf::from("/dev/x")), 2));
        let (volume, rest) = split(&args[1..], is_number);
        assert_eq!((volume, rest.len()), (None, 2));
        for (bad, least) in [("99999999999999999999999", 0), ("+3", 0), ("0", 1)] {
            assert!(number(OsStr::new(bad), "number", least, "").is_err(), "{bad}");
        }
        assert!(number(OsStr::new("0"), "number", 0, "").is_ok_and(|n| n == 0));
    }
}
