//! Repairs, each judged by a check and by what the volume held before.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod planted;
/// Where the planted damage expects it.
mod surgeon {
    pub use silt_verify::surgeon::*;
}
mod whole;
