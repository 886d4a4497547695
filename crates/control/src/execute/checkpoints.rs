//! Listing, making, changing and removing checkpoints.

use std::ops::ControlFlow;

use silt_engine::{CheckpointInfo, Volume};
use silt_format::Cno;

use super::{BATCH, Out};
use crate::host::{Host, change_with_room, with};
use crate::request::MAX_LIST;
use crate::response::{Checkpoint, Progress};
use crate::{CheckpointQuery, ControlError, Kind, Removed, Response, Result};

/// Lists checkpoints. One that is made meanwhile may be in the list or not.
pub fn list(host: &dyn Host, query: &CheckpointQuery, out: Out<'_>) -> Result<()> {
    let mut left = query.count.unwrap_or(u64::MAX);
    if query.snapshots_only {
        return list_snapshots(host, query, left, out);
    }
    let mut walk =
        if query.reverse { Walk::back(query.from) } else { Walk::forward(query.from.unwrap_or(1)) };
    while left > 0 {
        let Some(mut batch) = walk.next(host)? else { break };
        if !query.minor {
            // The newest is the files as they are, and after a repair made them others there is no other one of that.
            let newest = with(host, |v| v.last_log().cno)?;
            batch.retain(|c| c.snapshot || !c.minor || c.number == newest);
        }
        batch.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        left -= batch.len() as u64;
        batch.chunks(BATCH).try_for_each(|part| out(Response::Checkpoints(part.to_vec())))?;
    }
    Ok(())
}

fn list_snapshots(host: &dyn Host, query: &CheckpointQuery, left: u64, out: Out<'_>) -> Result<()> {
    let mut all = with(host, |v| v.snapshots())??;
    match (query.reverse, query.from) {
        (false, Some(from)) => all.retain(|c| c.0 >= from),
        (true, Some(from)) => all.retain(|c| c.0 <= from),
        (_, None) => {}
    }
    if query.reverse {
        all.reverse();
    }
    all.truncate(usize::try_from(left).unwrap_or(usize::MAX));
    for part in all.chunks(BATCH) {
        let batch = with(host, |v| {
            let mut batch = Vec::with_capacity(part.len());
            for c in part {
                match v.checkpoint_info(*c) {
                    Ok(info) if info.snapshot => batch.push(Checkpoint::from(info)),
                    // Unmade since the list was taken.
                    Ok(_) | Err(silt_engine::Error::NoCheckpoint(_)) => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(batch)
        })??;
        out(Response::Checkpoints(batch))?;
    }
    Ok(())
}

/// Most numbers that a walk backwards looks at in one go.
const WIDEST: u64 = 64 * BATCH as u64;

/// A walk over all checkpoints in batches, in either direction. Between two batches the volume may
/// change; a number is never visited twice.
pub struct Walk {
    direction: Direction,
}

enum Direction {
    /// The next number to look at.
    Forward(u64),
    /// Below which number to look (none: the newest is first), and over how many numbers at once.
    Back {
        below: Option<u64>,
        window: u64,
    },
    Done,
}

impl Walk {
    /// Ascending, from number `from`.
    pub fn forward(from: u64) -> Self {
        Walk { direction: Direction::Forward(from.max(1)) }
    }

    /// Descending, from number `from` or the newest.
    pub fn back(from: Option<u64>) -> Self {
        let below = from.map(|n| n.saturating_add(1));
        Walk { direction: Direction::Back { below, window: BATCH as u64 } }
    }

    /// The next batch, none at the end. May be empty before the end, and behind a gap larger than
    /// others.
    pub fn next(&mut self, host: &dyn Host) -> Result<Option<Vec<Checkpoint>>> {
        match self.direction {
            Direction::Done => Ok(None),
            Direction::Forward(from) => {
                let batch = with(host, |v| collect(v, from, u64::MAX, BATCH))??;
                self.direction = match batch.last() {
                    Some(last) if batch.len() == BATCH => Direction::Forward(last.number.saturating_add(1)),
                    _ => Direction::Done,
                };
                Ok(Some(batch))
            }
            Direction::Back { below, window } => {
                let (mut batch, start) = with(host, |v| -> silt_engine::Result<_> {
                    let next = v.last_log().cno.saturating_add(1);
                    let end = below.map_or(next, |b| b.min(next));
                    let start = end.saturating_sub(window).max(1);
                    Ok((collect(v, start, end, usize::MAX)?, start))
                })??;
                // Long gaps lie between checkpoints where many were removed.
                let window = if batch.len() > BATCH / 8 { BATCH as u64 } else { (window * 4).min(WIDEST) };
                self.direction =
                    if start <= 1 { Direction::Done } else { Direction::Back { below: Some(start), window } };
                batch.reverse();
                Ok(Some(batch))
            }
        }
    }
}

/// At most `most` checkpoints with numbers from `start` to before `end`.
fn collect(v: &Volume, start: u64, end: u64, most: usize) -> silt_engine::Result<Vec<Checkpoint>> {
    let mut batch = Vec::new();
    if start >= end || most == 0 {
        return Ok(batch);
    }
    v.for_each_checkpoint(Cno(start), |c: CheckpointInfo| {
        if c.cno >= end {
            return ControlFlow::Break(());
        }
        batch.push(Checkpoint::from(c));
        if batch.len() >= most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(batch)
}

/// Makes a checkpoint, or where nothing waits takes the newest, and keeps it if asked.
pub fn make(host: &dyn Host, snapshot: bool, out: Out<'_>) -> Result<()> {
    // One on which writing failed says why when it is synced.
    if with(host, |v| v.is_read_only() && v.failure().is_none())? {
        return Err(silt_engine::Error::ReadOnly.into());
    }
    let mut number = host.sync()?;
    if snapshot {
        // Where space is short it may have been given up meanwhile: the newest one never is, and holds all that it held.
        let mut waits = || out(Response::Progress(Progress { done: 0, total: 1 }));
        number = change_with_room(host, &mut waits, |v| {
            let newest = Cno(v.last_log().cno);
            match v.make_snapshot(Cno(number)) {
                Err(silt_engine::Error::NoCheckpoint(_)) => v.make_snapshot(newest).map(|()| newest.0),
                made => made.map(|()| number),
            }
        })?;
        host.sync()?;
    }
    out(Response::Checkpoint(number))
}

/// Turns checkpoints into snapshots or back. All that could be done is durable at the end.
pub fn change_mode(host: &dyn Host, numbers: &[u64], snapshot: bool, out: Out<'_>) -> Result<()> {
    check_list(numbers)?;
    let mut changed = false;
    for (done, &number) in numbers.iter().enumerate() {
        let progress = Progress { done: done as u64, total: numbers.len() as u64 };
        let mut waits = || out(Response::Progress(progress));
        let result = change_with_room(host, &mut waits, |v| {
            let c = Cno(number);
            // As the kernel does: of the newest checkpoint a later one must exist first, and one
            // that is no snapshot needs nothing.
            if v.checkpoint_info(c)?.snapshot == snapshot {
                return Ok(false);
            }
            if snapshot {
                v.make_snapshot(c)?
            } else {
                v.unmake_snapshot(c)?
            }
            Ok(true)
        });
        match result {
            Ok(did) => changed |= did,
            Err(error) if of_the_item(&error) => out(Response::Refused { number, error })?,
            Err(error) => return Err(error),
        }
    }
    if changed {
        host.sync()?;
    }
    Ok(())
}

/// Whether an error concerns one checkpoint and not the volume.
fn of_the_item(error: &ControlError) -> bool {
    matches!(error.kind, Kind::NotFound | Kind::Busy | Kind::Invalid)
}

pub(super) fn check_list(numbers: &[u64]) -> Result<()> {
    if numbers.len() > MAX_LIST {
        return Err(ControlError::new(Kind::Invalid, format!("more than {MAX_LIST} numbers in one request")));
    }
    Ok(())
}

/// Checkpoints that one change removes: what they are written in fits into what is counted for a change.
const REMOVED_AT_ONCE: usize = 64;

/// Removes the plain checkpoints of a range, a batch of numbers at a time. As rmcp of nilfs-utils has
/// it, the newest one goes where a range names it and stays where the range is open.
pub fn remove(host: &dyn Host, start: u64, end: u64, out: Out<'_>) -> Result<()> {
    if start > end {
        return Err(ControlError::new(Kind::Invalid, format!("invalid checkpoint range: {start}..{end}")));
    }
    let mut done = Removed::default();
    let removed = remove_all(host, start, end, &mut done, out);
    let synced = if done.removed > 0 { host.sync().map(|_| ()) } else { Ok(()) };
    // Also where it came to an end half-way: what is gone is gone.
    if removed.is_ok() || done.removed > 0 {
        out(Response::Removed(done))?;
    }
    removed.and(synced)
}

fn remove_all(host: &dyn Host, start: u64, end: u64, done: &mut Removed, out: Out<'_>) -> Result<()> {
    let mut from = start.max(1);
    // Nor those that are made meanwhile.
    let newest = with(host, |v| v.last_log().cno)?;
    let end = if end == u64::MAX { newest.saturating_sub(1) } else { end.min(newest) };
    while from <= end {
        let batch = with(host, |v| collect(v, from, end.saturating_add(1), REMOVED_AT_ONCE))??;
        let Some(last) = batch.last().map(|c| c.number) else { break };
        let progress = Progress { done: done.removed, total: end };
        let mut waits = || out(Response::Progress(progress));
        let range = from..last.saturating_add(1);
        let (removed, _) = change_with_room(host, &mut waits, |v| v.delete_checkpoints(range.clone()))?;
        done.removed = done.removed.saturating_add(removed);
        // What is still there is a snapshot, mounted or not, or it is mounted.
        let left = with(host, |v| collect(v, from, last.saturating_add(1), REMOVED_AT_ONCE))??;
        let (snapshots, busy): (Vec<Checkpoint>, Vec<Checkpoint>) = left.iter().partition(|c| c.snapshot);
        done.snapshots_total = done.snapshots_total.saturating_add(snapshots.len() as u64);
        let room = MAX_LIST.saturating_sub(done.snapshots.len());
        done.snapshots.extend(snapshots.iter().map(|c| c.number).take(room));
        let room = MAX_LIST.saturating_sub(done.busy.len());
        done.busy.extend(busy.iter().map(|c| c.number).take(room));
        match last.checked_add(1) {
            Some(next) if next <= end => from = next,
            _ => break,
        }
    }
    Ok(())
}
