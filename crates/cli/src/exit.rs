//! Exit codes. They are an interface: programs decide by them.

use silt_control::Kind;

/// All went well.
pub const OK: u8 = 0;
/// Something failed that has no code of its own; of a list, some items failed.
pub const FAILURE: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;

/// Ended by Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// The codes for people, in help texts and man pages.
pub const TABLE: &str = "\
Exit codes:
   0  success
   1  failure that has no code of its own, or some items of a list failed
   2  wrong command line
   3  not a NILFS2 volume
   4  the volume is damaged
   5  the volume is of a kind that this program cannot use
   6  in use
   7  not permitted
   8  no space left
   9  no such file, volume, checkpoint or mount
  10  the device or the operating system failed
  11  read-only
  12  cannot be done here or now
 130  ended by Ctrl-C

Under the names of nilfs-utils every failure is 1, under mount.silt the codes are those of mount(8), under fsck.nilfs2
those of fsck(8).";

/// The code of a kind of failure.
pub fn of(kind: Kind) -> u8 {
    match kind {
        Kind::Other => FAILURE,
        Kind::Invalid => USAGE,
        Kind::NotNilfs => 3,
        Kind::Corrupt => 4,
        Kind::Incompatible => 5,
        Kind::Busy => 6,
        Kind::NotPermitted => 7,
        Kind::NoSpace => 8,
        Kind::NotFound => 9,
        Kind::Io => 10,
        Kind::ReadOnly => 11,
        Kind::Unavailable => 12,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_in_the_table_once() {
        let kinds = [
            Kind::Other,
            Kind::Invalid,
            Kind::NotNilfs,
            Kind::Corrupt,
            Kind::Incompatible,
            Kind::Busy,
            Kind::NotPermitted,
            Kind::NoSpace,
            Kind::NotFound,
            Kind::Io,
            Kind::ReadOnly,
            Kind::Unavailable,
        ];
        let mut codes: Vec<u8> = kinds.iter().map(|k| of(*k)).collect();
        codes.push(OK);
        codes.sort_unstable();
        assert_eq!(codes, (0..=12).collect::<Vec<u8>>());
        for code in codes {
            let lines = TABLE.lines().filter(|l| l.trim_start().starts_with(&format!("{code}  ")));
            assert_eq!(lines.count(), 1, "{code}");
        }
    }
}
