//! Volumes on which the kernel left no segment to write to.

use std::ops::ControlFlow;
use std::sync::Arc;

use silt_control::open_with_room;
use silt_control::retention::Given;
use silt_device::{CrashOptions, CrashStates, Device, MemoryDevice, Recorder};
use silt_engine::{OpenOptions, Volume};
use silt_format::SegNr;
use silt_format::segment_usage::{self, SuEntry};
use silt_format::summary::SYNDT;
use silt_fs::{Context, Fs, Ino, Tree};
use silt_verify::golden::{WEDGED, WEDGED_FILE, open, wedged_content};
use silt_verify::surgeon::Surgeon;

const NOW: u64 = 1_800_000_000;

fn names(fs: &mut Fs) -> Vec<String> {
    let mut names = Vec::new();
    fs.readdir(Tree::Live, Ino::ROOT, 0, true, |e| {
        if e.stat.as_ref().is_some_and(|s| s.is_regular()) {
            names.push(String::from_utf8_lossy(e.name).into_owned());
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    names
}

fn read(fs: &mut Fs, name: &str) -> Vec<u8> {
    let ino = fs.lookup(Tree::Live, Ino::ROOT, name.as_bytes()).unwrap().ino;
    fs.read(Tree::Live, ino, 0, 2 * WEDGED_FILE).unwrap()
}

fn with_room(device: &Arc<dyn Device>) -> (Volume, Option<String>) {
    let options = OpenOptions { now: NOW, ..OpenOptions::default() };
    // All of what the kernel made in some minutes may be young: for how long nobody had the volume is not known for certain.
    let given = Given { wish: Some("one an hour for 1 month".parse().unwrap()), ..Given::default() };
    let (volume, _, note) = open_with_room(device, &options, &given, NOW).unwrap();
    (volume, note)
}

/// Room is made, and then files can be removed and made, while the volume loses nothing.
fn live(device: &Arc<dyn Device>) {
    let (mut volume, note) = with_room(device);
    assert!(note.unwrap().contains("were emptied"));
    assert!(!volume.is_wedged());
    volume.take_over(NOW).unwrap();
    let mut fs = Fs::new(volume, &silt_fs::Options::default());
    let context = Context { privileged: true, ..Context::default() };
    for n in 10..14 {
        fs.unlink(&context, Ino::ROOT, format!("f{n}").as_bytes()).unwrap();
        fs.sync_all(NOW + n).unwrap();
    }
    for name in names(&mut fs) {
        assert_eq!(read(&mut fs, &name), wedged_content(&name), "{name}");
    }
    fs.volume_mut().close(NOW + 100).unwrap();
}

#[test]
fn what_the_kernel_wedged_can_be_written_again() {
    for name in WEDGED {
        let image: Arc<dyn Device> = Arc::new(open(name));
        {
            // As it is, nothing fits.
            let (volume, _) = Volume::open(image.clone(), &OpenOptions::default()).unwrap();
            assert!(volume.is_wedged() && volume.available_segments() == 0, "{name}");
        }
        live(&image);
        let report = silt_verify::check(&*image, &silt_verify::Options::default());
        assert!(report.is_clean(), "{name}: {}", report.error_text());
        let (volume, note) = with_room(&image);
        assert!(note.is_none() && !volume.is_wedged(), "{name}: {note:?}");
    }
}

/// Wherever the power fails while room is made, every file is there and room can be made again.
#[test]
fn a_power_cut_while_room_is_made_loses_nothing() {
    for name in WEDGED {
        let base: MemoryDevice = open(name);
        let recorder = Arc::new(Recorder::new(base.fork()));
        let device: Arc<dyn Device> = recorder.clone();
        live(&device);
        let options = CrashOptions { seed: 5, max_states: 60, per_flush: 6 };
        let mut states = 0;
        for state in CrashStates::new(&base, recorder.record().events(), options) {
            let state = state.unwrap();
            let what = format!("{name}, {}", state.cut);
            let device: Arc<dyn Device> = Arc::new(state.device);
            let report = silt_verify::check(&*device, &silt_verify::Options::default());
            assert!(report.is_clean(), "{what}: {}", report.error_text());
            let (mut volume, _) = with_room(&device);
            volume.take_over(NOW + 200).unwrap_or_else(|e| panic!("{what}: {e}"));
            let mut fs = Fs::new(volume, &silt_fs::Options::default());
            let there = names(&mut fs);
            let all = match name {
                "wedged-4k" => 260,
                "wedged-1k" => 140,
                _ => 530,
            };
            assert!((all - 4..=all).contains(&there.len()), "{what}: {} files", there.len());
            for n in &there {
                assert!(read(&mut fs, n) == wedged_content(n), "{what}: {n}");
            }
            let context = Context { privileged: true, ..Context::default() };
            fs.unlink(&context, Ino::ROOT, b"f20").unwrap_or_else(|e| panic!("{what}: {e}"));
            fs.sync_all(NOW + 300).unwrap_or_else(|e| panic!("{what}: {e}"));
            fs.volume_mut().close(NOW + 400).unwrap_or_else(|e| panic!("{what}: {e}"));
            states += 1;
        }
        assert!(states >= 40, "{name}: {states} states");
    }
}

/// A volume of the kernel's with synced data behind its newest checkpoint on which nothing is clean; `in_use` of its segments, which were,
/// hold nothing and pass for in use, as a recovery before left them for a cleaner.
fn full_behind_a_recovery(in_use: usize) -> Surgeon {
    let mut s = Surgeon::golden("dsync-4k");
    let g = s.g();
    let tail: Vec<u64> =
        (0..g.nsegments).filter(|n| s.logs(*n).iter().any(|l| l.header.has(SYNDT))).collect();
    let usage = s.file(5);
    let clean = |s: &Surgeon, n: u64| {
        let (block, byte) = segment_usage::place(&g, SegNr(n));
        SuEntry::read(&s.read(usage[&block]), byte).unwrap().is_clean()
    };
    let free: Vec<u64> =
        (0..g.nsegments).filter(|n| clean(&s, *n) && !tail.contains(n)).take(in_use).collect();
    assert_eq!(free.len(), in_use);
    s.fill();
    set_usage(&mut s, &free, |e| {
        *e = SuEntry::CLEAN;
        e.flags = segment_usage::DIRTY.into();
    });
    s
}

/// Changes entries of the table of segments, and the number of those in use with them.
fn set_usage(s: &mut Surgeon, segments: &[u64], change: impl Fn(&mut SuEntry)) {
    let (g, usage) = (s.g(), s.file(5));
    let mut more = 0;
    for n in segments {
        let (block, byte) = segment_usage::place(&g, SegNr(*n));
        s.patch(usage[&block], |b| {
            let mut e = SuEntry::read(b, byte).unwrap();
            more += u64::from(!e.is_dirty());
            change(&mut e);
            e.store(b, byte);
        });
    }
    s.patch(usage[&0], |b| {
        let mut h = segment_usage::header(b).unwrap();
        h.ndirtysegs = (h.ndirtysegs.get() + more).into();
        segment_usage::store_header(b, &h);
    });
}

/// What a recovery left for a cleaner takes the next one.
#[test]
fn garbage_of_a_recovery_is_room_for_the_next() {
    let device: Arc<dyn Device> = Arc::new(full_behind_a_recovery(4).device);
    let (mut volume, _) = with_room(&device);
    volume.take_over(NOW).unwrap();
    volume.close(NOW).unwrap();
    let report = silt_verify::check(&*device, &silt_verify::Options::default());
    assert!(report.is_clean(), "{}", report.error_text());
}

/// The table of segments alone is not believed.
#[test]
fn what_only_passes_for_garbage_is_not_written_over() {
    let mut s = full_behind_a_recovery(0);
    let (g, usage, latest) = (s.g(), s.file(5), s.latest().pos);
    let is_used = |n: &u64| {
        let (block, byte) = segment_usage::place(&g, SegNr(*n));
        let e = SuEntry::read(&s.read(usage[&block]), byte).unwrap();
        e.is_dirty() && e.nblocks.get() > 0 && g.segment_of(latest).0 != *n
    };
    let used: Vec<u64> = (0..g.nsegments).filter(is_used).collect();
    assert!(!used.is_empty());
    set_usage(&mut s, &used, |e| e.nblocks = 0.into());
    let device: Arc<dyn Device> = Arc::new(s.device);
    let opened = Volume::open(device, &OpenOptions::default()).map(|_| ());
    assert!(matches!(opened, Err(silt_engine::Error::NoSpace)), "{opened:?}");
}
