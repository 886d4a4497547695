//! `silt scrub`.

use crate::common::{Bench, Mounted, Run, SILT, can_mount};

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

fn flip(volume: &str, at: u64, bit: u8) {
    let file = File::options().read(true).write(true).open(volume).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ (1 << bit)], at).unwrap();
}

fn json(run: &Run) -> Value {
    serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{e}: {}{}", run.out, run.err))
}

/// Disk blocks of content of files, as the logs tell.
fn file_blocks(b: &Bench, volume: &str) -> Vec<u64> {
    let segments = b.json(&["lssu", "--json", volume]);
    let numbers = segments.as_array().unwrap().iter().map(|s| s["number"].as_u64().unwrap().to_string());
    let mut args = vec!["dumpseg".to_owned(), "--json".to_owned(), volume.to_owned()];
    args.extend(numbers);
    let dump = b.json(&args);
    let mut inode = 0;
    let mut blocks = Vec::new();
    for item in dump.as_array().unwrap() {
        if let Some(file) = item.get("file") {
            inode = file["inode"].as_u64().unwrap();
        }
        if let Some(block) = item.get("block").filter(|block| inode >= 11 && block["offset"].is_u64()) {
            blocks.push(block["block"].as_u64().unwrap());
        }
    }
    blocks
}

#[test]
fn sound_volumes() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let said = b.ok(&["scrub", &v]);
    assert!(said.contains("v.img: sound; 1 log of "), "{said}");
    let g = b.golden("basic-4k");
    let before = std::fs::read(&g).unwrap();
    let found = b.json(&["scrub", "--json", &g]);
    assert_eq!((found["sound"].as_bool(), found["finished"].as_bool()), (Some(true), Some(true)), "{found}");
    assert!(found["counts"]["logs"].as_u64().unwrap() > 3, "{found}");
    assert!(std::fs::read(&g).unwrap() == before, "a scrub writes nothing");
    let status = b.ok(&["scrub", "--status", &g]);
    assert!(status.contains("the last scrub was finished") && status.contains(": sound; "), "{status}");
}

#[test]
fn a_flipped_bit_is_told_with_file_and_byte() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let named = file_blocks(&b, &g).into_iter().rev().take(60).find(|block| {
        flip(&g, block * 4096 + 123, 6);
        let run = b.run(&["scrub", "--json", &g]);
        let told = json(&run)["findings"][0]["spots"][0].clone();
        let found = told["owner"]["path"].is_string();
        if found {
            assert_eq!(
                (run.code, told["block"].as_u64(), told["byte"].as_u64()),
                (4, Some(*block), Some(123))
            );
            assert_eq!(told["flip"]["bit"], 6, "{told}");
            let words = b.run(&["scrub", &g]);
            assert_eq!(words.code, 4);
            let line = format!("block {block}, byte 123, bit 6: is ");
            assert!(
                words.out.contains(": one bit is flipped\n") && words.out.contains(&line),
                "{}",
                words.out
            );
            assert!(words.out.contains(told["owner"]["path"].as_str().unwrap()), "{}", words.out);
            assert!(words.out.trim_end().lines().last().unwrap().contains(": 1 damage; "), "{}", words.out);
            assert_eq!(b.run(&["scrub", "--status", &g]).code, 4);
        }
        flip(&g, block * 4096 + 123, 6);
        found
    });
    assert!(named.is_some(), "no block of a file that has a name was hit");
    b.ok(&["scrub", &g]);
}

#[test]
fn what_cannot_be_scrubbed_is_said() {
    let b = Bench::new();
    std::fs::write(b.path("x"), vec![7; 1 << 20]).unwrap();
    assert!(b.fails(3, &["scrub", "x"]).contains("not a NILFS2 volume"));
    b.fails(9, &["scrub", "nowhere"]);
    let v = b.volume("v.img", "32M");
    assert!(b.fails(12, &["scrub", "--pause", &v]).contains("is not mounted"));
    assert_eq!(b.run(&["scrub", "--rate", "0", &v]).code, 2);
    assert!(b.ok(&["scrub", "--status", &v]).contains("no scrub is known"));
    std::fs::write(b.path("s"), "nothing").unwrap();
    assert!(b.fails(2, &["scrub", "--state", "s", &v]).contains("could go on with"));
    b.ok(&["scrub", "--state", "s", "--restart", &v]);
}

fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

/// Ctrl-C lets it rest, and the next one goes on: what was found before is told with the rest.
#[test]
fn it_rests_and_goes_on() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let command = ["scrub", "--rate", "256K", "--state", "pass.json", &g];
    let mut child =
        b.command(SILT).args(command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(child.try_wait().unwrap().is_none(), "it is slow enough to be interrupted");
    interrupt(&child);
    let run = Run::of(&child.wait_with_output().unwrap());
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert!(run.err.contains("silt: paused; to go on: silt scrub --state pass.json "), "{}", run.err);
    assert!(run.out.contains("so far sound; "), "{}", run.out);
    let status = b.ok(&["scrub", "--status", "--state", "pass.json", &g]);
    assert!(status.contains("a scrub was left at ") && status.contains(": so far "), "{status}");
    let run = b.run(&["scrub", "--json", "--state", "pass.json", &g]);
    assert!(run.err.contains("going on with a scrub"), "{}", run.err);
    let at_once = b.json(&["scrub", "--json", "--state", "other.json", &g]);
    assert_eq!((run.code, &json(&run)["counts"]), (0, &at_once["counts"]));
}

/// Waits until the scrub of a mounted volume is as wanted.
fn wait_for(b: &Bench, dir: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let status = json(&b.run(&["scrub", "--status", "--json", dir]));
        if wanted(&status) {
            return status;
        }
        assert!(Instant::now() < until, "{status}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn content(n: usize, size: usize) -> Vec<u8> {
    let mut x = n as u64 * 0x9E37_79B9 + 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..size).map(|_| next()).collect()
}

#[test]
fn a_mounted_volume_is_scrubbed_while_it_is_written() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.ok(&["mkfs", "-q", "--size", "512M", "v.img"]);
    assert_eq!(v, "");
    let v = b.name("v.img");
    std::fs::create_dir(b.path("m")).unwrap();
    let (m, _) = Mounted::new(&b, &[&v], "m");
    for n in 0..24 {
        std::fs::write(m.path(&format!("f{n}")), content(n, 1 << 20)).unwrap();
    }
    b.ok(&["sync", m.dir()]);

    // It rests when told, and goes on.
    assert!(b.ok(&["scrub", "--background", "--rate", "512K", m.dir()]).contains("scrubbing"));
    wait_for(&b, m.dir(), |s| s["running"] == true && s["pass"]["counts"]["logs"].as_u64() > Some(0));
    b.ok(&["scrub", "--pause", m.dir()]);
    std::thread::sleep(Duration::from_millis(300));
    let rests = wait_for(&b, m.dir(), |s| s["paused"] == true);
    std::thread::sleep(Duration::from_millis(700));
    let still = wait_for(&b, m.dir(), |_| true);
    assert_eq!(rests["pass"]["counts"], still["pass"]["counts"], "it rests");
    b.ok(&["scrub", "--resume", m.dir()]);
    wait_for(&b, m.dir(), |s| s["pass"]["counts"] != rests["pass"]["counts"]);
    b.ok(&["scrub", "--cancel", m.dir()]);
    assert!(b.fails(12, &["scrub", "--pause", m.dir()]).contains("no scrub is running"));

    // With somebody writing, overwriting and deleting beside it nothing is told that is not so.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // However long it takes, the volume is never short of space: a scrub gives way to who wants some.
            for n in 0..400 {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
                let file = File::create(m.path(&format!("w{}", n % 7))).unwrap();
                file.write_all_at(&content(n, 300_000), 0).unwrap();
                if n % 3 == 0 {
                    file.sync_all().unwrap();
                }
                if n % 5 == 0 {
                    let _ = std::fs::remove_file(m.path(&format!("w{}", (n + 3) % 7)));
                }
            }
        });
        for _ in 0..3 {
            let run = b.run(&["scrub", "--json", "--rate", "100", m.dir()]);
            let found = json(&run);
            stop.store(run.code != 0, Ordering::Relaxed);
            assert_eq!(
                (run.code, found["findings"].as_array().map(Vec::len)),
                (0, Some(0)),
                "{found}{}",
                run.err
            );
            assert!(found["counts"]["bytes"].as_u64().unwrap() > 24 << 20, "{found}");
        }
        stop.store(true, Ordering::Relaxed);
    });

    // And what is so is told, with the file's name.
    b.ok(&["sync", m.dir()]);
    let needle = &content(17, 1 << 20)[4096 * 5..4096 * 5 + 4096];
    let image = std::fs::read(&v).unwrap();
    let block = image.chunks_exact(4096).position(|c| c == needle).expect("the file is in the image") as u64;
    flip(&v, block * 4096 + 99, 2);
    let run = b.run(&["scrub", m.dir()]);
    assert_eq!(run.code, 4, "{}{}", run.out, run.err);
    assert!(run.out.contains(&format!("block {block}, byte 99, bit 2: ")), "{}{}", run.out, run.err);
    assert!(
        run.out.contains(&format!("content of /f17 (inode 28), byte {}, ", 4096 * 5 + 99)),
        "{}{}",
        run.out,
        run.err
    );
    // Half a scrub is kept over unmounting, and the next one goes on with it.
    flip(&v, block * 4096 + 99, 2);
    b.ok(&["scrub", "--background", "--rate", "512K", m.dir()]);
    wait_for(&b, m.dir(), |s| s["pass"]["counts"]["logs"].as_u64() > Some(0));
    m.unmount();
    let run = b.run(&["scrub", &v]);
    assert!(run.code == 0 && run.err.contains("going on with a scrub"), "{}{}", run.out, run.err);
}

#[test]
fn a_state_in_no_directory_makes_none() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let said = b.fails(9, &["scrub", "--state", "nowhere/x", &v]);
    assert!(said.contains("there is no directory"), "{said}");
    assert!(!b.path("nowhere").exists());
    b.ok(&["scrub", "--state", "x", &v]);
    assert!(b.path("x").exists());
}
