//! How many segments are clean, and how many of those can be written now.

use crate::volume::Volume;

impl Volume {
    /// Clean segments in blocks.
    pub fn free_blocks(&self) -> u64 {
        self.sufile.clean().saturating_mul(u64::from(self.store.geometry.blocks_per_segment))
    }

    /// Clean segments that may be written now, or once those are done who read at places that they learned before
    /// ([`Volume::guard`]).
    pub fn available_when_read(&mut self) -> u64 {
        self.store.held.release();
        let read = self.store.held.read();
        // What was freed and is still to be asked for below is taken for there: else a cleaner that came to that finds nothing.
        let asked_for = self.store.held.backed.as_ref().map_or(0, |b| b.unasked());
        let most = self.most_backed().saturating_add(read).saturating_add(asked_for);
        self.handed_out_but(self.store.held.len().saturating_sub(read)).min(most)
    }

    /// Clean segments that may be written now.
    pub fn available_segments(&self) -> u64 {
        self.clean_and_free().min(self.most_backed())
    }

    /// Clean segments that nobody keeps from being written, whether or not the storage below has space for them.
    pub(crate) fn clean_and_free(&self) -> u64 {
        // Those behind a limit may be held besides: then there are more than this says.
        self.handed_out_but(self.store.held.len())
    }

    fn most_backed(&self) -> u64 {
        let backed = self.store.held.backed.as_ref();
        backed.and_then(|b| b.most(self.sufile.confined().0)).unwrap_or(u64::MAX)
    }

    /// Clean segments that can be handed out, when so many are held back besides.
    fn handed_out_but(&self, held: u64) -> u64 {
        let kept = held.saturating_add(self.sufile.beyond()).saturating_add(self.sufile.passed_over());
        self.sufile.clean().saturating_sub(kept)
    }
}
