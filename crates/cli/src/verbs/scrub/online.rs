//! Scrubbing a volume that is mounted: the daemon does it, we ask how far it is.

use std::time::Duration;

use silt_control::scrub::{ScrubAction, ScrubStatus, load_pass};
use silt_control::{Control, ControlError, Kind, PATIENCE, Request, Response};
use silt_names::quoted;

use super::{Args, again, interrupts, is_set, show, state_file, uuid_of};
use crate::failure::{Failure, Result};
use crate::progress;
use crate::target::{call, eprintln_quiet};

/// How often the daemon is asked.
const ASK: Duration = Duration::from_millis(200);

pub fn run(args: &Args, control: &mut dyn Control) -> Result<()> {
    if args.status {
        let status = ask(control, ScrubAction::Status)?;
        let Some(pass) = status.pass.clone() else {
            // None since the volume was mounted: an earlier one may be kept.
            let id = uuid_of(control)?;
            let kept = load_pass(&state_file(args, &id)?)?.filter(|pass| pass.uuid == id);
            return show::status(args, kept);
        };
        return show::running(args, &status, &pass);
    }
    for (wanted, action, done) in [
        (args.pause, ScrubAction::Pause, "paused"),
        (args.resume, ScrubAction::Resume, "going on"),
        (args.cancel, ScrubAction::Cancel, "cancelled and forgotten"),
    ] {
        if wanted {
            let status = ask(control, action)?;
            if args.json {
                return show::json(&status);
            }
            return show::line(format!("{}: the scrub is {done}", args.volume.display()));
        }
    }
    let id = uuid_of(control)?;
    let start = ScrubAction::Start {
        rate: args.rate,
        live_only: args.live,
        restart: args.restart,
        state: state_file(args, &id)?,
    };
    let interrupted = interrupts()?;
    let mut status = ask(control, start)?;
    if args.background {
        if args.json {
            return show::json(&status);
        }
        return show::line(format!(
            "{}: scrubbing; how far it is: silt scrub --status {}",
            args.volume.display(),
            quoted(&args.volume)
        ));
    }
    let bar = progress::bytes(0, "scrubbing", args.json);
    while status.running {
        if is_set(&interrupted) {
            bar.finish_and_clear();
            let v = quoted(&args.volume);
            eprintln_quiet(&format!(
                "silt: the scrub goes on without us; silt scrub --status, --pause or --cancel {v}"
            ));
            return Err(Failure::Told);
        }
        if let Some(pass) = &status.pass {
            bar.set_length(pass.bytes_in_use);
            bar.set_position(pass.bytes_behind);
        }
        bar.set_message(if status.paused { "paused" } else { "scrubbing" });
        std::thread::sleep(ASK);
        status = ask(control, ScrubAction::Status)?;
    }
    bar.finish_and_clear();
    let pass = status.pass.unwrap_or_default();
    // One that could not begin has nothing to show.
    if status.trouble.is_none() || pass.counts.logs > 0 {
        show::pass(args, &pass)?;
    }
    match status.trouble {
        Some(trouble) => {
            let message = format!("{}: {trouble}", args.volume.display());
            Err(ControlError::new(Kind::Other, message).hint(format!("to go on: {}", again(args))).into())
        }
        None if pass.damaged() > 0 => Err(Failure::Damaged),
        None if !pass.finished => {
            eprintln_quiet("silt: the scrub was ended before it was done");
            Err(Failure::Told)
        }
        None => Ok(()),
    }
}

fn ask(control: &mut dyn Control, action: ScrubAction) -> Result<ScrubStatus> {
    let mut answer = None;
    // Ending one takes as long as a read.
    control.answer_within(Some(PATIENCE));
    call(control, Request::Scrub(action), |part| {
        if let Response::Scrub(status) = part {
            answer = Some(*status);
        }
        Ok(())
    })?;
    answer.ok_or_else(|| ControlError::new(Kind::Unavailable, "the daemon did not answer").into())
}
