//! What to mount, where and how.

use std::path::PathBuf;
use std::time::Duration;

use silt_control::retention::Given;

use crate::cleanerd_conf::Conf;
use crate::tuning::Tuning;

/// What an error of the volume's metadata does (`errors=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// The file concerned gives EIO, all else goes on.
    #[default]
    Continue,
    /// Nothing is written any more. `panic` is treated like this, too.
    RemountReadOnly,
}

/// Which moment to show instead of the live tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment(
    /// Checkpoint number.
    pub u64,
);

/// Options of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    pub read_only: bool,
    /// Show this checkpoint, read-only.
    pub moment: Option<Moment>,
    pub norecovery: bool,
    /// `order=strict`: every sync is a checkpoint.
    pub order_strict: bool,
    /// `nobarrier` turns flushes off.
    pub barrier: bool,
    pub on_error: OnError,
    /// Time between checkpoints of a busy volume; `None`: what the volume says, else 5 s.
    pub interval: Option<Duration>,
    /// Bytes for metadata, directory indexes and known inodes together.
    pub cache: u64,
    /// Bytes of unwritten data, those on their way to the device included, beyond which writers
    /// are paced.
    pub dirty: u64,
    /// Small reads and writes of parts of pages go around the host's page cache as well.
    pub direct: bool,
    /// Every change is durable before it is answered.
    pub sync: bool,
    /// Every change of a directory is durable before it is answered.
    pub dirsync: bool,
    pub allow_other: bool,
    pub suid: bool,
    pub dev: bool,
    pub exec: bool,
    /// Mount as `fuseblk` if that can be had, so that sync(2) may arrive; root only.
    pub block_type: bool,
    /// The first read from a log holds it against its checksum.
    pub verify: bool,
    /// Requests come through io_uring where the kernel offers it.
    pub io_uring: bool,
    /// Segments are emptied when few are clean (`nogc` turns it off).
    pub gc: bool,
    /// How they are emptied (`policy=`, `cleanerd_conf`).
    pub cleaner: Tuning,
    /// Segments that were freed are discarded (`discard`, `nodiscard`); `None`: those of image files are.
    pub discard: Option<bool>,
    /// What is kept of the past (`retain=`, `keep=`, `pp=`), where that is said here.
    pub retention: Given,
    /// A super block to be used in place of those of the volume, which is then only read.
    pub super_block: Option<Vec<u8>>,
}

impl MountOptions {
    /// Goes by a file of the original cleaner's where nobody else says anything.
    pub fn go_by(&mut self, conf: Conf) {
        self.retention.file_protection = conf.protection_period;
        self.cleaner.conf = Some(conf);
    }
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            read_only: false,
            moment: None,
            norecovery: false,
            order_strict: false,
            barrier: true,
            on_error: OnError::Continue,
            interval: None,
            cache: 128 << 20,
            dirty: 256 << 20,
            direct: false,
            sync: false,
            dirsync: false,
            // As root other users are let in, as with any file system; others cannot.
            allow_other: rustix::process::geteuid().is_root(),
            suid: false,
            dev: false,
            exec: true,
            block_type: true,
            verify: false,
            io_uring: false,
            gc: true,
            cleaner: Tuning::default(),
            discard: None,
            retention: Given::default(),
            super_block: None,
        }
    }
}

/// What [`crate::run`] serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Image file or block device.
    pub volume: PathBuf,
    pub dir: PathBuf,
    pub options: MountOptions,
}
