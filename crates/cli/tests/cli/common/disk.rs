//! A disk of a test's own: an image that this process serves through FUSE, with sectors that cannot be read, and a way
//! to hold reads and writes up.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use silt_fuse::ops::{Open, Read, SetAttr, Write};
use silt_fuse::{
    Attr, Context, Entry, Errno, Filesystem, MountOptions, NodeId, OpenFlags, ReplyAttr, ReplyData,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Running, Session, Unmount,
};

use super::Bench;

const IMAGE: NodeId = 2;
const NAME: &str = "disk.img";
/// Bytes that are read at once by who reads in a row.
const LARGE: u32 = 64 << 10;
const FOREVER: Duration = Duration::from_secs(1 << 30);
/// Nobody is held longer, whatever becomes of the test.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Default)]
struct State {
    /// Bytes that cannot be read.
    bad: Vec<Range<u64>>,
    /// Bytes that cannot be written.
    fixed: Vec<Range<u64>>,
    /// Reads of [`LARGE`] bytes that begin below this byte wait.
    held: Option<u64>,
    /// How long each read of [`LARGE`] bytes takes.
    pause: Duration,
    /// Reads that wait.
    waiting: u32,
    /// So many writes are made; those behind them wait.
    writes: Option<u32>,
    /// Writes that wait.
    unwritten: u32,
    /// No write is made any more.
    dead: bool,
}

struct Files {
    image: File,
    size: u64,
    state: Mutex<State>,
    changed: Condvar,
}

/// The disk, gone when dropped.
pub struct Disk {
    files: Arc<Files>,
    dir: PathBuf,
    running: Option<Running>,
}

impl Disk {
    /// Serves an image, read-only. Its reads are those of the device: nothing is cached.
    pub fn new(bench: &Bench, image: &str) -> Self {
        Self::serve(bench, File::open(image).unwrap())
    }

    /// One that can be written.
    pub fn writable(bench: &Bench, image: &str) -> Self {
        Self::serve(bench, File::options().read(true).write(true).open(image).unwrap())
    }

    fn serve(bench: &Bench, image: File) -> Self {
        let dir = bench.path("disk");
        std::fs::create_dir(&dir).unwrap();
        let size = image.metadata().unwrap().len();
        let files = Arc::new(Files { image, size, state: Mutex::default(), changed: Condvar::new() });
        // None of silt's own.
        let options =
            MountOptions { source: "disk".to_owned(), subtype: "disk".to_owned(), ..MountOptions::default() };
        let session = Session::mount(&dir, &options).unwrap();
        // One that waits must not keep others from being answered.
        let running = session.spawn(Arc::clone(&files), 4).unwrap();
        Disk { files, dir, running: Some(running) }
    }

    /// The file.
    pub fn path(&self) -> String {
        self.dir.join(NAME).to_str().unwrap().to_owned()
    }

    /// These bytes cannot be read any more.
    pub fn spoil(&self, bytes: Range<u64>) {
        self.files.state.lock().unwrap().bad.push(bytes);
    }

    /// These bytes cannot be written any more.
    pub fn fix(&self, bytes: Range<u64>) {
        self.files.state.lock().unwrap().fixed.push(bytes);
    }

    /// Large reads wait until [`Disk::release`]: those that read logs, not those that look where they are.
    pub fn hold(&self) {
        self.files.state.lock().unwrap().held = Some(u64::MAX);
    }

    /// Large reads take so long.
    pub fn slow(&self, pause: Duration) {
        self.files.state.lock().unwrap().pause = pause;
    }

    /// Waits until a read is held up.
    #[track_caller]
    pub fn wait_for_a_read(&self) {
        let state = self.files.state.lock().unwrap();
        let (state, _) = self.files.changed.wait_timeout_while(state, PATIENCE, |s| s.waiting == 0).unwrap();
        assert!(state.waiting > 0, "nobody reads");
    }

    /// Whether a read is held up just now.
    pub fn is_holding(&self) -> bool {
        self.files.state.lock().unwrap().waiting > 0
    }

    /// Writes wait until [`Disk::release`], but for so many.
    pub fn hold_writes(&self, but: u32) {
        self.files.state.lock().unwrap().writes = Some(but);
    }

    /// Writes fail from now on.
    pub fn fail_writes(&self) {
        self.files.state.lock().unwrap().dead = true;
    }

    /// Waits until a write is held up.
    #[track_caller]
    pub fn wait_for_a_write(&self) {
        let state = self.files.state.lock().unwrap();
        let (state, _) =
            self.files.changed.wait_timeout_while(state, PATIENCE, |s| s.unwritten == 0).unwrap();
        assert!(state.unwritten > 0, "nobody writes");
    }

    /// Lets reads and writes go on.
    pub fn release(&self) {
        let mut state = self.files.state.lock().unwrap();
        (state.held, state.writes) = (None, None);
        drop(state);
        self.files.changed.notify_all();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.release();
        let until = Instant::now() + Duration::from_secs(10);
        while silt_fuse::unmount(&self.dir, Unmount::Strict).is_err() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        if super::is_mounted(&self.dir) {
            let _ = silt_fuse::abort_connection(&self.dir);
            let _ = silt_fuse::unmount(&self.dir, Unmount::Lazy);
        }
        drop(self.running.take());
    }
}

impl Files {
    fn attr(&self, node: NodeId) -> Attr {
        let (mode, nlink, size) = if node == IMAGE { (0o100_600, 1, self.size) } else { (0o040_755, 2, 0) };
        Attr { ino: node, mode, nlink, size, blocks: size / 512, blksize: 4096, ..Attr::default() }
    }
}

impl Filesystem for Files {
    fn lookup(&self, _: &Context, _: NodeId, name: &[u8], reply: ReplyEntry) {
        if name != NAME.as_bytes() {
            return reply.error(Errno::ENOENT);
        }
        let attr = self.attr(IMAGE);
        reply.entry(&Entry { node: IMAGE, generation: 0, attr, attr_ttl: FOREVER, entry_ttl: FOREVER });
    }

    fn getattr(&self, _: &Context, node: NodeId, _: Option<u64>, reply: ReplyAttr) {
        reply.attr(&self.attr(node), FOREVER);
    }

    fn open(&self, _: &Context, _: NodeId, _: &Open, reply: ReplyOpen) {
        reply.opened(0, OpenFlags::DIRECT_IO);
    }

    fn read(&self, _: &Context, _: NodeId, read: &Read, reply: ReplyData) {
        let range = read.offset..(read.offset + u64::from(read.size)).min(self.size);
        let held = |end: u64| read.size >= LARGE && read.offset < end;
        let mut state = self.state.lock().unwrap();
        if state.held.is_some_and(held) {
            state.waiting += 1;
            self.changed.notify_all();
            let still = |s: &mut State| s.held.is_some_and(held);
            state = self.changed.wait_timeout_while(state, PATIENCE, still).unwrap().0;
            state.waiting -= 1;
        }
        if state.bad.iter().any(|bad| bad.start < range.end && range.start < bad.end) {
            return reply.error(Errno::EIO);
        }
        let pause = if read.size >= LARGE { state.pause } else { Duration::ZERO };
        drop(state);
        std::thread::sleep(pause);
        let mut bytes = vec![0; range.end.saturating_sub(range.start) as usize];
        match self.image.read_exact_at(&mut bytes, range.start) {
            Ok(()) => reply.data(&bytes),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(&self, _: &Context, _: NodeId, write: &Write<'_>, reply: ReplyWrite) {
        let mut state = self.state.lock().unwrap();
        match &mut state.writes {
            Some(0) => {
                state.unwritten += 1;
                self.changed.notify_all();
                state = self.changed.wait_timeout_while(state, PATIENCE, |s| s.writes.is_some()).unwrap().0;
                state.unwritten -= 1;
            }
            Some(left) => *left -= 1,
            None => {}
        }
        let dead = state.dead;
        // A sector that is written whole is good again.
        let end = write.offset + write.data.len() as u64;
        if state.fixed.iter().any(|fixed| fixed.start < end && write.offset < fixed.end) {
            return reply.error(Errno::EIO);
        }
        state.bad.retain(|bad| dead || bad.start < write.offset || bad.end > end);
        drop(state);
        match self.image.write_all_at(write.data, write.offset) {
            _ if dead => reply.error(Errno::EIO),
            Ok(()) => reply.written(write.data.len() as u32),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fsync(&self, _: &Context, _: NodeId, _: u64, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn setattr(&self, _: &Context, node: NodeId, _: &SetAttr, reply: ReplyAttr) {
        reply.attr(&self.attr(node), FOREVER);
    }
}

/// A loop device on a file: a disk as the kernel sees it, detached when dropped.
pub struct Loop(String);

impl Loop {
    /// None where there are no loop devices.
    pub fn on(file: &str) -> Option<Self> {
        Self::attach(&["--read-only", file])
    }

    /// One that can be written.
    pub fn writable(file: &str) -> Option<Self> {
        Self::attach(&[file])
    }

    fn attach(args: &[&str]) -> Option<Self> {
        if !super::is_root() || !Path::new("/dev/loop-control").exists() || !super::find("losetup") {
            eprintln!("left out: there are no loop devices here");
            return None;
        }
        let run = Command::new("losetup").args(["--find", "--show"]).args(args).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        Some(Loop(String::from_utf8(run.stdout).unwrap().trim().to_owned()))
    }

    pub fn path(&self) -> &str {
        &self.0
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}
