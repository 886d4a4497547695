//! A segment that is to be emptied, read in large pieces once some of it is needed.
//!
//! A log that holds something needed is read whole for its checksum, and of most segments that are emptied all logs do. So from
//! the first of them on the rest of the segment comes into memory, and what is needed is taken from there: a request
//! for each summary and each run of blocks would have the device wait for the cleaner, and the system's page cache fetch
//! around each what nobody asks for.

use std::ops::Range;
use std::sync::Arc;

use silt_device::{Device, Kind};

use crate::live::Source;

/// Bytes in memory at most.
const MOST: u64 = 8 << 20;
/// Alignment of memory that a device can fill as it is.
const ALIGN: usize = 4096;

/// See the module. Memory: 8 MiB.
pub(super) struct Window {
    device: Arc<dyn Device>,
    /// What was written of the segment ends here, in bytes.
    end: u64,
    /// Large pieces are read.
    streams: bool,
    /// They were wanted.
    needed: bool,
    /// What is in memory, in bytes of the device, and where in `bytes` it begins.
    held: Range<u64>,
    skip: usize,
    bytes: Vec<u8>,
}

impl Window {
    /// On a segment of which what was written ends at byte `end`.
    pub fn new(device: Arc<dyn Device>, end: u64) -> Self {
        Window { device, end, streams: false, needed: false, held: 0..0, skip: 0, bytes: Vec::new() }
    }

    /// Some of it is needed: from now on large pieces are read.
    pub fn stream(&mut self) {
        self.streams |= !self.needed;
        self.needed = true;
    }

    /// Reads from a byte on, whether or not any of it will be needed.
    pub fn load_from(&mut self, at: u64) {
        self.streams = true;
        let _ = self.load(at, 0);
    }

    /// Nothing more is read than is asked for.
    pub fn only_what_is_asked_for(&mut self) {
        self.needed = true;
        self.streams = false;
    }

    /// Whether some of it was needed.
    pub fn was_needed(&self) -> bool {
        self.needed
    }

    /// The bytes of a range, read with what follows. `None` where it is too long, or a place in it or behind it is bad:
    /// whoever wants it has to ask the device for just that.
    pub fn get(&mut self, range: Range<u64>) -> Option<&[u8]> {
        if !self.holds(&range) {
            self.load(range.start, range.end.checked_sub(range.start)?)?;
        }
        let from = self.skip + usize::try_from(range.start - self.held.start).ok()?;
        let len = usize::try_from(range.end - range.start).ok()?;
        self.bytes.get(from..from.checked_add(len)?)
    }

    fn holds(&self, range: &Range<u64>) -> bool {
        !self.held.is_empty() && self.held.start <= range.start && range.end <= self.held.end
    }

    fn load(&mut self, from: u64, least: u64) -> Option<()> {
        let len = MOST.min(self.end.saturating_sub(from));
        if !self.streams || len == 0 || least > len {
            return None;
        }
        let n = usize::try_from(len).ok()?;
        if self.bytes.len() < n + ALIGN {
            self.bytes = vec![0; n + ALIGN];
            self.skip = self.bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        }
        self.held = 0..0;
        let to = self.bytes.get_mut(self.skip..self.skip + n)?;
        if self.device.read_kind(Kind::Logs, from, to).is_err() {
            // From here on piece by piece, so that a bad place is felt only where it is.
            self.streams = false;
            return None;
        }
        self.held = from..from + len;
        Some(())
    }
}

impl Source for Window {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> silt_device::Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        if let Some(bytes) = self.get(offset..end) {
            buf.copy_from_slice(bytes);
            return Ok(());
        }
        self.device.read_kind(Kind::Logs, offset, buf)
    }
}
