//! `silt lssu`

use crate::common::{Bench, golden_dir};

#[test]
fn prints_what_nilfs_utils_print() {
    let b = Bench::new();
    for name in ["basic-4k", "basic-1k", "btree-1k"] {
        let log = std::fs::read_to_string(golden_dir().join(format!("{name}.log"))).unwrap();
        let wanted: Vec<&str> = log
            .lines()
            .skip_while(|l| !l.trim_start().starts_with("SEGNUM "))
            .take_while(|l| l.starts_with("        "))
            .collect();
        assert!(wanted.len() > 3, "{name}");
        let volume = b.golden(name);
        assert_eq!(b.ok(&["lssu", &volume]).lines().collect::<Vec<_>>(), wanted, "{name}");
    }
}

/// The files hold what `lssu -l -p 0` of nilfs-utils printed under the real kernel on the same volumes.
#[test]
fn counts_what_nilfs_utils_count() {
    let b = Bench::new();
    for (name, wanted) in
        [("gc-4k", include_str!("lssu/gc-4k.txt")), ("btree-1k", include_str!("lssu/btree-1k.txt"))]
    {
        let volume = b.golden(name);
        assert_eq!(b.ok(&["lssu", "-l", "-p", "0", &volume]), wanted, "{name}");
        // All that was written is younger than the period.
        let all = b.json(&["lssu", "-l", "-p", "90Y", "--json", &volume]);
        for s in all.as_array().unwrap() {
            let (live, blocks) = (s["live_blocks"].as_u64().unwrap(), s["blocks"].as_u64().unwrap());
            assert_eq!(s["protected"], true, "{s}");
            assert!(live <= blocks && s["live_percent"].as_u64().unwrap() <= 100, "{s}");
        }
    }
}

/// The blocks in use of every segment, and how full it is, by an independent count.
#[test]
fn numbers_are_those_of_an_independent_count() {
    let b = Bench::new();
    let mut compared = 0;
    for name in ["gc-4k", "btree-1k", "basic-1k", "full-4k", "wrap-4k"] {
        let volume = b.golden(name);
        let device = silt_device::open(
            std::path::Path::new(&volume),
            silt_device::Access::ReadOnly,
            &silt_device::OpenOptions::default(),
        )
        .unwrap();
        let count = silt_verify::holdings::holdings(&device, Default::default()).unwrap();
        drop(device);
        let all = b.json(&["lssu", "-l", "-p", "0", "--json", &volume]);
        let listed: Vec<u64> =
            all.as_array().unwrap().iter().map(|s| s["number"].as_u64().unwrap()).collect();
        assert_eq!(listed, count.unheld.keys().copied().collect::<Vec<_>>(), "{name}");
        for s in all.as_array().unwrap() {
            let number = s["number"].as_u64().unwrap();
            let held = count.segment_blocks(number) - count.unheld[&number];
            let (live, blocks) = (s["live_blocks"].as_u64().unwrap(), s["blocks"].as_u64().unwrap());
            assert_eq!(blocks, count.written[&number], "{name}: {s}");
            if s["protected"] == true {
                // Not looked into, and told as full: what is held is less.
                assert!(live == blocks && held <= blocks, "{name}: {s}, {held} held");
            } else {
                assert_eq!(live, held, "{name}: {s}");
                compared += 1;
            }
        }
    }
    assert!(compared > 20, "{compared}");
}

#[test]
fn options_select() {
    let b = Bench::new();
    let v = b.volume("v.img", "32M");
    let segments = |args: &[&str]| -> Vec<String> {
        let mut all = vec!["lssu"];
        all.extend(args);
        all.push(&v);
        b.ok(&all).lines().skip(1).map(str::to_owned).collect()
    };
    let [first, second] = &segments(&[])[..] else { panic!("two segments are in use") };
    assert!(first.ends_with("  ad-          11"), "{first}");
    assert_eq!(second, "                   1  ---------- --:--:--  ad-           0");
    let total = b.json(&["tune", "--json", &v])["segments"].as_u64().unwrap();
    assert_eq!(segments(&["-a"]).len() as u64, total);
    assert_eq!(segments(&["-a", "-i", "2", "-n", "3"]).len(), 3);
    assert!(segments(&["-a", "-i", "2"])[0].ends_with("  ---           0"));
    assert_eq!(segments(&["-i", "1"]).len(), 1);
    assert!(segments(&["-i", "9999"]).is_empty());
    let json = b.json(&["lssu", "--json", &v]);
    assert_eq!(json[0]["blocks"], 11);
    assert_eq!(json[1]["active"], true);
    assert_eq!(b.run(&["lssu", "-p", "1x", &v]).code, 2);
}
