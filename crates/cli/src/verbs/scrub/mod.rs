//! `silt scrub`: verifies the checksum of every log that is needed, and says what is hit where one does not match.
//!
//! A volume that nobody has mounted is read here; one that a daemon of ours holds is read by that.

mod offline;
mod online;
mod show;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use silt_control::scrub::beside;
use silt_control::{Control, ControlError, Kind, connect};
use silt_names::quoted;

use crate::failure::{Failure, Result};
use crate::{overwrite, size};

/// Verify the checksums of all that is stored, mounted or not; write nothing to the volume
#[derive(clap::Args)]
pub struct Args {
    /// Read at most so many megabytes a second (50), or bytes with a suffix (512K); mounted, 32M if not given
    #[arg(long, value_name = "MB/S", value_parser = rate)]
    rate: Option<u64>,
    /// Leave out what only plain checkpoints need: look at the newest state and snapshots
    #[arg(long)]
    live: bool,
    /// Begin anew, also where an earlier scrub was not finished
    #[arg(long)]
    restart: bool,
    /// Say how far the scrub is and what it has found
    #[arg(long, conflicts_with_all = ["restart", "rate", "live"])]
    status: bool,
    /// Of a mounted volume: begin, and do not wait for the end
    #[arg(long)]
    background: bool,
    /// Of a mounted volume: let the scrub rest
    #[arg(long, group = "action", conflicts_with_all = ["restart", "rate", "live", "status", "background"])]
    pause: bool,
    /// Of a mounted volume: let it go on
    #[arg(long, group = "action", conflicts_with_all = ["restart", "rate", "live", "status", "background"])]
    resume: bool,
    /// Of a mounted volume: end and forget it
    #[arg(long, group = "action", conflicts_with_all = ["restart", "rate", "live", "status", "background"])]
    cancel: bool,
    /// Keep how far it is in this file, not in the user's directory of such files
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// As JSON (of names that are no UTF-8 the bytes, too)
    #[arg(long)]
    json: bool,
    /// Image, device or mounted directory
    volume: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    let mut control = connect(&args.volume)?;
    if control.is_mounted() {
        return online::run(args, &mut *control);
    }
    if args.pause || args.resume || args.cancel || args.background {
        let error = ControlError::new(Kind::Unavailable, format!("{} is not mounted", args.volume.display()));
        return Err(error.hint("a scrub of it runs in the foreground; Ctrl-C lets it rest").into());
    }
    offline::run(args)
}

/// A number of megabytes, or bytes with a suffix.
fn rate(text: &str) -> std::result::Result<u64, String> {
    let bytes = match text.parse::<u64>() {
        Ok(n) => n.checked_mul(1_000_000).ok_or_else(|| format!("{text} is too large")),
        Err(_) => size::parse(text),
    }?;
    if bytes == 0 { Err("a rate of 0 would never end".to_owned()) } else { Ok(bytes) }
}

/// Where the pass over a volume is kept.
fn state_file(args: &Args, uuid: &str) -> Result<PathBuf> {
    if let Some(path) = &args.state {
        // It is written beside, and then renamed.
        for written in [path.as_path(), &beside(path)] {
            overwrite::permit(written, &args.volume)?;
            overwrite::plain(written)?;
        }
        let path = std::path::absolute(path).map_err(|e| ControlError::io(path.display(), &e))?;
        // A name that was mistyped makes no directories.
        if let Some(dir) = path.parent().filter(|dir| !dir.is_dir()) {
            let message = format!("{}: there is no directory {}", path.display(), dir.display());
            return Err(ControlError::new(Kind::NotFound, message)
                .hint("make it, or name a file for --state in one that is there")
                .into());
        }
        return Ok(path);
    }
    // A UUID of our own making: digits and dashes alone.
    Ok(state_dir()?.join("scrub").join(format!("{uuid}.json")))
}

/// `/var/lib/silt` for root, else in the user's directory for what programs remember.
pub(super) fn state_dir() -> Result<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    if let Some(state) = absolute("XDG_STATE_HOME") {
        return Ok(state.join("silt"));
    }
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/silt"));
    }
    absolute("HOME").map(|home| home.join(".local/state/silt")).ok_or_else(|| {
        Failure::usage("without HOME there is no place to keep state: for scrub, name a file with --state")
    })
}

/// A flag that Ctrl-C and SIGTERM set. A second Ctrl-C ends the program as ever.
fn interrupts() -> Result<Arc<AtomicBool>> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let flag = Arc::new(AtomicBool::new(false));
    let fail = |e: std::io::Error| ControlError::io("signals cannot be caught", &e);
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, flag.clone()).map_err(fail)?;
        signal_hook::flag::register(signal, flag.clone()).map_err(fail)?;
    }
    Ok(flag)
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed)
}

/// UUID of a volume that is mounted.
fn uuid_of(control: &mut dyn Control) -> Result<String> {
    let mut uuid = None;
    crate::target::call(control, silt_control::Request::Status, |part| {
        if let silt_control::Response::Status(status) = part {
            uuid = Some(status.uuid);
        }
        Ok(())
    })?;
    uuid.ok_or_else(|| ControlError::new(Kind::Unavailable, "the daemon did not answer").into())
}

/// The command that goes on: with what says which pass that is.
fn again(args: &Args) -> String {
    let mut command = "silt scrub".to_owned();
    if args.live {
        command += " --live";
    }
    if let Some(file) = &args.state {
        command += &format!(" --state {}", quoted(file));
    }
    format!("{command} {}", quoted(&args.volume))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_megabytes_or_sizes() {
        assert_eq!(rate("50"), Ok(50_000_000));
        assert_eq!(rate("512K"), Ok(512 << 10));
        for bad in ["0", "0K", "x", "99999999999999999", "-1", "1.5"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }
}
