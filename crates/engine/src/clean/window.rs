//! A segment that is to be emptied, read in pieces once some of it is needed.
//!
//! A log that holds something needed is read whole for its checksum, and of most segments that are emptied all logs do. So from
//! the first of them on the rest of the segment comes into memory, and what is needed is taken from there: a request
//! for each summary and each run of blocks would have the device wait for the cleaner, and the system's page cache fetch
//! around each what nobody asks for.
//!
//! Requests are small and one comes after the other. A device serves them in their order, so a write and a flush that
//! somebody waits for stand behind every read that was made before: a segment of 8 MiB asked for at once fills the queue for
//! 20 ms where a disk reads 400 MB/s.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use silt_device::{Buffer, Device, Kind};

use crate::live::Source;

/// Bytes in memory at most.
const MOST: u64 = 8 << 20;
/// Bytes of a request.
const REQUEST: usize = 256 << 10;
/// Bytes of a request, and what of a segment is in memory if no log is larger, where others are not to feel it.
const SMALL: usize = 128 << 10;

/// Memory that one segment after the other is read into: to give 8 MiB back to the system and to ask for them anew takes a
/// processor for a millisecond, which others may want. Held as long as this is: what two segments took at most.
#[derive(Clone, Default)]
pub struct Reused(Arc<Mutex<[Option<Buffer>; 2]>>);

impl Reused {
    fn take(&self) -> Buffer {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter_mut().find_map(Option::take).unwrap_or_default()
    }

    fn give_back(&self, buffer: Buffer) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = all.iter_mut().find(|place| place.is_none()) {
            *place = Some(buffer);
        }
    }
}

/// See the module. Memory: 8 MiB.
pub(super) struct Window {
    device: Arc<dyn Device>,
    memory: Reused,
    /// What was written of the segment ends here, in bytes.
    end: u64,
    /// More is read than is asked for.
    streams: bool,
    /// Others are not to feel it.
    small: bool,
    /// Some of it was needed.
    needed: bool,
    /// What is in memory, in bytes of the device.
    held: Range<u64>,
    bytes: Option<Buffer>,
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(bytes) = self.bytes.take() {
            self.memory.give_back(bytes);
        }
    }
}

impl Window {
    /// On a segment of which what was written ends at byte `end`.
    pub fn new(device: Arc<dyn Device>, end: u64) -> Self {
        Window {
            device,
            memory: Reused::default(),
            end,
            streams: false,
            small: false,
            needed: false,
            held: 0..0,
            bytes: None,
        }
    }

    /// The same, with the memory of one that is gone.
    pub fn reuse(&mut self, memory: &Reused) {
        self.memory = memory.clone();
    }

    /// Some of it is needed: from now on the rest is read, too.
    pub fn stream(&mut self) {
        self.streams |= !self.needed;
        self.needed = true;
    }

    /// Reads from a byte on, whether or not any of it will be needed.
    pub fn load_from(&mut self, at: u64) {
        self.streams = true;
        let _ = self.load(at, 0);
    }

    /// From now on little is read at a time, and nothing is fetched besides.
    pub fn by_pieces(&mut self) {
        self.small = true;
    }

    /// Where others are not to feel it, lets go of the processor: whoever is woken on it does not take it from us by himself.
    pub fn give_way(&self) -> impl Fn() + use<> {
        let gentle = self.small;
        move || {
            if gentle {
                std::thread::yield_now();
            }
        }
    }

    fn kind(&self) -> Kind {
        if self.small { Kind::Background } else { Kind::Logs }
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
        let from = usize::try_from(range.start - self.held.start).ok()?;
        let len = usize::try_from(range.end - range.start).ok()?;
        let held = usize::try_from(self.held.end - self.held.start).ok()?;
        self.bytes.as_mut()?.of(held).get(from..from.checked_add(len)?)
    }

    fn holds(&self, range: &Range<u64>) -> bool {
        !self.held.is_empty() && self.held.start <= range.start && range.end <= self.held.end
    }

    fn load(&mut self, from: u64, least: u64) -> Option<()> {
        let wanted = if self.small { least.clamp(SMALL as u64, MOST) } else { MOST };
        let len = wanted.min(self.end.saturating_sub(from));
        if !self.streams || len == 0 || least > len {
            return None;
        }
        let n = usize::try_from(len).ok()?;
        self.held = 0..0;
        let (kind, most) = (self.kind(), if self.small { SMALL } else { REQUEST });
        let give_way = self.give_way();
        let bytes = self.bytes.get_or_insert_with(|| self.memory.take());
        let to = bytes.of(n).get_mut(..n)?;
        let mut at = from;
        let read = to.chunks_mut(most).try_for_each(|part| {
            let read = self.device.read_kind(kind, at, part);
            at = at.saturating_add(part.len() as u64);
            give_way();
            read
        });
        if read.is_err() {
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
        self.device.read_kind(self.kind(), offset, buf)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)] // tests: a surprise is a failure

    use std::sync::Mutex;

    use silt_device::{Capabilities, MemoryDevice, Result};

    use super::*;

    /// Tells what was read of it.
    struct Told {
        inner: MemoryDevice,
        reads: Mutex<Vec<(Kind, Range<u64>)>>,
    }

    impl Device for Told {
        fn len(&self) -> u64 {
            self.inner.len()
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
            self.read_kind(Kind::Data, offset, buf)
        }
        fn read_kind(&self, kind: Kind, offset: u64, buf: &mut [u8]) -> Result<()> {
            self.reads.lock().unwrap().push((kind, offset..offset + buf.len() as u64));
            self.inner.read_at(offset, buf)
        }
        fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
            self.inner.write_at(offset, bufs)
        }
        fn flush(&self) -> Result<()> {
            self.inner.flush()
        }
        fn discard(&self, offset: u64, len: u64) -> Result<()> {
            self.inner.discard(offset, len)
        }
        fn capabilities(&self) -> Capabilities {
            self.inner.capabilities()
        }
    }

    const MIB: u64 = 1 << 20;

    fn window(end: u64) -> (Arc<Told>, Window) {
        let inner = MemoryDevice::new(16 * MIB);
        for at in (0..16 * MIB).step_by(4096) {
            inner.write_at(at, &[&(at >> 12).to_le_bytes().repeat(512)]).unwrap();
        }
        let told = Arc::new(Told { inner, reads: Mutex::default() });
        (told.clone(), Window::new(told, end))
    }

    fn is_right(bytes: &[u8], from: u64) {
        for (n, block) in bytes.chunks(4096).enumerate() {
            assert_eq!(block[..8], ((from >> 12) + n as u64).to_le_bytes(), "block {n} from {from}");
        }
    }

    #[test]
    fn requests_are_small_whatever_is_in_memory() {
        let (told, mut window) = window(12 * MIB);
        assert!(window.get(0..4096).is_none(), "nothing of it is needed yet");
        window.stream();
        is_right(window.get(MIB..MIB + 4096).unwrap(), MIB);
        is_right(window.get(8 * MIB..9 * MIB).unwrap(), 8 * MIB);
        let reads = std::mem::take(&mut *told.reads.lock().unwrap());
        assert!(reads.iter().all(|(kind, r)| *kind == Kind::Logs && r.end - r.start <= REQUEST as u64));
        assert_eq!(reads.iter().map(|(_, r)| r.end - r.start).sum::<u64>(), MOST, "each byte once");
    }

    #[test]
    fn little_is_read_beside_those_who_work() {
        let (told, mut window) = window(12 * MIB);
        window.by_pieces();
        let mut header = [0; 4096];
        window.read(MIB, &mut header).unwrap();
        window.stream();
        // Logs of 88 KiB, one behind the other, and one that is larger than what is read otherwise.
        for from in (MIB..2 * MIB).step_by(88 << 10) {
            is_right(window.get(from..from + 4096).unwrap(), from);
            is_right(window.get(from..from + (88 << 10)).unwrap(), from);
        }
        is_right(window.get(4 * MIB..5 * MIB).unwrap(), 4 * MIB);
        assert!(window.get(0..MOST + 4096).is_none(), "too much for memory");
        assert_eq!(window.get(12 * MIB - 4096..12 * MIB).unwrap().len(), 4096);
        assert!(window.get(12 * MIB - 4096..12 * MIB + 4096).is_none(), "behind what was written");
        for (kind, range) in told.reads.lock().unwrap().iter() {
            assert!(
                *kind == Kind::Background && range.end - range.start <= SMALL as u64,
                "{kind:?} {range:?}"
            );
            assert!(range.end <= 12 * MIB);
        }
    }

    #[test]
    fn memory_goes_from_one_segment_to_the_next() {
        let memory = Reused::default();
        let read = |window: &mut Window| {
            window.reuse(&memory);
            window.stream();
            let bytes = window.get(MIB..2 * MIB).unwrap();
            is_right(bytes, MIB);
            bytes.as_ptr()
        };
        let free = || memory.0.lock().unwrap().iter().flatten().count();
        let (mut one, mut other) = (window(12 * MIB).1, window(12 * MIB).1);
        let places = [read(&mut one), read(&mut other)];
        assert!(places[0] != places[1] && free() == 0);
        drop(one);
        assert_eq!(free(), 1);
        let mut next = window(12 * MIB).1;
        assert_eq!(read(&mut next), places[0]);
        assert_eq!(free(), 0);
        let third = read(&mut window(12 * MIB).1);
        assert!(!places.contains(&third));
        drop(next);
        drop(other);
        assert_eq!(free(), 2, "no more than two are kept");
    }
}
