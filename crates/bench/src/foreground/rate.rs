//! How fast loads write to a full volume with the cleaner at work, beside the same on a fresh one.

use std::time::Instant;

use anyhow::Result;

use super::{LIVE, Lab, Rate};
use crate::growth::Bed;
use crate::load::{Load, Player};
use crate::process::go_on;

/// What is measured at a time, of the volume's size.
const PART: u64 = 4;

/// Every load, on both volumes turn by turn.
pub fn measure(lab: &mut Lab<'_>) -> Result<()> {
    Load::ALL.iter().try_for_each(|load| one(lab, *load))
}

fn one(lab: &mut Lab<'_>, load: Load) -> Result<()> {
    let bytes = lab.bytes();
    let live = bytes / 100 * LIVE;
    // What a load writes anew, and what stays beside it.
    let (own, rest) = if load == Load::Compile { (live / 3, live / 3 * 2) } else { (live, 0) };
    let mut full = lab.full("full")?;
    full.mount()?;
    let mut player = Player::fill(full.dir(), load, own, rest)?;
    // All that is clean, and as much again.
    let settled = player.written + 2 * (bytes - live);
    while player.written < settled {
        player.go_on()?;
        go_on()?;
    }
    full.unmount()?;
    for round in 0..lab.options.rounds {
        for is_full in [round % 2 == 0, round % 2 != 0] {
            if is_full {
                full.mount()?;
                // Until it cleans again.
                let some = player.written + bytes / 16;
                while player.written < some {
                    player.go_on()?;
                }
                player.sync()?;
                let before = (full.work()?, player.written);
                note(lab, &mut player, load, round, true)?;
                lab.did(load.name(), round, full.work()?.since(before.0), player.written - before.1);
                full.unmount()?;
            } else {
                let mut fresh: Bed<'_> = lab.full("fresh")?;
                fresh.mount()?;
                let own = if load == Load::Compile { own } else { bytes / 8 };
                let mut player = Player::fill(fresh.dir(), load, own, 0)?;
                note(lab, &mut player, load, round, false)?;
                fresh.unmount()?;
            }
        }
    }
    Ok(())
}

fn note(lab: &mut Lab<'_>, player: &mut Player, load: Load, round: u64, full: bool) -> Result<()> {
    let (begin, before) = (Instant::now(), player.written);
    while player.written < before + lab.bytes() / PART {
        player.go_on()?;
        go_on()?;
    }
    player.sync()?;
    let rate = (player.written - before) as f64 / begin.elapsed().as_secs_f64();
    let (place, how) = (lab.place.display(), if full { "full" } else { "fresh" });
    eprintln!("{place}, round {round}, {how}: {}: {:.0} MiB/s", load.name(), rate / f64::from(1 << 20));
    let (place, load) = (lab.place.to_owned(), load.name().to_owned());
    lab.results.rates.push(Rate { place, load, round, full, rate });
    Ok(())
}
