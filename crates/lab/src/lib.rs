//! Power cuts, enumerated.
//!
//! ```text
//! workload --driver--> record of every write, flush and discard + history (what was promised when)
//!    record --silt_device::CrashStates--> disks as a cut may leave them
//!      disk --oracle--> what a mount finds; judged by the history
//!   failure --shrink--> a short story
//! ```
//! * [`workload`]: what is done, as steps; [`ace`] makes all short ones, [`random`] long ones, [`failing`] long ones on
//!   devices that fail.
//! * [`driver`] plays one on a recorded device, through the log writer that runs behind a mount;
//!   [`history`] is what it remembers.
//! * [`oracle`] looks at a disk and judges what it sees; [`bare`] does so for mkfs, [`mending`] for repair.
//! * [`campaign`] runs many on all processors and counts; [`shrink`] makes a failing one small.
//!
//! Everything is decided by seeds: a workload gives the same record each time. This is an instrument of tests: what
//! only a bug in it or in Silt can cause ends a workload as a failure, not the program.

pub mod ace;
pub mod bare;
pub mod campaign;
pub mod driver;
pub mod failing;
pub mod history;
pub mod mending;
pub mod oracle;
pub mod random;
pub mod shrink;
pub mod workload;

pub use campaign::{Campaign, Plan, Tally};
pub use shrink::Story;
pub use workload::{Step, Workload};

/// Why a workload could not be played, or what is wrong with a disk; a sentence or several lines.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

impl Failure {
    /// With these words.
    pub fn new(what: impl Into<String>) -> Self {
        Failure(what.into())
    }

    /// The same, with where it happened before it.
    #[must_use]
    pub fn at(self, place: &str) -> Self {
        Failure(format!("{place}: {}", self.0))
    }
}

/// What may be a [`Failure`].
pub type Result<T> = std::result::Result<T, Failure>;

/// Makes a failure of another error, with where it happened.
pub(crate) trait During<T> {
    fn during(self, place: &str) -> Result<T>;
}

impl<T, E: std::fmt::Display> During<T> for std::result::Result<T, E> {
    fn during(self, place: &str) -> Result<T> {
        self.map_err(|e| Failure(format!("{place}: {e}")))
    }
}
