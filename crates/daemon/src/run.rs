//! The life of a mount: open, recover, mount, serve, and close in order.
//!
//! ```text
//! open -> take over -> mount -> ready -> serve ... unmounted or signalled -> last checkpoint -> close
//! ```
//!
//! Whatever ends it, the volume is closed once, after the last request and before this returns;
//! on a `fuseblk` mount before umount(2) returns.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use silt_control::lost;
use silt_device::{Access, Device, FileDevice, Masked};
use silt_engine::{OpenOptions, OpenReport, Tree, Volume};
use silt_format::{Cno, super_block};
use silt_fs::Fs;
use silt_fuse::{BlockDevice, MountOptions as FuseOptions, Session, Unmount};

use crate::Error;
use crate::config::{Config, MountOptions};
use crate::core::{Core, now_secs};
use crate::damage::Met;
use crate::host::{DaemonHost, Found};
use crate::kernel;
use crate::loop_handle::LoopHandle;
use crate::moments::Moments;
use crate::mount::Mount;
use crate::reading::Readers;
use crate::writer::Writer;

/// Inodes looked at in one go for those that a crash has left: 16 blocks, which may have to be read.
const ORPHANS: usize = 512;
/// Time between checkpoints where neither mount nor volume says otherwise.
const INTERVAL: Duration = Duration::from_secs(5);

/// Intervals that a clean segment waits at least before it is discarded.
const PERIOD: u32 = 6;

/// Mounts and serves until unmounted. `ready` is called when the mount answers.
pub fn run(config: &Config, ready: impl FnOnce()) -> Result<(), Error> {
    let options = config.options.clone();
    let device = open_device(config)?;
    let shared = masked(config, &device);
    // Before it is opened: writing goes on beside the logs that tell of it.
    let behind =
        if options.moment.is_some() || options.super_block.is_some() { None } else { lost::look(&*shared) };
    let torn = behind.as_ref().and_then(|behind| behind.torn);
    let (mut fs, report, room) = open_volume(config, shared)?;
    let mut found = Found {
        lost: behind.map_or_else(Vec::new, |behind| lost::sentences(&behind, &mut fs)),
        notes: notes(&report),
    };
    found.notes.extend(torn.map(|torn| torn.to_string()));
    found.notes.extend(room);
    for note in found.lost.iter().chain(&found.notes) {
        tracing::warn!("{}: {note}", config.volume.display());
    }
    for unknown in options.cleaner.conf.iter().flat_map(|c| &c.unknown) {
        tracing::warn!("{unknown}");
    }
    let interval = options.interval.unwrap_or_else(|| match fs.volume().super_block().c_interval.get() {
        0 => INTERVAL,
        s => Duration::from_secs(u64::from(s)),
    });
    let tree = options.moment.map_or(Tree::Live, |m| Tree::Past(m.0));
    let core = Core::new(fs, options.clone());
    let writer = {
        let writer = Writer::new(core.clone(), interval);
        std::thread::Builder::new().name("log writer".into()).spawn(move || writer.run())?
    };
    let mut beside = Vec::new();
    let watched = core.fs.lock().volume().verifier();
    if let Some(watched) = watched {
        let core = core.clone();
        let verify = move || crate::reading::verify_metadata(&core, &watched);
        beside.push(std::thread::Builder::new().name("verifier".into()).spawn(verify)?);
    }
    {
        let core = core.clone();
        let say = move || core.damages.run(&core);
        beside.push(std::thread::Builder::new().name("damage".into()).spawn(say)?);
    }
    if core.options.gc && !core.options.read_only && !core.fs.lock().volume().is_read_only() {
        let core = core.clone();
        let clean = move || crate::defects::contain(&core, "cleaner", || crate::cleaning::run(&core));
        beside.push(std::thread::Builder::new().name("cleaner".into()).spawn(clean)?);
    } else {
        core.fs.lock().volume_mut().leave_floor(true);
    }
    {
        let core = core.clone();
        let count = move || crate::account::run(&core);
        beside.push(std::thread::Builder::new().name("account".into()).spawn(count)?);
    }
    if core.fs.lock().volume().is_backing_counted() {
        if let Err(e) = crate::host_space::begin(&core) {
            tracing::warn!("{e}");
        }
        let core = core.clone();
        let back = move || crate::defects::contain(&core, "host space", || crate::host_space::run(&core));
        beside.push(std::thread::Builder::new().name("host space".into()).spawn(back)?);
    }
    if crate::discarder::is_wanted(&options, &device) && !core.fs.lock().volume().is_read_only() {
        // What is clean already may be what a repair freed, or what a rescue is to look for; silt trim gives it back.
        if let Err(e) = core.fs.lock().volume_mut().remember_unwanted(false) {
            tracing::warn!("what may be discarded cannot be told: {e}");
        }
        let (core, period) = (core.clone(), PERIOD * interval);
        let discard = move || crate::discarder::run(&core, period);
        beside.push(std::thread::Builder::new().name("discarder".into()).spawn(discard)?);
    }
    let closer =
        Arc::new(Closer { core: core.clone(), writer: Mutex::new(Some(writer)), result: Mutex::new(None) });

    let served = serve(config, &device, &core, tree, &closer, found, ready);
    let closed = closer.close();
    // They end with the volume, and hold it till then.
    for thread in beside {
        let _ = thread.join();
    }
    served?;
    closed.map_err(|why| Error::Unclean { volume: config.volume.clone(), why })
}

fn open_device(config: &Config) -> Result<Arc<FileDevice>, Error> {
    let read_only = config.options.read_only || config.options.super_block.is_some();
    let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
    let options = silt_device::OpenOptions { direct: config.options.direct, ..Default::default() };
    Ok(Arc::new(silt_device::open(&config.volume, access, &options)?))
}

/// The device as the engine sees it.
fn masked(config: &Config, device: &Arc<FileDevice>) -> Arc<dyn Device> {
    let Some(bytes) = &config.options.super_block else { return device.clone() };
    let places = [super_block::PRIMARY_OFFSET, super_block::secondary_offset(device.len())];
    Arc::new(Masked::new(device.clone(), places.map(|at| (at, bytes.clone())).into()))
}

/// The volume, what opening found, and what was done to get room on it.
fn open_volume(config: &Config, device: Arc<dyn Device>) -> Result<(Fs, OpenReport, Option<String>), Error> {
    let o = &config.options;
    let fail = |source| Error::Volume { volume: config.volume.clone(), source };
    let mut seed = [0u8; 8];
    // Without it the time alone tells one recovery from another.
    let _ = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
    // Half for metadata blocks, a quarter for inodes (700 bytes each at most), a quarter for indexes.
    let options = OpenOptions {
        read_only: o.read_only || o.moment.is_some() || o.super_block.is_some(),
        norecovery: o.norecovery,
        cache_bytes: o.cache / 2,
        cached_inodes: usize::try_from(o.cache / 4 / 700).unwrap_or(usize::MAX),
        now: now_secs(),
        seed: u64::from_ne_bytes(seed),
        backed: true,
        ..OpenOptions::default()
    };
    let options = if o.verify { verifying(&device, options) } else { options };
    let open = |options: &OpenOptions| {
        let mut open = || Volume::open(device.clone(), options);
        // Who wants no cleaner gets none.
        let (mut volume, report, room) = if o.gc {
            silt_control::open_with_room(&mut open, &o.retention, now_secs())?
        } else {
            open().map(|(volume, report)| (volume, report, None))?
        };
        if let Some(m) = o.moment {
            volume.open_view(Cno(m.0))?;
        }
        if !options.read_only {
            volume.take_over(now_secs())?;
        }
        Ok((volume, report, room))
    };
    let (volume, report, room) = match open(&options) {
        // The metadata that writing needs is damaged: what can be read still can.
        Err(
            e @ (silt_engine::Error::Format { .. }
            | silt_engine::Error::Device(_)
            | silt_engine::Error::NoSpace),
        ) if !options.read_only => {
            let (volume, mut report, room) =
                open(&OpenOptions { read_only: true, ..options.clone() }).map_err(fail)?;
            report
                .damage
                .push(format!("what writing needs is damaged or cannot be had, so it can only be read: {e}"));
            (volume, report, room)
        }
        opened => opened.map_err(fail)?,
    };
    let index_bytes = usize::try_from(o.cache / 4).unwrap_or(usize::MAX);
    let fs = Fs::new(volume, &silt_fs::Options { index_bytes, seed: options.seed, ..Default::default() });
    Ok((fs, report, room))
}

/// Largest log of file data where logs are verified, in bytes: what the first read from it reads.
const VERIFIED_LOG: u64 = 1 << 20;

/// Options for a mount that verifies what it reads.
fn verifying(device: &Arc<dyn Device>, options: OpenOptions) -> OpenOptions {
    let block_size = silt_engine::read_super_block(&**device)
        .map_or(4096, |sb| 1 << (sb.log_block_size.get().min(6) + 10));
    OpenOptions { verify: true, max_log_blocks: VERIFIED_LOG / block_size, ..options }
}

/// What opening found, in sentences.
fn notes(report: &OpenReport) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(which) = report.torn_super_block {
        notes.push(format!("the {which} super block is damaged; the other one was used"));
    }
    if report.was_unclean {
        notes.push("it was not cleanly unmounted the last time".to_owned());
    }
    if report.rolled_forward > 0 {
        notes.push(match report.rolled_forward {
            1 => "1 block of synced data was recovered from the log".to_owned(),
            n => format!("{n} blocks of synced data were recovered from the log"),
        });
    }
    notes.extend(report.damage.iter().cloned());
    if report.has_error_flag {
        notes.push("an earlier user met an error on it; check it".to_owned());
    }
    notes
}

/// How far the kernel reads ahead of programs, in KiB.
const READ_AHEAD_KIB: u32 = 1024;

/// The device a `fuseblk` mount is made on, if it is to be one; the handle keeps a loop device.
fn block_device(
    config: &Config,
    device: &FileDevice,
    block_size: u64,
) -> (Option<BlockDevice>, Option<LoopHandle>) {
    let wanted = config.options.block_type
        && !config.options.read_only
        && rustix::process::geteuid().is_root()
        && kernel::passes_sync();
    if !wanted {
        return (None, None);
    }
    let block_size = u32::try_from(block_size.min(4096)).unwrap_or(4096);
    if device.is_block_device() {
        let path = config.volume.clone();
        return (Some(BlockDevice { path, block_size }), None);
    }
    match LoopHandle::attach(&device.open_path()) {
        Ok(handle) => {
            let path = handle.path().to_owned();
            (Some(BlockDevice { path, block_size }), Some(handle))
        }
        Err(e) => {
            tracing::info!("no loop device to mount on ({e}): sync(2) will not arrive, silt sync does");
            (None, None)
        }
    }
}

/// Whether nobody gets in whom a mode could refuse anything. To check that the kernel asks for the attributes of a directory
/// after each change in it: half of the requests of a deletion, a quarter of those of a create.
fn is_roots_alone(o: &MountOptions) -> bool {
    !o.allow_other && rustix::process::geteuid().is_root()
}

fn fuse_options(source: &Path, o: &MountOptions) -> FuseOptions {
    FuseOptions {
        source: FuseOptions::source_of(source),
        read_only: o.read_only || o.moment.is_some() || o.super_block.is_some(),
        allow_other: o.allow_other,
        default_permissions: !is_roots_alone(o),
        suid: o.suid,
        dev: o.dev,
        exec: o.exec,
        sync: o.sync,
        dirsync: o.dirsync,
        ..FuseOptions::default()
    }
}

/// The mount, whether on a block device, and the loop device that is for.
fn mount(
    config: &Config,
    device: &FileDevice,
    core: &Core,
) -> Result<(Session, bool, Option<LoopHandle>), Error> {
    let plain = fuse_options(&config.volume, &config.options);
    let (block, handle) = block_device(config, device, core.block_size);
    if let Some(block) = block {
        device.release_claim();
        let options = FuseOptions { block_device: Some(block), ..plain.clone() };
        match Session::mount(&config.dir, &options) {
            Ok(session) => return Ok((session, true, handle)),
            Err(e) => tracing::info!("not mounted as fuseblk: {e}"),
        }
        // The mount would have claimed it: now nobody does.
        device.claim_again()?;
    }
    Ok((Session::mount(&config.dir, &plain)?, false, None))
}

fn serve(
    config: &Config,
    device: &Arc<FileDevice>,
    core: &Arc<Core>,
    tree: Tree,
    closer: &Arc<Closer>,
    found: Found,
    ready: impl FnOnce(),
) -> Result<(), Error> {
    let (session, on_block_device, loop_handle) = mount(config, device, core)?;
    let dir = session.mount_point().unwrap_or(&config.dir).to_owned();
    let moments = Arc::new(Moments::default());
    let host = Arc::new(DaemonHost::new(
        config,
        &session,
        device.clone(),
        core.clone(),
        moments.clone(),
        found,
        on_block_device,
    ));
    // The name comes from what is open: another one would take the place of another volume's daemon.
    let listener = silt_control::socket::listen(&device.open_path(), config.options.allow_other)?;
    let stopper = listener.stopper();
    let server = {
        let host = host.clone();
        std::thread::Builder::new()
            .name("control".into())
            .spawn(move || silt_control::serve(listener, host))?
    };
    let on_destroy = {
        let (closer, moments) = (closer.clone(), moments.clone());
        // A moment that is still there when the live tree goes, goes with it.
        move || {
            moments.unmount_all();
            // The error, if any, is reported where `run` ends.
            let _ = closer.close();
        }
    };
    let mount = Arc::new(Mount::new(core.clone(), tree, Readers::start(core)?, on_destroy));
    let signals = signals(&dir, core, closer, &moments)?;
    let orphans = orphans(core)?;
    let running = session.spawn(mount, 1)?;
    let _ = core.notifier.set(running.notifier());
    // The first answer shows that the mount works; with it comes whether sync(2) arrives.
    probe(&dir);
    if let Err(e) = silt_fuse::set_read_ahead(&dir, READ_AHEAD_KIB) {
        tracing::debug!("the kernel's own measure of reading ahead stays: {e}");
    }
    ready();
    let ended = running.join();
    drop(loop_handle);
    signals.close();
    stopper.stop();
    let _ = server.join();
    host.stop_scrub();
    let _ = orphans.join();
    ended?;
    Ok(())
}

/// Asks the kernel to sync this mount; whether the daemon hears of it is what we learn.
fn probe(dir: &Path) {
    if let Ok(d) = std::fs::File::open(dir) {
        let _ = rustix::fs::syncfs(&d);
    }
}

/// Unmounts at SIGTERM, SIGINT and SIGHUP: at once if nobody is in it, out of sight otherwise, with
/// everything written in either case.
fn signals(
    dir: &Path,
    core: &Arc<Core>,
    closer: &Arc<Closer>,
    moments: &Arc<Moments>,
) -> Result<signal_hook::iterator::Handle, Error> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let handle = signals.handle();
    let (dir, core, closer, moments) = (dir.to_owned(), core.clone(), closer.clone(), moments.clone());
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in &mut signals {
            tracing::info!("signal {signal}: unmounting");
            let _ = core.sync_and_wait(crate::core::Want::All);
            // Before the live tree, which they may lie in.
            moments.unmount_all();
            if silt_fuse::unmount(&dir, Unmount::Strict).is_err() {
                let _ = silt_fuse::unmount(&dir, Unmount::Lazy);
                // Programs that are still in it would hold us up for ever: the volume is closed
                // now, and they see errors from here on.
                let closed = closer.close();
                if let Err(why) = &closed {
                    tracing::error!("what was written last may be lost: {why}");
                }
                std::process::exit(i32::from(closed.is_err()));
            }
        }
    })?;
    Ok(handle)
}

/// Frees inodes that a crash left without a name, a few at a time.
fn orphans(core: &Arc<Core>) -> Result<JoinHandle<()>, Error> {
    let core = core.clone();
    Ok(std::thread::Builder::new().name("orphans".into()).spawn(move || {
        if core.fs.lock().volume().is_read_only() {
            return;
        }
        loop {
            if core.queue.lock().stop {
                return;
            }
            match core.fs.lock().collect_orphans(ORPHANS) {
                Ok(true) => {}
                Ok(false) => return,
                Err(e) => {
                    tracing::warn!("looking for orphans: {e}");
                    return;
                }
            }
            core.touched();
            std::thread::sleep(Duration::from_millis(5));
        }
    })?)
}

/// For so long at most the end of a mount waits for what ends in parts.
const LATE: Duration = Duration::from_secs(20);

/// Ends writing and closes the volume, once.
pub struct Closer {
    core: Arc<Core>,
    writer: Mutex<Option<JoinHandle<()>>>,
    result: Mutex<Option<Result<(), String>>>,
}

impl Closer {
    /// The first call does it; every call returns what came of it.
    pub fn close(&self) -> Result<(), String> {
        let mut result = self.result.lock();
        if let Some(r) = &*result {
            return r.clone();
        }
        // Who waits for space hears that there is none.
        self.core.space.stop();
        self.core.space.host.stop();
        self.core.account.stop();
        // What waits may need what somebody wants to cut off.
        let _ = self.core.fs.lock().volume_mut().confine(None);
        {
            let mut queue = self.core.queue.lock();
            queue.stop = true;
            self.core.wake.notify_all();
            self.core.room.notify_all();
        }
        if let Some(writer) = self.writer.lock().take() {
            let _ = writer.join();
        }
        let stalled = self.core.stalled.load(Ordering::Relaxed);
        crate::discarder::end(&self.core);
        let mut fs = self.core.fs.lock();
        // Nobody holds files any more: those without a name can go.
        if let Err(e) = fs.forget_all() {
            tracing::warn!("{e}");
        }
        // What had no room to end may have it once the rest is written, and large files end in parts; what is left the next
        // mount ends.
        if stalled == 0
            && fs.volume().failure().is_none()
            && let Err(e) = fs.end_late(now_secs(), LATE)
        {
            tracing::warn!("{e}");
        }
        let volume = fs.volume_mut();
        if let Some(watched) = volume.verifier() {
            watched.stop();
        }
        let done = match volume.failure() {
            Some(why) => Err(why.to_owned()),
            None if stalled != 0 => Err(std::io::Error::from_raw_os_error(stalled).to_string()),
            None => volume.close(now_secs()).map_err(|e| e.to_string()),
        };
        // Nothing may change what is closed.
        volume.fail("the volume is unmounted");
        // What the last checkpoint could not take is said, too.
        let met = volume.take_damage();
        drop(fs);
        crate::host_space::end(&self.core);
        for (ino, what) in met {
            self.core.met_damage(Met::of(Tree::Live, ino, what));
        }
        self.core.damages.name_all(&self.core.fs);
        self.core.damages.stop();
        *result = Some(done.clone());
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_sentences_about_what_was_found() {
        assert!(notes(&OpenReport::default()).is_empty());
        let report = OpenReport {
            torn_super_block: Some("primary"),
            was_unclean: true,
            rolled_forward: 3,
            has_error_flag: true,
            ..OpenReport::default()
        };
        assert_eq!(notes(&report).len(), 4);
    }
}
