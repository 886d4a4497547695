//! Sound volumes that images are made from, each with its index.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use silt_device::{Device, MemoryDevice};
use silt_verify::golden;

use crate::index::Index;
use crate::make::RECIPES;
use crate::paths;
use crate::watched::Watched;

/// A sound volume.
pub struct Base {
    pub name: &'static str,
    pub device: MemoryDevice,
    pub index: Index,
}

/// Golden volumes that are small enough to be checked many times a second.
const GOLDEN: [&str; 4] = ["btree-1k", "dsync-1k", "gc-4k", "wrap-4k"];

static LOADED: Mutex<BTreeMap<&'static str, Arc<Base>>> = Mutex::new(BTreeMap::new());

/// Where the committed bases are.
pub fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("bases")
}

impl Base {
    /// All bases: those that [`crate::make`] made, then volumes that the real kernel wrote.
    pub fn names() -> impl Iterator<Item = &'static str> {
        RECIPES.iter().map(|r| r.name).chain(GOLDEN)
    }

    /// Loads a base once for the whole process. Panics where there is none of this name.
    pub fn get(name: &str) -> Arc<Base> {
        let name = Self::names().find(|n| *n == name).unwrap_or_else(|| panic!("no base {name}"));
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.entry(name).or_insert_with(|| Arc::new(Self::load(name))).clone()
    }

    fn load(name: &'static str) -> Base {
        let device = if GOLDEN.contains(&name) { golden::open(name) } else { unpack(&packed(name), name) };
        let watched = Arc::new(Watched::traced(device.fork()));
        paths::look(&watched, &mut paths::Seen::default());
        let index = Index::new(&device, &watched.read_units());
        Base { name, device, index }
    }

    /// Blocks of the volume.
    pub fn blocks(&self) -> u64 {
        self.device.len() >> self.index.g.block_bits
    }
}

fn packed(name: &str) -> Vec<u8> {
    let path = directory().join(format!("{name}.img.zst"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Unpacks what [`pack`] packed.
fn unpack(packed: &[u8], name: &str) -> MemoryDevice {
    let mut bytes = Vec::new();
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(packed).expect("a zstd stream");
    std::io::Read::read_to_end(&mut decoder, &mut bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
    MemoryDevice::from_bytes(&bytes)
}

/// Packs a volume.
pub fn pack(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(device.len()).expect("a small volume")];
    device.read_at(0, &mut bytes).expect("memory");
    ruzstd::encoding::compress_to_vec(&bytes[..], ruzstd::encoding::CompressionLevel::Fastest)
}
