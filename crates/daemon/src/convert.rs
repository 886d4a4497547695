//! Between the kernel's words and those of `fs`.

use std::time::Duration;

use silt_engine::Time;
use silt_format::Ino;
use silt_fs::{Context, SetTime, Stat};
use silt_fuse::{Attr, Entry, NodeId, ROOT_ID, Timestamp};

/// How long the kernel may use what it was told: every change of the tree passes through it, so
/// nothing goes stale but by our own notice.
pub const TTL: Duration = Duration::from_secs(3600);
/// The same of attributes whose count of blocks the next checkpoint puts right.
const TTL_OF_ESTIMATES: Duration = Duration::from_secs(1);

/// The inode of a node. The root is node 1 to the kernel and inode 2 to the format.
pub fn ino(node: NodeId) -> Ino {
    if node == ROOT_ID { Ino::ROOT } else { Ino(node) }
}

/// The node of an inode.
pub fn node(ino: Ino) -> NodeId {
    if ino == Ino::ROOT { ROOT_ID } else { ino.0 }
}

fn timestamp(t: Time) -> Timestamp {
    Timestamp::new(t.secs, t.nanos)
}

/// A time as `fs` takes it.
pub fn time(t: Timestamp) -> Time {
    Time { secs: t.secs, nanos: t.nanos }
}

/// A time to set as `fs` takes it.
pub fn set_time(t: silt_fuse::SetTime) -> SetTime {
    match t {
        silt_fuse::SetTime::Now => SetTime::Now,
        silt_fuse::SetTime::At(t) => SetTime::At(time(t)),
    }
}

/// Device number in the kernel's 32-bit encoding.
pub fn encode_rdev((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// Device number from the kernel's 32-bit encoding.
pub fn decode_rdev(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00))
}

/// Attributes for the kernel.
pub fn attr(s: &Stat) -> Attr {
    Attr {
        ino: s.ino.0,
        size: s.size,
        blocks: s.blocks,
        atime: timestamp(s.atime),
        mtime: timestamp(s.mtime),
        ctime: timestamp(s.ctime),
        mode: s.mode,
        nlink: s.links,
        uid: s.uid,
        gid: s.gid,
        rdev: encode_rdev(s.device),
        blksize: s.block_size,
    }
}

/// How long the kernel may use these attributes.
pub fn attr_ttl(s: &Stat) -> Duration {
    if s.counted { TTL } else { TTL_OF_ESTIMATES }
}

/// An entry for the kernel.
pub fn entry(s: &Stat) -> Entry {
    Entry {
        node: node(s.ino),
        generation: u64::from(s.generation),
        attr: attr(s),
        attr_ttl: attr_ttl(s),
        entry_ttl: TTL,
    }
}

/// An entry whose inode cannot be used, with the type bits its directory holds (0: taken for a regular file):
/// enough to remove it. Everything else is asked for again each time, and is an error.
pub fn damaged_entry(ino: Ino, kind: u32) -> Entry {
    let mode = if kind == 0 { libc::S_IFREG } else { kind };
    // The root cannot be an entry: to the kernel it is something that is not there.
    let node = if ino == Ino::ROOT { NodeId::MAX } else { node(ino) };
    Entry {
        node,
        generation: 0,
        attr: Attr { ino: ino.0, mode, nlink: 1, blksize: 4096, ..Attr::default() },
        attr_ttl: Duration::ZERO,
        entry_ttl: Duration::ZERO,
    }
}

/// An entry that names something else's inode: only its name can be removed.
pub fn nothing(kind: u32) -> Entry {
    Entry { node: NodeId::MAX, ..damaged_entry(Ino(NodeId::MAX), kind) }
}

/// The caller as `fs` knows it. The kernel has applied the umask and checked permissions.
pub fn context(c: &silt_fuse::Context) -> Context {
    Context {
        uid: c.uid,
        gid: c.gid,
        groups: None,
        umask: 0,
        now: crate::core::now(),
        privileged: c.uid == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_both_ways() {
        for d in [(0, 0), (8, 1), (259, 256), (4095, 0xf_ffff)] {
            assert_eq!(decode_rdev(encode_rdev(d)), d);
        }
    }

    #[test]
    fn the_root_is_node_one() {
        assert_eq!((ino(1), node(Ino::ROOT)), (Ino::ROOT, 1));
        assert_eq!((ino(11), node(Ino(11))), (Ino(11), 11));
    }
}
