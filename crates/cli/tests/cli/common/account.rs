//! Accounts of space held against an independent count.

use std::path::Path;

use serde_json::Value;
use silt_device::{Access, Device, OpenOptions};
use silt_retention::{Clock, Ladder, Point, Wish};
use silt_verify::holdings::{Kept, holdings};

use super::Bench;

/// The classes of an account.
pub const CLASSES: [&str; 11] = [
    "live",
    "history",
    "snapshots",
    "mounted",
    "reclaimable",
    "metadata",
    "log",
    "reserve",
    "free",
    "bad",
    "outside",
];

/// The account of a volume at rest, which adds up, and is what an independent count says, in every class.
#[track_caller]
pub fn at_rest(b: &Bench, volume: &str) -> Value {
    let a = b.json(&["du", "--json", volume]);
    let number = |name: &str| a[name].as_u64().unwrap_or_else(|| panic!("{name}: {a}"));
    assert_eq!(CLASSES.iter().map(|c| number(c)).sum::<u64>(), number("size"), "{a}");
    agrees(&b.path(volume), &a);
    a
}

/// Panics unless what `silt du --json` says of a volume at rest is, in every class, what an independent count says: by the
/// same clock and wish, with the moments that there are listed by the command.
#[track_caller]
fn agrees(volume: &Path, a: &Value) {
    let device = silt_device::open(volume, Access::ReadOnly, &OpenOptions::default()).unwrap();
    let number = |name: &str| a[name].as_u64().unwrap_or_else(|| panic!("{name}: {a}"));
    let wish = |name: &str| a[name].as_str().unwrap().parse::<Wish>().unwrap();
    let points = points(&device);
    let ladder = Ladder::new(&wish("wish"), &wish("floor"));
    let time = Clock::at(number("time"));
    let kept = ladder.kept(0, &points, &time);
    let mut soon = ladder.kept(0, &points, &time.later(3600));
    soon.retain(|c| kept.contains(c));
    let nothing = Wish::nothing();
    let firm = Ladder::new(&nothing, &wish("floor")).kept(0, &points, &time);
    let kept = Kept { retention: &kept, soon: &soon, firm: &firm, mounted: &[] };
    let count = holdings(&device, kept).unwrap();
    let block = number("block_size");
    let classes = [
        ("live", count.live),
        ("history", count.history),
        ("history_soon", count.history_soon),
        ("history_shared", count.history_shared),
        ("history_loose", count.history_loose),
        ("snapshots", count.snapshots),
        ("mounted", 0),
        ("reclaimable", count.reclaimable),
        ("metadata", count.metadata),
        ("log", count.log),
        ("bad", count.bad),
        ("outside", count.outside),
    ];
    for (class, counted) in classes {
        assert_eq!(number(class), counted * block, "{class}: {a} {count:?}");
    }
    assert_eq!(number("free") + number("reserve"), count.clean * block, "clean: {a} {count:?}");
    let each = count.alone.iter().zip(count.left_to.values());
    let alone: Vec<[u64; 3]> = each.map(|((n, alone), left)| [*n, alone * block, left * block]).collect();
    let said: Vec<[u64; 3]> = a["alone"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| ["number", "bytes", "left"].map(|name| s[name].as_u64().unwrap()))
        .collect();
    assert_eq!(said, alone);
}

fn points(device: &dyn Device) -> Vec<Point> {
    silt_verify::holdings::checkpoints(device)
        .unwrap()
        .into_iter()
        .filter(|c| !c.snapshot)
        .map(|c| Point { number: c.number, time: c.created, size: if c.minor { 0 } else { c.written } })
        .collect()
}
