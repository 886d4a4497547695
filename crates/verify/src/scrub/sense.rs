//! Whether a block of a log can be what its record says: what a damaged block often cannot.

use silt_format::dat::{DatEntry, LIVE};
use silt_format::palloc::{Kind, Layout};
use silt_format::segment_usage::{self, ACTIVE, DIRTY, ERROR, SuEntry};
use silt_format::{BlockNr, Geometry, SegNr, btree, checkpoint, dir};

use crate::records::Record;

/// Why a block makes no sense, if it makes none. `directory`: the file is one.
pub(crate) fn objection(
    g: &Geometry,
    ino: u64,
    record: Record,
    directory: bool,
    block: &[u8],
) -> Option<String> {
    match record {
        Record::Node { .. } => btree::check_node(block, None).err().map(|e| e.to_string()),
        Record::DatNode { level, .. } => btree::check_node(block, Some(level)).err().map(|e| e.to_string()),
        Record::DatData { offset } => dat(g, offset, block),
        Record::Data { offset, .. } if ino == 4 => cpfile(g, offset, block),
        Record::Data { offset, .. } if ino == 5 => sufile(g, offset, block),
        Record::Data { .. } if directory => dir::check(block).err().map(|e| e.to_string()),
        Record::Data { .. } => None,
    }
}

fn dat(g: &Geometry, offset: u64, block: &[u8]) -> Option<String> {
    let layout = Layout::dat(g);
    let Kind::Entries { first } = layout.kind(offset) else { return None };
    for (i, bytes) in block.chunks_exact(g.dat_entry_size as usize).enumerate() {
        let entry = DatEntry::read(bytes, 0).ok()?;
        let (nr, start, end) = (entry.blocknr.get(), entry.start.get(), entry.end.get());
        let v = first.saturating_add(i as u64);
        if nr != 0 && !g.holds(BlockNr(nr)) {
            return Some(format!("virtual block {v} lies at block {nr}, outside the volume"));
        }
        if end != LIVE && start > end {
            return Some(format!("virtual block {v} lives from {start} to {end}"));
        }
    }
    None
}

fn cpfile(g: &Geometry, offset: u64, block: &[u8]) -> Option<String> {
    for slot in 0..checkpoint::per_block(g) {
        let byte = usize::try_from(slot).ok()? * g.checkpoint_size as usize;
        let (Ok(entry), Some(cno)) = (checkpoint::entry(block, byte), checkpoint::cno_at(g, offset, slot))
        else {
            continue;
        };
        if !entry.is_invalid() && entry.cno.get() != cno.0 {
            return Some(format!("the entry of checkpoint {cno} has number {}", entry.cno));
        }
    }
    None
}

fn sufile(g: &Geometry, offset: u64, block: &[u8]) -> Option<String> {
    let per_block = segment_usage::per_block(g);
    for slot in 0..per_block {
        let index = offset.checked_mul(per_block).and_then(|i| i.checked_add(slot));
        let segment = index.and_then(|i| i.checked_sub(segment_usage::first_offset(g)));
        // Behind the last segment there may be anything.
        let Some(segment) = segment.filter(|n| *n < g.nsegments) else { continue };
        let byte = usize::try_from(slot).ok()? * g.segment_usage_size as usize;
        let Ok(entry) = SuEntry::read(block, byte) else { continue };
        let (flags, written) = (entry.flags.get(), entry.nblocks.get());
        if flags & !(ACTIVE | DIRTY | ERROR) != 0 {
            return Some(format!("the entry of segment {segment} has unknown flags, {flags:#x}"));
        }
        let blocks = g.segment_blocks(SegNr(segment));
        if u64::from(written) > blocks {
            return Some(format!(
                "the entry of segment {segment} says {written} of {blocks} blocks are written"
            ));
        }
    }
    None
}
