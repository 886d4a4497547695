//! What is read while others wait for the volume, where nothing of it is in memory.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use silt_cleaner::{Access, Moments, account, count};
use silt_device::{Capabilities, Device, Kind, MemoryDevice, Result};
use silt_engine::mkfs::Parameters;
use silt_engine::{OpenOptions, Volume};
use silt_retention::{Ladder, Wish};

use crate::common::{self, file};

/// What was read so far is at hand; how often something was not since somebody asked, and whether he has the volume.
#[derive(Default)]
struct Reads {
    at_hand: BTreeSet<u64>,
    cold: usize,
    is_held: bool,
}

struct Cold(Arc<MemoryDevice>, Mutex<Reads>);

impl Cold {
    fn take(&self, offset: u64) {
        let mut reads = self.1.lock().unwrap();
        let is_cold = reads.at_hand.insert(offset);
        reads.cold += usize::from(is_cold && reads.is_held);
    }
}

impl Device for Cold {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.take(offset);
        self.0.read_at(offset, buf)
    }
    fn read_kind(&self, _: Kind, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_at(offset, buf)
    }
    fn bring(&self, offsets: &[u64], _: usize) {
        assert!(offsets.is_sorted() && !self.1.lock().unwrap().is_held);
        offsets.iter().for_each(|at| self.take(*at));
    }
    fn write_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        self.0.write_at(offset, bufs)
    }
    fn flush(&self) -> Result<()> {
        self.0.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.0.discard(offset, len)
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
}

/// The volume, and how many reads each had to wait for who had it.
struct Held {
    volume: RefCell<Volume>,
    device: Arc<Cold>,
    waited: RefCell<Vec<usize>>,
}

impl Access for Held {
    fn with<R>(&self, f: impl FnOnce(&mut Volume) -> R) -> silt_engine::Result<R> {
        {
            let mut reads = self.device.1.lock().unwrap();
            (reads.is_held, reads.cold) = (true, 0);
        }
        let result = f(&mut self.volume.borrow_mut());
        let mut reads = self.device.1.lock().unwrap();
        reads.is_held = false;
        self.waited.borrow_mut().push(reads.cold);
        Ok(result)
    }
}

/// A volume with some 300 blocks of DAT, none of them in memory.
fn cold() -> Held {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let parameters = Parameters { block_size: 1024, blocks_per_segment: 256, ..Parameters::default() };
    let mut v = common::volume(&device, parameters);
    let ino = file(&mut v);
    for n in 0..20 {
        (0..480).for_each(|key| v.write_block(ino, n * 480 + key, vec![7; 1024].into()).unwrap());
        v.checkpoint(3000 + n).unwrap();
    }
    v.close(4000).unwrap();
    drop(v);
    let device = Arc::new(Cold(device, Mutex::default()));
    let (volume, _) = Volume::open(device.clone(), &OpenOptions::default()).unwrap();
    Held { volume: RefCell::new(volume), device, waited: RefCell::default() }
}

#[test]
fn nobody_waits_for_the_blocks_that_are_counted() {
    let held = cold();
    let keep = held.volume.borrow().keep(None).unwrap();
    let usage = count(&held, keep).unwrap();
    assert!(usage.is_complete() && usage.damaged() == 0);
    let waited = held.waited.take();
    // Nodes of the map.
    assert!(waited.len() > 18 && waited.iter().all(|n| *n <= 3), "{waited:?}");

    let held = cold();
    let (everything, nothing) = (Wish::everything(), Wish::nothing());
    let moments = Moments::read(&held, &Ladder::new(&everything, &nothing), 5000).unwrap();
    held.waited.take();
    account(&held, moments, |_| true).unwrap().unwrap();
    let waited = held.waited.take();
    // The other tables are small here.
    assert!(waited.len() > 18 && waited.iter().all(|n| *n <= 6), "{waited:?}");
}
