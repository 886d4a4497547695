//! The cleaner: which segments are emptied, in what order, and how much at a time.
//!
//! ```text
//! count (one pass over the DAT) -> order by policy -> gather some segments' blocks -> one checkpoint -> gather ..
//! ```
//!
//! Where the blocks of a volume are, [`account()`] says.
//!
//! Which of the past is kept, retention says ([`silt_retention`]) of what [`History`] lists.
//!
//! What moves and how is the engine's ([`silt_engine::clean`]). Here is no clock or lock, and no thread but one that reads
//! a segment ahead where that is asked for: who runs it gives [`Access`] to the volume, and makes the checkpoints itself
//! or with [`run()`]. Memory: 16 bytes a segment for the count, what one checkpoint moves, and two segments of at most 8
//! MiB each.

mod account;
#[cfg(feature = "test-support")]
pub mod agree;
mod ahead;
mod gather;
mod history;
mod moments;
mod past;
mod policy;
mod rotation;
mod run;
pub mod shrink;
mod unwedge;

pub use account::{Account, Counting, account};
pub use gather::{Access, Gatherer, LARGEST, Limits, Medium, Plan, SetAside};
pub use history::{History, Preview, clock, preview};
pub use moments::{Holder, Moments, SOON};
pub use past::{Holding, Past};
pub use policy::{Candidate, Policy, candidates};
pub use run::{Mover, Options, Outcome, Progress, Whole, count, pass, run, run_as_wished};
pub use unwedge::unwedge;

pub use silt_engine::clean::{Cleaned, Salvage, SegmentUsage, Usage};
