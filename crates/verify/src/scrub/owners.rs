//! Whose the blocks of a log are: from the records of its summary, or, where that is lost, from the maps of the newest
//! tree.

use std::collections::BTreeMap;

use silt_format::palloc::{Kind as PallocKind, Layout};
use silt_format::{Ino, checkpoint, segment_usage};

use crate::files;
use crate::records::Record;
use crate::scrub::finding::{Finding, Owner, Part, SUSPECTS, Spot};
use crate::scrub::view::View;
use crate::tree::Tree;

/// Who needs the block of a record, if anybody does.
pub(crate) fn of_record(view: &View<'_>, ino: u64, record: Record, block: u64) -> Option<Owner> {
    let owner =
        |part, first, since, until| Owner { inode: ino, path: None, part, first, blocks: 1, since, until };
    let (vblock, part, first) = match record {
        Record::Data { vblock, offset } => (vblock, Part::Data, offset),
        Record::Node { vblock } => (vblock, Part::Map, 0),
        Record::DatData { offset } => {
            let is = view.dat.blocks.get(&offset) == Some(&block);
            return is.then(|| owner(Part::Data, offset, 0, None));
        }
        Record::DatNode { .. } => {
            return view.dat.nodes.contains_key(&block).then(|| owner(Part::Map, 0, 0, None));
        }
    };
    if view.is_behind(block) {
        // Synced data, which the table of block addresses does not know yet.
        let since = view.cno.saturating_add(1);
        return matches!(record, Record::Data { .. }).then(|| owner(part, first, since, None));
    }
    let entry = view.dat.entry(&view.r, vblock).ok().flatten()?;
    let is = entry.blocknr.get() == block
        && view.is_kept(&entry)
        && view.dat.is_allocated(&view.r, vblock).unwrap_or(false);
    let end = entry.end.get();
    is.then(|| owner(part, first, entry.start.get(), (end != silt_format::dat::LIVE).then_some(end)))
}

/// Fills in what lies at a byte of a payload block.
pub(crate) fn describe(view: &View<'_>, spot: &mut Spot, ino: u64, record: Record) {
    let g = &view.r.g;
    let byte = u64::from(spot.byte);
    spot.owner = of_record(view, ino, record, spot.block);
    spot.unused = spot.owner.is_none();
    let offset = match record {
        Record::Node { .. } | Record::DatNode { .. } => {
            spot.what = "a node of the map".to_owned();
            return;
        }
        Record::Data { offset, .. } | Record::DatData { offset } => offset,
    };
    spot.what = match ino {
        3 => in_allocator(Layout::dat(g), offset, byte, u64::from(g.dat_entry_size))
            .map_or_else(|| "a bitmap or count".to_owned(), |v| format!("the entry of virtual block {v}")),
        6 => match in_allocator(Layout::ifile(g), offset, byte, u64::from(g.inode_size)) {
            Some(inode) => {
                spot.entry_of = Some(inode);
                format!("the entry of inode {inode}")
            }
            None => "a bitmap or count".to_owned(),
        },
        4 => checkpoint::cno_at(g, offset, byte / u64::from(g.checkpoint_size))
            .map_or_else(|| "the header".to_owned(), |cno| format!("the entry of checkpoint {cno}")),
        5 => offset
            .checked_mul(segment_usage::per_block(g))
            .and_then(|i| i.checked_add(byte / u64::from(g.segment_usage_size)))
            .and_then(|i| i.checked_sub(segment_usage::first_offset(g)))
            .map_or_else(|| "the header".to_owned(), |segment| format!("the entry of segment {segment}")),
        _ => "content".to_owned(),
    };
    spot.file_byte = offset.checked_mul(u64::from(g.block_size)).and_then(|at| at.checked_add(byte));
}

/// The entry of an allocator file that a byte of a block belongs to.
fn in_allocator(layout: Layout, offset: u64, byte: u64, size: u64) -> Option<u64> {
    match layout.kind(offset) {
        PallocKind::Entries { first } => first.checked_add(byte / size),
        _ => None,
    }
}

/// Owners put together: ranges that follow one another become one.
#[derive(Default)]
pub(crate) struct Owners {
    pub list: Vec<Owner>,
    pub left_out: u64,
}

impl Owners {
    pub fn add(&mut self, owner: Owner) {
        if let Some(last) = self.list.last_mut() {
            let same = (last.inode, last.part, last.since, last.until)
                == (owner.inode, owner.part, owner.since, owner.until);
            let follows = owner.part == Part::Map || last.first.checked_add(last.blocks) == Some(owner.first);
            if same && follows {
                last.blocks += owner.blocks;
                return;
            }
        }
        if self.list.len() < SUSPECTS {
            self.list.push(owner);
        } else {
            self.left_out += 1;
        }
    }
}

/// Finds owners of needed blocks of logs whose records are lost, in one walk over the maps of the newest tree. What no map
/// has stays unknown.
pub(crate) fn of_lost_records(view: &View<'_>, tree: Option<&Tree<'_>>, findings: &mut [Finding]) {
    let lost = |f: &Finding| f.records_lost && f.suspects.is_empty() && f.unknown > 0;
    // By the first block: (last block, index).
    let ranges: BTreeMap<u64, (u64, usize)> = findings
        .iter()
        .enumerate()
        .filter(|(_, f)| lost(f))
        .map(|(i, f)| (f.log, (f.log + f.blocks.saturating_sub(1), i)))
        .collect();
    if ranges.is_empty() {
        return;
    }
    let of = |block: u64| {
        let (_, (last, i)) = ranges.range(..=block).next_back()?;
        (block <= *last && view.needed.contains(block)).then_some(*i)
    };
    let mut owners: BTreeMap<usize, (Owners, u64)> = BTreeMap::new();
    let mut add = |block: u64, inode: u64, part: Part, first: u64| {
        if let Some(i) = of(block) {
            let (list, known) = owners.entry(i).or_default();
            list.add(Owner { inode, path: None, part, first, blocks: 1, since: 0, until: None });
            *known += 1;
        }
    };
    view.dat.blocks.iter().for_each(|(offset, block)| add(*block, Ino::DAT.0, Part::Data, *offset));
    view.dat.nodes.keys().for_each(|block| add(*block, Ino::DAT.0, Part::Map, 0));
    for (ino, inode) in [(Ino::CPFILE.0, &view.root.cpfile), (Ino::SUFILE.0, &view.root.sufile)] {
        files::plain(&view.r, &view.dat, inode).0.iter().for_each(|(o, b)| add(*b, ino, Part::Data, *o));
    }
    if let Some(tree) = tree {
        tree.ifile.iter().for_each(|(offset, block)| add(*block, Ino::IFILE.0, Part::Data, *offset));
        for offset in tree.ifile.keys() {
            let PallocKind::Entries { first } = tree.layout.kind(*offset) else { continue };
            for ino in (first..).take(usize::try_from(tree.layout.entries_per_block()).unwrap_or(0)) {
                let Ok(raw) = tree.inode(ino) else { continue };
                if raw.has_map() {
                    files::plain(&tree.r, &tree.dat, &raw)
                        .0
                        .iter()
                        .for_each(|(o, b)| add(*b, ino, Part::Data, *o));
                }
            }
        }
    }
    for (i, (list, known)) in owners {
        if let Some(finding) = findings.get_mut(i) {
            finding.unknown = finding.unknown.saturating_sub(known);
            (finding.suspects, finding.suspects_left_out) = (list.list, list.left_out);
        }
    }
}
