//! Synced data that no mount comes to: whoever opens such a volume hears of it.

use crate::common::{Bench, Mounted, Run, SILT, can_mount};

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, symlink};
use std::process::Stdio;

use silt_device::Device;
use silt_format::summary::SR;
use silt_verify::surgeon::{Log, Surgeon};

/// Spoils the end of a log's last block.
fn spoil(volume: &str, log: &Log, block_size: u64) {
    let file = std::fs::File::options().write(true).open(volume).unwrap();
    file.write_all_at(&[7; 64], (log.end() - 1) * block_size).unwrap();
}

/// The kernel synced files by themselves behind the newest checkpoint, and the first of these logs is damaged; how the
/// sentence about it begins.
fn synced(b: &Bench) -> (String, String) {
    let g = b.golden("dsync-4k");
    let s = Surgeon::golden("dsync-4k");
    let newest = s.latest();
    let logs = s.logs(s.g().segment_of(newest.pos).0);
    let first = logs.iter().find(|l| l.pos.0 == newest.end()).unwrap();
    assert!(!first.header.has(SR));
    spoil(&g, first, 4096);
    let told = format!("synced data behind checkpoint {} is lost: the log at block {} ", s.cno(), first.pos);
    (g, told)
}

/// The lines that say so.
fn lost<'a>(text: &'a str, told: &str) -> Vec<&'a str> {
    text.lines().filter(|l| l.contains(told)).collect()
}

#[test]
fn a_mount_says_what_was_synced_and_is_lost() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let (g, told) = synced(&b);
    // Looking at it changes nothing.
    for _ in 0..2 {
        let out = b.ok(&["status", &g]);
        assert_eq!(lost(&out, &format!("lost: {told}")).len(), 1, "{out}");
    }
    assert_eq!(lost(&b.run(&["lscp", &g]).err, &told).len(), 1);
    std::fs::create_dir(b.path("m")).unwrap();
    let run = b.run(&["mount", &g, "m"]);
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    let m = Mounted::at(&b, "m");
    let said = lost(&run.err, &told);
    assert_eq!((said.len(), run.out.contains("synced data")), (1, false), "{}{}", run.out, run.err);
    assert!(said[0].starts_with("lost: ") && said[0].contains(", written 20"), "{}", said[0]);
    // The file that it was, by its name.
    let named =
        said[0].split("; ").find_map(|part| part.strip_prefix("/")).unwrap_or_else(|| panic!("{}", said[0]));
    let (name, rest) = named.split_once(" (inode ").unwrap();
    assert!(rest.contains("): bytes ") && m.path(name).is_file(), "{}", said[0]);
    // It is mounted, and can be written.
    std::fs::write(m.path("new"), "x").unwrap();
    let out = b.ok(&["status", m.dir()]);
    assert_eq!(lost(&out, &format!("lost: {told}")).len(), 1, "{out}");
    let json = b.json(&["status", "--json", m.dir()]);
    assert_eq!(json["lost"].as_array().unwrap().len(), 1, "{json}");
    assert!(json["lost"][0].as_str().unwrap().starts_with(&told), "{json}");
    m.unmount();
    // What is over is not said again.
    let run = b.run(&["mount", &g, "m"]);
    let m = Mounted::at(&b, "m");
    assert_eq!((run.code, run.err.contains("lost")), (0, false), "{}", run.err);
    assert!(!b.ok(&["status", m.dir()]).contains("lost"), "nothing");
    m.unmount();
}

#[test]
fn nothing_is_said_where_nothing_is_lost() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    for name in ["dsync-4k", "dsync-1k", "cut-4k", "basic-4k"] {
        let g = b.golden(name);
        assert!(!b.ok(&["status", &g]).contains("lost: "), "{name}");
        std::fs::create_dir_all(b.path("m")).unwrap();
        let run = b.run(&["mount", &g, "m"]);
        let m = Mounted::at(&b, "m");
        assert_eq!((run.code, run.err.contains("lost: ")), (0, false), "{name}: {}", run.err);
        m.unmount();
    }
}

/// The last log is torn, as a power cut leaves it: nobody may have been told that it was there, and a boot goes on.
#[test]
fn a_torn_last_log_is_no_certain_loss() {
    let b = Bench::new();
    let g = b.golden("dsync-4k");
    let s = Surgeon::golden("dsync-4k");
    let newest = s.latest();
    let all = (0..s.g().nsegments).flat_map(|n| s.logs(n));
    let last = all.max_by_key(|l| (l.header.seq.get(), l.pos)).unwrap();
    assert!(last.header.seq.get() >= newest.header.seq.get() && !last.header.has(SR));
    spoil(&g, &last, 4096);
    let told = format!(
        "synced data behind checkpoint {} may be lost: the log at block {} does not verify; a power cut",
        s.cno(),
        last.pos
    );
    symlink(SILT, b.path("fsck.nilfs2")).unwrap();
    let run = Run::of(&b.command(b.path("fsck.nilfs2")).args(["-a", &g]).output().unwrap());
    assert_eq!((run.code, lost(&run.out, &told).len()), (0, 1), "{}{}", run.out, run.err);
    let out = b.ok(&["status", &g]);
    assert_eq!((lost(&out, &told).len(), out.contains(" is lost")), (1, false), "{out}");
    assert_eq!(lost(&b.run(&["rescue", &g]).out, &told).len(), 1);
    if !can_mount() {
        return;
    }
    std::fs::create_dir(b.path("m")).unwrap();
    let run = b.run(&["mount", &g, "m"]);
    let m = Mounted::at(&b, "m");
    assert_eq!((run.code, lost(&run.err, &told).len()), (0, 1), "{}", run.err);
    m.unmount();
    assert!(b.ok(&["check", &g]).contains(": sound; "));
}

/// As mount(8) calls it, which prints nothing else; and in the foreground, where the log is on standard error.
#[test]
fn every_way_of_mounting_says_it_once() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    std::fs::create_dir(b.path("m")).unwrap();
    let (g, told) = synced(&b);
    symlink(SILT, b.path("mount.silt")).unwrap();
    let run = Run::of(&b.command(b.path("mount.silt")).args([&g, &b.name("m")]).output().unwrap());
    let m = Mounted::at(&b, "m");
    assert_eq!((run.code, run.out.as_str()), (0, ""), "{}", run.err);
    assert_eq!((run.err.lines().count(), lost(&run.err, &told).len()), (1, 1), "{}", run.err);
    m.unmount();

    let (g, told) = synced(&b);
    let mut command = b.command(SILT);
    command.args(["mount", "-f", &g, "m"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
    let m = Mounted::at(&b, "m");
    assert!(first.contains(" is mounted "), "{first}");
    m.unmount();
    let run = Run::of(&child.wait_with_output().unwrap());
    assert_eq!((run.code, lost(&run.err, &told).len()), (0, 1), "{}", run.err);
}

/// A checkpoint that was damaged hides those behind it from every mount.
#[test]
fn checkpoints_that_no_mount_comes_to_are_said() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let g = b.golden("basic-1k");
    let mut s = Surgeon::golden("basic-1k");
    let newest = s.latest();
    let roots: Vec<Log> =
        s.logs(s.g().segment_of(newest.pos).0).into_iter().filter(|l| l.header.has(SR)).collect();
    let [.., before, broken, last] = roots.as_slice() else { panic!("{} checkpoints", roots.len()) };
    assert_eq!(last.pos, newest.pos);
    // As a crash leaves it: the super blocks point at an older checkpoint.
    s.patch_super((true, true), |sb| {
        sb.state = 0.into();
        sb.last_pseg = before.pos.0.into();
        sb.last_seq = before.header.seq;
        sb.last_cno = before.header.cno;
    });
    let file = std::fs::File::options().write(true).open(&g).unwrap();
    let size = file.metadata().unwrap().len();
    for at in [1024, silt_format::super_block::secondary_offset(size)] {
        let mut bytes = [0; 1024];
        silt_device::Device::read_at(&s.device, at, &mut bytes).unwrap();
        file.write_all_at(&bytes, at).unwrap();
    }
    spoil(&g, broken, 1024);
    let newest = last.header.cno.get();
    let without_head = b.path("without_head.img");
    std::fs::copy(&g, &without_head).unwrap();
    let image = std::fs::File::options().write(true).open(&without_head).unwrap();
    image.write_all_at(&[7; 64], broken.pos.0 * 1024).unwrap();
    for volume in [g.as_str(), without_head.to_str().unwrap()] {
        let plan = b.run(&["repair", "-n", "--json", volume]);
        let json: serde_json::Value = serde_json::from_str(&plan.out).unwrap();
        assert_eq!((plan.code, json["unreached"].as_u64()), (4, None), "{json}");
        let said = json["rounds"][0]["done"][0].as_str().unwrap();
        assert!(said.contains(&format!(" are pointed at checkpoint {newest}, the newest,")), "{said}");
        let mended = b.path("mended.img");
        std::fs::copy(volume, &mended).unwrap();
        let mended = mended.to_str().unwrap();
        b.ok(&["repair", "-y", "--no-undo", mended]);
        let all: serde_json::Value = serde_json::from_str(&b.ok(&["lscp", "--json", mended])).unwrap();
        let there = all.as_array().unwrap().iter().any(|c| c["number"].as_u64() == Some(newest));
        assert!(there && b.run(&["check", mended]).code == 0, "{all}");
    }
    std::fs::create_dir(b.path("m")).unwrap();
    let run = b.run(&["mount", "-r", &g, "m"]);
    let m = Mounted::at(&b, "m");
    let told = format!(
        "lost: a mount comes no further than block {}, behind which 1 whole log follows, the newest of checkpoint {};",
        broken.pos, last.header.cno
    );
    assert_eq!((run.code, lost(&run.err, &told).len()), (0, 1), "{}", run.err);
    assert!(b.ok(&["status", m.dir()]).contains(&told));
    m.unmount();
}

/// A volume that was not cleanly unmounted, whose super blocks point at the checkpoint before the newest; the logs of both.
fn one_before_the_newest() -> (Surgeon, Log, Log) {
    let mut s = Surgeon::golden("basic-4k");
    let (g, latest) = (s.g(), s.latest());
    let order = |l: &Log| (l.header.seq.get(), l.pos.0);
    let roots = (0..g.nsegments).flat_map(|n| s.logs(n)).filter(|l| l.header.has(SR));
    let base = roots.filter(|l| order(l) < order(&latest)).max_by_key(order).unwrap();
    s.patch_super((true, true), |b| {
        b.state = 0.into();
        b.last_pseg = base.pos.0.into();
        b.last_seq = base.header.seq;
        b.last_cno = base.header.cno;
    });
    (s, base, latest)
}

/// What a power cut leaves of the newest log is no finding, and everybody who looks tells of it.
#[test]
fn a_torn_newest_log_is_told_of() {
    let b = Bench::new();
    let (s, base, latest) = one_before_the_newest();
    let g = s.g();
    s.device.write_at(g.byte_of(silt_format::BlockNr(latest.end() - 1)), &[&[7; 64]]).unwrap();
    let v = b.image("torn.img", &s.device);
    let line =
        format!("behind checkpoint {} the log at block {} does not verify", base.header.cno, latest.pos);
    for args in [&["check", &v][..], &["rescue", &v], &["status", &v]] {
        let said = b.ok(args);
        assert!(said.contains(&line), "{args:?}: {said}");
    }
    let fsck = b.path("fsck.nilfs2");
    symlink(SILT, &fsck).unwrap();
    for option in ["-p", "-f"] {
        let run = Run::of(&b.command(&fsck).args([option, &v]).output().unwrap());
        assert!(run.code == 0 && run.out.contains(&line), "{option}: {}{}", run.out, run.err);
    }
    for args in [&["check", "--json", &v][..], &["rescue", "--json", &v]] {
        let json: serde_json::Value = serde_json::from_str(&b.ok(args)).unwrap();
        assert_eq!(json["torn_log"]["block"].as_u64(), Some(latest.pos.0), "{json}");
    }
    assert!(!b.ok(&["lscp", &v]).contains("does not verify"));
}

/// The newest log has lost its head, and rescue finds its checkpoint whole: everybody who looks tells of it.
#[test]
fn a_newest_log_without_a_head_is_told_of() {
    let b = Bench::new();
    let (s, base, latest) = one_before_the_newest();
    let whole = b.image("whole.img", &s.device);
    s.device.write_at(s.g().byte_of(latest.pos), &[&[7; 4096]]).unwrap();
    let v = b.image("headless.img", &s.device);
    let newest = latest.header.cno.get();
    let line = format!(
        "behind checkpoint {} the log at block {} has no head, and no mount takes it, though a super root is whole behind \
         that, of checkpoint {newest}: ",
        base.header.cno, latest.pos
    );
    assert!(b.run(&["rescue", &v]).out.contains(&format!("{newest}  ")));
    for verb in ["check", "status"] {
        let said = b.ok(&[verb, &v]);
        assert!(said.contains(&line) && said.contains("silt rescue reads it"), "{verb}: {said}");
        assert!(!b.ok(&[verb, &whole]).contains("has no head"), "{verb}");
    }
    assert!(b.ok(&["check", &v]).contains(": sound; "));
    let fsck = b.path("fsck.nilfs2");
    symlink(SILT, &fsck).unwrap();
    let run = Run::of(&b.command(&fsck).args(["-p", &v]).output().unwrap());
    assert!(run.code == 0 && run.out.contains(&line), "{}{}", run.out, run.err);
    let json = b.json(&["check", "--json", &v]);
    let log = serde_json::json!({
        "checkpoint": base.header.cno.get(), "block": latest.pos.0, "newest": newest
    });
    assert_eq!((&json["headless_log"], &json["sound"]), (&log, &true.into()), "{json}");
    assert!(b.json(&["check", "--json", &whole]).get("headless_log").is_none());
    assert!(!b.ok(&["lscp", &v]).contains("has no head"));
    if !can_mount() {
        return;
    }
    std::fs::create_dir(b.path("m")).unwrap();
    for (volume, says) in [(&v, true), (&whole, false)] {
        assert_eq!(b.run(&["mount", volume, "m"]).code, 0);
        let m = Mounted::at(&b, "m");
        assert_eq!(b.ok(&["status", m.dir()]).contains(&line), says);
        m.unmount();
        assert!(!b.ok(&["check", volume]).contains("has no head"));
    }
}

/// The log that one super block names is damaged: what the other leads to can be read, and nothing is written behind it before that
/// is repaired.
#[test]
fn an_older_checkpoint_than_a_super_block_names_is_mounted_read_only() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let (mut s, base, latest) = one_before_the_newest();
    s.patch_super((false, true), |sb| {
        sb.last_pseg = latest.pos.0.into();
        sb.last_seq = latest.header.seq;
        sb.last_cno = latest.header.cno;
    });
    let v = b.image("v.img", &s.device);
    spoil(&v, &latest, 4096);
    let before = std::fs::read(&v).unwrap();
    let told = format!(
        "note: the log at block {} is damaged, which a super block names as that of the newest checkpoint, {}: checkpoint {}, to \
         which the other super block leads, can only be read, since writing behind it would give up what came after; silt \
         repair mends this",
        latest.pos, latest.header.cno, base.header.cno
    );
    let refused = b.run(&["mkcp", &v]);
    let sentence = told.strip_prefix("note: ").unwrap();
    assert!(refused.code != 0 && refused.err.contains(sentence), "{}{}", refused.out, refused.err);
    assert_eq!(lost(&b.ok(&["status", &v]), &told).len(), 1);
    std::fs::create_dir(b.path("m")).unwrap();
    let run = b.run(&["mount", &v, "m"]);
    let m = Mounted::at(&b, "m");
    assert_eq!((run.code, lost(&run.err, &told).len()), (0, 1), "{}{}", run.out, run.err);
    assert!(run.out.contains(" is mounted read-only "), "{}", run.out);
    assert_eq!(std::fs::write(m.path("new"), "x").unwrap_err().raw_os_error(), Some(30));
    let out = b.ok(&["status", m.dir()]);
    assert_eq!(
        (lost(&out, &told).len(), out.contains(" read-only, "), out.contains("read-write")),
        (1, true, false)
    );
    m.unmount();
    assert!(std::fs::read(&v).unwrap() == before, "it was written to");
    b.ok(&["repair", "-y", "--no-undo", &v]);
    assert!(b.ok(&["check", &v]).contains(": sound; "));
    let run = b.run(&["mount", &v, "m"]);
    let m = Mounted::at(&b, "m");
    assert_eq!((run.code, run.err.contains("is damaged")), (0, false), "{}", run.err);
    std::fs::write(m.path("new"), "x").unwrap();
    m.unmount();
    assert!(b.ok(&["check", &v]).contains(": sound; "));
}
