//! Repairs, each judged by a check and by what the volume held before.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod ahead;
mod beside;
mod common;
mod copied;
mod cpfile;
mod exchanged;
mod interrupted;
mod kept;
mod limits;
mod making;
mod misplaced;
mod numbers;
mod owners;
mod past;
mod planted;
mod rescued;
mod sectors;
mod synced;
mod twins;
mod types;
mod whole;
