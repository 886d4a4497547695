//! Inode flags as `FS_IOC_FSGETXATTR` names them: chattr asks by that first.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_translated_one_by_one() {
        assert_eq!(of(flags::IMMUTABLE | flags::NODUMP), 0x88);
        assert_eq!(of(flags::DIRSYNC), 0);
    }
}
