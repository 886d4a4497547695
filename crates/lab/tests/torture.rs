//! The campaign of every day: `SILT_TORTURE_STATES` and `SILT_TORTURE_WORKLOADS` make it longer or shorter,
//! `SILT_TORTURE_SEED` another one.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use silt_lab::{Campaign, Plan, shrink};

fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(otherwise)
}

/// Every cut leaves what was promised. In a debug build a tenth.
#[test]
fn every_cut_leaves_what_was_promised() {
    let (states, workloads) = if cfg!(debug_assertions) { (1500, 40) } else { (20_000, 500) };
    let states = from_environment("SILT_TORTURE_STATES", states);
    let plan = Plan {
        seed: from_environment("SILT_TORTURE_SEED", 1),
        from: from_environment("SILT_TORTURE_FROM", 0),
        workloads: from_environment("SILT_TORTURE_WORKLOADS", workloads),
        states: Some(states),
        time: std::env::var("SILT_TORTURE_SECONDS")
            .ok()
            .and_then(|s| s.parse().ok())
            .map(Duration::from_secs),
        failing: std::env::var_os("SILT_TORTURE_FAILING").is_some(),
        ..Plan::default()
    };
    let begun = std::time::Instant::now();
    let campaign = Campaign::new(plan).unwrap();
    let failed = campaign.run(&|_| {});
    let tally = campaign.tally();
    println!("{tally:?} in {:?}", begun.elapsed());
    for f in &failed {
        let tries = from_environment("SILT_TORTURE_SHRINK", 300);
        println!("after {} states:\n{}", f.after, shrink::shrink(f, u32::try_from(tries).unwrap_or(0)));
    }
    assert!(failed.is_empty(), "{} workloads failed", failed.len());
    // Volumes that are mounted again and again have many flushes, and little waits for each.
    if std::env::var_os("SILT_TORTURE_FAILING").is_none() {
        assert!(3 * (tally.reordered + tally.torn) >= tally.states, "{tally:?}");
        assert!(5 * tally.reordered >= tally.states, "{tally:?}");
    }
    let in_time = std::env::var_os("SILT_TORTURE_SECONDS").is_some();
    assert!(in_time || tally.states >= states, "{tally:?}");
}
