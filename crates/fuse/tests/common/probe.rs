//! A file system that records what arrives: a root directory, and a file for every name that begins with
//! `file`. Names that begin with `slow` are files whose reads are kept unanswered; `lock` is one whose locks
//! are.

use parking_lot::Mutex;
use silt_fuse::ops::{
    CopyFileRange, Create, Fallocate, Ioctl, Lock, Lseek, Open, Poll, Read, ReadDir, Release, Rename,
    SetXattr, StatxArgs, Write,
};
use silt_fuse::*;
use std::collections::HashMap;
use std::time::Duration;

pub const FLAGS: u32 = 0x10;
const TTL: Duration = Duration::from_secs(3600);

#[derive(Default)]
pub struct Probe {
    pub log: Mutex<Vec<String>>,
    pub kernel: Mutex<Option<KernelInfo>>,
    pub kept: Mutex<HashMap<u64, (NodeId, ReplyData)>>,
    pub waiting: Mutex<HashMap<u64, ReplyEmpty>>,
    pub polls: Mutex<Vec<u64>>,
    pub flags: InitFlags,
    /// Answer opens with handles.
    pub handles: bool,
    /// Refuse to start.
    pub refuse: Option<Errno>,
    pub names: Mutex<Vec<Vec<u8>>>,
}

#[allow(dead_code)] // Each test binary uses a part.
impl Probe {
    pub fn with_flags(flags: InitFlags) -> Self {
        Self { flags, ..Self::default() }
    }

    pub fn log(&self, text: impl Into<String>) {
        self.log.lock().push(text.into());
    }

    /// True if a line like this arrived.
    pub fn saw(&self, text: &str) -> bool {
        self.log.lock().iter().any(|line| line.starts_with(text))
    }

    pub fn count(&self, text: &str) -> usize {
        self.log.lock().iter().filter(|line| line.starts_with(text)).count()
    }

    pub fn node(&self, name: &[u8]) -> NodeId {
        let mut names = self.names.lock();
        let place = names.iter().position(|known| known == name).unwrap_or_else(|| {
            names.push(name.to_vec());
            names.len() - 1
        });
        place as u64 + 2
    }

    fn name(&self, node: NodeId) -> Vec<u8> {
        let place = usize::try_from(node).unwrap_or(0).wrapping_sub(2);
        self.names.lock().get(place).cloned().unwrap_or_default()
    }

    fn attr(&self, node: NodeId) -> Attr {
        let (mode, size) =
            if node == ROOT_ID { (libc::S_IFDIR | 0o777, 0) } else { (libc::S_IFREG | 0o6777, 1 << 20) };
        Attr { ino: node, mode, nlink: 1, size, blksize: 4096, ..Attr::default() }
    }

    fn entry(&self, name: &[u8]) -> Entry {
        let node = self.node(name);
        Entry { node, generation: 0, attr: self.attr(node), attr_ttl: TTL, entry_ttl: TTL }
    }
}

#[allow(unused_variables)]
impl Filesystem for Probe {
    fn init(&self, kernel: &KernelInfo, config: &mut Config) -> Result<(), Errno> {
        *self.kernel.lock() = Some(*kernel);
        config.want(self.flags | super::common::rings());
        self.refuse.map_or(Ok(()), Err)
    }
    fn destroy(&self, _: Destroy) {
        self.log("destroy");
    }
    fn panicked(&self, operation: &'static str) {
        self.log(format!("panicked {operation}"));
    }
    fn lookup(&self, ctx: &Context, parent: NodeId, name: &[u8], reply: ReplyEntry) {
        self.log(format!("lookup {}", String::from_utf8_lossy(name)));
        assert_ne!(name, b"panic", "as the test wants");
        if name == b"." {
            // A file handle is resolved.
            let attr = self.attr(parent);
            reply.entry(&Entry { node: parent, generation: 0, attr, attr_ttl: TTL, entry_ttl: TTL });
        } else if [&b"file"[..], b"slow", b"lock"].iter().any(|start| name.starts_with(start)) {
            reply.entry(&self.entry(name));
        } else {
            reply.negative(Duration::ZERO);
        }
    }
    fn getattr(&self, ctx: &Context, node: NodeId, fh: Option<u64>, reply: ReplyAttr) {
        self.log(format!("getattr {node} {fh:?}"));
        reply.attr(&self.attr(node), TTL);
    }
    fn setattr(&self, ctx: &Context, node: NodeId, set: &SetAttr, reply: ReplyAttr) {
        self.log(format!("setattr kill={} size={:?} {set:?}", set.kill_suidgid, set.size));
        reply.attr(&self.attr(node), TTL);
    }
    fn mknod(&self, ctx: &Context, parent: NodeId, name: &[u8], mode: u32, rdev: u32, reply: ReplyEntry) {
        self.log(format!("mknod mode={mode:o} rdev={rdev:x} umask={:o}", ctx.umask));
        reply.error(Errno::ENOSPC);
    }
    fn rename(&self, ctx: &Context, parent: NodeId, rename: &Rename<'_>, reply: ReplyEmpty) {
        self.log(format!("rename flags={}", rename.flags));
        reply.ok();
    }
    fn open(&self, ctx: &Context, node: NodeId, open: &Open, reply: ReplyOpen) {
        let truncate = open.flags & libc::O_TRUNC.cast_unsigned() != 0;
        self.log(format!("open truncate={truncate} kill={}", open.kill_suidgid));
        if self.handles {
            let slow = self.name(node).starts_with(b"slow");
            reply.opened(node + 1000, if slow { OpenFlags::DIRECT_IO } else { OpenFlags::KEEP_CACHE });
        } else {
            reply.error(Errno::ENOSYS);
        }
    }
    fn create(&self, ctx: &Context, parent: NodeId, name: &[u8], create: &Create, reply: ReplyCreate) {
        self.log(format!("create mode={:o} umask={:o}", create.mode, ctx.umask));
        reply.created(&self.entry(b"file-created"), 77, OpenFlags::empty());
    }
    fn tmpfile(&self, ctx: &Context, parent: NodeId, create: &Create, reply: ReplyCreate) {
        self.log("tmpfile");
        reply.error(Errno::ENOSPC);
    }
    fn read(&self, ctx: &Context, node: NodeId, read: &Read, reply: ReplyData) {
        self.log(format!("read {node} offset={} size={}", read.offset, read.size));
        if self.name(node).starts_with(b"slow") {
            self.kept.lock().insert(reply.unique(), (node, reply));
        } else {
            reply.data(&vec![b'r'; read.size as usize]);
        }
    }
    fn write(&self, ctx: &Context, node: NodeId, write: &Write<'_>, reply: ReplyWrite) {
        let Write { data, kill_suidgid, cached, .. } = *write;
        let aligned = data.as_ptr().addr().is_multiple_of(4096);
        self.log(format!("write size={} kill={kill_suidgid} cached={cached} aligned={aligned}", data.len()));
        reply.written(u32::try_from(data.len()).unwrap());
    }
    fn flush(&self, ctx: &Context, node: NodeId, fh: u64, lock_owner: u64, reply: ReplyEmpty) {
        self.log("flush");
        reply.ok();
    }
    fn release(&self, ctx: &Context, node: NodeId, release: &Release, reply: ReplyEmpty) {
        self.log(format!("release fh={} flock={}", release.fh, release.flock_owner.is_some()));
        reply.ok();
    }
    fn fsync(&self, ctx: &Context, node: NodeId, fh: u64, datasync: bool, reply: ReplyEmpty) {
        self.log(format!("fsync data={datasync}"));
        reply.ok();
    }
    fn fsyncdir(&self, ctx: &Context, node: NodeId, fh: u64, datasync: bool, reply: ReplyEmpty) {
        self.log(format!("fsyncdir data={datasync}"));
        reply.ok();
    }
    fn readdir(&self, ctx: &Context, node: NodeId, read: &ReadDir, mut reply: ReplyDirectory) {
        self.log(format!("readdir offset={}", read.offset));
        if read.offset == 0 {
            assert!(reply.add(2, 1, FileType::Regular, b"file-listed"));
        }
        reply.ok();
    }
    fn statfs(&self, ctx: &Context, node: NodeId, reply: ReplyStatfs) {
        self.log("statfs");
        reply.statfs(&Statfs {
            blocks: 1000,
            bfree: 600,
            bavail: 500,
            files: 50,
            ffree: 40,
            ..Statfs::default()
        });
    }
    fn setxattr(&self, ctx: &Context, node: NodeId, set: &SetXattr<'_>, reply: ReplyEmpty) {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        self.log(format!("setxattr {}={} flags={}", text(set.name), text(set.value), set.flags));
        reply.ok();
    }
    fn getxattr(&self, ctx: &Context, node: NodeId, name: &[u8], reply: ReplyXattr) {
        self.log(format!("getxattr {}", String::from_utf8_lossy(name)));
        if name == b"user.a" { reply.value(b"value") } else { reply.error(Errno::ENODATA) }
    }
    fn listxattr(&self, ctx: &Context, node: NodeId, reply: ReplyXattr) {
        self.log("listxattr");
        reply.value(b"user.a\0");
    }
    fn removexattr(&self, ctx: &Context, node: NodeId, name: &[u8], reply: ReplyEmpty) {
        self.log("removexattr");
        reply.error(Errno::ENODATA);
    }
    fn access(&self, ctx: &Context, node: NodeId, mask: u32, reply: ReplyEmpty) {
        self.log(format!("access {mask}"));
        reply.ok();
    }
    fn getlk(&self, ctx: &Context, node: NodeId, lock: &Lock, reply: ReplyLock) {
        self.log(format!("getlk {}..{}", lock.start, lock.end));
        let typ = libc::F_WRLCK.cast_unsigned();
        reply.locked(&Lock { start: 3, end: 9, typ, pid: std::process::id(), ..*lock });
    }
    fn setlk(&self, ctx: &Context, node: NodeId, lock: &Lock, wait: bool, reply: ReplyEmpty) {
        self.log(format!("setlk wait={wait} flock={} type={}", lock.flock, lock.typ));
        if wait && self.name(node).starts_with(b"lock") {
            self.waiting.lock().insert(reply.unique(), reply);
        } else {
            reply.ok();
        }
    }
    fn ioctl(&self, ctx: &Context, node: NodeId, ioctl: &Ioctl<'_>, reply: ReplyIoctl) {
        self.log(format!("ioctl {:x} in={} out={}", ioctl.cmd, ioctl.input.len(), reply.limit()));
        // The kernel asks by FS_IOC_FSGETXATTR before it sets flags, and wants the whole structure.
        let mut output = vec![0; reply.limit()];
        if let Some(flags) = output.get_mut(..4) {
            flags.copy_from_slice(&FLAGS.to_ne_bytes());
        }
        reply.ioctl(0, &output);
    }
    fn poll(&self, ctx: &Context, node: NodeId, poll: &Poll, reply: ReplyPoll) {
        self.log(format!("poll wake={}", poll.wake));
        let mut polls = self.polls.lock();
        polls.push(poll.kh);
        reply.ready(if polls.len() > 1 { u32::from(libc::POLLPRI.cast_unsigned()) } else { 0 });
    }
    fn fallocate(&self, ctx: &Context, node: NodeId, fallocate: &Fallocate, reply: ReplyEmpty) {
        let Fallocate { offset, length, mode, .. } = fallocate;
        self.log(format!("fallocate {offset}+{length} mode={mode}"));
        reply.ok();
    }
    fn lseek(&self, ctx: &Context, node: NodeId, lseek: &Lseek, reply: ReplyLseek) {
        self.log(format!("lseek {} {}", lseek.offset, lseek.whence));
        reply.offset(12_345);
    }
    fn copy_file_range(&self, ctx: &Context, node: NodeId, copy: &CopyFileRange, reply: ReplyWrite) {
        self.log(format!("copy {} {}+{}", copy.offset_in, copy.offset_out, copy.length));
        reply.written(5);
    }
    fn syncfs(&self, ctx: &Context, node: NodeId, reply: ReplyEmpty) {
        self.log("syncfs");
        reply.ok();
    }
    fn statx(&self, ctx: &Context, node: NodeId, args: &StatxArgs, reply: ReplyStatx) {
        self.log("statx");
        let btime = Some(Timestamp::new(-1, 500_000_000));
        reply.statx(&Statx { attr: self.attr(node), btime, ..Statx::default() }, TTL);
    }
    fn interrupt(&self, ctx: &Context, unique: u64, reply: ReplyInterrupt) {
        self.log("interrupt");
        if let Some(waiting) = self.waiting.lock().remove(&unique) {
            waiting.error(Errno::EINTR);
        } else if let Some((_, waiting)) = self.kept.lock().remove(&unique) {
            waiting.error(Errno::EINTR);
        } else {
            return reply.again();
        }
        reply.handled();
    }
}
