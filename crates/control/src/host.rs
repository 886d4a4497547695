//! What executes requests: a volume and what surrounds it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use silt_cleaner::{Mover as _, Outcome, Whole};
use silt_device::Device;
use silt_engine::Volume;
use silt_engine::clean::{Cleaned, Cleaning};
use silt_format::Ino;
use silt_fs::Fs;

use crate::response::Discarding;
use crate::retention::{Given, Known, PlannedBy};
use crate::scrub::{ScrubAction, ScrubStatus};
use crate::{ControlError, Damage, GivenUp, Kind, MomentMount, MountPoint, Result, UnmountWhat};

/// Who asks; the kernel vouches for both numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    pub uid: u32,
    pub pid: u32,
}

impl Caller {
    /// This process.
    pub fn this_process() -> Self {
        Caller { uid: rustix::process::geteuid().as_raw(), pid: std::process::id() }
    }
}

/// How a volume is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountInfo {
    /// The live tree first, then moments.
    pub mounts: Vec<MountPoint>,
    /// Seconds since 1970.
    pub since: u64,
    /// As /proc/mounts shows it, such as `fuseblk.silt`.
    pub fs_type: String,
    /// Whether sync(2) reaches the daemon; none: not known yet.
    pub sync_arrives: Option<bool>,
    /// Who mounted it.
    pub uid: u32,
    /// Other users see the files.
    pub allow_other: bool,
}

/// How much space is wanted that a check holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    Not,
    /// Where that lasts, the check is let go.
    Soon,
    /// Nothing else is left to be gained, or somebody wants to delete.
    AtOnce,
}

/// A volume that requests can be executed on. Its methods are called from any thread and never
/// from within [`Host::with_volume`].
pub trait Host {
    /// The image file or block device, absolute.
    fn volume(&self) -> &Path;

    /// Runs `f` with the volume under its lock. `f` is called once, and does not wait for anything
    /// but metadata.
    fn with_volume(&self, f: &mut dyn FnMut(&mut Volume));

    /// Runs `f` with the file system under the same lock, where there is one.
    fn with_fs(&self, _f: &mut dyn FnMut(&mut Fs)) {}

    /// Makes everything that waits a checkpoint, durable on return; the newest checkpoint's number.
    fn sync(&self) -> Result<u64>;

    /// The device, for reading segments.
    fn device(&self) -> Arc<dyn Device>;

    /// Makes the image file longer, to `size` bytes.
    fn grow_device(&self, _size: u64) -> Result<()> {
        Err(ControlError::new(Kind::Invalid, "the device cannot be made longer")
            .hint("make the partition or device longer first"))
    }

    /// Whether it is an image file, which can be cut off.
    fn is_image(&self) -> bool {
        false
    }

    /// Cuts the image file off at `size` bytes. Takes no lock: it may be called within [`Host::with_volume`].
    fn shrink_device(&self, _size: u64) -> silt_device::Result<()> {
        Ok(())
    }

    /// How it is mounted; none for a volume opened for this request alone.
    fn mounted(&self) -> Option<MountInfo>;

    /// Whether the mount with this number is one of its own ([`crate::mounts::Mount::connection`]); none: that is not known.
    fn serves(&self, _connection: u64) -> Option<bool> {
        None
    }

    /// Whether it was mounted for writing, and whoever asks for changes is to be refused since: the kernel tells nobody
    /// of a remount, so its table of mounts is looked at.
    fn is_remounted_read_only(&self) -> bool {
        false
    }

    /// Sentences worth telling: what opening found.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// What was synced and is lost to every mount ([`crate::lost`]).
    fn lost(&self) -> Vec<String> {
        Vec::new()
    }

    /// Files found damaged since it was mounted, the first met first, and how often damage was met that is not
    /// in the list because that is full.
    fn damage(&self) -> (Vec<Damage>, u64) {
        (Vec::new(), 0)
    }

    /// Mounts a moment; where it is mounted then.
    fn mount_moment(&self, _caller: &Caller, _mount: &MomentMount) -> Result<PathBuf> {
        Err(not_mounted())
    }

    /// Unmounts; what was unmounted. `Everything` ends the daemon after the answer. Where the live tree goes the volume is closed on
    /// return; [`Kind::Io`]: it is unmounted, and what was written since it was synced last is lost.
    fn unmount(&self, _caller: &Caller, _what: &UnmountWhat) -> Result<Vec<PathBuf>> {
        Err(not_mounted())
    }

    /// Scrubs, see [`ScrubAction`].
    fn scrub(&self, _action: &ScrubAction) -> Result<ScrubStatus> {
        Err(not_mounted())
    }

    /// Makes a cleaning a checkpoint, durable on return; [`silt_engine::Error::Stale`] where something else counts by then
    /// than it was planned by. Where nobody else has the volume nothing else can.
    fn clean(&self, cleaning: Cleaning, _by: &PlannedBy) -> silt_engine::Result<Cleaned> {
        let (now, mut cleaning, mut made) = (self.now(), Some(cleaning), None);
        self.with_volume(&mut |volume| made = cleaning.take().map(|c| Whole::new(volume, now).make(c)));
        made.unwrap_or_else(closing)
    }

    /// Makes what waits a checkpoint and has both super blocks point at it, durable on return.
    fn settle(&self) -> silt_engine::Result<()> {
        let (now, mut settled) = (self.now(), None);
        self.with_volume(&mut |volume| settled = Some(Whole::new(volume, now).settle()));
        settled.unwrap_or_else(closing)
    }

    /// Hears what was cleaned for somebody.
    fn cleaned(&self, _outcome: &Outcome) {}

    /// What cleaning there was since it was mounted: segments that are set aside, and sentences worth telling.
    fn cleaning(&self) -> (Vec<u64>, Vec<String>) {
        (Vec::new(), Vec::new())
    }

    /// What cleans it by itself; none where nothing does.
    fn cleaner(&self) -> Option<crate::cleaner::Cleaner> {
        None
    }

    /// Whether segments are discarded by themselves, and how many bytes were since it was mounted.
    fn discarding(&self) -> Discarding {
        Discarding::default()
    }

    /// Hears that so many bytes were discarded for somebody.
    fn discarded(&self, _bytes: u64) {}

    /// What was said about retention when it was mounted.
    fn retention_given(&self) -> Given {
        Given::default()
    }

    /// What the file with the wish said last, which holds while it cannot be told.
    fn retention_known(&self) -> Option<&Known> {
        None
    }

    /// Hears that the file with the wish was put in place, in this directory, or that this was tried: the names of the
    /// directory, the file, and the one it had before ([`crate::retention::NEW`]) may be others than before.
    fn retention_changed(&self, _dir: Ino) {}

    /// What the cleaner gave up since it was mounted.
    fn given_up(&self) -> Option<GivenUp> {
        None
    }

    /// Whether somebody waits for space, or is about to, when `since` blocks were rewritten
    /// ([`Volume::rewritten_blocks`]) as a check began, which holds what is freed. It is asked a few times a second as long
    /// as there is one.
    fn wants_space(&self, _since: u64) -> Wanted {
        Wanted::Not
    }

    /// Whether a change that takes no more than its checkpoint is to wait, since the cleaner may make room for it: asked before it
    /// is made, and `refused` for want of space. While it waits it is asked again and again, `look` times before.
    fn may_make_room(&self, _refused: bool, _look: u32) -> bool {
        false
    }

    /// Hears that a check is over or was let go: what was held for it may be written.
    fn let_go(&self) {}

    /// Hears that the volume has another size. On return the account goes by it, or takes longer than a moment.
    fn resized(&self) {}

    /// The account of space, where one is kept in the background.
    fn account(&self) -> Option<crate::account::Kept> {
        None
    }

    /// Seconds since 1970.
    fn now(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
    }
}

fn closing<T>() -> silt_engine::Result<T> {
    Err(silt_engine::Error::Failed("the volume is being closed".into()))
}

fn not_mounted() -> ControlError {
    ControlError::new(Kind::Unavailable, "the volume is not mounted").hint("mount it with: silt mount")
}

/// Runs `f` with the volume and returns what it returns.
pub(crate) fn with<R>(host: &dyn Host, mut f: impl FnMut(&mut Volume) -> R) -> Result<R> {
    let mut result = None;
    host.with_volume(&mut |volume| result = Some(f(volume)));
    result.ok_or_else(|| ControlError::new(Kind::Unavailable, "the volume is being closed"))
}

/// Runs `f` with the file system and returns what it returns; none where the host has none.
pub(crate) fn with_fs<R>(host: &dyn Host, mut f: impl FnMut(&mut Fs) -> R) -> Option<R> {
    let mut result = None;
    host.with_fs(&mut |fs| result = Some(f(fs)));
    result
}

/// How often a change is tried while checkpoints are being written.
const TRIES: u32 = 50;

/// Like [`with`] for changes, which are refused while a checkpoint is being written: they are
/// tried again when it is done.
pub(crate) fn change<R>(host: &dyn Host, f: impl FnMut(&mut Volume) -> silt_engine::Result<R>) -> Result<R> {
    Ok(when_written(host, f)??)
}

fn when_written<R>(
    host: &dyn Host,
    mut f: impl FnMut(&mut Volume) -> silt_engine::Result<R>,
) -> Result<silt_engine::Result<R>> {
    let mut pause = Duration::from_millis(1);
    for attempt in 0..TRIES {
        match with(host, &mut f)? {
            Err(silt_engine::Error::Constructing) => {}
            other => return Ok(other),
        }
        // A sync returns when the checkpoint under way is written, and on a busy volume the next
        // one begins later than we come back. A short wait does for the rest.
        if attempt % 4 == 0 {
            host.sync()?;
        } else {
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }
    Err(ControlError::new(Kind::Busy, "checkpoints are being written all the time").hint("try again later"))
}

/// For so long a change waits for room at most, looks so often whether there is some, and tells after so many looks that it waits.
pub(crate) const ROOM: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
const TELL: u32 = 10;

/// Like [`change`] for what takes no more than its checkpoint, as what gives space back does: it waits for the cleaner as a
/// deletion does, and uses up what that needs only after a pass that found nothing. `waits` is told meanwhile, and ends it
/// with an error, as where whoever asked is gone.
pub(crate) fn change_with_room<R>(
    host: &dyn Host,
    waits: &mut dyn FnMut() -> Result<()>,
    mut f: impl FnMut(&mut Volume) -> silt_engine::Result<R>,
) -> Result<R> {
    let until = Instant::now() + ROOM;
    wait_for_room(host, false, until, waits)?;
    loop {
        match when_written(host, |v| v.leaving_floor(&mut f))? {
            Err(silt_engine::Error::NoSpace) => {}
            other => return Ok(other?),
        }
        if !wait_for_room(host, true, until, waits)? {
            return change(host, f);
        }
    }
}

/// Waits as long as there may be room soon; whether it had to.
pub(crate) fn wait_for_room(
    host: &dyn Host,
    refused: bool,
    until: Instant,
    waits: &mut dyn FnMut() -> Result<()>,
) -> Result<bool> {
    let mut look = 0;
    while Instant::now() < until && host.may_make_room(refused, look) {
        if look % TELL == TELL - 1 {
            waits()?;
        }
        std::thread::sleep(LOOK);
        look += 1;
    }
    Ok(look > 0)
}
