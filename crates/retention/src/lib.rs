//! Retention: how much of the past is kept.
//!
//! ```text
//! words ──> Wish ──> thin(checkpoints, wish, clock) ──> those that are kept
//!             └────> Ladder: ever weaker wishes, down to a floor, for when space is short
//! ```
//!
//! A checkpoint is a number, a time and the size of a change here ([`Point`]); there is no volume or I/O, and no
//! clock but what is told of one. Memory: besides what the caller lists, about 80 bytes a checkpoint while it is thinned.

mod clock;
mod file;
mod pressure;
mod thin;
mod wish;
mod words;

pub use clock::{Clock, Step};
pub use file::{FileError, LARGEST, Settings};
pub use pressure::Ladder;
pub use thin::{Point, thin};
pub use wish::{Rule, Wish};
pub use words::WordsError;
