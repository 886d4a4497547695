//! Logs on their way to the medium: in which order, when a flush must come between, and what becomes of those that fail.
//!
//! A large log is written by a thread of its own, so that the next one is composed meanwhile. One at a time: where a log fails
//! no other of its construction may be on its way.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use silt_device::Device;
use silt_engine::{Error as EngineError, LogWrite, Redo, WriteOrder};

use super::{Writer, errno};
use crate::config::OnError;

/// How often a log is tried in one place, and the pause between.
pub(super) const TRIES: u32 = 3;
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// A log of so many bytes is worth a thread.
pub(super) const LARGE: u64 = 2 << 20;

/// A log that a thread writes.
pub(super) struct OnItsWay {
    log: Arc<LogWrite>,
    thread: JoinHandle<Result<(), EngineError>>,
}

/// Why a log is not on the device.
pub(super) enum Trouble {
    /// The construction goes elsewhere: its next steps write all of it anew.
    Moved,
    /// An errno; everything is kept.
    Stays(i32),
}

impl Writer {
    /// Makes everything written durable. `next`: the log that waits for it, if there is one.
    pub(super) fn flush(&mut self, next: Option<&Arc<LogWrite>>) -> Result<(), Trouble> {
        self.land()?;
        if !self.core.options.barrier {
            self.look_for_lost_logs()?;
        }
        while self.unflushed && self.core.options.barrier {
            // What could not be written the system tells once: perhaps it told somebody else, who wrote a super block.
            let failed = self.core.device.failed_flushes();
            self.suspect |= failed != self.failed_flushes;
            if self.suspect {
                self.write_again()?;
            }
            self.failed_flushes = failed;
            if let Err(e) = self.core.device.flush() {
                self.suspect = true;
                let blamed = self.logs.last().or(next).cloned();
                return Err(self.trouble(blamed.as_deref(), &e.into()));
            }
            if failed == self.core.device.failed_flushes() {
                break;
            }
        }
        self.unflushed = false;
        self.suspect = false;
        self.logs.clear();
        self.order.flushed();
        Ok(())
    }

    /// Without barriers nothing is kept to be written again: where somebody's flush failed, what was written before is
    /// perhaps nowhere, and nothing may be built on it.
    pub(super) fn look_for_lost_logs(&mut self) -> Result<(), Trouble> {
        if self.core.device.failed_flushes() == self.failed_flushes {
            return Ok(());
        }
        let why = "the device could not keep what was written to it, and with nobarrier nothing else does";
        self.core.fs.lock().volume_mut().fail(why);
        Err(Trouble::Stays(libc::EIO))
    }

    /// Writes the logs since the last good flush once more: what a failed flush could not write is nowhere
    /// any more.
    fn write_again(&mut self) -> Result<(), Trouble> {
        let logs = self.logs.clone();
        let mut order = WriteOrder::default();
        for log in &logs {
            let written = (|| {
                if order.wants_flush(log) {
                    self.core.device.flush()?;
                    order.flushed();
                }
                log.write(&*self.core.device)
            })();
            if let Err(e) = written {
                return Err(self.trouble(Some(log), &e));
            }
            order.written(log);
        }
        Ok(())
    }

    /// Decides what becomes of the construction under way after a failure at `log` of it.
    fn trouble(&mut self, log: Option<&LogWrite>, e: &EngineError) -> Trouble {
        if self.core.stall().is_none() {
            tracing::error!("a log cannot be written: {e}");
        }
        let code = errno(e);
        let mut fs = self.core.fs.lock();
        let volume = fs.volume_mut();
        // Where the host has no space the place is not at fault, unless it is known to have some for others: a log that is
        // written again may take what one that is written once does not.
        let Some(log) = log.filter(|_| code != libc::ENOSPC || volume.could_go_elsewhere()) else {
            return Trouble::Stays(code);
        };
        if !volume.is_constructing() {
            return Trouble::Stays(code);
        }
        match volume.log_failed(log, (self.clock)()) {
            Ok(Redo::Elsewhere) => {
                drop(fs);
                self.logs.clear();
                self.unwritten.clear();
                self.untold = 0;
                // What is left behind need not be flushed. A flush that fails for its sake is found out by
                // the next one.
                self.order = WriteOrder::default();
                self.suspect = false;
                Trouble::Moved
            }
            Ok(Redo::SameLog) => {
                if code != libc::ENOSPC && self.core.options.on_error == OnError::RemountReadOnly {
                    volume.fail(format!("the device failed, and errors=remount-ro was asked for: {e}"));
                }
                Trouble::Stays(code)
            }
            Err(e) => {
                tracing::error!("{e}");
                Trouble::Stays(errno(&e))
            }
        }
    }

    /// Tells the engine of every log that is written.
    pub(super) fn tell(&mut self) {
        let mut fs = self.core.fs.lock();
        for _ in 0..std::mem::take(&mut self.untold) {
            fs.volume_mut().log_written();
        }
    }

    /// Writes a log, or has it written while the next one is composed. What could not be written is kept where it stays.
    pub(super) fn write_log(&mut self, log: Arc<LogWrite>) -> Result<(), Trouble> {
        // Behind the one that is kept where that was on its way.
        let ready = match self.land() {
            Ok(()) if self.order.wants_flush(&log) => self.flush(Some(&log)).map_err(|trouble| (trouble, 0)),
            landed => landed.map_err(|trouble| (trouble, 1)),
        };
        if let Err((trouble, place)) = ready {
            if matches!(trouble, Trouble::Stays(_)) {
                self.unwritten.insert(place.min(self.unwritten.len()), log);
            }
            return Err(trouble);
        }
        self.unflushed = true;
        self.order.written(&log);
        // Nothing is composed behind one that ends a construction.
        if !log.commits && log.len() >= self.large {
            let (device, written, pause) = (self.core.device.clone(), log.clone(), self.pause);
            let write = move || try_to_write(&*device, &written, pause);
            if let Ok(thread) = std::thread::Builder::new().name("log".into()).spawn(write) {
                self.on_its_way = Some(OnItsWay { log, thread });
                return Ok(());
            }
        }
        let result = try_to_write(&*self.core.device, &log, self.pause);
        self.arrived(log, result)
    }

    /// Waits for the log on its way.
    pub(super) fn land(&mut self) -> Result<(), Trouble> {
        let Some(OnItsWay { log, thread }) = self.on_its_way.take() else { return Ok(()) };
        let result = thread
            .join()
            .unwrap_or_else(|_| Err(EngineError::Failed("the thread that wrote a log is gone".into())));
        self.arrived(log, result)
    }

    /// Waits for what is on its way where nothing more is done about it: nothing is written once this writer is gone.
    pub(super) fn end(&mut self) {
        if let Some(OnItsWay { thread, .. }) = self.on_its_way.take() {
            let _ = thread.join();
        }
    }

    fn arrived(&mut self, log: Arc<LogWrite>, result: Result<(), EngineError>) -> Result<(), Trouble> {
        let Err(e) = result else {
            self.untold += 1;
            self.written += log.len();
            self.logs.push(log);
            return Ok(());
        };
        let trouble = self.trouble(Some(&log), &e);
        if matches!(trouble, Trouble::Stays(_)) {
            self.unwritten.push_front(log);
        }
        Err(trouble)
    }
}

/// Writes a log, more than once if need be: some errors pass.
fn try_to_write(device: &dyn Device, log: &LogWrite, pause: Duration) -> Result<(), EngineError> {
    for _ in 1..TRIES {
        match log.write(device) {
            Err(e) if errno(&e) != libc::ENOSPC => std::thread::sleep(pause),
            other => return other,
        }
    }
    log.write(device)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::{AtomicU32, Ordering};

    use silt_device::{Counter, Fault};
    use silt_engine::{OpenOptions, Volume};
    use silt_format::Ino;
    use silt_fs::{Context, Fs, WriteFlags};

    use super::*;
    use crate::config::MountOptions;
    use crate::core::{Core, Want};
    use crate::fault_tests::mkfs_of;

    /// A writer without a thread, and `waiting` bytes of a file that wait for it.
    fn writer_on(device: Arc<dyn Device>, waiting: usize) -> (Arc<Core>, Writer) {
        let (mut volume, _) = Volume::open(device, &OpenOptions::default()).unwrap();
        volume.take_over(2000).unwrap();
        let core = Core::new(Fs::new(volume, &silt_fs::Options::default()), MountOptions::default());
        let writer = Writer::new(core.clone(), Duration::from_secs(3600));
        let mut fs = core.fs.lock();
        let ctx = Context { privileged: true, ..Context::default() };
        let ino = fs.create(&ctx, Ino::ROOT, b"f", 0o644).unwrap().ino;
        fs.write(&ctx, ino, 0, &vec![1; waiting], WriteFlags::default()).unwrap();
        drop(fs);
        (core, writer)
    }

    /// A log that ends a construction must not come before one of it that is still to be written.
    #[test]
    fn what_is_kept_stays_in_order() {
        for room in 1..9u64 {
            let device = Arc::new(Fault::new(mkfs_of(512 << 20, 1024)));
            let (core, mut writer) = writer_on(device.clone(), 32 << 20);
            device.limit_space(Some(room * (4 << 20)));
            core.sync(Want::All, Box::new(|result| assert!(result.is_err())));
            let waiters = std::mem::take(&mut core.queue.lock().waiters);
            writer.serve(waiters, true);
            let kept: Vec<u64> = writer.unwritten.iter().map(|log| log.at.0).collect();
            assert!(!kept.is_empty() && kept.is_sorted(), "{room}: {kept:?}");
            device.heal();
            writer.serve(Vec::new(), true);
            assert!(writer.unwritten.is_empty() && core.stall().is_none());
        }
    }

    /// Where writing has ended it has for what is kept, too.
    #[test]
    fn what_is_kept_is_not_written_once_writing_has_ended() {
        let device = Arc::new(Counter::new(Fault::new(mkfs_of(128 << 20, 1024))));
        let (core, mut writer) = writer_on(device.clone(), 1 << 20);
        device.inner().limit_space(Some(1 << 19));
        writer.serve(Vec::new(), true);
        device.inner().heal();
        core.fs.lock().volume_mut().fail("a test");
        let (kept, before) = (writer.unwritten.len(), device.counts().writes);
        writer.serve(Vec::new(), true);
        assert_eq!((device.counts().writes, core.stall()), (before, Some(libc::EIO)));
        assert!(kept > 0 && writer.unwritten.len() == kept);
    }

    /// A device whose writes take a moment.
    struct Slow {
        inner: silt_device::MemoryDevice,
        writing: AtomicU32,
    }

    impl Device for Slow {
        fn len(&self) -> u64 {
            self.inner.len()
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> silt_device::Result<()> {
            self.inner.read_at(offset, buf)
        }
        fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> silt_device::Result<()> {
            self.writing.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(50));
            let written = self.inner.write_at(offset, bufs);
            self.writing.fetch_sub(1, Ordering::SeqCst);
            written
        }
        fn flush(&self) -> silt_device::Result<()> {
            self.inner.flush()
        }
        fn discard(&self, _: u64, _: u64) -> silt_device::Result<()> {
            Ok(())
        }
        fn capabilities(&self) -> silt_device::Capabilities {
            self.inner.capabilities()
        }
    }

    /// Whoever is told that the log writer is gone may take the device away.
    #[test]
    fn nothing_is_written_once_the_writer_is_gone() {
        let device = Arc::new(Slow { inner: mkfs_of(128 << 20, 1024), writing: AtomicU32::new(0) });
        let (mut volume, _) = Volume::open(device.clone(), &OpenOptions::default()).unwrap();
        volume.take_over(2000).unwrap();
        let core = Core::new(Fs::new(volume, &silt_fs::Options::default()), MountOptions::default());
        let mut writer = Writer::new(core.clone(), Duration::from_secs(3600)).with_overlap();
        let mut log = {
            let mut fs = core.fs.lock();
            let ctx = Context { privileged: true, ..Context::default() };
            let ino = fs.create(&ctx, Ino::ROOT, b"f", 0o644).unwrap().ino;
            fs.write(&ctx, ino, 0, &vec![1; 8 << 20], WriteFlags::default()).unwrap();
            assert!(fs.volume_mut().begin_checkpoint(3000).unwrap());
            loop {
                if let silt_engine::Step::Write(log) = fs.volume_mut().step(512).unwrap() {
                    break log;
                }
            }
        };
        log.seal();
        let byte = log.byte;
        assert!(!log.commits && writer.write_log(Arc::new(log)).is_ok() && writer.on_its_way.is_some());
        drop(writer);
        let mut head = [0; 8];
        device.inner.read_at(byte, &mut head).unwrap();
        assert!(device.writing.load(Ordering::SeqCst) == 0 && head != [0; 8], "it is on its way still");
    }
}
