//! How long requests take while much is written beside them.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::{Result, bail};

use super::{Family, Place, Work, Workload};
use crate::disk::Kind;
use crate::measure::Meter;
use crate::process::own_command;

/// What the other process does: writes so many bytes to a new file, and makes them durable.
pub fn write_file(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let content = vec![b'w'; 1 << 20];
    (0..bytes >> 20).try_for_each(|_| file.write_all(&content))?;
    // Otherwise it may be over before anything reaches the disk.
    Ok(file.sync_all()?)
}

/// The other process, killed when dropped.
struct Writer(Child);

impl Writer {
    fn start(path: &Path, bytes: u64) -> Result<Self> {
        let mut command = own_command()?;
        command.arg("write").arg(path).arg(bytes.to_string());
        Ok(Writer(command.stdin(Stdio::null()).spawn()?))
    }

    fn writes(&mut self) -> Result<bool> {
        match self.0.try_wait()? {
            None => Ok(true),
            Some(status) if status.success() => Ok(false),
            Some(status) => bail!("the writer ended with {status}"),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An fsync every now and then.
struct Fsync;

impl Work for Fsync {
    fn run(&self, place: &Place, meter: &mut Meter) -> Result<()> {
        let file = File::create(place.path("small"))?;
        file.sync_all()?;
        let mut writer = Writer::start(&place.path("large"), place.size(4 << 30, 512 << 20))?;
        meter.start()?;
        let mut at = 0;
        while writer.writes()? || at == 0 {
            meter.operation(|| {
                file.write_all_at(&[1; 4096], at)?;
                Ok(file.sync_all()?)
            })?;
            at += 4096;
        }
        meter.stop()
    }
}

/// Ordinary requests while what was written is made durable.
struct Pause;

impl Work for Pause {
    fn prepare(&self, place: &Place) -> Result<()> {
        fs::create_dir(place.path("names"))?;
        place.sync()
    }

    fn run(&self, place: &Place, meter: &mut Meter) -> Result<()> {
        let (bytes, large) = (place.size(1 << 30, 256 << 20), place.path("large"));
        meter.start()?;
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| -> Result<()> {
                write_file(&large, bytes)?;
                place.sync()
            });
            let mut number = 0u64;
            while !writer.is_finished() || number == 0 {
                let (name, other) = (format!("names/{number}"), format!("names/none{number}"));
                let (name, other) = (place.path(&name), place.path(&other));
                let mut file = None;
                meter.operation(|| {
                    file = Some(File::create_new(&name)?);
                    Ok(())
                })?;
                if let Some(mut file) = file {
                    meter.operation(|| Ok(file.write_all(&[1; 100])?))?;
                }
                meter.operation(|| match fs::metadata(&other) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                    _ => bail!("{} is there", other.display()),
                })?;
                meter.operation(|| Ok(fs::read(&name).map(|_| ())?))?;
                if number.is_multiple_of(2) {
                    meter.operation(|| Ok(fs::remove_file(&name)?))?;
                }
                number += 1;
            }
            writer.join().unwrap_or_else(|_| bail!("the writing thread panicked"))
        })?;
        meter.stop()
    }
}

pub fn all() -> Vec<Workload> {
    vec![
        Workload::new(
            "fsync-beside-writer",
            Family::Pressure,
            "append 4 KiB and fsync, again and again, while another process writes 4 GiB (quick: 512 MiB) and syncs them",
            Fsync,
        )
        .operation("fsync")
        .on(&[Kind::Flush2ms])
        .durable(),
        Workload::new(
            "pause",
            Family::Pressure,
            "create, write 100 bytes, look a missing name up, read, unlink, while 1 GiB (quick: 256 MiB) is written \
             and synced",
            Pause,
        )
        .operation("request")
        .durable(),
    ]
}
