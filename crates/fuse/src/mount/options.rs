//! What a mount shall be like, and how it is written for mount(2) and for fusermount3.
//!
//! Invariant: no text of the caller can become an option of its own. For mount(2) the source is an argument
//! apart; for fusermount3 commas and backslashes in it are escaped. The subtype becomes part of the file
//! system's type and is limited to letters, digits, `_` and `-`.

use crate::error::{Error, Result};
use rustix::mount::MountFlags;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The longest source in bytes.
const MAX_SOURCE: usize = 1024;

/// The block device of a `fuseblk` mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    /// The device; the kernel opens it exclusively while mounted.
    pub path: PathBuf,
    /// The block size that the mount shows, in bytes: a power of two from 512 to the page size, not below
    /// the device's own.
    pub block_size: u32,
}

/// How to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// What /proc/mounts shows as the source of a plain mount.
    pub source: String,
    /// What follows `fuse.` or `fuseblk.` in the type. Empty for none.
    pub subtype: String,
    /// Mount as `fuseblk` on this device; root only.
    pub block_device: Option<BlockDevice>,
    /// Read-only.
    pub read_only: bool,
    /// Let other users in; others than root need `user_allow_other` in /etc/fuse.conf.
    pub allow_other: bool,
    /// Let the kernel check permissions by mode and owner.
    pub default_permissions: bool,
    /// Honour set-user-id bits. Only root can.
    pub suid: bool,
    /// Honour device nodes. Only root can.
    pub dev: bool,
    /// Allow programs to be run.
    pub exec: bool,
    /// Do not update access times.
    pub noatime: bool,
    /// Do not update access times of directories.
    pub nodiratime: bool,
    /// Every write is synchronous.
    pub sync: bool,
    /// Every change of a directory is synchronous.
    pub dirsync: bool,
    /// The largest read in bytes; none for the kernel's own limit.
    pub max_read: Option<u32>,
}

impl Default for MountOptions {
    /// Plain, read-write, for the mounting user, permissions checked by the kernel, nosuid, nodev, noatime.
    fn default() -> Self {
        Self {
            source: "silt".to_owned(),
            subtype: "silt".to_owned(),
            block_device: None,
            read_only: false,
            allow_other: false,
            default_permissions: true,
            suid: false,
            dev: false,
            exec: true,
            noatime: true,
            nodiratime: false,
            sync: false,
            dirsync: false,
            max_read: None,
        }
    }
}

impl MountOptions {
    /// What to name as the source for a volume: its path, or where no source can be like it a word.
    pub fn source_of(volume: &Path) -> String {
        match volume.to_string_lossy() {
            path if path.len() <= MAX_SOURCE && !path.chars().any(char::is_control) => path.into_owned(),
            _ => Self::default().source,
        }
    }

    /// Refuses what cannot be passed on faithfully.
    pub(super) fn check(&self) -> Result<()> {
        let bad = |name, reason| Err(Error::BadOption { name, reason });
        if self.source.is_empty() || self.source.len() > MAX_SOURCE {
            return bad("source", "must have 1 to 1024 bytes");
        }
        if self.source.chars().any(char::is_control) {
            return bad("source", "must not hold control characters");
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if self.subtype.len() > 64 || !self.subtype.chars().all(plain) {
            return bad("subtype", "may hold up to 64 letters, digits, '_' and '-'");
        }
        if let Some(device) = &self.block_device
            && (!device.block_size.is_power_of_two() || !(512..=65536).contains(&device.block_size))
        {
            return bad("blksize", "must be a power of two of at least 512 bytes");
        }
        if self.max_read.is_some_and(|size| size < 4096) {
            return bad("max_read", "must be at least 4096 bytes");
        }
        Ok(())
    }

    /// The type for mount(2).
    pub(super) fn fs_type(&self) -> String {
        let base = if self.block_device.is_some() { "fuseblk" } else { "fuse" };
        if self.subtype.is_empty() { base.to_owned() } else { format!("{base}.{}", self.subtype) }
    }

    /// The flags for mount(2).
    pub(super) fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NOSUID, !self.suid);
        flags.set(MountFlags::NODEV, !self.dev);
        flags.set(MountFlags::NOEXEC, !self.exec);
        flags.set(MountFlags::NOATIME, self.noatime);
        flags.set(MountFlags::NODIRATIME, self.nodiratime);
        flags.set(MountFlags::SYNCHRONOUS, self.sync);
        flags.set(MountFlags::DIRSYNC, self.dirsync);
        flags
    }

    /// The part of mount(2)'s data that is options of ours; numbers and fixed words only.
    pub(super) fn data(&self) -> String {
        let mut data = String::new();
        let mut add = |option: &str| {
            data.push(',');
            data.push_str(option);
        };
        if self.default_permissions {
            add("default_permissions");
        }
        if self.allow_other {
            add("allow_other");
        }
        if let Some(size) = self.max_read {
            add(&format!("max_read={size}"));
        }
        if let Some(device) = &self.block_device {
            add(&format!("blksize={}", device.block_size));
        }
        data
    }

    /// The `-o` text for fusermount3, which adds nosuid and nodev by itself.
    pub(super) fn helper_text(&self) -> Result<String> {
        let bad = |name, reason| Err(Error::BadOption { name, reason });
        if self.block_device.is_some() {
            return bad("blkdev", "a mount on a block device needs root");
        }
        if self.suid || self.dev {
            return bad(if self.suid { "suid" } else { "dev" }, "needs root");
        }
        let mut text = format!("fsname={}", escape(&self.source));
        if !self.subtype.is_empty() {
            let _ = write!(text, ",subtype={}", self.subtype);
        }
        text.push_str(if self.read_only { ",ro" } else { ",rw" });
        let flags = [
            (!self.exec, "noexec"),
            (self.noatime, "noatime"),
            (self.nodiratime, "nodiratime"),
            (self.sync, "sync"),
            (self.dirsync, "dirsync"),
        ];
        for (_, word) in flags.into_iter().filter(|(set, _)| *set) {
            let _ = write!(text, ",{word}");
        }
        text.push_str(&self.data());
        Ok(text)
    }
}

/// A text with what fusermount3 takes for separators escaped.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, ',' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_cannot_become_an_option() {
        let options = MountOptions { source: "a,suid\\,b".to_owned(), ..MountOptions::default() };
        options.check().unwrap();
        let text = options.helper_text().unwrap();
        assert!(text.starts_with("fsname=a\\,suid\\\\\\,b,subtype=silt,rw,noatime"), "{text}");
        assert_eq!(options.data(), ",default_permissions");
        for source in ["", "a\nb", "a\0b"] {
            let options = MountOptions { source: source.to_owned(), ..MountOptions::default() };
            assert!(options.check().is_err(), "{source:?}");
        }
        for subtype in ["a,b", "a.b", "a b"] {
            let options = MountOptions { subtype: subtype.to_owned(), ..MountOptions::default() };
            assert!(options.check().is_err(), "{subtype:?}");
        }
    }

    #[test]
    fn any_path_has_a_source() {
        let long = format!("/{}", "a".repeat(1024));
        for (path, source) in
            [("/v.img", "/v.img"), ("/a,b\\c d", "/a,b\\c d"), ("/a\nb", "silt"), (&long, "silt")]
        {
            let options =
                MountOptions { source: MountOptions::source_of(Path::new(path)), ..MountOptions::default() };
            assert_eq!(options.source, source);
            options.check().unwrap();
        }
    }

    #[test]
    fn what_needs_root_is_not_asked_of_the_helper() {
        assert!(MountOptions { suid: true, ..MountOptions::default() }.helper_text().is_err());
        assert!(MountOptions { dev: true, ..MountOptions::default() }.helper_text().is_err());
        let block_device = Some(BlockDevice { path: "/dev/loop0".into(), block_size: 4096 });
        let options = MountOptions { block_device, ..MountOptions::default() };
        assert!(options.helper_text().is_err());
        assert_eq!(
            (options.fs_type().as_str(), options.data().as_str()),
            ("fuseblk.silt", ",default_permissions,blksize=4096")
        );
    }

    #[test]
    fn sizes_are_checked() {
        let device = |block_size| MountOptions {
            block_device: Some(BlockDevice { path: "/dev/loop0".into(), block_size }),
            ..MountOptions::default()
        };
        assert!(device(512).check().is_ok());
        assert!(device(0).check().is_err());
        assert!(device(1000).check().is_err());
        assert!(MountOptions { max_read: Some(1), ..MountOptions::default() }.check().is_err());
    }
}
