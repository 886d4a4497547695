//! `silt lscp`: lists checkpoints.

use std::path::PathBuf;

use serde::Serialize;
use silt_control::{Checkpoint, CheckpointQuery, Request, Response};

use crate::failure::Result;
use crate::output::{JsonList, Output};
use crate::{number, target, times};

/// List checkpoints and snapshots
#[derive(clap::Args)]
pub struct Args {
    /// Do not hide plain checkpoints in which no file changed (the newest never is)
    #[arg(short, long)]
    all: bool,
    /// Show the blocks in use (the default)
    #[arg(short = 'b', long, overrides_with = "show_increment")]
    show_block_count: bool,
    /// Show the blocks that were written instead of those in use
    #[arg(short = 'g', long)]
    show_increment: bool,
    /// Newest first
    #[arg(short, long)]
    reverse: bool,
    /// Only snapshots
    #[arg(short, long)]
    snapshot: bool,
    /// Begin at this checkpoint number
    #[arg(short, long, value_name = "NUMBER", value_parser = number::whole::<u64>)]
    index: Option<u64>,
    /// At most so many; 0, as with lscp of nilfs-utils, all
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = number::whole::<u64>)]
    lines: Option<u64>,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Image, device or mounted directory; none: the only volume mounted
    volume: Option<PathBuf>,
}

/// A checkpoint with its time written out.
#[derive(Serialize)]
struct Item {
    #[serde(flatten)]
    checkpoint: Checkpoint,
    time: Option<String>,
}

pub fn run(args: &Args) -> Result<()> {
    let mut control = target::open(args.volume.as_deref())?;
    let query = CheckpointQuery {
        snapshots_only: args.snapshot,
        from: args.index.filter(|n| *n > 0),
        // As lscp has it, 0 is no limit.
        count: args.lines.filter(|n| *n > 0),
        reverse: args.reverse,
        minor: args.all,
    };
    let request = Request::ListCheckpoints(query);
    if args.json {
        let mut list = JsonList::new(Output::new());
        target::call(&mut *control, request, |part| {
            let Response::Checkpoints(batch) = part else { return Ok(()) };
            batch.into_iter().try_for_each(|checkpoint| {
                list.item(&Item { checkpoint, time: times::iso(checkpoint.created) })
            })
        })?;
        return list.finish();
    }
    let blocks = if args.show_increment { "NBLKINC" } else { "BLKCNT" };
    let mut out = Output::with_header(format!(
        "                 CNO        DATE     TIME  MODE  FLG {blocks:>11}       ICNT"
    ));
    target::call(&mut *control, request, |part| {
        let Response::Checkpoints(batch) = part else { return Ok(()) };
        batch.iter().try_for_each(|c| out.line(row(c, args.show_increment)))
    })?;
    out.finish()
}

fn row(c: &Checkpoint, increment: bool) -> String {
    format!(
        "{:>20}  {}{:>5}{:>5}{:>13}{:>11}",
        c.number,
        times::stamp(c.created, false),
        if c.snapshot { "ss" } else { "cp" },
        if c.minor { "i" } else { "-" },
        if increment { c.blocks_written } else { c.blocks },
        c.inodes
    )
}
