//! Checks what the DAT and the ifile share: group descriptors against bitmaps (spec section 6).

use std::collections::{BTreeMap, HashMap};

use silt_format::BlockNr;
use silt_format::palloc::{Kind, Layout};

use crate::context::Context;
use crate::invariants as inv;
use crate::report::Place;
use crate::sparse::SparseBits;

/// Checks every group of an allocator file whose blocks lie at `blocks` (by file offset; only
/// possible keys) and adds the allocated entries to `allocated`.
pub(crate) fn check(
    c: &Context<'_>,
    layout: &Layout,
    blocks: &BTreeMap<u64, u64>,
    ino: u64,
    cno: Option<u64>,
    allocated: &mut SparseBits,
) {
    let place = Place { cno, ..Place::ino(ino) };
    let mut used: HashMap<u64, u64> = HashMap::new();
    let read = |offset: u64, block: u64| {
        c.r.block(BlockNr(block))
            .map_err(|e| c.out.add(&inv::DEVICE_READ, place.at_offset(offset).at_block(block), e))
            .ok()
    };
    for (offset, block) in blocks {
        let Kind::Bitmap { group } = layout.kind(*offset) else { continue };
        let Some(bytes) = read(*offset, *block) else { continue };
        let first = group * layout.entries_per_group();
        let mut ones = 0u64;
        for (i, word) in bytes.chunks_exact(8).enumerate() {
            let word = word.first_chunk().map_or(0, |w| u64::from_le_bytes(*w));
            ones += u64::from(word.count_ones());
            allocated.insert_word(first + i as u64 * 64, word);
        }
        used.insert(group, ones);
        let desc = layout.desc(group).0;
        if ones > 0 && !blocks.contains_key(&desc) {
            let message = format!("group {group} has {ones} entries but no descriptor");
            c.out.add(&inv::PALLOC_DESC, place.at_offset(desc), message);
        }
    }
    for (offset, block) in blocks {
        let Kind::Descriptor { first_group } = layout.kind(*offset) else { continue };
        let Some(bytes) = read(*offset, *block) else { continue };
        for (i, slot) in bytes.chunks_exact(4).enumerate() {
            let group = first_group + i as u64;
            let frees = u64::from(u32::from_le_bytes([slot[0], slot[1], slot[2], slot[3]]));
            let ones = used.get(&group).copied().unwrap_or(0);
            let expected = layout.entries_per_group() - ones;
            if frees != expected {
                let message = format!("group {group} claims {frees} free entries, {expected} are");
                c.out.add(&inv::PALLOC_FREES, place.at_offset(*offset).at_block(*block), message);
            }
        }
    }
}
