//! Seeded operation generator and an in-memory POSIX model.
//!
//! ```text
//! Generator --Op--> Model      what must come of it
//!              '--> Target     what came of it: outcomes and manifests must be the same
//! ```
//! * [`op`]: operations as values and as lines of text; [`generator`] makes them from a seed, [`run`] plays them.
//! * [`model`]: the tree in memory; [`caps`] says what the other side can do.
//! * [`target`]: what a file system under test implements; `syscalls` (feature `path`) does so for any directory.
//! * [`manifest`]: what a whole tree looks like, comparable between all who can read it; [`hash`] is how content
//!   is compared.
//!
//! Nothing here knows the file system that it tests. The same seed gives the same history for ever.

pub mod caps;
pub mod content;
pub mod errno;
pub mod generator;
pub mod hash;
pub mod manifest;
pub mod model;
pub mod op;
mod op_text;
pub mod path;
pub mod rng;
pub mod run;
#[cfg(feature = "path")]
pub mod syscalls;
pub mod target;
