//! Repair cut off: the next repair finishes it, and what it leaves is sound and can be written.

use std::sync::Arc;

use silt_device::{CrashOptions, CrashStates, Cut, Device, MemoryDevice, Recorder};
use silt_format::super_block::PRIMARY_OFFSET;
use silt_model::rng::Rng;
use silt_repair::{Options, errors};

use crate::oracle;
use crate::random::{Kind, random};
use crate::workload::BEGIN;
use crate::{During, Failure, Result, driver};

/// Damages that are tried until one of them is an error that can be mended.
const TRIES: u32 = 24;

/// Damages a volume, repairs it, and judges what cuts of the repair leave of it. A damage that repair cannot mend
/// wholly is no matter here; whether there was another one is told.
pub fn examine(seed: u64, see: &mut dyn FnMut(u64, &Cut) -> bool) -> Result<bool> {
    let mut rng = Rng::new(seed);
    let history = driver::play(&random(Kind::Past, seed))?;
    let whole = CrashOptions { seed, max_states: usize::MAX, per_flush: 2 };
    let mut last = None;
    for (_, state) in history.states(whole) {
        last = Some(state.during("making a crash state")?);
    }
    let Some(state) = last else { return Ok(false) };
    let options = Options { now: BEGIN + 500_000, seed, cache_bytes: 8 << 20, ..Options::default() };
    for _ in 0..TRIES {
        let (damaged, what) = damage(&mut rng, &state.device)?;
        let before: Arc<dyn Device> = oracle::disk(&damaged);
        // A volume of which nothing can be read is no matter of repair.
        let Ok(plan) = silt_repair::plan(before, &options) else { continue };
        if errors(&plan.before) == 0 || errors(&plan.after) > 0 || plan.is_empty() {
            continue;
        }
        let disk = Recorder::new(damaged.fork());
        plan.apply(&disk).during(&what)?;
        let cuts = CrashOptions { seed, max_states: 60, per_flush: 12 };
        for cut in CrashStates::new(&damaged, disk.record().events(), cuts) {
            let cut = cut.during("making a crash state")?;
            if !see(cut.fingerprint, &cut.cut) {
                continue;
            }
            let place = format!("{what}, its repair cut off, {}", cut.cut);
            let device: Arc<dyn Device> = oracle::disk(&cut.device);
            let again = silt_repair::plan(device.clone(), &options).during(&place)?;
            if errors(&again.after) > 0 {
                let told: Vec<_> = again.after.errors().take(8).map(ToString::to_string).collect();
                return Err(Failure(format!("{place}: the next one leaves\n    {}", told.join("\n    "))));
            }
            again.apply(&*device).during(&place)?;
            oracle::look(device, oracle::ALL).map_err(|e| e.at(&place))?;
        }
        return Ok(true);
    }
    Ok(false)
}

/// A disk with a block of noise in what was written last, a byte of a super block turned, or both; and in words.
fn damage(rng: &mut Rng, sound: &MemoryDevice) -> Result<(MemoryDevice, String)> {
    let device = sound.fork();
    let mut what = Vec::new();
    let supers = rng.percent(30);
    if supers {
        let at = PRIMARY_OFFSET + rng.below(200);
        turn(&device, at, 1)?;
        what.push(format!("byte {at} turned"));
    }
    if !supers || rng.percent(50) {
        let mut used = Vec::new();
        device.for_each_chunk(|at, bytes| {
            if at > 4096 && bytes.iter().any(|b| *b != 0) {
                used.push((at, bytes.len() as u64));
            }
        });
        if let Some((start, len)) = rng.pick(&used) {
            let at = (start + rng.below(*len)) / 1024 * 1024;
            turn(&device, at, 64)?;
            what.push(format!("64 bytes turned from {at} on"));
        }
    }
    Ok((device, what.join(", ")))
}

/// Turns every bit of so many bytes.
fn turn(device: &MemoryDevice, at: u64, len: usize) -> Result<()> {
    let mut bytes = vec![0; len];
    device.read_at(at, &mut bytes).during("reading")?;
    bytes.iter_mut().for_each(|b| *b = !*b);
    device.write_at(at, &[&bytes]).during("writing")
}
