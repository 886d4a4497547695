//! Whose an inode is that was lost with that of its directory, and after a roll-back.

use std::collections::BTreeMap;
use std::sync::Arc;

use silt_device::{Device, Fault, MemoryDevice, Times};
use silt_format::{BlockNr, Cno, Ino};
use silt_fs::WriteFlags;
use silt_repair::{Options, plan};
use silt_verify::surgeon::{Sums, Surgeon};
use silt_verify::{Moment, Tree};

use crate::common::{options, say};
use crate::making::Making;

/// Of files: number, owner, permissions, and length.
type Owners = BTreeMap<String, (u64, u32, u32, u64)>;

fn owners(device: &dyn Device) -> Owners {
    let walked = Tree::open(device, Moment::Latest).unwrap().walk().unwrap();
    let files = walked.into_iter().filter(|w| w.attributes.is_regular());
    let of = |w: silt_verify::Walked| {
        let a = &w.attributes;
        (String::from_utf8_lossy(&w.path).into_owned(), (a.ino, a.uid, a.mode, a.size))
    };
    files.map(of).collect()
}

/// What is there when the block of inodes with that of a file cannot be read and the volume was repaired.
fn without_inodes_of(device: MemoryDevice, ino: Ino) -> (Owners, String) {
    let s = Surgeon { device };
    let g = s.g();
    let block = s.file(6)[&silt_format::palloc::Layout::ifile(&g).entry(ino.0).block];
    let broken = Arc::new(Fault::new(s.device.fork()));
    let at = g.byte_of(BlockNr(block));
    broken.fail_reads(at..at + 512, Times::Always);
    let made = plan(broken.clone(), &options()).unwrap();
    made.apply(&*broken).unwrap();
    (owners(&*broken), say(&made))
}

/// All of it is written over between the two checkpoints, so that no block tells whose the inodes were: names do, once the
/// directories are back that have them.
#[test]
fn inodes_lost_with_that_of_their_directory_keep_their_owners() {
    let mut m = Making::new();
    let ctx = m.context();
    let d = m.fs.mkdir(&ctx, Ino::ROOT, b"d", 0o040_750).unwrap().ino;
    let e = m.fs.mkdir(&ctx, d, b"e", 0o040_750).unwrap().ino;
    let files: Vec<Ino> =
        (0..6).map(|n| m.make([Ino::ROOT, d, e][n % 3], &format!("file-{n}"), 100 + n as u32)).collect();
    files.iter().for_each(|ino| m.write(*ino, 3, ino.0));
    m.sync();
    files.iter().for_each(|ino| m.write(*ino, 3, 100 + ino.0));
    m.sync();
    let device = m.done();
    let before = owners(&device);
    let (after, said) = without_inodes_of(device, d);
    assert_eq!(after, before, "{said}");
    // Nothing is wrong with the translation table: one of the inodes that cannot be read has its number.
    assert!(!said.contains("translation table"), "{said}");
}

/// In between a file made room for another that has its number, under another name.
#[test]
fn a_name_that_is_new_gets_no_owner_of_before() {
    let mut m = Making::new();
    let ctx = m.context();
    let d = m.fs.mkdir(&ctx, Ino::ROOT, b"d", 0o040_750).unwrap().ino;
    let old = m.make(d, "old", 100);
    m.write(old, 3, 1);
    m.sync();
    m.remove(d, "old", old);
    let new = m.make(d, "new", 200);
    assert_eq!(new, old, "its number is taken again");
    m.write(new, 2, 2);
    m.sync();
    let (after, said) = without_inodes_of(m.done(), d);
    let (_, owner, mode, size) = after["d/new"];
    assert_eq!((owner, mode & 0o777, size), (0, 0o600, 2 * 4096), "{said}");
}

/// Versions before and behind agree on how long a file is, though its last block is all zeroes in between.
#[test]
fn zeroes_at_the_end_make_no_file_longer() {
    let mut m = Making::new();
    let file = m.make(Ino::ROOT, "file", 100);
    m.write(file, 1, 1);
    let mut synced = Vec::new();
    for byte in [7, 0, 7] {
        let ctx = m.context();
        m.fs.write(&ctx, file, 4096, &[byte; 100], WriteFlags::default()).unwrap();
        let c = m.sync();
        m.fs.volume_mut().make_snapshot(Cno(c)).unwrap();
        synced.push(c);
    }
    let mut s = Surgeon { device: m.done() };
    let c = synced[1];
    let block = s.past_file(c, 6)[&silt_format::palloc::Layout::ifile(&s.g()).entry(file.0).block];
    s.patch_with(block, Sums::None, |b| b.fill(0x55));
    let broken = s.device.fork();
    let made = plan(Arc::new(broken.fork()), &Options { drop_snapshots: false, ..options() }).unwrap();
    made.apply(&broken).unwrap();
    let walked = Tree::open(&broken, Moment::Checkpoint(c)).unwrap().walk().unwrap();
    let own = walked.iter().find(|w| w.path == b"file").unwrap();
    assert_eq!((own.attributes.size, own.attributes.uid), (4196, 100), "{}", say(&made));
}

/// What may be wrong is a snapshot's, and not the file's that has the number now.
#[test]
fn blocks_of_the_past_are_not_told_of_the_file_that_has_the_number_now() {
    let mut m = Making::new();
    let old = m.make(Ino::ROOT, "old", 100);
    m.write(old, 3, 1);
    let c = m.sync();
    m.fs.volume_mut().make_snapshot(Cno(c)).unwrap();
    m.remove(Ino::ROOT, "old", old);
    let new = m.make(Ino::ROOT, "new", 200);
    assert_eq!(new, old, "its number is taken again");
    m.write(new, 2, 2);
    m.sync();
    let mut s = Surgeon { device: m.done() };
    let block = s.past_file(c, old.0)[&1];
    s.patch_with(block, Sums::None, |b| b[7] ^= 1);
    let made = plan(Arc::new(s.device.fork()), &options()).unwrap();
    let said = say(&made);
    let own = format!("checkpoint {c}: inode {old}: 3 blocks lie in a log that does not verify");
    assert!(said.contains(&own) && !said.contains("/new"), "{said}");
}

/// What a roll-back brings back seems to have lived all the time, while another file had the number.
#[test]
fn a_file_that_a_roll_back_brought_gets_no_owner_of_one_in_between() {
    let mut m = Making::new();
    let first = m.make(Ino::ROOT, "first", 100);
    m.write(first, 10, 1);
    let c = m.sync();
    m.remove(Ino::ROOT, "first", first);
    let second = m.make(Ino::ROOT, "second", 200);
    assert_eq!(second, first, "its number is taken again");
    m.write(second, 1, 2);
    m.sync();
    let device = m.done();
    let back = Options { to_checkpoint: Some(c), ..options() };
    plan(Arc::new(device.fork()), &back).unwrap().apply(&device).unwrap();
    let before = owners(&device);
    assert_eq!(before.keys().collect::<Vec<_>>(), ["first"]);
    let (after, said) = without_inodes_of(device, first);
    let lost = (first.0, 0, 0o100_600, 10 * 4096);
    assert!(after["first"] == before["first"] || after["first"] == lost, "{after:?}\n{said}");
}
