//! The engine alone: no names, no threads, no clock.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

mod common;
mod cuts;
mod older;
mod recover;
mod redo;
mod snapshots;
mod volume;
