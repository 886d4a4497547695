//! `silt umount`

use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use silt_device::{Access, OpenOptions};

use crate::common::disk::Loop;
use crate::common::{Bench, Mounted, can_mount, find, is_mounted, is_root};

/// A file system of somebody else, with a file in it.
struct Others<'a>(&'a Path);

impl<'a> Others<'a> {
    fn mount(dir: &'a Path) -> Self {
        let mount = Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(dir).status();
        assert!(mount.unwrap().success());
        std::fs::write(dir.join("precious"), "keep").unwrap();
        Others(dir)
    }

    #[track_caller]
    fn is_there(&self) {
        assert_eq!(std::fs::read_to_string(self.0.join("precious")).unwrap(), "keep");
    }

    #[track_caller]
    fn unmount(self) {
        self.is_there();
        assert!(Command::new("umount").arg(self.0).status().unwrap().success());
    }
}

impl Drop for Others<'_> {
    fn drop(&mut self) {
        if self.0.join("precious").exists() {
            let _ = Command::new("umount").args(["-l".as_ref(), self.0.as_os_str()]).status();
        }
    }
}

/// Has a daemon end as a shutdown does.
fn end(pid: u64) {
    assert!(Command::new("kill").arg(pid.to_string()).status().unwrap().success());
}

/// Waits until it has.
#[track_caller]
fn wait_for(pid: u64) {
    let begin = Instant::now();
    while std::fs::metadata(format!("/proc/{pid}/exe")).is_ok() {
        assert!(begin.elapsed() < Duration::from_secs(10), "it goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn returns_when_the_volume_is_closed() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    for n in 0..5 {
        let (m, _) = Mounted::new(&b, &[&v, "-o", "interval=3600"], "m");
        std::fs::write(m.path(&format!("f{n}")), vec![7; 3 << 20]).unwrap();
        m.unmount();
        // At once: no lock is held any more, and everything is written.
        let s = b.json(&["status", "--json", &v]);
        assert_eq!((s["clean"].as_bool(), s["files"].as_u64()), (Some(true), Some(n + 2)));
    }
}

#[test]
fn a_directory_in_use_is_not_unmounted() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let open = std::fs::File::create(m.path("f")).unwrap();
    let said = b.fails(6, &["umount", m.dir()]);
    assert!(said.contains("in use") && said.contains(&format!("fuser -vm {} shows", m.dir())), "{said}");
    assert!(m.is_mounted());
    std::fs::write(m.path("g"), "still there").unwrap();
    drop(open);
    m.unmount();
}

/// Moments in a tree that is in use stay with it.
#[test]
fn what_is_mounted_in_a_tree_that_stays_stays_too() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    std::fs::write(m.path("f"), "then").unwrap();
    b.ok(&["sync", m.dir()]);
    b.ok(&["mkcp", "-s", m.dir()]);
    let last = b.checkpoints(&v).last().unwrap().0;
    for name in ["past", "deep"] {
        std::fs::create_dir(m.path(name)).unwrap();
    }
    std::fs::write(m.path("f"), "now").unwrap();
    let at = format!("at={last},noexec");
    let (past, _) = Mounted::new(&b, &["-o", &at, &v], "m/past");
    let (deep, _) = Mounted::new(&b, &["-o", &at, &v], "m/deep");
    let (beside, _) = Mounted::new(&b, &["-o", &at, &v], "beside");
    let table = || {
        let table = std::fs::read("/proc/self/mountinfo").unwrap();
        let table = String::from_utf8_lossy(&table);
        let ours = table.lines().filter(|line| line.contains("/m/") || line.contains("/beside "));
        // Without what is counted up.
        let mut ours: Vec<String> =
            ours.map(|line| line.split(' ').skip(3).collect::<Vec<_>>().join(" ")).collect();
        ours.sort();
        ours
    };
    let before = table();
    let inside = b.command("sleep").arg("100").current_dir(m.dir()).spawn();
    let mut inside = inside.unwrap();
    for named in [m.dir(), &v] {
        let said = b.fails(6, &["umount", named]);
        assert!(said.contains("in use") && !said.contains("again"), "{said}");
        assert_eq!(table(), before, "same places, same options");
        for moment in [&past, &deep, &beside] {
            assert_eq!(std::fs::read_to_string(moment.path("f")).unwrap(), "then", "{}", moment.dir());
        }
        assert_eq!(std::fs::read_to_string(m.path("f")).unwrap(), "now");
    }
    let status = b.json(&["status", "--json", m.dir()]);
    assert_eq!(status["mounts"].as_array().unwrap().len(), 4, "{status}");
    inside.kill().unwrap();
    inside.wait().unwrap();
    // One that is in use keeps all of them.
    let open = std::fs::File::open(past.path("f")).unwrap();
    let said = b.fails(6, &["umount", m.dir()]);
    assert!(said.contains("in use"), "{said}");
    assert_eq!(table(), before);
    drop(open);
    // Each can be unmounted by itself as before, and its checkpoint is let go.
    deep.unmount();
    b.ok(&["umount", m.dir()]);
    assert!(!past.is_mounted() && !beside.is_mounted() && !m.is_mounted());
}

#[test]
fn what_is_not_mounted_is_told() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    std::fs::create_dir(b.path("d")).unwrap();
    b.fails(9, &["umount", "d"]);
    b.fails(9, &["umount", "nothing"]);
    assert!(b.fails(9, &["umount", &v]).contains("silt status lists"));
    let said = b.fails(2, &["umount", "/proc"]);
    assert!(said.contains("use umount"), "{said}");
}

#[test]
fn by_the_volume_everything_is_unmounted() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let (past, _) = Mounted::new(&b, &["-o", "at=1", &v], "past");
    b.ok(&["umount", &v]);
    assert!(!m.is_mounted() && !past.is_mounted());
    assert_eq!(b.json(&["status", "--json", &v])["clean"], true);
}

/// Nothing is taken from under somebody who copies out of a moment.
#[test]
fn a_moment_in_use_keeps_the_live_tree_mounted() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    std::fs::write(m.path("f"), "then").unwrap();
    b.ok(&["mkcp", "-s", m.dir()]);
    let last = b.checkpoints(&v).last().unwrap().0;
    let (first, _) = Mounted::new(&b, &["-o", &format!("at={last}"), &v], "first");
    let (second, _) = Mounted::new(&b, &["-o", &format!("at={last}"), &v], "second");
    let open = std::fs::File::open(first.path("f")).unwrap();
    for what in [m.dir(), &v] {
        let said = b.fails(6, &["umount", what]);
        assert!(said.contains("first") && said.contains("in use"), "{said}");
        assert!(m.is_mounted() && first.is_mounted() && second.is_mounted());
    }
    let mut read = String::new();
    std::io::Read::read_to_string(&mut &open, &mut read).unwrap();
    assert_eq!(read, "then");
    assert_eq!(std::fs::read_to_string(second.path("f")).unwrap(), "then");
    drop(open);
    b.ok(&["umount", m.dir()]);
    assert!(!first.is_mounted() && !second.is_mounted());
}

/// Moments without the live tree: none takes another along, and with the last one the daemon ends.
#[test]
fn moments_without_the_live_tree_are_unmounted_one_by_one() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    std::fs::write(m.path("f"), "then").unwrap();
    b.ok(&["mkcp", m.dir()]);
    m.unmount();
    let last = b.checkpoints(&v).last().unwrap().0;
    let moment = |dir| Mounted::new(&b, &["-o", &format!("at={last}"), &v], dir).0;
    let dirs = |b: &Bench| -> Vec<String> {
        let mounts = b.json(&["status", "--json", &v])["mounts"].clone();
        mounts.as_array().unwrap().iter().map(|m| m["dir"].as_str().unwrap().to_owned()).collect()
    };
    let read = |m: &Mounted<'_>| std::fs::read_to_string(m.path("f")).unwrap();
    let (first, second, third) = (moment("first"), moment("second"), moment("third"));
    let pid = crate::mount::process(&b, &v);
    first.unmount();
    assert_eq!(dirs(&b), [second.dir(), third.dir()]);
    assert_eq!((read(&second), read(&third)), ("then".into(), "then".into()));
    // The live tree would need all of them gone.
    std::fs::create_dir(b.path("live")).unwrap();
    assert!(b.fails(6, &["mount", &v, "live"]).contains(&format!("unmount that first: silt umount {v};")));
    // Where the first one was another one may be.
    let again = moment("first");
    let open = std::fs::File::open(again.path("f")).unwrap();
    b.fails(6, &["umount", again.dir()]);
    drop(open);
    assert_eq!(read(&again), "then");
    // Nor does umount(8), as root may call it.
    if crate::common::is_root() {
        let ended = std::process::Command::new("umount").arg(second.dir()).status().unwrap();
        assert!(ended.success() && !second.is_mounted());
    } else {
        second.unmount();
    }
    again.unmount();
    assert_eq!(dirs(&b), [third.dir()]);
    assert_eq!(read(&third), "then");
    third.unmount();
    crate::mount::wait_until("it ends", || rustix::process::test_kill_process(pid).is_err());
    assert_eq!(b.json(&["status", "--json", &v])["clean"], true);
    // By the volume all go, whether the first one is there or not.
    for gone in [false, true] {
        let (first, second) = (moment("first"), moment("second"));
        if gone {
            first.unmount();
        }
        b.ok(&["umount", &v]);
        assert!(!second.is_mounted() && !crate::common::is_mounted(&b.path("first")));
    }
    // And so it is when the daemon is told to end.
    let (first, second) = (moment("first"), moment("second"));
    let pid = crate::mount::process(&b, &v);
    first.unmount();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    crate::mount::wait_until("it ends", || rustix::process::test_kill_process(pid).is_err());
    assert!(!second.is_mounted());
    let (m, _) = Mounted::new(&b, &[&v], "m");
    m.unmount();
}

/// By a link to the directory; and by the image where the daemon is gone.
#[test]
fn a_mount_is_found_by_a_link_and_by_its_image() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    std::os::unix::fs::symlink(m.dir(), b.path("link")).unwrap();
    b.ok(&["umount", &b.name("link")]);
    assert!(!m.is_mounted());
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let pid = b.json(&["status", "--json", m.dir()])["pid"].as_u64().unwrap().to_string();
    assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    while std::fs::metadata(format!("/proc/{pid}/exe")).is_ok() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    b.ok(&["umount", &v]);
    assert!(!m.is_mounted());
    b.fails(9, &["umount", &v]);
}

/// What somebody else mounted where a moment was is his, however the live tree ends.
#[test]
fn what_others_mounted_where_a_moment_was_stays() {
    if !can_mount() || !is_root() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let umount = |dir: &str| assert!(Command::new("umount").arg(dir).status().unwrap().success());
    for by_signal in [false, true] {
        let (m, _) = Mounted::new(&b, &[&v], "m");
        let (past, _) = Mounted::new(&b, &["-o", "at=1", &v], "past");
        let pid = b.json(&["status", "--json", &v])["pid"].as_u64().unwrap();
        // Nobody asks the daemon after this.
        umount(past.dir());
        let place = b.path("past");
        let others = Others::mount(&place);
        if by_signal {
            end(pid)
        } else {
            umount(m.dir())
        }
        wait_for(pid);
        others.unmount();
    }
}

/// A mount that others mounted over is not to be unmounted; what they mounted is not either.
#[test]
fn what_others_mounted_over_a_mount_stays() {
    if !can_mount() || !is_root() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let (past, _) = Mounted::new(&b, &["-o", "at=1", &v], "past");
    let (second, _) = Mounted::new(&b, &["-o", "at=1", &v], "second");
    let place = b.path("past");
    let others = Others::mount(&place);
    for named in [m.dir(), &v] {
        let said = b.fails(6, &["umount", named]);
        assert!(said.contains("past is covered") && said.contains("unmount what lies over it"), "{said}");
        others.is_there();
        assert!(m.is_mounted() && second.is_mounted());
    }
    others.unmount();
    assert!(past.is_mounted() && past.path(".").exists());
    // Over the live tree, where the moments come back.
    let place = b.path("m");
    let others = Others::mount(&place);
    let said = b.fails(6, &["umount", &v]);
    assert!(said.contains("m is covered"), "{said}");
    others.is_there();
    assert!(past.is_mounted() && second.is_mounted());
    let said = b.fails(2, &["umount", m.dir()]);
    assert!(said.contains("use umount"), "{said}");
    others.unmount();
    // A directory above, in which there is the same path once more.
    let above = b.path("above");
    let (deep, _) = {
        std::fs::create_dir(&above).unwrap();
        Mounted::new(&b, &["-o", "at=1", &v], "above/deep")
    };
    let others = Others::mount(&above);
    let below = above.join("deep");
    std::fs::create_dir(&below).unwrap();
    let further = Others::mount(&below);
    let said = b.fails(6, &["umount", m.dir()]);
    assert!(said.contains("deep is covered"), "{said}");
    further.unmount();
    others.unmount();
    assert!(deep.is_mounted());
    b.ok(&["umount", m.dir()]);
    assert!(!is_mounted(&b.path("past")) && !is_mounted(&b.path("above/deep")));
}

/// A daemon that is to end does so, whatever was mounted over its mounts.
#[test]
fn what_was_mounted_over_a_mount_is_no_reason_to_go_on() {
    if !can_mount() || !is_root() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    for options in ["fuseblk", "nofuseblk"] {
        let (m, _) = Mounted::new(&b, &[&v, "-o", options], "m");
        let (past, _) = Mounted::new(&b, &["-o", "at=1", &v], "past");
        std::fs::write(m.path("f"), options).unwrap();
        let (live, moment) = (b.path("m"), b.path("past"));
        let over = [Others::mount(&live), Others::mount(&moment)];
        let pid = b.json(&["status", "--json", &v])["pid"].as_u64().unwrap();
        end(pid);
        wait_for(pid);
        over.into_iter().for_each(Others::unmount);
        // What was beneath is left behind, and not in the way of a next mount.
        b.ok(&["umount", &v]);
        assert!(!m.is_mounted() && !past.is_mounted());
        assert_eq!(b.json(&["status", "--json", &v])["clean"], true);
        let (m, _) = Mounted::new(&b, &[&v], "m");
        assert_eq!(std::fs::read_to_string(m.path("f")).unwrap(), options);
        m.unmount();
    }
}

/// A moment that was moved goes with the live tree, and comes back where it was if that stays.
#[test]
fn a_moment_that_was_moved_is_found() {
    if !can_mount() || !is_root() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let mount = |args: &[&str], dirs: &[&Path]| {
        assert!(Command::new("mount").args(args).args(dirs).status().unwrap().success(), "{args:?}");
    };
    // Nothing can be moved out of what is shared with other name spaces.
    let parent = b.path("");
    mount(&["--bind"], &[&parent, &parent]);
    mount(&["--make-private"], &[&parent]);
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let (past, _) = Mounted::new(&b, &["-o", "at=1", &v], "past");
    let (inner, _) = Mounted::new(&b, &["-o", "at=1", &v], "inner");
    let moved = b.path("moved");
    std::fs::create_dir(&moved).unwrap();
    mount(&["--move"], &[&b.path("inner"), &moved]);
    let place = b.path("inner");
    let others = Others::mount(&place);
    let open = std::fs::File::open(past.path(".")).unwrap();
    let said = b.fails(6, &["umount", m.dir()]);
    assert!(said.contains("past is in use"), "{said}");
    assert!(said.contains(&format!("fuser -vm {} shows", past.dir())), "{said}");
    assert!(is_mounted(&moved));
    others.is_there();
    drop(open);
    b.ok(&["umount", m.dir()]);
    assert!(!is_mounted(&moved) && !m.is_mounted() && inner.is_mounted());
    others.unmount();
    assert!(Command::new("umount").arg("-l").arg(&parent).status().unwrap().success());
}

/// A volume on a loop device; `None` where there are none.
fn volume_on_a_device() -> Option<(Bench, Loop)> {
    if !can_mount() || !find("findmnt") {
        return None;
    }
    let b = Bench::new();
    let device = Loop::writable(&b.volume("v.img", "64M"))?;
    Some((b, device))
}

/// It is mounted on the device, as the kernel's own are; `None` where that cannot be.
fn on_a_device<'a>(b: &'a Bench, device: &Loop, interval: u32) -> Option<(Mounted<'a>, u64)> {
    let (m, _) = Mounted::new(b, &[device.path(), "-o", &format!("interval={interval}")], "m");
    let kind = Command::new("findmnt").args(["-no", "FSTYPE", m.dir()]).output().ok()?;
    if !kind.stdout.starts_with(b"fuseblk") {
        eprintln!("left out: no mounts on a block device here");
        return None;
    }
    let pid = b.json(&["status", "--json", m.dir()])["pid"].as_u64().unwrap();
    Some((m, pid))
}

/// By then the kernel has let go of the device, which is claimed again for the last checkpoint.
#[test]
fn what_waits_is_written_after_a_forced_unmount() {
    let Some((b, device)) = volume_on_a_device() else { return };
    let Some((m, pid)) = on_a_device(&b, &device, 3600) else { return };
    std::fs::write(m.path("f"), vec![7; 3 << 20]).unwrap();
    assert!(Command::new("umount").args(["-f", m.dir()]).status().unwrap().success());
    wait_for(pid);
    let s = b.json(&["status", "--json", device.path()]);
    assert_eq!((s["clean"].as_bool(), s["files"].as_u64()), (Some(true), Some(2)));
    let (m, _) = Mounted::new(&b, &[device.path()], "n");
    assert!(std::fs::read(m.path("f")).unwrap() == vec![7; 3 << 20]);
    m.unmount();
}

/// The mount has the device until they let go, also where it is out of sight already.
#[test]
fn what_waits_is_written_at_a_signal_while_somebody_is_in_it() {
    let Some((b, device)) = volume_on_a_device() else { return };
    for is_in_sight in [true, false] {
        let Some((m, pid)) = on_a_device(&b, &device, 3600) else { return };
        std::fs::write(m.path("f"), vec![u8::from(is_in_sight); 3 << 20]).unwrap();
        let open = std::fs::File::open(m.path("f")).unwrap();
        if !is_in_sight {
            assert!(Command::new("umount").args(["-l", m.dir()]).status().unwrap().success());
        }
        end(pid);
        wait_for(pid);
        // The kernel has the mount as long as that.
        drop(open);
        let s = b.json(&["status", "--json", device.path()]);
        assert_eq!((s["clean"].as_bool(), s["files"].as_u64()), (Some(true), Some(2)), "{is_in_sight}");
        let (m, _) = Mounted::new(&b, &[device.path()], "n");
        assert!(std::fs::read(m.path("f")).unwrap() == vec![u8::from(is_in_sight); 3 << 20]);
        m.unmount();
    }
}

/// By itself, and where it is told to end at the same time, as at a shutdown.
#[test]
fn nothing_is_written_to_what_another_one_took_after_a_forced_unmount() {
    let Some((b, device)) = volume_on_a_device() else { return };
    for is_told in [false, true] {
        let Some((m, pid)) = on_a_device(&b, &device, 3) else { return };
        std::fs::write(m.path("f"), vec![7; 3 << 20]).unwrap();
        let signal = |name: &str| {
            assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
        };
        // What waits is due while the daemon asks whether it has the device.
        signal("-STOP");
        let forced = Command::new("umount").args(["-f", m.dir()]).status();
        // As a mount and mkfs do; another Silt does not get so far.
        let other = std::fs::File::options()
            .read(true)
            .write(true)
            .custom_flags(rustix::fs::OFlags::EXCL.bits().cast_signed())
            .open(device.path());
        let second = silt_device::open(device.path(), Access::ReadOnly, &OpenOptions::default()).map(drop);
        let before = std::fs::read(device.path());
        if is_told {
            signal("-TERM");
        }
        signal("-CONT");
        assert!(forced.unwrap().success());
        let other = other.unwrap();
        assert!(second.unwrap_err().to_string().contains("used by another silt"));
        wait_for(pid);
        let after = std::fs::read(device.path());
        assert!(after.unwrap() == before.unwrap(), "something was written; told to end: {is_told}");
        drop(other);
    }
}

/// An abort takes nothing from the kernel's hold on the device.
#[test]
fn what_waits_is_written_after_an_abort() {
    let Some((b, device)) = volume_on_a_device() else { return };
    let Some((m, pid)) = on_a_device(&b, &device, 3600) else { return };
    std::fs::write(m.path("f"), vec![7; 3 << 20]).unwrap();
    silt_fuse::abort_connection(Path::new(m.dir())).unwrap();
    wait_for(pid);
    let s = b.json(&["status", "--json", device.path()]);
    assert_eq!((s["clean"].as_bool(), s["files"].as_u64()), (Some(true), Some(2)));
}

/// The daemon may end before it can answer, and what is seen in its place then is the other one's.
#[test]
fn what_lies_over_another_volume_is_unmounted_alone() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let (below, over) = (b.volume("v.img", "64M"), b.volume("w.img", "64M"));
    let (m, _) = Mounted::new(&b, &[&below], "m");
    std::fs::write(m.path("f"), "below").unwrap();
    for _ in 0..10 {
        b.ok(&["mount", &over, m.dir()]);
        b.ok(&["umount", m.dir()]);
        assert_eq!(std::fs::read_to_string(m.path("f")).unwrap(), "below");
        assert_eq!(b.json(&["status", "--json", &over])["clean"], true);
    }
    m.unmount();
}

#[test]
fn what_goes_on_out_of_sight_is_said_to() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let open = std::fs::File::create(m.path("f")).unwrap();
    let s = b.json(&["status", "--json", &v]);
    assert!(s["mounts"][0].get("unseen").is_none(), "{s}");
    b.ok(&["umount", "-l", m.dir()]);
    let said = b.ok(&["status", &v]);
    assert!(said.contains(&format!("unmounted from {}, and in use still", m.dir())), "{said}");
    let s = b.json(&["status", "--json", &v]);
    assert_eq!(s["mounts"][0]["unseen"], true, "{s}");
    let pid = s["pid"].as_u64().unwrap();
    for args in [&["mount", &v, "other"][..], &["umount", &v]] {
        let said = b.fails(6, args);
        let told = format!("what was unmounted from {} is in use still", m.dir());
        assert!(said.contains(&told) && said.contains(&format!("kill {pid} writes")), "{args:?}: {said}");
    }
    drop(open);
    wait_for(pid);
    b.fails(9, &["umount", &v]);
    assert_eq!(b.json(&["status", "--json", &v])["clean"], true);
}

/// Whatever the directories are called, the one that is in use is named.
#[test]
fn the_directory_that_is_in_use_is_named() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let (past, _) = Mounted::new(&b, &["-o", "at=1", m.dir()], "m is odd");
    let open = std::fs::File::open(past.path(".")).unwrap();
    let said = b.fails(6, &["umount", m.dir()]);
    assert!(said.contains(&format!("fuser -vm '{}' shows", past.dir())), "{said}");
    drop(open);
    past.unmount();
    m.unmount();
}
