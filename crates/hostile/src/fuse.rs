//! A file system that answers anything, so that requests of any bytes are taken apart and answers are put together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use silt_fuse::{
    Attr, Context, Entry, Errno, FileType, Filesystem, NodeId, Offline, OpenFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyWrite, ReplyXattr, SetAttr, ops,
};

/// See the module.
#[derive(Default)]
pub struct Anything {
    panicked: AtomicBool,
}

fn entry(node: NodeId) -> Entry {
    let attr = Attr { ino: node, mode: 0o100_644, nlink: 1, ..Attr::default() };
    Entry { node, generation: 0, attr, attr_ttl: Duration::MAX, entry_ttl: Duration::ZERO }
}

/// Names are promised to be whole names.
fn check(name: &[u8]) {
    assert!(!name.is_empty() && !name.contains(&0) && !name.contains(&b'/'), "a name that is none: {name:?}");
}

const TTL: Duration = Duration::from_secs(1);

impl Filesystem for Anything {
    fn panicked(&self, _: &'static str) {
        self.panicked.store(true, Relaxed);
    }

    fn lookup(&self, _: &Context, parent: NodeId, name: &[u8], reply: ReplyEntry) {
        check(name);
        if parent & 1 == 0 { reply.negative(TTL) } else { reply.entry(&entry(parent)) }
    }

    fn getattr(&self, _: &Context, node: NodeId, _: Option<u64>, reply: ReplyAttr) {
        reply.attr(&entry(node).attr, TTL);
    }

    fn setattr(&self, _: &Context, node: NodeId, set: &SetAttr, reply: ReplyAttr) {
        for time in [set.atime, set.mtime].into_iter().flatten() {
            if let silt_fuse::SetTime::At(t) = time {
                assert!(t.nanos < 1_000_000_000, "a time that is none");
            }
        }
        reply.attr(&entry(node).attr, TTL);
    }

    fn readlink(&self, _: &Context, node: NodeId, reply: ReplyData) {
        reply.data(&vec![b'x'; (node % 5000) as usize]);
    }

    fn symlink(&self, _: &Context, parent: NodeId, name: &[u8], target: &[u8], reply: ReplyEntry) {
        check(name);
        assert!(!target.contains(&0), "a target with a NUL");
        reply.entry(&entry(parent));
    }

    fn mknod(&self, _: &Context, parent: NodeId, name: &[u8], _: u32, _: u32, reply: ReplyEntry) {
        check(name);
        reply.entry(&entry(parent));
    }

    fn mkdir(&self, _: &Context, parent: NodeId, name: &[u8], _: u32, reply: ReplyEntry) {
        check(name);
        reply.entry(&entry(parent));
    }

    fn unlink(&self, _: &Context, _: NodeId, name: &[u8], reply: ReplyEmpty) {
        check(name);
        reply.ok();
    }

    fn rename(&self, _: &Context, _: NodeId, rename: &ops::Rename<'_>, reply: ReplyEmpty) {
        check(rename.name);
        check(rename.new_name);
        reply.ok();
    }

    fn link(&self, _: &Context, node: NodeId, _: NodeId, name: &[u8], reply: ReplyEntry) {
        check(name);
        reply.entry(&entry(node));
    }

    fn open(&self, _: &Context, node: NodeId, _: &ops::Open, reply: ReplyOpen) {
        reply.opened(node, OpenFlags::empty());
    }

    fn create(&self, _: &Context, parent: NodeId, name: &[u8], _: &ops::Create, reply: ReplyCreate) {
        check(name);
        reply.created(&entry(parent), 1, OpenFlags::empty());
    }

    fn read(&self, _: &Context, node: NodeId, read: &ops::Read, reply: ReplyData) {
        // More than was asked for is the mistake of a file system; less is the end of a file.
        let n = (node % 300_000).min(u64::from(read.size));
        reply.data(&vec![7; n as usize]);
    }

    fn write(&self, _: &Context, _: NodeId, write: &ops::Write<'_>, reply: ReplyWrite) {
        reply.written(u32::try_from(write.data.len()).unwrap_or(u32::MAX));
    }

    fn readdir(&self, _: &Context, node: NodeId, read: &ops::ReadDir, mut reply: ReplyDirectory) {
        for i in 0..node % 300 {
            let name = vec![b'n'; 1 + (read.offset.wrapping_add(i) % 1500) as usize];
            if !reply.add(i + 2, i + 1, FileType::Unknown, &name) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(&self, _: &Context, node: NodeId, read: &ops::ReadDir, mut reply: ReplyDirectoryPlus) {
        for i in 0..node % 300 {
            let name = vec![b'n'; 1 + (read.offset.wrapping_add(i) % 1500) as usize];
            if !reply.add(&entry(i + 2), i + 1, &name) {
                break;
            }
        }
        reply.ok();
    }

    fn setxattr(&self, _: &Context, _: NodeId, set: &ops::SetXattr<'_>, reply: ReplyEmpty) {
        assert!(!set.name.contains(&0), "a name with a NUL");
        reply.error(Errno::EOPNOTSUPP);
    }

    fn getxattr(&self, _: &Context, node: NodeId, name: &[u8], reply: ReplyXattr) {
        assert!(!name.contains(&0), "a name with a NUL");
        reply.value(&vec![1; (node % 5000) as usize]);
    }

    fn ioctl(&self, _: &Context, node: NodeId, _: &ops::Ioctl<'_>, reply: ReplyIoctl) {
        let n = (node % 9000).min(reply.limit() as u64);
        reply.ioctl(0, &vec![3; n as usize]);
    }

    fn lseek(&self, _: &Context, _: NodeId, lseek: &ops::Lseek, reply: ReplyLseek) {
        reply.offset(lseek.offset);
    }
}

/// Serves one request, whole and in parts; panics where serving it did.
pub fn serve(request: &[u8]) {
    let nowhere = open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).expect("/dev/null");
    let fs = Arc::new(Anything::default());
    let offline = Offline::new(fs.clone(), nowhere);
    offline.serve(request);
    let (header, rest) = request.split_at(request.len().min(40));
    // The fixed arguments of the largest operation have 88 bytes; a ring's field holds 128.
    let (arguments, payload) =
        rest.split_at(rest.len().min(usize::from(request.first().copied().unwrap_or(0)) % 129));
    let mut field = [0; 128];
    field[..arguments.len()].copy_from_slice(arguments);
    offline.serve_parts(header, &field, payload);
    assert!(!fs.panicked.load(Relaxed), "a handler panicked");
}
