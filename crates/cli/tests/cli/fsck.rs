//! `fsck.nilfs2`.

use crate::common::{Bench, Run, SILT};

use std::os::unix::fs::{FileExt, symlink};

/// Runs the command under the name that fsck(8) calls.
fn fsck(b: &Bench, args: &[&str]) -> Run {
    let path = b.path("fsck.nilfs2");
    if !path.exists() {
        symlink(SILT, &path).unwrap();
    }
    Run::of(&b.command(&path).args(args).output().unwrap())
}

/// Turns a byte in the log that mkfs writes: behind the names of the root directory.
fn hurt(volume: &str) {
    let file = std::fs::File::options().write(true).open(volume).unwrap();
    file.write_all_at(b"x", 2 * 4096 + 4000).unwrap();
}

#[test]
fn a_clean_volume_is_passed_at_once() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    for option in ["-a", "-p", "-aT", "-pv"] {
        let run = fsck(&b, &[option, &v]);
        assert_eq!((run.code, run.out.lines().count()), (0, 1), "{}{}", run.out, run.err);
        assert!(run.out.contains(": clean, checkpoint 1"), "{}", run.out);
    }
    for options in [&["-af"][..], &["-f"], &["-n"], &[], &["-f", "-y"]] {
        let args: Vec<&str> = options.iter().copied().chain([v.as_str()]).collect();
        let run = fsck(&b, &args);
        assert_eq!(run.code, 0, "{}{}", run.out, run.err);
        assert!(run.out.contains(": sound; 1 inode, "), "{options:?}: {}", run.out);
    }
    // What is hurt and marked as clean is passed, as other checkers do; -f finds it.
    let g = b.golden("basic-4k");
    let s = silt_verify::surgeon::Surgeon::golden("basic-4k");
    let file = std::fs::File::options().write(true).open(&g).unwrap();
    let old = s.logs(0)[1];
    assert!(old.end() < s.latest().pos.0);
    file.write_all_at(&[7; 64], (old.end() - 2) * 4096 + 4000).unwrap();
    assert_eq!((fsck(&b, &["-a", &g]).code, fsck(&b, &["-af", &g]).code), (0, 4));
    // But not what cannot be mounted.
    hurt(&v);
    assert_eq!(fsck(&b, &["-a", &v]).code, 4);
}

#[test]
fn a_volume_left_by_a_crash_is_fine_if_its_log_is() {
    let b = Bench::new();
    let g = b.golden("cut-4k");
    let run = fsck(&b, &["-a", &g]);
    assert_eq!((run.code, run.out.lines().count()), (0, 1), "{}{}", run.out, run.err);
    assert!(run.out.contains("not cleanly unmounted; the log is whole"), "{}", run.out);
    assert_eq!(fsck(&b, &["-n", &g]).code, 0);
}

/// What was synced behind the newest checkpoint and is lost is said once, whatever else is found and done.
#[test]
fn lost_synced_data_is_said() {
    let b = Bench::new();
    let g = b.golden("dsync-4k");
    let s = silt_verify::surgeon::Surgeon::golden("dsync-4k");
    let newest = s.latest();
    let first = s.logs(s.g().segment_of(newest.pos).0).into_iter().find(|l| l.pos.0 == newest.end()).unwrap();
    let told = format!("synced data behind checkpoint {} is lost: the log at block {} ", s.cno(), first.pos);
    for option in ["-af", "-fy"] {
        assert!(!fsck(&b, &[option, &b.golden("dsync-4k")]).out.contains("synced data"), "{option}");
    }
    let file = std::fs::File::options().write(true).open(&g).unwrap();
    file.write_all_at(&[7; 64], (first.end() - 1) * 4096).unwrap();
    for option in ["-a", "-n", "-f", "-fy"] {
        let run = fsck(&b, &[option, &g]);
        let lines: Vec<&str> = run.out.lines().filter(|l| l.starts_with(&told)).collect();
        assert_eq!(lines.len(), 1, "{option}: {}{}", run.out, run.err);
        assert!(lines[0].contains("; inode ") && lines[0].contains(": bytes "), "{}", lines[0]);
        assert!(!run.out.contains("mounting rolls it forward"), "{}", run.out);
    }
}

#[test]
fn damage_is_left_and_said() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    hurt(&v);
    let before = std::fs::read(&v).unwrap();
    let run = fsck(&b, &["-n", &v]);
    assert_eq!(run.code, 4, "{}{}", run.out, run.err);
    assert!(run.out.contains("error [log-checksum]") && run.out.contains("silt repair"), "{}", run.out);
    assert!(!run.out.contains("nothing was mended"), "{}", run.out);
    // Moving blocks of a log that does not verify is not done unasked.
    let run = fsck(&b, &["-af", &v]);
    assert_eq!(run.code, 4, "{}{}", run.out, run.err);
    assert!(run.out.contains("nothing was mended"), "{}", run.out);
    assert!(std::fs::read(&v).unwrap() == before, "nothing is written");
    // Not clean, and a count is wrong: a boot mends it.
    let mut s = silt_verify::surgeon::Surgeon::golden("cut-4k");
    let block = s.file(5)[&0];
    s.patch(block, |b| b[0] ^= 1);
    let g = b.golden("cut-4k");
    let file = std::fs::File::options().write(true).open(&g).unwrap();
    let log = s.log_of(block);
    for at in log.pos.0..log.end() {
        file.write_all_at(&s.read(at), at * 4096).unwrap();
    }
    let run = fsck(&b, &["-a", &g]);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert!(run.out.contains("[sufile-clean-count]"), "{}", run.out);
}

#[test]
fn everything_is_mended_and_can_be_taken_back() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    hurt(&v);
    let before = std::fs::read(&v).unwrap();
    let run = fsck(&b, &["-y", &v]);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert!(run.out.contains("everything is mended"), "{}", run.out);
    assert_eq!(fsck(&b, &["-f", &v]).code, 0);
    let undo = run.out.split("--take-back ").nth(1).unwrap().lines().next().unwrap();
    assert!(std::path::Path::new(undo).starts_with(b.path("state").join("silt/repair")), "{undo}");
    b.ok(&["repair", &v, "--take-back", undo]);
    assert!(std::fs::read(&v).unwrap() == before, "all is as it was");
}

#[test]
fn a_boot_mends_what_loses_nothing() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let file = std::fs::File::options().write(true).open(&g).unwrap();
    file.write_all_at(&[7; 512], 1024).unwrap();
    assert_eq!(fsck(&b, &["-n", &g]).code, 4);
    let run = fsck(&b, &["-a", &g]);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert!(run.out.contains("mended: the first super block is written anew"), "{}", run.out);
    assert_eq!(fsck(&b, &["-f", &g]).code, 0);
}

#[test]
fn what_cannot_be_looked_at_is_8_and_wrong_use_16() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    std::fs::write(b.path("x"), vec![7; 1 << 20]).unwrap();
    for args in [&["x"][..], &["nowhere"], &["-a", "x"]] {
        let run = fsck(&b, args);
        assert_eq!(run.code, 8, "{args:?}: {}{}", run.out, run.err);
        assert!(run.err.starts_with("fsck.nilfs2: "), "{}", run.err);
    }
    for args in [&[][..], &["-a"], &["-ny", &v], &[&v, &v]] {
        assert_eq!(fsck(&b, args).code, 16, "{args:?}");
    }
    let run = fsck(&b, &["-V"]);
    assert_eq!((run.code, run.out.contains(env!("CARGO_PKG_VERSION"))), (0, true), "{}", run.out);
    assert_eq!(fsck(&b, &["-a", "--some-option", "-x", &v]).code, 0, "unknown options pass");
    assert_eq!(fsck(&b, &["--help"]).code, 0);
}

#[test]
fn a_mounted_volume_is_refused() {
    if !crate::common::can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    std::fs::create_dir(b.path("m")).unwrap();
    let (m, _) = crate::common::Mounted::new(&b, &[&v], "m");
    for named in [&v, m.dir()] {
        let run = fsck(&b, &["-a", named]);
        assert_eq!(run.code, 8, "{}{}", run.out, run.err);
        assert!(run.err.contains("mounted"), "{}", run.err);
    }
    m.unmount();
    assert_eq!(fsck(&b, &["-a", &v]).code, 0);
}

/// `pass current maximum device`, as fsck(8) reads them.
#[test]
fn completion_goes_to_a_descriptor() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    for option in ["-C3", "-C 3"] {
        let script = format!("exec {SILT} fsck-helper -f {option} {g} 3>{}", b.name("lines"));
        let run = Run::of(&b.command("sh").args(["-c", &script]).output().unwrap());
        assert_eq!(run.code, 0, "{}{}", run.out, run.err);
        let lines = std::fs::read_to_string(b.path("lines")).unwrap();
        let mut last = (0, 0);
        for line in lines.lines() {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            let number = |i: usize| words[i].parse::<u64>().unwrap();
            assert!(number(1) <= number(2) && words[3] == g, "{line}");
            assert!((number(0), number(1)) >= last, "{lines}");
            last = (number(0), number(1));
        }
        assert!(lines.lines().count() > 10 && last.0 >= 4, "{lines}");
    }
}

/// Without a super block `-y` repairs what the logs tell, unless another file system is there.
#[test]
fn both_super_blocks_are_repaired_with_y_alone() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let tree = |b: &Bench| b.checkpoints(&g);
    let before = tree(&b);
    let len = std::fs::metadata(&g).unwrap().len();
    let file = std::fs::File::options().write(true).open(&g).unwrap();
    file.write_all_at(&[0; 1024], 1024).unwrap();
    file.write_all_at(&[0; 1024], (len / 4096 - 1) * 4096).unwrap();
    let lost = std::fs::read(&g).unwrap();
    for option in ["-n", "-a", "-f"] {
        let run = fsck(&b, &[option, &g]);
        assert_eq!(run.code, 8, "{option}: {}{}", run.out, run.err);
        assert!(run.err.contains("both its super blocks are lost"), "{}", run.err);
    }
    file.write_all_at(b"XFSB", 0).unwrap();
    assert_eq!(fsck(&b, &["-y", &g]).code, 8);
    file.write_all_at(&[0; 4], 0).unwrap();
    assert!(std::fs::read(&g).unwrap() == lost, "nothing was written");
    let run = fsck(&b, &["-y", &g]);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert!(
        run.out.contains("both super blocks are lost") && run.out.contains("everything is mended"),
        "{}",
        run.out
    );
    assert_eq!(fsck(&b, &["-f", &g]).code, 0);
    let after = tree(&b);
    assert!(before.iter().all(|c| after.contains(c)), "{before:?} {after:?}");
    let undo = run.out.split("--take-back ").nth(1).unwrap().lines().next().unwrap();
    b.ok(&["repair", &g, "--take-back", undo]);
    assert!(std::fs::read(&g).unwrap() == lost, "all is as it was");
}

#[test]
fn its_help_has_lines() {
    let b = Bench::new();
    let run = fsck(&b, &["--help"]);
    assert!(run.code == 0 && run.out.lines().count() > 15 && !run.out.contains('?'), "{}", run.out);
    assert!(run.out.contains("\n   -y     mend everything\n"), "{}", run.out);
}
