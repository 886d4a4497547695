//! `silt rescue`.

use crate::common::{Bench, Mounted, can_mount};

use std::os::unix::fs::FileExt;
use std::path::Path;

fn zero_super_blocks(volume: &str) {
    let file = std::fs::File::options().write(true).open(volume).unwrap();
    let len = file.metadata().unwrap().len();
    file.write_all_at(&[0; 1024], 1024).unwrap();
    file.write_all_at(&[0; 1024], ((len >> 12) - 1) << 12).unwrap();
}

/// Makes the block at a byte noise.
fn break_block(volume: &str, at: u64) {
    let file = std::fs::File::options().write(true).open(volume).unwrap();
    let noise: Vec<u8> = (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    file.write_all_at(&noise, at).unwrap();
}

fn same_tree(a: &Path, b: &Path) -> bool {
    let run =
        std::process::Command::new("diff").args(["-r", "--no-dereference"]).args([a, b]).output().unwrap();
    if !run.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&run.stdout));
    }
    run.status.success()
}

#[test]
fn a_sound_volume_is_said_to_be_whole() {
    let b = Bench::new();
    let g = b.golden("gc-4k");
    let before = std::fs::read(&g).unwrap();
    let said = b.ok(&["rescue", &g]);
    assert!(said.starts_with("Both super blocks are sound.\n"), "{said}");
    assert!(said.contains("The newest moment that is whole is checkpoint 20 of "), "{said}");
    assert!(said.contains(&format!("silt rescue {g} --to DIR")), "{said}");
    let json = b.json(&["rescue", "--json", "--all", &g]);
    assert_eq!((json["newest_whole"].as_u64(), json["damaged_logs"].as_u64()), (Some(20), Some(0)), "{json}");
    assert!(json["moments"].as_array().unwrap().iter().all(|m| m["grade"] == "whole"), "{json}");
    let said = b.ok(&["rescue", &g, "--to", "out"]);
    assert!(said.ends_with("Everything came back, and everything verifies.\n"), "{said}");
    assert!(b.fails(2, &["rescue", &g, "--to", "out"]).contains("out is not empty"));
    b.fails(9, &["rescue", &g, "--to", "other", "--moment", "9999"]);
    assert_eq!(b.run(&["rescue", &g, "--report", "x"]).code, 2);
    assert!(std::fs::read(&g).unwrap() == before, "a rescue writes nothing to the volume");
}

#[test]
fn without_super_blocks_everything_comes_back_and_can_be_mounted() {
    let b = Bench::new();
    let g = b.golden("gc-4k");
    b.ok(&["rescue", &g, "--to", "before"]);
    zero_super_blocks(&g);
    b.fails(3, &["check", &g]);
    let said = b.ok(&["rescue", &g]);
    assert!(said.starts_with("Both super blocks are lost; the logs tell blocks of 4096 bytes"), "{said}");
    b.ok(&["rescue", &g, "--to", "after"]);
    assert!(same_tree(&b.path("before"), &b.path("after")));

    if !crate::common::can_mount() {
        return;
    }
    let before = std::fs::read(&g).unwrap();
    let command =
        said.lines().find_map(|l| l.split_once("silt mount -o ").map(|(_, c)| c.to_owned())).unwrap();
    let options = command.split(' ').next().unwrap();
    assert!(options.starts_with("ro,rescue="), "{command}");
    let (m, told) = Mounted::new(&b, &["-o", options, &g], "mnt");
    assert!(same_tree(&b.path("before"), Path::new(m.dir())));
    let refused = std::fs::write(m.path("new"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    m.unmount();
    let newest = b.json(&["rescue", "--json", &g])["moments"][0]["moment"].as_u64().unwrap();
    assert!(told.contains(&format!(" shows checkpoint {newest} of 2026-11-")), "{told}");
    // An older moment through the same log.
    let json = b.json(&["rescue", "--json", &g]);
    let older = json["moments"].as_array().unwrap().last().unwrap()["moment"].as_u64().unwrap().to_string();
    let (m, _) = Mounted::new(&b, &["-o", &format!("{options},at={older}"), &g], "mnt");
    b.ok(&["rescue", &g, "--to", "older", "--moment", &older]);
    assert!(
        same_tree(&b.path("older"), Path::new(m.dir())) && !same_tree(&b.path("older"), &b.path("before"))
    );
    m.unmount();
    assert!(std::fs::read(&g).unwrap() == before, "a mount of what was found writes nothing");
    // A wrong number is no damage.
    let said = b.fails(9, &["mount", "-o", "rescue=7", &g, "mnt"]);
    assert!(said.contains("no log with a super root begins at block 7"), "{said}");
}

#[test]
fn what_is_lost_is_listed_and_what_is_not_comes_back() {
    let b = Bench::new();
    let g = b.golden("gc-4k");
    b.ok(&["rescue", &g, "--to", "before"]);
    let json = b.json(&["rescue", "--json", &g]);
    let log = json["moments"][0]["log"].as_u64().unwrap();
    // The first block behind the summary of the newest log.
    break_block(&g, (log + 1) * 4096);
    let run = b.run(&["rescue", &g]);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert!(run.out.contains(" 1 of them damaged; "), "{}", run.out);
    let run = b.run(&["rescue", &g, "--to", "after", "--report", "report.json"]);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(b.path("report.json")).unwrap()).unwrap();
    assert_eq!(report["complete"], false);
    assert!(!report["items"].as_array().unwrap().is_empty(), "{report}");
    // The whole moment before it.
    let whole = json["moments"][1]["moment"].as_u64().unwrap().to_string();
    assert!(run.out.contains("after: checkpoint "), "{}", run.out);
    let said = b.ok(&["rescue", &g, "--to", "whole", "--moment", &whole]);
    assert!(said.contains(&format!("whole: checkpoint {whole} of ")), "{said}");
}

/// What mkfs made is whole, and no advice.
#[test]
fn an_empty_moment_is_not_offered() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    b.ok(&["mkfs", "-q", "-B", "256", "--size", "64M", "v.img"]);
    let (m, _) = Mounted::new(&b, &["v.img"], "m");
    std::fs::write(m.path("f"), vec![7; 400_000]).unwrap();
    m.unmount();
    let json = b.json(&["rescue", "--json", "v.img"]);
    let log = json["moments"][0]["log"].as_u64().unwrap();
    break_block(&b.name("v.img"), (log + 2) * 4096);
    let run = b.run(&["rescue", "v.img"]);
    assert_eq!(run.code, 1, "{}{}", run.out, run.err);
    assert!(run.out.contains("No moment but an empty one is whole."), "{}", run.out);
    assert!(!run.out.contains("--moment 1") && !run.out.contains("at=1"), "{}", run.out);
}

/// What is said where one moment is named is about that one: how it is, and how to get it.
#[test]
fn one_moment_is_told_alone() {
    let b = Bench::new();
    let g = b.golden("gc-4k");
    let all = b.json(&["rescue", "--json", "--all", &g]);
    let older = all["moments"][2]["moment"].as_u64().unwrap();
    let cno = older.to_string();
    let said = b.ok(&["rescue", &g, "--moment", &cno]);
    assert!(said.contains(&format!("silt rescue {g} --to DIR --moment {cno}\n")), "{said}");
    assert!(!said.contains("that is whole is") && !said.contains("is whole."), "{said}");
    let json = b.json(&["rescue", "--json", "--moment", &cno, &g]);
    assert_eq!((&json["newest"], &json["newest_whole"]), (&older.into(), &older.into()), "{json}");
    assert_eq!(json["moments"].as_array().unwrap().len(), 1, "{json}");
    let look = said.lines().find(|l| l.starts_with("Look at it with: ")).unwrap();
    assert!(look.contains(&format!(",at={cno} ")), "{look}");
    if can_mount() {
        b.ok(&["rescue", &g, "--to", "out", "--moment", &cno]);
        let options = look.split(' ').find(|word| word.starts_with("ro,")).unwrap();
        let (m, _) = Mounted::new(&b, &["-o", options, &g], "m");
        assert!(same_tree(&b.path("out"), &m.path("")), "{options}");
        m.unmount();
    }
    // One that is damaged is not told as the newest.
    let v = b.volume("v.img", "32M");
    b.ok(&["mkcp", "-s", &v]);
    b.ok(&["mkcp", &v]);
    let said = b.ok(&["rescue", &v, "--moment", "1"]);
    assert!(said.contains("whole: 1 file") && !said.contains("In the newest"), "{said}");
}

#[test]
fn what_is_no_volume_is_said() {
    let b = Bench::new();
    std::fs::write(b.path("x"), vec![7; 1 << 20]).unwrap();
    assert!(b.fails(3, &["rescue", "x"]).contains("no log of a NILFS2 volume"));
    b.fails(9, &["rescue", "nowhere"]);
    // A volume whose logs are all gone.
    let v = b.volume("v.img", "32M");
    let file = std::fs::File::options().write(true).open(&v).unwrap();
    file.write_all_at(&vec![0; 28 << 20], 4096).unwrap();
    b.fails(4, &["rescue", &v, "--to", "out"]);
}

/// A data-sync log in the midst of several is damaged: what is lost of synced files is said, by rescue and by repair.
#[test]
fn lost_synced_data_is_named() {
    let b = Bench::new();
    let g = b.golden("dsync-4k");
    let device = silt_device::open(
        std::path::Path::new(&g),
        silt_device::Access::ReadOnly,
        &silt_device::OpenOptions::default(),
    )
    .unwrap();
    assert_eq!(silt_verify::behind(&device), None);
    drop(device);
    assert!(!b.ok(&["rescue", &g]).contains("synced data"));
    // The last block of the first log behind the newest checkpoint.
    let s = silt_verify::surgeon::Surgeon::golden("dsync-4k");
    let (newest, bs) = (s.latest(), 4096);
    let first = s.logs(s.g().segment_of(newest.pos).0).into_iter().find(|l| l.pos.0 == newest.end()).unwrap();
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().write(true).open(&g).unwrap();
    file.write_all_at(&[7; 64], (first.end() - 1) * bs).unwrap();
    let told = format!("synced data behind checkpoint {} is lost: the log at block {} ", s.cno(), first.pos);
    for args in [&["rescue", &g][..], &["rescue", &g, "--to", &b.name("copy")], &["repair", "--dry-run", &g]]
    {
        let run = b.run(args);
        assert!(run.out.contains(&told) && run.out.contains(": bytes "), "{args:?}: {}{}", run.out, run.err);
    }
    // A plan says what it gives up.
    let plan = b.run(&["repair", "--dry-run", &g]).out;
    let gives_up = format!("[recovery]\n  the volume goes on behind checkpoint {}, ", s.cno());
    assert!(plan.contains(&gives_up), "{plan}");
    let run = b.run(&["rescue", &g, "--to", &b.name("again")]);
    assert_eq!(run.code, 1);
    // By their names, and what of it is whole lies beside them.
    assert!(run.out.contains(&format!("{told}does not verify")) && run.out.contains("; /"), "{}", run.out);
    let beside = run.out.lines().find(|l| l.contains(" were put beside it, in NAME.synced")).unwrap();
    let name = beside.trim_start().split_once(": ").unwrap().0;
    assert!(b.path(&format!("again{name}.synced")).is_file(), "{beside}");
    let run = b.run(&["rescue", "--json", &g]);
    assert_eq!(run.code, 1);
    let json = run.out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["synced_lost"].as_str().unwrap().starts_with(&told), "{json}");
}

#[test]
fn a_time_to_come_is_said_to_be_one() {
    let b = Bench::new();
    let g = b.golden("basic-4k");
    let told = "note: 2999-01-01 is still to come: the newest checkpoint is taken\n";
    for args in
        [&["rescue", "--moment", "2999-01-01", &g][..], &["repair", "-n", "--roll-back", "2999-01-01", &g]]
    {
        let run = b.run(args);
        assert!(run.code == 0 && run.err.contains(told), "{args:?}: {}", run.err);
    }
}
