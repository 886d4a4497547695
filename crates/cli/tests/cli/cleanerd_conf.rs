//! `-o cleanerd_conf`, `-o policy`: what the cleaner of a mounted volume goes by

use crate::common::{Bench, Mounted, can_mount};

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::Value;

fn conf(b: &Bench, text: &str) -> String {
    std::fs::write(b.path("c.conf"), text).unwrap();
    format!("cleanerd_conf={}", b.name("c.conf"))
}

fn write(m: &Mounted<'_>, name: &str, seed: u8, len: usize) {
    let mut f = File::create(m.path(name)).unwrap();
    f.write_all(&vec![seed; len]).unwrap();
    f.sync_all().unwrap();
}

fn cleaner(b: &Bench, m: &Mounted<'_>) -> Value {
    b.json(&["status", "--json", m.dir()])["cleaner"].clone()
}

/// Waits for the cleaner to come so far; whether it did.
fn comes_to(b: &Bench, m: &Mounted<'_>, seconds: u64, is: impl Fn(&Value) -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(seconds);
    while !is(&b.json(&["status", "--json", m.dir()])) {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    true
}

#[test]
fn a_file_that_makes_no_sense_is_refused() {
    let b = Bench::new();
    let v = b.volume("v.img", "48M");
    let file = conf(&b, "# mine\nprotection_period 60\nmin_clean_segments lots\n");
    let said = b.fails(2, &["mount", "-o", &file, &v, "m"]);
    let place = format!("{}, line 3: min_clean_segments takes a number of segments", b.name("c.conf"));
    assert!(said.contains(&place) && said.contains("and not \"lots\""), "{said}");
    assert!(!b.path("m").exists());
    b.fails(9, &["mount", "-o", "cleanerd_conf=no-such.conf", &v, "m"]);
    b.fails(2, &["mount", "-o", "cleanerd_conf=/dev/zero", &v, "m"]);
    b.fails(2, &["mount", "-o", "policy=newest", &v, "m"]);
}

#[test]
fn options_go_before_the_volume_and_that_before_the_file() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "48M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    let c = cleaner(&b, &m);
    assert_eq!((&c["on"], &c["policy"]["from"], &c["file"]), (&true.into(), &"default".into(), &Value::Null));
    assert_eq!(b.json(&["retain", "--json", m.dir()])["wish_from"], "default");
    m.unmount();

    conf(
        &b,
        "protection_period 60\nselection_policy timestamp # as ever\nmin_clean_segments 30%\nnew_key 1\n",
    );
    // By its name from where we are.
    let log = b.name("log");
    let (m, _) = Mounted::new(&b, &["-o", "cleanerd_conf=c.conf", "--log", &log, &v], "m");
    let c = cleaner(&b, &m);
    assert_eq!((&c["policy"]["value"], &c["policy"]["from"]), (&"oldest".into(), &"file".into()), "{c}");
    assert_eq!((&c["file"], &c["ends_at"]["from"]), (&b.name("c.conf").into(), &"default".into()), "{c}");
    // 30 of 100 of 191 segments; 10 are kept back, and two are written.
    let begins = &c["begins_below"];
    assert_eq!((&begins["value"], &begins["from"]), (&(58 + 10 + 2).into(), &"file".into()), "{c}");
    let r = b.json(&["retain", "--json", m.dir()]);
    assert_eq!(r["wish_from"], "file");
    assert!(r["wish"].as_str().unwrap().starts_with("all for 1 minute, one an hour"), "{r}");
    let said = b.ok(&["status", m.dir()]);
    let from_file = format!("order: oldest ({})", b.name("c.conf"));
    assert!(said.contains(&from_file) && said.contains("line 4: nobody knows \"new_key\""), "{said}");
    let told = std::fs::read_to_string(&log).unwrap();
    assert!(told.contains("line 4: nobody knows \"new_key\""), "{told}");
    b.ok(&["retain", m.dir(), "all for 3 days"]);
    let r = b.json(&["retain", "--json", m.dir()]);
    assert_eq!((&r["wish"], &r["wish_from"]), (&"all for 3 days".into(), &"volume".into()));
    b.ok(&["retain", m.dir(), "default"]);
    assert_eq!(b.json(&["retain", "--json", m.dir()])["wish_from"], "file");
    m.unmount();

    let (m, _) = Mounted::new(&b, &["-o", "policy=greedy,cleanerd_conf=c.conf,pp=120", &v], "m");
    let c = cleaner(&b, &m);
    assert_eq!((&c["policy"]["value"], &c["policy"]["from"]), (&"greedy".into(), &"mount".into()), "{c}");
    let r = b.json(&["retain", "--json", m.dir()]);
    assert_eq!(r["wish_from"], "mount");
    assert!(r["wish"].as_str().unwrap().starts_with("all for 2 minutes,"), "{r}");
    m.unmount();
    let (m, _) = Mounted::new(&b, &["-o", "cleanerd_conf=c.conf,retain=nothing,nogc", &v], "m");
    assert_eq!(b.json(&["retain", "--json", m.dir()])["wish"], "nothing");
    assert_eq!(cleaner(&b, &m)["on"], false);
    assert!(b.ok(&["status", m.dir()]).contains("cleaner: off"));
    m.unmount();
}

/// When it begins is what the file says, and nothing is given up for that.
#[test]
fn cleaning_begins_when_the_file_says() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "48M");
    let (m, _) = Mounted::new(&b, &["-o", "nogc,interval=3600", &v], "m");
    for n in 0..20 {
        write(&m, "f", n, 1 << 20);
    }
    m.unmount();
    let moments = b.checkpoints(&v).len();
    assert!(moments >= 20);

    // Half is clean: by itself it has no reason.
    let look = "clean_check_interval 1\n";
    let with = |m: &str| [&conf(&b, &format!("{look}{m}")), ",retain=nothing"].concat();
    let worked = |s: &Value| s["cleaner"]["work"]["segments"].as_u64().unwrap() > 60;
    let (m, _) = Mounted::new(&b, &["-o", &with(""), &v], "m");
    assert!(!comes_to(&b, &m, 4, |s| s["cleaner"]["work"]["steps"] != 0));
    m.unmount();
    // It always cleans, and what is kept stays.
    let kept = [&conf(&b, &format!("{look}min_clean_segments 0\nprotection_period 86400\n"))[..]].concat();
    let (m, _) = Mounted::new(&b, &["-o", &kept, &v], "m");
    assert!(comes_to(&b, &m, 20, |s| s["cleaner"]["work"]["steps"] != 0), "metadata that nothing needs goes");
    std::thread::sleep(Duration::from_secs(2));
    m.unmount();
    let there = b.checkpoints(&v);
    assert!(there.iter().filter(|(n, _)| *n <= moments as u64 + 1).count() >= 20, "{there:?}");
    for begins in ["min_clean_segments 0\n", "min_clean_segments 80%\nmax_clean_segments 90%\n"] {
        let copy = b.name("copy.img");
        std::fs::copy(&v, &copy).unwrap();
        let (m, _) = Mounted::new(&b, &["-o", &with(begins), &copy], "m");
        assert!(comes_to(&b, &m, 30, worked), "{begins}: {}", cleaner(&b, &m));
        assert_eq!(std::fs::read(m.path("f")).unwrap(), vec![19; 1 << 20]);
        m.unmount();
        assert!(b.ok(&["check", "--all", &copy]).contains(": sound; "));
    }
}

/// Some old segments are half dead, and many newer ones are dead: the order decides which go.
#[test]
fn the_order_is_the_one_that_was_said() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "48M");
    let (m, _) = Mounted::new(&b, &["-o", "nogc,interval=3600", &v], "m");
    for n in 0..20 {
        write(&m, &format!("kept{n}"), n, 128 << 10);
        write(&m, &format!("gone{n}"), n, 128 << 10);
    }
    for n in 0..20 {
        std::fs::remove_file(m.path(&format!("gone{n}"))).unwrap();
    }
    std::thread::sleep(Duration::from_millis(1100));
    for n in 0..20 {
        write(&m, "hot", n, 1 << 20);
    }
    m.unmount();
    let begins = "clean_check_interval 1\nmin_clean_segments 55%\nmax_clean_segments 56%\n";
    let moved = |option: &str, line: &str| {
        let copy = b.name("copy.img");
        std::fs::copy(&v, &copy).unwrap();
        let options = [&conf(&b, &[begins, line].concat()), ",retain=nothing", option].concat();
        let (m, _) = Mounted::new(&b, &["-o", &options, &copy], "m");
        // 191 segments: 107 of them, and 10 that are kept back, and three.
        assert!(comes_to(&b, &m, 30, |s| s["free_segments"].as_u64().unwrap() >= 117), "{}", cleaner(&b, &m));
        std::thread::sleep(Duration::from_millis(500));
        let moved = cleaner(&b, &m)["work"]["moved"].as_u64().unwrap();
        m.unmount();
        assert!(b.ok(&["check", "--all", &copy]).contains(": sound; "));
        moved
    };
    // The old ones hold 32 blocks each.
    let (greedy, oldest) =
        (moved("", "selection_policy greedy\n"), moved("", "selection_policy timestamp\n"));
    assert!(greedy < 100 && oldest > 300, "{greedy} and {oldest} blocks");
    let (greedy, oldest) =
        (moved(",policy=greedy", "selection_policy timestamp\n"), moved(",policy=oldest", ""));
    assert!(greedy < 100 && oldest > 300, "the option goes first: {greedy} and {oldest} blocks");
}

/// A path is bytes, in the option and above what it names.
#[test]
fn a_file_may_have_any_name() {
    if !can_mount() {
        return;
    }
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::OsStrExt;
    let b = Bench::new();
    let v = b.volume("v.img", "48M");
    let dir = b.path("").join(OsStr::from_bytes(b"d\xff"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("c.conf"), "selection_policy greedy\n").unwrap();
    let mut whole = OsString::from("nogc,cleanerd_conf=");
    whole.push(dir.join("c.conf"));
    for option in [whole, "cleanerd_conf=c.conf".into()] {
        let mut command = b.command(crate::common::SILT);
        command
            .current_dir(&dir)
            .args([OsStr::new("mount"), OsStr::new("-o"), &option])
            .args([&v, &b.name("m")]);
        let run = crate::common::Run::of(&command.output().unwrap());
        assert_eq!(run.code, 0, "{}", run.err);
        let m = Mounted::at(&b, "m");
        let c = cleaner(&b, &m);
        assert_eq!(c["policy"]["value"], "greedy", "{c}");
        m.unmount();
    }
}
