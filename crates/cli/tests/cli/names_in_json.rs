//! `--json` of names that are no UTF-8: a string for people, and beside it the bytes.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;

use serde_json::{Value, json};
use silt_verify::surgeon::Surgeon;

use crate::common::{Bench, Mounted, Run, can_mount};

const BAD: &[u8] = b"bad\xff\xfename";
const TEXT: &str = "bad\u{fffd}\u{fffd}name";
const HEX: &str = "626164fffe6e616d65";

fn name(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// Bytes that occur nowhere else.
fn content() -> Vec<u8> {
    (0..40_960u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// A volume with a file of that name that is gone and one that is there, and one with a plain name.
fn volume(b: &Bench) -> String {
    let v = b.volume("v.img", "32M");
    let (m, _) = Mounted::new(b, &[&v], "m");
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("d").join(name(b"gone\xff")), [7; 20_000]).unwrap();
    fs::write(m.path("plain"), [8; 20_000]).unwrap();
    b.ok(&["mkcp", "-s", m.dir()]);
    fs::remove_file(m.path("d").join(name(b"gone\xff"))).unwrap();
    fs::write(m.path("plain"), [9; 20_000]).unwrap();
    fs::write(m.path("d").join(name(BAD)), content()).unwrap();
    m.unmount();
    v
}

/// Flips a bit of the file's content.
fn break_it(volume: &str) {
    let needle = &content()[4096..8192];
    let image = fs::read(volume).unwrap();
    let block = image.chunks_exact(4096).position(|c| c == needle).expect("the file is in the image");
    let file = fs::File::options().write(true).open(volume).unwrap();
    file.write_all_at(&[needle[99] ^ 4], block as u64 * 4096 + 99).unwrap();
}

fn parsed(run: &Run) -> Value {
    serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{e}: {}{}", run.out, run.err))
}

/// All objects in a value that have that field, as what it is and what its bytes are.
fn fields(value: &Value, field: &str) -> Vec<(Value, Value)> {
    let mut found = Vec::new();
    match value {
        Value::Array(all) => all.iter().for_each(|v| found.extend(fields(v, field))),
        Value::Object(all) => {
            if let Some(text) = all.get(field) {
                let bytes = all.get(&format!("{field}_bytes")).cloned();
                found.push((text.clone(), bytes.unwrap_or_default()));
            }
            all.values().for_each(|v| found.extend(fields(v, field)));
        }
        _ => {}
    }
    found
}

#[track_caller]
fn has_the_file(value: &Value) {
    let wanted = (json!(format!("/d/{TEXT}")), json!(format!("2f642f{HEX}")));
    let all = fields(value, "path");
    assert!(all.contains(&wanted), "{value}");
    assert!(all.iter().all(|one| *one == wanted || one.1.is_null()), "{value}");
}

#[test]
fn what_is_gone_and_what_is_damaged() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = volume(&b);
    let past = fields(&b.json(&["du", "--history", "--json", "--all", &v]), "path");
    assert!(past.contains(&(json!("/d/gone\u{fffd}"), json!("2f642f676f6e65ff"))), "{past:?}");
    assert!(past.contains(&(json!("/plain"), Value::Null)), "{past:?}");
    // And as an argument it is found.
    let whole = OsString::from_vec(b"/d/gone\xff".to_vec());
    let part = b.json(&["du".as_ref(), "--history".as_ref(), "--json".as_ref(), v.as_ref(), &*whole]);
    assert_eq!(fields(&part, "path").len(), 1, "{part}");

    break_it(&v);
    let run = b.run(&["check", "--json", &v]);
    assert_eq!(run.code, 4);
    has_the_file(&parsed(&run));
    // A scrub keeps what it found, and tells it again.
    for args in [&["scrub", "--json", &v][..], &["scrub", "--status", "--json", &v]] {
        let run = b.run(args);
        assert_eq!(run.code, 4, "{args:?}");
        has_the_file(&parsed(&run));
    }
    has_the_file(&parsed(&b.run(&["rescue", "--json", &v])));
    let to = b.path("out").join(name(BAD));
    fs::create_dir(b.path("out")).unwrap();
    let args = ["rescue", "--json", &v, "--report", "report.json", "--to"].map(OsString::from);
    let run = b.run(&args.into_iter().chain([to.clone().into_os_string()]).collect::<Vec<_>>());
    for copied in [parsed(&run), serde_json::from_slice(&fs::read(b.path("report.json")).unwrap()).unwrap()] {
        has_the_file(&copied);
        assert_eq!(copied["to"].as_str(), Some(&*to.to_string_lossy()), "{copied}");
        assert!(copied["to_bytes"].as_str().unwrap().ends_with(HEX), "{copied}");
    }
    assert!(to.join("d").join(name(BAD)).exists());
}

#[test]
fn what_is_mounted_and_what_it_meets() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = volume(&b);
    break_it(&v);
    let (image, dir) = (b.path("").join(name(BAD)), b.path("m").join(name(BAD)));
    fs::rename(&v, &image).unwrap();
    fs::create_dir_all(&dir).unwrap();
    let run = |args: &[&str], last: &[&OsStr]| {
        let args = args.iter().map(OsStr::new).chain(last.iter().copied());
        b.run(&args.collect::<Vec<_>>())
    };
    let mounted = run(&["mount", "-o", "verify"], &[image.as_ref(), dir.as_ref()]);
    assert_eq!(mounted.code, 0, "{}", mounted.err);
    let read = fs::read(dir.join("d").join(name(BAD)));
    let by_dir = run(&["status", "--json"], &[dir.as_ref()]);
    let by_image = run(&["status", "--json"], &[image.as_ref()]);
    let all = run(&["status", "--json"], &[]);
    let damage = run(&["status", "--damage", "--json"], &[dir.as_ref()]);
    let scrub = run(&["scrub", "--json"], &[dir.as_ref()]);
    let check = run(&["check", "--json"], &[dir.as_ref()]);
    let gone = run(&["umount"], &[dir.as_ref()]);
    assert_eq!(gone.code, 0, "{}", gone.err);

    assert_eq!(read.err().and_then(|e| e.raw_os_error()), Some(5));
    let mine = |status: &Value| {
        let ends = |field: &Value, hex: &Value| {
            field.as_str().is_some_and(|text| text.ends_with(TEXT))
                && hex.as_str().is_some_and(|hex| hex.ends_with(HEX))
        };
        ends(&status["volume"], &status["volume_bytes"])
            && ends(&status["mounts"][0]["dir"], &status["mounts"][0]["dir_bytes"])
    };
    for status in [&by_dir, &by_image].map(parsed) {
        assert!(mine(&status), "{status}");
        assert!(status["label_bytes"].is_null(), "{status}");
    }
    // Of the whole machine.
    assert!(parsed(&all).as_array().unwrap().iter().any(mine), "{}", all.out);
    for found in [damage, scrub, check].iter().map(parsed) {
        has_the_file(&found);
    }
}

#[test]
fn a_label() {
    let b = Bench::new();
    let mut s = Surgeon::golden("basic-4k");
    s.patch_super((true, true), |sb| sb.set_label(BAD));
    let v = b.image("v.img", &s.device);
    for args in [["status", "--json", &v], ["tune", "--json", &v]] {
        let said = b.json(&args);
        assert_eq!((&said["label"], &said["label_bytes"]), (&json!(TEXT), &json!(HEX)), "{said}");
    }
    assert!(b.ok(&["status", &v]).contains(&format!("\"{TEXT}\"")));
    b.ok(&["tune", "-L", "plain", &v]);
    let said = b.json(&["tune", "--json", &v]);
    assert_eq!((&said["label"], said.get("label_bytes")), (&json!("plain"), None), "{said}");
}
