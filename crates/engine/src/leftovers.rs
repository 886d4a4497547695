//! What a construction that is complete leaves behind: content that lies on the device now, and memory that nobody uses.
//!
//! To give it back takes a processor a millisecond for some thousand blocks. Nobody else can do anything meanwhile if that
//! happens under the volume's lock, so it is kept until somebody takes it.

use hashbrown::HashMap;

use crate::Volume;
use crate::block::Block;
use crate::inode::Overlay;
use crate::slabs::Free;

/// See the module. Dropped where nobody waits.
#[derive(Default)]
#[must_use]
#[allow(dead_code)] // what is here is to be dropped, and nothing else
pub struct Leftovers {
    pub(crate) overlays: Vec<Overlay>,
    pub(crate) moved: HashMap<u64, Block>,
    pub(crate) slabs: Free,
}

impl Volume {
    /// What the last construction left. What nobody takes is dropped when the next one is complete.
    pub fn take_leftovers(&mut self) -> Leftovers {
        std::mem::take(&mut self.leftovers)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use silt_format::Ino;

    use crate::fresh::fresh;
    use crate::{Attr, Step, Time};

    #[test]
    fn content_outlives_its_construction_until_it_is_taken() {
        let (device, mut v) = fresh(64 << 20, 64);
        let attr = Attr {
            mode: 0o100_644,
            links: 1,
            mtime: Time::default(),
            ..v.inode(crate::Tree::Live, Ino::ROOT).unwrap().attr.clone()
        };
        let ino = v.create_inode(attr).unwrap();
        for now in [3000, 4000] {
            let content: crate::Block = vec![7; v.geometry().bs()].into();
            v.write_block(ino, 0, content).unwrap();
            assert!(v.begin_checkpoint(now).unwrap());
            loop {
                match v.step(50).unwrap() {
                    Step::Write(mut log) => {
                        log.seal();
                        log.write(&*device).unwrap();
                        v.log_written();
                    }
                    Step::Done(_) => break,
                    _ => {}
                }
            }
            let blocks =
                |v: &crate::Volume| v.leftovers.overlays.iter().map(|o| o.blocks.len()).sum::<usize>();
            assert_eq!(blocks(&v), 1, "of this construction alone");
            if now == 4000 {
                drop(v.take_leftovers());
                assert_eq!(blocks(&v), 0);
            }
        }
        v.write_block(ino, 0, vec![8; v.geometry().bs()].into()).unwrap();
        v.checkpoint(5000).unwrap();
        assert!(v.leftovers.overlays.is_empty(), "who finishes it alone has nobody to take them");
    }
}
