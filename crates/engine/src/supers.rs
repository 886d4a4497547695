//! The two super blocks while a volume is in use (spec 2.5, 2.7).
//!
//! `first` is the copy that was written last (or preferred at open), `second` the other. Updates
//! while mounted go to the older one, so one valid copy exists at every moment.
//!
//! A write is made under the volume's lock and may be done outside of it. One that another has
//! overtaken meanwhile is left out: its bytes hold settings of the past.
//!
//! A copy whose place cannot be written is given up after some tries, and the other one is enough (spec 2.8: so does
//! Linux). What it leads to is reclaimed then, so it must be the one that nobody chooses: the other has a later cursor.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use silt_device::{Device, Operation};
use silt_format::super_block::{self as sb, Copies, Copy, SuperBlock};
use silt_format::{Error as FormatError, Geometry};

use crate::{Error, Result};

/// Writes of a copy that fail, one after the other, before it is given up.
pub const TRIES: u32 = 3;

/// The newest log with a super root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastLog {
    /// First block of the log.
    pub pseg: u64,
    pub seq: u64,
    pub cno: u64,
}

/// The super blocks of an open volume.
#[derive(Debug, Clone)]
pub struct Supers {
    pub first: (Copy, SuperBlock),
    pub second: Option<(Copy, SuperBlock)>,
    /// `s_state` as found.
    pub state_at_open: u16,
    /// Which copy could not be used at open, for a message.
    pub torn: Option<Copy>,
    secondary_offset: u64,
    writes: Arc<Writes>,
}

/// What became of the writes of each copy.
#[derive(Debug, Default)]
struct Made {
    /// How many were made so far.
    number: [u64; 2],
    /// `s_last_seq` of what is on the medium; none where the copy cannot be used.
    sequence: [Option<u64>; 2],
    /// Writes that its place refused since the last that it took.
    refused: [u32; 2],
}

/// Whether its place refused a write, and nothing else is wrong: a flush that failed may have lost logs, which no super block
/// is to be pointed at.
fn is_of_its_place(e: &silt_device::Error) -> bool {
    matches!(e, silt_device::Error::Io { operation: Operation::Write, .. })
}

/// What became of the writes, for all who make some.
#[derive(Debug, Default)]
struct Writes {
    /// Held while a write is done.
    made: Mutex<Made>,
    /// What [`Made::given_up`] came to, for who must not wait for a write: 0 for none, else one more than the index.
    given_up: AtomicUsize,
}

impl Writes {
    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn given_up(&self) -> Option<Copy> {
        match self.given_up.load(Ordering::Acquire) {
            0 => None,
            1 => Some(Copy::Primary),
            _ => Some(Copy::Secondary),
        }
    }
}

impl Made {
    /// The copy that cannot be written, where the other can.
    fn given_up(&self) -> Option<Copy> {
        let lost = |one: Copy, other: Copy| {
            self.refused[index(one)] >= TRIES
                && self.refused[index(other)] == 0
                && self.sequence[index(other)].is_some()
        };
        match () {
            () if lost(Copy::Primary, Copy::Secondary) => Some(Copy::Primary),
            () if lost(Copy::Secondary, Copy::Primary) => Some(Copy::Secondary),
            () => None,
        }
    }
}

/// Reads both copies and chooses (spec 2.5).
pub fn read(device: &dyn Device) -> Result<Supers> {
    let size = device.len();
    let parse = |offset: u64| -> silt_format::Result<SuperBlock> {
        let mut bytes = [0u8; sb::SIZE];
        match device.read_at(offset, &mut bytes) {
            Ok(()) => SuperBlock::parse(&bytes),
            Err(e) => Err(FormatError::corrupt("super block", e.to_string())),
        }
    };
    if size < sb::MIN_DEVICE_SIZE {
        // What was a volume once still has the first copy.
        let corrupt =
            |_| FormatError::corrupt("super block", format!("{size} bytes are too few for a volume"));
        return Err(Error::Unusable(parse(sb::PRIMARY_OFFSET).map_or(FormatError::NotNilfs, corrupt)));
    }
    let secondary_offset = sb::secondary_offset(size);
    let (primary, secondary) = (parse(sb::PRIMARY_OFFSET), parse(secondary_offset));
    let torn = match (&primary, &secondary) {
        (Err(_), Ok(_)) => Some(Copy::Primary),
        (Ok(_), Err(_)) => Some(Copy::Secondary),
        _ => None,
    };
    let Copies { first, second, secondary_usable } =
        sb::choose(primary, secondary, size).map_err(Error::Unusable)?;
    let torn = if secondary_usable { torn } else { torn.filter(|t| *t == Copy::Primary) };
    let state_at_open = first.1.state.get();
    let mut made = Made::default();
    for (copy, block) in std::iter::once(&first).chain(&second) {
        made.sequence[index(*copy)] = Some(block.last_seq.get());
    }
    let writes = Arc::new(Writes { made: Mutex::new(made), ..Writes::default() });
    let mut supers = Supers { first, second, state_at_open, torn, secondary_offset, writes };
    if supers.second.is_none() && secondary_usable {
        // The place is there: the next write of both copies mends it.
        let other = if supers.first.0 == Copy::Primary { Copy::Secondary } else { Copy::Primary };
        let mut copy = supers.first.1.clone();
        copy.last_cno = 0.into();
        supers.second = Some((other, copy));
    }
    Ok(supers)
}

fn index(copy: Copy) -> usize {
    match copy {
        Copy::Primary => 0,
        Copy::Secondary => 1,
    }
}

/// One write of a super block.
#[derive(Debug, Clone)]
pub struct SuperWrite {
    /// Byte offset.
    offset: u64,
    bytes: Box<[u8; sb::SIZE]>,
    copy: Copy,
    /// Its number among the writes of this copy.
    number: u64,
    sequence: u64,
    writes: Arc<Writes>,
}

impl SuperWrite {
    /// Writes it durably, after everything before it is durable. Does nothing if a later write of
    /// the same copy was made meanwhile: that one says all that this one does. Waits while another
    /// is being done.
    pub fn write(&self, device: &dyn Device) -> Result<()> {
        let mut made = self.writes.made();
        if made.number[index(self.copy)] != self.number {
            return Ok(());
        }
        let written = match device.write_durably(self.offset, &self.bytes[..]) {
            Ok(()) => {
                made.sequence[index(self.copy)] = Some(self.sequence);
                made.refused[index(self.copy)] = 0;
                Ok(())
            }
            Err(e) => {
                let refused = &mut made.refused[index(self.copy)];
                *refused = refused.saturating_add(u32::from(is_of_its_place(&e)));
                Err(e.into())
            }
        };
        let given_up = made.given_up().map_or(0, |copy| index(copy) + 1);
        self.writes.given_up.store(given_up, Ordering::Release);
        written
    }

    /// Whether the write failed for its place alone: the other copy may be tried.
    pub fn is_refused(&self, e: &Error) -> bool {
        matches!(e, Error::Device(e) if is_of_its_place(e))
    }

    /// Which copy it is of.
    pub fn copy(&self) -> Copy {
        self.copy
    }
}

impl Supers {
    /// The fixed numbers, checked against the device.
    pub fn geometry(&self, device: &Arc<dyn Device>) -> Result<Geometry> {
        self.first.1.geometry(device.len()).map_err(Error::Unusable)
    }

    /// The copy whose place cannot be written, after some tries; the other one is there.
    pub fn given_up(&self) -> Option<Copy> {
        self.writes.given_up()
    }

    /// The lowest sequence number that a copy on the medium leads to, one whose writing failed as it was before: from
    /// there on recovery may walk. A copy that was given up does not count.
    pub fn oldest_sequence(&self) -> u64 {
        let made = self.writes.made();
        let newest = self.first.1.last_seq.get();
        let distance = |s: &u64| newest.wrapping_sub(*s).cast_signed();
        let given_up = made.given_up().map(index);
        let counts = |(copy, sequence): (usize, Option<u64>)| sequence.filter(|_| Some(copy) != given_up);
        made.sequence.into_iter().enumerate().filter_map(counts).max_by_key(distance).unwrap_or(newest)
    }

    /// Byte offset of a copy.
    pub fn offset(&self, copy: Copy) -> u64 {
        match copy {
            Copy::Primary => sb::PRIMARY_OFFSET,
            Copy::Secondary => self.secondary_offset,
        }
    }

    /// The secondary copy moves to another place (resize).
    pub fn move_secondary(&mut self, device_size: u64) {
        self.secondary_offset = sb::secondary_offset(device_size);
    }

    /// A write of a copy with these contents.
    pub fn emit(&self, copy: Copy, block: &SuperBlock) -> SuperWrite {
        let mut made = self.writes.made();
        let number = &mut made.number[index(copy)];
        *number += 1;
        SuperWrite {
            offset: self.offset(copy),
            bytes: Box::new(block.clone().to_disk()),
            copy,
            number: *number,
            sequence: block.last_seq.get(),
            writes: self.writes.clone(),
        }
    }

    /// Changes the preferred copy with `f`, makes the other equal, and writes both.
    pub fn write_both(&mut self, now: u64, f: impl FnOnce(&mut SuperBlock)) -> Vec<SuperWrite> {
        f(&mut self.first.1);
        self.first.1.wtime = now.into();
        if let Some((_, block)) = &mut self.second {
            *block = self.first.1.clone();
        }
        self.both_as_they_are()
    }

    /// Both copies with what they hold, each pointing at its own log.
    pub fn both_as_they_are(&self) -> Vec<SuperWrite> {
        let second = self.second.as_ref().map(|(copy, block)| self.emit(*copy, block));
        std::iter::once(self.emit(self.first.0, &self.first.1)).chain(second).collect()
    }

    /// Points one copy at a log, and prefers it.
    pub fn write_one(&mut self, copy: Copy, now: u64, last: LastLog, free_blocks: u64) -> SuperWrite {
        if self.first.0 != copy
            && let Some(second) = self.second.take()
        {
            self.second = Some(std::mem::replace(&mut self.first, second));
        }
        let block = &mut self.first.1;
        set_cursor(block, last, free_blocks);
        block.wtime = now.into();
        self.emit(self.first.0, &self.first.1)
    }

    /// Brings the older copy up to date with the newest log; it becomes the preferred one.
    pub fn write_older(&mut self, now: u64, last: LastLog, free_blocks: u64) -> SuperWrite {
        if let Some(second) = self.second.take() {
            let first = std::mem::replace(&mut self.first, second);
            self.second = Some(first);
        }
        // All that is not the cursor is equal in both copies.
        if let Some((_, newer)) = &self.second {
            self.first.1 = newer.clone();
        }
        let block = &mut self.first.1;
        set_cursor(block, last, free_blocks);
        block.wtime = now.into();
        self.emit(self.first.0, &self.first.1)
    }
}

/// Points a super block at a log.
pub fn set_cursor(block: &mut SuperBlock, last: LastLog, free_blocks: u64) {
    block.last_pseg = last.pseg.into();
    block.last_seq = last.seq.into();
    block.last_cno = last.cno.into();
    block.free_blocks_count = free_blocks.into();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use silt_device::{Fault, MemoryDevice, Times};
    use silt_format::inode::RawInode;

    use super::*;
    use crate::inode::Attr;
    use crate::mkfs::{Parameters, Plan};
    use crate::volume::{OpenOptions, Volume};

    /// The other copy may be lost when it is wanted: a copy whose writing failed leads where it led before, and what
    /// recovery walks from there is not to be reclaimed.
    #[test]
    fn a_copy_that_was_not_written_leads_where_it_did() {
        let size = 60 * 16 * 4096;
        let device = Arc::new(Fault::new(MemoryDevice::new(size)));
        let parameters = Parameters { blocks_per_segment: 16, now: 1000, ..Parameters::default() };
        Plan::new(parameters, size).unwrap().write(&*device, false).unwrap();
        let (mut v, _) = Volume::open(device.clone(), &OpenOptions::default()).unwrap();
        v.take_over(2000).unwrap();
        let before = v.protected_sequence();
        for _ in 0..20 {
            let attr = Attr { mode: 0o100_644, links: 1, ..Attr::of(&RawInode::zeroed()) };
            v.create_inode(attr).unwrap();
            v.checkpoint(3000).unwrap();
        }
        assert!(v.last_log().seq > before);
        let writes = v.advance_super_blocks(4000);
        assert_eq!(writes.len(), 2);
        for write in &writes {
            device.fail_writes(0..size, Times::Next(1));
            assert!(write.write(&*device).is_err());
            assert_eq!(v.protected_sequence(), before, "neither is there");
            write.write(&*device).unwrap();
        }
        assert_eq!(v.protected_sequence(), v.last_log().seq);
    }
}
