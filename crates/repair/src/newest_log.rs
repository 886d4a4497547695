//! The newest log where the device cannot read all of it, or its head or super root is lost (format 3.1: one checksum over
//! all, so nothing mounts it).
//!
//! Where its super root can be read, it is kept: a new checkpoint is written of it elsewhere, and what was lost of it is
//! mended as in any other log; so it is where its summary was overwritten. Else an older log takes its place: what that
//! needs a cleaner may have given away since. Where sectors cannot be read the segment is marked as bad, so that nothing
//! is written over them, now or later.

use std::collections::BTreeSet;
use std::sync::Arc;

use silt_device::{Device, Overlay};
use silt_engine::OpenOptions;
use silt_engine::mend::{self, Known, LastLog, Mender, Missing, SetAside, Wounds};
use silt_format::{BlockNr, Geometry};
use silt_verify::{Finding, Report};

use crate::{Options, Result, errors, supers};

/// A newest log of which something is lost, and its super root is not.
struct Newest {
    log: LastLog,
    /// Blocks that cannot be read.
    bad: usize,
    /// What shows where its blocks are.
    missing: Option<Missing>,
}

/// The newest log, if blocks of it cannot be read, or its summary or its super root is lost.
fn newest(device: &dyn Device) -> Option<Newest> {
    let g = supers::geometry(device)?;
    let cursors = supers::cursors(device);
    let named = cursors.iter().max_by_key(|c| c.cno)?;
    if let Some(last) = mend::newest(device, &g).filter(|last| last.cno >= named.cno) {
        let bad = mend::unreadable(device, &g, &last).len();
        return (bad > 0).then_some(Newest { log: last, bad, missing: None });
    }
    let (missing, end) = mend::missing(device, &g, named)?;
    let bad = mend::bad_blocks(device, &g, named.pseg..end).len();
    Some(Newest { log: *named, bad, missing: Some(missing) })
}

/// What becomes of the newest log.
pub(crate) struct Kept {
    pub trial: Arc<Overlay>,
    pub said: Vec<String>,
    /// Synced data behind it, which is set aside.
    pub aside: SetAside,
    /// Its summary or its super root is lost: that it is what the super blocks say shows in what a check finds.
    pub doubtful: bool,
    pub checkpoint: u64,
    /// Where it was: what is dead there is taken out of the table later.
    pub segment: u64,
}

/// Writes a checkpoint that begins where the newest log cannot be read to the end, or has lost its summary; `None`: there
/// is no such log, or too much of it is lost.
pub(crate) fn keep_newest(device: &Arc<Overlay>, options: &Options, open: &OpenOptions) -> Option<Kept> {
    let Newest { log: last, bad: count, missing } = newest(&**device)?;
    let g = supers::geometry(&**device)?;
    let segment = g.segment_of(BlockNr(last.pseg)).0;
    let unreadable = (count > 0).then_some(segment);
    let plain = Wounds {
        start: Some(last),
        bad: bad(&**device).into_iter().chain(unreadable).collect(),
        ..Wounds::default()
    };
    // Without the table nothing else is found.
    let table = Wounds { table: true, ..plain.clone() };
    let map = Wounds { table_map: true, ..table.clone() };
    // Nor is a checkpoint written without the file of checkpoints.
    let checkpoints = Wounds { checkpoints: true, nodes: true, ..table.clone() };
    let both = Wounds { table_map: true, ..checkpoints.clone() };
    let empty = Wounds {
        segments: BTreeSet::from([segment]),
        zero_unreadable: options.zero_unreadable,
        ..Wounds::default()
    };
    let part = match missing {
        Some(Missing::Summary) => "the summary",
        Some(Missing::Root) => "the super root",
        None => "",
    };
    let (lost, marked) = match (count, part) {
        (0, part) => (format!("{part} of the log"), ""),
        (1, "") => ("1 block of the log".into(), ", and its segment is marked as bad"),
        (n, "") => (format!("{n} blocks of the log"), ", and its segment is marked as bad"),
        (n, part) => {
            (format!("{n} blocks, {part} among them, of the log"), ", and its segment is marked as bad")
        }
    };
    let is = if count > 0 { "cannot be read" } else { "is lost" };
    [plain, table, map, checkpoints, both].iter().find_map(|wounds| {
        let trial = Arc::new(Overlay::new(device.clone()));
        let mut said = vec![format!(
            "{lost} of checkpoint {} {is}: what is left of it is written anew elsewhere{marked}",
            last.cno
        )];
        let mut known = Known::default();
        for wounds in [wounds, &empty] {
            let mut mender = Mender::open(trial.clone(), open, &Wounds { known, ..wounds.clone() }).ok()?;
            said.append(&mut mender.said);
            known = mender.leave();
            known.own = false;
            said.extend(mender.finish(options.now).ok()?);
        }
        Some(Kept {
            trial,
            said,
            aside: known.aside,
            doubtful: missing.is_some(),
            checkpoint: last.cno,
            segment,
        })
    })
}

/// Where the log goes on into blocks that cannot be read, leaves it for another segment, and marks those as bad; returns
/// what is said, and synced data behind it.
pub(crate) fn leave(
    device: &Arc<Overlay>,
    bad: &BTreeSet<u64>,
    options: &Options,
    open: &OpenOptions,
) -> Result<(Vec<String>, SetAside)> {
    let wounds = Wounds { bad: bad.clone(), ..Wounds::default() };
    let mut mender = Mender::open(device.clone(), open, &wounds)?;
    let mut said = std::mem::take(&mut mender.said);
    let aside = mender.leave().aside;
    said.extend(mender.finish(options.now)?);
    let all: Vec<_> = bad.iter().map(ToString::to_string).collect();
    said.push(format!(
        "sectors where the log goes on cannot be read: it goes on elsewhere, and these segments are marked as bad: {}",
        all.join(", ")
    ));
    Ok((said, aside))
}

/// Segments where the log goes on that hold blocks which cannot be read.
pub(crate) fn bad(device: &dyn Device) -> BTreeSet<u64> {
    let Some(g) = supers::geometry(device) else { return BTreeSet::new() };
    let mut cursors = supers::cursors(device);
    cursors.extend(mend::newest(device, &g));
    mend::bad_ahead(device, &g, &cursors)
}

/// Errors but those of logs that cannot be read: where all else is sound, only file data is lost with them. What is dead
/// in a segment of `bad` that was given up is taken out of the table a round later, and is none either.
pub(crate) fn errors_but_of_data(report: &Report, g: Option<&Geometry>, bad: &BTreeSet<u64>) -> u64 {
    let inside = |block: Option<u64>| {
        let (Some(g), Some(block)) = (g, block.map(BlockNr)) else { return false };
        g.holds(block) && bad.contains(&g.segment_of(block).0)
    };
    let passed = |f: &&Finding| match f.id {
        "device-read" => f.place.segment.is_some(),
        "dat-blocknr" => inside(f.place.block),
        _ => false,
    };
    errors(report).saturating_sub(report.errors().filter(passed).count() as u64)
}
