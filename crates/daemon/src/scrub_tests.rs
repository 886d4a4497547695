//! A scrub gives way to those who wait for space, and is gone on with.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use silt_control::scrub::{ScrubAction, ScrubStatus};
use silt_device::MemoryDevice;
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Volume};
use silt_format::Ino;
use silt_fs::{Context, Fs, WriteFlags};

use crate::config::MountOptions;
use crate::core::Core;
use crate::scrub::Scrubber;

const SIZE: u64 = 32 << 20;

/// A volume of some logs, as it is after a mount.
fn core() -> Arc<Core> {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let parameters = Parameters { blocks_per_segment: 64, now: 1000, ..Parameters::default() };
    Plan::new(parameters, SIZE).unwrap().write(&*device, false).unwrap();
    let (mut volume, _) = Volume::open(device, &OpenOptions::default()).unwrap();
    volume.take_over(2000).unwrap();
    let mut fs = Fs::new(volume, &silt_fs::Options::default());
    let ctx = Context { privileged: true, ..Context::default() };
    for n in 0..20u8 {
        let file = fs.create(&ctx, Ino::ROOT, &[b'a' + n], 0o644).unwrap();
        fs.write(&ctx, file.ino, 0, &vec![n; 400_000], WriteFlags::default()).unwrap();
        // All at one time: the super blocks are written after the first only, and stay there.
        fs.sync_all(3000).unwrap();
    }
    Core::new(fs, MountOptions::default())
}

fn start(scrubber: &Scrubber, state: &Path, rate: u64) -> ScrubStatus {
    let state = state.to_owned();
    let action = ScrubAction::Start { rate: Some(rate), live_only: false, restart: false, state };
    scrubber.act(&action).unwrap()
}

/// Waits for the scrub to be as wanted.
fn until(scrubber: &Scrubber, what: &str, is: impl Fn(&ScrubStatus) -> bool) -> ScrubStatus {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let status = scrubber.act(&ScrubAction::Status).unwrap();
        if is(&status) {
            return status;
        }
        assert!(Instant::now() < end, "{what}: {status:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn verified(status: &ScrubStatus) -> u64 {
    status.pass.as_ref().map_or(0, |p| p.counts.logs)
}

/// Somebody waits for space until the cleaner has looked; it does not come to that, since nobody makes its checkpoints.
fn want_space(core: &Arc<Core>) -> std::thread::JoinHandle<()> {
    let cleaner = core.clone();
    let thread = std::thread::spawn(move || crate::cleaning::run(&cleaner));
    let end = Instant::now() + Duration::from_secs(60);
    while !core.space.is_wanted() {
        assert!(Instant::now() < end, "the cleaner does not run");
        core.space.may_come(core.fs.lock().volume(), 1 << 40);
        std::thread::sleep(Duration::from_millis(1));
    }
    thread
}

/// A log that a mount reads on its way from the super block to the newest one is damaged, the first of its segment: a
/// mount comes no further, but a scrub looks at what lies behind it all the same, and names it.
#[test]
fn a_damaged_log_hides_none_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("pass");
    let core = core();
    let mut bytes = vec![0; SIZE as usize];
    core.device.read_at(0, &mut bytes).unwrap();
    // The tenth block of the seventh segment is a file's data.
    let block = 6 * 64 + 10;
    let content = &bytes[block * 4096..][..4096];
    let n = content[0];
    assert!((2..15).contains(&n) && content == [n; 4096], "neither of the first files nor of the last");
    let scrubber = Scrubber::new(core.clone());
    let scrubbed = || {
        start(&scrubber, &state, 1 << 30);
        until(&scrubber, "its end", |s| !s.running).pass.unwrap()
    };
    let whole = scrubbed();
    core.device.write_at(block as u64 * 4096 + 100, &[&[n ^ 1]]).unwrap();
    let pass = scrubbed();
    assert!(pass.finished && pass.counts == whole.counts, "{pass:?}");
    let told = pass.findings.iter().flat_map(|f| f.lines(pass.block_size)).collect::<Vec<_>>().join("\n");
    let name = char::from(b'a' + n);
    assert!(pass.damaged() == 1 && told.contains(&format!("content of /{name} (inode")), "{told}");
}

#[test]
fn a_scrub_gives_way_to_who_waits_for_space_and_is_gone_on_with() {
    for paused in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("pass");
        let core = core();
        let scrubber = Scrubber::new(core.clone());
        // Slow enough to last for ever.
        assert!(start(&scrubber, &state, 1 << 20).running);
        let status = until(&scrubber, "it verifies", |s| verified(s) > 2);
        assert!(status.running, "{status:?}");
        if paused {
            scrubber.act(&ScrubAction::Pause).unwrap();
        } else {
            // Where it rests for hours.
            scrubber.stop();
            start(&scrubber, &state, 100);
        }
        let begin = Instant::now();
        let cleaner = want_space(&core);
        let ended = until(&scrubber, "it gives way", |s| !s.running);
        assert!(begin.elapsed() < Duration::from_secs(20), "at once, not when it has rested");
        assert!(ended.trouble.as_ref().is_some_and(|t| t.contains("space is short")), "{ended:?}");
        let pass = ended.pass.unwrap();
        assert!(!pass.finished && pass.counts.logs > 2);
        // What it holds back may be written.
        assert!(core.space.is_wanted());

        core.space.stop();
        core.queue.lock().stop = true;
        core.queue.lock().jobs.clear();
        cleaner.join().unwrap();
        core.queue.lock().stop = false;
        assert!(!core.space.is_wanted());
        start(&scrubber, &state, u64::MAX);
        let done = until(&scrubber, "it comes to its end", |s| !s.running);
        let end = done.pass.unwrap();
        assert!(end.finished && done.trouble.is_none() && end.findings.is_empty(), "{end:?}");
        assert!(end.counts.logs > pass.counts.logs + 5, "{end:?}");
        // What was verified before is not verified again: each log once.
        let whole = dir.path().join("whole");
        start(&scrubber, &whole, u64::MAX);
        let whole = until(&scrubber, "all at once", |s| !s.running).pass.unwrap();
        assert_eq!(end.counts.logs, whole.counts.logs);
    }
}

/// What is freed while a scrub runs is not written again before it has ended.
#[test]
fn a_scrub_holds_back_what_is_freed_only_while_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let core = core();
    let scrubber = Scrubber::new(core.clone());
    start(&scrubber, &dir.path().join("pass"), 1 << 20);
    {
        let mut fs = core.fs.lock();
        let ctx = Context { privileged: true, ..Context::default() };
        for n in 0..20u8 {
            fs.unlink(&ctx, Ino::ROOT, &[b'a' + n]).unwrap();
        }
        fs.sync_all(5000).unwrap();
        let whole = silt_cleaner::Whole::new(fs.volume_mut(), 6000);
        let outcome =
            silt_cleaner::run(&whole, &silt_cleaner::Options { now: 6000, ..Default::default() }, |_| true)
                .unwrap();
        assert!(outcome.cleaned.segments > 5, "{outcome:?}");
        fs.volume_mut().freed_are_durable();
        assert!(fs.volume().held_segments() >= outcome.cleaned.segments);
    }
    assert!(scrubber.act(&ScrubAction::Status).unwrap().running);
    scrubber.stop();
    let mut fs = core.fs.lock();
    fs.volume_mut().freed_are_durable();
    assert_eq!(fs.volume().held_segments(), 0);
}
