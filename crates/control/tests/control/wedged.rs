//! Volumes on which the kernel left no segment to write to.

use std::ops::ControlFlow;
use std::sync::Arc;

use silt_control::open_with_room;
use silt_control::retention::Given;
use silt_device::{CrashOptions, CrashStates, Device, MemoryDevice, Recorder};
use silt_engine::{OpenOptions, Volume};
use silt_fs::{Context, Fs, Ino, Tree};
use silt_verify::golden::{WEDGED, WEDGED_FILE, open, wedged_content};

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
    let mut opened = || Volume::open(device.clone(), &options);
    let (volume, _, note) = open_with_room(&mut opened, &Given::default(), NOW).unwrap();
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
