//! Whose the block device is once the session on a `fuseblk` mount has ended.
//!
//! The mount held the kernel's claim for us. At an unmount it does so until we have answered; where the connection was
//! aborted, or the unmount forced, the mount may be gone, and the device free for everybody, while the last checkpoint
//! is still to be written. Another Silt is kept out by the lock on the node, which stays ours.

use std::thread::sleep;
use std::time::{Duration, Instant};

use silt_device::{FileDevice, usage};
use silt_fuse::open_abort;

use crate::first::First;

/// A forced unmount aborts first, and the mount goes a moment later.
const GOING: Duration = Duration::from_secs(1);
/// For so long the kernel may take to let go of it then.
const LETTING_GO: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Takes the claim back after a session that ended without being asked, unless the mount has it still. The error says who
/// has the device now: nothing of ours may be written any more. Nothing may be written meanwhile, either.
pub fn take_back(device: &FileDevice, first: &First) -> Result<(), silt_device::Error> {
    let begin = Instant::now();
    loop {
        let Err(taken) = device.claim_again() else { return Ok(()) };
        if first.is_anywhere() {
            if begin.elapsed() > GOING {
                return Ok(());
            }
        } else {
            // Ours may have gone just now.
            match usage(device.open_path()) {
                Ok(Some(_)) if !first.is_anywhere() && begin.elapsed() > GOING => return Err(taken),
                Ok(None) if is_there_out_of_sight(first) => return Ok(()),
                _ if begin.elapsed() > GOING + LETTING_GO => return Err(taken),
                _ => {}
            }
        }
        sleep(PAUSE);
    }
}

/// A mount that is nowhere to be seen lasts as long as programs have files open in it, and so does its claim.
fn is_there_out_of_sight(first: &First) -> bool {
    first.connection().flatten().is_some_and(|number| open_abort(number).is_ok())
}
