//! Operations on a tree, as values: made by the generator, applied by model and targets, kept as text.

use crate::manifest::Time;
use crate::path::TreePath;

/// How many files can be held open at once (slots `0..SLOTS`).
pub const SLOTS: u8 = 8;

/// A file that exists already: by name, or by the slot in which it is held open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileRef {
    /// Opened by name for this operation alone, symlinks not followed.
    Path(TreePath),
    /// Held open in a slot.
    Slot(u8),
}

/// Objects without content or children.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Character device.
    Char,
    /// Block device.
    Block,
}

/// The flavours of rename.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenameHow {
    /// Replaces the target if there is one.
    Plain,
    /// Fails if there is a target.
    NoReplace,
    /// Swaps the two.
    Exchange,
}

/// The flavours of fallocate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocate {
    /// Make a hole; the size stays.
    Punch,
    /// Make zeroes; the file grows to the end of the range.
    Zero,
    /// Make zeroes; the size stays.
    ZeroKeep,
    /// Reserve; the file grows to the end of the range.
    Extend,
    /// Reserve; the size stays.
    Keep,
}

/// What an [`Op::Many`] does for each of its names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Each {
    /// An empty file.
    Create,
    /// A file with `len` bytes of the pattern `seed + n`.
    Fill {
        /// Bytes.
        len: u64,
        /// Pattern of the first one.
        seed: u64,
    },
    /// A directory.
    Mkdir,
    /// A symlink to this target.
    Symlink(Vec<u8>),
    /// One more name of this file.
    Link(TreePath),
    /// Removes a name that is no directory.
    Unlink,
    /// Removes an empty directory.
    Rmdir,
    /// Moves it to this directory, under the new prefix and the same number.
    Rename(TreePath, Vec<u8>),
}

/// One operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// `open(O_CREAT | O_EXCL)`, closed at once.
    Create {
        /// New name.
        path: TreePath,
        /// Permission bits.
        mode: u32,
    },
    /// Makes a directory.
    Mkdir {
        /// New name.
        path: TreePath,
        /// Permission bits.
        mode: u32,
    },
    /// Makes a symlink.
    Symlink {
        /// New name.
        path: TreePath,
        /// What it points to.
        target: Vec<u8>,
    },
    /// Makes a special file.
    Mknod {
        /// New name.
        path: TreePath,
        /// Its type.
        kind: Special,
        /// Permission bits.
        mode: u32,
        /// Major number of a device, else 0.
        major: u32,
        /// Minor number of a device, else 0.
        minor: u32,
    },
    /// Another name; a symlink itself is linked, not what it points to.
    Link {
        /// Existing name.
        from: TreePath,
        /// New name.
        to: TreePath,
    },
    /// Removes a name.
    Unlink {
        /// The name.
        path: TreePath,
    },
    /// Removes an empty directory.
    Rmdir {
        /// The name.
        path: TreePath,
    },
    /// Moves a name.
    Rename {
        /// Existing name.
        from: TreePath,
        /// New name.
        to: TreePath,
        /// Flavour.
        how: RenameHow,
    },
    /// Writes `len` bytes of the pattern `seed`.
    Write {
        /// Regular file.
        file: FileRef,
        /// Bytes from the start.
        offset: u64,
        /// Bytes, at least 1.
        len: u64,
        /// Pattern; 0 writes zeroes.
        seed: u64,
    },
    /// The same with `O_APPEND`.
    Append {
        /// Regular file, by name.
        path: TreePath,
        /// Bytes, at least 1.
        len: u64,
        /// Pattern; 0 writes zeroes.
        seed: u64,
    },
    /// The same through a shared mapping; the range must lie within the file.
    MapWrite {
        /// Regular file, by name.
        path: TreePath,
        /// Bytes from the start.
        offset: u64,
        /// Bytes, at least 1.
        len: u64,
        /// Pattern; 0 writes zeroes.
        seed: u64,
    },
    /// Sets the size.
    Truncate {
        /// Regular file.
        file: FileRef,
        /// Bytes.
        size: u64,
    },
    /// Reserves, zeroes, punches.
    Fallocate {
        /// Regular file.
        file: FileRef,
        /// Flavour.
        how: Allocate,
        /// Bytes from the start.
        offset: u64,
        /// Bytes, at least 1.
        len: u64,
    },
    /// Reads and tells length and fingerprint.
    Read {
        /// Regular file.
        file: FileRef,
        /// Bytes from the start.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Tells all attributes.
    Stat {
        /// Any name.
        path: TreePath,
    },
    /// Tells the names in a directory.
    List {
        /// Directory.
        path: TreePath,
    },
    /// Tells a symlink's target.
    Readlink {
        /// Symlink.
        path: TreePath,
    },
    /// Sets permission bits, set-id and sticky bits included. Not for symlinks.
    Chmod {
        /// Any name.
        path: TreePath,
        /// Permission bits.
        mode: u32,
    },
    /// Sets owner and group.
    Chown {
        /// Any name.
        path: TreePath,
        /// Owner.
        uid: Option<u32>,
        /// Group.
        gid: Option<u32>,
    },
    /// Sets the modification time (and the access time to the same).
    Utimens {
        /// Any name.
        path: TreePath,
        /// The time.
        mtime: Time,
    },
    /// Sets the inode flags. Regular files and directories only.
    SetFlags {
        /// Name.
        path: TreePath,
        /// All flags that shall be set.
        flags: u32,
    },
    /// `fsync`, of a file or a directory.
    Fsync {
        /// File or directory.
        file: FileRef,
    },
    /// `fdatasync`.
    Fdatasync {
        /// File.
        file: FileRef,
    },
    /// Everything.
    Sync,
    /// Opens for reading and writing and keeps it.
    Open {
        /// A free slot.
        slot: u8,
        /// Regular file.
        path: TreePath,
    },
    /// Opens a file without a name for reading and writing and keeps it.
    Tmpfile {
        /// A free slot.
        slot: u8,
        /// Directory on whose file system it shall be.
        dir: TreePath,
        /// Permission bits.
        mode: u32,
    },
    /// Gives the file in a slot a name.
    LinkSlot {
        /// The slot.
        slot: u8,
        /// New name.
        to: TreePath,
    },
    /// Closes what a slot holds.
    Close {
        /// The slot.
        slot: u8,
    },
    /// One thing for each of the names `prefix0`, `prefix1`, ... (numbers `first..first + count`); stops at the
    /// first error, what was done before stays.
    Many {
        /// The thing.
        each: Each,
        /// Directory of the names.
        dir: TreePath,
        /// Their beginning.
        prefix: Vec<u8>,
        /// First number.
        first: u32,
        /// How many.
        count: u32,
    },
    /// Makes the state durable as a checkpoint. The model counts them from 0.
    Checkpoint,
    /// Makes a checkpoint and keeps it as a snapshot. The model counts them from 0.
    Snapshot,
    /// Removes the snapshot with this number.
    RemoveSnapshot {
        /// Number.
        id: u32,
    },
    /// Closes all slots, unmounts, mounts.
    Remount,
}

impl Each {
    /// The single operation for number `n` of an [`Op::Many`]; a [`Each::Fill`] is two.
    pub fn ops(&self, dir: &TreePath, prefix: &[u8], n: u32) -> [Option<Op>; 2] {
        let name = |prefix: &[u8]| [prefix, n.to_string().as_bytes()].concat();
        let path = dir.join(&name(prefix));
        let one = match self {
            Each::Create | Each::Fill { .. } => Op::Create { path: path.clone(), mode: 0o644 },
            Each::Mkdir => Op::Mkdir { path: path.clone(), mode: 0o755 },
            Each::Symlink(target) => Op::Symlink { path: path.clone(), target: target.clone() },
            Each::Link(from) => Op::Link { from: from.clone(), to: path.clone() },
            Each::Unlink => Op::Unlink { path: path.clone() },
            Each::Rmdir => Op::Rmdir { path: path.clone() },
            Each::Rename(to, prefix) => {
                Op::Rename { from: path.clone(), to: to.join(&name(prefix)), how: RenameHow::Plain }
            }
        };
        let two = match *self {
            Each::Fill { len, seed } if len > 0 => Some(Op::Write {
                file: FileRef::Path(path),
                offset: 0,
                len,
                seed: seed.wrapping_add(u64::from(n)),
            }),
            _ => None,
        };
        [Some(one), two]
    }
}
