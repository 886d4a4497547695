//! `silt repair`.

use crate::common::{Bench, Mounted, Run, SILT, can_mount};

use std::os::unix::fs::{FileExt, symlink};

use silt_verify::surgeon::Surgeon;

fn scribble(volume: &str, at: u64, bytes: &[u8]) {
    let file = std::fs::File::options().write(true).open(volume).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

#[test]
fn a_sound_volume_is_left_alone() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let before = std::fs::read(&g).unwrap();
    assert!(b.ok(&["repair", "--no-undo", "--yes", &g]).ends_with(": nothing to mend\n"));
    assert!(b.ok(&["repair", "--dry-run", &g]).ends_with(": nothing to mend\n"));
    assert!(std::fs::read(&g).unwrap() == before);
}

/// A block of a file is overwritten, and the first super block.
#[test]
fn damage_is_planned_mended_and_taken_back() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    scribble(&g, 1024, &[7; 512]);
    scribble(&g, (3 << 20) + 9 * 4096, &[9; 64]);
    let broken = std::fs::read(&g).unwrap();
    let run = b.run(&["repair", "--dry-run", &g]);
    assert_eq!(run.code, 4, "{}{}", run.out, run.err);
    for part in ["[super-block]", "the first super block is written anew", "[log]", " 0 after"] {
        assert!(run.out.contains(part), "{part}: {}", run.out);
    }
    // Once, however many logs it is about.
    let scrub =
        format!("silt scrub {g} says more of what is wrong in logs that do not verify: do that first");
    assert_eq!(run.out.matches(&scrub).count(), 1, "{}", run.out);
    // The plan, and what to type.
    let run = b.run(&["repair", &g]);
    assert!(run.code == 2 && run.out.contains("the first super block is written anew"), "{}", run.out);
    assert!(
        run.err.contains("nothing was written") && run.err.contains("silt repair --undo FILE "),
        "{}",
        run.err
    );
    b.fails(9, &["repair", "no-such.img"]);
    std::fs::write(b.path("mine"), "mine").unwrap();
    // Before anything is planned.
    let run = b.run(&["repair", "--undo", "mine", "--yes", &g]);
    assert!(run.code == 2 && run.out.is_empty(), "{}{}", run.out, run.err);
    assert!(run.err.contains("mine is there already\n  (name a new file for --undo"), "{}", run.err);
    assert!(b.fails(2, &["repair", "--take-back", "mine", &g]).contains("no undo file"));
    // Where no log is damaged there is nothing to scrub for.
    let sound = b.volume("sound.img", "32M");
    scribble(&sound, 1024, &[7; 512]);
    let plan = b.run(&["repair", "--dry-run", &sound]).out;
    assert!(plan.contains("[super-block]") && !plan.contains("silt scrub"), "{plan}");
    b.fails(9, &["repair", "--take-back", "nowhere", &g]);
    let undo = b.name("undo");
    b.fails(2, &["repair", "--undo", &undo, &g]);
    assert!(std::fs::read(&g).unwrap() == broken, "nothing was written so far");
    let said = b.ok(&["repair", "--undo", &undo, "--yes", &g]);
    assert!(said.contains("saved in"), "{said}");
    assert!(b.ok(&["check", &g]).contains(": sound; "));
    assert!(b.ok(&["repair", "--no-undo", "--yes", &g]).contains("nothing to mend"));
    let mended = std::fs::read(&g).unwrap();
    assert!(b.ok(&["repair", "--take-back", &undo, &g]).contains("is taken back"));
    assert!(std::fs::read(&g).unwrap() == broken, "all is as it was");
    std::fs::write(&g, mended).unwrap();
    let json = b.json(&["repair", "--take-back", &undo, "--json", &g]);
    assert!(json["taken_back"] == true && json["bytes"].as_u64().unwrap() > 0, "{json}");
    assert!(std::fs::read(&g).unwrap() == broken, "all is as it was");
    let json = b.json(&["repair", "--take-back", &undo, "--json", &g]);
    assert_eq!(json, serde_json::json!({ "taken_back": false, "bytes": 0 }));
    assert!(b.ok(&["repair", "--take-back", &undo, &g]).contains("nothing to take back"));
    let other = b.volume("v.img", "32M");
    b.fails(2, &["repair", "--take-back", &undo, &other]);
}

#[test]
fn what_was_written_since_is_not_taken_back_unasked() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    scribble(&g, 1024, &[7; 512]);
    let undo = b.name("undo");
    b.ok(&["repair", "--undo", &undo, "--yes", &g]);
    b.ok(&["tune", "-L", "later", &g]);
    assert!(b.fails(12, &["repair", "--take-back", &undo, &g]).contains("--force"));
    b.ok(&["repair", "--take-back", &undo, "--force", &g]);
}

#[test]
fn the_tree_goes_back_to_a_moment() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let before = b.checkpoints(&g);
    let json = b.json(&["repair", "--no-undo", "--yes", "--json", "--roll-back", "2", &g]);
    assert_eq!((json["applied"].as_bool(), json["errors_after"].as_u64()), (Some(true), Some(0)), "{json}");
    assert!(b.ok(&["check", "--all", &g]).contains(": sound; "));
    let after = b.checkpoints(&g);
    let last = before.last().unwrap().0;
    assert!(after.contains(&(last, true)), "{after:?}");
    // The files are those of the newest, which is listed.
    let listed = b.json(&["lscp", "-r", "-n", "1", "--json", &g]);
    assert_eq!(listed[0]["number"].as_u64(), after.last().map(|c| c.0), "{listed}");
    assert!(before.iter().all(|(c, _)| after.iter().any(|(a, _)| a == c)), "{after:?}");
    let said = b.fails(9, &["repair", "--no-undo", "--yes", "--roll-back", "4711", &g]);
    assert!(said.contains("there is no checkpoint 4711"), "{said}");
    assert!(said.contains(&format!("(silt lscp {g} lists")), "{said}");
    b.fails(9, &["repair", "--no-undo", "--yes", "--roll-back", "1970-01-02", &g]);
}

fn both_lost(volume: &str) {
    let len = std::fs::metadata(volume).unwrap().len();
    scribble(volume, 1024, &[0; 1024]);
    scribble(volume, (len / 4096 - 1) * 4096, &[0; 1024]);
}

/// Copies what a surgeon made of a golden volume to the image.
fn store(s: &silt_verify::surgeon::Surgeon, volume: &str) {
    use silt_device::Device;
    let file = std::fs::File::options().write(true).open(volume).unwrap();
    let mut at = 0;
    let mut part = vec![0; 1 << 20];
    while at < s.device.len() {
        let n = part.len().min(usize::try_from(s.device.len() - at).unwrap());
        s.device.read_at(at, &mut part[..n]).unwrap();
        file.write_all_at(&part[..n], at).unwrap();
        at += n as u64;
    }
}

#[test]
fn a_volume_with_features_nobody_knows_is_left_alone() {
    let b = Bench::new();
    for read_only in [false, true] {
        let g = b.golden("basic-4k");
        let mut s = silt_verify::surgeon::Surgeon::golden("basic-4k");
        let cno = s.cno();
        s.patch_checkpoint(cno, |e| e.inodes_count = 9.into());
        s.patch_super((true, true), |sb| {
            if read_only {
                sb.feature_compat_ro = (1 << 40).into()
            } else {
                sb.feature_incompat = (1 << 40).into()
            }
        });
        store(&s, &g);
        let before = std::fs::read(&g).unwrap();
        b.fails(5, &["repair", "--no-undo", "--yes", &g]);
        b.fails(5, &["repair", "--dry-run", &g]);
        assert!(std::fs::read(&g).unwrap() == before);
    }
}

#[test]
fn another_file_system_is_not_taken_for_a_volume_without_super_blocks() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    both_lost(&g);
    scribble(&g, 0, b"XFSB");
    let before = std::fs::read(&g).unwrap();
    let said = b.fails(3, &["repair", "--no-undo", "--yes", &g]);
    assert!(said.contains("an XFS file system"), "{said}");
    assert!(std::fs::read(&g).unwrap() == before);
    scribble(&g, 0, &[0; 4]);
    b.ok(&["repair", "--no-undo", "--yes", &g]);
    assert!(b.ok(&["check", "--all", &g]).contains(": sound; "));
}

/// As check, scrub, rescue and status say it.
#[test]
fn what_is_no_volume_is_not_mended() {
    let b = Bench::new();
    let mut seed = 1u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 56) as u8
    })
    .take(8 << 20)
    .collect();
    for (name, bytes) in [("empty", vec![]), ("noise", noise), ("zeros", vec![0; 16 << 20])] {
        std::fs::write(b.path(name), &bytes).unwrap();
        for how in ["--dry-run", "--no-undo"] {
            for verb in [&["repair", how, "--yes", name][..], &["repair", how, "--yes", "--json", name]] {
                let run = b.run(verb);
                assert!(run.code == 3 && run.out.is_empty(), "{verb:?}: {}{}", run.out, run.err);
                assert!(run.err.contains("no log of a NILFS2 volume"), "{}", run.err);
            }
        }
        for verb in ["check", "scrub", "rescue", "status"] {
            b.fails(3, &[verb, name]);
        }
        assert!(std::fs::read(b.path(name)).unwrap() == bytes);
    }
    for verb in ["repair", "rescue"] {
        let said = b.fails(2, &[verb, "run"]);
        assert!(said.contains("unmount it first"), "{said}");
    }
    // Of a volume, both are named that know what to do.
    let g = b.golden("basic-4k");
    both_lost(&g);
    for verb in ["check", "scrub", "status"] {
        let said = b.fails(3, &[verb, &g]);
        assert!(said.contains("silt repair") && said.contains("silt rescue"), "{verb}: {said}");
    }
}

/// Ctrl-C before the first write leaves all as it was; behind it the repair comes to its end.
#[test]
fn ctrl_c_leaves_a_volume_that_is_whole_or_as_it_was() {
    let b = Bench::new();
    let (mut ended, mut came_through) = (0, 0);
    for wait in [0u64, 5, 10, 20, 40, 60, 80, 120, 160, 250, 400, 5000] {
        let g = b.golden("basic-4k");
        scribble(&g, 1024, &[7; 512]);
        scribble(&g, (3 << 20) + 9 * 4096, &[9; 64]);
        let before = std::fs::read(&g).unwrap();
        let mut command = b.command(crate::common::SILT);
        let command = command.args(["repair", "--no-undo", "--yes", &g]).stdout(std::process::Stdio::null());
        let mut child = command.spawn().unwrap();
        // Whoever is not there yet has no handler either.
        std::thread::sleep(std::time::Duration::from_millis(wait));
        let pid = rustix::process::Pid::from_child(&child);
        if child.try_wait().unwrap().is_none() {
            rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        }
        let status = child.wait().unwrap();
        if status.success() {
            came_through += 1;
            assert!(b.ok(&["check", &g]).contains(": sound; "), "after {wait} ms");
        } else {
            ended += 1;
            assert!(matches!(status.code(), Some(130) | None), "{status}");
            assert!(std::fs::read(&g).unwrap() == before, "after {wait} ms");
        }
    }
    assert!(ended > 0 && came_through > 0, "{ended} {came_through}");
}

/// With every segment in use or bad there is nowhere to write.
#[test]
fn no_space_is_said_and_nothing_written() {
    let b = Bench::new();
    let g = b.golden("full-4k");
    let s = full();
    store(&s, &g);
    let before = std::fs::read(&g).unwrap();
    let said = b.fails(8, &["repair", "--no-undo", "--yes", &g]);
    assert!(said.contains("too little free space to mend in"), "{said}");
    assert!(std::fs::read(&g).unwrap() == before);
}

/// A volume of which a count is wrong and no segment is clean.
fn full() -> silt_verify::surgeon::Surgeon {
    let mut s = silt_verify::surgeon::Surgeon::golden("full-4k");
    let cno = s.cno();
    s.patch_checkpoint(cno, |e| e.inodes_count = 9.into());
    let blocks = s.file(5);
    let mut clean = 0u64;
    // 24 bytes of counters, then entries of 16 bytes: time, blocks, flags; the first two slots hold the counters.
    let nsegments = s.g().nsegments;
    for nr in 0..nsegments {
        let (block, slot) = ((nr + 2) / 256, (nr + 2) % 256);
        let at = usize::try_from(slot).unwrap() * 16;
        s.patch(blocks[&block], |b| {
            if b[at + 12] & 2 == 0 {
                b[at + 12] |= 4;
                clean += 1;
            }
        });
    }
    assert!(clean > 0);
    s
}

/// Zeroes in the place of what cannot be read are asked for by name.
#[test]
fn what_becomes_of_unreadable_data_is_a_choice_of_two() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    for what in ["keep", "zero"] {
        assert!(b.ok(&["repair", "--no-undo", "--yes", "--data", what, &g]).ends_with(": nothing to mend\n"));
    }
    assert_eq!(b.run(&["repair", "--no-undo", "--yes", "--data", "hole", &g]).code, 2);
}

/// Too little space for the rest is said, and what gets more.
#[test]
fn a_full_volume_is_told_what_makes_room() {
    let b = Bench::new();
    let mut s = Surgeon::golden("full-4k");
    s.fill();
    let cno = s.cno();
    s.patch_checkpoint(cno, |e| e.inodes_count = 9.into());
    let v = b.image("v.img", &s.device);
    let said = b.run(&["repair", "--dry-run", &v]);
    let hint = format!("silt clean {v} gets space back");
    assert!(said.code == 8 && said.out.contains(&hint), "{}: {}{}", said.code, said.out, said.err);
    let json = b.run(&["repair", "--dry-run", "--json", &v]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["no_space"].as_bool(), Some(true), "{json}");
    let fsck = b.path("fsck.nilfs2");
    symlink(SILT, &fsck).unwrap();
    let run = Run::of(&b.command(&fsck).args(["-f", "-y", &v]).output().unwrap());
    assert!(run.code == 4 && run.out.contains(&hint), "{}: {}{}", run.code, run.out, run.err);
}

/// What a repair freed is there as long as nobody writes over it, whoever mounts the volume.
#[test]
fn a_repair_can_be_taken_back_after_a_mount() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    for n in 0..40u32 {
        std::fs::write(m.path(&format!("f{n}")), n.to_le_bytes().repeat(1 << 16)).unwrap();
        b.ok(&["sync", m.dir()]);
    }
    m.unmount();
    // The newest checkpoints cannot be read.
    let segments = b.json(&["lssu", "--json", "-a", &v]);
    let used = segments.as_array().unwrap().iter().rfind(|s| s["blocks"].as_u64() > Some(0)).unwrap();
    let size = b.json(&["tune", "--json", &v])["blocks_per_segment"].as_u64().unwrap() * 4096;
    let last = used["number"].as_u64().unwrap();
    let mut image = std::fs::read(&v).unwrap();
    for at in ((last * size) as usize..((last + 1) * size) as usize).step_by(64 << 10) {
        image[at..at + 4096].fill(0x5a);
    }
    std::fs::write(&v, &image).unwrap();
    let undo = b.name("undo");
    b.ok(&["repair", "--undo", &undo, "--yes", &v]);
    let (m, _) = Mounted::new(&b, &["-o", "interval=0.05", &v], "m");
    std::thread::sleep(std::time::Duration::from_secs(2));
    m.unmount();
    assert!(b.fails(12, &["repair", "--take-back", &undo, &v]).contains("--force"));
    b.ok(&["repair", "--take-back", &undo, "--force", &v]);
    let now = std::fs::read(&v).unwrap();
    let differ = image.chunks(4096).zip(now.chunks(4096)).filter(|(a, b)| a != b).count();
    assert!(differ <= 4, "{differ} blocks are not what they were");
}

/// Each repair leaves the volume better, up to the last one.
#[test]
fn what_is_too_much_for_memory_waits_for_another_repair() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    scribble(&g, 1024, &[7; 512]);
    scribble(&g, (3 << 20) + 9 * 4096, &[9; 64]);
    let repair = ["repair", "--memory", "1K", "--no-undo", "--yes", &g];
    let run = b.run(&repair);
    assert!(
        run.out.contains("this is as much as is done at once: repair it again"),
        "{}{}",
        run.out,
        run.err
    );
    let again = (1..10).find(|_| b.run(&repair).code == 0);
    assert!(again.is_some() && b.ok(&["check", "--all", &g]).contains(": sound; "), "{again:?}");
}
