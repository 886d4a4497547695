//! `silt lscp`

use crate::common::{Bench, SILT, golden_dir};

use std::io::Read;
use std::process::Stdio;

/// The listing that nilfs-utils printed when the kernel had the volume.
fn listing_of_nilfs_utils(name: &str) -> String {
    let log = std::fs::read_to_string(golden_dir().join(format!("{name}.log"))).unwrap();
    let lines: Vec<&str> = log
        .lines()
        .skip_while(|l| !l.trim_start().starts_with("CNO "))
        .take_while(|l| !l.trim_start().starts_with("SEGNUM "))
        .collect();
    assert!(lines.len() > 3, "{name}");
    lines.join("\n") + "\n"
}

#[test]
fn prints_what_nilfs_utils_print() {
    let b = Bench::new();
    for name in ["basic-4k", "basic-1k", "btree-1k"] {
        let volume = b.golden(name);
        assert_eq!(b.ok(&["lscp", &volume]), listing_of_nilfs_utils(name), "{name}");
    }
}

/// Nothing lies above the newest checkpoint, however far above.
#[test]
fn a_number_that_none_can_have_is_no_damage() {
    let b = Bench::new();
    let v = b.golden("basic-4k");
    for from in ["8", "1000000000000", "99999999999999999", "18446744073709551615"] {
        for more in [&[][..], &["-a"], &["-s"]] {
            let list = b.json(&[&["lscp", "--json", "-i", from, &v][..], more].concat());
            assert_eq!(list.as_array().unwrap().len(), 0, "{from} {more:?}");
        }
        assert_eq!(b.json(&["lscp", "--json", "-r", "-i", from, &v]).as_array().unwrap().len(), 7);
        assert!(b.json(&["lssu", "--json", "-l", "-i", from, &v]).as_array().unwrap().is_empty());
        b.fails(9, &["chcp", "ss", &v, from]);
        b.fails(9, &["rmcp", &v, from]);
        b.fails(9, &["rmcp", &v, &format!("{from}..")]);
    }
    b.fails(9, &["dumpseg", &v, "18446744073709551615"]);
}

#[test]
fn options_select_and_order() {
    let b = Bench::new();
    let volume = b.golden("basic-4k");
    let numbers = |args: &[&str]| -> Vec<u64> {
        let mut all = vec!["lscp"];
        all.extend(args);
        all.push(&volume);
        let out = b.ok(&all);
        out.lines().skip(1).map(|l| l.split_whitespace().next().unwrap().parse().unwrap()).collect()
    };
    // As lscp has it: 7 checkpoints, of which 2, 4 and 5 are snapshots.
    assert_eq!(numbers(&[]), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(numbers(&["-r"]), [7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(numbers(&["-s"]), [2, 4, 5]);
    assert_eq!(numbers(&["-s", "-r"]), [5, 4, 2]);
    assert_eq!(numbers(&["-i", "3"]), [3, 4, 5, 6, 7]);
    assert_eq!(numbers(&["-i", "3", "-n", "2"]), [3, 4]);
    assert_eq!(numbers(&["-r", "-i", "4"]), [4, 3, 2, 1]);
    assert_eq!(numbers(&["-s", "-i", "3"]), [4, 5]);
    assert_eq!(numbers(&["-s", "-r", "-i", "4", "-n", "1"]), [4]);
    assert_eq!(numbers(&["-r", "-n", "2"]), [7, 6]);
    assert!(numbers(&["-i", "99"]).is_empty());
    assert_eq!(numbers(&["-n", "0"]).len(), 7);
    let out = b.ok(&["lscp", "-g", "-n", "1", &volume]);
    assert!(
        out.starts_with("                 CNO        DATE     TIME  MODE  FLG     NBLKINC       ICNT\n"),
        "{out}"
    );
    let first = out.lines().nth(1).unwrap();
    assert!(first.split_whitespace().eq(["1", "2026-11-20", "23:24:59", "cp", "-", "11", "2"]), "{first}");
}

#[test]
fn json_says_the_same() {
    let b = Bench::new();
    let volume = b.golden("basic-4k");
    let list = b.json(&["lscp", "--json", &volume]);
    let second = &list.as_array().unwrap()[1];
    assert_eq!(second["number"], 2);
    assert_eq!(second["snapshot"], true);
    assert_eq!(second["blocks"], 1407);
    assert_eq!(second["inodes"], 724);
    assert_eq!(second["time"], "2026-11-20T23:25:04+00:00");
    assert_eq!(b.json(&["lscp", "--json", "-i", "99", &volume]), serde_json::json!([]));
}

#[test]
fn minor_checkpoints_are_hidden_unless_asked_for() {
    let b = Bench::new();
    let volume = b.volume("v.img", "32M");
    b.ok(&["mkcp", "-s", &volume]);
    b.ok(&["mkcp", "-s", &volume]);
    b.ok(&["chcp", "cp", &volume, "2"]);
    let all = b.ok(&["lscp", "-a", &volume]);
    assert!(all.lines().last().unwrap().contains("   cp    i "), "{all}");
    // But for the newest, which is the files as they are.
    let plain = |line: &&str| !line.contains("   cp    i ");
    let shown: Vec<&str> = all.lines().filter(plain).chain(all.lines().last()).collect();
    assert!(shown.len() < all.lines().count(), "{all}");
    assert_eq!(b.ok(&["lscp", &volume]).lines().collect::<Vec<_>>(), shown);
    let back = b.ok(&["lscp", "-r", "-n", "1", &volume]);
    assert_eq!(back.lines().last(), all.lines().last());
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let b = Bench::new();
    let volume = b.golden("basic-4k");
    let mut child = b
        .command(SILT)
        .args(["lscp", &volume])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((child.wait().unwrap().code(), said.as_str()), (Some(0), ""));
}

#[test]
fn only_looks() {
    let b = Bench::new();
    let volume = b.golden("cut-4k");
    let before = std::fs::read(&volume).unwrap();
    let run = b.run(&["lscp", &volume]);
    assert_eq!(run.code, 0);
    assert!(run.err.contains("not cleanly unmounted"), "{}", run.err);
    assert!(std::fs::read(&volume).unwrap() == before);
}
