//! What nobody holds any more, and had no room to end; and what could not be read when it lost a name.

use crate::cleaning::let_run;
use crate::core::Core;

/// Ends as many of them as there is room for; all that there is where `urgent`, since nothing else will come. Whether any did.
pub fn end_late(core: &Core, urgent: bool) -> bool {
    let mut fs = core.fs.lock();
    if !fs.has_late() && !fs.has_unread() {
        return false;
    }
    let ended = fs.reap_late(urgent).unwrap_or_else(|e| {
        tracing::warn!("{e}");
        true
    });
    drop(fs);
    if ended {
        core.touched();
        // While nothing can be written it would be tried again and again.
        if core.stall().is_none() {
            let_run(core);
        }
    }
    ended
}
