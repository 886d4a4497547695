//! `silt mkcp`: makes a checkpoint.

use std::path::PathBuf;

use silt_control::{Request, Response};

use crate::failure::Result;
use crate::output::Output;
use crate::target;

/// Make a checkpoint of all that was written, or a snapshot
#[derive(clap::Args)]
pub struct Args {
    /// Make it a snapshot, which is kept
    #[arg(short, long)]
    snapshot: bool,
    /// Print its number
    #[arg(short, long)]
    print: bool,
    /// Print its number as JSON
    #[arg(long)]
    json: bool,
    /// Image, device or mounted directory; none: the only volume mounted
    volume: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    let mut control = target::open(args.volume.as_deref())?;
    let mut out = Output::new();
    target::call(&mut *control, Request::MakeCheckpoint { snapshot: args.snapshot }, |part| {
        let Response::Checkpoint(number) = part else { return Ok(()) };
        if args.json {
            return out.json(&serde_json::json!({ "checkpoint": number, "snapshot": args.snapshot }));
        }
        if args.print { out.line(number) } else { Ok(()) }
    })?;
    out.finish()
}
