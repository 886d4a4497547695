//! What a volume is and how it is.

use silt_engine::Volume;
use silt_format::Cno;
use silt_format::super_block::{STATE_ERROR, STATE_VALID};
use uuid::Uuid;

use super::Out;
use crate::Result;
use crate::host::{Host, with};
use crate::response::{Discarding, Response, Status};

/// That something is lost, for those who may not know the names of files.
const NAMELESS: &str =
    "what was synced before it was mounted; root and who mounted the volume are told of which files";

/// Everything here is known without a long pass over a mounted volume, which keeps its account in the background; of
/// another one it is counted. Without `names` what would name files is left out.
pub fn status(host: &dyn Host, names: bool, out: Out<'_>) -> Result<()> {
    let mount = host.mounted();
    let host_free = host.device().backing_free();
    let mut status = with(host, |v| -> silt_engine::Result<Status> {
        let s = v.stat()?;
        let newest = v.last_log().cno;
        let blocks = match v.checkpoint_info(Cno(newest)) {
            Ok(info) => info.blocks,
            // It was removed, and the next one is about to be made.
            Err(silt_engine::Error::NoCheckpoint(_)) => s.tree_blocks,
            Err(e) => return Err(e),
        };
        let sb = v.super_block();
        let block = u64::from(s.block_size);
        let segment = block.saturating_mul(u64::from(s.blocks_per_segment));
        let size = segment.saturating_mul(s.segments);
        let free = segment.saturating_mul(s.clean_segments);
        let live = block.saturating_mul(blocks);
        Ok(Status {
            volume: host.volume().to_owned(),
            label: sb.label().into(),
            uuid: Uuid::from_bytes(sb.uuid).to_string(),
            block_size: s.block_size,
            segment_size: segment,
            segments: s.segments,
            free_segments: s.clean_segments,
            reserved_segments: not_for_users(v),
            current_segment: s.current_segment,
            size,
            free,
            available: for_users(v, s.clean_segments),
            live,
            past: size.saturating_sub(free).saturating_sub(live),
            host_free,
            checkpoints: s.checkpoints,
            snapshots: s.snapshots,
            newest_checkpoint: newest,
            newest_checkpoint_time: s.last_checkpoint_time,
            files: s.inodes,
            dirty: block.saturating_mul(s.dirty_blocks),
            dirty_files: s.dirty_inodes,
            clean: sb.state.get() & STATE_VALID != 0,
            error_flag: sb.state.get() & STATE_ERROR != 0,
            failure: v.failure().map(str::to_owned),
            // Who only looks opens a volume for reading, which says nothing about it.
            read_only: mount.is_some() && v.is_read_only(),
            mounts: Vec::new(),
            mounted_since: None,
            mounted_by: None,
            mount_type: None,
            sync_arrives: None,
            pid: None,
            damaged: 0,
            damaged_logs: 0,
            set_aside: Vec::new(),
            lost: Vec::new(),
            account: crate::account::Kept::default(),
            discard: Discarding::default(),
            cleaner: None,
            notes: Vec::new(),
        })
    })??;
    status.lost = host.lost();
    if !names && !status.lost.is_empty() {
        status.lost = vec![NAMELESS.to_owned()];
    }
    status.discard = host.discarding();
    status.discard.possible = host.device().capabilities().discard;
    status.discard.waiting = with(host, |v| v.unwanted_bytes())?;
    status.cleaner = host.cleaner();
    status.notes = host.notes();
    let (aside, told) = host.cleaning();
    status.set_aside = aside;
    status.notes.extend(told);
    if with(host, |v| v.is_refusing())? {
        let note = if with(host, |v| v.counts_backed_only())? {
            "there was no space for somebody: the file system that holds the image has little left, and there is none before \
             something is deleted there or here"
        } else {
            "there was no space for somebody, and there is none before something is deleted: silt du says what holds it"
        };
        status.notes.push(note.to_owned());
    }
    status.notes.extend(super::retain::effective(host).problem);
    status.account = super::account::kept(host);
    let damage = host.damage().0;
    status.damaged_logs = damage.iter().filter(|d| d.block.is_some()).count() as u64;
    status.damaged = damage.len() as u64 - status.damaged_logs;
    if let Some(m) = mount {
        status.mounts = m.mounts;
        // It may have been remounted since. What lies on the same directory may be another one.
        if host.is_remounted_read_only() {
            status.mounts.iter_mut().filter(|m| m.checkpoint.is_none()).for_each(|m| m.read_only = true);
        }
        status.mounted_since = Some(m.since);
        status.mounted_by = Some(m.uid);
        status.mount_type = Some(m.fs_type);
        status.sync_arrives = m.sync_arrives;
        status.pid = Some(std::process::id());
    }
    out(Response::Status(Box::new(status)))
}

/// Segments that users get nothing of, however few are clean. As df has it: one more than is kept back is where ENOSPC begins.
pub(super) fn not_for_users(v: &Volume) -> u64 {
    v.kept_back().saturating_add(1)
}

/// Bytes that users can have of so many clean segments.
pub(super) fn for_users(v: &Volume, clean: u64) -> u64 {
    // Where somebody was refused, so is the next one.
    if !v.has_changes() && v.check_space(1).is_err() {
        return 0;
    }
    let g = v.geometry();
    let segment = u64::from(g.blocks_per_segment).saturating_mul(u64::from(g.block_size));
    let kept = v.kept_back_of_clean().saturating_add(1);
    let bytes = clean.saturating_sub(kept).saturating_mul(segment);
    v.could_be_backed().map_or(bytes, |(below, kept)| bytes.min(below.saturating_sub(kept)))
}

/// Files found damaged.
pub fn damage(host: &dyn Host, out: Out<'_>) -> Result<()> {
    let (all, more) = host.damage();
    for batch in all.chunks(super::BATCH) {
        out(Response::Damage(batch.to_vec()))?;
    }
    if more > 0 {
        out(Response::Notice(format!(
            "damage was met {more} more times, in files that the list had no room for"
        )))?;
    }
    Ok(())
}
