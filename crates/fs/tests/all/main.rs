//! Files and directories on volumes in memory, held against plain models.

#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by panicking

mod common;

mod cleaning;
mod content;
mod damaged;
mod deep;
mod directories;
mod golden;
mod hostile;
mod late;
mod local;
mod model;
mod names;
mod once;
mod parts;
mod shrinking;
mod space;
