//! Random damage with checksums made right, so that what lies behind them is reached: nothing
//! panics, hangs or reports what is not an invariant.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;

use crate::surgeon::{Sums, Surgeon};
use crate::{Moment, Options, Tree, check};

/// Cases to run; `SILT_MUTATIONS` asks for more.
fn cases() -> u32 {
    std::env::var("SILT_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(60)
}

#[derive(Debug, Clone)]
enum Damage {
    /// A byte of a block.
    Byte {
        at: usize,
        value: u8,
    },
    /// A whole little-endian number.
    Number {
        at: usize,
        value: u64,
    },
    /// A number copied from elsewhere in the block.
    Copy {
        from: usize,
        to: usize,
    },
    Zero,
    Noise(u8),
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0u64..64,
        Just(u64::MAX),
        Just(u64::MAX / 2),
        (0u32..64).prop_map(|b| 1 << b),
        0u64..70_000
    ]
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = prop_oneof![0usize..64, 0usize..4096];
    prop_oneof![
        4 => (at.clone(), any::<u8>()).prop_map(|(at, value)| Damage::Byte { at, value }),
        6 => (at.clone(), number()).prop_map(|(at, value)| Damage::Number { at, value }),
        2 => (at.clone(), at).prop_map(|(from, to)| Damage::Copy { from, to }),
        1 => Just(Damage::Zero),
        1 => any::<u8>().prop_map(Damage::Noise),
    ]
}

fn inflict(b: &mut [u8], damage: &Damage) {
    let n = b.len();
    match damage {
        Damage::Byte { at, value } => b[at % n] = *value,
        Damage::Number { at, value } => {
            let at = (at % (n - 8)) & !7;
            b[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        Damage::Copy { from, to } => {
            let (from, to) = ((from % (n - 8)) & !7, (to % (n - 8)) & !7);
            b.copy_within(from..from + 8, to);
        }
        Damage::Zero => b.fill(0),
        Damage::Noise(seed) => {
            for (i, x) in b.iter_mut().enumerate() {
                *x = (i as u8).wrapping_mul(167).wrapping_add(*seed);
            }
        }
    }
}

/// Metadata blocks of a volume: where damage hurts most.
fn metadata(s: &Surgeon) -> Vec<u64> {
    let dat = s.dat();
    let mut out: Vec<u64> = dat.blocks.values().chain(dat.nodes.keys()).copied().collect();
    for ino in [2, 4, 5, 6] {
        out.extend(s.file(ino).into_values());
    }
    let latest = s.latest();
    // Headers, node blocks and super roots of the latest logs.
    out.extend(latest.pos.0..latest.end());
    let segment = s.g().segment_of(latest.pos).0;
    out.extend(s.logs(segment).iter().map(|l| l.pos.0));
    out
}

/// Volumes checked, and those of them whose latest tree was reached.
static REACHED: (AtomicU32, AtomicU32) = (AtomicU32::new(0), AtomicU32::new(0));

#[test]
fn nothing_panics() {
    mutate();
    let (all, reached) = (REACHED.0.load(Relaxed), REACHED.1.load(Relaxed));
    assert!(reached * 2 > all, "only {reached} of {all} got past the super root");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]
    fn mutate(
        volume in prop::sample::select(vec!["basic-4k", "btree-1k", "cut-4k"]),
        wounds in prop::collection::vec((any::<prop::sample::Index>(), damage(), any::<bool>()), 1..4),
        super_block in prop::option::weighted(0.1, (0usize..280, any::<u8>())),
    ) {
        let mut s = Surgeon::golden(volume);
        let blocks = metadata(&s);
        for (which, damage, fix) in &wounds {
            let block = *which.get(&blocks);
            let bytes = s.read(block);
            let mut changed = bytes.clone();
            inflict(&mut changed, damage);
            // The magic and the size of logs are what finding them rests on: keep most of them.
            let sums = if *fix { Sums::All } else { Sums::None };
            s.patch_if_possible(block, sums, &changed);
        }
        if let Some((at, value)) = super_block {
            s.patch_super_bytes(|b| b[at] = value);
        }
        let options = Options { all_checkpoints: true, ..Options::default() };
        let report = check(&s.device, &options);
        REACHED.0.fetch_add(1, Relaxed);
        REACHED.1.fetch_add(u32::from(report.stats.trees_walked > 0), Relaxed);
        prop_assert!(report.findings.len() < 50 * crate::invariants::ALL.len());
        let impacts = crate::explain(&s.device, &options, &report, &crate::Unwatched);
        prop_assert_eq!(impacts.len(), report.findings.len());
        let mount = check(&s.device, &Options { depth: crate::Depth::Mount, ..options });
        prop_assert!(mount.stats.trees_walked == 0);
        for moment in [Moment::Latest, Moment::Checkpoint(2)] {
            if let Ok(tree) = Tree::open(&s.device, moment) {
                for file in tree.walk().unwrap_or_default() {
                    let _ = tree.extents(file.attributes.ino);
                    let _ = tree.read(file.attributes.ino, 1 << 22);
                }
            }
        }
    }
}
