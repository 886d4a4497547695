//! Past moments mounted beside the live tree, by the same daemon.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
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

/// A moment that could not be mounted again, and why.
pub struct Lost {
    pub dir: PathBuf,
    pub checkpoint: u64,
    pub why: Error,
}

/// All of them.
pub struct Moments {
    mounted: Mutex<Vec<Mounted>>,
    readers: Arc<Readers>,
}

impl Moments {
    /// None yet; `readers` read for all of them, as they do for the live tree.
    pub fn new(readers: Arc<Readers>) -> Self {
        Moments { mounted: Mutex::default(), readers }
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
                self.mounted.lock().push(mounted);
                Ok(dir)
            }
            Err(e) => {
                close(Destroy::Unasked);
                Err(e)
            }
        }
    }

    /// Forgets those that were unmounted.
    fn sweep(&self) {
        self.mounted.lock().retain(|m| !m.running.is_finished());
    }

    /// Where, and which checkpoint.
    pub fn list(&self) -> Vec<(PathBuf, u64)> {
        self.sweep();
        self.mounted.lock().iter().filter(|m| !m.away).map(|m| (m.dir.clone(), m.checkpoint)).collect()
    }

    /// Whether none is served any more.
    pub fn are_over(&self) -> bool {
        self.sweep();
        self.mounted.lock().is_empty()
    }

    /// The kernel's numbers of the mounts, those that were unmounted and may be to be seen elsewhere still among them.
    pub fn connections(&self) -> Vec<Option<u64>> {
        self.sweep();
        self.mounted.lock().iter().map(|m| m.running.connection()).collect()
    }

    /// Unmounts the one at `dir`, and waits until its checkpoint is held no longer; `None` if there is none.
    pub fn unmount(&self, dir: &Path) -> Option<Result<(), Error>> {
        let unmounted = {
            let mut mounted = self.mounted.lock();
            mounted.iter_mut().find(|m| !m.away && m.dir == dir)?.unmount().map(|_| ())
        };
        let ends = |m: &Mounted| m.away && m.dir == dir && !m.running.is_finished();
        let begin = Instant::now();
        // It may be to be seen elsewhere still.
        while unmounted.is_ok() && begin.elapsed() < ENDS && self.mounted.lock().iter().any(ends) {
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
        let mut mounted = self.mounted.lock();
        let there = |m: &&mut Mounted| !m.away && !m.running.is_finished();
        for m in mounted.iter_mut().rev().filter(there) {
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

    /// Unmounts all, out of sight at once where somebody is still in them. One that something else lies over stays, and so does that.
    pub fn unmount_all(&self) {
        let all = std::mem::take(&mut *self.mounted.lock());
        for m in all {
            if m.running.unmount(Unmount::Strict).is_err()
                && let Err(e) = m.running.unmount(Unmount::Lazy)
            {
                tracing::info!("the moment on {}: {e}", m.dir.display());
            }
        }
    }
}
