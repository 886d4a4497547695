//! Whether segments lie where others should: a device that wrote to another address than it was told, a copy that was put
//! together in the wrong order. Every log of such a segment verifies, as its checksum does not cover its place, and what
//! the DAT has there is something else.
//!
//! A block in use has a record in the summary of its log (spec 13.4), so of each log both are counted: the blocks that
//! the DAT has in it, and the records of which the DAT has the place. The second are among the first; where they are
//! fewer, something lies there that the DAT does not mean. Only what verifies counts: the DAT's blocks, and logs in use.
//!
//! Memory: 8 bytes a log. Time: a pass over the DAT and one over all summaries.

use silt_format::BlockNr;
use silt_format::dat::DatEntry;
use silt_format::palloc::Kind;
use silt_format::summary::{self, BlockInfo};

use super::Rescue;
use super::records::summary_of;
use super::state::State;

/// Of one log.
#[derive(Clone, Copy, Default)]
struct Count {
    /// Blocks that the DAT has in it.
    claimed: u32,
    /// Records of which the DAT has the place.
    meant: u32,
}

/// Whether the DAT of the newest super root has blocks in logs that describe other ones.
pub(super) fn any(rescue: &Rescue<'_>) -> bool {
    let Some(state) = rescue.roots().first().and_then(|root| rescue.state(root).ok()) else { return false };
    let mut counts = vec![Count::default(); rescue.survey.logs.len()];
    claimed(rescue, &state, &mut counts);
    let g = rescue.geometry();
    for (i, count) in counts.iter_mut().enumerate().filter(|(_, count)| count.claimed > 0) {
        if rescue.watch.stop() {
            return false;
        }
        let Some(log) = rescue.survey.logs.get(i) else { continue };
        // What cannot be read is told elsewhere.
        let Some((h, bytes)) = summary_of(rescue.r.device, g, log) else { continue };
        let walked = summary::for_each_payload(g, &h, &bytes, |p| {
            let block = log.payload().saturating_add(u64::from(p.index));
            let meant = match p.info {
                BlockInfo::Data { vblock, .. } | BlockInfo::Node { vblock } => {
                    state.entry(vblock.0).is_some_and(|e| e.blocknr.get() == block)
                }
                BlockInfo::DatData { offset } => state.dat().get(&offset) == Some(&block),
                BlockInfo::DatNode { .. } => false,
            };
            count.meant = count.meant.saturating_add(u32::from(meant));
        });
        if walked.is_ok() && count.meant < count.claimed {
            return true;
        }
    }
    false
}

/// Counts the blocks that the DAT has in each log.
fn claimed(rescue: &Rescue<'_>, state: &State<'_, '_>, counts: &mut [Count]) {
    let mut claim = |block: u64| {
        let at =
            rescue.survey.index_at(block).filter(|i| rescue.survey.logs.get(*i).is_some_and(|l| !l.stale));
        if let Some(count) = at.and_then(|i| counts.get_mut(i)) {
            count.claimed = count.claimed.saturating_add(1);
        }
    };
    let g = rescue.geometry();
    let layout = silt_format::palloc::Layout::dat(g);
    for (offset, block) in state.dat() {
        claim(*block);
        let Kind::Entries { first } = layout.kind(*offset) else { continue };
        if !rescue.survey.is_sound(*block) {
            continue;
        }
        let Ok(bytes) = rescue.block(*block) else { continue };
        for slot in 0..=layout.last_of_block(first).saturating_sub(first) {
            let byte = layout.entry(first.saturating_add(slot)).byte;
            let Ok(entry) = DatEntry::read(&bytes, byte) else { continue };
            if entry.blocknr.get() != 0 && g.holds(BlockNr(entry.blocknr.get())) {
                claim(entry.blocknr.get());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use silt_device::{Device, MemoryDevice};
    use silt_format::{Geometry, SegNr};

    use super::*;
    use crate::surgeon::Surgeon;
    use crate::{Unwatched, golden};

    #[test]
    fn where_the_kernel_wrote_and_cleaned_nothing_is_misplaced() {
        for name in golden::NAMES.into_iter().chain(golden::WEDGED) {
            let s = Surgeon::golden(name);
            let rescue = Rescue::open(&s.device, &Unwatched).unwrap();
            assert!(!rescue.misplaced, "{name}");
            assert!(!rescue.needed_records(), "{name}");
        }
    }

    fn exchange(device: &MemoryDevice, g: &Geometry, a: SegNr, b: SegNr) {
        let first = g.segment_start(a).0;
        let len = (g.segment_end(a).0 - first).min(g.segment_end(b).0 - g.segment_start(b).0);
        let len = usize::try_from(len << g.block_bits).unwrap();
        let [a, b] = [first, g.segment_start(b).0].map(|block| g.byte_of(BlockNr(block)));
        let [mut one, mut other] = [vec![0; len], vec![0; len]];
        device.read_at(a, &mut one).unwrap();
        device.read_at(b, &mut other).unwrap();
        device.write_at(a, &[&other]).unwrap();
        device.write_at(b, &[&one]).unwrap();
    }

    /// Whichever two segments with blocks in use are exchanged.
    #[test]
    fn exchanged_segments_are_misplaced() {
        for name in ["basic-4k", "basic-1k", "gc-4k", "wrap-4k"] {
            let s = Surgeon::golden(name);
            let g = s.g();
            let before = Rescue::open(&s.device, &Unwatched).unwrap();
            let mut counts = vec![Count::default(); before.survey.logs.len()];
            claimed(&before, &before.state(&before.roots()[0]).unwrap(), &mut counts);
            let mut used: Vec<SegNr> = before
                .survey
                .logs
                .iter()
                .zip(&counts)
                .filter(|(_, n)| n.claimed > 0)
                .map(|(log, _)| g.segment_of(BlockNr(log.pos)))
                .filter(|s| s.0 > 0)
                .collect();
            used.dedup();
            assert!(used.len() > 1, "{name}");
            for (a, b) in used.iter().zip(used.iter().skip(1)) {
                exchange(&s.device, &g, *a, *b);
                let rescue = Rescue::open(&s.device, &Unwatched).unwrap();
                assert!(rescue.misplaced, "{name}: segments {a} and {b}");
                exchange(&s.device, &g, *a, *b);
            }
        }
    }
}
