use super::*;
use crate::caps::flag;
use crate::op::{Each, RenameHow};

fn model() -> Model {
    Model::new(Capabilities { link_max: Some(4), ..Capabilities::silt(1024) })
}

/// Plays lines; each is an operation, with `!ERRNO` behind it if it must fail.
fn play(model: &mut Model, lines: &str) {
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (text, errno) = line.split_once(" !").unwrap_or((line, ""));
        let op = Op::parse(text).unwrap_or_else(|| panic!("{text}"));
        match (model.apply(&op), errno) {
            (Ok(_), "") => {}
            (Err(e), name) if e.name() == Some(name) => {}
            (outcome, _) => panic!("{line}: {outcome:?}"),
        }
    }
}

fn entry(model: &Model, path: &str) -> Entry {
    model.tree().get(&TreePath::new(path.as_bytes())).cloned().unwrap_or_else(|| panic!("{path}"))
}

#[test]
fn names_and_links() {
    let mut model = model();
    play(
        &mut model,
        "mkdir d 755
         mkdir d 755 !EEXIST
         create d/f 4644
         create d/f/x 644 !ENOTDIR
         create e/x 644 !ENOENT
         link d/f g
         link d x !EPERM
         link d/f h
         link d/f i
         link d/f j !EMLINK
         unlink d !EISDIR
         rmdir d !ENOTEMPTY
         rmdir g !ENOTDIR
         rename g h plain
         rename g k noreplace
         rename k d plain !EISDIR
         rename d k plain !ENOTDIR
         rename d d/x plain !EINVAL
         rename k nothing exchange !ENOENT
         mkdir d/s 755
         rename d/s d plain !ENOTEMPTY
         rename k d/s exchange
         stat k",
    );
    assert_eq!(entry(&model, "h").nlink, 4, "renaming one name of a file over another of it does nothing");
    assert_eq!(entry(&model, "d/s").same_as, Some(TreePath::new(b"d/f")));
    assert_eq!((entry(&model, "k").mode & S_IFMT_TEST, entry(&model, "").nlink), (S_IFDIR, 4));
    assert_eq!(entry(&model, "d").nlink, 2);
    play(&mut model, "mkdir a 755 !EMLINK\nmkdir d/b 755\nrename d/b c plain !EMLINK");
}

const S_IFMT_TEST: u32 = crate::manifest::S_IFMT;

#[test]
fn content_outlives_names_while_held() {
    let mut model = model();
    play(
        &mut model,
        "create f 644
         write :f 0 5000 7
         open 0 f
         open 0 f !EBUSY
         unlink f
         write #0 5000 100 7
         truncate #0 5050
         read #0 0 9999
         link-slot 0 g !ENOENT
         tmpfile 1 . 600
         write #1 0 10 3
         link-slot 1 g
         close 1
         close 1 !EBADF",
    );
    assert_eq!(model.allocated(), 12288);
    assert_eq!(model.files().items().len(), 1);
    play(&mut model, "remount\nread #0 0 1 !EBADF");
    assert_eq!(model.allocated(), 4096, "the unlinked file went with its last handle");
    assert_eq!(entry(&model, "g").size, Some(10));
}

#[test]
fn attributes_and_inheritance() {
    let mut model = model();
    play(
        &mut model,
        "mkdir d 7777
         chown d 5 6
         chmod d 2755
         create d/f 6755
         mkdir d/s 700
         chown d/f 1 -
         create d/g 6745
         chown d/g - 9
         set-flags d 0x10040
         create d/h 600
         mkdir d/t 700
         set-flags d/g 0x10
         write :d/g 0 1 1 !EPERM
         unlink d/g !EPERM
         chmod d/g 600 !EPERM
         set-flags d/g 0x20
         append d/g 5 1
         write :d/g 0 1 1 !EPERM
         set-flags d/g 0x0
         utimens d/g -3.000000005",
    );
    assert_eq!(entry(&model, "d").mode, S_IFDIR | 0o2755);
    assert_eq!(entry(&model, "d/s").mode, S_IFDIR | 0o2700);
    assert_eq!((entry(&model, "d/f").mode, entry(&model, "d/f").gid), (S_IFREG | 0o755, 6));
    assert_eq!(entry(&model, "d/g").mode, S_IFREG | 0o2745, "without group execution the bit stays");
    assert_eq!(entry(&model, "d/h").flags, Some(flag::NODUMP));
    assert_eq!(entry(&model, "d/t").flags, Some(flag::NODUMP | flag::DIRSYNC));
    assert_eq!(entry(&model, "d/g").mtime, Some(Time { sec: -3, nsec: 5 }));
    play(&mut model, "append d/g 1 1");
    assert_eq!(entry(&model, "d/g").mtime, None);
}

#[test]
fn limits() {
    let mut model = model();
    let long = "n".repeat(256);
    play(
        &mut model,
        &format!(
            "create {long} 644 !ENAMETOOLONG
             symlink s ={} !ENAMETOOLONG
             symlink s = !ENOENT
             symlink s ={}
             write :s 0 1 1 !ELOOP
             create f 644
             write :f 9223372036854775806 1 1
             write :f 9223372036854775807 1 1 !EFBIG
             map-write f 9223372036854775806 2 1 !EFBIG
             fallocate :f zero-keep 0 9223372036854775807
             map-write f 0 10 1",
            "t".repeat(1024),
            "t".repeat(1023)
        ),
    );
    assert_eq!(model.allocated(), 4096);
}

#[test]
fn many_stop_at_the_first_error() {
    let mut model = model();
    play(&mut model, "create x3 644\nmany . =x 0 9 create !EEXIST\nmany . =x 0 3 unlink\nlist .");
    assert_eq!(model.entries_of(ROOT), 1);
    let each = Each::Fill { len: 3, seed: 1 };
    assert!(each.ops(&TreePath::root(), b"p", 7)[1].is_some());
}

#[test]
fn snapshots_stay_as_they_were() {
    let mut model = model();
    model.remember_checkpoints();
    play(&mut model, "create a 644\ncheckpoint\nsnapshot\nunlink a\nsnapshot\nremove-snapshot 7 !ENOENT");
    assert_eq!(model.snapshots().values().map(Manifest::len).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(model.checkpoints()[&0].len(), 2);
    play(&mut model, "remove-snapshot 0\nsnapshot");
    assert_eq!(model.snapshots().keys().copied().collect::<Vec<_>>(), [1, 2]);
    let how = RenameHow::Plain;
    let root = TreePath::root();
    assert_eq!(
        model.apply(&Op::Rename { from: root.clone(), to: TreePath::new(b"x"), how }),
        Err(Errno::EBUSY)
    );
}
