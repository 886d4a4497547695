//! The ioctls of block and loop devices, and of files, that rustix has no function for. Each call pairs an opcode with the type that the kernel reads or writes for it.

use std::os::fd::AsFd;

use rustix::io::{self, Errno};
use rustix::ioctl::{Getter, Setter, Updater, ioctl, opcode};

use crate::sysfs::DevNr;

/// Block devices' ioctls.
const BLOCK: u8 = 0x12;

/// Size of a block device in bytes.
pub(crate) fn block_size(fd: impl AsFd) -> io::Result<u64> {
    // The opcode is defined over size_t, the value is a u64 everywhere.
    const BLKGETSIZE64: rustix::ioctl::Opcode = opcode::read::<usize>(BLOCK, 114);
    // SAFETY: BLKGETSIZE64 writes one u64.
    unsafe { ioctl(fd, Getter::<BLKGETSIZE64, u64>::new()) }
}

/// Whether a block device can only be read. The kernel opens it for writing all the same, and refuses each write.
pub(crate) fn read_only(fd: impl AsFd) -> io::Result<bool> {
    const BLKROGET: rustix::ioctl::Opcode = opcode::none(BLOCK, 94);
    // SAFETY: BLKROGET writes one int.
    unsafe { ioctl(fd, Getter::<BLKROGET, i32>::new()) }.map(|r| r != 0)
}

/// Preferred size of a request in bytes, 0 for none.
pub(crate) fn optimal_io(fd: impl AsFd) -> io::Result<u32> {
    const BLKIOOPT: rustix::ioctl::Opcode = opcode::none(BLOCK, 121);
    // SAFETY: BLKIOOPT writes one unsigned int.
    unsafe { ioctl(fd, Getter::<BLKIOOPT, u32>::new()) }
}

/// Whether seeks cost time.
pub(crate) fn rotational(fd: impl AsFd) -> io::Result<bool> {
    const BLKROTATIONAL: rustix::ioctl::Opcode = opcode::none(BLOCK, 126);
    // SAFETY: BLKROTATIONAL writes one unsigned short.
    unsafe { ioctl(fd, Getter::<BLKROTATIONAL, u16>::new()) }.map(|r| r != 0)
}

/// Discards `len` bytes from `offset`, both multiples of the logical block.
pub(crate) fn discard(fd: impl AsFd, offset: u64, len: u64) -> io::Result<()> {
    const BLKDISCARD: rustix::ioctl::Opcode = opcode::none(BLOCK, 119);
    // SAFETY: BLKDISCARD reads two u64, start and length.
    unsafe { ioctl(fd, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) }
}

/// The head of the kernel's `loop_info64`; the rest is not looked at.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    _rest: [u64; 26],
}

/// What lies behind a loop device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoopBacking {
    /// Device that holds the backing file.
    pub dev: DevNr,
    /// The backing file's inode there.
    pub ino: u64,
    /// The device that the backing file is, where it is one.
    pub rdev: DevNr,
}

/// Asks a loop device for its backing file; `None` where it has none.
pub(crate) fn loop_backing(fd: impl AsFd) -> io::Result<Option<LoopBacking>> {
    const LOOP_GET_STATUS64: rustix::ioctl::Opcode = 0x4c05;
    // SAFETY: LOOP_GET_STATUS64 writes one loop_info64, of 232 bytes as `LoopInfo`, all integers.
    let info = unsafe { ioctl(fd, Getter::<LOOP_GET_STATUS64, LoopInfo>::new()) };
    match info {
        Ok(info) => Ok(Some(LoopBacking {
            dev: DevNr::of_kernel(info.device),
            ino: info.inode,
            rdev: DevNr::of_kernel(info.rdevice),
        })),
        Err(Errno::NXIO) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Extents that are asked for at a time.
const EXTENTS: usize = 64;

/// The kernel's `fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    _reserved: [u64; 2],
    flags: u32,
    _rest: [u32; 3],
}

/// The kernel's `fiemap`, and room for extents behind it.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    _reserved: u32,
    extents: [Extent; EXTENTS],
}

/// What a file has of a range on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub start: u64,
    pub end: u64,
    /// Another file has the same.
    pub shared: bool,
}

/// What a file has from `start` on, in bytes, up to `end`, ascending; as much as can be told in one go. Errors: the file system
/// below does not tell.
pub(crate) fn mapped(fd: impl AsFd, start: u64, end: u64) -> io::Result<Vec<Mapped>> {
    const FS_IOC_FIEMAP: rustix::ioctl::Opcode = opcode::read_write::<[u64; 4]>(b'f', 11);
    const SHARED: u32 = 0x2000;
    let mut map = Fiemap {
        start,
        length: end.saturating_sub(start),
        flags: 0,
        mapped: 0,
        count: EXTENTS as u32,
        _reserved: 0,
        extents: [Extent::default(); EXTENTS],
    };
    // SAFETY: FS_IOC_FIEMAP reads the head of a fiemap, of 32 bytes, and writes it and at most `count` extents behind it, all
    // integers.
    unsafe { ioctl(fd, Updater::<FS_IOC_FIEMAP, Fiemap>::new(&mut map)) }?;
    let count = usize::try_from(map.mapped).unwrap_or(EXTENTS).min(EXTENTS);
    let extents = map.extents.iter().take(count);
    Ok(extents
        .map(|e| Mapped {
            start: e.logical,
            end: e.logical.saturating_add(e.length),
            shared: e.flags & SHARED != 0,
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_fills_exactly_this() {
        assert_eq!(size_of::<LoopInfo>(), 232);
        assert_eq!(size_of::<Extent>(), 56);
        assert_eq!(size_of::<Fiemap>(), 32 + EXTENTS * size_of::<Extent>());
    }

    #[test]
    fn a_file_is_no_block_device() {
        let file = tempfile::tempfile().unwrap();
        assert!(block_size(&file).is_err());
        assert!(discard(&file, 0, 512).is_err());
        assert!(loop_backing(&file).is_err());
    }
}
