//! File systems and other content that mkfs must not overwrite unasked.
//!
//! A table of signatures: where, and which bytes. It holds what is documented by the formats
//! themselves; what it does not know it does not protect, as everywhere.

use silt_device::{Device, Result};
use silt_format::super_block::{self as sb, SuperBlock};

/// Bytes read at the front; every signature below lies within.
const FRONT: u64 = 384 << 10;
/// Bytes that are lost with a bad place, at least.
const SECTOR: usize = 512;
/// Bytes read at the end.
const BACK: u64 = 1 << 20;

/// A signature at a fixed place.
struct Magic {
    at: usize,
    bytes: &'static [u8],
    name: &'static str,
}

const fn magic(at: usize, bytes: &'static [u8], name: &'static str) -> Magic {
    Magic { at, bytes, name }
}

/// Whole-device formats first: a partition table may lie under some of them.
const TABLE: &[Magic] = &[
    magic(0, b"XFSB", "an XFS file system"),
    magic(0x10040, b"_BHRfS_M", "a Btrfs file system"),
    magic(0x400, b"\x10\x20\xF5\xF2", "an F2FS file system"),
    magic(0x400, b"\xE2\xE1\xF5\xE0", "an EROFS file system"),
    magic(3, b"NTFS    ", "an NTFS file system"),
    magic(3, b"EXFAT   ", "an exFAT file system"),
    magic(3, b"ReFS\0\0\0\0", "a ReFS file system"),
    magic(3, b"-FVE-FS-", "a BitLocker volume"),
    magic(0x36, b"FAT12   ", "a FAT file system"),
    magic(0x36, b"FAT16   ", "a FAT file system"),
    magic(0x52, b"FAT32   ", "a FAT file system"),
    magic(0, b"LUKS\xBA\xBE", "a LUKS volume"),
    magic(0x4000, b"SKUL\xBA\xBE", "a LUKS volume"),
    magic(0, b"hsqs", "a SquashFS file system"),
    magic(0, b"sqsh", "a SquashFS file system"),
    magic(0, b"\x45\x3D\xCD\x28", "a CramFS file system"),
    magic(0, b"-rom1fs-", "a romfs file system"),
    magic(0x8001, b"CD001", "an ISO 9660 file system"),
    magic(0x8001, b"BEA01", "a UDF file system"),
    magic(0x8001, b"NSR02", "a UDF file system"),
    magic(0x8001, b"NSR03", "a UDF file system"),
    // bcache and bcachefs share the place; the first is bcache's, which older bcachefs used, too.
    magic(
        0x1018,
        b"\xC6\x85\x73\xF6\x66\xCE\x90\xA9\xD9\x6A\x60\xCF\x80\x3D\xF7\xEF",
        "a bcachefs file system",
    ),
    magic(
        0x1018,
        b"\xC6\x85\x73\xF6\x4E\x1A\x45\xCA\x82\x65\xF5\x7F\x48\xBA\x6D\x81",
        "a bcache or bcachefs device",
    ),
    magic(0x8000, b"JFS1", "a JFS file system"),
    magic(0x10034, b"ReIsErFs", "a ReiserFS file system"),
    magic(0x10034, b"ReIsEr2Fs", "a ReiserFS file system"),
    magic(0x10034, b"ReIsEr3Fs", "a ReiserFS file system"),
    magic(0x10000, b"ReIsEr4", "a Reiser4 file system"),
    magic(0x400, b"H+\0\x04", "an HFS+ file system"),
    magic(0x400, b"HX\0\x05", "an HFS+ file system"),
    magic(0x20, b"NXSB", "an APFS container"),
    magic(0x10000, b"\x01\x16\x19\x70", "a GFS2 file system"),
    magic(0x2000, b"OCFSV2", "an OCFS2 file system"),
    magic(0x1000, b"OCFSV2", "an OCFS2 file system"),
    magic(0x800, b"OCFSV2", "an OCFS2 file system"),
    magic(0x400, b"OCFSV2", "an OCFS2 file system"),
    magic(0, b"\xFC\x4E\x2B\xA9", "a software RAID member"),
    magic(0x1000, b"\xFC\x4E\x2B\xA9", "a software RAID member"),
    magic(0, b"SFOZ", "a zoned file system"),
];

/// What the device holds, with its article, if that is known.
pub fn find(device: &dyn Device) -> Result<Option<&'static str>> {
    find_in(device.len(), |at, bytes| device.read_at(at, bytes))
}

/// The same of a device that is damaged: what of it cannot be read tells nothing.
pub fn find_around_damage(device: &dyn Device) -> Option<&'static str> {
    let read = |at: u64, bytes: &mut [u8]| {
        if device.read_at(at, bytes).is_err() {
            for (n, sector) in (0u64..).zip(bytes.chunks_mut(SECTOR)) {
                if device.read_at(at + n * SECTOR as u64, sector).is_err() {
                    sector.fill(0);
                }
            }
        }
        Ok(())
    };
    find_in(device.len(), read).ok().flatten()
}

fn find_in(len: u64, read_at: impl Fn(u64, &mut [u8]) -> Result<()>) -> Result<Option<&'static str>> {
    let read = |at: u64, size: u64| -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        read_at(at, &mut bytes)?;
        Ok(bytes)
    };
    let front = read(0, len.min(FRONT))?;
    let back_at = len.saturating_sub(BACK);
    let back = read(back_at, len - back_at)?;
    let secondary = if len >= 8192 { sb::secondary_offset(len) } else { 0 };
    let secondary = usize::try_from(secondary.saturating_sub(back_at)).unwrap_or(usize::MAX);
    let found = nilfs(front.get(1024..).unwrap_or_default())
        .or_else(|| ext(&front))
        .or_else(|| TABLE.iter().find(|m| has(&front, m.at, m.bytes)).map(|m| m.name))
        .or_else(|| swap(&front))
        .or_else(|| lvm(&front))
        .or_else(|| zfs(&front, &back, back_at))
        .or_else(|| raid_at_end(&back, back_at, len))
        .or_else(|| partitions(&front, &back))
        // Last: the end of a RAID member may be that of the volume on the array.
        .or_else(|| nilfs(back.get(secondary..).unwrap_or_default()));
    Ok(found)
}

fn has(bytes: &[u8], at: usize, wanted: &[u8]) -> bool {
    bytes.get(at..).is_some_and(|b| b.starts_with(wanted))
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn nilfs(super_block: &[u8]) -> Option<&'static str> {
    let valid = super_block.len() >= sb::SIZE && SuperBlock::parse(super_block).is_ok();
    valid.then_some("a NILFS2 file system")
}

/// The generations of ext differ in their features.
fn ext(front: &[u8]) -> Option<&'static str> {
    const BASE: usize = 0x400;
    if !has(front, BASE + 0x38, &[0x53, 0xEF]) {
        return None;
    }
    let (compat, incompat, ro) =
        (le32(front, BASE + 0x5C), le32(front, BASE + 0x60), le32(front, BASE + 0x64));
    Some(if incompat & 0x8 != 0 {
        "an external journal of an ext file system"
    } else if incompat & !0x17 != 0 || ro & !0x7 != 0 {
        "an ext4 file system"
    } else if compat & 0x4 != 0 {
        "an ext3 file system"
    } else {
        "an ext2 file system"
    })
}

/// The signature ends the first page, whose size depends on the machine.
fn swap(front: &[u8]) -> Option<&'static str> {
    const SIGNATURES: [&[u8]; 4] = [b"SWAPSPACE2", b"SWAP-SPACE", b"S1SUSPEND\0", b"LINHIB0001"];
    let pages = [4096, 8192, 16384, 65536];
    let any = pages.iter().any(|page| SIGNATURES.iter().any(|s| has(front, page - 10, s)));
    any.then_some("a swap area")
}

fn lvm(front: &[u8]) -> Option<&'static str> {
    let any = (0..4).any(|n| has(front, n * 512, b"LABELONE") && has(front, n * 512 + 24, b"LVM2 001"));
    any.then_some("an LVM physical volume")
}

/// Uberblocks of the four labels, in either byte order.
fn zfs(front: &[u8], back: &[u8], back_at: u64) -> Option<&'static str> {
    const LABEL: usize = 256 << 10;
    let uberblock = |bytes: &[u8], at: usize| {
        has(bytes, at, &0x00ba_b10c_u64.to_le_bytes()) || has(bytes, at, &0x00ba_b10c_u64.to_be_bytes())
    };
    let label = |bytes: &[u8], start: usize| (0..128).any(|n| uberblock(bytes, start + LABEL / 2 + n * 1024));
    // The labels at the end are aligned to their size.
    let end = back_at.saturating_add(back.len() as u64) / LABEL as u64 * LABEL as u64;
    let last = usize::try_from(end.saturating_sub(back_at)).unwrap_or(0);
    let ends = [2 * LABEL, LABEL].iter().filter_map(|n| last.checked_sub(*n)).any(|at| label(back, at));
    (label(front, 0) || ends).then_some("a ZFS device")
}

/// md keeps its older super blocks at the end: 0.90 in the last whole 64 KiB but one, 1.0 within
/// the last 12 KiB.
fn raid_at_end(back: &[u8], back_at: u64, len: u64) -> Option<&'static str> {
    const MAGIC: [u8; 4] = [0xFC, 0x4E, 0x2B, 0xA9];
    let old = (len & !0xFFFF).checked_sub(0x1_0000);
    let new = (len.checked_sub(0x2000)).map(|at| at & !0xFFF);
    let any = [old, new]
        .into_iter()
        .flatten()
        .filter_map(|at| usize::try_from(at.checked_sub(back_at)?).ok())
        .any(|at| has(back, at, &MAGIC));
    any.then_some("a software RAID member")
}

fn partitions(front: &[u8], back: &[u8]) -> Option<&'static str> {
    let gpt = has(front, 512, b"EFI PART")
        || has(front, 4096, b"EFI PART")
        || back.len().checked_sub(512).is_some_and(|at| has(back, at, b"EFI PART"))
        || back.len().checked_sub(4096).is_some_and(|at| has(back, at, b"EFI PART"));
    if gpt {
        return Some("a GPT partition table");
    }
    if !has(front, 510, &[0x55, 0xAA]) {
        return None;
    }
    // Boot sectors end like this as well: a table has entries that make sense, and one in use.
    let mut used = false;
    for entry in front.get(446..510)?.chunks_exact(16) {
        let (active, kind) = (*entry.first()?, *entry.get(4)?);
        if active & 0x7F != 0 || (kind != 0 && le32(entry, 12) == 0) {
            return None;
        }
        used |= kind != 0;
    }
    used.then_some("an MBR partition table")
}

#[cfg(test)]
mod tests {
    use super::*;
    use silt_device::MemoryDevice;

    const LEN: u64 = 4 << 20;

    fn with(parts: &[(u64, &[u8])]) -> Option<&'static str> {
        let device = MemoryDevice::new(LEN);
        for (at, bytes) in parts {
            device.write_at(*at, &[bytes]).unwrap();
        }
        find(&device).unwrap()
    }

    #[test]
    fn nothing_is_found_where_nothing_is() {
        assert_eq!(with(&[]), None);
        assert_eq!(find(&MemoryDevice::new(0)).unwrap(), None);
        assert_eq!(find(&MemoryDevice::new(100)).unwrap(), None);
        assert_eq!(with(&[(510, &[0x55, 0xAA])]), None, "a boot sector alone is no partition table");
    }

    #[test]
    fn every_entry_of_the_table_is_found() {
        for m in TABLE {
            assert_eq!(with(&[(m.at as u64, m.bytes)]), Some(m.name), "{}", m.name);
            assert!((m.at + m.bytes.len()) as u64 <= FRONT);
        }
    }

    #[test]
    fn generations_of_ext() {
        let magic: (u64, &[u8]) = (0x438, &[0x53, 0xEF]);
        assert_eq!(with(&[magic]), Some("an ext2 file system"));
        assert_eq!(with(&[magic, (0x45C, &[4])]), Some("an ext3 file system"));
        assert_eq!(with(&[magic, (0x45C, &[4]), (0x460, &[0x42])]), Some("an ext4 file system"));
        assert_eq!(with(&[magic, (0x460, &[8])]), Some("an external journal of an ext file system"));
    }

    #[test]
    fn one_super_block_names_a_volume_but_not_the_member_of_an_array() {
        let parameters = silt_engine::mkfs::Parameters {
            block_size: 1024,
            blocks_per_segment: 16,
            uuid: [1; 16],
            crc_seed: 1,
            now: 1,
            ..silt_engine::mkfs::Parameters::default()
        };
        let device = MemoryDevice::new(LEN);
        silt_engine::mkfs::Plan::new(parameters, LEN).unwrap().write(&device, true).unwrap();
        assert_eq!(find(&device).unwrap(), Some("a NILFS2 file system"));
        device.write_at(1024, &[&[0; 1024]]).unwrap();
        assert_eq!(find(&device).unwrap(), Some("a NILFS2 file system"));
        // The array of one member begins behind its super block and may end with the member.
        device.write_at(4096, &[&[0xFC, 0x4E, 0x2B, 0xA9]]).unwrap();
        assert_eq!(find(&device).unwrap(), Some("a software RAID member"));
    }

    #[test]
    fn odd_places() {
        assert_eq!(with(&[(4086, b"SWAPSPACE2")]), Some("a swap area"));
        assert_eq!(with(&[(65526, b"SWAPSPACE2")]), Some("a swap area"));
        assert_eq!(with(&[(512, b"LABELONE"), (536, b"LVM2 001")]), Some("an LVM physical volume"));
        let uber = 0x00ba_b10c_u64.to_le_bytes();
        for at in [131_072, 131_072 + 5 * 1024, LEN - 524_288 + 131_072, LEN - 262_144 + 131_072] {
            assert_eq!(with(&[(at, &uber)]), Some("a ZFS device"), "{at}");
        }
        let md: &[u8] = &[0xFC, 0x4E, 0x2B, 0xA9];
        for at in [0, 4096, LEN - 65536, LEN - 8192] {
            assert_eq!(with(&[(at, md)]), Some("a software RAID member"), "{at}");
        }
        for at in [512, 4096, LEN - 512] {
            assert_eq!(with(&[(at, b"EFI PART")]), Some("a GPT partition table"), "{at}");
        }
        let mut entry = [0u8; 16];
        (entry[0], entry[4], entry[12]) = (0x80, 0x83, 1);
        assert_eq!(with(&[(446, &entry), (510, &[0x55, 0xAA])]), Some("an MBR partition table"));
    }
}
