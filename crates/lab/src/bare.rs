//! mkfs cut off: there is no volume, or a good new one, or, before anything was done, the old one.

use std::sync::Arc;

use silt_device::{CrashOptions, CrashStates, Cut, Device, MemoryDevice, Recorder};
use silt_model::rng::Rng;

use crate::oracle::{self, Look};
use crate::random::{Kind, random};
use crate::workload::Workload;
use crate::{During, Failure, Result, driver};

/// Makes a volume where there was nothing, or another one, and judges what cuts leave of it.
pub fn examine(seed: u64, see: &mut dyn FnMut(u64, &Cut) -> bool) -> Result<()> {
    let mut rng = Rng::new(seed);
    let block_size = if rng.percent(50) { 1024 } else { 4096 };
    let workload = Workload::new("mkfs", seed, block_size);
    let old = match rng.percent(60) {
        false => MemoryDevice::new(workload.size),
        true => {
            let before =
                Workload { size: workload.size, device_size: workload.size, ..random(Kind::Small, seed) };
            let history = driver::play(&Workload { steps: Vec::new(), ..before })?;
            history
                .lives
                .into_iter()
                .next()
                .map_or_else(|| MemoryDevice::new(workload.size), |life| life.base)
        }
    };
    let discard = rng.percent(50);
    let disk = Recorder::new(old.fork());
    let plan = workload.plan(workload.size)?;
    plan.write(&disk, discard).during("mkfs")?;
    disk.mark(1);
    let before = oracle::look(oracle::disk(&old), oracle::ALL).ok();
    let options = CrashOptions { seed, max_states: 100, per_flush: 40 };
    for state in CrashStates::new(&old, disk.record().events(), options) {
        let state = state.during("making a crash state")?;
        see(state.fingerprint, &state.cut);
        let device: Arc<dyn Device> = oracle::disk(&state.device);
        let place = format!("mkfs (discard: {discard}), {}", state.cut);
        let made = state.acknowledged.contains(&1);
        match silt_engine::Volume::open(
            device.clone(),
            &silt_engine::OpenOptions { read_only: true, ..silt_engine::OpenOptions::default() },
        ) {
            Err(e) if made => return Err(Failure(format!("{place}: it was made and does not open: {e}"))),
            // No volume.
            Err(_) => {}
            Ok((volume, _)) => {
                drop(volume);
                // One copy of an old super block may be gone: the next mount mends that.
                let how = Look { before: made, ..oracle::ALL };
                let seen = oracle::look(device, how).map_err(|e| e.at(&place))?;
                let empty = seen.live.len() == 1;
                let old = before.as_ref().is_some_and(|b| b.live == seen.live);
                if !(empty || old && !made) {
                    return Err(Failure(format!(
                        "{place}: {} names of an old volume are there",
                        seen.live.len()
                    )));
                }
            }
        }
    }
    Ok(())
}
