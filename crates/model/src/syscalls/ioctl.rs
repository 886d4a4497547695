//! The requests of `ioctl(2)` that a file's attributes and extents need.

use std::os::fd::BorrowedFd;

use rustix::io::Result;
use rustix::ioctl::{Getter, Opcode, Setter, Updater, ioctl, opcode};

const GETFLAGS: Opcode = opcode::read::<libc_long>(b'f', 1);
const SETFLAGS: Opcode = opcode::write::<libc_long>(b'f', 2);
const GETVERSION: Opcode = opcode::read::<libc_long>(b'v', 1);
const FIEMAP: Opcode = opcode::read_write::<FiemapHead>(b'f', 11);

/// The type that the codes of the flag requests are made from; what they move is an `int`.
#[allow(non_camel_case_types)]
type libc_long = i64;

/// Inode flags.
pub(super) fn flags(fd: BorrowedFd<'_>) -> Result<u32> {
    // SAFETY: the request stores an int, whatever its code says.
    unsafe { ioctl(fd, Getter::<GETFLAGS, u32>::new()) }
}

/// Sets the inode flags.
pub(super) fn set_flags(fd: BorrowedFd<'_>, flags: u32) -> Result<()> {
    // SAFETY: the request reads an int, whatever its code says.
    unsafe { ioctl(fd, Setter::<SETFLAGS, u32>::new(flags)) }
}

/// Inode generation.
pub(super) fn generation(fd: BorrowedFd<'_>) -> Result<u32> {
    // SAFETY: the request stores an int, whatever its code says.
    unsafe { ioctl(fd, Getter::<GETVERSION, u32>::new()) }
}

/// How many extents one request asks for.
const EXTENTS: usize = 64;
/// Everything dirty shall be written first, so that it has a place.
const FIEMAP_FLAG_SYNC: u32 = 1;
/// No extent follows.
const FIEMAP_EXTENT_LAST: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FiemapHead {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct Fiemap {
    head: FiemapHead,
    extents: [FiemapExtent; EXTENTS],
}

/// The stretches of a file between `from` and `to` that hold data, as (offset, length) in bytes, ascending; they
/// may stick out at both ends.
pub(super) fn extents(fd: BorrowedFd<'_>, from: u64, to: u64) -> Result<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    let mut start = from;
    while start < to {
        let mut map = Fiemap {
            head: FiemapHead {
                start,
                length: to - start,
                flags: FIEMAP_FLAG_SYNC,
                count: EXTENTS as u32,
                ..FiemapHead::default()
            },
            extents: [FiemapExtent::default(); EXTENTS],
        };
        // SAFETY: the request fills at most `count` extents behind the head, which is how many there are.
        unsafe { ioctl(fd, Updater::<FIEMAP, Fiemap>::new(&mut map)) }?;
        let mapped = usize::try_from(map.head.mapped).unwrap_or(0).min(EXTENTS);
        let got = &map.extents[..mapped];
        found.extend(got.iter().map(|e| (e.logical, e.length)));
        let Some(last) = got.last() else { break };
        let end = last.logical.saturating_add(last.length);
        if last.flags & FIEMAP_EXTENT_LAST != 0 || end <= start {
            break;
        }
        start = end;
    }
    Ok(found)
}
