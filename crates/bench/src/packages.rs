//! The Debian packages whose programs are compared or used.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::process::run;

/// A package and a file of it that tells whether it is there.
const PACKAGES: [(&str, &str); 12] = [
    ("e2fsprogs", "/sbin/mkfs.ext4"),
    ("xfsprogs", "/sbin/mkfs.xfs"),
    ("btrfs-progs", "/sbin/mkfs.btrfs"),
    ("ntfs-3g", "/sbin/mkntfs"),
    ("fuse2fs", "/usr/bin/fuse2fs"),
    ("git", "/usr/bin/git"),
    ("rsync", "/usr/bin/rsync"),
    ("make", "/usr/bin/make"),
    ("gcc", "/usr/bin/gcc"),
    ("tar", "/bin/tar"),
    ("xz-utils", "/usr/bin/xz"),
    ("linux-source-6.1", "/usr/src/linux-source-6.1.tar.xz"),
];

/// Installs what is missing.
pub fn install() -> Result<()> {
    let there = |file: &str| {
        Path::new(file).exists() || Path::new("/usr").join(file.trim_start_matches('/')).exists()
    };
    let missing: Vec<&str> =
        PACKAGES.iter().filter(|(_, file)| !there(file)).map(|(package, _)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("installing {}", missing.join(" "));
    let install = || {
        let mut command = Command::new("apt-get");
        command.args(["install", "-y", "--no-install-recommends"]).args(&missing);
        run(command.env("DEBIAN_FRONTEND", "noninteractive"))
    };
    if install().is_err() {
        // The lists may be old or not there yet.
        run(Command::new("apt-get").arg("update"))?;
        install()?;
    }
    Ok(())
}
