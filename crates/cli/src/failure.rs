//! How a verb ends when it does not end well.

use std::sync::OnceLock;

use silt_control::{ControlError, Kind};

use crate::exit;
use crate::names::Name;
use crate::output::printable;

/// Result of a verb.
pub type Result<T> = std::result::Result<T, Failure>;

/// Why a verb failed.
#[derive(Debug)]
pub enum Failure {
    /// With a sentence.
    Error(ControlError),
    /// Everything has been said already; some items failed.
    Told,
    /// Everything has been said already: nothing of what was asked for is there.
    Missing,
    /// The volume is damaged, and what is wrong has been said.
    Damaged,
    /// Ended by whoever started it, before it was done, and that has been said.
    Interrupted,
    /// The same, with a sentence.
    Ended(String),
    /// As fsck(8) counts; everything has been said already.
    Fsck(u8),
    /// Whoever read our output has gone: nothing to say, nobody to say it to.
    Pipe,
}

impl Failure {
    /// A wrong use of the command line.
    pub fn usage(message: impl Into<String>) -> Self {
        ControlError::new(Kind::Invalid, message).into()
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Error(e) => exit::of(e.kind),
            Failure::Told => exit::FAILURE,
            Failure::Missing => exit::of(Kind::NotFound),
            Failure::Damaged => exit::of(Kind::Corrupt),
            Failure::Interrupted | Failure::Ended(_) => exit::INTERRUPTED,
            Failure::Fsck(code) => *code,
            Failure::Pipe => exit::OK,
        }
    }

    /// Says it on standard error.
    pub fn tell(&self) {
        match self {
            Failure::Error(e) => match otherwise(e.kind) {
                Some(hint) if e.hint.is_none() && by_own_name() => complain(&e.clone().hint(hint)),
                _ => complain(e),
            },
            Failure::Ended(what) => complain(&ControlError::new(Kind::Other, what.as_str())),
            _ => {}
        }
    }
}

/// What to do next where whoever failed could not say more.
fn otherwise(kind: Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::NotPermitted => "become root, or ask whose it is",
        Kind::NoSpace => "make room there, and try again",
        Kind::Busy => "try again when that is done",
        Kind::Io => "the kernel's log (dmesg) may say more",
        Kind::Corrupt => "silt check says what is wrong, silt rescue what can be read",
        Kind::ReadOnly => "unmount it, and mount it for writing where it can be",
        Kind::Incompatible => "a newer version of silt may know it",
        Kind::Invalid => "silt help VERB says what is taken",
        Kind::NotFound => "look whether the name is right",
        Kind::NotNilfs | Kind::Unavailable | Kind::Other => return None,
    })
}

/// What messages begin with: the name this program was called by.
static PREFIX: OnceLock<&'static str> = OnceLock::new();

/// Sets what messages begin with, once.
pub fn set_prefix(prefix: &'static str) {
    let _ = PREFIX.set(prefix);
}

/// Whether this program was called by its own name: what nilfs-utils say is said under their names, and no more.
pub fn by_own_name() -> bool {
    PREFIX.get().is_none_or(|prefix| *prefix == Name::Silt.prefix())
}

/// One sentence on standard error, and what to do next on a second line.
pub fn complain(error: &ControlError) {
    use std::io::Write;
    let prefix = PREFIX.get().copied().unwrap_or("silt");
    let mut to = std::io::stderr().lock();
    // Standard error may be closed; there is nowhere else to say so.
    let _ = writeln!(to, "{prefix}: {}", printable(&error.message));
    if let Some(hint) = &error.hint {
        let _ = writeln!(to, "  ({})", printable(hint));
    }
}

impl From<ControlError> for Failure {
    fn from(e: ControlError) -> Self {
        Failure::Error(e)
    }
}

impl From<silt_device::Error> for Failure {
    fn from(e: silt_device::Error) -> Self {
        Failure::Error(e.into())
    }
}

impl From<silt_engine::Error> for Failure {
    fn from(e: silt_engine::Error) -> Self {
        Failure::Error(e.into())
    }
}
