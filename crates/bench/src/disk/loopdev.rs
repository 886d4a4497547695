//! Loop devices with direct I/O. They detach by themselves when nobody has them open any more, so that
//! nothing stays behind whatever ends this process; the settings of their queues outlive that and are put
//! back as they were found.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result, bail};

const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const AUTOCLEAR: u32 = 4;
const DIRECT_IO: u32 = 16;

/// The kernel's `loop_info64`, of which only flags are set here.
#[repr(C)]
struct Info {
    before: [u8; 52],
    flags: u32,
    after: [u8; 176],
}

/// The kernel's `loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// How the queue of a disk shall be.
pub struct Queue {
    /// The elevator.
    pub scheduler: &'static str,
    /// What the kernel tells file systems.
    pub rotational: bool,
    /// The largest request.
    pub max_sectors_kb: u32,
}

impl Queue {
    fn settings(&self) -> [(&'static str, String); 4] {
        [
            ("scheduler", self.scheduler.to_owned()),
            ("rotational", u8::from(self.rotational).to_string()),
            ("max_sectors_kb", self.max_sectors_kb.to_string()),
            ("write_cache", "write back".to_owned()),
        ]
    }
}

/// An attached device.
pub struct Loop {
    // Before `file`: they are put back while the device is attached.
    found: Settings,
    path: PathBuf,
    _file: File,
}

/// What was found in a queue's settings, put back when dropped.
struct Settings {
    queue: PathBuf,
    values: Vec<(&'static str, String)>,
}

impl Drop for Settings {
    fn drop(&mut self) {
        for (name, value) in &self.values {
            let _ = fs::write(self.queue.join(name), value);
        }
    }
}

impl Loop {
    /// Attaches a free device to an image.
    pub fn attach(image: &Path, queue: &Queue) -> Result<Self> {
        let (file, path) = attach(image).with_context(|| format!("a loop device for {}", image.display()))?;
        let name = path.file_name().unwrap_or_default();
        let sysfs = Path::new("/sys/block").join(name);
        let mut found = Settings { queue: sysfs.join("queue"), values: Vec::new() };
        for (name, value) in queue.settings() {
            let setting = found.queue.join(name);
            let old = fs::read_to_string(&setting).with_context(|| setting.display().to_string())?;
            found.values.push((name, chosen(&old).to_owned()));
            fs::write(&setting, &value).with_context(|| format!("{value} to {}", setting.display()))?;
        }
        if fs::read_to_string(sysfs.join("loop/dio"))?.trim() != "1" {
            bail!("{} does not do direct I/O on {}", path.display(), image.display());
        }
        Ok(Loop { found, path, _file: file })
    }

    /// Its path, such as `/dev/loop3`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the kernel counts.
    pub fn statistics(&self) -> PathBuf {
        self.found.queue.with_file_name("stat")
    }
}

/// The value of a setting; of a choice, what stands in brackets.
fn chosen(text: &str) -> &str {
    let text = text.trim();
    text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(text, |(value, _)| value)
}

fn attach(image: &Path) -> io::Result<(File, PathBuf)> {
    let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
    let control = open(Path::new("/dev/loop-control"))?;
    let backing = open(image)?;
    // Another process may take the free one first: then there is another.
    for _ in 0..64 {
        // SAFETY: takes no argument and returns a number or -1.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = open(&path)?;
        let config = Config {
            fd: u32::try_from(backing.as_raw_fd()).map_err(io::Error::other)?,
            block_size: 0,
            info: Info { before: [0; 52], flags: AUTOCLEAR | DIRECT_IO, after: [0; 176] },
            reserved: [0; 8],
        };
        // SAFETY: LOOP_CONFIGURE reads one `loop_config`, laid out as the kernel's.
        if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } == 0 {
            return Ok((device, path));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EBUSY) {
            return Err(error);
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_size() {
        assert_eq!((size_of::<Info>(), size_of::<Config>()), (232, 304));
        assert_eq!(std::mem::offset_of!(Info, flags), 52);
    }

    #[test]
    fn choices_and_values() {
        assert_eq!(chosen("none [mq-deadline] bfq\n"), "mq-deadline");
        assert_eq!(chosen("write back\n"), "write back");
    }
}
