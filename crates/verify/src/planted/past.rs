//! Trees that are compared with one another: the check finds what it finds where each is walked whole.

use std::collections::BTreeMap;

use crate::surgeon::{Sums, Surgeon};
use crate::{Options, check};
use crate::{Report, Stats};

fn both(s: &Surgeon) -> (Report, Report) {
    let look = |each_tree_whole| {
        let options = Options { all_checkpoints: true, each_tree_whole, ..Options::default() };
        check(&s.device, &options)
    };
    (look(false), look(true))
}

/// All that a report says, in an order of its own.
fn told(report: &Report) -> (Vec<String>, BTreeMap<&'static str, u64>, Stats) {
    let mut lines: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    lines.sort();
    (lines, report.counts.clone(), Stats { trees_compared: 0, ..report.stats })
}

#[test]
fn trees_of_sound_volumes_are_compared() {
    for name in crate::golden::NAMES {
        let (compared, whole) = both(&Surgeon::golden(name));
        assert_eq!(told(&compared), told(&whole), "{name}");
        let stats = compared.stats;
        assert!(stats.trees_compared + 3 > stats.trees_walked, "{name}: {stats:?}");
        assert_eq!(whole.stats.trees_compared, 0);
    }
}

/// Damage of the past with checksums made right: numbers of inodes, entries of directories, map nodes.
#[test]
fn damage_of_the_past_is_found_all_the_same() {
    let times: u64 = std::env::var("SILT_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    let mut seed = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = move |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below.max(1) as u64) as usize
    };
    let mut ids: BTreeMap<&str, u64> = BTreeMap::new();
    let mut hidden = 0;
    for name in ["basic-4k", "btree-1k", "gc-4k", "dsync-4k"] {
        let whole = Surgeon::golden(name);
        let blocks = whole.past_blocks();
        assert!(!blocks.is_empty(), "{name}");
        for _ in 0..times {
            let mut s = Surgeon { device: whole.device.fork() };
            let block = blocks[random(blocks.len())];
            let (at, by, long) = (random(1 << 16), 1 + random(255), random(4) == 0);
            s.patch_with(block, Sums::All, |b| {
                // A byte that says something.
                let used: Vec<usize> = (0..b.len()).filter(|i| b[*i] != 0).collect();
                let Some(at) = used.get(at % used.len().max(1)).copied() else { return };
                b[at] = if by % 3 == 0 { b[at] ^ (1 << (by % 8)) } else { b[at].wrapping_add(by as u8) };
                if long {
                    b[at..].iter_mut().take(8).for_each(|b| *b = b.wrapping_mul(3));
                }
            });
            let (compared, whole) = both(&s);
            assert_eq!(told(&compared), told(&whole), "{name}, block {block}, byte {at}, by {by}, {long}");
            whole.errors().for_each(|f| *ids.entry(f.id).or_default() += 1);
            hidden += u64::from(compared.stats.trees_compared > 0 && !whole.is_clean());
        }
    }
    // Errors were met after trees had been compared, of many kinds.
    assert!(hidden * 20 > times && ids.len() > 10, "{hidden}, {ids:?}");
    for id in ["inode-links", "directory-dangling", "directory-type", "inode-blocks", "inode-generation"] {
        assert!(times < 400 || ids.contains_key(id), "{id}: {ids:?}");
    }
}
