//! Past moments mounted beside the live tree, by the same daemon.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use silt_engine::Tree;
use silt_format::Cno;
use silt_fuse::{Destroy, MountOptions, Running, Session, Unmount};

use crate::Error;
use crate::core::Core;
use crate::mount::Mount;
use crate::reading::Readers;

/// For so long the end of one that was unmounted is waited for.
const ENDS: Duration = Duration::from_secs(1);

/// One mounted moment.
struct Mounted {
    dir: PathBuf,
    checkpoint: u64,
    options: MountOptions,
    running: Running,
    /// It was unmounted, and its end is not known yet.
    away: bool,
}

impl Mounted {
    /// Unmounts it, if nobody is in it. Where it was; nowhere if somebody else unmounted it.
    fn unmount(&mut self) -> Result<Option<PathBuf>, Error> {
        let place = match self.running.unmount(Unmount::Strict) {
            Err(silt_fuse::Error::NotMounted(_)) => None,
            other => other?,
        };
        self.away = true;
        Ok(place)
    }

    /// Unmounts it, in use or not.
    fn end(&self) {
        if self.running.unmount(Unmount::Strict).is_err()
            && let Err(e) = self.running.unmount(Unmount::Lazy)
        {
            tracing::info!("the moment on {}: {e}", self.dir.display());
        }
    }
}

/// A moment that was unmounted for a while: its checkpoint stays meanwhile.
struct Away {
    dir: PathBuf,
    checkpoint: Cno,
    options: MountOptions,
    core: Arc<Core>,
}

impl Drop for Away {
    fn drop(&mut self) {
        self.core.fs.lock().volume_mut().close_view(self.checkpoint);
    }
}

/// A moment that is mounted.
pub struct Shown {
    pub dir: PathBuf,
    pub checkpoint: u64,
    /// The kernel's number of the mount, where it is known.
    pub connection: Option<u64>,
}

/// A moment that could not be mounted again, and why.
pub struct Lost {
    pub dir: PathBuf,
    pub checkpoint: u64,
    pub why: Error,
}

#[derive(Default)]
struct State {
    mounted: Vec<Mounted>,
    /// So many are being mounted and are not among them yet.
    beginning: usize,
    /// All were unmounted for good: with the live tree, or by a signal.
    ended: bool,
}

/// All of them.
pub struct Moments {
    state: Mutex<State>,
    /// One was mounted, or was not.
    begun: Condvar,
    readers: Arc<Readers>,
}

/// One that is being mounted.
struct Beginning<'a>(&'a Moments);

impl Drop for Beginning<'_> {
    fn drop(&mut self) {
        self.0.state.lock().beginning -= 1;
        self.0.begun.notify_all();
    }
}

impl Moments {
    /// None yet; `readers` read for all of them, as they do for the live tree.
    pub fn new(readers: Arc<Readers>) -> Self {
        Moments { state: Mutex::default(), begun: Condvar::new(), readers }
    }

    /// Mounts checkpoint `c` at `dir`, which pins it until it is unmounted.
    pub fn mount(
        &self,
        core: &Arc<Core>,
        c: Cno,
        dir: &Path,
        options: &MountOptions,
    ) -> Result<PathBuf, Error> {
        let volume = |source| Error::Volume { volume: PathBuf::from(&options.source), source };
        self.sweep();
        let _beginning = self.begin()?;
        core.fs.lock().volume_mut().open_view(c).map_err(volume)?;
        let close = {
            let core = Arc::downgrade(core);
            move |_: Destroy| {
                if let Some(core) = core.upgrade() {
                    core.fs.lock().volume_mut().close_view(c);
                }
            }
        };
        let started = (|| {
            let session = Session::mount(dir, options)?;
            let at = session.mount_point().unwrap_or(dir).to_owned();
            let mount = Mount::new(core.clone(), Tree::Past(c.0), self.readers.clone(), close.clone());
            let running = session.spawn(Arc::new(mount), 1)?;
            Ok((at, running))
        })();
        match started {
            Ok((dir, running)) => {
                let options = options.clone();
                let mounted = Mounted { dir: dir.clone(), checkpoint: c.0, options, running, away: false };
                let ended = {
                    let mut state = self.state.lock();
                    if state.ended {
                        Some(mounted)
                    } else {
                        state.mounted.push(mounted);
                        None
                    }
                };
                if let Some(mounted) = ended {
                    mounted.end();
                    return Err(being_unmounted());
                }
                Ok(dir)
            }
            Err(e) => {
                close(Destroy::Unasked);
                Err(e)
            }
        }
    }

    /// One is about to be mounted, unless all is over.
    fn begin(&self) -> Result<Beginning<'_>, Error> {
        let mut state = self.state.lock();
        if state.ended {
            return Err(being_unmounted());
        }
        state.beginning += 1;
        Ok(Beginning(self))
    }

    /// Forgets those that were unmounted.
    fn sweep(&self) {
        self.state.lock().mounted.retain(|m| !m.running.is_finished());
    }

    /// Those that are mounted.
    pub fn list(&self) -> Vec<Shown> {
        self.sweep();
        let shown = |m: &Mounted| Shown {
            dir: m.dir.clone(),
            checkpoint: m.checkpoint,
            connection: m.running.connection(),
        };
        self.state.lock().mounted.iter().filter(|m| !m.away).map(shown).collect()
    }

    /// Whether what is seen on a directory is one of them: it may lie over another one, or over the live tree.
    pub fn is_seen_at(&self, dir: &Path) -> bool {
        let all = silt_fuse::mounts().unwrap_or_default();
        let seen = all.iter().rfind(|entry| entry.mount_point == dir).filter(|entry| entry.is_fuse());
        seen.is_some_and(|seen| self.list().iter().any(|m| m.connection == Some(seen.connection())))
    }

    /// Whether none is served any more.
    pub fn are_over(&self) -> bool {
        self.sweep();
        self.state.lock().mounted.is_empty()
    }

    /// The kernel's numbers of the mounts, those that were unmounted and may be to be seen elsewhere still among them.
    pub fn connections(&self) -> Vec<Option<u64>> {
        self.sweep();
        self.state.lock().mounted.iter().map(|m| m.running.connection()).collect()
    }

    /// Unmounts the one at `dir`, and waits until its checkpoint is held no longer; `None` if there is none.
    pub fn unmount(&self, dir: &Path) -> Option<Result<(), Error>> {
        let unmounted = {
            let mut state = self.state.lock();
            // Of two on one directory the later one is seen.
            state.mounted.iter_mut().rfind(|m| !m.away && m.dir == dir)?.unmount().map(|_| ())
        };
        let ends = |m: &Mounted| m.away && m.dir == dir && !m.running.is_finished();
        let begin = Instant::now();
        // It may be to be seen elsewhere still.
        while unmounted.is_ok() && begin.elapsed() < ENDS && self.state.lock().mounted.iter().any(ends) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Some(unmounted)
    }

    /// Unmounts with `unmount` the live tree, after all moments: it would be in use by those that are mounted in it, and all end with it.
    /// Where it stays, or one of them does, they are mounted again: with the error come those that could not be.
    pub fn with_all_away(
        &self,
        core: &Arc<Core>,
        unmount: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), (Error, Vec<Lost>)> {
        let mut away = Vec::new();
        match self.unmount_each(core, &mut away).and_then(|()| unmount()) {
            Ok(()) => Ok(()),
            Err(e) => Err((e, self.mount_again(&away))),
        }
    }

    /// Unmounts all, the last first, up to one that is in use.
    fn unmount_each(&self, core: &Arc<Core>, away: &mut Vec<Away>) -> Result<(), Error> {
        let mut state = self.state.lock();
        let there = |m: &&mut Mounted| !m.away && !m.running.is_finished();
        for m in state.mounted.iter_mut().rev().filter(there) {
            let checkpoint = Cno(m.checkpoint);
            // Nobody is to remove it before it is mounted again.
            core.fs
                .lock()
                .volume_mut()
                .open_view(checkpoint)
                .map_err(|source| Error::Volume { volume: PathBuf::from(&m.options.source), source })?;
            let options = m.options.clone();
            let mut it = Away { dir: m.dir.clone(), checkpoint, options, core: core.clone() };
            if let Some(dir) = m.unmount()? {
                it.dir = dir;
                away.push(it);
            }
        }
        Ok(())
    }

    /// Mounts again what was unmounted, the last first; those that could not be.
    fn mount_again(&self, away: &[Away]) -> Vec<Lost> {
        let again = away.iter().rev().map(|m| {
            self.mount(&m.core, m.checkpoint, &m.dir, &m.options).map_err(|why| Lost {
                dir: m.dir.clone(),
                checkpoint: m.checkpoint.0,
                why,
            })
        });
        again.filter_map(Result::err).collect()
    }

    /// Unmounts all for good, out of sight at once where somebody is still in them. One that something else lies over stays, and so does
    /// that. One that is being mounted meanwhile is gone or unmounted on return, unless that takes long.
    pub fn unmount_all(&self) {
        let all = {
            let mut state = self.state.lock();
            state.ended = true;
            std::mem::take(&mut state.mounted)
        };
        all.iter().for_each(Mounted::end);
        let until = Instant::now() + ENDS;
        let mut state = self.state.lock();
        while state.beginning > 0 && !self.begun.wait_until(&mut state, until).timed_out() {}
    }
}

fn being_unmounted() -> Error {
    Error::Invalid("the volume is being unmounted".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::config::MountOptions as Options;
    use crate::fault_tests::{mkfs_of, open};

    /// Requests of the control socket go on while the live tree is unmounted, and the process ends soon.
    #[test]
    fn none_is_left_that_is_mounted_while_all_are_unmounted() {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            return eprintln!("skipped: this needs root and /dev/fuse");
        }
        let core = Core::new(open(Arc::new(mkfs_of(16 << 20, 64))), Options::default());
        let c = {
            let mut fs = core.fs.lock();
            fs.sync_all(3000).unwrap();
            fs.volume().last_log().cno
        };
        let dir = tempfile::tempdir().unwrap();
        let (moments, mounted) = (Moments::new(Arc::new(Readers::start(&core).unwrap())), AtomicU32::new(0));
        let options = MountOptions { source: "moments".into(), read_only: true, ..MountOptions::default() };
        let is_there = || {
            let all = silt_fuse::mounts().unwrap();
            all.iter().filter(|entry| entry.mount_point.starts_with(dir.path())).count()
        };
        let left = std::thread::scope(|scope| {
            for thread in 0..4 {
                let (moments, core, mounted, options, dir) = (&moments, &core, &mounted, &options, &dir);
                scope.spawn(move || {
                    for n in 0..50 {
                        let at = dir.path().join(format!("{thread}.{n}"));
                        std::fs::create_dir(&at).unwrap();
                        if moments.mount(core, Cno(c), &at, options).is_err() {
                            return;
                        }
                        mounted.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let until = Instant::now() + Duration::from_secs(60);
            while mounted.load(Ordering::Relaxed) < 8 && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            moments.unmount_all();
            is_there()
        });
        // What a thread without the mend leaves behind.
        moments.unmount_all();
        assert_eq!(left, 0);
        assert!((8..200).contains(&mounted.load(Ordering::Relaxed)) && moments.list().is_empty());
    }
}
