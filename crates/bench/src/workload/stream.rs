//! Large files: in a row, here and there, in small pieces, through memory.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use anyhow::{Result, bail};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Family, Place, Work, Workload};
use crate::disk::Kind;
use crate::measure::Meter;

const PIECE: usize = 1 << 20;

/// A piece that differs from others.
fn piece(number: u64, len: usize) -> Vec<u8> {
    let mut rng = StdRng::seed_from_u64(number);
    (0..len / 8).flat_map(|_| rng.random::<u64>().to_le_bytes()).collect()
}

/// Writes a file of pieces, or over one.
fn write(file: &mut File, len: u64, meter: Option<&mut Meter>) -> Result<()> {
    let content = piece(len, PIECE);
    let mut meter = meter;
    for _ in 0..len / PIECE as u64 {
        file.write_all(&content)?;
        if let Some(meter) = meter.as_deref_mut() {
            meter.add(PIECE as u64);
        }
    }
    Ok(())
}

/// A file that is there, and durable.
fn existing(place: &Place, len: u64) -> Result<()> {
    let mut file = File::create(place.path("file"))?;
    write(&mut file, len, None)?;
    file.sync_all()?;
    place.sync()
}

struct Whole {
    exists: bool,
    read: bool,
    /// Read once before, whose pages the kernel forgot.
    again: bool,
}

/// Reads a file to its end.
fn read_whole(file: &mut File, mut meter: Option<&mut Meter>) -> Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(()),
            len => meter.iter_mut().for_each(|meter| meter.add(len as u64)),
        }
    }
}

/// Reads a file to its end and has the kernel forget its pages: what was found out of it on the way is known.
fn read_before(file: &mut File) -> Result<()> {
    read_whole(file, None)?;
    rustix::fs::fadvise(&*file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(file.seek(SeekFrom::Start(0)).map(drop)?)
}

impl Whole {
    fn len(place: &Place) -> u64 {
        place.size(1 << 30, 256 << 20)
    }
}

impl Work for Whole {
    fn prepare(&self, place: &Place) -> Result<()> {
        if self.exists { existing(place, Whole::len(place)) } else { Ok(()) }
    }

    fn run(&self, place: &Place, meter: &mut Meter) -> Result<()> {
        let path = place.path("file");
        if self.read {
            let mut file = File::open(path)?;
            if self.again {
                read_before(&mut file)?;
            }
            meter.start()?;
            read_whole(&mut file, Some(meter))?;
        } else {
            meter.start()?;
            let mut file = File::options().write(true).create(true).truncate(false).open(path)?;
            write(&mut file, Whole::len(place), Some(meter))?;
            file.sync_all()?;
        }
        meter.stop()
    }
}

/// 4 KiB here and there, and one sync at the end.
struct Random;

impl Random {
    fn len(place: &Place) -> u64 {
        place.size(512 << 20, 128 << 20)
    }
}

impl Work for Random {
    fn prepare(&self, place: &Place) -> Result<()> {
        existing(place, Random::len(place))
    }

    fn run(&self, place: &Place, meter: &mut Meter) -> Result<()> {
        let file = File::options().write(true).open(place.path("file"))?;
        let mut rng = StdRng::seed_from_u64(place.seed);
        let blocks = Random::len(place) / 4096;
        let content = piece(1, 4096);
        meter.start()?;
        for _ in 0..place.size(20_000, 4_000) {
            let at = rng.random_range(0..blocks) * 4096;
            meter.operation(|| Ok(file.write_all_at(&content, at)?))?;
        }
        file.sync_all()?;
        meter.stop()
    }
}

/// 4 KiB read here and there.
struct RandomRead {
    again: bool,
}

impl Work for RandomRead {
    fn prepare(&self, place: &Place) -> Result<()> {
        existing(place, Random::len(place))
    }

    fn run(&self, place: &Place, meter: &mut Meter) -> Result<()> {
        let mut file = File::open(place.path("file"))?;
        if self.again {
            read_before(&mut file)?;
        }
        let mut rng = StdRng::seed_from_u64(place.seed);
        let blocks = Random::len(place) / 4096;
        let mut content = [0; 4096];
        meter.start()?;
        for _ in 0..place.size(20_000, 4_000) {
            let at = rng.random_range(0..blocks) * 4096;
            meter.operation(|| Ok(file.read_exact_at(&mut content, at)?))?;
        }
        meter.stop()
    }
}

/// Pieces smaller than a block.
struct Append;

impl Work for Append {
    fn run(&self, place: &Place, meter: &mut Meter) -> Result<()> {
        let mut file = File::options().append(true).create(true).open(place.path("log"))?;
        let content = piece(2, 512);
        meter.start()?;
        for _ in 0..place.size(200_000, 40_000) {
            meter.operation(|| Ok(file.write_all(&content)?))?;
        }
        file.sync_all()?;
        meter.stop()
    }
}

/// Every page of a mapping, in no order.
struct Mapped;

impl Mapped {
    fn len(place: &Place) -> u64 {
        place.size(256 << 20, 64 << 20)
    }
}

impl Work for Mapped {
    fn prepare(&self, place: &Place) -> Result<()> {
        existing(place, Mapped::len(place))
    }

    fn run(&self, place: &Place, meter: &mut Meter) -> Result<()> {
        use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
        let file = File::options().read(true).write(true).open(place.path("file"))?;
        let len = usize::try_from(Mapped::len(place))?;
        if file.metadata()?.len() != len as u64 {
            bail!("the file has another length");
        }
        // A step that meets every page once: odd, and the number of pages is a power of two.
        let (pages, step) = (len / 4096, 40_503);
        meter.start()?;
        // SAFETY: the mapping is as long as the file, which nobody else changes; writes stay within it.
        unsafe {
            let at = mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )?;
            for n in 0..pages {
                at.cast::<u8>().add(n * step % pages * 4096 + n % 4096).write_volatile(n as u8);
            }
            msync(at, len, MsyncFlags::SYNC)?;
            munmap(at, len)?;
        }
        meter.add(len as u64);
        meter.stop()
    }
}

pub fn all() -> Vec<Workload> {
    let new = |name, about, work: Whole| Workload::new(name, Family::Stream, about, work).bytes();
    vec![
        new(
            "stream-write",
            "write a new file of 1 GiB (quick: 256 MiB) by 1 MiB, and fsync",
            Whole { exists: false, read: false, again: false },
        ),
        new(
            "stream-overwrite",
            "write over a file of 1 GiB (quick: 256 MiB) by 1 MiB, and fsync",
            Whole { exists: true, read: false, again: false },
        ),
        new(
            "stream-read",
            "read a file of 1 GiB (quick: 256 MiB) by 1 MiB after a mount",
            Whole { exists: true, read: true, again: false },
        )
        .cold(),
        new(
            "stream-read-again",
            "read a file of 1 GiB (quick: 256 MiB) by 1 MiB that was read before, its pages forgotten",
            Whole { exists: true, read: true, again: true },
        )
        .cold(),
        Workload::new(
            "random-read",
            Family::Stream,
            "20,000 (quick: 4,000) reads of 4 KiB anywhere in 512 MiB (quick: 128 MiB) after a mount",
            RandomRead { again: false },
        )
        .operation("read")
        .cold(),
        Workload::new(
            "random-read-again",
            Family::Stream,
            "20,000 (quick: 4,000) reads of 4 KiB anywhere in 512 MiB (quick: 128 MiB) that was read before, its pages \
             forgotten",
            RandomRead { again: true },
        )
        .operation("read")
        .cold(),
        Workload::new(
            "random-write",
            Family::Stream,
            "20,000 (quick: 4,000) writes of 4 KiB anywhere in 512 MiB (quick: 128 MiB), and one fsync",
            Random,
        )
        .operation("write")
        .on(&[Kind::Here, Kind::Spinning]),
        Workload::new(
            "append-512",
            Family::Stream,
            "200,000 (quick: 40,000) appends of 512 bytes to one file, and one fsync",
            Append,
        )
        .operation("append"),
        Workload::new(
            "mmap-write",
            Family::Stream,
            "change every page of a mapped file of 256 MiB (quick: 64 MiB) in no order, and msync",
            Mapped,
        )
        .bytes(),
    ]
}
