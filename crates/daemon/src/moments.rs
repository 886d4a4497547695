//! Past moments mounted beside the live tree, by the same daemon.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use silt_engine::Tree;
use silt_format::Cno;
use silt_fuse::{MountOptions, Running, Session, Unmount};

use crate::Error;
use crate::core::Core;
use crate::mount::Mount;
use crate::reading::Readers;

/// One mounted moment.
struct Mounted {
    dir: PathBuf,
    checkpoint: u64,
    running: Running,
}

/// All of them.
#[derive(Default)]
pub struct Moments {
    mounted: Mutex<Vec<Mounted>>,
}

impl Moments {
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
            move || {
                if let Some(core) = core.upgrade() {
                    core.fs.lock().volume_mut().close_view(c);
                }
            }
        };
        let started = (|| {
            let session = Session::mount(dir, options)?;
            let at = session.mount_point().unwrap_or(dir).to_owned();
            let readers = Readers::start(core)?;
            let mount = Mount::new(core.clone(), Tree::Past(c.0), readers, close.clone());
            let running = session.spawn(Arc::new(mount), 1)?;
            Ok((at, running))
        })();
        match started {
            Ok((dir, running)) => {
                self.mounted.lock().push(Mounted { dir: dir.clone(), checkpoint: c.0, running });
                Ok(dir)
            }
            Err(e) => {
                close();
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
        self.mounted.lock().iter().map(|m| (m.dir.clone(), m.checkpoint)).collect()
    }

    /// Unmounts the one at `dir`; `None` if there is none.
    pub fn unmount(&self, dir: &Path) -> Option<Result<(), Error>> {
        let mounted = self.mounted.lock();
        let found = mounted.iter().find(|m| m.dir == dir)?;
        Some(found.running.unmount(Unmount::Strict).map_err(Error::from))
    }

    /// Unmounts those that are mounted within `dir`, which would be in use by them.
    pub fn unmount_below(&self, dir: &Path) -> Result<(), Error> {
        let mounted = self.mounted.lock();
        for m in mounted.iter().rev().filter(|m| m.dir.starts_with(dir) && !m.running.is_finished()) {
            m.running.unmount(Unmount::Strict)?;
        }
        Ok(())
    }

    /// Unmounts all, out of sight at once where somebody is still in them.
    pub fn unmount_all(&self) -> Vec<PathBuf> {
        let all = std::mem::take(&mut *self.mounted.lock());
        let mut gone = Vec::new();
        for m in all {
            if m.running.unmount(Unmount::Strict).is_err() {
                let _ = m.running.unmount(Unmount::Lazy);
            }
            gone.push(m.dir);
        }
        gone
    }
}
