//! How many requests the kernel sends without waiting for their answers.
//!
//! What it reads ahead of programs is among them, which is all that is not in memory; and what it writes of mappings, or for who
//! writes asynchronously. It sends 64 of them at first, so that those who ask for something are not behind thousands. But where so
//! many writes wait for space nobody could read until the cleaner has some, or whoever makes the volume smaller is done. So before it
//! comes to that the kernel is told to send as many as there are, until none waits any more. What they hold is bounded as ever, by
//! `dirty=`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use silt_fuse::MAX_BACKGROUND;

/// Requests that wait for space when more is asked for. Not all of them need be such as the kernel counts.
const MANY: usize = MAX_BACKGROUND as usize / 2;
/// Where the kernel cannot be told, so many leave some for those who read.
const USED_UP: usize = MAX_BACKGROUND as usize * 3 / 4;

/// As many as it was said at first, as many as there are, or as at first since it cannot be told.
const FEW: u8 = 0;
const ALL: u8 = 1;
const FEW_FOR_GOOD: u8 = 2;

/// See the module.
#[derive(Default)]
pub struct Background {
    /// The kernel's number of the live tree's mount.
    connection: OnceLock<u64>,
    state: AtomicU8,
}

impl Background {
    /// The kernel's number of the mount, where it could be found out.
    pub fn is_of(&self, connection: Option<u64>) {
        if let Some(connection) = connection {
            let _ = self.connection.set(connection);
        }
    }

    /// So many wait for space.
    pub fn wait(&self, kept: usize) {
        if kept >= MANY && self.state.load(Ordering::Relaxed) == FEW {
            let state = if self.tell(u16::MAX) { ALL } else { FEW_FOR_GOOD };
            self.state.store(state, Ordering::Relaxed);
        }
    }

    /// None does any more.
    pub fn none_waits(&self) {
        if self.state.load(Ordering::Relaxed) == ALL && self.tell(MAX_BACKGROUND) {
            self.state.store(FEW, Ordering::Relaxed);
        }
    }

    /// Whether so many that wait leave too few for those who read.
    pub fn is_used_up(&self, kept: usize) -> bool {
        kept >= USED_UP && self.state.load(Ordering::Relaxed) == FEW_FOR_GOOD
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
        while core.background.state.load(Ordering::Relaxed) == ALL && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (left, state) = (core.queue.lock().paced.len(), core.background.state.load(Ordering::Relaxed));
        silt_fuse::abort_connection(dir.path()).unwrap();
        drop(writers);
        reader.join().unwrap().unwrap();
        let _ = running.unmount(Unmount::Lazy);
        core.queue.lock().stop = true;
        core.wake.notify_all();
        writer.join().unwrap();
        assert!(waited >= usize::from(MAX_BACKGROUND), "{waited} wait");
        assert!(matches!(read, Ok(Ok(true))), "{read:?}, while {waited} waited");
        assert_eq!((all, left, state), (WRITERS, 0, FEW));
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
