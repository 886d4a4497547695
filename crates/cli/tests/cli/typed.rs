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
