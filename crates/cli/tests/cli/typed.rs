//! Commands that are printed for typing: a shell that is given them does what was said.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::common::{Bench, Mounted, Run, SILT, can_mount};

/// Has a shell run a command that was printed.
fn typed(b: &Bench, command: &str) -> Run {
    let script = format!("silt() {{ '{SILT}' \"$@\"; }}; {command}");
    Run::of(&b.command("bash").args(["-c", &script]).output().unwrap())
}

/// What follows `before` in one of the lines.
fn after<'a>(text: &'a str, before: &str) -> &'a str {
    let found = text.lines().find_map(|line| line.split_once(before));
    found.unwrap_or_else(|| panic!("{before}: {text}")).1
}

#[test]
fn names_that_look_like_options_and_names_that_cannot_be_printed() {
    let b = Bench::new();
    for (n, name) in
        [&b"-v.img"[..], b"it's a.img", b"we\xffird.img", b"new\nline.img"].into_iter().enumerate()
    {
        let name = OsStr::from_bytes(name);
        let args = |of: &[&str]| -> Vec<OsString> {
            of.iter().map(|a| OsString::from(*a)).chain(["--".into(), name.into()]).collect()
        };
        b.ok(&args(&["mkfs", "-q", "--size", "32M"]));
        let said = b.ok(&args(&["rescue"]));
        let command = after(&said, "Copy it out with: ").replace("DIR", &format!("out{n}"));
        let run = typed(&b, &command);
        assert_eq!(run.code, 0, "{command}: {}", run.err);
        assert!(b.path(&format!("out{n}")).is_dir());
    }
}

#[test]
fn how_far_a_scrub_is() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &["--", &v], "-m 1");
    let said = b.ok(&["scrub", "--background", "--", "-m 1"]);
    let run = typed(&b, after(&said, "how far it is: ").trim());
    assert_eq!(run.code, 0, "{said}{}", run.err);
    m.unmount();
}

#[test]
fn what_lists_moments_of_a_rescue() {
    let b = Bench::new();
    b.ok(&["mkfs", "-q", "--size", "32M", "it's a.img"]);
    for wrong in [&["--moment", "77"][..], &["--moment", "2000-01-01"]] {
        let error = b.fails(9, &[&["rescue", "it's a.img"], wrong].concat());
        assert!(error.starts_with("silt: it's a.img: "), "{error}");
        let command = after(&error, "  (").strip_suffix(" lists what there is)").unwrap();
        let run = typed(&b, command);
        assert_eq!(run.code, 0, "{command}: {}", run.err);
    }
    std::fs::write(b.path("file"), "").unwrap();
    let error = b.fails(2, &["mount", "it's a.img", "file"]);
    assert!(error.contains("file is not a directory\n  (name one to mount on"), "{error}");
}

/// What is not there is told with what lists what is, of the same volume.
#[test]
fn what_lists_moments_and_segments() {
    let b = Bench::new();
    let v = "it's a.img";
    b.ok(&["mkfs", "-q", "--size", "32M", v]);
    let wrong = |dir: &str| {
        for (code, args) in [
            (9, &["chcp", "ss", dir, "77"][..]),
            (2, &["chcp", "ss", dir]),
            (2, &["chcp", "ss", dir, "x"]),
            (9, &["rmcp", dir, "77"]),
            (2, &["rmcp", dir]),
            (2, &["rmcp", dir, "x"]),
            (9, &["dumpseg", dir, "4711"]),
            (2, &["dumpseg", dir]),
            (2, &["dumpseg", dir, "x"]),
            (9, &["mount", "-o", "at=77", dir, "past"]),
            (9, &["mount", "-o", "at=2000-01-01", dir, "past"]),
        ] {
            let run = b.run(args);
            assert_eq!(run.code, code, "{args:?}: {}", run.err);
            let hint = after(&run.err, "  (").strip_suffix(" lists them)");
            let command =
                hint.unwrap_or_else(|| panic!("{args:?}: {}", run.err)).rsplit("; ").next().unwrap();
            assert!(
                command.starts_with("silt ls") && command.contains(&dir.replace('\'', r"'\''")),
                "{command}"
            );
            let run = typed(&b, command);
            assert_eq!(run.code, 0, "{command}: {}", run.err);
        }
    };
    wrong(v);
    let error = b.fails(2, &["mount", "-o", "ro,cp=1", v, "past"]);
    let run = typed(&b, after(&error, "make it one with: ").strip_suffix(')').unwrap());
    assert_eq!(run.code, 0, "{error}{}", run.err);
    if !can_mount() {
        return;
    }
    let (m, _) = Mounted::new(&b, &[v], "m 1");
    wrong("m 1");
    wrong(v);
    let error = b.fails(12, &["scrub", "--cancel", "m 1"]);
    let run = typed(&b, after(&error, "begin one with: ").strip_suffix(')').unwrap());
    assert_eq!(run.code, 0, "{error}{}", run.err);
    m.unmount();
    let error = b.fails(9, &["lscp", "m 1"]);
    assert!(error.contains("(name a volume, or mount one there: silt mount VOLUME 'm 1')"), "{error}");
}

/// Where a file cannot be made or read, what helps is said, and helps.
#[test]
fn what_makes_room_for_a_file() {
    let b = Bench::new();
    let error = b.fails(9, &["mkfs", "no dir/v.img"]);
    let run = typed(&b, after(&error, "in a directory that is there: ").strip_suffix(')').unwrap());
    assert_eq!(run.code, 0, "{error}{}", run.err);
    let error = b.fails(9, &["mkfs", "v.img"]);
    let run = typed(&b, after(&error, "makes an image file: ").strip_suffix(')').unwrap());
    assert_eq!(run.code, 0, "{error}{}", run.err);
    for (n, args) in [
        &["mkfs", "--size", "32M", "none 0/x"][..],
        &["map", "v.img", "--svg", "none 1/x"],
        &["rescue", "v.img", "--to", "none 2/x"],
        &["rescue", "v.img", "--to", "out", "--report", "none 3/x"],
    ]
    .into_iter()
    .enumerate()
    {
        let error = b.fails(9, args);
        let run = typed(&b, after(&error, "make its directory first: ").strip_suffix(')').unwrap());
        assert_eq!(run.code, 0, "{error}{}", run.err);
        assert!(b.path(&format!("none {n}")).is_dir(), "{error}");
    }
    let error = b.fails(9, &["mount", "v.img", "none 4/x"]);
    let run = typed(&b, after(&error, "make it first: ").strip_suffix(')').unwrap());
    assert!(run.code == 0 && b.path("none 4/x").is_dir(), "{error}{}", run.err);
    let error = b.fails(9, &["repair", "v.img", "--take-back", "none"]);
    assert!(error.contains("(name the file that silt repair --undo saved)"), "{error}");
    let error = b.fails(9, &["mount", "-o", "cleanerd_conf=none", "v.img", "m"]);
    assert!(
        error.contains("  (name the file there is: -o cleanerd_conf=FILE; or leave the option out)"),
        "{error}"
    );
}
