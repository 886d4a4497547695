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
        lines(&report, args.minimum).iter().try_for_each(|line| out.line(line))?;
    }
    out.finish()
}

/// What was done, in sentences.
fn lines(r: &TrimReport, minimum: u64) -> Vec<String> {
    let mut lines = Vec::new();
    match (r.discarded, r.too_small) {
        (0, 0) => lines.push("nothing was discarded: no free segment is left for it".to_owned()),
        (0, small) => lines.push(format!(
            "nothing was discarded: {} are free, and no run of free segments is as long as {}",
            size::show(small),
            size::show(minimum)
        )),
        (done, small) => {
            lines.push(format!("discarded {} of free space ({done} bytes)", size::show(done)));
            if small > 0 {
                lines.push(format!("{} lie in shorter runs than asked for", size::show(small)));
            }
        }
    }
    if r.held > 0 {
        lines.push(format!("{} were freed just now, or somebody still reads there", size::show(r.held)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nothing_was_discarded_that_is_said_and_why() {
        let of = |discarded, too_small, held| {
            lines(&TrimReport { discarded, too_small, held, segment_size: 8 << 20 }, 1 << 30).join("\n")
        };
        assert_eq!(
            of(0, 56 << 20, 0),
            "nothing was discarded: 56 MiB are free, and no run of free segments is as long as 1 GiB"
        );
        assert_eq!(
            of(2 << 30, 8 << 20, 0),
            "discarded 2 GiB of free space (2147483648 bytes)\n8 MiB lie in shorter runs than asked for"
        );
        assert!(
            of(0, 0, 8 << 20).starts_with("nothing was discarded: no free segment is left for it\n8 MiB ")
        );
        assert_eq!(of(1 << 30, 0, 0), "discarded 1 GiB of free space (1073741824 bytes)");
    }
}
