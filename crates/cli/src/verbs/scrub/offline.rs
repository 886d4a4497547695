//! Scrubbing a volume that nobody has mounted.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use silt_control::scrub::{load_pass, save_pass};
use silt_control::{ControlError, Kind};
use silt_device::{Access, FileDevice, OpenOptions};
use silt_verify::scrub::{Conduct, Options, Outcome, Rate, State, scrub, uuid};

use super::{Args, again, interrupts, is_set, show, state_file};
use crate::failure::{Failure, Result};
use crate::progress;
use crate::target::eprintln_quiet;

/// How often the pass is kept.
const KEEP: Duration = Duration::from_secs(5);
/// Longest rest without a look at Ctrl-C.
const REST: Duration = Duration::from_millis(100);

pub fn run(args: &Args) -> Result<()> {
    let device = silt_device::open(&args.volume, Access::ReadOnly, &OpenOptions::default())?;
    let id = identify(args, &device)?;
    let path = state_file(args, &id)?;
    if args.status {
        let pass = load_pass(&path)?.filter(|pass| pass.uuid == id);
        return show::status(args, pass);
    }
    let mut state = begin(args, &path, &id)?;
    let interrupted = interrupts()?;
    let conductor = Conductor {
        interrupted,
        rate: args.rate.map(|rate| Mutex::new(Rate::new(rate, Instant::now()))),
        bar: progress::bytes(state.bytes_in_use, "scrubbing", args.json),
        path,
        kept: Mutex::new(Instant::now()),
    };
    let options = Options { live_only: args.live, changing: false };
    let outcome = scrub(&device, &options, &mut state, &conductor).map_err(|e| damaged(&args.volume, &e))?;
    conductor.bar.finish_and_clear();
    let kept = save_pass(&conductor.path, &state);
    show::pass(args, &state)?;
    if outcome == Outcome::Paused {
        kept?;
        eprintln_quiet(&format!("silt: paused; to go on: {}", again(args)));
        return Err(if state.damaged() > 0 { Failure::Damaged } else { Failure::Told });
    }
    if let Err(e) = kept {
        eprintln_quiet(&format!("note: the outcome is not kept: {e}"));
    }
    if state.damaged() > 0 { Err(Failure::Damaged) } else { Ok(()) }
}

fn damaged(volume: &Path, e: &silt_verify::Error) -> Failure {
    ControlError::new(Kind::Corrupt, format!("{}: {e}", volume.display()))
        .hint("silt check says what is wrong; if it was cut short, copy it again; nothing was written")
        .into()
}

fn identify(args: &Args, device: &FileDevice) -> Result<String> {
    if silt_verify::is_no_volume(device) {
        return Err(super::super::check::no_volume(&args.volume).into());
    }
    uuid(device).map_err(|e| damaged(&args.volume, &e))
}

/// The pass to go on with, or a new one.
fn begin(args: &Args, path: &Path, id: &str) -> Result<State> {
    if args.restart {
        return Ok(State::new());
    }
    let earlier = load_pass(path)?.filter(|pass| !pass.finished && pass.uuid == id);
    match earlier {
        Some(pass) if pass.live_only == args.live => {
            eprintln_quiet(&format!(
                "note: going on with a scrub that was not finished, {} done; --restart begins anew",
                show::percent(&pass)
            ));
            Ok(pass)
        }
        _ => Ok(State::new()),
    }
}

struct Conductor {
    interrupted: Arc<AtomicBool>,
    rate: Option<Mutex<Rate>>,
    bar: ProgressBar,
    path: PathBuf,
    kept: Mutex<Instant>,
}

impl Conduct for Conductor {
    fn pace(&self, bytes: u64) {
        let Some(rate) = &self.rate else { return };
        let mut rest = rate.lock().unwrap_or_else(PoisonError::into_inner).take(bytes, Instant::now());
        while rest > Duration::ZERO && !self.stop() {
            let part = rest.min(REST);
            std::thread::sleep(part);
            rest -= part;
        }
    }

    fn stop(&self) -> bool {
        is_set(&self.interrupted)
    }

    fn progress(&self, state: &State) {
        self.bar.set_length(state.bytes_in_use);
        self.bar.set_position(state.bytes_behind);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.elapsed() >= KEEP {
            *kept = Instant::now();
            // Tried again, and at the end its failure is told.
            let _ = save_pass(&self.path, state);
        }
    }
}
