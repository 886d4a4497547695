//! What sysfs says of block devices.
//!
//! Everything here is advice: where sysfs is not mounted or lacks an attribute, the answer is
//! `None` or empty.

use std::fmt;
use std::fs;
use std::path::PathBuf;

/// The number of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct DevNr {
    pub major: u32,
    pub minor: u32,
}

impl DevNr {
    /// Of a `st_dev` or `st_rdev`.
    pub fn of(dev: rustix::fs::Dev) -> Self {
        DevNr { major: rustix::fs::major(dev), minor: rustix::fs::minor(dev) }
    }

    /// Of `8:1`.
    pub fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.trim().split_once(':')?;
        Some(DevNr { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }

    /// Of the 64 bits in which the kernel's loop driver states a device: minor bits 0..8, major
    /// bits 8..20, the rest of the minor from bit 20.
    #[allow(clippy::cast_possible_truncation)] // masked
    pub fn of_kernel(dev: u64) -> Self {
        DevNr { major: ((dev >> 8) & 0xfff) as u32, minor: ((dev & 0xff) | ((dev >> 12) & 0xf_ff00)) as u32 }
    }
}

impl fmt::Display for DevNr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

fn dir(dev: DevNr) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{dev}"))
}

/// A number from the request queue of the device, or of the disk that a partition lies on.
pub(crate) fn queue(dev: DevNr, attribute: &str) -> Option<u64> {
    ["queue", "../queue"].iter().find_map(|queue| {
        let text = fs::read_to_string(dir(dev).join(queue).join(attribute)).ok()?;
        text.trim().parse().ok()
    })
}

/// Names of the devices stacked on this one (device mapper, md).
pub(crate) fn holders(dev: DevNr) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir(dev).join("holders")) else { return Vec::new() };
    entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect()
}

/// Partitions of a whole disk.
pub(crate) fn partitions(dev: DevNr) -> Vec<DevNr> {
    let Ok(entries) = fs::read_dir(dir(dev)) else { return Vec::new() };
    entries
        .flatten()
        .filter(|e| e.path().join("partition").exists())
        .filter_map(|e| DevNr::parse(&fs::read_to_string(e.path().join("dev")).ok()?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(DevNr::parse("254:17\n"), Some(DevNr { major: 254, minor: 17 }));
        assert_eq!(DevNr::parse("254"), None);
        assert_eq!(DevNr::parse("a:b"), None);
        assert_eq!(DevNr::of_kernel(0x0710_3fe2), DevNr { major: 0x03f, minor: 0x071e2 });
        assert_eq!(DevNr::of(rustix::fs::makedev(259, 300)), DevNr { major: 259, minor: 300 });
    }

    #[test]
    fn unknown_devices_say_nothing() {
        let none = DevNr { major: 4095, minor: 77_777 };
        assert_eq!(queue(none, "rotational"), None);
        assert!(holders(none).is_empty());
        assert!(partitions(none).is_empty());
    }
}
