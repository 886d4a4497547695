//! `silt resize`: makes a volume larger or smaller.

use std::cmp::Ordering;
use std::path::PathBuf;

use silt_control::{Request, Resized, Response, connect};
use silt_verify::{Unwatched, Watch as _};

use crate::failure::{Failure, Result};
use crate::interrupt::Interruptible;
use crate::output::{Output, count};
use crate::{progress, size, target};

/// Make a volume larger or smaller, mounted or not
///
/// Without a size it takes all of its device. With a larger one, an image file is made longer first where that is needed.
///
/// With a smaller one, what lies behind the new end moves, and the image file is cut off; a partition can be made
/// smaller after it. Snapshots and the floor that silt retain --keep set stay; of the rest of the past, what has no room
/// goes as it does when space is short. A size that is too small is refused before anything is changed, with the
/// smallest that works, if there is one. Ctrl-C leaves the old size.
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
    /// The same, as mkfs has it
    #[arg(long = "size", value_name = "SIZE", value_parser = size::parse, hide = true, conflicts_with = "size")]
    named: Option<u64>,
}

impl Args {
    fn wanted(&self) -> Option<u64> {
        self.size.or(self.named)
    }
}

pub fn run(args: &Args) -> Result<()> {
    let mut control = connect(&args.volume)?;
    let mounted = control.is_mounted();
    let mut out = Output::new();
    let bar = progress::steps("segments", args.quiet || args.json);
    let stop = Interruptible::new(Unwatched);
    target::call(&mut *control, Request::Resize { size: args.wanted() }, |part| {
        if let Response::Progress(p) = &part {
            bar.set_length(p.total);
            bar.set_position(p.done);
            if stop.stop() {
                bar.finish_and_clear();
                return Err(ended(args, mounted));
            }
            return Ok(());
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
            let them = if r.moments_gone == 1 { "it" } else { "they" };
            out.line(format!("{} went with what only {them} held", count(r.moments_gone, "moment")))?;
        }
        out.line(done(args, &r))
    })?;
    out.finish()
}

/// What was done, in a sentence.
fn done(args: &Args, r: &Resized) -> String {
    let (volume, now, before) = (args.volume.display(), r.segments, r.segments_before);
    let have = count(now, "segment");
    match now.cmp(&before) {
        Ordering::Equal if args.wanted().is_none() => {
            format!("{volume} has {have}; there is no room for more")
        }
        Ordering::Equal if r.size == r.size_before => {
            format!("{volume} has that size already: {}, {have}", size::exact(r.size))
        }
        Ordering::Equal => format!("{volume} has {have}, as before, and {}", size::exact(r.size)),
        Ordering::Greater => format!("{volume} has {have}, {} more than before", now - before),
        Ordering::Less => format!("{volume} has {have}, {} fewer than before", before - now),
    }
}

/// Ended by Ctrl-C, while what lies behind the new end was being moved.
fn ended(args: &Args, mounted: bool) -> Failure {
    let volume = args.volume.display();
    if !mounted {
        return Failure::Ended(format!("{volume}: ended before it was done; it has its old size"));
    }
    // A daemon hears that we are gone at its next word to us, which the last step does not say.
    Failure::Ended(format!(
        "{volume}: given up before it was done; it keeps its old size, but where the end was just being cut off (silt \
         status says)"
    ))
}
