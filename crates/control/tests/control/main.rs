//! Requests over a volume in memory, and over the socket.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod common;
mod execute;
mod retain;
mod socket;
mod wedged;
