//! What all parts of a check share.

use silt_format::super_root::SuperRoot;

use crate::dat::{Dat, DatState};
use crate::reader::Reader;
use crate::report::Sink;
use crate::search::Log;
use crate::segments::Segments;
use crate::shared::Shared;
use crate::{Options, Watch};

/// The state of a running check. Built once the super root is known.
pub(crate) struct Context<'a> {
    pub r: Reader<'a>,
    pub out: &'a Sink,
    pub watch: &'a dyn Watch,
    pub options: &'a Options,
    /// Number of the latest checkpoint.
    pub cno: u64,
    /// The log that ends with its super root.
    pub latest: Log,
    pub root: SuperRoot,
    pub dat: Dat,
    pub dat_state: DatState,
    pub segments: Segments,
    /// Parts of maps that were found sound.
    pub shared: Shared,
}

impl Context<'_> {
    /// Whether to end early; the report remembers it.
    pub fn stop(&self) -> bool {
        let stop = self.watch.stop();
        if stop {
            self.out.stopped();
        }
        stop
    }
}
