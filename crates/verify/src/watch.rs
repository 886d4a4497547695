//! Who is told how far long work has come.

/// Told of the stages of long work, and asked whether to go on.
pub trait Watch: Sync {
    /// A stage begins: what is done, in a few words, and how many units it has at most (0: unknown).
    fn stage(&self, what: &'static str, total: u64) {
        let _ = (what, total);
    }
    /// So many more units of the stage are done. Called often: cheap.
    fn done(&self, units: u64) {
        let _ = units;
    }
    /// Whether to end early, with what is known so far.
    fn stop(&self) -> bool {
        false
    }
}

/// Nobody watches, and nothing ends early.
pub struct Unwatched;

impl Watch for Unwatched {}

/// Both are told; either may end the work.
impl<A: Watch, B: Watch> Watch for (A, B) {
    fn stage(&self, what: &'static str, total: u64) {
        self.0.stage(what, total);
        self.1.stage(what, total);
    }
    fn done(&self, units: u64) {
        self.0.done(units);
        self.1.done(units);
    }
    fn stop(&self) -> bool {
        self.0.stop() || self.1.stop()
    }
}
