//! How many requests the kernel sends without waiting for their answers.
//!
//! What it reads ahead of programs is among them, which is all that is not in memory; and what it writes of mappings, or for who
//! writes asynchronously. It sends 64 of them at first, so that those who ask for something are not behind thousands. But where so
//! many writes wait for space nobody could read until the cleaner has some, or whoever makes the volume smaller is done. So before it
//! comes to that the kernel is told to send more, as many as `dirty=` has memory for, until none waits any more.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use silt_fuse::{MAX_BACKGROUND, MAX_WRITE};

/// When so many more would be all that the kernel sends, more is asked for: not all that wait need be such as it counts.
const MANY: usize = MAX_BACKGROUND as usize / 2;
/// Where no more can be had, so many are left for those who read.
const SPARE: usize = MAX_BACKGROUND as usize / 4;

/// See the module.
pub struct Background {
    /// The kernel's number of the live tree's mount.
    connection: OnceLock<u64>,
    /// What it was told last.
    limit: AtomicU16,
    /// It could not be told more, or there is no memory for that.
    is_last: AtomicBool,
}

impl Default for Background {
    fn default() -> Self {
        let (limit, is_last) = (AtomicU16::new(MAX_BACKGROUND), AtomicBool::new(false));
        Background { connection: OnceLock::new(), limit, is_last }
    }
}

impl Background {
    /// The kernel's number of the mount, where it could be found out.
    pub fn is_of(&self, connection: Option<u64>) {
        if let Some(connection) = connection {
            let _ = self.connection.set(connection);
        }
    }

    /// So many wait for space, and others may hold so many bytes: more of them than that must not come, since the thread that
    /// takes requests would have to wait with them.
    pub fn wait(&self, kept: usize, bytes: u64) {
        let limit = self.limit.load(Ordering::Relaxed);
        if kept + MANY < usize::from(limit) || self.is_last.load(Ordering::Relaxed) {
            return;
        }
        let more = usize::try_from(bytes / u64::from(MAX_WRITE)).unwrap_or(usize::MAX);
        let wanted = u16::try_from(kept.saturating_add(more)).unwrap_or(u16::MAX);
        if wanted > limit && self.tell(wanted) {
            self.limit.store(wanted, Ordering::Relaxed);
        } else {
            self.is_last.store(true, Ordering::Relaxed);
        }
    }

    /// None does any more.
    pub fn none_waits(&self) {
        self.is_last.store(false, Ordering::Relaxed);
        if self.limit.load(Ordering::Relaxed) != MAX_BACKGROUND && self.tell(MAX_BACKGROUND) {
            self.limit.store(MAX_BACKGROUND, Ordering::Relaxed);
        }
    }

    /// Whether so many that wait leave too few for those who read.
    pub fn is_used_up(&self, kept: usize) -> bool {
        self.is_last.load(Ordering::Relaxed)
            && kept + SPARE >= usize::from(self.limit.load(Ordering::Relaxed))
    }

    fn tell(&self, most: u16) -> bool {
        let told = match self.connection.get() {
            Some(connection) => silt_fuse::set_max_background(*connection, most),
            None => Err(std::io::ErrorKind::NotFound.into()),
        };
        told.inspect_err(|e| tracing::info!("how much the kernel sends at once cannot be changed: {e}"))
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command};
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use silt_engine::Tree;
    use silt_format::Ino;
    use silt_fs::{Context, WriteFlags};
    use silt_fuse::{MountOptions, Session, Unmount};

    use super::*;
    use crate::config::MountOptions as Options;
    use crate::core::Core;
    use crate::fault_tests::{mkfs_of, open};
    use crate::mount::Mount;
    use crate::reading::Readers;
    use crate::writer::Writer;

    /// No more is asked for than what memory is for.
    #[test]
    fn where_no_more_may_come_some_are_left_for_who_reads() {
        let b = Background::default();
        let limit = usize::from(MAX_BACKGROUND);
        b.wait(limit - 1, 1 << 20);
        assert!(b.is_used_up(limit - SPARE) && !b.is_used_up(limit - SPARE - 1), "nothing is left");
        b.none_waits();
        assert!(!b.is_used_up(limit));
        // It cannot be told.
        b.wait(MANY - 1, 1 << 30);
        assert!(!b.is_used_up(limit));
        b.wait(MANY, 1 << 30);
        assert!(b.is_used_up(limit));
        assert_eq!(b.limit.into_inner(), MAX_BACKGROUND);
    }

    /// Where the ones are to write that are run for the test below.
    const DIR: &str = "SILT_TEST_WRITERS";
    /// More than the kernel sends at first.
    const WRITERS: usize = 100;
    const PAGE: usize = 4096;

    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// What a mapping wrote waits for space as long as somebody makes the volume smaller.
    #[test]
    fn who_reads_does_not_wait_for_who_waits_for_space() {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            return eprintln!("skipped: this needs root and /dev/fuse");
        }
        let core = Core::new(open(Arc::new(mkfs_of(64 << 20, 64))), Options::default());
        {
            let ctx = Context { privileged: true, ..Context::default() };
            let mut fs = core.fs.lock();
            let f = fs.create(&ctx, Ino::ROOT, b"cold", 0o644).unwrap().ino;
            fs.write(&ctx, f, 0, &vec![7; 2 << 20], WriteFlags::default()).unwrap();
            for n in 0..WRITERS {
                let f = fs.create(&ctx, Ino::ROOT, n.to_string().as_bytes(), 0o644).unwrap().ino;
                let set = silt_fs::SetAttr { size: Some(PAGE as u64), ..silt_fs::SetAttr::default() };
                fs.setattr(&ctx, f, &set).unwrap();
            }
            fs.sync_all(3000).unwrap();
            let mut sizes = (2..40).rev();
            assert!(sizes.any(|n| {
                let v = fs.volume_mut();
                v.confine(Some(n)).is_ok() && v.check_space(3).is_err()
            }));
        }
        core.space.enable(true);
        let dir = tempfile::tempdir().unwrap();
        let readers = Arc::new(Readers::start(&core).unwrap());
        let session =
            Session::mount(dir.path(), &MountOptions { source: "reads".into(), ..MountOptions::default() });
        let session = session.unwrap();
        core.background.is_of(session.connection());
        let running = session.spawn(Arc::new(Mount::new(core.clone(), Tree::Live, readers, |_| {})), 1);
        let running = running.unwrap();
        let writer = Writer::new(core.clone(), Duration::from_secs(5));
        let writer = std::thread::spawn(move || writer.run());

        // In a process of their own: the memory of the one that serves must not wait for what theirs waits for.
        let writers = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "background::tests::writers", "--nocapture"])
            .env(DIR, dir.path())
            .spawn();
        let writers = Killed(writers.unwrap());
        let most = Duration::from_secs(20);
        let waits = |least: usize| {
            let until = Instant::now() + most;
            while core.queue.lock().paced.len() < least && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            core.queue.lock().paced.len()
        };
        let waited = waits(usize::from(MAX_BACKGROUND));
        let (tell, told) = channel();
        let path = dir.path().join("cold");
        let reader =
            std::thread::spawn(move || tell.send(std::fs::read(path).map(|read| read == [7; 2 << 20])));
        let read = told.recv_timeout(most / 2);
        let all = waits(WRITERS);
        // They are done when there is space, and the kernel is told that it is as before.
        core.fs.lock().volume_mut().confine(None).unwrap();
        crate::cleaning::let_run(&core);
        let until = Instant::now() + most;
        let limit = || core.background.limit.load(Ordering::Relaxed);
        while limit() != MAX_BACKGROUND && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (left, limit) = (core.queue.lock().paced.len(), limit());
        silt_fuse::abort_connection(dir.path()).unwrap();
        drop(writers);
        reader.join().unwrap().unwrap();
        let _ = running.unmount(Unmount::Lazy);
        core.queue.lock().stop = true;
        core.wake.notify_all();
        writer.join().unwrap();
        assert!(waited >= usize::from(MAX_BACKGROUND), "{waited} wait");
        assert!(matches!(read, Ok(Ok(true))), "{read:?}, while {waited} waited");
        assert_eq!((all, left, limit), (WRITERS, 0, MAX_BACKGROUND));
    }

    /// No test: what the one above runs.
    #[test]
    fn writers() {
        let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
        let write = |path: &Path| {
            let file = File::options().read(true).write(true).open(path).unwrap();
            // SAFETY: a new mapping of the file, written within its length.
            unsafe {
                let access = libc::PROT_READ | libc::PROT_WRITE;
                let map =
                    libc::mmap(std::ptr::null_mut(), PAGE, access, libc::MAP_SHARED, file.as_raw_fd(), 0);
                assert_ne!(map, libc::MAP_FAILED);
                map.cast::<u8>().write(7);
                libc::msync(map, PAGE, libc::MS_SYNC);
            }
        };
        std::thread::scope(|scope| {
            for n in 0..WRITERS {
                let path = dir.join(n.to_string());
                scope.spawn(move || write(&path));
            }
        });
    }
}
