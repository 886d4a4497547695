//! That nothing can be gained, and how long that is believed.

use std::time::Instant;

use silt_engine::Volume;

/// After so many bytes were written, what they took the place of is worth a pass even if nothing was given up; of a
/// small volume after this part, but a segment at least.
const REWRITTEN: u64 = 64 << 20;
const REWRITTEN_PART: u64 = 64;
/// Blocks that a change takes besides its data at most.
pub const BESIDES: u64 = 16;

/// Since when nothing can be gained.
#[derive(Debug, Clone, Copy)]
pub struct Nothing {
    pub then: silt_engine::GivenUp,
    /// What checkpoints had rewritten then, in blocks.
    pub rewritten: u64,
    /// Until then it is believed even if a little is given up, as long as nobody who takes space is refused for it.
    pub until: Instant,
    /// It was tried and failed: what kept it may be over by then.
    pub failed: bool,
    /// By then the floor keeps less: moments grow older.
    pub ages: Option<Instant>,
}

impl Nothing {
    /// Whether less is kept by now.
    pub fn has_aged(&self) -> bool {
        self.ages.is_some_and(|then| Instant::now() >= then)
    }

    /// Whether it is still believed, when so many blocks are asked for.
    pub fn holds(&self, volume: &Volume, blocks: u64) -> bool {
        if self.has_aged() || (self.failed && Instant::now() >= self.until) {
            return false;
        }
        let now = volume.given_up();
        let g = volume.geometry();
        let segment = u64::from(g.blocks_per_segment);
        let part = g.nsegments.saturating_mul(segment) / REWRITTEN_PART;
        // What was in the place of that can be reclaimed.
        let much = segment.max(part.min(REWRITTEN / u64::from(g.block_size)));
        if volume.rewritten_blocks().saturating_sub(self.rewritten) >= much {
            return false;
        }
        now == self.then
            || (now.blocks.saturating_sub(self.then.blocks) < segment
                && Instant::now() < self.until
                && (blocks == 0 || volume.check_space(blocks + BESIDES).is_ok()))
    }
}
