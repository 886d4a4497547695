//! Inode flags as `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR` name them: chattr asks by the first, xfs_io and
//! `file_setattr` set by the second.

use silt_format::inode::flags;

/// Pairs of `FS_*_FL` and `FS_XFLAG_*`.
const PAIRS: [(u32, u32); 5] = [
    (flags::SYNC, 0x20),
    (flags::IMMUTABLE, 0x08),
    (flags::APPEND, 0x10),
    (flags::NODUMP, 0x80),
    (flags::NOATIME, 0x40),
];

/// `FS_XFLAG_*` bits for `FS_*_FL` bits.
pub fn of(inode_flags: u32) -> u32 {
    PAIRS.iter().filter(|(f, _)| inode_flags & f != 0).map(|(_, x)| x).sum()
}

/// Bytes of a `struct fsxattr`.
pub const BYTES: usize = 28;
/// Bits that tell what a file has and nobody sets.
const TOLD: u32 = 0x8000_0002;

/// `FS_*_FL` bits that a `struct fsxattr` asks for, where they were `before`: those without a name in it stay. `None`: it
/// asks for what there is not, as projects and extent sizes.
pub fn wanted(asked: &[u8; BYTES], before: u32) -> Option<u32> {
    let (bits, rest) = asked.split_first_chunk::<4>()?;
    let bits = u32::from_ne_bytes(*bits) & !TOLD;
    // How many extents there are, behind the size of one, is only told.
    let wishes = rest.get(..4)?.iter().chain(rest.get(8..)?);
    let (mut flags, mut known) = (before, 0);
    for (flag, bit) in PAIRS {
        flags = if bits & bit != 0 { flags | flag } else { flags & !flag };
        known |= bit;
    }
    (bits & !known == 0 && wishes.into_iter().all(|b| *b == 0)).then_some(flags)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn flags_are_translated_one_by_one() {
        assert_eq!(of(flags::IMMUTABLE | flags::NODUMP), 0x88);
        assert_eq!(of(flags::DIRSYNC), 0);
    }

    #[test]
    fn what_is_asked_for_is_taken_or_refused_as_a_whole() {
        let asked = |bits: u32, at: usize| {
            let mut asked = [0; BYTES];
            asked[..4].copy_from_slice(&bits.to_ne_bytes());
            asked[at] |= 1;
            asked
        };
        let told = 8; // The number of extents.
        let before = flags::DIRSYNC | flags::NOATIME;
        assert_eq!(
            wanted(&asked(0x88, told), before),
            Some(flags::DIRSYNC | flags::IMMUTABLE | flags::NODUMP)
        );
        assert_eq!(wanted(&asked(TOLD, told), before), Some(flags::DIRSYNC));
        for bits in [0x100, 0x200, 0x8000] {
            assert_eq!(wanted(&asked(bits, told), before), None);
        }
        for at in [4, 12, 16, 27] {
            assert_eq!(wanted(&asked(0x80, at), before), None);
        }
    }
}
