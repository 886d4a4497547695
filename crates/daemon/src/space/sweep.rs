//! When it is worth looking for segments that hold hardly anything needed.

use silt_engine::Volume;

/// After so many segments, or this part of the volume, it is worth looking for segments that are empty; and after up to so
/// many times twice as much, where there were none.
const SWEEP: u64 = 2;
const SWEEP_PART: u64 = 64;
const SWEEP_DOUBLED: u32 = 4;

/// When it was last looked for segments that cost nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sweep {
    /// What checkpoints had rewritten then, in blocks.
    rewritten: u64,
    /// So many times in a row hardly any was found.
    in_vain: u32,
}

impl Sweep {
    /// Whether so much was rewritten since that there may be some: the more, the more often there were none.
    pub fn is_due(&self, volume: &Volume) -> bool {
        let g = volume.geometry();
        let segments = SWEEP.max(g.nsegments / SWEEP_PART) << self.in_vain.min(SWEEP_DOUBLED);
        let much = segments.saturating_mul(u64::from(g.blocks_per_segment));
        volume.rewritten_blocks().saturating_sub(self.rewritten) >= much
    }

    /// It was looked for some when so many blocks were rewritten.
    pub fn looked(&mut self, rewritten: u64, in_vain: bool) {
        let in_vain = if in_vain { self.in_vain.saturating_add(1) } else { 0 };
        *self = Sweep { rewritten, in_vain };
    }
}
