//! Any stack of wrappers over any backend behaves as a flat run of bytes.

#![allow(clippy::unwrap_used, clippy::panic)] // tests: a surprise is a failure

use std::sync::Arc;

use proptest::prelude::*;
use silt_device::{
    Access, Content, Counter, Device, Disk, Event, Fault, MemoryDevice, Mode, OpenOptions, Recorder,
    Throttle, create_image, open,
};

/// Not a multiple of a page or a sector, and longer than a chunk of the memory device.
const SIZE: u64 = 9 * 64 * 1024 + 777;
/// From here on requests to a file go past the page cache.
const LARGE: usize = 256 * 1024;

#[derive(Debug, Clone, Copy)]
enum Backend {
    Memory,
    File,
    DirectFile,
}

#[derive(Debug, Clone, Copy)]
enum Wrapper {
    Counter,
    Recorder,
    Fault,
    Throttle,
    Pointer,
}

#[derive(Debug, Clone)]
enum Op {
    Read { at: u64, len: usize },
    ReadCached { at: u64, len: usize },
    Write { at: u64, lens: Vec<usize>, seed: u8 },
    Durable { at: u64, len: usize, seed: u8 },
    Discard { at: u64, len: u64 },
    Flush,
}

fn place() -> impl Strategy<Value = u64> {
    let aligned = (0..SIZE / 4096 + 2).prop_map(|n| n * 4096);
    let near_the_end = SIZE - 5000..SIZE + 10;
    prop_oneof![0..SIZE + 10, aligned, near_the_end, Just(u64::MAX - 3)]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        0..10usize,
        0..9000usize,
        Just(4096),
        Just(8192),
        Just(70_000),
        Just(LARGE),
        Just(LARGE + 4096),
        Just(SIZE as usize)
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (place(), length()).prop_map(|(at, len)| Op::Read { at, len }),
        1 => (place(), length()).prop_map(|(at, len)| Op::ReadCached { at, len }),
        4 => (place(), prop::collection::vec(length(), 0..4), any::<u8>())
            .prop_map(|(at, lens, seed)| Op::Write { at, lens, seed }),
        1 => (place(), length(), any::<u8>()).prop_map(|(at, len, seed)| Op::Durable { at, len, seed }),
        1 => (place(), length()).prop_map(|(at, len)| Op::Discard { at, len: len as u64 }),
        1 => Just(Op::Flush),
    ]
}

fn wrapper() -> impl Strategy<Value = Wrapper> {
    use Wrapper::*;
    prop::sample::select(vec![Counter, Recorder, Fault, Throttle, Pointer])
}

fn backend() -> impl Strategy<Value = Backend> {
    prop::sample::select(vec![Backend::Memory, Backend::File, Backend::DirectFile])
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed).collect()
}

fn build(backend: Backend, wrappers: &[Wrapper], dir: &tempfile::TempDir) -> Box<dyn Device> {
    let path = dir.path().join("image");
    let mut device: Box<dyn Device> = match backend {
        Backend::Memory => Box::new(MemoryDevice::new(SIZE)),
        Backend::File => Box::new(create_image(&path, SIZE, false).unwrap()),
        Backend::DirectFile => {
            drop(create_image(&path, SIZE, false).unwrap());
            let options = OpenOptions { direct: true, ..OpenOptions::default() };
            match open(&path, Access::ReadWrite, &options) {
                Ok(device) => Box::new(device),
                Err(e) => {
                    println!("without direct I/O: {e}");
                    Box::new(open(&path, Access::ReadWrite, &OpenOptions::default()).unwrap())
                }
            }
        }
    };
    for w in wrappers {
        device = match w {
            Wrapper::Counter => Box::new(Counter::new(device)),
            Wrapper::Recorder => Box::new(Recorder::new(device)),
            Wrapper::Fault => Box::new(Fault::new(device)),
            Wrapper::Throttle => Box::new(Throttle::new(device, Disk::spinning(), Mode::Account)),
            Wrapper::Pointer => Box::new(Arc::new(device)),
        };
    }
    device
}

/// The part of the model that a request means, if it is on the device at all.
fn part(model: &mut [u8], at: u64, len: usize) -> Option<&mut [u8]> {
    let at = usize::try_from(at).ok()?;
    model.get_mut(at..at.checked_add(len)?)
}

fn run(device: &dyn Device, model: &mut [u8], ops: &[Op]) -> Result<(), TestCaseError> {
    for op in ops {
        match op {
            Op::Read { at, len } => {
                let mut buf = vec![0xee; *len];
                let result = device.read_at(*at, &mut buf);
                match part(model, *at, *len) {
                    Some(part) => prop_assert!(result.is_ok() && buf == part, "{op:?}: {result:?}"),
                    None => prop_assert!(result.is_err(), "{op:?}"),
                }
            }
            Op::ReadCached { at, len } => {
                let mut buf = vec![0xee; *len];
                let result = device.read_if_cached(*at, &mut buf);
                match (part(model, *at, *len), result) {
                    (Some(part), Ok(true)) => prop_assert!(buf == part, "{op:?}"),
                    (_, Ok(false)) => {}
                    (None, Err(_)) => {}
                    (_, result) => prop_assert!(false, "{op:?}: {result:?}"),
                }
            }
            Op::Write { at, lens, seed } => {
                let parts: Vec<Vec<u8>> = lens.iter().map(|len| bytes(*len, *seed)).collect();
                let bufs: Vec<&[u8]> = parts.iter().map(|p| &p[..]).collect();
                let result = device.write_at(*at, &bufs);
                match part(model, *at, lens.iter().sum()) {
                    Some(part) => {
                        prop_assert!(result.is_ok(), "{op:?}: {result:?}");
                        part.copy_from_slice(&parts.concat());
                    }
                    None => prop_assert!(result.is_err(), "{op:?}"),
                }
            }
            Op::Durable { at, len, seed } => {
                let data = bytes(*len, *seed);
                let result = device.write_durably(*at, &data);
                match part(model, *at, *len) {
                    Some(part) => {
                        prop_assert!(result.is_ok(), "{op:?}: {result:?}");
                        part.copy_from_slice(&data);
                    }
                    None => prop_assert!(result.is_err(), "{op:?}"),
                }
            }
            Op::Discard { at, len } => {
                let result = device.discard(*at, *len);
                match part(model, *at, *len as usize) {
                    // More than the contract says; memory and image files both read as zeroes.
                    Some(part) => {
                        prop_assert!(result.is_ok(), "{op:?}: {result:?}");
                        part.fill(0);
                    }
                    None => prop_assert!(result.is_err(), "{op:?}"),
                }
            }
            Op::Flush => device.flush().unwrap(),
        }
    }
    prop_assert_eq!(device.len(), SIZE);
    prop_assert_eq!(device.refresh_len().unwrap(), SIZE);
    let mut all = vec![0xee; SIZE as usize];
    device.read_at(0, &mut all).unwrap();
    prop_assert!(all == model, "at the end");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn stacks_are_flat(
        backend in backend(),
        wrappers in prop::collection::vec(wrapper(), 0..5),
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let device = build(backend, &wrappers, &dir);
        run(&*device, &mut vec![0; SIZE as usize], &ops)?;
    }

    /// What the recorder says, done again, gives the same device.
    #[test]
    fn records_replay(ops in prop::collection::vec(op(), 1..40)) {
        let device = Recorder::new(MemoryDevice::new(SIZE));
        let mut model = vec![0; SIZE as usize];
        run(&device, &mut model, &ops)?;
        let again = MemoryDevice::new(SIZE);
        for event in device.record().events() {
            if let Event::Change(change) = event {
                match &change.content {
                    Content::Bytes(bytes) => again.write_at(change.offset, &[bytes]).unwrap(),
                    Content::Discarded(len) => again.discard(change.offset, *len).unwrap(),
                }
            }
        }
        run(&again, &mut model, &[])?;
    }

    /// After a power cut nothing changes below, and what was before it is there.
    #[test]
    fn a_cut_freezes(
        before in prop::collection::vec(op(), 1..20),
        after in prop::collection::vec(op(), 1..20),
    ) {
        let device = Fault::new(MemoryDevice::new(SIZE));
        let mut model = vec![0; SIZE as usize];
        run(&device, &mut model, &before)?;
        device.cut_power();
        for op in &after {
            let worked = match op {
                Op::Read { at, len } => device.read_at(*at, &mut vec![0; *len]).is_ok(),
                Op::ReadCached { at, len } => device.read_if_cached(*at, &mut vec![0; *len]).is_ok(),
                Op::Write { at, lens, seed } => {
                    device.write_at(*at, &[&bytes(lens.iter().sum(), *seed)]).is_ok()
                }
                Op::Durable { at, len, seed } => device.write_durably(*at, &bytes(*len, *seed)).is_ok(),
                Op::Discard { at, len } => device.discard(*at, *len).is_ok(),
                Op::Flush => device.flush().is_ok(),
            };
            prop_assert!(!worked, "{op:?}");
        }
        device.heal();
        run(&device, &mut model, &[])?;
    }
}
