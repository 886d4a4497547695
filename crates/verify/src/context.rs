//! What all parts of a check share.

use silt_format::super_root::SuperRoot;

use crate::Options;
use crate::dat::{Dat, DatState};
use crate::reader::Reader;
use crate::report::Sink;
use crate::search::Log;
use crate::segments::Segments;

/// The state of a running check. Built once the super root is known.
pub(crate) struct Context<'a> {
    pub r: Reader<'a>,
    pub out: &'a Sink,
    pub options: &'a Options,
    /// Number of the latest checkpoint.
    pub cno: u64,
    /// The log that ends with its super root.
    pub latest: Log,
    pub root: SuperRoot,
    pub dat: Dat,
    pub dat_state: DatState,
    pub segments: Segments,
}
