//! The daemon as the control socket sees it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use silt_cleaner::Outcome;
use silt_control::cleaner::Cleaner;
use silt_control::retention::{DIR, FILE, Given, Known, NEW, PlannedBy};
use silt_control::scrub::{ScrubAction, ScrubStatus};
use silt_control::{
    Caller, ControlError, Damage, Discarding, GivenUp, Host, Kind, MomentMount, MountInfo, MountPoint,
    UnmountWhat, Wanted,
};
use silt_device::Device;
use silt_engine::Volume;
use silt_engine::clean::{Cleaned, Cleaning};
use silt_format::Ino;
use silt_fs::Fs;
use silt_fuse::{MountOptions, Unmount};

use crate::claim::Ending;
use crate::cleaning::{Mounted, let_run};
use crate::config::Config;
use crate::convert::node;
use crate::core::{Core, Want, now_secs};
use crate::first::{First, Seen};
use crate::moments::{Lost, Moments};
use crate::notices::Notice;
use crate::scrub::Scrubber;

/// For so long a change of the size waits for the account, which takes longer on large volumes only.
const RECOUNT: std::time::Duration = std::time::Duration::from_secs(2);

/// After so many looks of somebody who waits for room, what waits is written.
const LOOKS: u32 = 50;

/// See the module.
pub struct DaemonHost {
    volume: PathBuf,
    first: Arc<First>,
    ending: Arc<Ending>,
    core: Arc<Core>,
    moments: Arc<Moments>,
    found: Found,
    since: u64,
    uid: u32,
    on_block_device: bool,
    scrubber: Scrubber,
}

/// What opening found, in sentences.
pub struct Found {
    /// What was synced and is lost.
    pub lost: Vec<String>,
    /// All else.
    pub notes: Vec<String>,
}

impl DaemonHost {
    pub fn new(
        config: &Config,
        first: Arc<First>,
        ending: Arc<Ending>,
        core: Arc<Core>,
        moments: Arc<Moments>,
        found: Found,
        on_block_device: bool,
    ) -> Self {
        DaemonHost {
            volume: config.volume.clone(),
            first,
            scrubber: Scrubber::new(core.clone()),
            ending,
            core,
            moments,
            found,
            since: now_secs(),
            uid: rustix::process::geteuid().as_raw(),
            on_block_device,
        }
    }
}

impl DaemonHost {
    /// Ends a scrub that runs; what it has come to is kept.
    pub fn stop_scrub(&self) {
        self.scrubber.end();
    }
}

fn fuse_error(e: &crate::Error) -> ControlError {
    let kind = match e {
        // That of a moment, perhaps, which goes with the live tree.
        crate::Error::Fuse(silt_fuse::Error::Busy(dir)) => {
            return ControlError::new(Kind::Busy, e.to_string()).in_use(dir);
        }
        crate::Error::Fuse(silt_fuse::Error::Covered(dir)) => {
            return ControlError::new(Kind::Busy, e.to_string()).covered(dir);
        }
        crate::Error::Volume { source: silt_engine::Error::NoCheckpoint(_), .. } => Kind::NotFound,
        // It is being unmounted.
        crate::Error::Invalid(_) => Kind::Busy,
        _ => Kind::Io,
    };
    ControlError::new(kind, e.to_string())
}

/// Whether another mount lies over this one on its directory. A table that cannot be read tells nothing.
fn is_covered(dir: &Path, connection: Option<u64>) -> bool {
    let all = silt_fuse::mounts().unwrap_or_default();
    let mut there = all.iter().rev().filter(|entry| entry.mount_point == dir);
    let is_own = |entry: &&silt_fuse::MountEntry| entry.is_fuse() && Some(entry.connection()) == connection;
    there.next().is_some_and(|seen| !is_own(&seen)) && there.any(|below| is_own(&below))
}

/// Why the live tree stays, and which moments in it do not.
fn not_unmounted(e: &crate::Error, lost: &[Lost]) -> ControlError {
    let mut error = fuse_error(e);
    for m in lost {
        error.message +=
            &format!("; the moment on {} could not be mounted again ({})", m.dir.display(), m.why);
    }
    match lost.first() {
        Some(m) => error.hint(format!(
            "mount it again: silt mount -o at={} VOLUME {}",
            m.checkpoint,
            silt_names::quoted(&m.dir)
        )),
        None => error,
    }
}

impl DaemonHost {
    /// Before an unmount: what cannot be written must not be lost silently, so that is said while it can still be read.
    /// Where writing has ended for good and nothing waits, nothing is gained by staying.
    fn write_what_waits(&self) -> Result<(), ControlError> {
        let ended = {
            let fs = self.core.fs.lock();
            fs.volume().failure().map(|why| (why.to_owned(), fs.volume().is_unwritten()))
        };
        match ended {
            None => self.sync().map(|_| ()).map_err(|e| match e.kind {
                // It is tried again all the time, and as long as it is mounted what waits is there.
                Kind::Io | Kind::NoSpace => e.hint(self.copy_and_go_on()),
                _ => e,
            }),
            Some((_, false)) => Ok(()),
            Some((why, true)) => {
                let message = format!("nothing is written any more ({why}), and what waits would be lost");
                Err(ControlError::new(Kind::Io, message).hint(self.copy_and_go_on()))
            }
        }
    }

    /// What to do with what waits and cannot be written.
    fn copy_and_go_on(&self) -> String {
        format!(
            "copy what is new elsewhere; silt umount -l {} goes on without it",
            silt_names::quoted(self.first.path())
        )
    }

    /// What waits cannot be written now.
    fn unwritten(&self, errno: i32) -> ControlError {
        if let Some(why) = self.cut_short() {
            return ControlError::new(Kind::Io, format!("writing what waits: {why}")).hint(
                "make it as long as it was with what it held, or copy what is new elsewhere and let silt rescue copy out what is left",
            );
        }
        let error = ControlError::io("writing what waits", &std::io::Error::from_raw_os_error(errno));
        match error.kind {
            Kind::NoSpace => error
                .hint("make room on the file system that holds the image; it is tried again all the time"),
            _ => {
                error.hint("it is tried again all the time; copy what is new elsewhere if that does not help")
            }
        }
    }

    /// That others made the image or device shorter, with how long it is now.
    fn cut_short(&self) -> Option<String> {
        use std::io::Seek as _;
        let now = std::fs::File::open(self.ending.device().open_path())
            .ok()?
            .seek(std::io::SeekFrom::End(0))
            .ok()?;
        let what = if self.ending.device().is_block_device() { "device" } else { "image" };
        (now < self.ending.device().len())
            .then(|| format!("the {what} is {now} bytes long now, shorter than the volume"))
    }
}

impl DaemonHost {
    /// Once the live tree is unmounted: waits until the volume is closed. Errors: what was written since it was synced is lost.
    /// As long as it is to be seen elsewhere it goes on.
    fn wait_for_its_end(&self) -> Result<(), ControlError> {
        if self.first.is_moment() || matches!(self.first.seen(), Some(Seen::Ours) | None) {
            return Ok(());
        }
        match self.ending.wait() {
            None => Ok(()),
            Some(why) => {
                let what = "it is unmounted, and what was written since it was synced last is lost";
                Err(ControlError::new(Kind::Io, format!("{}: {what}: {why}", self.volume.display()))
                    .hint("what was synced before that is safe: mount it again once the device or its disk takes writes"))
            }
        }
    }
}

impl Host for DaemonHost {
    fn volume(&self) -> &Path {
        &self.volume
    }

    fn with_volume(&self, f: &mut dyn FnMut(&mut Volume)) {
        f(self.core.fs.lock().volume_mut());
        self.core.touched();
    }

    fn sync(&self) -> Result<u64, ControlError> {
        if !self.core.options.read_only {
            self.core.sync_and_wait(Want::All).map_err(|e| {
                let fs = self.core.fs.lock();
                match fs.volume().failure() {
                    Some(why) => {
                        let kind = if fs.volume().is_unwritten() { Kind::Io } else { Kind::ReadOnly };
                        ControlError::new(kind, format!("nothing is written any more: {why}"))
                            .hint("copy what is new elsewhere, unmount it, and look at it with silt check")
                    }
                    None => self.unwritten(e),
                }
            })?;
        }
        Ok(self.core.fs.lock().volume().last_log().cno)
    }

    fn device(&self) -> Arc<dyn Device> {
        self.ending.device().clone()
    }

    fn grow_device(&self, size: u64) -> Result<(), ControlError> {
        self.ending.device().grow(size)?;
        Ok(())
    }

    fn is_image(&self) -> bool {
        !self.ending.device().is_block_device()
    }

    fn shrink_device(&self, size: u64) -> silt_device::Result<()> {
        self.ending.device().shrink(size)
    }

    fn mounted(&self) -> Option<MountInfo> {
        let read_only = self.core.options.read_only || self.core.options.moment.is_some();
        let first = (self.first.is_there() && !self.first.is_over()).then(|| MountPoint {
            dir: self.first.path().to_owned(),
            checkpoint: self.core.options.moment.map(|m| m.0),
            read_only,
            unseen: self.first.seen() == Some(Seen::Nowhere),
            covered: is_covered(self.first.path(), self.first.connection().flatten()),
        });
        let mut mounts = Vec::from_iter(first);
        mounts.extend(self.moments.list().into_iter().map(|m| MountPoint {
            covered: is_covered(&m.dir, m.connection),
            dir: m.dir,
            checkpoint: Some(m.checkpoint),
            read_only: true,
            unseen: false,
        }));
        Some(MountInfo {
            mounts,
            since: self.since,
            fs_type: if self.on_block_device { "fuseblk.silt" } else { "fuse.silt" }.to_owned(),
            sync_arrives: Some(self.core.sync_arrives.load(Ordering::Relaxed)),
            uid: self.uid,
            allow_other: self.core.options.allow_other,
        })
    }

    fn serves(&self, connection: u64) -> Option<bool> {
        let mut own = self.moments.connections();
        own.extend(self.first.connection());
        match (own.contains(&Some(connection)), own.contains(&None)) {
            (true, _) => Some(true),
            (false, true) => None,
            (false, false) => Some(false),
        }
    }

    fn is_remounted_read_only(&self) -> bool {
        // A table that cannot be read tells nothing.
        let mut shown = silt_fuse::mounts().unwrap_or_default().into_iter().rev();
        let is_own = |e: &silt_fuse::MountEntry| {
            e.mount_point == self.first.path()
                && e.is_fuse()
                && self.first.connection().flatten().is_none_or(|own| own == e.connection())
        };
        !self.core.options.read_only && shown.find(is_own).is_some_and(|e| e.read_only)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.found.notes.clone();
        notes.extend(self.core.fs.lock().volume().super_block_note());
        let has_ended = self.core.fs.lock().volume().failure().is_some();
        if let Some(e) = self.core.stall().filter(|_| !has_ended) {
            let why = self.cut_short().unwrap_or_else(|| std::io::Error::from_raw_os_error(e).to_string());
            notes.push(format!(
                "the log cannot be written at present ({why}); it is tried again all the time"
            ));
        }
        notes
    }

    fn lost(&self) -> Vec<String> {
        self.found.lost.clone()
    }

    fn clean(&self, cleaning: Cleaning, by: &PlannedBy) -> silt_engine::Result<Cleaned> {
        Mounted(&self.core).make(cleaning, by)
    }

    fn settle(&self) -> silt_engine::Result<()> {
        Mounted(&self.core).settle()
    }

    fn cleaned(&self, outcome: &Outcome) {
        self.core.space.try_all();
        self.core.space.note(outcome);
        if outcome.cleaned.segments > 0 {
            self.core.fs.lock().volume_mut().refuse_nothing();
            self.core.space.think_again();
        }
    }

    fn cleaning(&self) -> (Vec<u64>, Vec<String>) {
        let report = self.core.space.report();
        let mut notes = Vec::new();
        if let Some((segment, why)) = report.aside.first_key_value() {
            notes.push(format!(
                "{} of its segments cannot be emptied, the first is {segment}: {why}; silt scrub looks closer, and \
                 silt clean --salvage takes what can be read",
                report.aside.len()
            ));
        }
        notes.extend(
            report.failing.map(|why| format!("segments cannot be emptied: {why}; silt check looks closer")),
        );
        notes.extend(crate::given_up::sentence(&report.given_up, now_secs()));
        (report.aside.into_keys().collect(), notes)
    }

    fn cleaner(&self) -> Option<Cleaner> {
        if self.core.options.read_only || self.core.options.moment.is_some() {
            return None;
        }
        let (options, room) = (&self.core.options, self.core.space.room());
        let report = options.cleaner.report(self.core.fs.lock().volume(), room, options.gc);
        Some(Cleaner { work: self.core.space.report().work, ..report })
    }

    fn discarding(&self) -> Discarding {
        self.core.discarder.report()
    }

    fn discarded(&self, bytes: u64) {
        self.core.discarder.count(bytes);
    }

    fn with_fs(&self, f: &mut dyn FnMut(&mut Fs)) {
        f(&mut self.core.fs.lock());
        self.core.touched();
    }

    fn retention_given(&self) -> Given {
        self.core.options.retention.clone()
    }

    fn retention_known(&self) -> Option<&Known> {
        Some(&self.core.retention)
    }

    fn retention_changed(&self, dir: Ino) {
        let (root, dir) = (node(Ino::ROOT), node(dir));
        self.core.tell([
            Notice::Name(root, DIR.to_vec()),
            Notice::Content(root),
            Notice::Name(dir, FILE.to_vec()),
            Notice::Name(dir, NEW.to_vec()),
            Notice::Content(dir),
        ]);
        self.core.fs.lock().volume_mut().refuse_nothing();
        self.core.space.think_again();
    }

    fn given_up(&self) -> Option<GivenUp> {
        Some(self.core.space.report().given_up)
    }

    fn wants_space(&self, since: u64) -> Wanted {
        if self.core.space.is_pressing() {
            return Wanted::AtOnce;
        }
        // Whoever waits is refused as soon as a pass has come to nothing: it is wanted before that, unless nothing was
        // written since.
        let (available, marks) = crate::cleaning::marks(&self.core);
        let is_written = self.core.fs.lock().volume().rewritten_blocks() > since;
        if self.core.space.is_wanted() || (is_written && available < marks.short) {
            Wanted::Soon
        } else {
            Wanted::Not
        }
    }

    fn may_make_room(&self, refused: bool, look: u32) -> bool {
        let core = &self.core;
        let waits = {
            let fs = core.fs.lock();
            // While the device takes nothing, or writing ends, nothing comes.
            let ends =
                core.stall().is_some() || core.ending.load(Ordering::Relaxed) || core.queue.lock().stop;
            let is_asked_first = refused && look == 0;
            !ends
                && (!is_asked_first || core.space.may_help(fs.volume(), 0))
                && core.space.may_come(fs.volume(), 0)
        };
        // What waits is written: what it takes is estimated from above until then.
        if waits && look.is_multiple_of(LOOKS) {
            let_run(core);
        }
        waits
    }

    fn let_go(&self) {
        let mut fs = self.core.fs.lock();
        let volume = fs.volume_mut();
        // Looking for them notices who is gone.
        volume.segments_held_for_readers();
        volume.refuse_nothing();
        drop(fs);
        self.core.space.think_again();
    }

    fn resized(&self) {
        self.core.account.recount(RECOUNT);
    }

    fn account(&self) -> Option<silt_control::account::Kept> {
        self.core.account.kept()
    }

    fn scrub(&self, action: &ScrubAction) -> Result<ScrubStatus, ControlError> {
        self.scrubber.act(action)
    }

    fn damage(&self) -> (Vec<Damage>, u64) {
        self.core.damages.name_all(&self.core.fs);
        self.core.damages.all()
    }

    fn mount_moment(&self, _caller: &Caller, m: &MomentMount) -> Result<PathBuf, ControlError> {
        let c = m.at.resolve(self, m.snapshot_only)?;
        let options = MountOptions {
            source: MountOptions::source_of(&self.volume),
            read_only: true,
            allow_other: m.allow_other.unwrap_or(self.core.options.allow_other),
            suid: m.suid,
            dev: m.dev,
            exec: m.exec,
            ..MountOptions::default()
        };
        self.moments.mount(&self.core, silt_format::Cno(c), &m.dir, &options).map_err(|e| fuse_error(&e))
    }

    fn unmount(&self, _caller: &Caller, what: &UnmountWhat) -> Result<Vec<PathBuf>, ControlError> {
        match what {
            // Of two on one directory it is the one that is seen there.
            UnmountWhat::Dir(dir)
                if dir != self.first.path() || !self.first.is_there() || self.moments.is_seen_at(dir) =>
            {
                match self.moments.unmount(dir) {
                    Some(Ok(())) => Ok(vec![dir.clone()]),
                    Some(Err(e)) => Err(fuse_error(&e)),
                    None => Err(ControlError::new(
                        Kind::NotFound,
                        format!("{} is not mounted from this volume", dir.display()),
                    )),
                }
            }
            UnmountWhat::Dir(dir) if self.first.is_moment() => {
                self.first.unmount(Unmount::Strict).map_err(|e| fuse_error(&e))?;
                Ok(vec![dir.clone()])
            }
            // The kernel has let go of it, and it is being closed: nothing is left but to wait for that.
            _ if !self.first.is_moment() && self.first.connection().is_none() => {
                self.wait_for_its_end()?;
                Ok(vec![self.first.path().to_owned()])
            }
            _ => {
                self.write_what_waits()?;
                let moments = self.moments.list().into_iter().map(|m| m.dir);
                let first = self.first.is_there().then(|| self.first.path().to_owned());
                let gone = first.into_iter().chain(moments).collect();
                // All of it, or nothing where somebody is in one of them.
                let unmount = || self.first.unmount(Unmount::Strict);
                let unmounted = self.moments.with_all_away(&self.core, unmount);
                unmounted.map_err(|(e, lost)| not_unmounted(&e, &lost))?;
                self.wait_for_its_end()?;
                Ok(gone)
            }
        }
    }
}
