//! `silt resize`: makes a volume larger or smaller.

use std::cmp::Ordering;
use std::path::PathBuf;

use silt_control::{Request, Response, connect};

use silt_verify::{Unwatched, Watch as _};

use crate::failure::{Failure, Result};
use crate::interrupt::Interruptible;
use crate::output::Output;
use crate::{progress, size, target};

/// Make a volume larger or smaller, mounted or not
///
/// Without a size it takes all of its device. With a larger one, an image file is made longer first where that is needed.
///
/// With a smaller one, what lies behind the new end moves, and the image file is cut off; a partition can be made
/// smaller after it. Snapshots and the floor that silt retain --keep set stay; of the rest of the past, what has no room
/// goes as it does when space is short. A size that is too small is refused before anything is changed, with the
/// smallest that works. Ctrl-C leaves the old size.
#[derive(clap::Args)]
pub struct Args {
    /// Say nothing
    #[arg(short, long)]
    quiet: bool,
    /// Accepted as nilfs-resize has it
    #[arg(short, long, hide = true)]
    verbose: bool,
    /// Accepted as nilfs-resize has it; nothing is asked
    #[arg(short, long, alias = "assume-yes", hide = true)]
    yes: bool,
    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
    /// Image, device or mounted directory
    volume: PathBuf,
    /// New size, as 32G
    #[arg(value_parser = size::parse)]
    size: Option<u64>,
}

pub fn run(args: &Args) -> Result<()> {
    let mut control = connect(&args.volume)?;
    let mut out = Output::new();
    let mut smaller = false;
    let bar = progress::steps("segments", args.quiet || args.json);
    let stop = Interruptible::new(Unwatched);
    target::call(&mut *control, Request::Resize { size: args.size }, |part| {
        if let Response::Progress(p) = &part {
            smaller = true;
            bar.set_length(p.total);
            bar.set_position(p.done);
            return if stop.stop() { Err(Failure::Interrupted) } else { Ok(()) };
        }
        let Response::Resized(r) = part else { return Ok(()) };
        bar.finish_and_clear();
        if args.json {
            return out.json(&r);
        }
        if args.quiet {
            return Ok(());
        }
        if r.moments_gone > 0 {
            out.line(format!("{} moments went with what only they held", r.moments_gone))?;
        }
        let (volume, now, before) = (args.volume.display(), r.segments, r.segments_before);
        out.line(match now.cmp(&before) {
            Ordering::Equal if smaller => {
                format!("{volume} has {now} segments, as before, and {} bytes", r.size)
            }
            Ordering::Equal => format!("{volume} has {now} segments; there is no room for more"),
            Ordering::Greater => format!("{volume} has {now} segments, {} more than before", now - before),
            Ordering::Less => format!("{volume} has {now} segments, {} fewer than before", before - now),
        })
    })?;
    out.finish()
}
