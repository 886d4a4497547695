//! For every invariant a volume that breaks it, and the proof that the check says so.
//!
//! Each case begins with a golden volume, changes a few bytes, makes the checksums around them
//! right again (unless they are the point), and must raise the count of its invariant. What mends
//! volumes is tested with the same cases.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // test support

pub mod checkpoints;
pub mod dat;
pub mod directories;
pub mod inodes;
pub mod logs;
pub mod maps;
#[cfg(test)]
mod mutation;
#[cfg(test)]
mod past;
#[cfg(test)]
mod recovery;
pub mod super_blocks;
#[cfg(test)]
mod tests;
pub mod usage;

use crate::surgeon::Surgeon;

/// (identifier, golden volume, what to do to it).
pub type Case = (&'static str, &'static str, fn(&mut Surgeon));
