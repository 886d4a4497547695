//! Whole numbers of the command line.

use std::num::IntErrorKind;

/// Parses one. Errors: what is to be written instead.
pub fn whole<N: TryFrom<u64>>(text: &str) -> std::result::Result<N, String> {
    let too_large = || "that number is too large".to_owned();
    let number: u64 = text.parse().map_err(|e: std::num::ParseIntError| match e.kind() {
        IntErrorKind::PosOverflow => too_large(),
        _ => "write a whole number".to_owned(),
    })?;
    N::try_from(number).map_err(|_| too_large())
}
