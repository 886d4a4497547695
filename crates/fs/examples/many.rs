//! Creates, looks up and unlinks a million files in one directory of a volume in memory, and
//! prints what each took per name: the figures of each hundred thousand should not grow.
//!
//! ```text
//! cargo run --release -p silt-fs --example many -- [NAMES [BLOCK_SIZE]]
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use silt_device::MemoryDevice;
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Volume};
use silt_fs::{Context, Fs, Ino, Options, Tree};

fn name(i: u64) -> Vec<u8> {
    // Not in the order of their numbers, as mail or cache files come.
    format!("{:08x}.some-file", i.wrapping_mul(0x9E37_79B9) & 0xffff_ffff).into_bytes()
}

fn lap(fs: &mut Fs, what: &str, from: u64, to: u64, mut f: impl FnMut(&mut Fs, &[u8])) {
    let start = Instant::now();
    for i in from..to {
        f(fs, &name(i));
    }
    let each = start.elapsed().as_nanos() as f64 / (to - from) as f64 / 1000.0;
    let start = Instant::now();
    let synced = fs.sync_all(1).map(|c| c.to_string()).unwrap_or_else(|e| e.to_string());
    let sync = start.elapsed().as_millis();
    println!(
        "{what} {from:>8}..{to:<8} {each:6.2} us each; checkpoint {synced} in {sync} ms; indexes {} KiB",
        fs.index_bytes() >> 10
    );
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let names: u64 = arguments.next().map_or(Ok(1_000_000), |n| n.parse())?;
    let block_size: u32 = arguments.next().map_or(Ok(4096), |n| n.parse())?;
    let size = 256 << 30;
    let device = Arc::new(MemoryDevice::new(size));
    let parameters = Parameters { block_size, uuid: [0; 16], crc_seed: 1, now: 1, ..Parameters::default() };
    Plan::new(parameters, size)?.write(&*device, false)?;
    let (mut volume, _) = Volume::open(device, &OpenOptions::default())?;
    volume.take_over(1)?;
    let mut fs = Fs::new(volume, &Options::default());
    let ctx = Context { privileged: true, ..Context::default() };
    let dir = fs.mkdir(&ctx, Ino::ROOT, b"many", 0o755)?.ino;
    let step = (names / 10).max(1);
    let parts = || (0..names).step_by(usize::try_from(step).unwrap_or(1)).map(|a| (a, (a + step).min(names)));
    for (a, b) in parts() {
        lap(&mut fs, "create", a, b, |fs, n| {
            if let Err(e) = fs.create(&ctx, dir, n, 0o644) {
                println!("{e}");
            }
        });
    }
    for (a, b) in parts() {
        lap(&mut fs, "lookup", a, b, |fs, n| {
            if let Err(e) = fs.lookup(Tree::Live, dir, n) {
                println!("{e}");
            }
        });
    }
    let start = Instant::now();
    let mut listed = 0u64;
    let mut from = 0;
    loop {
        let mut n = 0;
        fs.readdir(Tree::Live, dir, from, false, |e| {
            from = e.next;
            n += 1;
            if n == 100 { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
        })?;
        if n == 0 {
            break;
        }
        listed += n;
    }
    println!("listed {listed} in {} ms, 100 at a time", start.elapsed().as_millis());
    for (a, b) in parts() {
        lap(&mut fs, "unlink", a, b, |fs, n| {
            if let Err(e) = fs.unlink(&ctx, dir, n) {
                println!("{e}");
            }
        });
    }
    Ok(())
}
