//! Whose the block device is once the session on a `fuseblk` mount has ended.
//!
//! The mount held the kernel's claim for us. At an unmount it does so until we have answered; where the connection was
//! aborted, or the unmount forced, the mount may be gone, and the device free for everybody, while the last checkpoint
//! is still to be written. Another Silt is kept out by the lock on the node, which stays ours.

use std::thread::sleep;
use std::time::{Duration, Instant};

use silt_device::{FileDevice, usage};
use silt_fuse::{Unmount, open_abort};

use crate::first::First;

/// A forced unmount aborts first, and the mount goes a moment later.
const GOING: Duration = Duration::from_secs(1);
/// For so long the kernel may take to let go of it then.
const LETTING_GO: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Takes the claim back after a session that ended without being asked. Where the mount is there still, it is unmounted:
/// it answers nobody. The error says who has the device now: nothing of ours may be written any more.
pub fn take_back(device: &FileDevice, first: &First) -> Result<(), silt_device::Error> {
    let begin = Instant::now();
    let mut asked = false;
    loop {
        let Err(taken) = device.claim_again() else { return Ok(()) };
        if first.is_mounted() {
            if !asked && begin.elapsed() > GOING {
                asked = true;
                if let Err(e) = first.unmount(Unmount::Lazy) {
                    tracing::warn!("{e}");
                }
            }
        } else if is_held_out_of_sight(device, first) {
            return Ok(());
        }
        if begin.elapsed() > GOING + LETTING_GO {
            return Err(taken);
        }
        sleep(PAUSE);
    }
}

/// Out of sight a mount lasts as long as programs have files open in it, and so does its claim.
fn is_held_out_of_sight(device: &FileDevice, first: &First) -> bool {
    let lasts = || first.connection().flatten().is_some_and(|number| open_abort(number).is_ok());
    matches!(usage(device.open_path()), Ok(None)) && lasts()
}
