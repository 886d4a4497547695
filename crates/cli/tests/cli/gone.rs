//! Daemons that are gone or hang, and whoever asks them something.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{Bench, Mounted, Run, SILT, can_mount, is_mounted};
use crate::mount::{process, wait_until};

/// A daemon that does not answer is told of once, however many moments of it are mounted.
#[test]
fn a_server_that_hangs_is_one_volume() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v, "-o", "nofuseblk"], "m");
    let (past, _) = Mounted::new(&b, &["-o", "at=1", m.dir()], "past");
    let (second, _) = Mounted::new(&b, &["-o", "at=1", m.dir()], "second");
    let pid = process(&b, &v);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let all = b.run(&["status"]);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    let told: Vec<&str> = all.err.lines().filter(|line| line.contains(&b.name(""))).collect();
    // With what to do about it.
    let (hints, told): (Vec<&str>, Vec<&str>) = told.into_iter().partition(|line| line.starts_with("  ("));
    assert!(hints.len() == 1 && hints[0].contains(&format!("silt umount -l {},", m.dir())), "{}", all.err);
    assert!(told.len() == 1 && told[0].contains(m.dir()), "{}", all.err);
    second.unmount();
    past.unmount();
    m.unmount();
}

#[test]
fn a_killed_server_is_got_over() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v, "-o", "nofuseblk"], "m");
    std::fs::write(m.path("f"), "synced").unwrap();
    b.ok(&["sync", m.dir()]);
    let pid = process(&b, &v);
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    wait_until("it ends", || rustix::process::test_kill_process(pid).is_err());
    let said = b.fails(12, &["mkcp", m.dir()]);
    assert!(said.contains(&format!("silt umount {}", m.dir())), "{said}");
    let said = b.fails(12, &["mount", &v, m.dir()]);
    assert!(said.contains("daemon is gone") && said.contains("silt umount"), "{said}");
    assert_eq!(b.run(&["status"]).code, 1, "one that does not answer is told");
    m.unmount();
    let (m, _) = Mounted::new(&b, &[&v], "m");
    assert_eq!(std::fs::read_to_string(m.path("f")).unwrap(), "synced");
    m.unmount();
}

/// Whoever comes upon the socket of a daemon that was killed removes it.
#[test]
fn the_socket_of_a_killed_server_goes() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let socket = |b: &Bench| {
        let name = silt_control::socket::name_of(&b.path("v.img")).unwrap();
        let (uid, of_root) = (rustix::process::geteuid().as_raw(), rustix::process::geteuid().is_root());
        let dirs = ["/run/silt".to_owned(), format!("/run/user/{uid}/silt"), format!("/tmp/silt-{uid}")];
        let dirs = dirs.into_iter().filter(|dir| of_root == (dir == "/run/silt"));
        dirs.map(|dir| std::path::PathBuf::from(dir).join(&name)).find(|path| path.exists())
    };
    for how in ["status", "lazy umount", "umount", "umount of the image"] {
        let (m, _) = Mounted::new(&b, &[&v, "-o", "nofuseblk"], "m");
        let path = socket(&b).expect("it listens");
        // The living stay.
        b.run(&["status"]);
        assert!(path.exists());
        let pid = process(&b, &v);
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        wait_until("it ends", || rustix::process::test_kill_process(pid).is_err());
        let what: &[&str] = match how {
            "status" => &["status"],
            "lazy umount" => &["umount", "-l", m.dir()],
            "umount" => &["umount", m.dir()],
            _ => &["umount", &v],
        };
        b.run(what);
        assert!(!path.exists(), "{how}");
        b.run(&["umount", m.dir()]);
        assert!(!m.is_mounted());
    }
}

/// The socket still takes calls while the process dies.
#[test]
fn a_server_killed_while_it_is_asked_is_got_over() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v, "-o", "nofuseblk"], "m");
    let pid = process(&b, &v);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let asking = b.command(SILT).args(["umount", m.dir()]).stderr(Stdio::piped()).spawn().unwrap();
    // Time to call and to wait for an answer; were it too short, there would be nobody to call.
    std::thread::sleep(std::time::Duration::from_millis(300));
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let run = Run::of(&asking.wait_with_output().unwrap());
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    assert!(!is_mounted(&b.path("m")));
}

#[test]
fn a_server_that_hangs_holds_no_command_up() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v, "-o", "nofuseblk"], "m");
    let pid = process(&b, &v);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let asked = Instant::now();
    let named = b.run(&["status", &v]);
    // It waits once.
    let asked = asked.elapsed();
    let all = b.run(&["status"]);
    let image: &str = &v;
    let below = m.path("d");
    let below = below.to_str().unwrap();
    std::fs::create_dir(b.path("past")).unwrap();
    std::fs::write(b.path("map.svg"), "an older one").unwrap();
    let (past, begun) = (b.name("past"), Instant::now());
    let commands = [
        &["lscp", m.dir()][..],
        &["du", image],
        &["retain", m.dir()],
        &["retain", "nothing", m.dir()],
        &["retain", below, "nothing"],
        &["sync", m.dir()],
        &["sync", below],
        &["du", "--history", below],
        &["map", "--svg", "map.svg", m.dir()],
        &["map", "--svg", below, image],
        &["mkcp", image],
        &["umount", m.dir()],
        &["umount", image],
        &["check", m.dir()],
        &["check", image],
        &["mount", "-o", "at=1", image, &past],
        &["mount", image, m.dir()],
    ];
    let started: Vec<_> = commands
        .iter()
        .map(|args| {
            let mut command = b.command("timeout");
            command.args(["-s", "KILL", "40", SILT]).args(*args);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    // One that only waits ends with the first signal.
    let mut check = b.command(SILT).args(["check", m.dir()]).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let waits = rustix::process::Pid::from_child(&check);
    rustix::process::kill_process(waits, rustix::process::Signal::TERM).unwrap();
    let sent = Instant::now();
    let ended = check.wait().unwrap();
    let ended = (ended.success(), sent.elapsed());
    let ends: Vec<_> = started.into_iter().map(|c| Run::of(&c.wait_with_output().unwrap())).collect();
    let took = begun.elapsed();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    for (args, run) in commands.iter().zip(&ends) {
        assert!(run.code == 12 && run.err.contains("does not answer"), "{args:?}: {} {}", run.code, run.err);
        // Whoever named the directory is told what to type.
        if args.contains(&m.dir()) {
            assert!(run.err.contains(&format!("silt umount -l {}, and", m.dir())), "{args:?}: {}", run.err);
        }
    }
    assert!(asked < Duration::from_secs(18), "{asked:?}");
    assert!(took < Duration::from_secs(35), "{took:?}");
    assert!(!ended.0 && ended.1 < Duration::from_secs(5), "{ended:?}");
    assert!(named.code == 12 && named.err.contains("does not answer"), "{}", named.err);
    assert!(all.code == 1 && all.err.contains(m.dir()), "{}", all.err);
    m.unmount();
}
