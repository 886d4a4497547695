//! A file system in memory: what FUSE itself costs, with nothing behind it.

pub mod fs;
pub mod tree;

pub use fs::{Memfs, Settings};
