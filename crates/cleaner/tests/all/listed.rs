//! The list of the past that a run of the cleaner goes by is read on while it runs.

use std::sync::Arc;

use silt_cleaner::{History, Options, Whole, pass};
use silt_device::MemoryDevice;
use silt_engine::Volume;
use silt_engine::mkfs::Parameters;
use silt_format::{Cno, Ino};

use crate::common::{self, file};

const BLOCKS: u64 = 600;

fn volume() -> (Volume, Ino) {
    let device = Arc::new(MemoryDevice::new(32 << 20));
    let mut v = common::volume(&device, Parameters { blocks_per_segment: 64, ..Parameters::default() });
    let ino = file(&mut v);
    write(&mut v, ino, 1);
    (v, ino)
}

/// All of the file, as a checkpoint.
fn write(v: &mut Volume, ino: Ino, byte: u8) {
    let bs = v.geometry().bs();
    for key in 0..BLOCKS {
        v.write_block(ino, key, vec![byte; bs].into()).unwrap();
    }
    v.checkpoint(3000 + u64::from(byte)).unwrap();
}

#[test]
fn it_goes_on_where_it_ended() {
    let (mut v, ino) = volume();
    let mut history = History::read(&Whole::new(&mut v, 4000)).unwrap();
    let before = history.points.len();
    for byte in 2..5 {
        write(&mut v, ino, byte);
    }
    let made = v.last_log().cno;
    v.make_snapshot(Cno(made)).unwrap();
    v.checkpoint(4000).unwrap();
    history.read_on(&Whole::new(&mut v, 4000)).unwrap();
    let anew = History::read(&Whole::new(&mut v, 4000)).unwrap();
    assert!(anew.points.len() > before + 2 && anew.snapshots() == [made]);
    assert_eq!(
        (&history.points, history.snapshots(), history.end),
        (&anew.points, anew.snapshots(), anew.end)
    );
    history.read_on(&Whole::new(&mut v, 4000)).unwrap();
    assert_eq!(history.points, anew.points, "nothing is listed twice");
}

/// What was written and died since the list was read is kept by it; once it is read on, it is not.
#[test]
fn what_died_meanwhile_is_emptied() {
    let cleaned = |reads_on: bool| {
        let (mut v, ino) = volume();
        let mut history = History::read(&Whole::new(&mut v, 4000)).unwrap();
        write(&mut v, ino, 2);
        write(&mut v, ino, 3);
        let whole = Whole::new(&mut v, 4000);
        if reads_on {
            history.read_on(&whole).unwrap();
        }
        let mut options = Options { now: 4000, least: 32, ..Options::default() };
        history.keep(&[], &mut options);
        pass(&whole, &options, |_, _| true).unwrap().cleaned
    };
    let (stale, fresh) = (cleaned(false), cleaned(true));
    assert!(fresh.moved < BLOCKS / 4, "{fresh:?}");
    // Nine of them hold what the second one wrote.
    assert!(stale.segments + 8 <= fresh.segments, "{stale:?} {fresh:?}");
}
