//! Single writes made durable at once, by one thread and by eight.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::{Result, anyhow};

use super::{Family, Place, Work, Workload};
use crate::disk::Kind;
use crate::measure::Meter;

const BLOCK: u64 = 4096;

struct Durable {
    threads: u64,
    existing: bool,
    data_only: bool,
}

impl Durable {
    /// Writes of each thread.
    fn each(&self, place: &Place) -> u64 {
        place.size(10_000, 1_000) / self.threads
    }

    fn file(&self, place: &Place, thread: u64) -> Result<File> {
        let path = place.path(&format!("file{thread}"));
        Ok(File::options().write(true).create(true).truncate(false).open(path)?)
    }
}

impl Work for Durable {
    fn prepare(&self, place: &Place) -> Result<()> {
        for thread in 0..self.threads {
            let file = self.file(place, thread)?;
            if self.existing {
                (0..self.each(place)).try_for_each(|n| file.write_all_at(&[1; BLOCK as usize], n * BLOCK))?;
            }
            file.sync_all()?;
        }
        place.sync()
    }

    fn run(&self, place: &Place, meter: &mut Meter) -> Result<()> {
        let each = self.each(place);
        let files: Vec<File> = (0..self.threads).map(|n| self.file(place, n)).collect::<Result<_>>()?;
        meter.start()?;
        let empty = meter.histogram();
        let histograms = std::thread::scope(|scope| {
            let write = |file: &File| {
                let mut histogram = empty.clone();
                for n in 0..each {
                    let start = Instant::now();
                    file.write_all_at(&[2; BLOCK as usize], n * BLOCK)?;
                    if self.data_only { file.sync_data() } else { file.sync_all() }?;
                    histogram.saturating_record(u64::try_from(start.elapsed().as_nanos())?);
                }
                Ok(histogram)
            };
            let threads: Vec<_> = files.iter().map(|file| scope.spawn(move || write(file))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err(anyhow!("a writing thread panicked")))
            };
            threads.into_iter().map(join).collect::<Result<Vec<_>>>()
        })?;
        histograms.iter().try_for_each(|histogram| meter.merge(histogram))?;
        meter.add(each * self.threads);
        meter.stop()
    }
}

pub fn all() -> Vec<Workload> {
    let mut all = Vec::new();
    for threads in [1, 8] {
        for (existing, word, about) in [(false, "grow", "growing"), (true, "over", "existing")] {
            for (data_only, call) in [(false, "fsync"), (true, "fdatasync")] {
                let who = if threads == 1 {
                    format!("one {about} file")
                } else {
                    format!("{threads} {about} files, a thread each")
                };
                let about = format!("write 4 KiB and {call}, 10,000 times (quick: 1,000) in all; {who}");
                let work = Durable { threads, existing, data_only };
                all.push(
                    Workload::new(format!("{call}-{word}-{threads}"), Family::Durable, about, work)
                        .operation("write")
                        .on(&[Kind::Here, Kind::Flush2ms])
                        .durable(),
                );
            }
        }
    }
    all
}
