//! Space: what is promised, what is refused, and that refusing leaves no trace.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Form, device, file, fresh, open, root_at, stat};
use silt_device::{Capabilities, Counter, Device, MemoryDevice};
use silt_engine::{OpenOptions, Volume};
use silt_fs::{Fs, FsError, Ino, Options, Reclaimable, SetAttr, Tree, WriteFlags, fallocate_mode};

const ROOT: Ino = Ino::ROOT;
/// Blocks kept besides what is promised: two segments.
const SLACK: u64 = 64;
const PER_SEGMENT: u32 = 32;
const PLAIN: WriteFlags = WriteFlags { append: false, cached: false, late: false, kill_suidgid: false };

fn small() -> Fs {
    let form = Form { block_size: 1024, blocks_per_segment: PER_SEGMENT, size: 2 << 20 };
    open(device(form), &Options::default())
}

/// Fills a file until the volume is full and nothing waits; how many bytes it got.
fn fill_up(fs: &mut Fs, ino: Ino) -> u64 {
    let (mut at, mut tries) = (0, 0);
    while tries < 3 {
        match fs.write(&root_at(20), ino, at, &[3; 1024], PLAIN) {
            Ok(n) => {
                at += n as u64;
                tries = 0;
            }
            Err(e) => {
                assert_eq!(e, FsError::NoSpace);
                tries += 1;
                fs.sync_all(30).unwrap();
            }
        }
    }
    at
}

#[test]
fn a_full_volume_says_so_and_nothing_changes() {
    let mut fs = small();
    let c = root_at(10);
    let f = fs.create(&c, ROOT, b"f", 0o644).unwrap().ino;
    let d = fs.mkdir(&c, ROOT, b"d", 0o755).unwrap().ino;
    let size = fill_up(&mut fs, f);
    assert!(size > 200_000, "{size}");
    let before = (stat(&mut fs, "/"), stat(&mut fs, "f"), fs.volume().stat().unwrap().inodes);
    let c = root_at(99);
    let full = FsError::NoSpace;
    assert_eq!(fs.create(&c, ROOT, b"g", 0).unwrap_err(), full);
    assert_eq!(fs.mkdir(&c, ROOT, b"g", 0).unwrap_err(), full);
    assert_eq!(fs.symlink(&c, ROOT, b"g", b"x").unwrap_err(), full);
    assert_eq!(fs.link(&c, f, ROOT, b"g").unwrap_err(), full);
    assert_eq!(fs.rename(&c, ROOT, b"f", d, b"f", 0).unwrap_err(), full);
    assert_eq!(fs.write(&c, f, size, &[1; 5000], PLAIN).unwrap_err(), full);
    assert_eq!(fs.fallocate(&c, f, 0, 0, 1 << 40).unwrap_err(), full);
    assert_eq!(before, (stat(&mut fs, "/"), stat(&mut fs, "f"), fs.volume().stat().unwrap().inodes));
    assert_eq!(fs.lookup(Tree::Live, ROOT, b"g").unwrap_err(), FsError::NotFound);
    assert_eq!(fs.statfs(Tree::Live).unwrap().blocks_available, 0);
}

#[test]
fn a_full_volume_can_be_emptied() {
    let mut fs = small();
    let c = root_at(10);
    let d = fs.mkdir(&c, ROOT, b"d", 0o755).unwrap().ino;
    for i in 0..20 {
        let f = fs.create(&c, d, format!("f{i}").as_bytes(), 0o644).unwrap().ino;
        fs.write(&c, f, 0, &[1; 2000], PLAIN).unwrap();
    }
    let big = fs.create(&c, ROOT, b"big", 0o644).unwrap().ino;
    fill_up(&mut fs, big);
    fs.sync_all(40).unwrap();
    assert_eq!(fs.create(&c, d, b"more", 0).unwrap_err(), FsError::NoSpace);
    fs.setattr(&c, big, &SetAttr { size: Some(100), ..SetAttr::default() }).unwrap();
    for i in 0..20 {
        fs.unlink(&c, d, format!("f{i}").as_bytes()).unwrap();
    }
    fs.rmdir(&c, ROOT, b"d").unwrap();
    fs.setattr(&c, big, &SetAttr { mode: Some(0), ..SetAttr::default() }).unwrap();
    fs.unlink(&c, ROOT, b"big").unwrap();
    fs.sync_all(50).unwrap();
}

/// What df no longer names for so many promised blocks: they and what their logs take besides, in whole segments.
fn is_promise_of(blocks: u64, taken: u64) -> bool {
    let least = blocks + SLACK;
    (least..least + 2 * u64::from(PER_SEGMENT)).contains(&taken)
}

#[test]
fn reserved_space_is_kept_for_its_file() {
    let mut fs = small();
    let c = root_at(10);
    let keep = fs.create(&c, ROOT, b"keep", 0o644).unwrap().ino;
    let other = fs.create(&c, ROOT, b"other", 0o644).unwrap().ino;
    let available = fs.statfs(Tree::Live).unwrap().blocks_available;
    fs.fallocate(&c, keep, fallocate_mode::KEEP_SIZE, 0, 200 << 10).unwrap();
    fs.fallocate(&c, keep, 0, 100 << 10, 100 << 10).unwrap();
    let taken = available - fs.statfs(Tree::Live).unwrap().blocks_available;
    assert!(is_promise_of(200, taken), "{taken}");
    assert_eq!((stat(&mut fs, "keep").size, stat(&mut fs, "keep").blocks), (200 << 10, 0));
    fill_up(&mut fs, other);
    assert_eq!(fs.write(&c, other, 0, &[1; 3000], PLAIN).unwrap_err(), FsError::NoSpace);
    for at in (0..200 << 10).step_by(4096) {
        assert_eq!(fs.write(&c, keep, at, &[7; 4096], PLAIN).unwrap(), 4096, "at {at}");
    }
    // Cutting off, punching and deleting end the promise.
    let mut fs = small();
    let f = fs.create(&c, ROOT, b"f", 0o644).unwrap().ino;
    let before = fs.statfs(Tree::Live).unwrap().blocks_available;
    let promised = |fs: &mut Fs| before - fs.statfs(Tree::Live).unwrap().blocks_available;
    fs.fallocate(&c, f, 0, 0, 100 << 10).unwrap();
    let taken = promised(&mut fs);
    assert!(is_promise_of(100, taken), "{taken}");
    fs.setattr(&c, f, &SetAttr { size: Some(50 << 10), ..SetAttr::default() }).unwrap();
    let taken = promised(&mut fs);
    assert!(is_promise_of(50, taken), "{taken}");
    fs.fallocate(&c, f, 3, 10 << 10, 5 << 10).unwrap();
    let taken = promised(&mut fs);
    assert!(is_promise_of(45, taken), "{taken}");
    fs.unlink(&c, ROOT, b"f").unwrap();
    assert_eq!(promised(&mut fs), 0);
}

/// Who waits for space knows for how much, and whether it can come.
#[test]
fn what_a_promise_lacks_is_told_before() {
    let mut fs = small();
    let c = root_at(10);
    let f = fs.create(&c, ROOT, b"f", 0o644).unwrap().ino;
    let (keep, punch, zero) = (
        fallocate_mode::KEEP_SIZE,
        fallocate_mode::KEEP_SIZE | fallocate_mode::PUNCH_HOLE,
        fallocate_mode::ZERO_RANGE,
    );
    let lacks = |fs: &mut Fs, mode, at: u64, len: u64| fs.lacks(f, mode, at << 10, len << 10);
    assert_eq!(lacks(&mut fs, 0, 0, 100), Ok(100));
    fs.write(&c, f, 10 << 10, &[1; 5 << 10], PLAIN).unwrap();
    assert_eq!(lacks(&mut fs, keep, 0, 100), Ok(95));
    assert_eq!(lacks(&mut fs, zero, 0, 100), Ok(100), "what is there becomes a hole");
    assert_eq!((lacks(&mut fs, punch, 0, 100), lacks(&mut fs, 0, 11, 2)), (Ok(0), Ok(0)));
    assert_eq!(lacks(&mut fs, punch - keep, 0, 1), Err(FsError::NotSupported));
    assert_eq!(lacks(&mut fs, 0, 0, 0), Err(FsError::Invalid));
    fs.fallocate(&c, f, keep, 0, 60 << 10).unwrap();
    assert_eq!((lacks(&mut fs, 0, 0, 60), lacks(&mut fs, zero, 0, 60)), (Ok(0), Ok(5 + 55 + SLACK)));
    assert_eq!(lacks(&mut fs, 0, 50, 20), Ok(10 + 55 + SLACK), "besides what is promised");
    // What is used can come where the cleaner finds so much.
    fs.sync_all(20).unwrap();
    let most = (1..4096).rev().find(|n| fs.volume().check_space(*n).is_ok()).unwrap();
    assert!(fs.could_have(most).unwrap() && !fs.could_have(most + 32).unwrap());
    fill_up(&mut fs, f);
    fs.sync_all(30).unwrap();
    assert!(!fs.could_have(200).unwrap());
    let clean_segments = fs.volume().stat().unwrap().clean_segments;
    let rewritten = fs.volume().rewritten_blocks();
    fs.set_reclaimable(Some(Reclaimable { blocks: 400, clean_segments, rewritten }));
    assert!(fs.could_have(200).unwrap() && !fs.could_have(450).unwrap());
    // What was written since it was counted may come as well.
    let most = |fs: &mut silt_fs::Fs| (1..2000).rev().find(|n| fs.could_have(*n).unwrap()).unwrap();
    let before = most(&mut fs);
    let earlier = rewritten - 200;
    fs.set_reclaimable(Some(Reclaimable { blocks: 400, clean_segments, rewritten: earlier }));
    let with_it = most(&mut fs);
    assert!((before + 100..=before + 200).contains(&with_it), "{before}, {with_it}");
}

/// A hole that could not be made for want of space costs nothing of what was promised.
#[test]
fn a_refused_hole_leaves_the_promise() {
    let mut fs = small();
    let c = root_at(10);
    let keep = fs.create(&c, ROOT, b"keep", 0o644).unwrap().ino;
    let other = fs.create(&c, ROOT, b"other", 0o644).unwrap().ino;
    fs.write(&c, keep, 0, &[7; 1024], PLAIN).unwrap();
    fs.fallocate(&c, keep, 0, 1024, 199 << 10).unwrap();
    fill_up(&mut fs, other);
    fs.sync_all(20).unwrap();
    fill_up(&mut fs, other);
    let punch = fallocate_mode::PUNCH_HOLE | fallocate_mode::KEEP_SIZE;
    assert_eq!(fs.fallocate(&c, keep, punch, 512, 100 << 10).unwrap_err(), FsError::NoSpace);
    for at in (4096..200 << 10).step_by(4096) {
        assert_eq!(fs.write(&c, keep, at, &[8; 4096], PLAIN).unwrap(), 4096, "at {at}");
    }
}

/// A device over a host with little room.
struct Thin(Arc<MemoryDevice>, u64);

impl Device for Thin {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> silt_device::Result<()> {
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> silt_device::Result<()> {
        self.0.write_at(offset, bufs)
    }
    fn flush(&self) -> silt_device::Result<()> {
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> silt_device::Result<()> {
        self.0.discard(offset, len)
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn backing_free(&self) -> Option<u64> {
        Some(self.1)
    }
}

#[test]
fn figures_add_up_and_promise_no_more_than_there_is() {
    let mut fs = fresh(4096);
    let s = fs.statfs(Tree::Live).unwrap();
    assert_eq!((s.blocks, s.block_size, s.name_max), (256 * 256 - 256 - 1, 4096, 255));
    assert!(s.blocks_available < s.blocks_free && s.blocks_free < s.blocks);
    assert_eq!(s.files - s.files_free, fs.volume().stat().unwrap().inodes);
    let f = fs.create(&root_at(1), ROOT, b"f", 0).unwrap().ino;
    fs.write(&root_at(1), f, 0, &[1; 40960], PLAIN).unwrap();
    let after = fs.statfs(Tree::Live).unwrap();
    assert_eq!((after.blocks, s.blocks_free - after.blocks_free), (s.blocks, 11), "what waits is used");
    assert_eq!(s.files_free - after.files_free, 1);

    let inner = device(Form::new(4096, 256 << 20));
    let mut fs = open(Arc::new(Thin(Arc::new(inner.fork()), 10 << 20)), &Options::default());
    let s = fs.statfs(Tree::Live).unwrap();
    assert_eq!((s.blocks_free, s.blocks_available), (2560, 2560));
    let mut fs = open(Arc::new(Thin(inner, 0)), &Options::default());
    let t = fs.statfs(Tree::Live).unwrap();
    assert_eq!((t.blocks_free, t.blocks_available, s.blocks - t.blocks), (0, 0, 2560));
}

#[test]
fn writing_whole_blocks_reads_nothing() {
    let device = Arc::new(Counter::new(device(Form::new(4096, 64 << 20))));
    let mut fs = open(device.clone(), &Options::default());
    let c = root_at(10);
    let f = fs.create(&c, ROOT, b"f", 0o644).unwrap().ino;
    fs.write(&c, f, 0, &[1; 10 * 4096 + 100], PLAIN).unwrap();
    fs.sync_all(20).unwrap();
    device.reset();
    fs.write(&c, f, 4096, &[2; 5 * 4096], PLAIN).unwrap();
    // So is the end of the file, whole as far as it goes, and all beyond it.
    fs.write(&c, f, 10 * 4096, &[2; 100], PLAIN).unwrap();
    fs.write(&c, f, 11 * 4096 + 5, &[2; 100], PLAIN).unwrap();
    assert_eq!(device.counts().reads.requests, 0);
    fs.write(&c, f, 5, &[2; 1], PLAIN).unwrap();
    assert_eq!(device.counts().reads.requests, 1);
}

#[test]
fn nothing_is_written_to_what_is_read_only() {
    let inner = device(Form::new(4096, 64 << 20));
    let mut fs = open(inner.clone(), &Options::default());
    let c = root_at(10);
    let f = fs.create(&c, ROOT, b"f", 0o644).unwrap().ino;
    fs.volume_mut().close(20).unwrap();
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let (volume, _) = Volume::open(inner, &options).unwrap();
    let mut fs = Fs::new(volume, &Options::default());
    let no = FsError::ReadOnly;
    assert_eq!(fs.create(&c, ROOT, b"g", 0).unwrap_err(), no);
    assert_eq!(fs.unlink(&c, ROOT, b"f").unwrap_err(), no);
    assert_eq!(fs.rmdir(&c, ROOT, b"f").unwrap_err(), no);
    assert_eq!(fs.rename(&c, ROOT, b"f", ROOT, b"g", 0).unwrap_err(), no);
    assert_eq!(fs.link(&c, f, ROOT, b"g").unwrap_err(), no);
    assert_eq!(fs.symlink(&c, ROOT, b"g", b"x").unwrap_err(), no);
    assert_eq!(fs.tmpfile(&c, ROOT, 0).unwrap_err(), no);
    assert_eq!(fs.write(&c, f, 0, b"x", PLAIN).unwrap_err(), no);
    assert_eq!(fs.fallocate(&c, f, 0, 0, 10).unwrap_err(), no);
    assert_eq!(fs.set_flags(&c, f, 0).unwrap_err(), no);
    assert_eq!(fs.setattr(&c, f, &SetAttr { mode: Some(0), ..SetAttr::default() }).unwrap_err(), no);
    assert!(!fs.collect_orphans(10).unwrap());
    fs.remember(f);
    fs.forget_all().unwrap();
    assert_eq!(fs.lookup(Tree::Live, ROOT, b"f").unwrap().ino, f);
}

#[test]
fn orphans_of_a_crash_are_collected() {
    let inner = device(Form::new(1024, 64 << 20));
    let mut fs = open(inner.clone(), &Options::default());
    let c = root_at(10);
    let fresh_inodes = fs.volume().stat().unwrap().inodes;
    let mut kept = Vec::new();
    for i in 0..300u32 {
        let f = fs.create(&c, ROOT, format!("f{i}").as_bytes(), 0o644).unwrap().ino;
        fs.write(&c, f, 0, &[1; 3000], PLAIN).unwrap();
        kept.push(f);
    }
    let tmp = fs.tmpfile(&c, ROOT, 0o600).unwrap().ino;
    let d = fs.mkdir(&c, ROOT, b"d", 0o755).unwrap().ino;
    fs.remember(d);
    fs.rmdir(&c, ROOT, b"d").unwrap();
    for (i, f) in kept.iter().enumerate().filter(|(i, _)| i % 2 == 0) {
        fs.remember(*f);
        fs.unlink(&c, ROOT, format!("f{i}").as_bytes()).unwrap();
    }
    fs.sync_all(20).unwrap();
    drop(fs); // A crash.
    let mut fs = open(inner, &Options::default());
    assert_eq!(fs.volume().stat().unwrap().inodes, fresh_inodes + 302);
    assert_eq!(fs.getattr(Tree::Live, kept[0]).unwrap_err(), FsError::Stale, "no file handle brings it back");
    // Somebody makes and holds nameless files meanwhile; one gets a name.
    let held = fs.tmpfile(&c, ROOT, 0o600).unwrap().ino;
    let named = fs.tmpfile(&c, ROOT, 0o600).unwrap().ino;
    fs.sync_all(25).unwrap();
    fs.link(&c, named, ROOT, b"named").unwrap();
    fs.forget(named, 1).unwrap();
    let mut rounds = 0;
    while fs.collect_orphans(20).unwrap() {
        rounds += 1;
    }
    assert!((10..30).contains(&rounds), "{rounds}");
    assert!(!fs.collect_orphans(20).unwrap());
    fs.sync_all(30).unwrap();
    assert_eq!(fs.volume().stat().unwrap().inodes, fresh_inodes + 150 + 2);
    assert_eq!(fs.getattr(Tree::Live, held).unwrap().links, 0);
    fs.forget(held, 1).unwrap();
    assert_eq!(fs.getattr(Tree::Live, held).unwrap_err(), FsError::Stale);
    assert_eq!(stat(&mut fs, "named").ino, named);
    for (i, f) in kept.iter().enumerate() {
        assert_eq!(fs.read(Tree::Live, *f, 0, 9000).is_ok(), i % 2 == 1);
    }
    assert_eq!(fs.getattr(Tree::Live, tmp).unwrap_err(), FsError::Stale);
}

/// The kernel forgets all it knows at once, when it is short of memory and at an unmount: inodes that keep their
/// names are not read for that.
#[test]
fn forgetting_reads_nothing() {
    let counter = Arc::new(Counter::new(device(Form::new(1024, 64 << 20))));
    let mut fs = open(counter.clone(), &Options::default());
    let files: Vec<_> = (0..2000).map(|i| file(&mut fs, &format!("f{i}"))).collect();
    fs.sync_all(20).unwrap();
    drop(fs);
    let options =
        OpenOptions { cached_inodes: 100, cache_bytes: 20_000, now: 2000, ..OpenOptions::default() };
    let (mut volume, _) = Volume::open(counter.clone(), &options).unwrap();
    volume.take_over(2000).unwrap();
    let mut fs = Fs::new(volume, &Options::default());
    for f in &files {
        fs.lookup(Tree::Live, ROOT, format!("f{}", f.0 - files[0].0).as_bytes()).unwrap();
        fs.remember(*f);
    }
    fs.unlink(&root_at(20), ROOT, b"f7").unwrap();
    assert_eq!(fs.getattr(Tree::Live, files[7]).unwrap().links, 0, "held");
    fs.sync_all(30).unwrap();
    let before = counter.counts().reads.requests + counter.counts().cached_reads.requests;
    for f in files.iter().rev().filter(|f| **f != files[7]) {
        fs.forget(*f, 1).unwrap();
    }
    let reads = counter.counts().reads.requests + counter.counts().cached_reads.requests - before;
    assert_eq!((reads, fs.remembered()), (0, 1));
    // The one that lost its name meanwhile goes with its holder, though it is in memory no more.
    fs.forget(files[7], 1).unwrap();
    assert_eq!(fs.getattr(Tree::Live, files[7]).unwrap_err(), FsError::Stale);
}

/// What only a data-sync log holds is there after a crash: overwritten blocks and filled holes.
#[test]
fn data_syncs_survive_a_crash() {
    let inner = device(Form::new(4096, 64 << 20));
    let mut fs = open(inner.clone(), &Options::default());
    let c = root_at(10);
    let f = fs.create(&c, ROOT, b"f", 0o644).unwrap().ino;
    fs.write(&c, f, 0, &[1; 3 * 4096], PLAIN).unwrap();
    fs.setattr(&c, f, &SetAttr { size: Some(4096 * 5000), ..SetAttr::default() }).unwrap();
    let never = fs.create(&c, ROOT, b"never synced", 0o644).unwrap().ino;
    fs.sync_all(20).unwrap();
    let mut expected = fs.read(Tree::Live, f, 0, 4096 * 5000).unwrap();
    for (round, at) in [4096u64, 4096 * 7 + 5, 4096 * 4999 - 100, 100].into_iter().enumerate() {
        let data = vec![round as u8 + 2; 6000 - round * 1000];
        fs.write(&root_at(30), f, at, &data, PLAIN).unwrap();
        expected[at as usize..at as usize + data.len()].copy_from_slice(&data);
        fs.write(&root_at(30), never, 0, &data, PLAIN).unwrap();
        assert!(fs.volume().data_sync_suffices(f), "round {round}");
        assert!(!fs.volume().data_sync_suffices(never), "it has grown");
        assert!(fs.volume_mut().begin_data_sync(&[f], 40).unwrap());
        fs.volume_mut().finish_construction(40).unwrap();
        let copy = Arc::new(inner.fork());
        let mut after = open(copy.clone(), &Options::default());
        assert_eq!(after.read(Tree::Live, f, 0, 4096 * 5000).unwrap(), expected);
        assert_eq!(stat(&mut after, "never synced").size, 0);
        after.volume_mut().close(50).unwrap();
        let report = silt_verify::check(&*copy, &silt_verify::Options::default());
        assert_eq!(report.errors().count(), 0, "{report:?}");
    }
    // What a data-sync log cannot carry asks for a checkpoint.
    for change in [
        SetAttr { size: Some(100), ..SetAttr::default() },
        SetAttr { mode: Some(0), ..SetAttr::default() },
        SetAttr { uid: Some(1), ..SetAttr::default() },
    ] {
        fs.sync_all(60).unwrap();
        assert!(fs.volume().data_sync_suffices(f));
        fs.setattr(&c, f, &change).unwrap();
        assert!(!fs.volume().data_sync_suffices(f), "{change:?}");
    }
}

/// Who holds files without names lets go of all of them at once, and nobody is asked then.
#[test]
fn what_ends_with_files_that_are_held_has_its_room() {
    use silt_cleaner::{Options, Whole, pass};

    let mut put_off = false;
    for (size, files) in [(2 << 20, 40), (16 << 20, 40), (32 << 20, 300)] {
        let form = Form { block_size: 1024, blocks_per_segment: 16, size };
        let mut fs = open(device(form), &silt_fs::Options::default());
        let c = root_at(10);
        // The blocks of each lie far apart in the DAT.
        let made: Vec<(Vec<u8>, Ino)> = (0..files)
            .map(|n| {
                let name = format!("f{n}").into_bytes();
                let ino = fs.create(&c, ROOT, &name, 0o644).unwrap().ino;
                fs.remember(ino);
                (name, ino)
            })
            .collect();
        fs.sync_all(20).unwrap();
        let (mut at, mut tries) = (0, 0);
        'full: loop {
            for (_, ino) in &made {
                match fs.write(&root_at(20), *ino, at, &[3; 1024], PLAIN) {
                    Ok(_) => tries = 0,
                    Err(e) if tries < 3 => {
                        assert_eq!(e, FsError::NoSpace);
                        tries += 1;
                        fs.sync_all(30).unwrap();
                    }
                    Err(_) => break 'full,
                }
            }
            at += 1024;
        }
        fs.sync_all(40).unwrap();
        let mut held = Vec::new();
        for (name, ino) in &made {
            match fs.unlink(&root_at(50), ROOT, name) {
                Ok(_) => held.push(*ino),
                Err(e) => {
                    assert_eq!(e, FsError::NoSpace);
                    break;
                }
            }
            // What waits is written while they are held.
            if held.len() % 4 == 0 {
                fs.sync_all(60).unwrap();
            }
        }
        assert!(!held.is_empty());
        held.iter().for_each(|ino| fs.forget(*ino, u64::MAX).unwrap());
        put_off |= fs.has_late();
        let inodes = fs.volume().stat().unwrap().inodes;
        // What there is no room for ends later, some with each checkpoint, as the cleaner makes some.
        for n in 0..held.len() as u64 {
            fs.sync_all(70 + n).unwrap();
            let options = Options { least: 1, now: 70 + n, ..Options::default() };
            pass(&Whole::new(fs.volume_mut(), 70 + n), &options, |_, _| true).unwrap();
            if !fs.has_late() {
                break;
            }
        }
        assert!(!fs.has_late(), "size {size}, {files} files");
        assert!(fs.volume().stat().unwrap().inodes <= inodes);
        for ino in held {
            assert_eq!(fs.getattr(Tree::Live, ino).unwrap_err(), FsError::Stale);
        }
    }
    assert!(put_off, "there was room enough");
}

/// The first in the row has no room, and keeps nobody from ending.
#[test]
fn what_is_small_ends_before_what_is_large() {
    let form = Form { block_size: 1024, blocks_per_segment: 16, size: 16 << 20 };
    let mut fs = open(device(form), &Options::default());
    let c = root_at(10);
    let make = |fs: &mut Fs, name: &[u8], blocks: usize| {
        let ino = fs.create(&c, ROOT, name, 0o644).unwrap().ino;
        fs.remember(ino);
        fs.write(&c, ino, 0, &vec![5; blocks << 10], PLAIN).unwrap();
        ino
    };
    let (large, small) = (make(&mut fs, b"large", 4000), make(&mut fs, b"small", 1));
    fs.sync_all(20).unwrap();
    for name in [b"large", b"small"] {
        fs.unlink(&root_at(30), ROOT, name).unwrap();
    }
    fs.sync_all(40).unwrap();
    let fits = |fs: &mut Fs, n| {
        let v = fs.volume_mut();
        let confined = v.confine(Some(n)).is_ok();
        confined && !v.has_room_to_end(large, u64::MAX, true) && v.has_room_to_end(small, u64::MAX, true)
    };
    let segments = fs.volume().geometry().nsegments;
    assert!((10..segments).any(|n| fits(&mut fs, n)), "none or all");
    fs.forget(large, u64::MAX).unwrap();
    fs.forget(small, u64::MAX).unwrap();
    let inodes = |fs: &Fs| fs.volume().stat().unwrap().inodes;
    let before = inodes(&fs);
    assert!(fs.reap_late(false).unwrap() && fs.has_late());
    assert_eq!(inodes(&fs), before - 1);
    fs.volume_mut().confine(None).unwrap();
    assert!(fs.reap_late(false).unwrap() && !fs.has_late());
    assert_eq!(inodes(&fs), before - 2);
}

/// The DAT of all its blocks would be in memory, and in one checkpoint.
#[test]
fn large_files_end_in_parts() {
    let form = Form { block_size: 1024, blocks_per_segment: 64, size: 64 << 20 };
    let device = device(form);
    let mut fs = open(device.clone(), &Options { ends: 1000, ..Options::default() });
    let c = root_at(10);
    let make = |fs: &mut Fs, name: &[u8], blocks: usize, every: u64| {
        let ino = fs.create(&c, ROOT, name, 0o644).unwrap().ino;
        for at in 0..blocks as u64 {
            fs.write(&c, ino, (at * every) << 10, &[5; 1 << 10], PLAIN).unwrap();
            if at % 2000 == 1999 {
                fs.sync_all(20).unwrap();
            }
        }
        ino
    };
    let all = [
        make(&mut fs, b"large", 9000, 1),
        make(&mut fs, b"sparse", 5000, 777),
        make(&mut fs, b"small", 900, 1),
        make(&mut fs, b"other", 900, 1),
        make(&mut fs, b"third", 900, 1),
    ];
    fs.sync_all(30).unwrap();
    let live = |fs: &Fs| fs.volume().stat().unwrap().inodes;
    let before = live(&fs);
    for name in [&b"large"[..], b"sparse", b"small", b"other", b"third"] {
        fs.unlink(&root_at(40), ROOT, name).unwrap();
    }
    let (mut rounds, mut blocks) = (0, fs.late_blocks());
    assert!(blocks > 14_000, "{blocks}");
    while fs.has_late() {
        assert!(fs.volume().ending_blocks() <= 5000, "{}", fs.volume().ending_blocks());
        fs.sync_all(50 + rounds).unwrap();
        rounds += 1;
        let now = fs.late_blocks();
        assert!(now <= blocks && rounds < 40, "{blocks}, then {now}");
        blocks = now;
    }
    assert!(rounds >= 12, "{rounds}");
    fs.sync_all(100).unwrap();
    assert_eq!(live(&fs), before - 5);
    assert_eq!(fs.volume().underestimated(), None);
    all.iter().for_each(|ino| assert_eq!(fs.getattr(Tree::Live, *ino).unwrap_err(), FsError::Stale));
    fs.into_volume().close(200).unwrap();
    let report = silt_verify::check(&*device, &silt_verify::Options::default());
    assert_eq!(report.errors().count(), 0, "{report:?}");
}

/// The same of what is cut off, and of holes.
#[test]
fn large_files_are_cut_in_parts() {
    use fallocate_mode::{KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE};
    let form = Form { block_size: 1024, blocks_per_segment: 64, size: 64 << 20 };
    let device = device(form);
    let mut fs = open(device.clone(), &Options { ends: 1000, ..Options::default() });
    let c = root_at(10);
    let (blocks, bs) = (9000, 1 << 10);
    let make = |fs: &mut Fs, name: &[u8]| {
        let ino = fs.create(&c, ROOT, name, 0o644).unwrap().ino;
        for at in 0..blocks {
            fs.write(&c, ino, at * bs, &[5; 1 << 10], PLAIN).unwrap();
            if at % 2000 == 1999 {
                fs.sync_all(20).unwrap();
            }
        }
        fs.sync_all(20).unwrap();
        ino
    };
    // Does something until it is done; how often a part was.
    let parts = |fs: &mut Fs, ino: Ino, each: &mut dyn FnMut(&mut Fs) -> Result<(), FsError>| {
        let (mut rounds, mut size, mut left) = (0, u64::MAX, u64::MAX);
        loop {
            let done = each(fs);
            let ending = fs.volume().ending_blocks();
            assert!(ending <= 3100, "{ending} at once");
            let now = fs.getattr(Tree::Live, ino).unwrap();
            assert!(now.size <= size && now.blocks < left && rounds < 40);
            (size, left) = (now.size, now.blocks);
            if done != Err(FsError::InParts) {
                done.unwrap();
                return rounds;
            }
            // Who looks for what changed finds a part, too.
            assert_eq!(now.mtime.secs, 25);
            // Before that is written there is nothing more to be done.
            assert_eq!(each(fs), Err(FsError::InParts));
            assert_eq!(
                (fs.getattr(Tree::Live, ino).unwrap().size, fs.volume().ending_blocks()),
                (size, ending)
            );
            rounds += 1;
            fs.sync_all(30 + rounds).unwrap();
        }
    };
    let whole = |fs: &mut Fs, ino: Ino, at: u64| fs.read(Tree::Live, ino, at, 1024).unwrap();
    let f = make(&mut fs, b"cut");
    let cut = SetAttr { size: Some(500 * bs + 7), ..SetAttr::default() };
    let ctx = root_at(25);
    assert!((6..=9).contains(&parts(&mut fs, f, &mut |fs| fs.setattr(&ctx, f, &cut).map(|_| ()))));
    let stat = fs.getattr(Tree::Live, f).unwrap();
    assert_eq!((stat.size, stat.mtime.secs), (500 * bs + 7, 25));
    assert!(whole(&mut fs, f, 499 * bs) == [5; 1024] && whole(&mut fs, f, 500 * bs) == [5; 7]);
    fs.setattr(&ctx, f, &SetAttr { size: Some(9000 * bs), ..SetAttr::default() }).unwrap();
    assert!([501, 4000, 8000].iter().all(|at| whole(&mut fs, f, at * bs) == [0; 1024]));
    for (name, mode) in [(&b"hole"[..], PUNCH_HOLE | KEEP_SIZE), (b"zero", ZERO_RANGE)] {
        let f = make(&mut fs, name);
        let (from, len) = (1000 * bs + 1, 6000 * bs);
        assert!((3..=6).contains(&parts(&mut fs, f, &mut |fs| fs.fallocate(&ctx, f, mode, from, len))));
        for at in 0..blocks {
            let there = whole(&mut fs, f, at * bs);
            let zeroes = there.iter().filter(|b| **b == 0).count();
            let expected = if at == 1000 {
                1023
            } else if at == 7000 {
                1
            } else {
                1024
            };
            let within = (1000..=7000).contains(&at);
            assert_eq!(zeroes, if within { expected } else { 0 }, "block {at}");
        }
    }
    // What is small is done at once, and so is what lies in no order in a large file.
    let f = make(&mut fs, b"little");
    fs.setattr(&ctx, f, &SetAttr { size: Some(8000 * bs), ..SetAttr::default() }).unwrap();
    fs.sync_all(90).unwrap();
    fs.fallocate(&ctx, f, PUNCH_HOLE | KEEP_SIZE, 10 * bs, 900 * bs).unwrap();
    fs.sync_all(100).unwrap();
    assert_eq!(fs.volume().underestimated(), None);
    fs.into_volume().close(200).unwrap();
    let report = silt_verify::check(&*device, &silt_verify::Options::default());
    assert_eq!(report.errors().count(), 0, "{report:?}");
}

/// Whoever goes on as long as something ends would go on for ever.
#[test]
fn a_large_file_without_room_is_no_progress() {
    let form = Form { block_size: 1024, blocks_per_segment: 16, size: 16 << 20 };
    let mut fs = open(device(form), &Options { ends: 1000, ..Options::default() });
    let c = root_at(10);
    let ino = fs.create(&c, ROOT, b"large", 0o644).unwrap().ino;
    fs.remember(ino);
    fs.write(&c, ino, 0, &vec![5; 4000 << 10], PLAIN).unwrap();
    fs.sync_all(20).unwrap();
    fs.unlink(&root_at(30), ROOT, b"large").unwrap();
    fs.sync_all(40).unwrap();
    let segments = fs.volume().geometry().nsegments;
    let fits = |fs: &mut Fs, n| {
        let v = fs.volume_mut();
        v.confine(Some(n)).is_ok() && !v.has_room_to_end(ino, 1000, false)
    };
    assert!((10..segments).rev().any(|n| fits(&mut fs, n)));
    fs.forget(ino, u64::MAX).unwrap();
    assert!(fs.has_late());
    for urgent in [false, true] {
        assert!(!fs.reap_late(urgent).unwrap() && fs.has_late());
    }
    fs.end_late(45, Duration::from_secs(60)).unwrap();
    assert!(fs.has_late());
    fs.volume_mut().confine(None).unwrap();
    let mut rounds = 0;
    while fs.has_late() {
        assert!(fs.reap_late(false).unwrap() && rounds < 20);
        fs.sync_all(50 + rounds).unwrap();
        rounds += 1;
    }
    assert!(rounds >= 3, "{rounds}");
}

/// A power cut in between leaves orphans like others.
#[test]
fn a_large_file_that_ended_in_part_ends_after_a_crash() {
    let form = Form { block_size: 1024, blocks_per_segment: 64, size: 64 << 20 };
    let device = device(form);
    let options = Options { ends: 1000, ..Options::default() };
    let mut fs = open(device.clone(), &options);
    let c = root_at(10);
    let ino = fs.create(&c, ROOT, b"large", 0o644).unwrap().ino;
    for at in 0..9u64 {
        fs.write(&c, ino, (at * 1_000) << 10, &vec![5; 1000 << 10], PLAIN).unwrap();
        fs.sync_all(20 + at).unwrap();
    }
    fs.unlink(&root_at(40), ROOT, b"large").unwrap();
    (0..4).for_each(|n| assert!(fs.sync_all(50 + n).is_ok()));
    assert!(fs.has_late());
    drop(fs);
    let mut fs = open(device.clone(), &options);
    while fs.collect_orphans(100).unwrap() {}
    let blocks = fs.late_blocks();
    assert!((2000..8000).contains(&blocks), "{blocks}");
    fs.end_late(60, Duration::from_secs(60)).unwrap();
    assert!(!fs.has_late());
    assert_eq!(fs.getattr(Tree::Live, ino).unwrap_err(), FsError::Stale);
    fs.into_volume().close(200).unwrap();
    let report = silt_verify::check(&*device, &silt_verify::Options::default());
    assert_eq!(report.errors().count(), 0, "{report:?}");
}

/// A full volume has room for names that take the place of others, and for few blocks of those who give space back.
#[test]
fn names_can_be_moved_on_a_full_volume() {
    let form = Form { block_size: 4096, blocks_per_segment: 16, size: 16 << 20 };
    let mut fs = open(device(form), &Options::default());
    let c = root_at(10);
    let other = fs.mkdir(&c, ROOT, b"other", 0o755).unwrap().ino;
    for n in 0..6 {
        fs.create(&c, ROOT, format!("f{n}").as_bytes(), 0o644).unwrap();
    }
    let mut n = 0;
    while n < 10_000 {
        let name = format!("full{n}");
        let made = fs.create(&c, ROOT, name.as_bytes(), 0o644).map(|made| made.ino);
        if made.and_then(|ino| fs.write(&c, ino, 0, &[7; 8 << 10], PLAIN)).is_err() {
            if !fs.volume().has_changes() {
                break;
            }
            fs.sync_all(20).unwrap();
        }
        n += 1;
    }
    assert_eq!(fs.create(&c, ROOT, b"new", 0o644).unwrap_err(), FsError::NoSpace);
    fs.rename(&c, ROOT, b"f0", ROOT, b"f1", 0).unwrap();
    fs.rename(&c, ROOT, b"f1", ROOT, b"f2-with-a-name-that-is-longer", 0).unwrap();
    assert_eq!(fs.rename(&c, ROOT, b"f3", other, b"f3", 0).unwrap_err(), FsError::NoSpace);
    let made = fs.of_the_reserve(|fs| {
        let ino = fs.create(&c, ROOT, b"new", 0o644)?.ino;
        fs.write(&c, ino, 0, &[7; 100], PLAIN)
    });
    assert_eq!(made.unwrap(), 100);
    assert_eq!(fs.create(&c, ROOT, b"newer", 0o644).unwrap_err(), FsError::NoSpace);
    fs.sync_all(30).unwrap();
    assert_eq!(fs.volume().underestimated(), None);
}

/// A file that ends late is not deleted again once its number is another file's.
#[test]
fn what_ends_late_ends_once() {
    let form = Form { block_size: 1024, blocks_per_segment: 64, size: 64 << 20 };
    let device = device(form);
    let options = Options { ends: 1000, ..Options::default() };
    let mut fs = open(device.clone(), &options);
    let c = root_at(10);
    let make = |fs: &mut Fs, name: &[u8], blocks: u64| {
        let ino = fs.create(&c, ROOT, name, 0o644).unwrap().ino;
        for at in 0..blocks {
            fs.write(&c, ino, at << 10, &[5; 1 << 10], PLAIN).unwrap();
        }
        fs.sync_all(20).unwrap();
        ino
    };
    let (_, large) = (make(&mut fs, b"larger", 5000), make(&mut fs, b"large", 1900));
    let last = make(&mut fs, b"last", 900);
    for name in [&b"larger"[..], b"large", b"last"] {
        fs.unlink(&root_at(30), ROOT, name).unwrap();
    }
    assert!(fs.has_late());
    // What comes to them on other ways while they wait: the search for orphans, and somebody who has a handle.
    fs.remember(large);
    let mut reused = false;
    for n in 0..30 {
        fs.sync_all(40 + n).unwrap();
        while fs.collect_orphans(100).unwrap() {}
        let ino = fs.create(&c, ROOT, format!("new{n}").as_bytes(), 0o644).unwrap().ino;
        reused |= ino == last;
        fs.write(&c, ino, 0, &[9; 4096], PLAIN).unwrap();
    }
    assert!(reused && !fs.has_late());
    assert_eq!(fs.getattr(Tree::Live, large).unwrap().size, 1900 << 10);
    assert_eq!(fs.read(Tree::Live, large, 1800 << 10, 1024).unwrap(), [5; 1024]);
    fs.forget(large, 1).unwrap();
    for n in 0..10 {
        fs.sync_all(80 + n).unwrap();
    }
    assert!(!fs.has_late());
    for n in 0..30 {
        let found = fs.lookup(Tree::Live, ROOT, format!("new{n}").as_bytes()).unwrap();
        assert_eq!(fs.read(Tree::Live, found.ino, 0, 4096).unwrap(), [9; 4096], "new{n}");
    }
    fs.into_volume().close(200).unwrap();
    let report = silt_verify::check(&*device, &silt_verify::Options::default());
    assert_eq!(report.errors().count(), 0, "{report:?}");
}

/// Reserving what is there takes no space but for the times, and that is looked for.
#[test]
fn reserving_what_is_there_does_not_fill_a_full_volume() {
    let mut fs =
        open(device(Form { block_size: 1024, blocks_per_segment: 32, size: 8 << 20 }), &Options::default());
    let c = root_at(10);
    let f = fs.create(&c, Ino::ROOT, b"f", 0o644).unwrap().ino;
    fill_up(&mut fs, f);
    let mut times = 0;
    while fs.fallocate(&root_at(40 + times), f, fallocate_mode::KEEP_SIZE, 0, 1024).is_ok() {
        times += 1;
        assert!(times < 1000);
        fs.sync_all(40).unwrap();
    }
    assert!(fs.volume().room_for_cleaning().0 > 0 && fs.volume().failure().is_none());
    fs.sync_all(50).unwrap();
}
