//! Mounting as an ordinary user, through fusermount3: the example runs as nobody.
//!
//! fusermount3 opens `/dev/fuse` as the user. Where that is not allowed (udev allows it on ordinary systems)
//! a test runs itself again in a mount namespace of its own, in which the device has the usual mode.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::cast_possible_truncation)] // Tests.

mod common;

use common::{Place, can_mount, has_program, wait_for};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const NOBODY: u32 = 65_534;

const INSIDE: &str = "SILT_FUSE_TEST_INSIDE";

/// True if the test shall go on here; otherwise it was skipped, or has run in a namespace of its own.
fn ready(test: &str) -> bool {
    if !can_mount() || !has_program("fusermount3") || !has_program("setpriv") {
        return false;
    }
    let allowed = fs::metadata("/dev/fuse").unwrap().permissions().mode() & 0o006 == 0o006;
    if allowed || std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !has_program("unshare") || !has_program("mknod") {
        return false;
    }
    let place = tempfile::tempdir().unwrap();
    let node = place.path().join("fuse");
    let script =
        r#"set -e; node=$1; shift; mknod -m 666 "$node" c 10 229; mount --bind "$node" /dev/fuse; exec "$@""#;
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"])
        .arg(&node)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .unwrap();
    assert!(status.success(), "the test inside the namespace failed");
    false
}

/// A command that runs as nobody.
fn as_nobody(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(program);
    command
}

/// The example, somewhere that nobody may run it from.
fn memfs(place: &Place) -> Option<PathBuf> {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap().parent().unwrap().join("examples/memfs");
    if !built.exists() {
        println!("skipped: the example {} is not built", built.display());
        return None;
    }
    let copy = place.beside("memfs");
    fs::copy(built, &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(copy.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    chown(place.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    Some(copy)
}

/// Ends the daemon, whatever happens.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // Plain mounts end with their daemon: nothing waits for it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_ordinary_user_mounts_uses_and_unmounts() {
    if !ready("an_ordinary_user_mounts_uses_and_unmounts") {
        return;
    }
    let place = Place::new();
    let Some(program) = memfs(&place) else { return };
    let source = "with space, comma,suid and \\";
    let mut daemon = Daemon(
        as_nobody(&program)
            .args(["--source", source])
            .arg(place.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    );
    wait_for("the mount", || place.is_mounted() || daemon.0.try_wait().unwrap().is_some());
    let entry = silt_fuse::find_mount(place.path()).unwrap().expect("mounted");
    assert_eq!((entry.fs_type.as_str(), entry.source.to_str()), ("fuse.memfs", Some(source)));
    assert!(entry.options.contains("user_id=65534"), "{}", entry.options);
    let mounts = fs::read("/proc/mounts").unwrap();
    let mounts = String::from_utf8_lossy(&mounts);
    let line = mounts.lines().find(|line| line.contains(place.path().to_str().unwrap())).unwrap();
    assert!(line.contains("nosuid,nodev,noatime"), "{line}");

    let script =
        r#"cd "$0" && echo hello > a && mv a b && mkdir d && ln b d/c && cat d/c && ls -A | tr '\n' ' '"#;
    let output = as_nobody(Path::new("sh")).args(["-c", script]).arg(place.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\nb d ", "{output:?}");
    let error = fs::read_dir(place.path()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EACCES), "others, even root, are kept out");

    let unmount = || as_nobody(&program).arg("--unmount").arg(place.path()).output().unwrap();
    let mut user = as_nobody(Path::new("sh"));
    user.args(["-c", "cd \"$0\" && echo && exec sleep 60"]).arg(place.path()).stdout(Stdio::piped());
    let mut user = Daemon(user.spawn().unwrap());
    user.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let output = unmount();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("is in use"), "{output:?}");
    drop(user);
    let output = unmount();
    assert!(output.status.success(), "{output:?}");
    assert!(daemon.0.wait().unwrap().success(), "the session ended by the unmount");
    assert!(!place.is_mounted());
}

#[test]
fn what_the_helper_refuses_is_told_in_its_words() {
    if !ready("what_the_helper_refuses_is_told_in_its_words") {
        return;
    }
    let place = Place::new();
    let Some(program) = memfs(&place) else { return };
    chown(place.path(), Some(0), Some(0)).unwrap();
    let output = as_nobody(&program).arg(place.path()).output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("no write access"), "{text}");
    assert!(!place.is_mounted());
}
