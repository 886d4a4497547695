//! `silt rmcp`

use crate::common::{Bench, Mounted, Run, SILT, can_mount};

use std::io::Write;
use std::process::Stdio;

fn numbers(b: &Bench, v: &str) -> Vec<u64> {
    b.checkpoints(v).into_iter().map(|(n, _)| n).collect()
}

#[test]
fn single_ones_and_ranges_go() {
    let b = Bench::new();
    let v = b.golden("basic-4k");
    b.ok(&["rmcp", &v, "1"]);
    assert_eq!(numbers(&b, &v), [2, 3, 4, 5, 6, 7, 8]);
    b.ok(&["rmcp", &v, "6..7"]);
    assert_eq!(numbers(&b, &v), [2, 3, 4, 5, 8, 9]);
    let removed = b.json(&["rmcp", "-f", "--json", &v, ".."].map(|a| if a == ".." { "1.." } else { a }));
    assert_eq!(removed["removed"], 2, "{removed}");
    assert_eq!(removed["snapshots"], serde_json::json!([2, 4, 5]));
    assert_eq!(numbers(&b, &v), [2, 4, 5, 9, 10]);
}

#[test]
fn snapshots_stay_and_are_named() {
    let b = Bench::new();
    let v = b.golden("basic-4k");
    let said = b.run(&["rmcp", &v, "1..4"]);
    assert_eq!(said.code, 1);
    assert!(
        said.err.contains("silt: 2: cannot remove snapshot\nsilt: 4: cannot remove snapshot\n"),
        "{}",
        said.err
    );
    // What is to be typed is.
    assert!(said.err.contains(&format!("(silt chcp cp {v} 2 4 makes plain")), "{}", said.err);
    assert_eq!(numbers(&b, &v), [2, 4, 5, 6, 7, 8]);
    let said = b.fails(1, &["rmcp", &v, "2"]);
    assert!(
        said.contains(&format!("(silt chcp cp {v} 2 makes a plain checkpoint of it, which can"))
            && !said.contains('?'),
        "{said}"
    );
    std::os::unix::fs::symlink(SILT, b.path("rmcp")).unwrap();
    let run = Run::of(&b.command(b.path("rmcp")).args([&v, "2"]).output().unwrap());
    assert!(run.code == 1 && run.err.contains("with chcp(1) before removal.\n"), "{}", run.err);
    assert!(!run.err.contains('?') && !run.err.contains("silt"), "{}", run.err);
    b.ok(&["rmcp", "-f", &v, "2"]);
    assert!(numbers(&b, &v).contains(&2));
}

#[test]
fn missing_ones_are_an_error_unless_forced() {
    let b = Bench::new();
    let v = b.golden("basic-4k");
    assert!(b.run(&["rmcp", &v, "99"]).err.contains("99"));
    assert!(
        b.fails(9, &["rmcp", &v, "200..300"]).contains(&format!("200..300\n  (silt lscp {v} lists them)"))
    );
    assert_eq!(b.run(&["rmcp", &v, "99", "200..300"]).code, 9);
    std::os::unix::fs::symlink(SILT, b.path("rmcp")).unwrap();
    let run = Run::of(&b.command(b.path("rmcp")).args([&v, "99"]).output().unwrap());
    assert_eq!((run.code, run.out.as_str()), (1, ""), "{}", run.err);
    b.ok(&["rmcp", "-f", &v, "99", "200..300"]);
    assert_eq!(numbers(&b, &v), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn the_newest_goes_where_it_is_named() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    assert!(b.fails(9, &["rmcp", &v, "1.."]).contains("no valid checkpoints found in 1.."));
    assert_eq!(numbers(&b, &v), [1]);
    b.ok(&["rmcp", &v, "1"]);
    assert_eq!(numbers(&b, &v), [2], "the files are in the next one");
    b.ok(&["rmcp", &v, "1..9"]);
    assert_eq!(numbers(&b, &v), [3]);
    b.ok(&["rmcp", &v, "..3"]);
    assert_eq!(numbers(&b, &v), [4]);
    b.ok(&["mkcp", "-s", &v]);
    assert_eq!(b.run(&["rmcp", &v, "4"]).code, 1, "a snapshot stays");
}

#[test]
fn what_went_and_what_stayed_is_said() {
    let b = Bench::new();
    let v = b.golden("basic-4k");
    let said = b.run(&["rmcp", &v, "1..4", "99"]);
    assert_eq!(said.code, 1);
    assert_eq!(said.out, "2 checkpoints are removed; 2 stay: 2 are snapshots\n");
    assert_eq!(b.ok(&["rmcp", "-f", &v, "2"]), "0 checkpoints are removed; 1 stays: 1 is a snapshot\n");
    assert_eq!(b.ok(&["rmcp", &v, "7"]), "1 checkpoint is removed\n");
    std::os::unix::fs::symlink(SILT, b.path("rmcp")).unwrap();
    let run = Run::of(&b.command(b.path("rmcp")).args([&v, "6"]).output().unwrap());
    assert_eq!((run.code, run.out.as_str()), (0, ""), "as nilfs-utils: {}", run.err);
    if !can_mount() {
        return;
    }
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    for n in 0..3 {
        std::fs::write(m.path("f"), [n; 9]).unwrap();
        b.ok(&["mkcp", m.dir()]);
    }
    std::fs::create_dir(b.path("past")).unwrap();
    b.ok(&["mount", "-o", "at=2", m.dir(), &b.name("past")]);
    for force in [&["rmcp", "-f", m.dir(), "2"][..], &["rmcp", m.dir(), "2"]] {
        let run = b.run(force);
        assert_eq!((run.code, run.out.as_str()), (1, "0 checkpoints are removed; 1 stays: 1 is mounted\n"));
        assert!(run.err.contains("2: it is mounted") && run.err.contains("unmount"), "{}", run.err);
    }
    // As with snapshots, a range of which one stays is not done.
    for (range, gone) in [(&["rmcp", "-f", m.dir(), "1..3"][..], 2), (&["rmcp", m.dir(), "1..4"], 1)] {
        let run = b.run(range);
        let (are, s) = if gone == 1 { ("is", "") } else { ("are", "s") };
        let told = format!("{gone} checkpoint{s} {are} removed; 1 stays: 1 is mounted\n");
        assert_eq!((run.code, run.out), (1, told));
        assert!(run.err.contains("2: it is mounted"), "{}", run.err);
    }
    b.ok(&["umount", &b.name("past")]);
    m.unmount();
}

#[test]
fn wrong_ranges_are_told() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    for range in ["3..1", "..", "a", "0", "1...2", "-1", "1..x", ""] {
        assert_eq!(b.run(&["rmcp", &v, range]).code, 2, "{range:?}");
    }
    assert_eq!(b.run(&["rmcp", &v]).code, 2);
}

#[test]
fn asks_where_asked_to() {
    let b = Bench::new();
    let v = b.golden("basic-4k");
    let answer = |text: &str| {
        let mut child = b
            .command(SILT)
            .args(["rmcp", "-i", &v, "1"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(String::from_utf8_lossy(&output.stderr).contains("remove checkpoint 1?"));
        assert!(output.status.success());
    };
    answer("n\n");
    answer("");
    assert!(numbers(&b, &v).contains(&1));
    answer("y\n");
    assert!(!numbers(&b, &v).contains(&1));
}

/// What is asked goes to standard error: standard output is for programs.
#[test]
fn a_question_breaks_no_json() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    b.ok(&["mkcp", &v]);
    b.ok(&["mkcp", &v]);
    let mut command = b.command(SILT);
    let pipe = Stdio::piped;
    let command = command.args(["rmcp", "-i", "--json", &v, "1"]).stdin(pipe()).stdout(pipe()).stderr(pipe());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"y\n").unwrap();
    let run = Run::of(&child.wait_with_output().unwrap());
    assert!(run.code == 0 && run.err.starts_with("remove checkpoint 1? "), "{}{}", run.out, run.err);
    let json: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(json["removed"], 1, "{json}");
}

/// A checkpoint that is named twice is one: removed once, or told of once.
#[test]
fn what_is_named_twice_is_counted_once() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    for kind in [&["mkcp", "-p", &v][..], &["mkcp", "-s", &v], &["mkcp", "-p", &v], &["mkcp", "-p", &v]] {
        b.ok(kind);
    }
    let all = b.checkpoints(&v);
    let snapshot = all.iter().find(|c| c.1).unwrap().0;
    let (s, around) = (snapshot.to_string(), format!("{snapshot}..{}", snapshot + 1));
    let run = b.run(&["rmcp", &v, &s, &s, &around]);
    assert_eq!(run.out, "1 checkpoint is removed; 1 stays: 1 is a snapshot\n", "{}", run.err);
    assert_eq!(run.err.matches("cannot remove snapshot").count(), 1, "{}", run.err);
    assert!(run.err.contains(&format!("silt chcp cp {v} {s} makes")), "{}", run.err);
    let next = (snapshot + 2).to_string();
    assert_eq!(b.ok(&["rmcp", &v, &next, &next]), "1 checkpoint is removed\n");
}

/// What is not there is in the list as well, forced or not: a program needs not read sentences for that.
#[test]
fn what_is_missing_is_listed_for_programs() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    b.ok(&["mkcp", &v]);
    b.ok(&["mkcp", &v]);
    let run = b.run(&["rmcp", "--json", &v, "77", "1", "78..90", "78", "400..", "2"]);
    let json: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(run.code, 1, "{json}");
    let listed = (&json["removed"], &json["missing"], &json["empty"]);
    assert_eq!(
        listed,
        (&2.into(), &serde_json::json!([77]), &serde_json::json!(["78..90", "400.."])),
        "{json}"
    );
    let json = b.json(&["rmcp", "--force", "--json", &v, "91"]);
    assert_eq!((&json["removed"], &json["missing"]), (&0.into(), &serde_json::json!([91])), "{json}");
    assert_eq!(json["empty"], serde_json::json!([]), "{json}");
}
