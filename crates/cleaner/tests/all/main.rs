//! The cleaner on volumes in memory, without a daemon.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod common;

mod account;
mod clocks;
mod cold;
mod freed;
mod hosts;
mod left;
mod listed;
mod reads;
mod short;
mod steps;
mod thinned;
mod wear;
