//! What is made once and used by every cell: a source tree with its archive, a repository.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Scale, walk};
use crate::process::run;

/// Debian's package `linux-source-6.1`.
const LINUX: &str = "/usr/src/linux-source-6.1.tar.xz";
/// The name of the first commit.
pub const FIRST: &str = "first";

/// Something to be made once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Material {
    /// A tree, and beside it `.tar`.
    Tree,
    /// A bare repository.
    Repository,
}

impl Material {
    /// Where it is.
    pub fn path(self, scratch: &Path) -> PathBuf {
        scratch.join(match self {
            Material::Tree => "tree",
            Material::Repository => "repository",
        })
    }

    /// How many files and directories it has.
    pub fn files(self, scratch: &Path) -> Result<u64> {
        let path = self.path(scratch).with_extension("count");
        Ok(fs::read_to_string(&path).with_context(|| path.display().to_string())?.trim().parse()?)
    }

    /// Its archive.
    pub fn archive(self, scratch: &Path) -> PathBuf {
        self.path(scratch).with_extension("tar")
    }

    /// Has the system cache all of it. Otherwise the first of the file systems that are measured one after the other is charged for
    /// reading what it is made from.
    pub fn cache(self, scratch: &Path) -> Result<()> {
        walk(&self.path(scratch), &mut |entry| {
            if entry.file_type()?.is_file() { read(&entry.path()) } else { Ok(()) }
        })
    }

    /// The same for who only looks at attributes.
    pub fn cache_attributes(self, scratch: &Path) -> Result<()> {
        walk(&self.path(scratch), &mut |entry| {
            entry.metadata()?;
            Ok(())
        })
    }

    /// The same for who reads its archive.
    pub fn cache_archive(self, scratch: &Path) -> Result<()> {
        read(&self.archive(scratch))
    }

    /// Makes it, unless it is there.
    pub fn make(self, scratch: &Path, scale: Scale) -> Result<()> {
        let path = self.path(scratch);
        if path.with_extension("count").exists() {
            return Ok(());
        }
        match self {
            Material::Tree => tree(&path, scale)?,
            Material::Repository => repository(&path, scale.of(20_000, 2_000))?,
        }
        fs::write(path.with_extension("count"), count(&path)?.to_string())?;
        Ok(())
    }
}

fn read(path: &Path) -> Result<()> {
    io::copy(&mut fs::File::open(path)?, &mut io::sink())?;
    Ok(())
}

fn count(dir: &Path) -> Result<u64> {
    let mut sum = 0;
    walk(dir, &mut |_| {
        sum += 1;
        Ok(())
    })?;
    Ok(sum)
}

fn tree(path: &Path, scale: Scale) -> Result<()> {
    let archive = path.with_extension("tar");
    fs::create_dir(path)?;
    if scale != Scale::Whole {
        generate(path, scale.of(0, 5_000), 0)?;
        run(Command::new("tar").arg("cf").arg(&archive).arg("-C").arg(path).arg("."))?;
    } else {
        let unpacked = fs::File::create(&archive)?;
        let status = Command::new("xz").args(["-dc", LINUX]).stdout(unpacked).status()?;
        anyhow::ensure!(status.success(), "xz -dc {LINUX} ended with {status}");
        run(Command::new("tar").arg("xf").arg(&archive).arg("-C").arg(path))?;
    }
    Ok(())
}

/// A length as those of a large source tree are distributed: half below 4.5 KB, 15 KB in the mean.
fn length(rng: &mut StdRng) -> usize {
    // A normal distribution, nearly: the sum of twelve uniform ones.
    let normal = (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0;
    (4_500.0 * (1.55 * normal).exp()).min(2_000_000.0) as usize
}

/// Text that compresses as source does.
fn text(rng: &mut StdRng, len: usize) -> String {
    const WORDS: [&str; 16] = [
        "struct", "static", "int", "return", "device", "->", "buffer", "if (", ") {\n\t", "}\n", ";\n\t",
        "inode", " = ", "0x", "offset", ", ",
    ];
    let mut text = String::with_capacity(len + 16);
    while text.len() < len {
        let bits: u32 = rng.random();
        text.push_str(WORDS.get((bits & 15) as usize).copied().unwrap_or_default());
        if bits & 0x70 == 0 {
            let _ = write!(text, "{:x}", bits >> 12);
        }
        text.push(' ');
    }
    text
}

/// Files in directories of about 16, three deep. Other `version`s differ in a fifth of the files.
fn generate(root: &Path, files: u64, version: u64) -> Result<()> {
    for n in 0..files {
        let leaf = n / 16;
        let dir = root.join(format!("sub{}/part{}/leaf{leaf}", leaf % 8, leaf % 40));
        if n % 16 == 0 {
            fs::create_dir_all(&dir)?;
        }
        let changed = version > 0 && (n + version).is_multiple_of(5);
        if version > 0 && !changed {
            continue;
        }
        let mut rng = StdRng::seed_from_u64(n << 8 | version);
        let len = length(&mut rng);
        fs::write(dir.join(format!("file{n}.c")), text(&mut rng, len))?;
    }
    Ok(())
}

fn repository(path: &Path, files: u64) -> Result<()> {
    let work = path.with_extension("work");
    fs::create_dir(&work)?;
    let git = |dir: &Path, arguments: &[&str]| {
        let mut command = Command::new("git");
        let config =
            ["user.name=bench", "user.email=bench@localhost", "gc.auto=0", "init.defaultBranch=main"];
        config.iter().for_each(|value| {
            command.args(["-c", value]);
        });
        let date = "2026-01-01T00:00:00Z";
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", &work);
        command.env("GIT_AUTHOR_DATE", date).env("GIT_COMMITTER_DATE", date);
        run(command.current_dir(dir).args(arguments))
    };
    git(&work, &["init", "-q"])?;
    for version in 0..6 {
        generate(&work, files, version)?;
        git(&work, &["add", "-A"])?;
        git(&work, &["commit", "-q", "-m", &format!("version {version}")])?;
        if version == 0 {
            git(&work, &["tag", FIRST])?;
        }
    }
    let bare = path.to_string_lossy();
    git(&work, &["clone", "-q", "--bare", ".", &bare])?;
    git(path, &["repack", "-q", "-a", "-d"])?;
    Ok(fs::remove_dir_all(&work)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_distributed_as_they_say() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut lengths: Vec<usize> = (0..20_000).map(|_| length(&mut rng)).collect();
        lengths.sort_unstable();
        let (median, mean) = (lengths[10_000], lengths.iter().sum::<usize>() / lengths.len());
        assert!((4_200..4_800).contains(&median) && (13_000..17_000).contains(&mean), "{median} {mean}");
    }

    #[test]
    fn a_version_changes_a_fifth_and_is_always_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let read = |n| fs::read(dir.path().join(format!("sub0/part0/leaf0/file{n}.c"))).unwrap();
        generate(dir.path(), 10, 0).unwrap();
        let before: Vec<_> = (0..10).map(read).collect();
        generate(dir.path(), 10, 1).unwrap();
        assert_eq!((0..10).filter(|n| read(*n) != before[*n as usize]).count(), 2);
        generate(dir.path(), 10, 0).unwrap();
        assert_eq!((0..10).map(read).collect::<Vec<_>>(), before);
    }
}
