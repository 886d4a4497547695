//! What runs while a volume is mounted: requests of the kernel, the log writer, moments mounted
//! beside the live tree, and the control socket.
//!
//! ```text
//! kernel --/dev/fuse--> fuse thread --lock--> Fs (tree) --> Volume (inodes in memory)
//!                           |                                    |
//!                      readers (device, no lock)     log writer thread --> device, flush
//! silt lscp, mkcp, ... --socket--> control threads --lock--^
//! ```

mod account;
mod aside;
mod background;
mod burst;
mod changing;
mod claim;
mod cleanerd_conf;
mod cleaning;
mod closing;
mod config;
mod convert;
mod core;
mod damage;
mod defects;
mod discarder;
mod error;
mod first;
mod fixing;
mod freed;
mod given_up;
mod host;
mod host_space;
mod kept;
mod kernel;
mod ladder;
mod late;
mod loop_handle;
mod moments;
mod mount;
mod notices;
mod opening;
mod pace;
mod pieces;
mod promise;
mod reading;
mod reserving;
mod run;
mod scrub;
mod seeking;
mod slices;
mod space;
mod stepped;
mod tuning;
mod workers;
mod writer;
mod writing;
mod xflags;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod damage_tests;
#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod hanging_tests;
#[cfg(test)]
mod ladder_tests;
#[cfg(test)]
mod large_log_tests;
#[cfg(test)]
mod scrub_tests;

pub use crate::cleanerd_conf::{Conf, ConfError, USUAL};
pub use crate::core::Want;
pub use config::{Config, Moment, MountOptions, OnError};
pub use error::Error;
pub use run::run;
pub use silt_cleaner::Policy;
pub use stepped::Stepped;
pub use tuning::Tuning;
