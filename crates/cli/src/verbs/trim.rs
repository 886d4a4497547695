//! `silt trim`: gives free space back to what holds the volume.

use std::path::PathBuf;

use silt_control::{Request, Response, TrimReport};

use crate::failure::Result;
use crate::output::Output;
use crate::{progress, size, target};

/// Give free space back: holes in an image file, discard on a device; mounted or not
///
/// Every clean segment is discarded, but for those that may not be written yet, and of an image as many as deleting and cleaning
/// take: so they go on where the host is full. What was given up of the past cannot be
/// rescued from them any more. Where what holds the volume cannot discard, it says so and ends with exit code 12.
///
/// Of a mounted image file Silt does this by itself, a while after segments became free, unless it is mounted with
/// -o nodiscard; of a device with -o discard.
#[derive(clap::Args)]
pub struct Args {
    /// Leave shorter runs of free segments, as 16M
    #[arg(short, long, value_name = "BYTES", value_parser = size::parse, default_value = "0", hide_default_value = true)]
    minimum: u64,
    /// Say nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
    /// Image, device or mounted directory; none: the only volume mounted
    volume: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    let mut control = target::open(args.volume.as_deref())?;
    let mut out = Output::new();
    let bar = progress::bytes(0, "discarding", args.quiet || args.json);
    let mut report = None;
    target::call(&mut *control, Request::Trim { minimum: args.minimum }, |part| {
        match part {
            Response::Progress(p) => {
                bar.set_length(p.total);
                bar.set_position(p.done);
            }
            Response::Trimmed(r) => report = Some(r),
            _ => {}
        }
        Ok(())
    })?;
    bar.finish_and_clear();
    let Some(report) = report else { return out.finish() };
    if args.json {
        out.json(&report)?;
    } else if !args.quiet {
        lines(&report).iter().try_for_each(|line| out.line(line))?;
    }
    out.finish()
}

/// What was done, in sentences.
fn lines(r: &TrimReport) -> Vec<String> {
    let mut lines =
        vec![format!("discarded {} of free space ({} bytes)", size::show(r.discarded), r.discarded)];
    if r.too_small > 0 {
        lines.push(format!("{} lie in shorter runs than asked for", size::show(r.too_small)));
    }
    if r.held > 0 {
        lines.push(format!("{} were freed just now, or somebody still reads there", size::show(r.held)));
    }
    lines
}
