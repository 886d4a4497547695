//! The order in which callers, the clock and the cleaner are served.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use super::*;
use crate::changing::{Change, Takes};
use crate::config::MountOptions;
use silt_device::MemoryDevice;
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Volume};
use silt_fs::Fs;

fn writer() -> Writer {
    writer_with(MountOptions::default())
}

fn writer_with(options: MountOptions) -> Writer {
    writer_of(options, &silt_fs::Options::default())
}

fn writer_of(options: MountOptions, of_fs: &silt_fs::Options) -> Writer {
    writer_on(16 << 20, options, of_fs)
}

fn writer_on(size: u64, options: MountOptions, of_fs: &silt_fs::Options) -> Writer {
    let device = Arc::new(MemoryDevice::new(size));
    let parameters = Parameters {
        block_size: 4096,
        blocks_per_segment: 64,
        uuid: [1; 16],
        crc_seed: 7,
        now: 1000,
        block_count: true,
        ..Parameters::default()
    };
    Plan::new(parameters, size).unwrap().write(&*device, false).unwrap();
    let (volume, _) = Volume::open(device, &OpenOptions::default()).unwrap();
    let fs = Fs::new(volume, of_fs);
    Writer::new(Core::new(fs, options), Duration::from_secs(5))
}

fn ask(w: &Writer) {
    w.core.sync(Want::Data(Ino(11)), Box::new(|_| {}));
}

/// Programs that ask for their files' data all the time do not put off the checkpoint that everything
/// else waits for.
#[test]
fn a_checkpoint_is_due_whoever_asks_for_what() {
    let mut w = writer();
    ask(&w);
    assert!(!w.next().all, "their data alone");
    w.dirty_since = Instant::now().checked_sub(Duration::from_secs(6));
    ask(&w);
    let task = w.next();
    assert!(task.all && task.waiters.len() == 1);
    w.dirty_since = None;
    ask(&w);
    w.core.queue.lock().write_back = true;
    assert!(w.next().all, "much waits");
}

/// It is dropped without the lock.
#[test]
fn what_a_checkpoint_leaves_is_taken() {
    let mut w = writer();
    let before = {
        let mut fs = w.core.fs.lock();
        fs.volume_mut().take_over(2000).unwrap();
        let ctx = silt_fs::Context { privileged: true, ..silt_fs::Context::default() };
        fs.create(&ctx, Ino::ROOT, b"f", 0o644).unwrap();
        fs.volume().last_log().cno
    };
    w.serve(Vec::new(), true);
    let mut fs = w.core.fs.lock();
    assert!(fs.volume().last_log().cno > before && fs.volume_mut().take_leftovers().is_empty());
}

/// A cleaning is a checkpoint of its own: who synced before does not wait for it.
#[test]
fn who_syncs_is_answered_before_the_cleaner_goes_on() {
    let mut w = writer();
    let (tx, rx) = crossbeam_channel::bounded(1);
    let (early, cleaned) = (Arc::new(AtomicBool::new(false)), rx.clone());
    let told = early.clone();
    let answer = move |result: Result<(), i32>| {
        told.store(result.is_ok() && cleaned.is_empty(), Ordering::Relaxed);
    };
    w.core.sync(Want::All, Box::new(answer));
    w.core.queue.lock().jobs.push_back(Job::Clean(Box::default(), None, tx));
    let task = w.next();
    assert!(task.job.is_some() && task.waiters.len() == 1);
    w.round(task);
    assert!(early.load(Ordering::Relaxed) && rx.try_recv().unwrap().is_ok());
}

/// After a failure it is tried again each second, and not all the time.
#[test]
fn a_failing_writer_rests() {
    let mut w = writer();
    w.dirty_since = Instant::now().checked_sub(Duration::from_secs(6));
    w.failing = true;
    let begin = Instant::now();
    assert!(w.next().all);
    assert!(begin.elapsed() >= RETRY);
    ask(&w);
    assert_eq!(w.next().waiters.len(), 1);
    assert!(begin.elapsed() < 2 * RETRY, "who asks is served at once");
}

/// One part with each checkpoint; the answer comes with the last one.
#[test]
fn a_large_file_is_cut_off_in_parts() {
    let of_fs = silt_fs::Options { ends: 100, ..Default::default() };
    let mut w = writer_on(32 << 20, MountOptions::default(), &of_fs);
    let core = w.core.clone();
    let ctx = silt_fs::Context { privileged: true, ..silt_fs::Context::default() };
    let file = core.fs.lock().create(&ctx, Ino::ROOT, b"f", 0o100_644).unwrap().ino;
    let told = Arc::new(Mutex::new(Vec::new()));
    let write = |w: &mut Writer| {
        let flags = silt_fs::WriteFlags::default();
        assert_eq!(core.fs.lock().write(&ctx, file, 0, &vec![1; 4 << 20], flags).unwrap(), 4 << 20);
        w.round(Task { waiters: Vec::new(), all: true, job: None, stop: false });
    };
    let start = || {
        let (told, ctx) = (told.clone(), ctx.clone());
        let set = silt_fs::SetAttr { size: Some(100), ..Default::default() };
        let run = move |fs: &mut Fs| fs.setattr(&ctx, file, &set).map(|stat| (stat.size, None));
        let answer =
            move |result: Result<u64, silt_fuse::Errno>| told.lock().push(result.map_err(|e| e.raw()));
        Change { names: Vec::new(), node: None, takes: Takes::NOTHING, run, answer, begun: false }
            .start(&core);
    };
    write(&mut w);
    start();
    let (mut rounds, mut size) = (0, 4 << 20);
    while told.lock().is_empty() {
        let now = core.fs.lock().getattr(silt_engine::Tree::Live, file).unwrap().size;
        assert!(now < size && core.queue.lock().parts.len() == 1, "{now}");
        let task = w.next();
        assert!(task.all, "nobody waits for the clock");
        w.round(task);
        (rounds, size) = (rounds + 1, now);
    }
    assert_eq!(*told.lock(), [Ok(100)]);
    assert!((7..=12).contains(&rounds) && core.queue.lock().parts.is_empty(), "{rounds}");
    // While the device takes nothing nobody waits for that: the rest goes at once.
    told.lock().clear();
    write(&mut w);
    start();
    core.stalled.store(libc::EIO, Ordering::Relaxed);
    w.go_on_with_parts();
    assert_eq!(*told.lock(), [Ok(100)]);
    // Nor for a log writer that ends: it is dropped, which is an answer, too.
    core.stalled.store(0, Ordering::Relaxed);
    write(&mut w);
    core.queue.lock().stop = true;
    start();
    assert!(core.queue.lock().parts.is_empty());
}

/// Requests that find no room lie in memory as well.
#[test]
fn requests_on_their_way_are_unwritten_data_too() {
    let mut w = writer();
    Arc::get_mut(&mut w.core).unwrap().options.dirty = 8 << 20;
    let fs = w.core.fs.lock();
    assert!(!w.core.is_full(&fs, 6 << 20) && w.core.is_full(&fs, (6 << 20) + 1));
}

/// The kernel sends nothing more while as much waits as may wait, not even reads.
#[test]
fn nobody_keeps_others_from_reading_while_the_end_is_emptied() {
    let mut w = writer_with(MountOptions { dirty: 1 << 20, ..MountOptions::default() });
    let core = w.core.clone();
    let ctx = silt_fs::Context { privileged: true, ..silt_fs::Context::default() };
    let file = core.fs.lock().create(&ctx, Ino::ROOT, b"f", 0o100_644).unwrap().ino;
    w.round(Task { waiters: Vec::new(), all: true, job: None, stop: false });
    let core = &w.core;
    core.fs.lock().volume_mut().confine(Some(14)).unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    for at in 0..2 {
        let (told, ctx) = (told.clone(), ctx.clone());
        core.pace(
            Takes::data(1 << 20),
            Box::new(move |core| {
                let flags = silt_fs::WriteFlags::default();
                let written = core.fs.lock().write(&ctx, file, at << 20, &vec![1; 1 << 20], flags);
                told.lock().push(written.map_err(|e| e.errno()));
            }),
        );
    }
    assert!(core.must_wait(&core.fs.lock(), Takes::data(1 << 20)));
    w.let_paced_run();
    assert_eq!(*told.lock(), [Err(libc::ENOSPC)], "the others wait: there may be space for them");
    assert!(!core.queue.lock().paced.holds_more_than(1 << 20));
    core.fs.lock().volume_mut().confine(None).unwrap();
    w.let_paced_run();
    assert!(matches!(told.lock()[..], [_, Ok(_)]), "{:?}", told.lock());
}

/// Nor does the log writer try the same request for ever, which nobody but itself could make room for.
#[test]
fn what_is_refused_while_the_end_is_emptied_is_not_put_back() {
    let w = writer_with(MountOptions { dirty: 1 << 20, ..MountOptions::default() });
    let core = w.core.clone();
    let ctx = silt_fs::Context { privileged: true, ..silt_fs::Context::default() };
    let file = {
        let mut fs = core.fs.lock();
        let file = fs.create(&ctx, Ino::ROOT, b"f", 0o100_644).unwrap().ino;
        fs.sync_all(1001).unwrap();
        fs.volume_mut().confine(Some(14)).unwrap();
        file
    };
    core.space.enable(true);
    let told = Arc::new(Mutex::new(Vec::new()));
    for at in 0..2u64 {
        let (answers, ctx) = (told.clone(), ctx.clone());
        crate::changing::Change {
            names: Vec::new(),
            node: None,
            takes: Takes::data(1 << 20),
            run: move |fs: &mut Fs| {
                let flags = silt_fs::WriteFlags::default();
                fs.write(&ctx, file, at << 20, &vec![1; 1 << 20], flags).map(|n| (n, None))
            },
            answer: move |result: Result<usize, silt_fuse::Errno>| {
                answers.lock().push(result.map_err(|e| e.raw()));
            },
            begun: false,
        }
        .wait(&core);
    }
    assert!(core.queue.lock().paced.holds_more_than(1 << 20));
    w.let_paced_run();
    assert_eq!(*told.lock(), [Err(libc::ENOSPC)]);
    assert!(!core.queue.lock().paced.is_empty());
}

/// A removal that finds too little waits for a pass over what is there, before all others; the log writer, which lets it
/// run, does not wait for room itself.
#[test]
fn a_removal_that_is_refused_is_tried_again() {
    let w = writer_with(MountOptions { dirty: 1 << 20, ..MountOptions::default() });
    let core = &w.core;
    let ctx = silt_fs::Context { privileged: true, ..silt_fs::Context::default() };
    {
        let mut fs = core.fs.lock();
        let name = |n: u32| format!("f{n}").into_bytes();
        let mut n = 0;
        loop {
            let made = fs.create(&ctx, Ino::ROOT, &name(n), 0o100_644).map(|made| made.ino);
            let flags = silt_fs::WriteFlags::default();
            if made.and_then(|f| fs.write(&ctx, f, 0, &[1; 16 << 10], flags)).is_err() {
                if !fs.volume().has_changes() {
                    break;
                }
                fs.sync_all(1001).unwrap();
            }
            n += 1;
        }
        let mut gone = 0;
        while !fs.volume().is_short() {
            fs.unlink(&ctx, Ino::ROOT, &name(gone)).unwrap();
            fs.sync_all(1002).unwrap();
            gone += 1;
        }
        // A little is given up since nothing could be gained.
        let before = (fs.volume().given_up(), fs.volume().rewritten_blocks(), Duration::from_secs(3600));
        core.space.enable(true);
        core.space.ran(None, Some(before));
        fs.unlink(&ctx, Ino::ROOT, &name(gone)).unwrap();
    }
    let (told, mut tries) = (Arc::new(Mutex::new(Vec::new())), 0);
    let answers = told.clone();
    crate::changing::Change {
        names: Vec::new(),
        node: None,
        takes: Takes::NOTHING,
        run: move |_: &mut Fs| {
            tries += 1;
            if tries == 1 { Err(silt_fs::FsError::NoSpace) } else { Ok((tries, None)) }
        },
        answer: move |result| answers.lock().push(result),
        begun: false,
    }
    .wait(core);
    core.pace(Takes::data(2 << 20), Box::new(|_| {}));
    assert!(core.queue.lock().paced.holds_more_than(core.options.dirty));
    w.let_paced_run();
    assert!(told.lock().is_empty() && core.space.is_wanted());
    assert!(core.queue.lock().paced.first().is_some_and(|takes| !takes.space), "it comes first");
    let now = {
        let fs = core.fs.lock();
        (fs.volume().given_up(), fs.volume().rewritten_blocks(), Duration::from_secs(3600))
    };
    core.space.ran(None, Some(now));
    w.let_paced_run();
    assert!(matches!(told.lock()[..], [Ok(2)]), "{:?}", told.lock());
}

/// Who syncs does not wait for all that others may have in memory.
#[test]
fn others_are_paced_while_somebody_syncs() {
    let w = writer();
    let core = &w.core;
    // The device is slow.
    (0..40).for_each(|_| core.burst.wrote(1 << 20, Duration::from_secs(1)));
    let ctx = silt_fs::Context { privileged: true, ..silt_fs::Context::default() };
    {
        let mut fs = core.fs.lock();
        let file = fs.create(&ctx, Ino::ROOT, b"f", 0o100_644).unwrap().ino;
        for i in 0..5 {
            fs.write(&ctx, file, i << 20, &vec![1; 1 << 20], silt_fs::WriteFlags::default()).unwrap();
        }
    }
    ask(&w);
    assert!(!core.must_wait(&core.fs.lock(), Takes::NAMES), "nobody syncs again and again");
    (0..3).for_each(|_| ask(&w));
    assert!(core.must_wait(&core.fs.lock(), Takes::NAMES));
    // What cannot be written now is a matter of the limit of memory alone.
    core.stalled.store(libc::ENOSPC, Ordering::Relaxed);
    assert!(!core.must_wait(&core.fs.lock(), Takes::NAMES));
    core.stalled.store(0, Ordering::Relaxed);
    let now = now_secs();
    core.fs.lock().volume_mut().begin_checkpoint(now).unwrap();
    assert!(!core.must_wait(&core.fs.lock(), Takes::NAMES), "the next log is empty yet");
}
