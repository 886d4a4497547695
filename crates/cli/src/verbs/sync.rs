//! `silt sync`: makes everything durable.

use std::path::PathBuf;

use silt_control::{Request, Response};

use crate::failure::Result;
use crate::output::Output;
use crate::target;

/// Make everything that was written durable, as a checkpoint
///
/// Does what sync(1) does where that does not reach the file system.
#[derive(clap::Args)]
pub struct Args {
    /// Print the number of the newest checkpoint
    #[arg(short, long)]
    print: bool,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    /// Mounted directory, image or device; none: the only volume mounted
    volume: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    let mut control = target::open(args.volume.as_deref())?;
    let mut out = Output::new();
    target::call(&mut *control, Request::Sync, |part| {
        let Response::Checkpoint(number) = part else { return Ok(()) };
        if args.json {
            return out.json(&serde_json::json!({ "checkpoint": number }));
        }
        if args.print { out.line(number) } else { Ok(()) }
    })?;
    out.finish()
}
