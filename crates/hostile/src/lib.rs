//! Hostile bytes: volumes changed on purpose, with checksums made right again, and every path of the product that
//! reads or writes a volume run over them.
//!
//! - [`Base`] is a sound volume with an index of its structures; [`Base::names`] lists them.
//! - [`mutate::decode`] turns any bytes into changes of fields ([`patch::Patch`]): the random images and the
//!   coverage-guided fuzzers use the same.
//! - [`paths::PATHS`] is what is run over an image. Add a path there and all instruments use it.
//! - [`judge::judge`] runs the paths and says what was broken: a panic, too many reads, too much processor time or
//!   memory, a write to a volume opened read-only.
//! - [`story`] makes a failing image as simple as possible, tells it and keeps it; [`targets`] holds the bodies of
//!   the fuzz targets, which also run over the committed corpus without a fuzzer.
//!
//! A development instrument: nothing of the product depends on it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // an instrument: it stops where it is broken

pub mod base;
pub mod campaign;
pub mod control;
pub mod corpus;
pub mod fields;
pub mod fuse;
pub mod index;
pub mod judge;
pub mod make;
pub mod memory;
pub mod mutate;
pub mod patch;
pub mod paths;
pub mod seeds;
pub mod story;
pub mod targets;
pub mod watched;
pub mod worst;

pub use base::Base;
pub use judge::{Finding, Verdict, judge};
pub use patch::Patch;
