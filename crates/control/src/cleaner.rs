//! What the cleaner of a mounted volume goes by, and what it has done.

use serde::{Deserialize, Serialize};
use silt_names::ByteName;

use crate::retention::Source;

/// Something, and who said it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said<T> {
    pub value: T,
    pub from: Source,
}

impl<T: Default> Default for Said<T> {
    fn default() -> Self {
        Said { value: T::default(), from: Source::Default }
    }
}

/// How fast, where a file says it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Segments that one step empties.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segments: Option<u64>,
    /// Rest after a step, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<f64>,
    /// Blocks of a segment that are to be gained at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least: Option<u64>,
}

/// What was done since the volume was mounted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Checkpoints that the cleaner made.
    pub steps: u64,
    /// Segments that it emptied.
    pub segments: u64,
    /// Blocks that it copied, those of the DAT excepted.
    pub moved: u64,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cleaner {
    /// It was not turned off (`nogc`).
    pub on: bool,
    /// A file that it goes by.
    #[serde(flatten, with = "silt_names::file", skip_serializing_if = "Option::is_none")]
    pub file: Option<ByteName>,
    /// The order.
    pub policy: Said<String>,
    /// It begins with fewer clean segments than these; none: always.
    pub begins_below: Said<Option<u64>>,
    /// It ends with so many; none: with nothing left to gain.
    pub ends_at: Said<Option<u64>>,
    /// Seconds between looks.
    pub look: Said<f64>,
    /// How fast it goes, and how fast where little is clean.
    #[serde(default)]
    pub usual: Pace,
    #[serde(default)]
    pub short: Pace,
    /// What of the file nobody understands, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
    /// What it has done.
    #[serde(default)]
    pub work: Work,
}
