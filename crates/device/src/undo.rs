//! What a device held where it is about to be written, kept in a file, so that it can be put back.
//!
//! ```text
//! head (64 bytes): magic, version, identity of the volume, size of the device, number of records
//! record:          offset, length; for each sector the number of what is to be there, one after another, and checksums
//!                  of those; what was there
//! end:             checksum of everything before
//! ```
//! A super block is written more than once, and the power may go in the midst of a write: so what is found in each sector
//! is told from what somebody else wrote since.
//!
//! The file is whole and durable before the first write: whenever the power goes, it can be applied.
//! Numbers are little-endian. A part that cannot be read is left out: nothing of it can be put back.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::overlay::{Overlay, UNIT};
use crate::{Device, Error, Result};

const MAGIC: &[u8; 8] = b"SILTUNDO";
const VERSION: u32 = 2;
const HEAD: usize = 64;
/// Longest record, in bytes.
const LONGEST: u64 = 64 << 10;
/// What a device writes whole.
const SECTOR: usize = 512;

/// How a device stands to an undo file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nothing of what was to be written is there.
    Before,
    /// All of it is there, and nothing was written since.
    After,
    /// Some of it is there: the work was cut off.
    Between,
    /// At this byte is something else: the device was written since.
    Changed(u64),
}

struct Record {
    offset: u64,
    before: Vec<u8>,
    /// Checksums of what each sector is to hold, one after another.
    after: Vec<Vec<u32>>,
}

/// An undo file.
pub struct Undo {
    /// The volume it belongs to.
    pub identity: [u8; 16],
    size: u64,
    records: Vec<Record>,
}

struct Summed<W> {
    to: W,
    sum: crc32fast::Hasher,
}

impl<W: Write> Summed<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.to.write_all(bytes)
    }
}

/// Saves what `device` holds where `overlay` was written, in a new file, and returns the bytes
/// saved. Durable when it returns. Errors: the file is there already; where it cannot be written to its end it is gone again.
pub fn save(path: &Path, device: &dyn Device, identity: [u8; 16], overlay: &Overlay) -> Result<u64> {
    let failed = |e: io::Error| Error::of_path(path, e);
    let mut records = Vec::new();
    for range in overlay.ranges() {
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(LONGEST);
            records.extend(record(device, overlay, at, len));
            at += len;
        }
    }
    // What it holds is the volume's, which not everybody may read.
    let file = File::options().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    let mut to = Summed { to: BufWriter::new(file), sum: crc32fast::Hasher::new() };
    let mut write = || -> io::Result<u64> {
        let mut head = Vec::with_capacity(HEAD);
        head.extend_from_slice(MAGIC);
        head.extend_from_slice(&u64::from(VERSION).to_le_bytes());
        head.extend_from_slice(&identity);
        head.extend_from_slice(&device.len().to_le_bytes());
        head.extend_from_slice(&(records.len() as u64).to_le_bytes());
        head.resize(HEAD, 0);
        to.put(&head)?;
        let mut saved = 0;
        for r in &records {
            to.put(&r.offset.to_le_bytes())?;
            to.put(&(r.before.len() as u64).to_le_bytes())?;
            for sums in &r.after {
                to.put(&(sums.len() as u32).to_le_bytes())?;
                for sum in sums {
                    to.put(&sum.to_le_bytes())?;
                }
            }
            to.put(&r.before)?;
            saved += r.before.len() as u64;
        }
        let sum = to.sum.clone().finalize();
        to.to.write_all(&sum.to_le_bytes())?;
        to.to.flush()?;
        to.to.get_ref().sync_all()?;
        // The name, too.
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent)?.sync_all()?;
        Ok(saved)
    };
    let saved = write();
    if saved.is_err() {
        // Nothing was written to the device, and part of a file takes nothing back.
        let _ = std::fs::remove_file(path);
    }
    saved.map_err(failed)
}

/// The records of a range: one where all of it can be read, else one for each unit that can.
fn record(device: &dyn Device, overlay: &Overlay, at: u64, len: u64) -> Vec<Record> {
    let read = |at: u64, len: u64| -> Option<Record> {
        let mut before = vec![0; usize::try_from(len).ok()?];
        device.read_at(at, &mut before).ok()?;
        let after = versions(overlay, at, &before);
        Some(Record { offset: at, before, after })
    };
    if let Some(whole) = read(at, len) {
        return vec![whole];
    }
    let units = (at..at + len).step_by(UNIT);
    units.filter_map(|u| read(u, (at + len - u).min(UNIT as u64))).collect()
}

/// Checksums of what the sectors from this byte on will hold, one after another, where now they hold `before`.
fn versions(overlay: &Overlay, at: u64, before: &[u8]) -> Vec<Vec<u32>> {
    let mut now = before.to_vec();
    let mut after = vec![Vec::new(); before.len().div_ceil(SECTOR)];
    overlay.each_write(at..at + before.len() as u64, |offset, bytes| {
        let from = (offset - at) as usize;
        now[from..from + bytes.len()].copy_from_slice(bytes);
        let sectors = from / SECTOR..(from + bytes.len()).div_ceil(SECTOR);
        for (sums, sector) in after[sectors.clone()].iter_mut().zip(now.chunks(SECTOR).skip(sectors.start)) {
            sums.push(crc32fast::hash(sector));
        }
    });
    after
}

impl Undo {
    /// Reads an undo file. Errors: it is none, or not whole. Memory: the file's size.
    pub fn read(path: &Path) -> Result<Undo> {
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|mut f| f.read_to_end(&mut bytes));
        read.map_err(|e| Error::of_path(path, e))?;
        let wrong = |what: &str| Error::of_path(path, io::Error::new(io::ErrorKind::InvalidData, what));
        Self::parse(&bytes).map_err(wrong)
    }

    fn parse(bytes: &[u8]) -> std::result::Result<Undo, &'static str> {
        const CUT: &str = "the undo file is not whole";
        let word = |at: usize| -> Option<u64> {
            bytes.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_le_bytes)
        };
        let half = |at: usize| -> Option<u32> {
            bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes)
        };
        if !bytes.starts_with(MAGIC) {
            return Err("this is no undo file");
        }
        if word(8) != Some(u64::from(VERSION)) {
            return Err("this undo file is of another version");
        }
        let (body, sum) = bytes.split_at_checked(bytes.len().saturating_sub(4)).ok_or(CUT)?;
        if sum != crc32fast::hash(body).to_le_bytes() || body.len() < HEAD {
            return Err(CUT);
        }
        let mut identity = [0; 16];
        identity.copy_from_slice(&bytes[16..32]);
        let (size, count) = (word(32).ok_or(CUT)?, word(40).ok_or(CUT)?);
        let mut records = Vec::new();
        let mut at = HEAD;
        for _ in 0..count {
            let (offset, len) = (word(at).ok_or(CUT)?, word(at + 8).ok_or(CUT)?);
            if len > LONGEST || offset.checked_add(len).is_none_or(|end| end > size) {
                return Err(CUT);
            }
            at += 16;
            let len = len as usize;
            let mut after = Vec::new();
            for _ in 0..len.div_ceil(SECTOR) {
                let n = half(at).ok_or(CUT)? as usize;
                at += 4;
                let sums =
                    body.get(at..n.checked_mul(4).and_then(|n| at.checked_add(n)).ok_or(CUT)?).ok_or(CUT)?;
                at += sums.len();
                after.push(
                    sums.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
                );
            }
            let before = body.get(at..at + len).ok_or(CUT)?.to_vec();
            at += len;
            records.push(Record { offset, before, after });
        }
        if at == body.len() { Ok(Undo { identity, size, records }) } else { Err(CUT) }
    }

    /// Bytes that are put back.
    pub fn bytes(&self) -> u64 {
        self.records.iter().map(|r| r.before.len() as u64).sum()
    }

    /// Size of the device it was made of.
    pub fn device_size(&self) -> u64 {
        self.size
    }

    /// Compares the device with what was there before and after; `last` as for [`Undo::take_back`].
    pub fn standing(&self, device: &dyn Device, last: impl Fn(u64) -> bool) -> Result<Standing> {
        let (mut before, mut after) = (false, false);
        for r in &self.records {
            let mut now = vec![0; r.before.len()];
            device.read_at(r.offset, &mut now)?;
            let sectors = now.chunks(SECTOR).zip(r.before.chunks(SECTOR)).zip(&r.after);
            for (at, ((now, was), sums)) in (r.offset..).step_by(SECTOR).zip(sectors) {
                let sum = crc32fast::hash(now);
                match (now == was, sums.last() == Some(&sum)) {
                    (true, true) => {}
                    (true, false) => before |= !sums.is_empty(),
                    (false, true) => after = true,
                    // Half-way; or taking it back was cut off.
                    (false, false) if sums.contains(&sum) => (before, after) = (true, true),
                    (false, false) if last(r.offset) && now.iter().all(|b| *b == 0) => {
                        (before, after) = (true, true);
                    }
                    (false, false) => return Ok(Standing::Changed(at)),
                }
            }
        }
        Ok(match (before, after) {
            (true, true) => Standing::Between,
            (false, true) => Standing::After,
            (_, false) => Standing::Before,
        })
    }

    /// Puts everything back. What `last` names (by its offset: super blocks) is made invalid before and put back
    /// behind all else, so that nothing half-way can be taken for a volume. Cut off, it can be done again.
    pub fn take_back(&self, device: &dyn Device, last: impl Fn(u64) -> bool) -> Result<()> {
        let last = &last;
        let records = |wanted: bool| self.records.iter().filter(move |r| last(r.offset) == wanted);
        for r in records(true) {
            device.write_at(r.offset, &[&vec![0; r.before.len()]])?;
        }
        device.flush()?;
        for is_last in [false, true] {
            for r in records(is_last) {
                device.write_at(r.offset, &[&r.before])?;
            }
            device.flush()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use super::*;
    use crate::{Fault, MemoryDevice, Times};

    fn content(d: &dyn Device) -> Vec<u8> {
        let mut b = vec![0; d.len() as usize];
        d.read_at(0, &mut b).unwrap();
        b
    }

    #[test]
    fn what_was_written_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("undo");
        let base: Vec<u8> = (0..300_000u32).map(|i| (i * 7 % 253) as u8).collect();
        let device = Arc::new(MemoryDevice::from_bytes(&base));
        let over = Overlay::new(device.clone());
        over.write_at(1024, &[&[1; 1024]]).unwrap();
        over.write_at(100_000, &[&vec![2; 150_000]]).unwrap();
        let saved = save(&path, &*device, [9; 16], &over).unwrap();
        assert!(saved >= 151_024, "{saved}");
        assert!(save(&path, &*device, [9; 16], &over).is_err(), "an undo file is never written over");
        let mode = std::os::unix::fs::MetadataExt::mode(&path.metadata().unwrap());
        assert_eq!(mode & 0o077, 0, "what it holds is for its owner alone");
        let undo = Undo::read(&path).unwrap();
        assert_eq!((undo.identity, undo.bytes(), undo.device_size()), ([9; 16], saved, 300_000));
        assert_eq!(undo.standing(&*device, |_| false).unwrap(), Standing::Before);
        device.write_at(1024, &[&[1; 1024]]).unwrap();
        assert_eq!(undo.standing(&*device, |_| false).unwrap(), Standing::Between);
        over.apply(&*device).unwrap();
        assert_eq!(undo.standing(&*device, |_| false).unwrap(), Standing::After);
        device.write_at(120_000, &[&[3]]).unwrap();
        assert!(matches!(undo.standing(&*device, |_| false).unwrap(), Standing::Changed(_)));
        undo.take_back(&*device, |at| at < 4096).unwrap();
        assert!(content(&*device) == base);
    }

    /// Cut off anywhere, it is known for what it is and can be done again; meanwhile no super block is whole.
    #[test]
    fn taking_back_may_be_cut_off_anywhere() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("undo");
        let base: Vec<u8> = (0..300_000u32).map(|i| (i * 7 % 253 + 1) as u8).collect();
        let over = Overlay::new(Arc::new(MemoryDevice::from_bytes(&base)));
        over.write_at(1024, &[&[1; 1024]]).unwrap();
        over.write_at(100_000, &[&vec![2; 150_000]]).unwrap();
        let device = MemoryDevice::from_bytes(&base);
        save(&path, &device, [9; 16], &over).unwrap();
        over.apply(&device).unwrap();
        let undo = Undo::read(&path).unwrap();
        let last = |at: u64| at < 4096;
        let mut writes = 0;
        loop {
            let cut = Fault::new(device.fork());
            cut.cut_power_after(writes, 0);
            let done = undo.take_back(&cut, last).is_ok();
            cut.heal();
            let mut sb = [0; 1024];
            cut.read_at(1024, &mut sb).unwrap();
            let put_back = sb[..] == base[1024..2048];
            assert!(sb == [0; 1024] || put_back || writes == 0, "after {writes} writes");
            let standing = undo.standing(&cut, last).unwrap();
            assert!(!matches!(standing, Standing::Changed(_)), "after {writes} writes: {standing:?}");
            if put_back {
                assert!(content(&cut) == base);
            }
            if done {
                break;
            }
            writes += 1;
        }
        assert!(writes > 3, "{writes}");
    }

    /// Cut off anywhere, in the midst of a write as well, what is there is told from what others wrote.
    #[test]
    fn writing_may_be_cut_off_anywhere() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("undo");
        let base: Vec<u8> = (0..307_200u32).map(|i| (i * 7 % 253 + 1) as u8).collect();
        let over = Overlay::new(Arc::new(MemoryDevice::from_bytes(&base)));
        over.write_at(1024, &[&[1; 1024]]).unwrap();
        over.write_at(102_400, &[&vec![2; 50_176]]).unwrap();
        over.flush().unwrap();
        over.write_at(1024, &[&[3; 1024]]).unwrap();
        over.write_at(152_576, &[&vec![4; 50_176]]).unwrap();
        over.write_at(1024, &[&[5; 1024]]).unwrap();
        let device = MemoryDevice::from_bytes(&base);
        save(&path, &device, [9; 16], &over).unwrap();
        let undo = Undo::read(&path).unwrap();
        let mut between = 0;
        for writes in 0..=5 {
            for sectors in [0, 1, 7, 40] {
                let cut = Fault::new(device.fork());
                cut.cut_power_after(writes, sectors * 512);
                let _ = over.apply(&cut);
                cut.heal();
                let standing = undo.standing(&cut, |_| false).unwrap();
                let at = format!("{writes} writes, {sectors} sectors");
                assert!(!matches!(standing, Standing::Changed(_)), "{at}: {standing:?}");
                between += u32::from(standing == Standing::Between);
                let mut byte = [0];
                cut.read_at(120_000, &mut byte).unwrap();
                cut.write_at(120_000, &[&[byte[0] ^ 9]]).unwrap();
                assert_eq!(
                    undo.standing(&cut, |_| false).unwrap(),
                    Standing::Changed(120_000 / 512 * 512),
                    "{at}"
                );
                undo.take_back(&cut, |at| at < 4096).unwrap();
                assert!(content(&cut) == base, "{at}");
            }
        }
        assert!(between > 10, "{between}");
    }

    #[test]
    fn a_file_that_is_not_whole_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("undo");
        let device = Arc::new(MemoryDevice::new(100_000));
        let over = Overlay::new(device.clone());
        over.write_at(0, &[&[1; 5000]]).unwrap();
        save(&path, &*device, [0; 16], &over).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for len in [0, 7, 8, 63, 64, 80, whole.len() - 1] {
            assert!(Undo::parse(&whole[..len]).is_err(), "{len}");
        }
        for at in [0, 9, 20, 36, 41, 65, 73, 100, whole.len() - 1] {
            let mut b = whole.clone();
            b[at] ^= 1;
            assert!(Undo::parse(&b).is_err(), "byte {at}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("undo");
        let device = Arc::new(Fault::new(MemoryDevice::new(100_000)));
        device.fail_reads(4096..8192, Times::Always);
        let over = Overlay::new(device.clone());
        over.write_at(0, &[&[1; 16_384]]).unwrap();
        assert_eq!(save(&path, &*device, [0; 16], &over).unwrap(), 12_288);
    }
}
