//! Blocks that are damaged where they lie and of which a whole copy is left elsewhere: where a cleaner moved them from
//! (format 13.4), in a segment that was not written again since.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use silt_format::dat::DatEntry;
use silt_format::summary::{BlockInfo, SYNDT};
use silt_format::{BlockNr, Ino, SegNr};

use super::bits::Bits;
use super::moves::Moved;
use crate::Result;
use crate::verify_log::{LogState, Verifier};
use crate::volume::Volume;

/// A place where a block lay once.
#[derive(Clone, Copy)]
struct Copy {
    seq: u64,
    at: u64,
    ino: Ino,
    offset: Option<u64>,
    cno: u64,
    /// Written there first, by its own checkpoint, and not moved.
    original: bool,
    /// In a log of synced data.
    synced: bool,
}

/// Copies of one block that are remembered.
const COPIES: usize = 8;

impl Volume {
    /// Blocks of these segments that do not verify where they lie, or are not there, as whole copies elsewhere have them;
    /// they have to be moved. A version of a block has its number for itself, so every copy has its bytes (format 7), but what
    /// was synced and written again before the checkpoint was complete.
    /// Memory: their content, and some 50 bytes for each block of the segments and each of its copies.
    pub(crate) fn whole_copies(
        &self,
        segments: &BTreeSet<u64>,
        end_of_log: (SegNr, u64),
    ) -> Result<Vec<Moved>> {
        let g = self.store.geometry;
        let mut wanted = Bits::default();
        let mut places: Vec<(u64, DatEntry)> = Vec::new();
        self.each_entry(|v, e| {
            let at = BlockNr(e.blocknr.get());
            if v != 0 && g.holds(at) && segments.contains(&g.segment_of(at).0) && wanted.insert(v) {
                places.push((v, *e));
            }
        })?;
        let mut copies: HashMap<u64, Vec<Copy>> = HashMap::new();
        self.each_record(end_of_log, |log, p, at| {
            let (v, offset) = match p.info {
                BlockInfo::Data { vblock, offset } => (vblock.0, Some(offset)),
                BlockInfo::Node { vblock } => (vblock.0, None),
                _ => return,
            };
            // What has one version only is written again and again under its number.
            if wanted.contains(v) && p.ino > Ino::SUFILE {
                let known = copies.entry(v).or_default();
                if known.len() < COPIES {
                    known.push(Copy {
                        seq: log.header.seq.get(),
                        at,
                        ino: p.ino,
                        offset,
                        cno: p.cno.0,
                        original: log.header.cno.get() == p.cno.0,
                        synced: log.header.has(SYNDT),
                    });
                }
            }
        });
        let verifier = Verifier::new(self.store.device.clone(), g);
        let whole = |at: u64| verifier.verify(BlockNr(at)).1 == LogState::Whole;
        let mut moved = Vec::new();
        for (v, e) in places {
            let (here, start) = (e.blocknr.get(), e.start.get());
            let Some(all) = copies.get_mut(&v) else { continue };
            all.retain(|c| c.cno == start);
            let known = all.iter().any(|c| c.at == here);
            let newest = all.iter().filter(|c| c.original).map(|c| (c.seq, c.at)).max();
            all.retain(|c| !c.original || (Some((c.seq, c.at)) == newest && (known || !c.synced)));
            if all.iter().any(|c| c.at == here) && whole(here) {
                continue;
            }
            all.sort_unstable_by_key(|c| std::cmp::Reverse((c.seq, c.at)));
            let Some(copy) = all.iter().find(|c| c.at != here && whole(c.at)) else { continue };
            let Ok(bytes) = self.store.read(silt_device::Kind::Data, BlockNr(copy.at)) else { continue };
            moved.push(Moved { v, ino: copy.ino, offset: copy.offset, bytes });
        }
        Ok(moved)
    }
}
