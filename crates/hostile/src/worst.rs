//! The paths for bad days: rescue, scrub, repair.

use std::path::Path;
use std::sync::Arc;

use silt_device::{Device, Masked};
use silt_engine::{Tree, Volume};
use silt_format::BlockNr;
use silt_format::super_block::{self, PRIMARY_OFFSET};
use silt_verify::Unwatched;
use silt_verify::rescue::Rescue;
use silt_verify::scrub::{Options, Outcome, State, Unpaced, scrub as pass};

use crate::paths::{CACHE, NOW, Seen, file_system, options, walk};
use crate::watched::Watched;

/// Logs that [`damaged`] hits at most.
const MOST_HIT: usize = 12;
/// Moments that are mounted through what was found.
const MOST_MOUNTED: usize = 2;

/// What survives, and a mount of it.
pub fn rescue(device: &Arc<Watched>, seen: &mut Seen) {
    if let Ok(rescue) = Rescue::open(&**device, &Unwatched) {
        seen.rescued = survey(&rescue);
        mount(device, &rescue);
    }
}

/// Rates every moment; whether anything can be read.
fn survey(rescue: &Rescue<'_>) -> bool {
    let answer = rescue.rate(true, &Unwatched);
    let newest = rescue.newest_readable(&Unwatched);
    for cno in answer.newest.into_iter().chain(newest).chain([0, u64::MAX]) {
        if let Ok(tree) = rescue.tree(cno) {
            let _ = tree.lost_inode_blocks();
            tree.for_each_inode(|_| {});
        }
    }
    if let Some(lost) = rescue.unreached() {
        let inodes = lost.named().map(|(ino, _)| ino).collect();
        let _ = rescue.names(lost.checkpoint, inodes, &Unwatched);
    }
    answer.newest.is_some()
}

/// Mounts the newest moments as `mount -o rescue=` does.
fn mount(device: &Arc<Watched>, rescue: &Rescue<'_>) {
    let logs = rescue.roots().iter().filter_map(|r| r.log);
    for mut sb in logs.filter_map(|log| rescue.super_block_for(log).ok()).take(MOST_MOUNTED) {
        let bytes = sb.to_disk().to_vec();
        let over =
            vec![(PRIMARY_OFFSET, bytes.clone()), (super_block::secondary_offset(device.len()), bytes)];
        let shown: Arc<dyn Device> = Arc::new(Masked::new(device.clone(), over));
        if let Ok((volume, _)) = Volume::open(shown, &options(true)) {
            walk(&mut file_system(volume), Tree::Live);
        }
    }
}

/// The volume with a byte in the middle of every third log changed, so that what does not verify is looked for
/// elsewhere. None where there are no logs.
fn damaged(device: &Arc<Watched>) -> Option<Masked<Arc<Watched>>> {
    let rescue = Rescue::open(&**device, &Unwatched).ok()?;
    let g = rescue.geometry();
    let mut over = Vec::new();
    for log in rescue.survey.logs.iter().rev().step_by(3).take(MOST_HIT) {
        let block = (log.payload() + log.end()) / 2;
        let at = g.byte_of(BlockNr(block)) + u64::from(g.block_size) / 3;
        let mut byte = [0];
        if device.read_at(at, &mut byte).is_ok() {
            over.push((at, vec![byte[0] ^ 0x10]));
        }
    }
    (!over.is_empty()).then(|| Masked::new(device.clone(), over))
}

/// As [`rescue`] with logs that do not verify.
pub fn rescue_damaged(device: &Arc<Watched>, _: &mut Seen) {
    let Some(damaged) = damaged(device) else { return };
    if let Ok(rescue) = Rescue::open(&damaged, &Unwatched) {
        survey(&rescue);
    }
}

/// Copies the newest moment out.
pub fn copy_out(device: &Arc<Watched>, _: &mut Seen) {
    let Ok(rescue) = Rescue::open(&**device, &Unwatched) else { return };
    let Some(cno) = rescue.newest_readable(&Unwatched) else { return };
    let dir = in_memory().unwrap_or_else(|| tempfile::tempdir().expect("a directory for copies"));
    let _ = rescue.copy_out(cno, &dir.path().join("copy"), &Unwatched);
    clear(dir.path());
}

/// A directory on a file system in memory, where there is one: ten times as fast.
fn in_memory() -> Option<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm").ok()
}

/// Takes permissions back that would keep the directory from being removed by anybody but root.
fn clear(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let _ = std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700));
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            clear(&entry.path());
        }
    }
}

/// A scrub, and one of a copy with flipped bits.
pub fn scrub(device: &Arc<Watched>, seen: &mut Seen) {
    seen.scrubbed = scrubbed(&**device, &Options::default());
    if let Some(damaged) = damaged(device) {
        scrubbed(&damaged, &Options { live_only: true, changing: true });
    }
}

fn scrubbed(device: &dyn Device, options: &Options) -> bool {
    let mut state = State::new();
    let outcome = pass(device, options, &mut state, &Unpaced);
    for finding in &state.findings {
        let _ = finding.lines(state.block_size);
    }
    let _ = state.damaged();
    matches!(outcome, Ok(Outcome::Finished))
}

/// A repair, planned in memory and not done.
pub fn repair(device: &Arc<Watched>, seen: &mut Seen) {
    let options = silt_repair::Options {
        now: NOW,
        seed: 3,
        cache_bytes: CACHE,
        drop_snapshots: true,
        ..silt_repair::Options::default()
    };
    if let Ok(plan) = silt_repair::plan(device.clone(), &options) {
        seen.planned = true;
        let _ = (plan.is_empty(), plan.bytes());
    }
}
