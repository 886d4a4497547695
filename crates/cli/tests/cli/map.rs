//! `silt map`

use crate::common::{Bench, Mounted, SILT, can_mount};

use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

fn sum(map: &serde_json::Value, what: &str) -> u64 {
    map["segments"].as_array().unwrap().iter().map(|s| s[what].as_u64().unwrap()).sum()
}

fn cells(text: &str) -> String {
    text.lines().skip(1).take_while(|l| !l.contains(' ')).collect()
}

/// Each class is there when something of it is.
#[test]
fn each_block_is_counted_for_who_needs_it() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let empty = b.json(&["map", "--json", &v]);
    assert_eq!((sum(&empty, "snapshots"), sum(&empty, "past")), (0, 0));
    let (m, _) = Mounted::new(&b, &["-o", "nogc", &v], "m");
    let write = |name: &str, len: usize| {
        std::fs::write(m.path(name), vec![1; len]).unwrap();
        b.ok(&["sync", m.dir()]);
    };
    write("live", 2 << 20);
    write("snapshot", 3 << 20);
    b.ok(&["mkcp", "-s", m.dir()]);
    std::fs::remove_file(m.path("snapshot")).unwrap();
    write("past", 4 << 20);
    std::fs::remove_file(m.path("past")).unwrap();
    b.ok(&["sync", m.dir()]);
    let mut map = b.json(&["map", "--json", m.dir()]);
    let begin = std::time::Instant::now();
    // The kernel lets go of a removed file when it comes to that.
    while sum(&map, "live") > 4 * 256 && begin.elapsed() < std::time::Duration::from_secs(5) {
        b.ok(&["sync", m.dir()]);
        map = b.json(&["map", "--json", m.dir()]);
    }
    for (what, mib) in [("live", 2), ("snapshots", 3), ("past", 4)] {
        let blocks = sum(&map, what);
        assert!((mib * 256..mib * 256 + 100).contains(&blocks), "{what}: {blocks}");
    }
    let text = b.ok(&["map", m.dir()]);
    let cells = cells(&text);
    assert_eq!(cells.len(), map["segments"].as_array().unwrap().len());
    assert!(!text.contains('\x1b'), "no colours in a pipe");
    for (letter, least) in [('L', 7), ('S', 11), ('P', 15), ('W', 2), ('.', 60)] {
        assert!(cells.matches(letter).count() >= least, "{letter}: {text}");
    }
    // Nothing of the past is wished for: what only it needs is needed by nobody.
    b.ok(&["retain", m.dir(), "nothing"]);
    let map = b.json(&["map", "--json", m.dir()]);
    assert!(sum(&map, "past") < 50 && sum(&map, "dead") > 4 * 256, "{}", b.ok(&["map", m.dir()]));
    m.unmount();
    b.ok(&["clean", "-p", "0", &v]);
    let map = b.json(&["map", "--json", &v]);
    assert!(sum(&map, "dead") < 256 && sum(&map, "snapshots") >= 3 * 256);
    b.ok(&["map", "--svg", "map.svg", &v]);
    let svg = std::fs::read_to_string(b.path("map.svg")).unwrap();
    assert_eq!(svg.matches("<title>").count(), map["segments"].as_array().unwrap().len());
}

#[test]
fn it_is_drawn_again_until_it_is_ended() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let mut child = b.command(SILT).args(["map", "--watch", &v]).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    let _ =
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(text.matches("one a cell").count() >= 2, "{text}");
}

#[test]
fn svg_goes_to_standard_output_where_that_is_said() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let said = b.ok(&["map", "--svg", "-", &v]);
    assert!(said.starts_with("<svg") && said.trim_end().ends_with("</svg>"), "{said}");
    assert!(!b.path("-").exists());
    b.ok(&["map", "--svg", "x.svg", &v]);
    assert_eq!(std::fs::read_to_string(b.path("x.svg")).unwrap().trim_end(), said.trim_end());
    let run = b.run(&["map", "--watch=abc", &v]);
    assert!(run.code == 2 && run.err.contains("no number of seconds from 1 to 3600"), "{}", run.err);
}
