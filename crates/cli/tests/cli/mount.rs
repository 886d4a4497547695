//! `silt mount`

use crate::common::{Bench, Mounted, Run, SILT, can_mount, find, is_mounted, is_root};

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

impl Drop for OtherUser<'_> {
    fn drop(&mut self) {
        for dir in ["past", "silt"].map(|d| self.home().join(d)) {
            if is_mounted(&dir) {
                let _ = silt_fuse::unmount(&dir, silt_fuse::Unmount::Lazy);
            }
        }
    }
}

pub fn process(b: &Bench, volume: &str) -> rustix::process::Pid {
    let pid = b.json(&["status", "--json", volume])["pid"].as_i64().unwrap();
    rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn without_a_volume_the_default_one_is_made_and_mounted() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let (m, out) = Mounted::new(&b, &[], "home");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 3, "{out}");
    let image = b.path("data/silt/default.img");
    assert!(lines[0].contains(m.dir()) && lines[0].contains(image.to_str().unwrap()), "{out}");
    assert!(lines[0].contains("16 GiB"), "{out}");
    assert!(lines[1].contains("silt lscp") && lines[1].contains("at="), "{out}");
    assert!(lines[2].contains(&format!("silt umount {}", m.dir())), "{out}");
    let meta = std::fs::metadata(&image).unwrap();
    assert_eq!(meta.len(), 16 << 30);
    // But for what deleting and cleaning take, which is kept: some ten segments of 8 MiB, once it was looked after.
    assert!(meta.blocks() * 512 < 128 << 20, "sparse");
    assert_eq!(meta.permissions().mode() & 0o077, 0, "nobody else's");
    std::fs::write(m.path("f"), "kept").unwrap();
    m.unmount();
    let (m, _) = Mounted::new(&b, &[], "home");
    assert_eq!(std::fs::read_to_string(m.path("f")).unwrap(), "kept");
    m.unmount();
}

#[test]
fn a_volume_may_have_any_name() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    // The block type shows a loop device instead of the name.
    for (name, options) in
        [("a b,c\\d.img", "nofuseblk"), ("new\nline.img", "nofuseblk"), ("\u{7}.img", "rw")]
    {
        let v = b.volume(name, "64M");
        let (m, _) = Mounted::new(&b, &["-o", options, &v], "m");
        assert_eq!(b.json(&["status", "--json", m.dir()])["volume"], v.as_str());
        b.ok(&["mkcp", "-s", m.dir()]);
        let (past, _) = Mounted::new(&b, &["-o", "at=1", m.dir()], "past");
        past.unmount();
        m.unmount();
    }
}

/// What is meant for one volume is not done to another whose image has its name by now.
#[test]
fn a_mount_is_reached_whatever_its_image_is_called_by_now() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let (one, other) = (b.volume("one.img", "64M"), b.volume("other.img", "64M"));
    let (m, _) = Mounted::new(&b, &[&one, "-o", "nofuseblk"], "m");
    let (past, _) = Mounted::new(&b, &["-o", "at=1", m.dir()], "past");
    let (n, _) = Mounted::new(&b, &[&other, "-o", "nofuseblk"], "n");
    std::fs::rename(&one, b.path("old.img")).unwrap();
    std::fs::rename(&other, &one).unwrap();
    let uuid = |of: &Mounted| b.json(&["status", "--json", of.dir()])["uuid"].clone();
    // Mounts of others are listed, too, and may be gone when they are asked.
    let listed = |uuids: [&serde_json::Value; 2]| {
        let all: serde_json::Value = serde_json::from_str(&b.run(&["status", "--json"]).out).unwrap();
        uuids.map(|uuid| all.as_array().unwrap().iter().filter(|v| v["uuid"] == *uuid).count())
    };
    let (of_one, of_other) = (uuid(&m), uuid(&n));
    assert_ne!(of_one, of_other);
    assert_eq!(uuid(&past), of_one, "a moment's");
    assert_eq!(
        b.json(&["status", "--json", &one])["uuid"],
        of_other,
        "an image is known by itself, not by its name"
    );
    assert_eq!(listed([&of_one, &of_other]), [1, 1]);
    b.ok(&["mkcp", "-s", m.dir()]);
    let snapshots = |of: &Mounted| b.json(&["lscp", "-s", "--json", of.dir()]).as_array().unwrap().len();
    assert_eq!((snapshots(&m), snapshots(&n)), (1, 0));
    n.unmount();
    // Now one with the name that the source of a mount has.
    std::fs::rename(&one, &other).unwrap();
    b.volume("one.img", "64M");
    let (n, _) = Mounted::new(&b, &[&one, "-o", "nofuseblk"], "n");
    assert_eq!(listed([&of_one, &uuid(&n)]), [1, 1]);
    // Whose daemon is gone is unmounted by its name, and nothing else that has had it.
    let pid = process(&b, &one);
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    wait_until("it ends", || rustix::process::test_kill_process(pid).is_err());
    b.ok(&["umount", &one]);
    assert!(!n.is_mounted() && past.is_mounted() && m.is_mounted());
    past.unmount();
    m.unmount();
}

#[test]
fn whoever_called_is_not_held_up_by_what_it_had_open() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    // The pipe ends when nobody has it open for writing any more.
    let script = r#"{ "$1" mount "$2" m 3>&1 >/dev/null; } | cat"#;
    let mut shell = b.command("sh").args(["-c", script, "sh", SILT, &v]).spawn().unwrap();
    let m = Mounted::at(&b, "m");
    wait_until("the shell's pipe ends", || shell.try_wait().unwrap().is_some());
    assert!(m.is_mounted());
    m.unmount();
}

#[test]
fn a_volume_in_use_is_refused() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    std::fs::create_dir(b.path("n")).unwrap();
    let said = b.fails(6, &["mount", &v, "n"]);
    assert!(said.contains(m.dir()) && said.contains("at="), "{said}");
    let said = b.fails(6, &["mkfs", "-f", &v]);
    assert!(said.contains("in use"), "{said}");
    symlink(&v, b.path("other-name.img")).unwrap();
    b.fails(6, &["mount", "other-name.img", "n"]);
    assert!(!is_mounted(&b.path("n")));
    m.unmount();
}

#[test]
fn moments_are_mounted_beside_the_live_tree() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v, "-o", "interval=3600"], "m");
    std::fs::write(m.path("f"), "one").unwrap();
    let one = b.ok(&["mkcp", "-s", "-p", m.dir()]).trim().to_owned();
    std::fs::write(m.path("f"), "two").unwrap();
    let two = b.ok(&["sync", "-p", m.dir()]).trim().to_owned();
    std::fs::remove_file(m.path("f")).unwrap();
    b.ok(&["sync", m.dir()]);

    let (first, out) = Mounted::new(&b, &["-o", &format!("ro,cp={one}"), &v], "first");
    assert!(out.contains("silt umount"), "{out}");
    // A plain checkpoint, by the directory where the volume is mounted.
    let (second, _) = Mounted::new(&b, &["-o", &format!("at={two}"), m.dir()], "second");
    assert_eq!(std::fs::read_to_string(first.path("f")).unwrap(), "one");
    assert_eq!(std::fs::read_to_string(second.path("f")).unwrap(), "two");
    assert!(!m.path("f").exists());
    assert_eq!(std::fs::write(first.path("g"), "x").unwrap_err().raw_os_error(), Some(30));
    // The live tree goes on, and the past stays.
    std::fs::write(m.path("f"), "three").unwrap();
    b.ok(&["sync", m.dir()]);
    assert_eq!(std::fs::read_to_string(first.path("f")).unwrap(), "one");

    // What is shown is pinned.
    assert_eq!(b.run(&["chcp", "cp", &v, &one]).code, 1);
    assert_eq!(b.run(&["rmcp", &v, &two]).code, 1);
    assert_eq!(std::fs::read_to_string(second.path("f")).unwrap(), "two");
    b.fails(2, &["mount", "-o", &format!("ro,cp={two}"), &v, "third"]);
    b.fails(9, &["mount", "-o", "at=4711", &v, "third"]);
    let mounts = b.json(&["status", "--json", &v])["mounts"].clone();
    assert_eq!(mounts.as_array().unwrap().len(), 3, "{mounts}");
    first.unmount();
    b.ok(&["chcp", "cp", &v, &one]);
    second.unmount();
    b.ok(&["rmcp", &v, &two]);
    assert!(m.is_mounted());
    m.unmount();
}

#[test]
fn a_moment_of_an_unmounted_volume_is_mounted_read_only() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.golden("basic-4k");
    let before = std::fs::read(&v).unwrap();
    for options in ["ro,cp=2", "at=3", "at=2026-11-20T23:25:05Z"] {
        let (m, _) = Mounted::new(&b, &["-o", options, &v], "m");
        assert!(std::fs::read_dir(m.path("")).unwrap().count() > 0);
        assert!(std::fs::write(m.path("x"), "x").is_err());
        m.unmount();
    }
    b.fails(2, &["mount", "-o", "ro,cp=3", &v, "m"]);
    b.fails(9, &["mount", "-o", "at=2001-01-01", &v, "m"]);
    assert!(std::fs::read(&v).unwrap() == before, "not one byte");
}

#[test]
fn read_only_writes_not_one_byte() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.golden("cut-4k");
    let before = std::fs::read(&v).unwrap();
    for args in [&["-o", "ro"][..], &["-r"], &["-o", "ro,norecovery"]] {
        let mut all = args.to_vec();
        all.push(&v);
        let (m, _) = Mounted::new(&b, &all, "m");
        assert!(std::fs::read_dir(m.path("")).unwrap().count() > 0);
        assert_eq!(std::fs::write(m.path("x"), "x").unwrap_err().raw_os_error(), Some(30));
        m.unmount();
    }
    assert!(std::fs::read(&v).unwrap() == before);
    b.fails(2, &["mount", "-o", "norecovery", &v, "m"]);
    assert!(std::fs::read(&v).unwrap() == before);
}

#[test]
fn wrong_use_is_told() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    for options in ["nosuchoption", "cp=2", "order=x", "cache=1", "interval=x"] {
        b.fails(2, &["mount", "-o", options, &v, "m"]);
    }
    b.fails(9, &["mount", &v, "no/such/dir"]);
    std::fs::write(b.path("file"), "").unwrap();
    assert_ne!(b.run(&["mount", &v, "file"]).code, 0);
    assert_eq!(b.run(&["mount"]).code, 2);
    assert_eq!(b.run(&["mount", "a", "b", "c"]).code, 2);
    assert_eq!(b.json(&["tune", "--json", &v])["mount_count"], 0);
}

#[test]
fn in_the_foreground_it_unmounts_when_told_to_end() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    // As a service manager that wants to be told.
    let manager = std::os::unix::net::UnixDatagram::bind(b.path("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut child = b
        .command(SILT)
        .args(["mount", "-f", "-o", "interval=3600", &v, "m"])
        .env("NOTIFY_SOCKET", b.path("notify"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("is mounted"));
    let mut told = [0; 64];
    let n = manager.recv(&mut told).unwrap();
    assert_eq!(&told[..n], b"READY=1");
    std::fs::write(b.path("m/f"), "not yet written").unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!is_mounted(&b.path("m")));
    let s = b.json(&["status", "--json", &v]);
    assert_eq!((s["clean"].as_bool(), s["files"].as_u64()), (Some(true), Some(2)));
}

#[test]
fn a_log_is_kept_where_asked_for() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.golden("cut-4k");
    let (m, _) = Mounted::new(&b, &["--log", "log", &v], "m");
    m.unmount();
    let log = std::fs::read_to_string(b.path("log")).unwrap();
    assert!(log.contains("not cleanly unmounted"), "{log}");
}

#[test]
fn the_helper_does_what_mount_8_expects() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    symlink(SILT, b.path("mount.silt")).unwrap();
    symlink(SILT, b.path("umount.fuse.silt")).unwrap();
    std::fs::create_dir(b.path("m")).unwrap();
    let dir = b.name("m");
    let helper = |name: &str, args: &[&str]| {
        // mount(8) hands its standard output on: a server that kept it would hold up whoever reads.
        let run = Run::of(&b.command(b.path(name)).args(args).output().unwrap());
        (run.code, run.out + &run.err)
    };
    assert_eq!(helper("mount.silt", &[&v, &dir, "-f", "-o", "rw"]), (0, String::new()));
    assert!(!is_mounted(&b.path("m")), "-f only pretends");
    assert_eq!(helper("mount.silt", &[&v, &dir, "-o", "nosuchoption"]).0, 1);
    assert_eq!(helper("mount.silt", &["nothing.img", &dir, "-o", "rw"]).0, 32);
    let options = "rw,nofail,noatime,x-systemd.requires=a.service";
    assert_eq!(
        helper("mount.silt", &[&v, &dir, "-n", "-s", "-o", options, "-o", "surprise"]),
        (0, String::new())
    );
    std::fs::write(b.path("m/f"), "x").unwrap();
    assert_eq!(helper("mount.silt", &[&v, &dir, "-o", "rw"]).0, 32);
    assert_eq!(helper("umount.fuse.silt", &[&dir]), (0, String::new()));
    assert!(!is_mounted(&b.path("m")));
    assert_eq!(helper("mount.silt", &[&v, &dir, "-v", "-o", "ro"]).0, 0);
    assert!(std::fs::write(b.path("m/f"), "x").is_err());
    assert_eq!(helper("umount.fuse.silt", &[&dir]).0, 0);
}

#[test]
fn options_the_kernel_checks_are_changed_while_mounted() {
    if !(can_mount() && is_root()) {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let read_only = || b.json(&["status", "--json", m.dir()])["mounts"][0]["read_only"].as_bool().unwrap();
    std::fs::write(m.path("f"), "x").unwrap();
    symlink(SILT, b.path("mount.silt")).unwrap();
    let helper = |options: &str| {
        let run =
            Run::of(&b.command(b.path("mount.silt")).args([&v, m.dir(), "-o", options]).output().unwrap());
        (run.code, run.err)
    };
    assert_eq!(helper("remount,ro"), (0, String::new()));
    assert_eq!(std::fs::write(m.path("f"), "y").unwrap_err().raw_os_error(), Some(30));
    assert!(read_only());
    // The kernel lets no program write; neither do the commands.
    let before = b.checkpoints(m.dir());
    let label = || b.json(&["tune", "--json", &v])["label"].clone();
    let labelled = label();
    for args in [
        &["retain", m.dir(), "nothing"][..],
        &["mkcp", "-s", m.dir()],
        &["mkcp", m.dir()],
        &["tune", "-L", "new", m.dir()],
        &["chcp", "ss", m.dir(), "1"],
        &["rmcp", m.dir(), "1"],
        &["resize", m.dir(), "32M"],
        &["trim", m.dir()],
        &["clean", m.dir()],
    ] {
        let said = b.fails(11, args);
        assert!(said.contains("remounted read-only"), "{args:?}: {said}");
    }
    assert_eq!((b.checkpoints(m.dir()), label()), (before, labelled));
    b.ok(&["sync", m.dir()]);
    assert_eq!(helper("remount,rw,noexec"), (0, String::new()));
    // What the kernel's table shows is handed on by mount(8).
    let shown = "remount,rw,noexec,user_id=0,group_id=0,default_permissions,allow_other,blksize=4096";
    assert_eq!(helper(shown), (0, String::new()));
    std::fs::write(m.path("f"), "z").unwrap();
    assert!(!read_only());
    b.ok(&["mkcp", "-s", m.dir()]);
    std::fs::set_permissions(m.path("f"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let refused = Command::new(m.path("f")).status().unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    // Somebody writes.
    let file = std::fs::File::create(m.path("g")).unwrap();
    assert!(b.fails(6, &["mount", "-o", "remount,ro", m.dir()]).contains("fuser"));
    drop(file);
    let (code, said) = helper("remount,rw,interval=7");
    assert!(code == 0 && said.contains("stays as it is"), "{said}");
    m.unmount();
    let (m, _) = Mounted::new(&b, &["-r", &v], "m");
    b.fails(11, &["mount", "-o", "remount,rw", m.dir()]);
    b.ok(&["mount", "-o", "remount,ro", m.dir()]);
    m.unmount();
    b.fails(9, &["mount", "-o", "remount,ro", "m"]);
}

#[test]
fn a_bind_mount_does_not_hold_umount_up() {
    if !(can_mount() && is_root() && find("mount")) {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    std::fs::create_dir(b.path("n")).unwrap();
    let bound = Command::new("mount").arg("--bind").arg(m.dir()).arg(b.path("n")).status().unwrap();
    assert!(bound.success());
    let run = b.run(&["umount", m.dir()]);
    let other = Mounted::at(&b, "n");
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.err.contains(other.dir()), "{}", run.err);
    assert!(!m.is_mounted() && other.is_mounted());
    other.unmount();
    assert_eq!(b.json(&["status", "--json", &v])["clean"], true);

    // A second place of a moment is no reason to wait for the end of the live tree.
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let (past, _) = Mounted::new(&b, &["-o", "at=1", m.dir()], "past");
    assert!(Command::new("mount").arg("--bind").arg(past.dir()).arg(b.path("n")).status().unwrap().success());
    past.unmount();
    Mounted::at(&b, "n").unmount();
    m.unmount();
}

#[test]
fn what_fails_leaves_everything_mounted_and_no_directory_behind() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    b.fails(9, &["mount", "nothing.img", "new"]);
    assert!(!b.path("new").exists());
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let (past, _) = Mounted::new(&b, &["-o", "at=1", &v], "past");
    let file = std::fs::File::create(m.path("open")).unwrap();
    b.fails(6, &["umount", m.dir()]);
    assert!(m.is_mounted() && past.is_mounted());
    drop(file);
    // One within the live tree is no reason to be in use.
    let (within, _) = Mounted::new(&b, &["-o", "at=1", &v], "m/within");
    m.unmount();
    assert!(!past.is_mounted() && !within.is_mounted(), "the past goes along");
}

#[test]
fn changes_go_through_the_server() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    for n in 0..6 {
        std::fs::write(m.path(&format!("f{n}")), "x").unwrap();
        b.ok(&["mkcp", m.dir()]);
    }
    b.ok(&["chcp", "ss", &v, "3", "5"]);
    b.ok(&["rmcp", "-f", m.dir(), "2..6"]);
    let left = b.checkpoints(&v);
    assert!(
        left.contains(&(3, true)) && left.contains(&(5, true)) && !left.iter().any(|(n, _)| *n == 4),
        "{left:?}"
    );
    b.ok(&["tune", "-L", "renamed", "-i", "30", m.dir()]);
    let r = b.json(&["resize", "--json", m.dir(), "128M"]);
    assert!(r["segments"].as_u64() > r["segments_before"].as_u64());
    std::fs::write(m.path("big"), vec![3; 80 << 20]).unwrap();
    b.ok(&["sync", m.dir()]);
    assert!(b.ok(&["lssu", m.dir()]).lines().count() > 200);
    assert!(b.ok(&["dumpseg", m.dir(), "0", "1"]).contains("partial segment"));
    m.unmount();
    let s = b.json(&["tune", "--json", &v]);
    assert_eq!((s["label"].as_str(), s["interval"].as_u64()), (Some("renamed"), Some(30)));
    assert_eq!(b.checkpoints(&v).iter().filter(|(_, s)| *s).count(), 2);
    let (m, _) = Mounted::new(&b, &["-r", &v], "m");
    assert!(std::fs::read(m.path("big")).unwrap().iter().all(|byte| *byte == 3));
    m.unmount();
}

/// Runs the command as another user, with a home of that user's.
struct OtherUser<'a> {
    bench: &'a Bench,
    uid: u32,
}

impl OtherUser<'_> {
    /// The user must have a name: fusermount3 asks for it.
    fn new(bench: &Bench, uid: u32) -> OtherUser<'_> {
        // The program where that user can reach it, and a home to put things in.
        std::fs::set_permissions(bench.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
        if !bench.path("silt").exists() {
            std::fs::copy(SILT, bench.path("silt")).unwrap();
        }
        let user = OtherUser { bench, uid };
        for dir in [user.home(), user.home().join("run")] {
            std::fs::create_dir_all(&dir).unwrap();
            std::os::unix::fs::chown(&dir, Some(uid), Some(uid)).unwrap();
        }
        user
    }

    fn home(&self) -> std::path::PathBuf {
        self.bench.path(&format!("home-{}", self.uid))
    }

    fn run(&self, args: &[&str]) -> Run {
        let id = self.uid.to_string();
        let output = Command::new("setpriv")
            .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
            .arg(self.bench.path("silt"))
            .args(args)
            .current_dir(self.home())
            .env("HOME", self.home())
            .env("XDG_RUNTIME_DIR", self.home().join("run"))
            .env_remove("XDG_DATA_HOME")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        Run::of(&output)
    }
}

/// Set where a test has started itself again.
const INSIDE: &str = "SILT_CLI_TEST_INSIDE";

/// Whether `test` shall go on here. Ordinary users must be able to open /dev/fuse, which udev allows
/// on ordinary systems; where they are not, the test runs in a mount namespace of its own.
fn with_others(test: &str) -> bool {
    if !(is_root() && can_mount() && ["setpriv", "fusermount3", "unshare", "mknod"].into_iter().all(find)) {
        eprintln!("skipped: this needs root, setpriv and fusermount3");
        return false;
    }
    let mode = std::fs::metadata("/dev/fuse").unwrap().permissions().mode();
    if mode & 0o006 == 0o006 || std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let place = tempfile::tempdir().unwrap();
    // The copies of others' mounts go first: they would keep those alive when they end outside.
    let script = r#"node=$1; shift; umount -l -a -t fuse.silt,fuseblk.silt 2>/dev/null
        set -e; mknod -m 666 "$node" c 10 229; mount --bind "$node" /dev/fuse; exec "$@""#;
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "slave", "sh", "-c", script, "sh"])
        .arg(place.path().join("fuse"))
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .unwrap();
    assert!(status.success(), "the test inside the namespace failed");
    false
}

#[test]
fn an_ordinary_user_has_all_of_it() {
    if !with_others("an_ordinary_user_has_all_of_it") {
        return;
    }
    let b = Bench::new();
    let user = OtherUser::new(&b, 65_534);
    let ok = |args: &[&str]| {
        let run = user.run(args);
        assert_eq!(run.code, 0, "{args:?}: {}{}", run.out, run.err);
        run.out
    };
    let out = ok(&["mount", "silt"]);
    assert!(out.contains(".local/share/silt/default.img"), "{out}");
    let dir = user.home().join("silt");
    let dir = dir.to_str().unwrap();
    assert!(is_mounted(std::path::Path::new(dir)));
    assert_eq!(ok(&["mkcp", "-s", "-p", dir]).trim(), "1");
    ok(&["mount", "-o", "at=1", dir, "past"]);
    assert!(ok(&["status", dir]).contains("/past showing checkpoint 1"));
    ok(&["umount", "past"]);
    // Another user sees nothing of it, and root may do everything.
    let other = OtherUser::new(&b, 1);
    let image = user.home().join(".local/share/silt/default.img");
    assert_eq!(other.run(&["lscp", dir]).code, 7);
    assert_ne!(other.run(&["umount", dir]).code, 0);
    assert_ne!(other.run(&["lscp", image.to_str().unwrap()]).code, 0);
    assert!(is_mounted(std::path::Path::new(dir)));
    b.ok(&["lscp", image.to_str().unwrap()]);
    b.ok(&["mkcp", dir]);
    ok(&["umount", dir]);
    assert!(!is_mounted(std::path::Path::new(dir)));
    let status = ok(&["status", "--json", image.to_str().unwrap()]);
    assert!(status.contains("\"clean\":true"), "{status}");
}

#[test]
fn others_look_and_do_not_change() {
    if !with_others("others_look_and_do_not_change") {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let other = OtherUser::new(&b, 1);
    for args in [
        &["lscp", m.dir()][..],
        &["lssu", m.dir()],
        &["status", m.dir()],
        &["sync", m.dir()],
        &["tune", "-l", m.dir()],
    ] {
        let run = other.run(args);
        assert_eq!(run.code, 0, "{args:?}: {}", run.err);
    }
    for args in [
        &["mkcp", "-s", m.dir()][..],
        &["chcp", "ss", m.dir(), "1"],
        &["rmcp", m.dir(), "1"],
        &["tune", "-L", "mine", m.dir()],
        &["resize", m.dir(), "128M"],
        &["mount", "-o", "at=1", m.dir(), "past"],
        &["umount", m.dir()],
    ] {
        let run = other.run(args);
        assert_eq!(run.code, 7, "{args:?}: {}{}", run.out, run.err);
    }
    assert!(m.is_mounted());
    assert_eq!(b.checkpoints(&v).iter().filter(|(_, s)| *s).count(), 0);
    m.unmount();
    // Where others were not let in, they do not even look.
    let (m, _) = Mounted::new(&b, &["-o", "noallow_other", &v], "m");
    assert_eq!(other.run(&["lscp", m.dir()]).code, 7);
    m.unmount();
}

/// A moment that was mounted first has the volume for reading: what is said is what leads on.
#[test]
fn a_moment_that_came_first_is_told_of() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &["-o", "at=1", &v], "the past");
    std::fs::create_dir(b.path("live")).unwrap();
    let said = b.fails(6, &["mount", &v, &b.name("live")]);
    let typed = format!("silt umount '{}'", m.dir());
    assert!(said.contains("as a past moment") && said.contains(&typed), "{said}");
    assert!(!said.contains("at=NUMBER"), "{said}");
    m.unmount();
}

#[test]
fn what_is_printed_for_typing_can_be_typed() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, said) = Mounted::new(&b, &[&v], "it's a dir");
    let command = said.lines().find_map(|l| l.strip_prefix("unmount with: silt ")).unwrap();
    let run = b.command("sh").arg("-c").arg(format!("{SILT} {command}")).output().unwrap();
    assert_eq!(Run::of(&run).code, 0, "{said}");
    assert!(!m.is_mounted());
}

/// Each second of what a time is written to belongs to it, and what was chosen is said.
#[test]
fn times_mean_their_end_and_what_was_chosen_is_said() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let made = b.json(&["lscp", "--json", &v])[0]["time"].as_str().unwrap().to_owned();
    let (day, clock) = (&made[..10], &made[11..19]);
    let chosen = format!("shows checkpoint 1 of {day} {clock}, read-only");
    for at in [&made[..16], &made[..13], &format!("{day} {}", &clock[..5]), "now", "today"] {
        let run = b.run(&["mount", "-o", &format!("at={at}"), &v, "m"]);
        assert_eq!(run.code, 0, "{at}: {}", run.err);
        let m = Mounted::at(&b, "m");
        assert!(run.out.contains(&chosen), "{at}: {}", run.out);
        m.unmount();
    }
    b.fails(9, &["mount", "-o", "at=2 hours ago", &v, "m"]);
    b.fails(9, &["mount", "-o", "at=@1000000000", &v, "m"]);
    let (m, _) = Mounted::new(&b, &[&v], "live");
    let run = b.run(&["mount", "-o", "at=2999-01-01", m.dir(), "past"]);
    assert!(run.code == 0 && run.err.contains("note: 2999-01-01 is still to come"), "{}", run.err);
    assert!(run.out.contains(" shows checkpoint ") && run.out.contains("read-only"), "{}", run.out);
    b.ok(&["umount", &b.name("past")]);
    m.unmount();
}

#[test]
fn on_a_medium_that_can_only_be_read_ro_is_named() {
    if !(can_mount() && is_root() && find("mount")) {
        return;
    }
    let b = Bench::new();
    b.volume("v.img", "32M");
    std::fs::create_dir(b.path("disk")).unwrap();
    let disk = b.name("disk");
    let sh = |args: &[&str]| Command::new(args[0]).args(&args[1..]).status().unwrap().success();
    if !sh(&["mount", "-t", "tmpfs", "tmpfs", &disk]) {
        return;
    }
    let copied = std::fs::copy(b.path("v.img"), b.path("disk/v.img")).is_ok();
    let is_ro = sh(&["mount", "-o", "remount,ro", &disk]);
    let refused = b.run(&["mount", "disk/v.img", "m"]);
    let read = b.run(&["mount", "-o", "ro", "disk/v.img", "m"]);
    let unmounted = b.run(&["umount", &b.name("m")]);
    assert!(sh(&["umount", "-l", &disk]) && copied && is_ro);
    assert!(refused.code == 11 && refused.err.contains("-o ro"), "{} {}", refused.code, refused.err);
    assert_eq!((read.code, unmounted.code), (0, 0), "{}", read.err);
}

#[test]
fn nothing_is_mounted_over_everything() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    std::os::unix::fs::symlink("/", b.path("root")).unwrap();
    for args in [&["mount", &v, "/"][..], &["mount", "/"], &["mount", &v, "/../"], &["mount", &v, "root"]] {
        let said = b.fails(2, args);
        assert!(said.contains("not mounted on /"), "{args:?}: {said}");
    }
    assert!(!b.path("data").exists(), "no volume was made for that");
}

#[test]
fn what_can_only_be_read_is_called_so() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let (m, said) = Mounted::new(&b, &["-o", "ro", &v], "m");
    assert!(said.contains(&format!("{} is mounted read-only ({v}, ", m.dir())), "{said}");
    m.unmount();
    let (m, said) = Mounted::new(&b, &[&v], "m");
    assert!(said.contains(&format!("{} is mounted ({v}, ", m.dir())), "{said}");
    m.unmount();
}

/// Who asks for writing where that cannot be had is told so, and nobody else.
#[test]
fn a_moment_is_not_written_and_that_is_said() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    std::fs::create_dir(b.path("m")).unwrap();
    let note = "note: a moment of the past cannot be written: it is mounted read-only\n";
    for (options, says) in
        [("at=1,rw", true), ("rw,at=1", true), ("rw,at=1,ro", false), ("at=1", false), ("rw", false)]
    {
        let run = b.run(&["mount", "-o", options, &v, "m"]);
        let m = Mounted::at(&b, "m");
        assert_eq!((run.code, run.err.as_str()), (0, if says { note } else { "" }), "{options}");
        m.unmount();
    }
    // Beside the live tree, too.
    let (m, _) = Mounted::new(&b, &[&v], "m");
    std::fs::create_dir(b.path("past")).unwrap();
    assert_eq!(b.run(&["mount", "-o", "at=1,rw", m.dir(), "past"]).err, note);
    Mounted::at(&b, "past").unmount();
    m.unmount();
}

/// What is not asked to be changed stays, and what cannot be changed is told to whoever asks for it.
#[test]
fn a_remount_leaves_it_synchronous() {
    if !(can_mount() && is_root()) {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    symlink(SILT, b.path("mount.silt")).unwrap();
    let shown = |m: &Mounted| {
        let entry = silt_fuse::find_mount(std::path::Path::new(m.dir())).unwrap().unwrap();
        ["sync", "dirsync"].map(|word| entry.options.split(',').any(|o| o == word))
    };
    let helper = |m: &Mounted, options: &str| {
        let run =
            Run::of(&b.command(b.path("mount.silt")).args([&v, m.dir(), "-o", options]).output().unwrap());
        (run.code, run.err)
    };
    let (m, _) = Mounted::new(&b, &[&v, "-o", "sync,dirsync"], "m");
    assert_eq!(shown(&m), [true, true]);
    b.ok(&["mount", "-o", "remount,noexec", m.dir()]);
    assert_eq!(shown(&m), [true, true]);
    // As mount(8) hands on what the table shows.
    assert_eq!(helper(&m, "remount,rw,noexec,sync,dirsync,allow_other"), (0, String::new()));
    assert_eq!(shown(&m), [true, true]);
    m.unmount();
    let (m, _) = Mounted::new(&b, &[&v], "m");
    for asked in ["sync", "dirsync"] {
        let (code, said) = helper(&m, &format!("remount,rw,{asked}"));
        assert!(code == 0 && said.contains("the rest stays as it is"), "{asked}: {said}");
    }
    assert_eq!(shown(&m), [false, false]);
    m.unmount();
}
