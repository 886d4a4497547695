//! Blocks that a device has put in each other's place.

use silt_verify::surgeon::{Sums, Surgeon};

use crate::common::{mends, say, unmounted};

/// The first blocks of two directories, of which no checkpoint but the newest has the names: "." says whose they are.
#[test]
fn exchanged_blocks_of_directories_go_back() {
    for name in ["basic-4k", "basic-1k"] {
        let mut s = Surgeon::golden(name);
        unmounted(&mut s);
        let (one, other) = (s.file(s.ino("d"))[&0], s.file(s.ino("moved"))[&0]);
        // Names that are not in older versions.
        for block in [one, other] {
            s.patch(block, |b| {
                let at = b.iter().rposition(|byte| byte.is_ascii_alphabetic()).unwrap();
                b[at] = b'#';
            });
        }
        let sound = s.device.fork();
        let (was_one, was_other) = (s.read(one), s.read(other));
        s.patch_with(one, Sums::None, |b| b.copy_from_slice(&was_other));
        s.patch_with(other, Sums::None, |b| b.copy_from_slice(&was_one));
        let made = mends(&sound, &s.device).unwrap();
        assert!(made.missing.is_empty(), "{name}: {:?}\n{}", made.missing, say(&made.plan));
    }
}
