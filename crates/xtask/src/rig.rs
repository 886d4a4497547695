//! What the instrument needs from Debian: the kernel as a process, the tools of nilfs, and a second reader.
//!
//! Installed packages are used where they are; without the right to install, packages are unpacked into `rig/` of
//! the project (which git ignores) and used from there.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A package and a file of it that tells whether it is there.
const PACKAGES: &[(&str, &str)] = &[
    ("user-mode-linux", "usr/bin/linux.uml"),
    ("nilfs-tools", "sbin/mkfs.nilfs2"),
    ("grub-common", "usr/bin/grub-mount"),
    ("zstd", "usr/bin/zstd"),
    ("fuse3", "usr/bin/fusermount3"),
    // What workloads of the benchmarks run, which the tests try, too.
    ("e2fsprogs", "sbin/mkfs.ext4"),
    ("git", "usr/bin/git"),
    ("make", "usr/bin/make"),
    ("rsync", "usr/bin/rsync"),
];

/// Where things are.
#[derive(Clone, Debug)]
pub struct Rig {
    linux: PathBuf,
    modules: PathBuf,
    roots: Vec<PathBuf>,
}

/// The project's directory.
pub fn project() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// Where packages are unpacked that cannot be installed.
fn unpacked() -> PathBuf {
    project().join("rig/root")
}

/// The file of a package below one of the roots. Debian's `/sbin` may be `/usr/sbin`.
fn find(roots: &[PathBuf], file: &str) -> Option<PathBuf> {
    roots.iter().flat_map(|root| [root.join(file), root.join("usr").join(file)]).find(|path| path.exists())
}

fn roots() -> Vec<PathBuf> {
    vec![PathBuf::from("/"), unpacked()]
}

impl Rig {
    /// Finds everything, or says what is missing and how to get it.
    pub fn find() -> Result<Self> {
        let roots = roots();
        let missing: Vec<&str> = PACKAGES
            .iter()
            .filter(|(_, file)| find(&roots, file).is_none())
            .map(|(package, _)| *package)
            .collect();
        if !missing.is_empty() {
            bail!("these Debian packages are missing: {}; `cargo xtask rig` gets them", missing.join(" "));
        }
        let linux = find(&roots, "usr/bin/linux.uml").context("linux.uml went away")?;
        let versions = find(&roots, "usr/lib/uml/modules").context("the modules of linux.uml are missing")?;
        let modules = std::fs::read_dir(&versions)?
            .filter_map(|entry| Some(entry.ok()?.path().join("kernel")))
            .find(|path| path.join("fs/nilfs2/nilfs2.ko").exists())
            .with_context(|| format!("no nilfs2.ko below {}", versions.display()))?;
        Ok(Self { linux, modules, roots })
    }

    /// The kernel.
    pub fn linux(&self) -> &Path {
        &self.linux
    }

    /// A module by its path below the kernel's modules, with parameters, for a job.
    pub fn module(&self, path: &str, parameters: &str) -> (PathBuf, String) {
        (self.modules.join(path), parameters.to_owned())
    }

    /// A tool of the packages.
    pub fn tool(&self, name: &str) -> Result<PathBuf> {
        ["sbin", "bin", "usr/sbin", "usr/bin"]
            .iter()
            .find_map(|dir| find(&self.roots, &format!("{dir}/{name}")))
            .with_context(|| format!("there is no {name}; `cargo xtask rig` may get it"))
    }

    /// `PATH` and `LD_LIBRARY_PATH` under which all tools run.
    pub fn environment(&self) -> Vec<(String, String)> {
        let below = |dirs: &[&str]| {
            let paths = self.roots.iter().flat_map(|root| dirs.iter().map(move |dir| root.join(dir)));
            paths.map(|path| path.to_string_lossy().into_owned()).collect::<Vec<_>>().join(":")
        };
        vec![
            ("PATH".to_owned(), below(&["usr/sbin", "usr/bin", "sbin", "bin"])),
            ("LD_LIBRARY_PATH".to_owned(), below(&["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"])),
        ]
    }
}

fn succeeds(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("starting {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// The file of a package that is looked into, not installed: downloaded to `rig/packages` unless it is there.
pub fn package(name: &str) -> Result<PathBuf> {
    let directory = project().join("rig/packages");
    std::fs::create_dir_all(&directory)?;
    let have = || -> Result<Option<PathBuf>> {
        let begins = format!("{name}_");
        let entries = std::fs::read_dir(&directory)?.collect::<std::io::Result<Vec<_>>>()?;
        Ok(entries.iter().find(|e| e.file_name().to_string_lossy().starts_with(&begins)).map(|e| e.path()))
    };
    if let Some(path) = have()? {
        return Ok(path);
    }
    let mut download = Command::new("apt-get");
    download.arg("download").arg(name).current_dir(&directory);
    if succeeds(&mut download).is_err() {
        // The lists may be old or not there yet; only the superuser can renew them.
        succeeds(Command::new("apt-get").arg("update"))?;
        succeeds(&mut download)?;
    }
    have()?.with_context(|| format!("apt-get downloaded no {name}"))
}

/// Gets the packages that are missing: installs them if this is the superuser, else unpacks them.
pub fn fetch() -> Result<()> {
    let roots = roots();
    let missing: Vec<&str> = PACKAGES
        .iter()
        .filter(|(_, file)| find(&roots, file).is_none())
        .map(|(package, _)| *package)
        .collect();
    if missing.is_empty() {
        println!("nothing is missing");
        return Ok(());
    }
    println!("missing: {}", missing.join(" "));
    if rustix::process::geteuid().is_root() {
        let mut install = Command::new("apt-get");
        install.args(["install", "-y", "--no-install-recommends"]).args(&missing);
        install.env("DEBIAN_FRONTEND", "noninteractive");
        if succeeds(&mut install).is_err() {
            // The lists may be old or not there yet.
            succeeds(Command::new("apt-get").arg("update"))?;
            succeeds(&mut install)?;
        }
    } else {
        let directory = project().join("rig/packages");
        std::fs::create_dir_all(&directory)?;
        std::fs::create_dir_all(unpacked())?;
        succeeds(Command::new("apt-get").arg("download").args(&missing).current_dir(&directory))?;
        for entry in std::fs::read_dir(&directory)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if missing.iter().any(|package| name.starts_with(&format!("{package}_"))) {
                succeeds(Command::new("dpkg").arg("-x").arg(&path).arg(unpacked()))?;
            }
        }
    }
    Rig::find().map(|_| println!("everything is there"))
}
