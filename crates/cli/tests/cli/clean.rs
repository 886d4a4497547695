//! `silt clean`, and the cleaner behind a mount

use crate::common::{Bench, Mounted, Run, SILT, can_mount};

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

use serde_json::Value;
use silt_verify::{Moment, Tree};

fn sound(b: &Bench, v: &str) {
    let said = b.ok(&["check", "--all", v]);
    assert!(said.contains(": sound; "), "{said}");
    crate::common::account::at_rest(b, v);
}

/// Volumes of the kernel: what only plain checkpoints hold goes, snapshots and files stay, and nothing is wrong after.
#[test]
fn volumes_of_the_kernel_get_space_back() {
    let b = Bench::new();
    for name in ["basic-4k", "gc-4k", "btree-1k"] {
        let v = b.golden(name);
        let snapshots = |b: &Bench| -> Vec<u64> {
            b.checkpoints(&v).into_iter().filter(|(_, snapshot)| *snapshot).map(|(n, _)| n).collect()
        };
        let before = snapshots(&b);
        let used = |b: &Bench| b.json(&["lssu", "--json", &v]).as_array().unwrap().len();
        let segments = used(&b);
        let r = b.json(&["clean", "-p", "0", "--json", &v]);
        assert!(r["freed"].as_u64().unwrap() > 0, "{name}: {r}");
        assert_eq!(r["set_aside"].as_array().unwrap().len(), 0, "{name}: {r}");
        assert!(used(&b) <= segments, "{name}: {segments} segments were in use");
        assert_eq!(snapshots(&b), before, "{name}");
        sound(&b, &v);
        let files = |to: &str| {
            let run = b.run(&["rescue", &v, "--to", &b.name(to)]);
            assert_eq!(run.code, 0, "{name}: {}{}", run.out, run.err);
        };
        files(&format!("{name}-files"));
    }
}

/// Moments younger than the protection period stay.
#[test]
fn what_is_young_is_kept() {
    let b = Bench::new();
    let v = b.golden("basic-4k");
    let before = b.checkpoints(&v).len();
    b.ok(&["clean", "-p", "100Y", &v]);
    // The cleaner's own are not listed.
    assert!(b.checkpoints(&v).len() >= before);
    let r = b.json(&["clean", "-p", "0", "--json", &v]);
    assert!(r["checkpoints"].as_u64().unwrap() > 0, "{r}");
    sound(&b, &v);
}

/// A log that does not match its checksum is not copied as if it were good.
#[test]
fn damage_is_set_aside_and_taken_only_when_asked() {
    let b = Bench::new();
    let v = b.golden("basic-4k");
    let active: Vec<u64> = b
        .json(&["lssu", "--json", &v])
        .as_array()
        .unwrap()
        .iter()
        .filter(|s| s["active"] == true)
        .map(|s| s["number"].as_u64().unwrap())
        .collect();
    let per_segment = b.json(&["tune", "--json", &v])["blocks_per_segment"].as_u64().unwrap();
    // A block of a file, in a segment that is not being written.
    let block = {
        let options = silt_device::OpenOptions::default();
        let file = silt_device::open(&v, silt_device::Access::ReadOnly, &options).unwrap();
        let tree = Tree::open(&file, Moment::Latest).unwrap();
        let mut blocks =
            tree.walk().unwrap().into_iter().filter(|w| w.attributes.is_regular()).flat_map(|w| {
                (0..w.attributes.size / 4096)
                    .filter_map(|n| tree.block_of(w.attributes.ino, n).unwrap())
                    .collect::<Vec<_>>()
            });
        blocks.find(|block| !active.contains(&(block / per_segment))).expect("a file's block")
    };
    let segment = block / per_segment;
    let image = File::options().read(true).write(true).open(&v).unwrap();
    let mut byte = [0];
    image.read_exact_at(&mut byte, (block << 12) + 100).unwrap();
    image.write_all_at(&[byte[0] ^ 1], (block << 12) + 100).unwrap();

    let aside = |r: &Value, what: &str| -> Vec<u64> {
        r[what].as_array().unwrap().iter().map(|a| a["segment"].as_u64().unwrap()).collect()
    };
    let r = b.json(&["clean", "-p", "0", "--json", &v]);
    assert_eq!(aside(&r, "set_aside"), [segment], "{r}");
    assert_eq!(aside(&r, "unverified"), [0; 0], "{r}");
    let in_use = |segment: u64| {
        let list = b.json(&["lssu", "--json", &v]);
        list.as_array().unwrap().iter().any(|s| s["number"] == segment && s["dirty"] == true)
    };
    assert!(in_use(segment));
    assert_eq!(b.run(&["scrub", &v]).code, 4, "the damage is seen as before");
    let said = b.ok(&["clean", "-p", "0", &v]);
    assert!(
        said.contains(&format!("segment {segment} is set aside")) && said.contains("--salvage"),
        "{said}"
    );

    let r = b.json(&["clean", "-p", "0", "--salvage", "--json", &v]);
    assert_eq!(aside(&r, "unverified"), [segment], "{r}");
    assert_eq!(aside(&r, "set_aside"), [0; 0], "{r}");
    assert!(!in_use(segment), "it is clean");
    sound(&b, &v);
}

/// Eight times as much is written as the volume holds. What is there in the end is right, also for who reads
/// meanwhile, and with `nogc` it is full instead.
#[test]
fn a_mounted_volume_does_not_fill_up_with_the_past() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.name("v.img");
    File::create(&v).unwrap().set_len(48 << 20).unwrap();
    b.ok(&["mkfs", "-q", "-B", "64", &v]);
    let (m, _) = Mounted::new(&b, &["-o", "interval=0.2", &v], "m");
    let kept = write(&m, "kept", 1, 3 << 20);
    b.ok(&["mkcp", "-s", m.dir()]);
    let first = write(&m, "kept", 2, 1 << 20);
    let mut last = Vec::new();
    for round in 0..100u8 {
        last = write(&m, &format!("f{}", round % 3), round, 4 << 20);
        if round % 10 == 0 {
            assert!(std::fs::read(m.path("kept")).unwrap() == first, "round {round}");
        }
    }
    let status = b.json(&["status", "--json", m.dir()]);
    let status = if status.is_array() { status[0].clone() } else { status };
    let notes = status["notes"].to_string();
    assert!(notes.contains("given up"), "the past went, and that is said: {notes}");
    let snapshot = b.checkpoints(m.dir()).into_iter().find(|(_, snapshot)| *snapshot).unwrap().0;
    m.unmount();
    sound(&b, &v);
    let (m, _) = Mounted::new(&b, &["-r", &v], "m");
    assert!(std::fs::read(m.path("f0")).unwrap() == last);
    m.unmount();
    let (m, _) = Mounted::new(&b, &["-o", &format!("ro,cp={snapshot}"), &v], "m");
    assert!(std::fs::read(m.path("kept")).unwrap() == kept, "the snapshot");
    m.unmount();

    let (m, _) = Mounted::new(&b, &["-o", "nogc", &v], "m");
    let full = (0..30).find_map(|n| {
        let file = File::create(m.path("more"));
        file.and_then(|mut f| f.write_all(&vec![n; 4 << 20]).and_then(|()| f.sync_all())).err()
    });
    assert_eq!(full.and_then(|e| e.raw_os_error()), Some(28), "without a cleaner it fills up");
    let r = b.json(&["clean", "-p", "0", "--json", m.dir()]);
    assert!(r["freed"].as_u64().unwrap() > 10, "{r}");
    write(&m, "more", 7, 4 << 20);
    m.unmount();
    sound(&b, &v);
}

/// A full volume comes back by deleting.
#[test]
fn a_full_volume_comes_back() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.name("v.img");
    File::create(&v).unwrap().set_len(48 << 20).unwrap();
    b.ok(&["mkfs", "-q", "-B", "64", &v]);
    let (m, _) = Mounted::new(&b, &[&v], "m");
    for round in 0..4 {
        let mut n = 0;
        let error = loop {
            match std::fs::write(m.path(&format!("f{n}")), vec![round; 1 << 20]) {
                Ok(()) => n += 1,
                Err(e) => break e,
            }
            assert!(n < 100, "it takes more than it has");
        };
        assert_eq!(error.raw_os_error(), Some(28), "{error}");
        assert!(n > 20, "round {round}: {n} MiB of 48");
        for i in 0..=n {
            let _ = std::fs::remove_file(m.path(&format!("f{i}")));
        }
        let begin = std::time::Instant::now();
        while let Err(e) = std::fs::write(m.path("small"), vec![1; 4096]) {
            assert!(begin.elapsed() < std::time::Duration::from_secs(10), "wedged: {e}");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }
    m.unmount();
    sound(&b, &v);
}

fn write(m: &Mounted<'_>, name: &str, seed: u8, len: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..len).map(|i| seed.wrapping_mul(31).wrapping_add((i / 7) as u8)).collect();
    let mut f = File::create(m.path(name)).unwrap();
    f.write_all(&bytes).unwrap();
    f.sync_all().unwrap();
    bytes
}

/// What is kept back is nobody's, and what the protection period holds is told of.
#[test]
fn a_goal_is_what_users_can_have() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    b.ok(&["retain", &v, "nothing"]);
    let (m, _) = Mounted::new(&b, &["-o", "nogc", &v], "m");
    let full =
        || std::fs::write(m.path("f"), vec![7; 1 << 20]).is_err() || b.run(&["sync", m.dir()]).code != 0;
    assert!((0..100).any(|_| full()), "it does not become full");
    // Until nothing is left but what is young.
    let last = (0..10).map(|_| b.ok(&["clean", m.dir()])).find(|said| said.starts_with("no segment"));
    let last = last.expect("it ends");
    let hint = "moments younger than 60 minutes are kept, and hold up to ";
    assert!(last.contains(hint) && last.contains(": a shorter -p lets them go, --retain those"), "{last}");
    let r = b.json(&["clean", "--json", m.dir()]);
    let n = |what: &str| r[what].as_u64().unwrap();
    let kept_back = n("clean_segments") * n("segment_size") - n("available");
    assert!(kept_back > 1 << 20, "{r}");
    // More than users have, and less than is clean.
    let wanted = (n("available") + (1 << 20)).to_string();
    let run = b.run(&["clean", "--until", &wanted, m.dir()]);
    assert!(run.code == 8 && run.out.contains(hint), "{}{}", run.out, run.err);
    let said = b.ok(&["clean", "--retain", "--until", "8M", m.dir()]);
    assert!(!said.contains(hint), "{said}");
    assert!(b.json(&["status", "--json", m.dir()])["available"].as_u64().unwrap() >= 8 << 20);
    m.unmount();
    sound(&b, &v);
}

/// What only moments had that were removed comes back at once, and a preview does not say that others hold it.
#[test]
fn what_removed_moments_had_is_not_kept_for_having_been_young() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &["-o", "nogc,interval=3600", &v], "m");
    write(&m, "f", 1, 16 << 20);
    std::fs::remove_file(m.path("f")).unwrap();
    let newest = b.json(&["sync", "--json", m.dir()])["checkpoint"].as_u64().unwrap();
    let (preview, held) = (["retain", "--preview", "--json", m.dir(), "nothing"], 16 << 20);
    assert!(b.json(&preview)["bytes"].as_u64().unwrap() >= held);
    // The first one stays, and is as young.
    b.ok(&["rmcp", m.dir(), &format!("2..{}", newest - 1)]);
    let p = b.json(&preview);
    assert!(p["bytes"].as_u64().unwrap() < 1 << 20 && p["unused"].as_u64().unwrap() > 12 << 20, "{p}");
    let p = b.json(&["retain", "--preview", "--json", m.dir(), "all for ever"]);
    assert_eq!((p["gone"].as_u64(), p["bytes"].as_u64()), (Some(0), Some(0)), "{p}");
    let r = b.json(&["clean", "--json", m.dir()]);
    let came = r["freed"].as_u64().unwrap() * r["segment_size"].as_u64().unwrap();
    assert!(came > 12 << 20 && r["checkpoints"] == 0, "{r}");
    m.unmount();
    sound(&b, &v);
}

/// Under the name of the original -q ends a daemon, which there is not; by its own it says nothing.
#[test]
fn quiet_is_quiet_and_the_originals_q_cleans_nothing() {
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    assert_eq!(b.ok(&["clean", "-q", "-p", "0", &v]), "");
    std::os::unix::fs::symlink(SILT, b.path("nilfs-clean")).unwrap();
    let run = Run::of(&b.command(b.path("nilfs-clean")).args(["-q", &v]).output().unwrap());
    assert!(run.code == 1 && run.err.contains("silt clean -q cleans and says nothing"), "{}", run.err);
}

#[test]
fn what_is_mounted_for_reading_is_not_cleaned_and_that_is_said() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.golden("basic-4k");
    let (m, _) = Mounted::new(&b, &["-r", &v], "m");
    for args in
        [&["clean"][..], &["clean", "-p", "0"], &["clean", "--retain"], &["clean", "--salvage"], &["trim"]]
    {
        let mut all = args.to_vec();
        all.push(m.dir());
        assert!(b.fails(11, &all).contains("the volume is mounted read-only"), "{args:?}");
    }
    m.unmount();
}

#[test]
fn a_goal_that_was_missed_is_told_of() {
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let said = b.fails(8, &["clean", "--until", "10G", &v]);
    assert!(said.contains("not the 10 GiB"), "{said}");
    b.ok(&["clean", "--until", "8M", &v]);
}

/// Ctrl-C while an unmounted volume is cleaned: what was done stays and is told, and the volume is left as it should be.
#[test]
fn ctrl_c_tells_what_was_done() {
    let b = Bench::new();
    let v = b.golden("gc-4k");
    let mut command = b.command(crate::common::SILT);
    command.args(["clean", "-p", "0", "-S", "1/0.5", &v]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(800));
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .unwrap();
    let run = crate::common::Run::of(&child.wait_with_output().unwrap());
    assert_eq!((run.code, run.out.as_str()), (130, ""), "{}", run.err);
    let told = run.err.strip_prefix(&format!("silt: {v}: ended before it was done; ")).unwrap();
    let freed: u64 = told.split(' ').next().unwrap().parse().unwrap();
    assert!((1..9).contains(&freed) && told.contains("freed, and what was done stays"), "{told}");
    assert_eq!(b.json(&["status", "--json", &v])["clean"], true);
    sound(&b, &v);
    assert!(b.json(&["clean", "-p", "0", "--json", &v])["freed"].as_u64().unwrap() > 0);
}
