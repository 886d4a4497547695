//! Single damages of names and inodes: what each is, and that it can be got rid of.

use std::sync::Arc;

use silt_engine::{OpenOptions, Tree, Volume};
use silt_format::dir;
use silt_fs::{Context, Fs, FsError, Ino, WriteFlags};
use silt_verify::surgeon::Surgeon;

fn ctx() -> Context {
    Context { privileged: true, ..Context::default() }
}

fn open(surgeon: &Surgeon) -> Fs {
    let device = Arc::new(surgeon.device.fork());
    let options = OpenOptions { now: 4_000_000_000, ..OpenOptions::default() };
    let (mut volume, _) = Volume::open(device, &options).unwrap();
    volume.take_over(4_000_000_000).unwrap();
    Fs::new(volume, &silt_fs::Options::default())
}

/// Points an entry of the root directory elsewhere.
fn redirect(surgeon: &mut Surgeon, name: &[u8], to: u64, kind: Option<u8>) {
    let block = surgeon.file(2)[&0];
    surgeon.patch(block, |chunk| {
        let found = dir::entries(chunk).flatten().find(|e| e.ino.0 != 0 && e.name == name);
        let (offset, old) = found.map(|e| (e.offset, e.file_type)).unwrap();
        dir::replace(chunk, offset, Ino(to), kind.unwrap_or(old)).unwrap();
    });
}

fn is_damage<T: std::fmt::Debug>(result: Result<T, FsError>) {
    assert!(matches!(result, Err(FsError::Io { .. })), "{result:?}");
}

#[test]
fn an_entry_that_names_the_root_goes_alone() {
    let mut s = Surgeon::golden("basic-4k");
    redirect(&mut s, b"d", 2, None);
    let mut fs = open(&s);
    is_damage(fs.lookup(Tree::Live, Ino::ROOT, b"d"));
    assert_eq!(fs.unlink(&ctx(), Ino::ROOT, b"d"), Err(FsError::IsDir));
    fs.rmdir(&ctx(), Ino::ROOT, b"d").unwrap();
    assert_eq!(fs.lookup(Tree::Live, Ino::ROOT, b"d"), Err(FsError::NotFound));
    assert!(fs.lookup(Tree::Live, Ino::ROOT, b"six").is_ok());
    assert!(fs.mkdir(&ctx(), Ino::ROOT, b"d", 0o755).is_ok());
    fs.sync_all(4_000_000_001).unwrap();
}

/// The entry says directory, the inode is a file's: neither is touched but the name.
#[test]
fn an_entry_of_another_type_is_damage_and_costs_no_blocks() {
    let mut s = Surgeon::golden("basic-4k");
    let big = s.ino("/big");
    redirect(&mut s, b"d", big, None);
    let mut fs = open(&s);
    is_damage(fs.lookup(Tree::Live, Ino::ROOT, b"d"));
    fs.rmdir(&ctx(), Ino::ROOT, b"d").unwrap();
    fs.sync_all(4_000_000_001).unwrap();
    let stat = fs.lookup(Tree::Live, Ino::ROOT, b"big").unwrap();
    assert_eq!(stat.ino.0, big);
    assert!(fs.read(Tree::Live, stat.ino, 0, 100_000).is_ok());
}

#[test]
fn a_damaged_file_can_be_renamed_over() {
    let mut s = Surgeon::golden("basic-4k");
    let bad = s.ino("/six");
    s.patch_inode(bad, |i| i.mode = 0o170_644.into());
    let mut fs = open(&s);
    is_damage(fs.lookup(Tree::Live, Ino::ROOT, b"six"));
    let new = fs.create(&ctx(), Ino::ROOT, b"new", 0o644).unwrap().ino;
    fs.write(&ctx(), new, 0, b"better", WriteFlags::default()).unwrap();
    let flags = silt_fs::rename_flags::EXCHANGE;
    is_damage(fs.rename(&ctx(), Ino::ROOT, b"new", Ino::ROOT, b"six", flags));
    fs.rename(&ctx(), Ino::ROOT, b"new", Ino::ROOT, b"six", 0).unwrap();
    assert_eq!(fs.lookup(Tree::Live, Ino::ROOT, b"six").unwrap().ino, new);
    assert_eq!(fs.lookup(Tree::Live, Ino::ROOT, b"new"), Err(FsError::NotFound));
    fs.sync_all(4_000_000_001).unwrap();
    assert_eq!(fs.read(Tree::Live, new, 0, 100).unwrap(), b"better");
}

#[test]
fn what_no_writer_puts_into_an_inode_is_damage() {
    let changes: [fn(&mut silt_format::inode::RawInode); 5] = [
        |i| i.links_count = 40_000.into(),
        |i| i.mtime_nsec = 1_000_000_000.into(),
        |i| i.size = u64::MAX.into(),
        |i| i.blocks = u64::MAX.into(),
        |i| i.mode = 0o010_644.into(),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let mut s = Surgeon::golden("basic-4k");
        let ino = s.ino("/six");
        s.patch_inode(ino, change);
        let mut fs = open(&s);
        is_damage(fs.lookup(Tree::Live, Ino::ROOT, b"six"));
        fs.unlink(&ctx(), Ino::ROOT, b"six").unwrap_or_else(|e| panic!("change {n}: {e}"));
    }
}

#[test]
fn a_symlink_with_something_behind_its_target_is_damage() {
    let mut s = Surgeon::golden("basic-4k");
    let ino = s.ino("/sym");
    let block = s.file(ino)[&0];
    s.patch(block, |bytes| bytes[3000] = 1);
    let mut fs = open(&s);
    is_damage(fs.readlink(Tree::Live, Ino(ino)));
    fs.unlink(&ctx(), Ino::ROOT, b"sym").unwrap();
}

/// A directory block in the place of another's.
#[test]
fn a_directory_does_not_show_what_is_in_another() {
    let mut s = Surgeon::golden("basic-4k");
    let d = s.ino("/d");
    let (own, others) = (s.file(d)[&0], s.file(2)[&0]);
    let bytes = s.read(others);
    s.patch(own, |b| b.copy_from_slice(&bytes));
    let mut fs = open(&s);
    // The rest of it may be listed.
    let _ = fs.readdir(Tree::Live, Ino(d), 0, false, |e| {
        assert_ne!(e.name, b"six", "that is in the root");
        std::ops::ControlFlow::Continue(())
    });
    is_damage(fs.lookup(Tree::Live, Ino(d), b"six"));
}
