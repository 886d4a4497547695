//! What long work shows on a terminal, and that Ctrl-C ends it.

use crate::common::disk::Disk;
use crate::common::{Bench, Mounted, Run, SILT, can_mount, find, is_root};

use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

fn can_serve() -> bool {
    can_mount() && is_root()
}

fn start(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn interrupt(child: &Child) {
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
}

/// Runs a command, interrupts it while a read of its volume is held up, and lets the read go on.
fn interrupted(disk: &Disk, command: Command) -> Run {
    disk.hold();
    let mut child = start(command);
    disk.wait_for_a_read();
    assert!(child.try_wait().unwrap().is_none(), "it is at work");
    interrupt(&child);
    // It waits for its read, and the signal has come; who reads ahead in another thread need not wait.
    std::thread::sleep(std::time::Duration::from_millis(300));
    disk.release();
    let run = Run::of(&child.wait_with_output().unwrap());
    // A read of who has ended must not pass for the next one's.
    while disk.is_holding() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    run
}

fn silt(b: &Bench, args: &[&str]) -> Command {
    let mut command = b.command(SILT);
    command.args(args);
    command
}

#[test]
fn a_check_is_ended_by_ctrl_c() {
    if !can_serve() {
        return;
    }
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let before = std::fs::read(&g).unwrap();
    let disk = Disk::new(&b, &g);
    let v = disk.path();
    let run = interrupted(&disk, silt(&b, &["check", &v]));
    assert_eq!((run.code, run.err.as_str()), (130, ""), "{}", run.out);
    assert_eq!(run.out, format!("{v}: ended before it was done; no error until then\n"));
    let run = interrupted(&disk, silt(&b, &["check", "--json", &v]));
    let told: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(run.code, 130);
    assert_eq!((told["sound"].as_bool(), told["ended_early"].as_bool()), (Some(false), Some(true)), "{told}");
    // Left alone it comes to its end.
    let told = b.json(&["check", "--json", &v]);
    assert!(told["sound"] == true && told.get("ended_early").is_none(), "{told}");
    drop(disk);
    assert!(std::fs::read(&g).unwrap() == before, "nothing is written");
}

#[test]
fn fsck_is_ended_by_ctrl_c() {
    if !can_serve() {
        return;
    }
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let before = std::fs::read(&g).unwrap();
    let disk = Disk::new(&b, &g);
    symlink(SILT, b.path("fsck.nilfs2")).unwrap();
    for options in [&["-f"][..], &["-n"], &["-fy"]] {
        let mut command = b.command(b.path("fsck.nilfs2"));
        command.args(options).arg(disk.path());
        let run = interrupted(&disk, command);
        assert_eq!((run.code, run.err.as_str()), (32, ""), "{options:?}: {}", run.out);
        assert_eq!(run.out, format!("{}: ended before it was done; no error until then\n", disk.path()));
    }
    drop(disk);
    assert!(std::fs::read(&g).unwrap() == before, "nothing is written");
}

/// Planning a repair, and reading what is to be rescued: one sentence, the exit code, and nothing is written.
#[test]
fn repair_and_rescue_are_ended_by_ctrl_c() {
    if !can_serve() {
        return;
    }
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let before = std::fs::read(&g).unwrap();
    let disk = Disk::new(&b, &g);
    let v = disk.path();
    let to = b.name("copy");
    let nothing = "; nothing was written to it";
    let cases: [(&[&str], &str); 5] = [
        (&["repair", "--dry-run", &v], nothing),
        (&["repair", "--dry-run", "--json", &v], nothing),
        (&["rescue", &v], ""),
        (&["rescue", "--json", &v], ""),
        (&["rescue", "--to", &to, &v], ""),
    ];
    for (args, more) in cases {
        let run = interrupted(&disk, silt(&b, args));
        assert_eq!((run.code, run.out.as_str()), (130, ""), "{args:?}: {}", run.err);
        assert_eq!(run.err, format!("silt: {v}: ended before it was done{more}\n"), "{args:?}");
    }
    assert!(!b.path("copy").exists(), "it had not begun to copy");
    drop(disk);
    assert!(std::fs::read(&g).unwrap() == before, "nothing is written");
}

/// While it copies, a file that is large among them: what is there is called what it is.
#[test]
fn a_copy_is_ended_by_ctrl_c() {
    if !can_serve() {
        return;
    }
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let disk = Disk::new(&b, &g);
    disk.slow(std::time::Duration::from_millis(20));
    let child = start(silt(&b, &["rescue", "--to", &b.name("copy"), &disk.path()]));
    while !b.path("copy").exists() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    interrupt(&child);
    disk.slow(std::time::Duration::ZERO);
    let run = Run::of(&child.wait_with_output().unwrap());
    assert_eq!((run.code, run.out.as_str()), (130, ""), "{}", run.err);
    let told = format!("ended before it was done; the copy in {} is not all there is\n", b.name("copy"));
    assert!(run.err.ends_with(&told), "{}", run.err);
}

/// Asked whether to go on, Ctrl-C is an answer.
#[test]
fn a_question_is_ended_by_ctrl_c() {
    if !find("script") {
        return;
    }
    let b = Bench::new();
    let g = b.golden("basic-4k");
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().write(true).open(&g).unwrap();
    file.write_all_at(&[7; 512], 1024).unwrap();
    let before = std::fs::read(&g).unwrap();
    let mut command = b.command("script");
    command.args(["--quiet", "--flush", "--return", "--command"]);
    command.arg(format!("'{SILT}' repair --no-undo '{g}'")).arg("typed").stdin(Stdio::piped());
    let mut child = start(command);
    let typed = || String::from_utf8_lossy(&std::fs::read(b.path("typed")).unwrap_or_default()).into_owned();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !typed().contains("Go on? [y/N] ") && std::time::Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // The terminal makes a signal of it.
    let mut keys = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut keys, &[3]).unwrap();
    let run = Run::of(&child.wait_with_output().unwrap());
    drop(keys);
    assert_eq!(run.code, 130, "{}", typed());
    assert!(typed().contains("nothing was written to it"), "{}", typed());
    assert!(std::fs::read(&g).unwrap() == before, "nothing is written");
}

/// A second signal ends it at once: it does not come to say how far it was.
#[test]
fn a_second_ctrl_c_ends_it_at_once() {
    if !can_serve() {
        return;
    }
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let before = std::fs::read(&g).unwrap();
    let disk = Disk::new(&b, &g);
    let v = disk.path();
    symlink(SILT, b.path("fsck.nilfs2")).unwrap();
    let fsck = || {
        let mut command = b.command(b.path("fsck.nilfs2"));
        command.args(["-f", "-y"]).arg(&v);
        command
    };
    // The kernel may keep a signal until a read that is under way is over, and makes one of two that are alike: the second
    // is another one, which the program takes for the same.
    for second in [Signal::TERM] {
        for (what, command, code) in [
            ("check", silt(&b, &["check", &v]), 130),
            ("fsck", fsck(), 32),
            ("repair", silt(&b, &["repair", "--dry-run", &v]), 130),
            ("rescue", silt(&b, &["rescue", &v]), 130),
            ("copy", silt(&b, &["rescue", "--to", &b.name("copy"), &v]), 130),
        ] {
            disk.hold();
            let mut child = start(command);
            disk.wait_for_a_read();
            let pause = || std::thread::sleep(std::time::Duration::from_millis(300));
            pause();
            interrupt(&child);
            pause();
            if !disk.is_holding() || child.try_wait().unwrap().is_some() {
                disk.release();
                panic!("{what} does not wait for its read: {:?}", child.wait_with_output());
            }
            kill_process(Pid::from_raw(child.id() as i32).unwrap(), second).unwrap();
            // It is over but for the read that the kernel waits for.
            pause();
            disk.release();
            let run = Run::of(&child.wait_with_output().unwrap());
            assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (code, "", ""), "{what}, {second:?}");
            // The disk may go on with the read of who has ended: it must not pass for the next one's.
            while disk.is_holding() {
                pause();
            }
        }
    }
    // One alone lets it say so.
    assert!(!interrupted(&disk, silt(&b, &["check", &v])).out.is_empty());
    drop(disk);
    assert!(std::fs::read(&g).unwrap() == before, "nothing is written");
}

/// While a repair is written: the first Ctrl-C lets it come to its end, the second leaves a part of it, which a repair
/// finishes and the undo file takes back.
#[test]
fn a_repair_that_is_written_is_ended_by_the_second_ctrl_c_only() {
    if !can_serve() {
        return;
    }
    use std::os::unix::fs::FileExt;
    let b = Bench::new();
    let hurt = || {
        let g = b.golden("basic-4k");
        let file = std::fs::File::options().write(true).open(&g).unwrap();
        file.write_all_at(&[7; 512], 1024).unwrap();
        file.write_all_at(&[9; 64], (3 << 20) + 9 * 4096).unwrap();
        g
    };
    let pause = || std::thread::sleep(std::time::Duration::from_millis(300));
    let mut parts = 0;
    for (made, twice) in [(0, false), (2, false), (0, true), (1, true), (2, true), (3, true)] {
        let g = hurt();
        let before = std::fs::read(&g).unwrap();
        let disk = Disk::writable(&b, &g);
        let (v, undo) = (disk.path(), b.name("undo"));
        disk.hold_writes(made);
        let mut child = start(silt(&b, &["repair", "--yes", "--undo", &undo, &v]));
        disk.wait_for_a_write();
        interrupt(&child);
        pause();
        assert!(child.try_wait().unwrap().is_none(), "it goes on");
        if twice {
            kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
            pause();
        }
        disk.release();
        let run = Run::of(&child.wait_with_output().unwrap());
        drop(disk);
        std::fs::remove_dir(b.path("disk")).unwrap();
        if !twice {
            assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
            assert!(b.ok(&["check", &g]).contains(": sound; "));
        } else {
            assert_eq!((run.code, run.err.as_str()), (130, ""), "{}", run.out);
            parts += u32::from(std::fs::read(&g).unwrap() != before);
            let part = std::fs::read(&g).unwrap();
            b.ok(&["repair", "--yes", "--no-undo", &g]);
            assert!(b.ok(&["check", &g]).contains(": sound; "), "{made} writes");
            std::fs::write(&g, part).unwrap();
        }
        let back = b.run(&["repair", "--take-back", &undo, &g]);
        assert_eq!(back.code, 0, "{made} writes, {twice}: {}", back.err);
        assert!(std::fs::read(&g).unwrap() == before, "{made} writes");
        std::fs::remove_file(undo).unwrap();
    }
    assert!(parts > 1, "it was ended among its writes");
}

/// What a command writes to a terminal.
fn on_a_terminal(b: &Bench, disk: &Disk, args: &[&str]) -> (i32, String) {
    let line: Vec<String> =
        std::iter::once(SILT).chain(args.iter().copied()).map(|a| format!("'{a}'")).collect();
    let mut command = b.command("script");
    command.args(["--quiet", "--return", "--command", &line.join(" "), "typed"]);
    // It lasts: a bar need not be drawn for what is over at once.
    disk.hold();
    let child = start(command);
    disk.wait_for_a_read();
    std::thread::sleep(std::time::Duration::from_millis(300));
    disk.release();
    let code = Run::of(&child.wait_with_output().unwrap()).code;
    (code, String::from_utf8_lossy(&std::fs::read(b.path("typed")).unwrap()).into_owned())
}

/// The screen's last word is not the bar's: it is taken away before anything is said.
#[track_caller]
fn assert_cleared(typed: &str, said: &str) {
    let at = typed.find(said).unwrap_or_else(|| panic!("{said:?} is not in {typed:?}"));
    let line = typed[..at].rsplit('\n').next().unwrap();
    let left = line.rsplit("\x1b[2K").next().unwrap().trim_matches(['\r', ' ']);
    assert!(!left.contains(" left") && !left.contains("copying"), "{left:?} is left in {typed:?}");
}

#[test]
fn progress_is_shown_on_a_terminal_and_nowhere_else() {
    if !can_serve() || !find("script") {
        return;
    }
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let disk = Disk::new(&b, &g);
    let v = disk.path();
    let to = b.name("copy");
    let cases: [(&[&str], &[&str], &str); 5] = [
        (&["check", &v], &["reading logs [", "%, ", " left"], "disk.img: sound"),
        (&["fsck-helper", "-f", "-C0", &v], &["reading logs ["], "disk.img: sound"),
        (&["scrub", "--restart", &v], &["scrubbing [", " of ", " left"], "disk.img: sound"),
        (&["rescue", &v], &["reading all segments ["], "segments of"),
        (&["rescue", &v, "--to", &to], &["reading all segments ["], "Everything came back"),
    ];
    for (args, wanted, said) in cases {
        let (code, typed) = on_a_terminal(&b, &disk, args);
        assert_eq!(code, 0, "{args:?}: {typed}");
        assert!(wanted.iter().all(|w| typed.contains(w)), "{args:?}: {typed:?}");
        // Nothing is drawn that says nothing.
        assert!(!typed.contains("\x1b[2K [") && !typed.contains("\n ["), "{args:?}: {typed:?}");
        if said != "segments of" {
            assert_cleared(&typed, said);
        }
        let _ = std::fs::remove_dir_all(&to);
        disk.hold();
        let child = start(silt(&b, args));
        disk.wait_for_a_read();
        std::thread::sleep(std::time::Duration::from_millis(200));
        disk.release();
        let run = Run::of(&child.wait_with_output().unwrap());
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{args:?}: {}", run.out);
        assert!(!run.out.contains('\r') && !run.out.contains('\x1b'), "{args:?}: {:?}", run.out);
    }
}

/// fsck(8) reads lines as the work goes on, not at its end.
#[test]
fn completion_lines_come_while_it_works() {
    use std::io::{BufRead, BufReader};
    if !can_serve() {
        return;
    }
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let disk = Disk::new(&b, &g);
    let v = disk.path();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        b.path("lines"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    disk.slow(std::time::Duration::from_millis(100));
    let script = format!("exec {SILT} fsck-helper -f -C5 {v} 5>{}", b.name("lines"));
    let mut command = b.command("sh");
    command.args(["-c", &script]);
    let mut child = start(command);
    let mut lines = BufReader::new(std::fs::File::open(b.path("lines")).unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(child.try_wait().unwrap().is_none(), "it is at work");
    let all: Vec<String> = std::iter::once(first).chain(lines.map(Result::unwrap)).collect();
    let run = Run::of(&child.wait_with_output().unwrap());
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
    for line in &all {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        assert!(words.len() == 4 && words[3] == v, "{line}");
        let [pass, at, of] = [0, 1, 2].map(|i| words[i].parse::<u64>().unwrap());
        assert!(pass >= 1 && at <= of, "{line}");
    }
    assert!(all.len() > 10, "{all:?}");
}

#[test]
fn names_and_labels_of_others_command_no_terminal() {
    let b = Bench::new();
    let v = b.volume("v\x1b[31m.img", "64M");
    b.ok(&["tune", "-L", "a\u{9b}31mb\u{7f}\x1b]0;c", &v]);
    // A helper of somebody else's, which is left alone with a note.
    let root = b.path("root\x1b[2J");
    std::fs::create_dir_all(root.join("sbin")).unwrap();
    std::fs::write(root.join("sbin/mount.silt"), "").unwrap();
    let root = root.to_str().unwrap();
    for args in [
        &["status", &v][..],
        &["status", "--json", &v],
        &["tune", "-l", &v],
        &["tune", "-L", &"\u{9b}".repeat(50), &v],
        &["check", &v],
        &["rescue", "--json", &v],
        &["install", "--destdir", root],
    ] {
        let run = b.run(args);
        for text in [&run.out, &run.err] {
            assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{args:?}: {text:?}");
        }
    }
    let label = b.json(&["status", "--json", &v])["label"].as_str().unwrap().to_owned();
    assert_eq!(label, "\u{9b}".repeat(40), "in JSON it is what it is");
}

/// It reaches the program and what it has started; neither leaves a mount that nobody asked for any more.
#[test]
fn a_mount_is_taken_back_after_ctrl_c() {
    if !can_serve() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let disk = Disk::writable(&b, &v);
    let path = disk.path();
    let mut command = silt(&b, &["mount", &path, "m"]);
    command.process_group(0);
    disk.hold_writes(0);
    let child = start(command);
    disk.wait_for_a_write();
    kill_process_group(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    disk.release();
    let run = Run::of(&child.wait_with_output().unwrap());
    let left = Mounted::at(&b, "m");
    assert_eq!((run.code, run.out.as_str()), (130, ""), "{}", run.err);
    assert!(run.err.contains("m is unmounted again"), "{}", run.err);
    assert!(!left.is_mounted() && !b.path("m").exists());
    assert_eq!(b.json(&["status", "--json", &path])["clean"], true);
    // Right at the start, too: whatever it has come to by then, nothing is left.
    for pause in [0, 2, 5, 10, 20, 30, 50, 80] {
        let mut command = silt(&b, &["mount", &path, "m"]);
        command.process_group(0);
        let child = start(command);
        std::thread::sleep(std::time::Duration::from_millis(pause));
        let _ = kill_process_group(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT);
        let run = Run::of(&child.wait_with_output().unwrap());
        // It may have been over.
        if run.code == 0 {
            assert!(left.is_mounted(), "{pause}: {}", run.err);
            b.ok(&["umount", left.dir()]);
        }
        assert!(!left.is_mounted(), "{pause}: {}{}", run.code, run.err);
        assert_eq!(b.json(&["status", "--json", &path])["mounts"], serde_json::json!([]), "{pause}");
    }
}

/// A moment beside the live tree is its daemon's to mount, and is taken back as well.
#[test]
fn a_moment_is_taken_back_after_ctrl_c() {
    if !can_serve() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let pid = b.json(&["status", "--json", m.dir()])["pid"].as_u64().unwrap();
    let daemon = |signal| kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
    let pause = || std::thread::sleep(std::time::Duration::from_millis(200));
    let past = Mounted::at(&b, "past");
    let mut held = 0;
    for wait in (0..150).cycle().take(450) {
        let child = start(silt(&b, &["mount", "-o", "at=1", m.dir(), "past"]));
        std::thread::sleep(std::time::Duration::from_millis(wait));
        // What it has been asked by then it does later.
        daemon(Signal::STOP);
        interrupt(&child);
        pause();
        daemon(Signal::CONT);
        let run = Run::of(&child.wait_with_output().unwrap());
        // Time for a mount that nobody waits for.
        pause();
        if run.code == 0 {
            // It was over before.
            past_is_unmounted(&b, &past);
            continue;
        }
        assert!(!past.is_mounted(), "{wait}: {} {}", run.code, run.err);
        if run.code == 130 {
            assert!(run.err.contains("past is unmounted again"), "{}", run.err);
            held += 1;
        }
        if held > 0 {
            break;
        }
    }
    assert!(held > 0, "no Ctrl-C came while it was being mounted");
    m.unmount();
}

fn past_is_unmounted(b: &Bench, past: &Mounted) {
    b.ok(&["umount", past.dir()]);
    assert!(!past.is_mounted());
}
