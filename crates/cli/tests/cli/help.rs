//! Help, versions and names.

use crate::common::{Bench, Run, SILT};

use std::os::unix::fs::symlink;

const VERBS: [&str; 22] = [
    "mkfs", "mount", "umount", "status", "sync", "lscp", "mkcp", "chcp", "rmcp", "lssu", "du", "dumpseg",
    "tune", "resize", "clean", "retain", "check", "scrub", "rescue", "repair", "lab", "install",
];

#[test]
fn every_verb_has_help_and_version() {
    let b = Bench::new();
    let root = b.ok(&["--help"]);
    assert!(root.contains("Exit codes:"), "{root}");
    for verb in VERBS {
        assert!(root.contains(&format!("\n  {verb} ")), "{verb}");
        let help = b.ok(&[verb, "--help"]);
        assert!(help.contains("Usage: silt "), "{help}");
        // Its own codes, not only those of all commands.
        assert!(help.contains("Exit codes:\n   0  "), "{help}");
        assert!(b.ok(&[verb, "--version"]).contains(env!("CARGO_PKG_VERSION")));
    }
    for hidden in ["serve", "mount-helper", "umount-helper"] {
        assert!(!root.contains(hidden), "{hidden}");
    }
    assert!(b.ok(&["mount", "--help"]).contains("order=relaxed|strict"));
    assert!(b.ok(&["help", "scrub"]).contains("   1  paused before its end"));
    assert!(b.ok(&["help", "repair"]).contains("   2  wrong command line; or nothing was written"));
    assert!(b.ok(&["help", "lab", "torture"]).contains(" 130  ended by Ctrl-C"));
    assert!(b.ok(&["help", "check"]).contains("--memory"));
}

#[test]
fn wrong_use_is_2() {
    let b = Bench::new();
    for args in [&[][..], &["no-such-verb"], &["lscp", "--no-such-option"], &["lscp", "-i", "x"], &["mkfs"]] {
        assert_eq!(b.run(args).code, 2, "{args:?}");
    }
}

#[test]
fn names_of_nilfs_utils_behave_as_they_do() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let tool = |name: &str, args: &[&str]| {
        let path = b.path(name);
        if !path.exists() {
            symlink(SILT, &path).unwrap();
        }
        Run::of(&b.command(&path).args(args).output().unwrap())
    };
    assert_eq!(tool("lscp", &[&v]).code, 0);
    assert_eq!(tool("mkcp", &["-s", "-p", &v]).out, "1\n");
    assert_eq!(tool("chcp", &["cp", &v, "1"]).code, 0);
    let failed = tool("chcp", &["ss", &v, "99"]);
    assert_eq!(failed.code, 1);
    assert!(failed.err.starts_with("chcp: "), "{}", failed.err);
    assert_eq!(tool("rmcp", &[&v, "1"]).code, 0);
    assert_eq!(tool("lssu", &[&v]).code, 0);
    assert_eq!(tool("dumpseg", &[&v, "0"]).code, 0);
    assert_eq!(tool("nilfs-tune", &["-l", &v]).code, 0);
    assert_eq!(tool("nilfs-resize", &["-y", &v]).code, 0);
    assert_eq!(tool("lscp", &["nothing.img"]).code, 1);
    for name in ["mount.silt", "umount.silt"] {
        let said = tool(name, &[]);
        assert!(
            said.err.contains(&format!("Usage: {name} ")) && !said.err.contains("-helper"),
            "{}",
            said.err
        );
    }
}

/// Who calls a name is told about that name, its options and its exit codes.
#[test]
fn help_under_another_name_is_about_that() {
    let b = Bench::new();
    let help = |name: &str, option: &str| {
        symlink(SILT, b.path(name)).unwrap_or_default();
        let run = Run::of(&b.command(b.path(name)).arg(option).output().unwrap());
        assert_eq!(run.code, 0, "{name}: {}", run.err);
        run.out
    };
    for name in ["mount.silt", "mount.fuse.silt", "umount.silt", "umount.fuseblk.silt"] {
        let said = help(name, "--help");
        assert!(said.contains(&format!("Usage: {name} ")) && !said.contains("-helper"), "{said}");
        assert!(
            said.contains(
                "Exit codes:\n   0  success\n   1  wrong command line, or not permitted\n  32  failure"
            ),
            "{said}"
        );
        // Each option is explained.
        let options: Vec<&str> = said.lines().filter(|l| l.starts_with("  -")).collect();
        assert!(options.len() > 6 && options.iter().all(|l| l.trim().contains("  ")), "{said}");
        assert_eq!(help(name, "--version"), format!("{name} {}\n", env!("CARGO_PKG_VERSION")));
    }
    assert!(help("mount.silt", "--help").contains("interval=SECONDS"));
    for name in ["lscp", "mkfs.nilfs2", "nilfs-clean"] {
        let said = help(name, "--help");
        assert!(said.contains(&format!("Usage: {name} ")) && said.contains("   1  failure\n"), "{said}");
        assert!(!said.contains("   9  "), "{said}");
    }
}
