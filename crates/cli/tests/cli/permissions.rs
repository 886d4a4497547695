//! Who may do what in a mount that only root enters, and in one that others enter, too.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::common::{Bench, Mounted, Run, SILT, can_mount, find, is_root};

/// Whether a shell can do this there, as a user who is not root if `other`.
fn can(dir: &Path, other: bool, what: &str) -> bool {
    let mut command = Command::new(if other { "setpriv" } else { "sh" });
    if other {
        command.args(["--reuid", "12345", "--regid", "12345", "--clear-groups", "sh"]);
    }
    let output = command.args(["-c", &format!("cd '{}' && {what}", dir.display())]).output().unwrap();
    output.status.success()
}

/// A directory that everybody may enter, and a volume in it; `None` where nobody else can be tried.
fn enterable() -> Option<(Bench, String)> {
    if !(is_root() && can_mount() && find("setpriv")) {
        eprintln!("skipped: this needs root and setpriv");
        return None;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    fs::set_permissions(b.path(""), Permissions::from_mode(0o755)).unwrap();
    Some((b, v))
}

#[test]
fn a_mount_of_roots_alone_is_checked_for_nothing_but_what_can_be_run() {
    let Some((b, v)) = enterable() else { return };
    for alone in [true, false] {
        let option = if alone { "noallow_other" } else { "allow_other" };
        let (m, _) = Mounted::new(&b, &["-o", option, &v], "m");
        let dir = Path::new(m.dir());
        // Others' names may be anything.
        let mounts = fs::read("/proc/mounts").unwrap();
        let mounts = String::from_utf8_lossy(&mounts);
        let line = mounts.lines().find(|l| l.contains(m.dir())).unwrap();
        assert_eq!(line.contains("default_permissions"), !alone, "{line}");
        assert_eq!(line.contains("allow_other"), !alone, "{line}");
        let (script, secret, open) = (dir.join("script"), dir.join("secret"), dir.join("open"));
        fs::write(&script, "#!/bin/sh\nexit 0\n").unwrap();
        fs::write(&secret, "s").unwrap();
        fs::write(&open, "o").unwrap();
        for (path, mode) in [(dir, 0o755), (&script, 0o644), (&secret, 0o000), (&open, 0o644)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        // Root may do everything but run what nobody may run, and is told so beforehand.
        assert!(can(
            dir,
            false,
            "cat secret >/dev/null && echo >>secret && test -r secret && test -w secret"
        ));
        for runs in ["./script", "test -x script"] {
            assert!(!can(dir, false, runs), "{option}: {runs}");
        }
        fs::set_permissions(&script, Permissions::from_mode(0o700)).unwrap();
        for runs in ["./script", "test -x script", "test -x ."] {
            assert!(can(dir, false, runs), "{option}: {runs}");
        }
        // Others either do not come in at all, or have what the modes give them.
        assert_eq!(can(dir, true, "cat open >/dev/null"), !alone);
        for never in ["cat secret", "./script", "echo >>open", "touch new", "rm -f open", "mv open other"] {
            assert!(!can(dir, true, never), "{option}: {never}");
        }
        // What the modes give them is no matter of what was cached when they were others.
        fs::set_permissions(dir, Permissions::from_mode(0o700)).unwrap();
        assert!(!can(Path::new("/"), true, &format!("cat '{}'", open.display())), "{option}");
        fs::set_permissions(dir, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(can(dir, true, "touch new && rm new"), !alone, "{option}");
        m.unmount();
    }
}

/// What is closed today is not to be had from yesterday.
#[test]
fn a_moment_is_as_closed_as_the_live_tree() {
    let Some((b, v)) = enterable() else { return };
    for (live, said, open) in [
        ("noallow_other", "", false),
        ("noallow_other", ",allow_other", true),
        ("allow_other", "", true),
        ("allow_other", ",noallow_other", false),
    ] {
        let (m, _) = Mounted::new(&b, &["-o", live, &v], "m");
        fs::write(m.path("open"), "o").unwrap();
        let number = b.ok(&["mkcp", "-p", m.dir()]);
        let option = format!("at={}{said}", number.trim());
        let (past, _) = Mounted::new(&b, &["-o", &option, m.dir()], "past");
        let dir = Path::new(past.dir());
        assert!(can(dir, false, "cat open"));
        assert_eq!(can(dir, true, "cat open"), open, "{live} {option}");
        past.unmount();
        m.unmount();
    }
}

/// Whoever may not is told what he may not, whichever way he tries.
#[test]
fn a_stranger_is_told_what_he_may_not() {
    let Some((b, v)) = enterable() else { return };
    let program = b.name("silt");
    fs::copy(SILT, &program).unwrap();
    let (m, _) = Mounted::new(&b, &["-o", "allow_other", &v], "m");
    let stranger = |args: &[&str]| {
        let mut command = b.command("setpriv");
        command.args(["--reuid", "12345", "--regid", "12345", "--clear-groups", &program]).args(args);
        Run::of(&command.output().unwrap())
    };
    for (args, what) in [
        (&["umount", m.dir()][..], "unmount it"),
        (&["umount", "-l", m.dir()], "unmount it"),
        (&["scrub", m.dir()], "scrub it while it is mounted"),
        (&["scrub", "--pause", m.dir()], "scrub it while it is mounted"),
        (&["mkcp", m.dir()], "change it"),
    ] {
        let run = stranger(args);
        let said = format!(
            "silt: only root and who mounted the volume may {what}\n  (become root, or ask who mounted it)\n"
        );
        assert_eq!((run.code, run.err), (7, said), "{args:?}");
    }
    m.unmount();
}

/// Where a file may not be made, what else can be done is said.
#[test]
fn who_may_not_make_a_file_hears_what_to_do() {
    let Some((b, v)) = enterable() else { return };
    fs::set_permissions(&v, Permissions::from_mode(0o644)).unwrap();
    // Where this program lies others need not get to.
    let program = b.name("silt");
    fs::copy(SILT, &program).unwrap();
    for (args, helps) in [
        (&["mkfs", "--size", "32M", "x.img"][..], "in a directory that is yours"),
        (&["map", "v.img", "--svg", "x.svg"], "in a directory that is yours"),
        (&["rescue", "v.img", "--to", "out"], "in a directory that is yours"),
        (&["install", "--prefix", "prefix"], "--prefix"),
        (&["mount", "-o", "suid", "v.img", "run"], "leave them out"),
        (&["mount", "run"], "silt mount VOLUME DIR"),
    ] {
        let mut command = b.command("setpriv");
        command.args(["--reuid", "12345", "--regid", "12345", "--clear-groups", &program]).args(args);
        let run = Run::of(&command.output().unwrap());
        assert!(
            run.code != 0 && run.err.contains("\n  (") && run.err.contains(helps),
            "{args:?}: {}",
            run.err
        );
    }
}
