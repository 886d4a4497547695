//! Standard output that takes nothing: what was asked for is done, and that it could not be told is told.

use std::fs::OpenOptions;
use std::process::Stdio;

use crate::common::{Bench, Mounted, Run, SILT, can_mount};

/// Runs it with a standard output on which no space is left.
fn run(b: &Bench, args: &[&str]) -> Run {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    Run::of(&b.command(SILT).args(args).stdout(full).stderr(Stdio::piped()).output().unwrap())
}

fn is_told(b: &Bench, args: &[&str]) {
    let run = run(b, args);
    assert_eq!(run.code, 10, "{args:?}: {}", run.err);
    let said = "silt: standard output could not be written: No space left on device";
    assert!(run.err.lines().any(|line| line == said), "{args:?}: {}", run.err);
}

#[test]
fn what_could_not_be_told_is_done() {
    let b = Bench::new();
    let v = b.name("v.img");
    is_told(&b, &["mkfs", "--size", "32M", "-B", "64", "--retain", "all for 3 days", &v]);
    assert_eq!(b.json(&["retain", "--json", &v])["wish"], "all for 3 days");
    is_told(&b, &["mkcp", "-s", "-p", &v]);
    assert_eq!(b.checkpoints(&v).iter().filter(|c| c.1).count(), 1);
    let snapshot = b.checkpoints(&v).into_iter().find(|c| c.1).unwrap().0.to_string();
    is_told(&b, &["chcp", "cp", &v, &snapshot]);
    assert!(b.checkpoints(&v).iter().all(|c| !c.1));
    is_told(&b, &["rmcp", &v, &snapshot]);
    is_told(&b, &["resize", &v, "48M"]);
    assert_eq!(b.json(&["tune", "--json", &v])["device_size"], 48 << 20);
    for args in
        [&["lscp", &v][..], &["lssu", "-a", "--json", &v], &["status", &v], &["du", &v], &["check", &v]]
    {
        is_told(&b, args);
    }
}

/// Help and the version are output like any other.
#[test]
fn help_that_could_not_be_told_is_a_failure() {
    let b = Bench::new();
    for args in [&["--help"][..], &["--version"], &["lscp", "--help"], &["help", "check"], &["-h"]] {
        is_told(&b, args);
    }
    // A wrong command line is told on standard error.
    let run = run(&b, &["lscp", "--wrong"]);
    assert!(run.code == 2 && !run.err.contains("standard output"), "{}", run.err);
}

#[test]
fn what_is_mounted_is_no_failure() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    std::fs::create_dir(b.path("past")).unwrap();
    for (args, dir) in [(&["mount", &v, "m"][..], "m"), (&["mount", "-o", "at=1", "m", "past"], "past")] {
        let run = run(&b, args);
        assert_eq!(run.code, 0, "{}", run.err);
        assert!(run.err.contains("note: it is mounted, but standard output could not be"), "{}", run.err);
        assert!(crate::common::is_mounted(&b.path(dir)));
    }
    Mounted::at(&b, "past").unmount();
    Mounted::at(&b, "m").unmount();
}
