//! Devices that fail while a volume is cleaned, discarded, shrunk, grown and mounted again: more of them than the campaign
//! of every day has. `SILT_TORTURE_FAILING=1` with the variables of `torture.rs` makes a campaign of them.
#![allow(clippy::unwrap_used)]

use silt_device::{Content, CrashOptions, Event, Outcome};
use silt_lab::campaign::{cuts_of, examine};
use silt_lab::driver;
use silt_lab::failing::failing;
use silt_lab::history::History;
use silt_lab::workload::{Fails, Step, Workload, ops};
use silt_lab::{Campaign, Plan, shrink};
use silt_model::rng::mix;

fn events(history: &History) -> impl Iterator<Item = &Event> {
    history.lives.iter().flat_map(|life| &life.events)
}

/// In a debug build a tenth.
#[test]
fn what_was_promised_is_there_whatever_fails() {
    let workloads = if cfg!(debug_assertions) { 6 } else { 64 };
    let plan = Plan { seed: 1, failing: true, states: Some(0), workloads, ..Plan::default() };
    let campaign = Campaign::new(plan).unwrap();
    let failed = campaign.run(&|_| {});
    let tries = std::env::var("SILT_TORTURE_SHRINK").ok().and_then(|s| s.parse().ok()).unwrap_or(300);
    for f in &failed {
        println!("after {} states:\n{}", f.after, shrink::shrink(f, tries));
    }
    assert!(failed.is_empty(), "{} workloads failed", failed.len());
    assert!(campaign.tally().states > 100 * workloads, "{:?}", campaign.tally());
}

/// The same record each time, though logs are written by threads in half of them.
#[test]
fn what_fails_fails_each_time() {
    for seed in 0..4 {
        let workload = failing(seed);
        let played = [(); 2].map(|()| driver::play(&workload).unwrap());
        assert!(events(&played[0]).eq(events(&played[1])), "{}", workload.name);
        assert_eq!(played[0].mounts, played[1].mounts);
    }
}

/// They are what they are to be: much is refused and much done, on devices of which all fails that can.
#[test]
fn much_is_refused_and_much_is_done() {
    let (mut writes, mut flushes, mut discards, mut mounts, mut cuts) = (0, 0, 0, 0, 0);
    let (mut refused, mut whole) = (0, 0);
    const WORKLOADS: u64 = 24;
    for seed in 0..WORKLOADS {
        let workload = failing(seed);
        let history = driver::play(&workload).unwrap();
        for event in events(&history) {
            match event {
                Event::Change(c) if matches!(c.outcome, Outcome::Failed(_)) => writes += 1,
                Event::Change(c) if matches!(c.content, Content::Discarded(_)) => discards += 1,
                Event::FlushFailed { .. } => flushes += 1,
                _ => {}
            }
        }
        mounts += history.mounts.len();
        cuts += history.lives.len() - 1;
        refused += history.done.iter().filter(|d| !d.answered).count();
        whole += u64::from(history.done.len() == workload.steps.len() + 1);
    }
    let said = format!(
        "{writes} writes and {flushes} flushes failed, {discards} discards, {mounts} mounts, {cuts} of them after power \
         cuts, {refused} steps refused, {whole} played to the end"
    );
    println!("{said}");
    assert!(writes > 200 && flushes > 50 && discards > 20, "{said}");
    assert!(mounts > 50 && cuts > 20 && refused > 200, "{said}");
    assert!(2 * whole > WORKLOADS, "{said}");
}

/// Without barriers segments that were freed are not written again before that is on the medium.
#[test]
fn what_the_cleaner_freed_is_kept_until_that_is_there() {
    // Two in which they would be.
    for number in [190, 211] {
        let w = failing(mix(1) ^ number);
        assert!(!w.barrier);
        let result = examine(&w, cuts_of(&w), &mut |_, _, _| true);
        assert!(result.is_ok(), "{}", result.unwrap_err());
    }
}

/// Logs that had to be moved are answered when a super block points at them: no mount would find them without.
#[test]
fn what_was_moved_is_answered_when_it_can_be_found() {
    // Two in which it would not be found if the errors of super blocks were passed over.
    for number in [300, 682] {
        let w = failing(mix(1) ^ number);
        let result = examine(&w, cuts_of(&w), &mut |_, _, _| true);
        assert!(result.is_ok(), "{}", result.unwrap_err());
    }
}

/// Without barriers a flush that fails may lose logs, and no super block may be pointed at those: neither that of the cleaner
/// after one of the log writer's that failed, nor those of the end of a mount.
#[test]
fn no_super_block_is_pointed_at_what_a_failed_flush_lost() {
    let op = |text: &str| Step::Op(ops(text).unwrap().remove(0));
    let ends = [Step::Clean, op("remount")];
    // A super block is due after some of these.
    for (end, syncs) in ends.into_iter().flat_map(|end| (2..12).map(move |n| (end.clone(), n))) {
        let mut w = Workload { barrier: false, ..Workload::new("lost", 2, 4096) };
        w.steps = vec![op("create a 644"), op("write :a 0 23000 1")];
        w.steps.extend(std::iter::repeat_n(op("sync"), syncs));
        w.steps.extend([Step::DeleteCheckpoints, Step::Fails(Fails::Flushes { after: 0, times: 1 })]);
        w.steps.extend([op("create b 644"), end, Step::PowerCut]);
        let cuts = CrashOptions { seed: 1, max_states: 200, per_flush: 20 };
        let result = examine(&w, cuts, &mut |_, _, _| true);
        assert!(result.is_ok(), "{syncs}: {}", result.unwrap_err());
    }
}
