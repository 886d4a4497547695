//! The cpfile: entries, counts and the list of snapshots (spec section 10).
//!
//! Memory: some 40 bytes a checkpoint.

use std::collections::BTreeMap;

use silt_format::checkpoint::{self, CpEntry, CpHeader, INVALID, MINOR, SKETCH, SNAPSHOT};
use silt_format::{BlockNr, Cno, Ino};

use crate::context::Context;
use crate::invariants as inv;
use crate::logs::Made;
use crate::report::Place;

/// Where the entries of checkpoints that exist lie, and whether they are snapshots.
#[derive(Default)]
pub(crate) struct Checkpoints {
    pub all: BTreeMap<u64, Slot>,
}

/// One checkpoint's slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub block: u64,
    pub byte: usize,
    pub snapshot: bool,
    next: u64,
    prev: u64,
}

impl Checkpoints {
    /// Reads a checkpoint's entry.
    pub fn entry(&self, c: &Context<'_>, cno: u64) -> Option<CpEntry> {
        let slot = self.all.get(&cno)?;
        let bytes = c.r.block(BlockNr(slot.block)).ok()?;
        checkpoint::entry(&bytes, slot.byte).ok()
    }
}

/// Reads and checks the cpfile; `blocks` are (file offset, disk block).
pub(crate) fn check(c: &Context<'_>, blocks: &[(u64, u64)], made: &Made) -> Checkpoints {
    let me = Place::ino(Ino::CPFILE.0);
    let mut header = None;
    let mut found = Checkpoints::default();
    for (offset, block) in blocks {
        let place = me.at_offset(*offset).at_block(*block);
        match c.r.block(BlockNr(*block)) {
            Ok(bytes) => {
                if *offset == 0 {
                    header = checkpoint::header(&bytes).ok();
                }
                check_block(c, *offset, *block, &bytes, place, made, &mut found);
            }
            Err(e) => c.out.add(&inv::DEVICE_READ, place, e),
        }
    }
    let nsnapshots = found.all.values().filter(|s| s.snapshot).count() as u64;
    c.out.stats(|s| (s.checkpoints, s.snapshots) = (found.all.len() as u64, nsnapshots));
    let Some(header) = header else {
        c.out.add(&inv::CP_BLOCK0, me.at_offset(0), "the first block is missing");
        return found;
    };
    let there = found.all.len() as u64;
    if header.ncheckpoints.get() != there {
        let message = format!("says {} checkpoints, {there} are", header.ncheckpoints);
        c.out.add(&inv::CP_COUNT, me.at_offset(0), message);
    }
    if header.nsnapshots.get() != nsnapshots {
        let message = format!("says {} snapshots, {nsnapshots} are", header.nsnapshots);
        c.out.add(&inv::CP_SNAPSHOT_COUNT, me.at_offset(0), message);
    }
    if !found.all.contains_key(&c.cno) {
        c.out.add(&inv::CP_LATEST, me.at_cno(c.cno), "the latest checkpoint has no entry");
    }
    check_list(c, &header, &found);
    found
}

fn check_block(
    c: &Context<'_>,
    offset: u64,
    block: u64,
    bytes: &[u8],
    place: Place,
    made: &Made,
    found: &mut Checkpoints,
) {
    let g = &c.r.g;
    let mut valid = 0u32;
    let mut claimed = 0;
    for slot in 0..checkpoint::per_block(g) {
        let byte = usize::try_from(slot).unwrap_or(0) * g.checkpoint_size as usize;
        let Ok(entry) = checkpoint::entry(bytes, byte) else { continue };
        if slot == 0 {
            claimed = entry.checkpoints_count.get();
        }
        let Some(Cno(cno)) = checkpoint::cno_at(g, offset, slot) else { continue };
        if entry.is_invalid() {
            continue;
        }
        valid += 1;
        check_entry(c, cno, &entry, place.at_cno(cno), made);
        if cno <= c.cno {
            let (next, prev) = (entry.list_next.get(), entry.list_prev.get());
            let snapshot = entry.is_snapshot();
            found.all.insert(cno, Slot { block, byte, snapshot, next, prev });
        }
    }
    if offset != 0 {
        if claimed != valid {
            let message = format!("counts {claimed} checkpoints in its block, {valid} are");
            c.out.add(&inv::CP_BLOCK_COUNT, place, message);
        }
        if valid == 0 {
            c.out.add(&inv::CP_EMPTY, place, "holds no checkpoint");
        }
    }
}

fn check_entry(c: &Context<'_>, cno: u64, e: &CpEntry, place: Place, made: &Made) {
    if e.cno.get() != cno {
        c.out.add(&inv::CP_CNO, place, format!("the entry has number {}", e.cno));
    }
    if cno > c.cno {
        c.out.add(&inv::CP_CNO, place, format!("the latest checkpoint is {}", c.cno));
        return;
    }
    let flags = e.flags.get();
    if flags & !(SNAPSHOT | INVALID | SKETCH | MINOR) != 0 {
        c.out.add(&inv::CP_FLAGS, place, format!("flags {flags:#x}"));
    }
    if !e.is_snapshot() && (e.list_next.get() != 0 || e.list_prev.get() != 0) {
        c.out.add(&inv::CP_LIST_FLAGS, place, "is no snapshot but has links to some");
    }
    if let Err(why) = e.ifile_inode.check_metadata("ifile") {
        c.out.add(&inv::CP_IFILE, place, why.to_string());
    }
    if let Some(birth) = made.get(&cno) {
        // The kernel leaves out logs that were written before the others were composed, and counts
        // those twice that it had to compose again.
        let found = e.nblk_inc.get();
        let wrong = birth.blocks.filter(|b| *b != found && c.options.strict);
        if let Some(blocks) = wrong.or((found < birth.least).then_some(birth.least)) {
            let message = format!("counts {found} blocks written, its logs have {blocks}");
            c.out.add(&inv::CP_NBLK_INC, place, message);
        }
        if flags & MINOR != 0 && birth.tree && birth.blocks.is_some() {
            c.out.add(&inv::CP_MINOR, place, "its logs hold blocks of files or of the ifile");
        }
        if birth.create != e.create.get() {
            let message = format!("made at {}, its log at {}", e.create, birth.create);
            c.out.add(&inv::CP_CREATE, place, message);
        }
    }
}

/// Walks the list upwards; the links down are compared on the way.
fn check_list(c: &Context<'_>, header: &CpHeader, found: &Checkpoints) {
    let (mut at, mut prev) = (header.list_next.get(), 0);
    let mut listed = 0u64;
    while at != 0 {
        let place = Place::ino(Ino::CPFILE.0).at_cno(at);
        if at <= prev {
            c.out.add(&inv::CP_LIST, place, format!("follows snapshot {prev} in the list"));
            return;
        }
        let Some(slot) = found.all.get(&at) else {
            c.out.add(&inv::CP_LIST, place, "is in the list but does not exist");
            return;
        };
        if !slot.snapshot {
            c.out.add(&inv::CP_LIST_FLAGS, place, "is in the list but is no snapshot");
        }
        if slot.prev != prev {
            let message = format!("its link down leads to {}, not to {prev}", slot.prev);
            c.out.add(&inv::CP_LIST, place, message);
        }
        listed += u64::from(slot.snapshot);
        (prev, at) = (at, slot.next);
    }
    let place = Place::ino(Ino::CPFILE.0).at_offset(0);
    if header.list_prev.get() != prev {
        let message = format!("the list ends with {prev}, its head says {}", header.list_prev);
        c.out.add(&inv::CP_LIST, place, message);
    }
    let flagged = found.all.values().filter(|s| s.snapshot).count() as u64;
    if flagged != listed {
        c.out.add(&inv::CP_LIST_FLAGS, place, format!("{flagged} snapshots, {listed} of them in the list"));
    }
}
