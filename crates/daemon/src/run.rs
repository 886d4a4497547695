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
use std::thread::JoinHandle;
use std::time::Duration;

use silt_control::lost;
use silt_device::FileDevice;
use silt_engine::Tree;
use silt_fuse::{BlockDevice, Destroy, MountOptions as FuseOptions, Place, Session, Unmount};
use silt_verify::Behind;

use crate::Error;
use crate::claim::{Ending, Gated, Unserved};
use crate::closing::Closer;
use crate::config::{Config, MountOptions};
use crate::core::Core;
use crate::first::First;
use crate::host::{DaemonHost, Found};
use crate::kernel;
use crate::loop_handle::LoopHandle;
use crate::moments::Moments;
use crate::mount::Mount;
use crate::opening::{masked, notes, open_device, open_volume};
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
    let gate = device.is_block_device().then(|| Arc::new(Gated::new(device.clone())));
    let shared = masked(config, &device, gate.as_ref());
    // Before it is opened: writing goes on beside the logs that tell of it.
    let behind =
        if options.moment.is_some() || options.super_block.is_some() { None } else { lost::look(&*shared) };
    let untold: Vec<String> = behind.iter().flat_map(Behind::untold).collect();
    // Those of the session and of the moments come from here, too.
    crate::slices::ask();
    let unreached = behind.as_ref().map_or_else(Vec::new, |behind| behind.segments.clone());
    let (mut fs, report, room) = open_volume(config, shared, unreached)?;
    let mut found = Found {
        lost: behind.map_or_else(Vec::new, |behind| lost::sentences(&behind, &mut fs)),
        notes: notes(&report),
    };
    found.notes.extend(untold);
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
    crate::host_space::tell_of_super_block(&core);
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
    let closer = Closer::new(core.clone(), writer);
    let ending = Arc::new(Ending::new(core.clone(), closer, device.clone(), gate));

    let served = serve(config, &device, &core, tree, &ending, found, ready);
    let closed = ending.close(false, || {});
    // They end with the volume, and hold it till then.
    for thread in beside {
        let _ = thread.join();
    }
    served?;
    closed.map_err(|why| Error::Unclean { volume: config.volume.clone(), why })
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
    block_size: u64,
    ending: &Ending,
) -> Result<(Session, bool, Option<LoopHandle>), Error> {
    let plain = fuse_options(&config.volume, &config.options);
    let (block, handle) = block_device(config, device, block_size);
    if let Some(block) = block {
        let options = FuseOptions { block_device: Some(block), ..plain.clone() };
        let mount = || {
            let mounted = Session::mount(&config.dir, &options);
            mounted.inspect_err(|e| tracing::info!("not mounted as fuseblk: {e}")).ok()
        };
        if let Some(session) = ending.hand_over(mount)? {
            return Ok((session, true, handle));
        }
    }
    Ok((Session::mount(&config.dir, &plain)?, false, None))
}

fn serve(
    config: &Config,
    device: &Arc<FileDevice>,
    core: &Arc<Core>,
    tree: Tree,
    ending: &Arc<Ending>,
    found: Found,
    ready: impl FnOnce(),
) -> Result<(), Error> {
    let (session, on_block_device, loop_handle) = mount(config, device, core.block_size, ending)?;
    let place = session.place().cloned();
    let place = place.unwrap_or_else(|| Place { path: config.dir.clone(), connection: None });
    let first = Arc::new(First::new(place, matches!(tree, Tree::Past(_))));
    if on_block_device {
        ending.is_held_by(&first);
    }
    core.background.is_of(first.connection().flatten());
    // It goes before the session does.
    let mut unserved = Unserved { ending, is_served: false };
    let dir = first.path().to_owned();
    let readers = Arc::new(Readers::start(core)?);
    let moments = Arc::new(Moments::new(readers.clone()));
    let host = Arc::new(DaemonHost::new(
        config,
        first.clone(),
        ending.clone(),
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
        let (ending, moments, first) = (ending.clone(), moments.clone(), first.clone());
        let device = device.clone();
        // A moment that is still there when the live tree goes, goes with it, and outlives another one.
        move |how| {
            // What is asked about it later is of another one.
            first.let_go();
            if first.is_moment() {
                return;
            }
            // The error, if any, is reported where `run` ends.
            let _ = ending.close(how == Destroy::Asked, || moments.unmount_all());
            device.let_go();
        }
    };
    let mount = Arc::new(Mount::new(core.clone(), tree, readers, on_destroy));
    let signals = signals(&first, core, ending, &moments)?;
    let orphans = orphans(core)?;
    let running = ending.serve(|| session.spawn(mount, 1))?;
    unserved.is_served = true;
    let _ = core.notifier.set(running.notifier());
    // The first answer shows that the mount works; with it comes whether sync(2) arrives.
    probe(&dir);
    if let Err(e) = silt_fuse::set_read_ahead(&dir, READ_AHEAD_KIB) {
        tracing::debug!("the kernel's own measure of reading ahead stays: {e}");
    }
    ready();
    let ended = running.join();
    first.wait_for(&moments);
    drop(loop_handle);
    signals.close();
    stopper.stop();
    let _ = server.join();
    // One that came just before.
    moments.unmount_all();
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
    first: &Arc<First>,
    core: &Arc<Core>,
    ending: &Arc<Ending>,
    moments: &Arc<Moments>,
) -> Result<signal_hook::iterator::Handle, Error> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let handle = signals.handle();
    let (core, ending, moments, first) = (core.clone(), ending.clone(), moments.clone(), first.clone());
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in &mut signals {
            tracing::info!("signal {signal}: unmounting");
            if ending.is_in_sight() {
                let _ = core.sync_and_wait(crate::core::Want::All);
                // Before the live tree, which they may lie in.
                moments.unmount_all();
                if first.unmount(Unmount::Strict).is_ok() {
                    continue;
                }
                if let Err(e) = first.unmount(Unmount::Lazy) {
                    tracing::info!("{e}");
                }
            }
            // Programs that are still in it, or a mount over it, would hold us up for ever: the volume is closed
            // now, and they see errors from here on.
            let closed = ending.close(false, || moments.unmount_all());
            if let Err(why) = &closed {
                tracing::error!("what was written last may be lost: {why}");
            }
            std::process::exit(i32::from(closed.is_err()));
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
                // Those behind it are looked at all the same.
                Err(e) => tracing::warn!("looking for orphans: {e}"),
            }
            core.touched();
            std::thread::sleep(Duration::from_millis(5));
        }
    })?)
}
