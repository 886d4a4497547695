//! Numbers that must not be mixed up, each a type of its own.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl $name {
            /// The number after this one (saturating: the space is 64 bits wide).
            #[must_use]
            pub fn next(self) -> Self {
                $name(self.0.saturating_add(1))
            }
        }
    };
}

number!(
    /// Disk block number: byte offset on the device divided by the block size.
    BlockNr
);
number!(
    /// Virtual block number: index into the DAT. 0 is never valid and means "no block".
    VBlockNr
);
number!(
    /// Segment number.
    SegNr
);
number!(
    /// Checkpoint number, from 1.
    Cno
);
number!(
    /// Inode number.
    Ino
);
number!(
    /// Sequence number of a full segment.
    LogSeq
);

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(2);
    /// Disk address translation file.
    pub const DAT: Ino = Ino(3);
    /// Checkpoint file.
    pub const CPFILE: Ino = Ino(4);
    /// Segment usage file.
    pub const SUFILE: Ino = Ino(5);
    /// Inode file.
    pub const IFILE: Ino = Ino(6);
    /// First inode number that users' files may have, and the least `s_first_ino` (spec 8.2).
    pub const FIRST_USER: Ino = Ino(11);
}
