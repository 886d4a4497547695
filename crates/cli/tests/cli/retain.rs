//! `silt retain`, and what the cleaner makes of it

use crate::common::{Bench, Mounted, can_mount};

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::Value;

const USUAL: &str = "all for 1 day, one an hour for 1 month, one a day for 1 year, one a week for ever";

fn number(v: &Value, name: &str) -> u64 {
    v[name].as_u64().unwrap_or_else(|| panic!("{name}: {v}"))
}

fn write(m: &Mounted<'_>, name: &str, seed: u64, len: usize) -> std::io::Result<()> {
    let mut f = File::create(m.path(name))?;
    f.write_all(&content(seed, len))?;
    f.sync_all()
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed.wrapping_mul(0x9e37_79b9).wrapping_add(i as u64 / 5) >> 3) as u8).collect()
}

#[test]
fn the_wish_of_a_volume_is_set_and_shown() {
    let b = Bench::new();
    b.ok(&["mkfs", "-q", "-B", "64", "--size", "32M", "v.img"]);
    let show = |v: &str| b.json(&["retain", "--json", v]);
    let r = show("v.img");
    assert_eq!((&r["wish"], &r["wish_from"]), (&USUAL.into(), &"default".into()));
    assert_eq!((&r["floor"], &r["floor_from"]), (&"nothing".into(), &"default".into()));

    b.ok(&["retain", "v.img", "1/day for ever"]);
    b.ok(&["retain", "v.img", "--keep", "ALL for an hour"]);
    let r = show("v.img");
    assert_eq!((&r["wish"], &r["wish_from"]), (&"one a day for ever".into(), &"volume".into()));
    assert_eq!((&r["floor"], &r["floor_from"]), (&"all for 1 hour".into(), &"volume".into()));
    let said = b.ok(&["retain", "v.img"]);
    assert!(
        said.contains("kept whatever comes: all for 1 hour (the volume says so), and snapshots"),
        "{said}"
    );

    let said = b.fails(2, &["retain", "v.img", "one an hour for a mouth"]);
    assert!(said.contains("at \"mouth\" (character 19)"), "{said}");
    assert_eq!(show("v.img")["wish"], "one a day for ever", "a mistake changes nothing");
    b.fails(9, &["retain", "no-such.img", "nothing"]);

    let p = b.json(&["retain", "--preview", "--json", "v.img", "default", "--keep", "Default"]);
    assert_eq!((&p["wish"], &p["floor"]), (&USUAL.into(), &"nothing".into()));
    assert_eq!(show("v.img")["wish"], "one a day for ever", "a preview changes nothing");
    b.ok(&["retain", "v.img", "default", "--keep", "default"]);
    let r = show("v.img");
    assert_eq!((&r["wish_from"], &r["floor_from"]), (&"default".into(), &"default".into()));
    assert!(b.ok(&["check", "--all", "v.img"]).contains(": sound; "));
    crate::common::account::at_rest(&b, "v.img");

    b.ok(&["mkfs", "-q", "--size", "256M", "--retain", "all for 2 weeks", "w.img"]);
    assert_eq!(show("w.img")["wish"], "all for 2 weeks");
    let run = b.run(&["mkfs", "-q", "--size", "256M", "--retain", "all for 2 weaks", "x.img"]);
    assert!(run.code == 2 && run.err.contains("weaks") && !b.path("x.img").exists(), "{}", run.err);
}

#[test]
fn mounted_it_is_a_plain_file_and_lasts() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "48M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    // The kernel remembers that there is no such name.
    assert!(!m.path(".silt").exists() && std::fs::read_dir(m.path("")).unwrap().count() == 0);
    b.ok(&["retain", m.dir(), "all for 1 hour", "--keep", "all for 1 minute"]);
    let text = || std::fs::read_to_string(m.path(".silt/retention")).unwrap();
    // What it remembers is taken back by a thread of its own.
    let begin = Instant::now();
    while !m.path(".silt/retention").exists() && begin.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(text().ends_with("all for 1 hour\nkeep: all for 1 minute\n"), "{}", text());
    assert_eq!(std::fs::read_dir(m.path("")).unwrap().count(), 1);
    b.ok(&["retain", m.dir(), "one a day for ever"]);
    while !text().contains("one a day") && begin.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(text().ends_with("one a day for ever\nkeep: all for 1 minute\n"), "{}", text());
    assert_eq!(std::fs::read_dir(m.path(".silt")).unwrap().count(), 1);
    // One that is left of a power cut is taken away, also where the kernel remembers it since it is open.
    let left = m.path(".silt/retention.new");
    std::fs::write(&left, "all").unwrap();
    let open = File::open(&left).unwrap();
    b.ok(&["retain", m.dir(), "one a day for ever"]);
    let begin = Instant::now();
    while left.exists() {
        assert!(begin.elapsed() < Duration::from_secs(5), "it is gone, and the kernel does not know");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(open);

    // By hand, well and badly.
    std::fs::write(m.path(".silt/retention"), "# mine\nall for 3 days\n").unwrap();
    b.ok(&["sync", m.dir()]);
    assert_eq!(b.json(&["retain", "--json", m.dir()])["wish"], "all for 3 days");
    std::fs::write(m.path(".silt/retention"), "all for 3 days\nall for 3 daze\n").unwrap();
    b.ok(&["sync", m.dir()]);
    let r = b.json(&["retain", "--json", m.dir()]);
    assert_eq!((&r["wish"], &r["wish_from"]), (&"all for 3 days".into(), &"volume".into()), "as before");
    let status = b.ok(&["status", m.dir()]);
    assert!(status.contains(".silt/retention does not count: line 2"), "{status}");
    b.ok(&["retain", m.dir(), "all for 5 days"]);
    m.unmount();
    assert_eq!(b.json(&["retain", "--json", &v])["wish"], "all for 5 days");

    let (m, _) = Mounted::new(&b, &["-o", "retain=nothing,keep=all for 1 day;1/week for ever", &v], "m");
    let r = b.json(&["retain", "--json", m.dir()]);
    assert_eq!((&r["wish"], &r["wish_from"]), (&"nothing".into(), &"mount".into()));
    assert_eq!(r["floor"], "all for 1 day, one a week for ever");
    let run = b.run(&["retain", m.dir(), "all for 6 days"]);
    assert!(run.code == 0 && run.err.contains("the mount option retain="), "{}", run.err);
    m.unmount();
    let (m, _) = Mounted::new(&b, &["-o", "pp=120", &v], "m");
    assert_eq!(b.json(&["retain", "--json", m.dir()])["wish"], "all for 6 days");
    m.unmount();
    let (m, _) = Mounted::new(&b, &["-r", &v], "m");
    b.fails(11, &["retain", m.dir(), "nothing"]);
    m.unmount();
    b.fails(2, &["mount", "-o", "retain=sometimes", &v, "m"]);
}

/// Where everybody may write into the root directory, not everybody says what is kept.
#[test]
fn a_wish_of_somebody_else_does_not_count() {
    use std::os::unix::fs::{PermissionsExt, chown};
    if !can_mount() || !crate::common::is_root() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "48M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    std::fs::set_permissions(m.dir(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    // As user 1001 would.
    std::fs::create_dir(m.path(".silt")).unwrap();
    std::fs::write(m.path(".silt/retention"), "nothing\n").unwrap();
    for name in [".silt", ".silt/retention"] {
        chown(m.path(name), Some(1001), Some(1001)).unwrap();
    }
    assert_eq!(b.json(&["retain", "--json", m.dir()])["wish"], USUAL);
    for verb in ["status", "retain"] {
        let said = b.ok(&[verb, m.dir()]);
        assert!(
            said.contains(".silt/retention does not count: the directory .silt belongs to user 1001"),
            "{said}"
        );
    }
    let said = b.fails(7, &["retain", m.dir(), "all for 1 hour"]);
    assert!(said.contains("chown"), "{said}");
    assert_eq!(std::fs::read_to_string(m.path(".silt/retention")).unwrap(), "nothing\n");
    std::fs::remove_dir_all(m.path(".silt")).unwrap();
    b.ok(&["retain", m.dir(), "all for 1 hour"]);
    m.unmount();
    assert_eq!(b.json(&["retain", "--json", &v])["wish"], "all for 1 hour");
}

/// What a preview says is what comes back, and what goes.
#[test]
fn a_preview_says_what_comes_back() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.name("v.img");
    b.ok(&["mkfs", "-q", "-B", "256", "--size", "256M", &v]);
    let (m, _) = Mounted::new(&b, &["-o", "nogc", &v], "m");
    let begin = Instant::now();
    let mut n = 0;
    while n < 60 || begin.elapsed() < Duration::from_secs(5) {
        write(&m, &format!("f{}", n % 4), n, 700_000).unwrap();
        n += 1;
        std::thread::sleep(Duration::from_millis(80));
    }
    m.unmount();
    // What serves no moment goes first, so that nothing else comes back later.
    b.ok(&["clean", "--retain=all for ever", "-m", "1", &v]);
    let words = "one every 2 seconds for ever";
    let p = b.json(&["retain", "--preview", "--json", &v, words]);
    let (gone, bytes, segment) = (number(&p, "gone"), number(&p, "bytes"), number(&p, "segment_size"));
    assert!(gone > 40 && bytes > 20 << 20, "{p}");
    let said = b.ok(&["retain", "--preview", &v, words]);
    assert!(
        said.contains(&format!("{gone} of ")) && said.contains(" would go once space is short"),
        "{said}"
    );

    let before = b.checkpoints(&v);
    assert_eq!(before.len() as u64, number(&p, "moments"), "a preview writes nothing");
    // What is left of the segments that the log has counts, too: copies fill them first.
    let free = |b: &Bench| {
        let status = b.json(&["status", "--json", &v]);
        number(&status, "free") + number(&status["account"]["account"], "log")
    };
    let free_before = free(&b);
    let r = b.json(&["clean", &format!("--retain={words}"), "-m", "1", "--json", &v]);
    let came = free(&b) - free_before;
    assert!(came.abs_diff(bytes) <= segment, "{came} came back, {bytes} were said: {r}");
    // One that has nothing of its own in the segments that were emptied stays until it has.
    let went = number(&r, "checkpoints");
    assert!(went <= gone && went + 5 > gone, "{p} {r}");
    let after = b.checkpoints(&v);
    let left = before.iter().filter(|c| after.contains(c)).count() as u64;
    assert_eq!(left, before.len() as u64 - went);
    assert!(b.ok(&["check", "--all", &v]).contains(": sound; "));
    crate::common::account::at_rest(&b, &v);
}

/// Overwrites a file until there is an error, or as often; the contents by checkpoint.
fn churn(b: &Bench, m: &Mounted<'_>, rounds: u64) -> (Vec<(u64, u64)>, Option<i32>) {
    let mut made = Vec::new();
    for n in 0..rounds {
        if let Err(e) = write(m, "f", n, 1 << 20) {
            return (made, e.raw_os_error());
        }
        made.push((number(&b.json(&["status", "--json", m.dir()]), "newest_checkpoint"), n));
    }
    (made, None)
}

/// A floor is kept whatever comes: the volume is full then, its moments are as they were, and with a lower floor it
/// goes on.
#[test]
fn a_floor_is_kept_and_without_it_there_is_space() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "48M");
    b.ok(&["retain", &v, "nothing", "--keep", "all for 1 hour"]);
    let (m, _) = Mounted::new(&b, &["-o", "interval=3600", &v], "m");
    let (made, error) = churn(&b, &m, 100);
    assert_eq!(error, Some(28), "after {} rounds", made.len());
    assert!(made.len() > 20, "{}", made.len());
    // By hand no more goes, either.
    b.ok(&["clean", "-p", "0", m.dir()]);
    let there = b.checkpoints(m.dir());
    assert!(
        made.iter().all(|(c, _)| there.contains(&(*c, false))),
        "every moment of the floor: {made:?} {there:?}"
    );
    for (c, n) in made.iter().step_by(5) {
        let (past, _) = Mounted::new(&b, &["-o", &format!("ro,at={c}"), &v], "past");
        assert!(std::fs::read(past.path("f")).unwrap() == content(*n, 1 << 20), "checkpoint {c}");
        past.unmount();
    }
    let r = b.json(&["retain", "--json", m.dir()]);
    assert_eq!(number(&r["given_up"], "beyond"), 0, "{r}");

    // The running cleaner takes a lower floor over.
    b.ok(&["rmcp", m.dir(), &made[0].0.to_string()]);
    let begin = Instant::now();
    while let Err(e) =
        b.run(&["retain", m.dir(), "--keep", "nothing"]).code.eq(&0).then_some(()).ok_or("full")
    {
        assert!(begin.elapsed() < Duration::from_secs(20), "{e}");
        std::thread::sleep(Duration::from_millis(200));
    }
    while let Err(e) = write(&m, "small", 1, 4096) {
        assert!(begin.elapsed() < Duration::from_secs(20), "{e}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let (made, error) = churn(&b, &m, 150);
    assert_eq!((made.len(), error), (150, None), "without a floor there is space");
    let r = b.json(&["retain", "--json", m.dir()]);
    assert!(number(&r["given_up"], "as_wished") > 50, "{r}");
    assert_eq!(number(&r["given_up"], "beyond"), 0, "the wish is for nothing: {r}");
    m.unmount();
    assert!(b.ok(&["check", "--all", &v]).contains(": sound; "));
    crate::common::account::at_rest(&b, &v);
}

/// A wish that leaves no space gives way, and that is said.
#[test]
fn a_wish_gives_way_and_a_part_of_it_stays() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "48M");
    let floor = "one every 10 seconds for ever";
    let (m, _) =
        Mounted::new(&b, &["-o", &format!("interval=3600,retain=all for ever,keep={floor}"), &v], "m");
    let begin = Instant::now();
    let mut made = Vec::new();
    while begin.elapsed() < Duration::from_secs(12) || made.len() < 100 {
        let n = made.len() as u64;
        write(&m, "f", n, 1 << 20).unwrap_or_else(|e| panic!("round {n}: {e}"));
        made.push(n);
    }
    let r = b.json(&["retain", "--json", m.dir()]);
    assert!(number(&r["given_up"], "beyond") > 20, "{r}");
    let status = b.ok(&["status", m.dir()]);
    assert!(status.contains("beyond the wish were given up"), "{status}");
    // Of each ten seconds something is left.
    let times: Vec<u64> = b
        .json(&["lscp", "-a", "--json", m.dir()])
        .as_array()
        .unwrap()
        .iter()
        .map(|c| number(c, "created") / 10)
        .collect();
    let (first, last) = (*times.first().unwrap(), *times.last().unwrap());
    assert!(last > first && (first..=last).all(|t| times.contains(&t)), "{times:?}");
    m.unmount();
    assert!(b.ok(&["check", "--all", &v]).contains(": sound; "));
    crate::common::account::at_rest(&b, &v);
}

#[test]
fn words_without_quotes_are_told_how() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let said = b.fails(2, &["retain", &v, "all", "for", "1", "day"]);
    assert!(said.contains("put it in quotes"), "{said}");
}

/// Words that nobody can have meant are not repeated for pages.
#[test]
fn what_is_repeated_in_an_error_is_cut() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let long = "y".repeat(85_000);
    let said = b.fails(2, &["retain", &v, &long]);
    assert!(said.len() < 500 && said.contains("yyy...") && said.contains("more than 1000"), "{said}");
    let said = b.fails(2, &["retain", &v, "--keep", &long]);
    assert!(said.len() < 500, "{said}");
    for option in ["retain=", "at=", "interval=", "order=", "x"] {
        let said = b.fails(2, &["mount", "-o", &format!("{option}{long}"), &v, "m"]);
        assert!(said.len() < 600 && said.contains("yyy..."), "{option}: {said}");
    }
}
