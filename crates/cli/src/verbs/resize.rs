//! `silt resize`: makes a volume larger.

use std::path::PathBuf;

use silt_control::{Request, Response, connect};

use crate::failure::Result;
use crate::output::Output;
use crate::{size, target};

/// Make a volume larger, mounted or not
///
/// Without a size it takes all of its device. With one, an image file is made longer first where
/// that is needed. Making a volume smaller is not possible yet.
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
    target::call(&mut *control, Request::Resize { size: args.size }, |part| {
        let Response::Resized(r) = part else { return Ok(()) };
        if args.json {
            return out.json(&r);
        }
        if args.quiet {
            return Ok(());
        }
        let gained = r.segments.saturating_sub(r.segments_before);
        out.line(match gained {
            0 => format!("{} has {} segments; there is no room for more", args.volume.display(), r.segments),
            n => format!("{} has {} segments, {n} more than before", args.volume.display(), r.segments),
        })
    })?;
    out.finish()
}
