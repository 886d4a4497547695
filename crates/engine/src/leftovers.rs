//! What a construction that is complete leaves behind: content that lies on the device now, and memory that nobody uses.
//!
//! To give it back takes a processor a millisecond for some thousand blocks. Nobody else can do anything meanwhile if that
//! happens under the volume's lock, so it is kept until somebody takes it.

use crate::Volume;

/// See the module. Dropped where nobody waits.
#[derive(Default)]
#[must_use]
pub struct Leftovers(Vec<Box<dyn Send + Sync>>);

impl Leftovers {
    /// This is wanted no more.
    pub(crate) fn add(&mut self, what: impl Send + Sync + 'static) {
        self.0.push(Box::new(what));
    }

    /// Whether nothing was left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
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

    use crate::fresh::{file, fresh, write_out};

    #[test]
    fn content_outlives_its_construction_until_it_is_taken() {
        let (device, mut v) = fresh(64 << 20, 64);
        let ino = file(&mut v);
        let mut left = Vec::new();
        for second in [3000, 4000] {
            v.write_block(ino, 0, vec![7; v.geometry().bs()].into()).unwrap();
            assert!(v.begin_checkpoint(second).unwrap());
            write_out(&device, &mut v);
            left.push(v.leftovers.0.len());
        }
        assert!(left[0] > 0 && left[0] == left[1], "of one construction alone: {left:?}");
        drop(v.take_leftovers());
        assert!(v.leftovers.is_empty());
        v.write_block(ino, 0, vec![8; v.geometry().bs()].into()).unwrap();
        v.checkpoint(5000).unwrap();
        assert!(v.leftovers.is_empty(), "who finishes it alone has nobody to take them");
    }
}
