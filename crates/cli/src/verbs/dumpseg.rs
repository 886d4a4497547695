//! `silt dumpseg`: shows what the logs of segments hold.

use std::ffi::OsString;

use silt_control::{DumpItem, Request, Response};

use crate::failure::Result;
use crate::output::{JsonList, Output};
use crate::{target, times};

/// Numbers in one request.
const BATCH: usize = 1000;

/// Show what the logs of segments hold
#[derive(clap::Args)]
#[command(override_usage = "silt dumpseg [OPTIONS] [VOLUME] SEGMENT...")]
pub struct Args {
    /// As JSON: a flat list, in which what is inside follows what it is in
    #[arg(long)]
    json: bool,
    /// Segment numbers; before them the image, device or mounted directory, unless only one
    /// volume is mounted
    #[arg(value_name = "[VOLUME] SEGMENT", required = true)]
    segments: Vec<OsString>,
}

enum To {
    Text(Output),
    Json(JsonList),
}

pub fn run(args: &Args) -> Result<()> {
    let (volume, numbers) = target::split(&args.segments, target::is_number);
    let hint = target::lists("silt lssu -a", volume.as_deref());
    let numbers = numbers
        .iter()
        .map(|n| target::number(n, "segment number", 0, &hint))
        .collect::<Result<Vec<u64>>>()?;
    if numbers.is_empty() {
        return Err(target::unnamed("name the numbers of the segments to show", &hint));
    }
    let mut control = target::open(volume.as_deref())?;
    let mut to = if args.json { To::Json(JsonList::new(Output::new())) } else { To::Text(Output::new()) };
    let mut refused = target::Refusals::default();
    for segments in numbers.chunks(BATCH) {
        let request = Request::DumpSegments { segments: segments.to_vec() };
        target::call(&mut *control, request, |part| match part {
            Response::Dump(items) => items.iter().try_for_each(|item| match &mut to {
                To::Text(out) => text(out, item),
                To::Json(list) => list.item(item),
            }),
            Response::Refused { number, error } => {
                refused.tell(number, &error);
                Ok(())
            }
            _ => Ok(()),
        })?;
    }
    match to {
        To::Text(out) => out.finish()?,
        // Of what was asked for at least one segment is there otherwise: this is no result, but a failure.
        To::Json(list) if list.is_empty() => {}
        To::Json(list) => list.finish()?,
    }
    refused.end(numbers.len() as u64)
}

fn text(out: &mut Output, item: &DumpItem) -> Result<()> {
    match *item {
        DumpItem::Segment { number, sequence, next } => {
            out.line(format!("segment: segnum = {number}"))?;
            if let (Some(sequence), Some(next)) = (sequence, next) {
                out.line(format!("  sequence number = {sequence}, next segnum = {next}"))?;
            }
            Ok(())
        }
        DumpItem::Log { block, blocks, created, files } => {
            out.line(format!("  partial segment: blocknr = {block}, nblocks = {blocks}"))?;
            out.line(format!("    creation time = {}", times::stamp(created, false)))?;
            out.line(format!("    nfinfo = {files}"))
        }
        DumpItem::File { inode, checkpoint, blocks, data_blocks } => {
            out.line("    finfo")?;
            out.line(format!(
                "      ino = {inode}, cno = {checkpoint}, nblocks = {blocks}, ndatblk = {data_blocks}"
            ))
        }
        DumpItem::Block { virtual_block, offset, level, block } => {
            let mut fields = Vec::new();
            fields.extend(virtual_block.map(|n| format!("vblocknr = {n}")));
            fields.extend(offset.map(|n| format!("blkoff = {n}")));
            fields.extend(level.map(|n| format!("level = {n}")));
            fields.push(format!("blocknr = {block}"));
            out.line(format!("        {}", fields.join(", ")))
        }
    }
}
