//! Seeded operation generator and an in-memory POSIX model.
pub mod caps;
pub mod content;
pub mod errno;
pub mod generator;
pub mod golden;
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
