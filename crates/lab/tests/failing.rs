//! Devices that fail while a volume is cleaned, discarded, shrunk, grown and mounted again: more of them than the campaign
//! of every day has. `SILT_TORTURE_FAILING=1` with the variables of `torture.rs` makes a campaign of them.
#![allow(clippy::unwrap_used)]

use silt_device::{Content, Event, Outcome};
use silt_lab::driver;
use silt_lab::failing::failing;
use silt_lab::history::History;

fn events(history: &History) -> impl Iterator<Item = &Event> {
    history.lives.iter().flat_map(|life| &life.events)
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
