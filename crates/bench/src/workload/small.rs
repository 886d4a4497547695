//! Many small files, in one directory and in 200.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::PathBuf;

use anyhow::Result;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use super::{Family, Place, Work, Workload};
use crate::measure::Meter;

const CONTENT: [u8; 4096] = [b's'; 4096];
/// How often cached things are asked for, so that it takes long enough.
const AGAIN: usize = 5;

#[derive(Clone, Copy, PartialEq)]
enum What {
    Create,
    Stat,
    Read,
    Rename,
    Unlink,
}

struct Small {
    what: What,
    directories: u64,
    warm: bool,
}

impl Small {
    fn paths(&self, place: &Place) -> Vec<PathBuf> {
        let count = place.size(20_000, 4_000);
        (0..count).map(|n| place.path(&format!("d{}/file{n:06}", n % self.directories))).collect()
    }

    fn directories(&self, place: &Place) -> Result<()> {
        (0..self.directories).try_for_each(|n| Ok(fs::create_dir(place.path(&format!("d{n}")))?))
    }
}

fn create(path: &PathBuf) -> Result<()> {
    Ok(File::create_new(path)?.write_all(&CONTENT)?)
}

fn read(path: &PathBuf) -> Result<()> {
    let mut buffer = [0; 8192];
    let len = File::open(path)?.read(&mut buffer)?;
    if len == CONTENT.len() { Ok(()) } else { anyhow::bail!("{} has {len} bytes", path.display()) }
}

fn stat(path: &PathBuf) -> Result<()> {
    fs::symlink_metadata(path)?;
    Ok(())
}

impl Work for Small {
    fn prepare(&self, place: &Place) -> Result<()> {
        self.directories(place)?;
        if self.what != What::Create {
            self.paths(place).iter().try_for_each(create)?;
            place.sync()?;
        }
        Ok(())
    }

    fn run(&self, place: &Place, meter: &mut Meter) -> Result<()> {
        let mut paths = self.paths(place);
        let reading = matches!(self.what, What::Stat | What::Read);
        if reading {
            paths.shuffle(&mut StdRng::seed_from_u64(place.seed));
        }
        let act = match self.what {
            What::Create => create,
            What::Stat => stat,
            What::Read => read,
            What::Rename => |path: &PathBuf| Ok(fs::rename(path, path.with_extension("new"))?),
            What::Unlink => |path: &PathBuf| Ok(fs::remove_file(path)?),
        };
        let again = if reading && self.warm { AGAIN } else { 1 };
        if reading && self.warm {
            paths.iter().try_for_each(act)?;
        }
        meter.start()?;
        for _ in 0..again {
            for path in &paths {
                meter.operation(|| act(path))?;
            }
        }
        meter.stop()
    }
}

pub fn all() -> Vec<Workload> {
    let mut all = Vec::new();
    for (directories, suffix, place) in [(1, "", "one directory"), (200, "-200", "200 directories")] {
        for (what, name, about) in [
            (What::Create, "create", "create, write 4 KiB, close"),
            (What::Stat, "stat", "stat"),
            (What::Read, "read", "open, read 4 KiB, close"),
            (What::Rename, "rename", "rename within the directory"),
            (What::Unlink, "unlink", "unlink"),
        ] {
            let reading = matches!(what, What::Stat | What::Read);
            for warm in [true, false] {
                let (name, state) = match (reading, warm) {
                    (true, true) => (format!("{name}-warm{suffix}"), ", cached"),
                    (true, false) => (format!("{name}-cold{suffix}"), ", after a mount"),
                    (false, true) => (format!("{name}{suffix}"), ""),
                    (false, false) => continue,
                };
                let about = format!("{about}; 20,000 files (quick: 4,000) in {place}{state}");
                let workload = Workload::new(name, Family::Small, about, Small { what, directories, warm })
                    .operation("file");
                all.push(if warm { workload } else { workload.cold() });
            }
        }
    }
    all
}
