//! A large tree of real files through the real daemon: unpacked, copied, read back after a remount, and read by the
//! kernel's driver.
//!
//! The files are the sources of the crates that this project is built from, or, as a whole, those of Debian's
//! `linux-source-6.1` without anything about nilfs2: this project does not look at another implementation. Names,
//! links, times, modes and files that such trees lack are added.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, makedev, mknodat, utimensat};
use silt_model::caps::Capabilities;
use silt_model::content::{DEEP, pattern_bytes};
use silt_model::manifest::{Columns, Manifest, S_IFDIR, S_IFMT, diff};
use silt_model::syscalls::{Look, NoMoments, PathTarget, tree_manifest};

use crate::guest::Options;
use crate::mounted::{Mounted, judge, mkfs, run};
use crate::rig::{self, Rig};
use crate::scratch::Scratch;
use crate::turn::{KernelTurn, Trees, kernel_turns};

/// Which files.
#[derive(Clone, Debug)]
pub enum Files {
    /// So many of the crates' sources.
    Some(usize),
    /// All of `linux-source-6.1`, from this package or, if none is named, from Debian.
    Linux(Option<PathBuf>),
}

/// What any two file systems agree in.
const PORTABLE: Columns =
    Columns { ctime: false, blocks: false, flags: false, ino: false, generation: false, ..Columns::ALL };
/// Differences that are told.
const TOLD: usize = 20;

/// Unpacks, copies, compares. Needs root and /dev/fuse.
pub fn tree(rig: &Rig, silt: &Path, files: &Files) -> Result<()> {
    let scratch = Scratch::new("tree")?;
    let source = scratch.join("source");
    let mut watch = Watch::new();
    match files {
        Files::Some(count) => some_files(&source, *count)?,
        Files::Linux(package) => linux(package.as_deref(), &source, &scratch)?,
    }
    spice(&source)?;
    let tar = scratch.join("tree.tar");
    pack(&source, &tar)?;
    let expected = manifest(&source, PORTABLE)?;
    watch.lap("preparing");

    let (image, dir) = (scratch.join("v.img"), scratch.join("mnt"));
    mkfs(silt, &image, "64G", &[])?;
    let mounted = Mounted::new(silt, &image, &dir, &[])?;
    let (one, two) = (dir.join("unpacked"), dir.join("copied"));
    std::fs::create_dir(&one)?;
    run(Command::new("tar").arg("-xpf").arg(&tar).arg("-C").arg(&one))?;
    watch.lap("unpacking");
    run(Command::new("cp").arg("-a").arg(&one).arg(&two))?;
    watch.lap("cp -a");
    run(Command::new(silt).arg("sync").arg(&dir))?;
    watch.lap("sync");
    same("unpacked, before a remount", &expected, &manifest(&one, PORTABLE)?)?;
    same("copied, before a remount", &expected, &manifest(&two, PORTABLE)?)?;
    watch.lap("comparing");
    let first = mounted.peak_memory()?;
    mounted.unmount()?;
    watch.lap("unmounting");
    judge(&image)?;
    watch.lap("checking");

    let mounted = Mounted::new(silt, &image, &dir, &[])?;
    same("unpacked, after a remount", &expected, &manifest(&one, PORTABLE)?)?;
    same("copied, after a remount", &expected, &manifest(&two, PORTABLE)?)?;
    watch.lap("comparing after a remount");
    let live = manifest(&dir, Columns::ALL)?;
    let second = mounted.peak_memory()?;
    mounted.unmount()?;
    watch.lap("listing in every column");

    let names = live.len();
    let largest = live.entries().filter_map(|e| e.size).max().unwrap_or(0);
    let trees = Trees { live, ..Trees::default() };
    let turn = KernelTurn {
        before: vec![(trees, Columns::ALL)],
        probes: vec![(DEEP, largest.saturating_sub(DEEP))],
        ..KernelTurn::look(&image, 4096)
    };
    let options = Options { memory: 2048, ..Options::default() };
    let complaints: Vec<String> =
        kernel_turns(rig, &[turn], 1, &options)?.into_iter().flat_map(|report| report.complaints).collect();
    watch.lap("the kernel");
    if !complaints.is_empty() {
        bail!("the kernel does not agree:\n{}", complaints.join("\n"));
    }
    println!(
        "{} names unpacked and copied: {names} names equal after a remount and in the kernel",
        expected.len()
    );
    println!("seconds: {}", watch.told());
    println!("the daemon's memory: at most {} MiB writing, {} MiB reading", first >> 10, second >> 10);
    Ok(())
}

/// Seconds by what was done.
struct Watch {
    since: Instant,
    laps: Vec<(&'static str, f64)>,
}

impl Watch {
    fn new() -> Self {
        Self { since: Instant::now(), laps: Vec::new() }
    }

    fn lap(&mut self, what: &'static str) {
        self.laps.push((what, self.since.elapsed().as_secs_f64()));
        self.since = Instant::now();
    }

    fn told(&self) -> String {
        let laps: Vec<String> = self.laps.iter().map(|(what, s)| format!("{what} {s:.1}")).collect();
        laps.join(", ")
    }
}

fn manifest(dir: &Path, columns: Columns) -> Result<Manifest> {
    let root = PathTarget::<NoMoments>::open_root(dir).with_context(|| dir.display().to_string())?;
    let look = Look { columns, flags: Capabilities::silt(4096).flags, probes: None };
    let read = tree_manifest(root.as_fd(), &look).map_err(|e| anyhow!("{}: {e}", dir.display()))?;
    if columns == Columns::ALL {
        return Ok(read);
    }
    // How large a directory is and how its links are counted is each file system's own.
    let mut portable = Manifest::new();
    for entry in read.entries() {
        let mut entry = entry.clone();
        if entry.mode & S_IFMT == S_IFDIR {
            (entry.size, entry.nlink) = (None, 0);
        }
        portable.insert(entry);
    }
    Ok(portable)
}

fn same(what: &str, expected: &Manifest, found: &Manifest) -> Result<()> {
    let differences = diff(expected, found, PORTABLE);
    if differences.is_empty() {
        return Ok(());
    }
    let told: Vec<&str> = differences.iter().take(TOLD).map(String::as_str).collect();
    bail!("{what}: {} differences (packed / there):\n{}", differences.len(), told.join("\n"))
}

/// Packs a tree with everything that it is made of.
pub fn pack(source: &Path, tar: &Path) -> Result<()> {
    run(Command::new("tar").args(["--format=pax", "-cf"]).arg(tar).arg("-C").arg(source).arg(".")).map(|_| ())
}

/// Where cargo keeps the sources of crates.
fn crates() -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let sources = home.context("neither CARGO_HOME nor HOME is set")?.join("registry/src");
    let first = std::fs::read_dir(&sources).with_context(|| sources.display().to_string())?.next();
    Ok(first.with_context(|| format!("{} is empty", sources.display()))??.path())
}

/// Adds the files below `dir` to the list, in the order of their names, until there are `count`.
fn list(root: &Path, dir: &Path, count: usize, found: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries = std::fs::read_dir(dir)?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        if found.len() >= count {
            break;
        }
        if entry.file_type()?.is_dir() {
            list(root, &entry.path(), count, found)?;
        } else if entry.metadata()?.len() < 1 << 20 {
            found.push(entry.path().strip_prefix(root)?.to_owned());
        }
    }
    Ok(())
}

/// Copies so many files of crates, with their directories, to the new directory `to`.
pub fn some_files(to: &Path, count: usize) -> Result<()> {
    let root = crates()?;
    let mut found = Vec::new();
    list(&root, &root, count, &mut found)?;
    if found.len() < count {
        bail!("{} holds only {} files, {count} are wanted", root.display(), found.len());
    }
    std::fs::create_dir(to)?;
    let names = to.with_extension("list");
    let mut file = File::create(&names)?;
    for path in &found {
        file.write_all(path.as_os_str().as_bytes())?;
        file.write_all(&[0])?;
    }
    let tar = to.with_extension("tar");
    run(Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(&root).args(["--null", "-T"]).arg(&names))?;
    run(Command::new("tar").arg("-xpf").arg(&tar).arg("-C").arg(to))?;
    std::fs::remove_file(tar)?;
    Ok(std::fs::remove_file(names)?)
}

/// Unpacks the sources of Linux to the new directory `to`.
fn linux(package: Option<&Path>, to: &Path, scratch: &Scratch) -> Result<()> {
    let package = match package {
        Some(package) => package.to_owned(),
        None => rig::package("linux-source-6.1")?,
    };
    let unpacked = scratch.join("deb");
    run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&unpacked))?;
    let tar = unpacked.join("usr/src/linux-source-6.1.tar.xz");
    std::fs::create_dir(to)?;
    let mut command = Command::new("tar");
    command.args(["--exclude=*nilfs*", "--strip-components=1", "-xJpf"]).arg(&tar).arg("-C").arg(to);
    run(command.stdin(Stdio::null())).context("is xz-utils installed?")?;
    Ok(std::fs::remove_dir_all(unpacked)?)
}

/// Adds what trees of sources lack.
fn spice(tree: &Path) -> Result<()> {
    let dir = tree.join("spice");
    std::fs::create_dir(&dir)?;
    let (links, names, nodes) = (dir.join("links"), dir.join("names"), dir.join("nodes"));
    for dir in [&links, &names, &nodes] {
        std::fs::create_dir(dir)?;
    }
    for n in 0..40u64 {
        let file = links.join(format!("{n}"));
        let size = if n % 7 == 0 { 0 } else { n * 3000 };
        std::fs::write(&file, pattern_bytes(n, usize::try_from(size)?))?;
        for m in 0..n % 5 {
            let other = if m % 2 == 0 { &links } else { &names };
            std::fs::hard_link(&file, other.join(format!("{n}-{m}")))?;
        }
    }
    for (n, target) in ["0", "../names", "/nowhere", &"x/".repeat(1500), "nothing"].into_iter().enumerate() {
        symlink(target, links.join(format!("symlink {n}")))?;
    }
    std::fs::hard_link(links.join("symlink 1"), names.join("the same symlink"))?;
    for name in [&b"\xff\xfe not utf-8"[..], b"two\nlines", b" ", "\u{fc}".as_bytes(), &[b'n'; 255]] {
        std::fs::write(names.join(OsStr::from_bytes(name)), name)?;
    }
    let many = dir.join("many");
    std::fs::create_dir(&many)?;
    for n in 0..1000 {
        File::create(many.join(format!("a name of some length, number {n}")))?;
    }
    let mut deep = dir.clone();
    for n in 0..60 {
        deep.push(format!("deep{n}"));
        std::fs::create_dir(&deep)?;
    }
    std::fs::write(deep.join("bottom"), "reached\n")?;
    // Data far from the beginning, with holes of all sizes.
    let sparse = File::create(dir.join("sparse"))?;
    for offset in [0, 70_000, 3 << 20, 9_999_999] {
        sparse.write_all_at(&pattern_bytes(offset + 1, 5000), offset)?;
    }
    sparse.set_len(12 << 20)?;
    std::fs::write(dir.join("large"), pattern_bytes(5, 8 << 20))?;

    let node = |name: &str, kind, dev| mknodat(CWD, nodes.join(name), kind, Mode::from_raw_mode(0o640), dev);
    node("fifo", FileType::Fifo, 0)?;
    node("char", FileType::CharacterDevice, makedev(4095, 7))?;
    node("block", FileType::BlockDevice, makedev(8, 0xf_ffff))?;
    for (n, mode) in [0, 0o4755, 0o2755, 0o1777, 0o6711, 0o400, 0o777].into_iter().enumerate() {
        let path = nodes.join(format!("mode {mode:o}"));
        std::fs::write(&path, mode.to_string())?;
        // Giving a file away takes setuid bits from it: the mode comes last.
        std::os::unix::fs::chown(&path, Some(12_345 * u32::try_from(n)?), Some(54_321))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?;
    }
    std::fs::set_permissions(&names, std::fs::Permissions::from_mode(0o1770))?;
    let times = [(-1_000, 1), (0, 999_999_999), (1, 0), ((1 << 31) + 5, 123_456_789), (1_700_000_000, 7)];
    for (n, (tv_sec, tv_nsec)) in times.into_iter().enumerate() {
        let stamp = Timespec { tv_sec, tv_nsec };
        let stamps = Timestamps { last_access: stamp, last_modification: stamp };
        for path in [
            nodes.join(format!("time {n}")),
            nodes.join(format!("dir {n}")),
            links.join(format!("symlink {n}")),
        ] {
            match path.file_name().and_then(OsStr::to_str) {
                Some(name) if name.starts_with("time") => std::fs::write(&path, name)?,
                Some(name) if name.starts_with("dir") => std::fs::create_dir(&path)?,
                _ => {}
            }
            utimensat(CWD, &path, &stamps, AtFlags::SYMLINK_NOFOLLOW)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_seen() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("d");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("f"), "content").unwrap();
        let before = manifest(&dir, PORTABLE).unwrap();
        same("nothing", &before, &manifest(&dir, PORTABLE).unwrap()).unwrap();
        let stamp = Timespec { tv_sec: 5, tv_nsec: 6 };
        let stamps = Timestamps { last_access: stamp, last_modification: stamp };
        utimensat(CWD, dir.join("f"), &stamps, AtFlags::empty()).unwrap();
        let told = same("times", &before, &manifest(&dir, PORTABLE).unwrap()).unwrap_err().to_string();
        assert!(told.contains("5.000000006"), "{told}");
    }
}
