//! Reads a volume with no help from the engine and checks every invariant.
//!
//! - [`check()`] looks at everything the format says of a volume and reports what does not hold,
//!   each with the identifier of an invariant in [`invariants`].
//! - [`scrub`] verifies the checksums of logs and says what is hit where one does not match.
//! - [`holdings`] counts who holds the blocks of a volume, for tests of accounts of space.
//! - [`Tree`] is a plain reader of files at the latest moment or at any checkpoint.
//! - `golden`, `surgeon` and `planted` (feature `test-support`) open the golden volumes in memory and damage them.
//!
//! Nothing here trusts a byte: whatever a volume holds, a call returns, and needs memory in
//! proportion to the blocks that are in use.

mod chain;
mod check;
mod checkpoints;
mod context;
mod dat;
mod dirs;
mod error;
mod files;
#[cfg(any(test, feature = "test-support"))]
pub mod golden;
mod headless;
pub mod holdings;
pub mod impact;
mod inode;
pub mod invariants;
mod logs;
mod map;
pub mod meanings;
mod palloc;
mod past;
#[cfg(any(test, feature = "test-support"))]
pub mod planted;
mod promised;
mod reader;
mod records;
mod report;
pub mod rescue;
pub mod rules;
pub mod scrub;
mod search;
mod segments;
mod shared;
mod sparse;
mod super_check;
mod super_root;
#[cfg(any(test, feature = "test-support"))]
pub mod surgeon;
mod tree;
mod tree_check;
mod unreached;
mod watch;

pub use check::{Depth, LogPosition, Mark, Options, check, check_watched, is_no_volume, mark};
pub use error::Error;
pub use headless::Headless;
pub use impact::{Impact, explain};
pub use report::{Finding, Held, Place, Report, Severity, Stats};
pub use search::differs_for_linux;
pub use tree::{Attributes, DirEntry, Moment, Tree, Walked};
pub use unreached::{Behind, Torn, Unreached, behind};
pub use watch::{Unwatched, Watch};
