//! Block sizes beyond a page, which the kernel does not mount: GRUB's reader, a second and independent
//! one, reads what Silt wrote. It shows names and contents of the newest checkpoint and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use silt_device::Device;
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Volume};
use silt_fs::{Context, Fs, Ino, WriteFlags};
use silt_model::rng::Rng;

use crate::rig::Rig;
use crate::scratch::Scratch;

const SIZES: [u32; 7] = [1024, 2048, 4096, 8192, 16384, 32768, 65536];

/// Writes a volume of every block size and has GRUB read it.
pub fn grub(rig: &Rig) -> Result<()> {
    for block_size in SIZES {
        let scratch = Scratch::new("grub")?;
        let image = scratch.join("v.img");
        let (expected, removed) = write(&image, block_size)?;
        let dir = scratch.join("mnt");
        std::fs::create_dir(&dir)?;
        let mounted = Mounted::new(rig, &image, &dir)?;
        for (path, content) in &expected {
            let got = std::fs::read(dir.join(path))
                .with_context(|| format!("blocks of {block_size}: {path}, {} bytes", content.len()))?;
            if got != *content {
                bail!("blocks of {block_size}: GRUB reads {path} differently ({} bytes)", got.len());
            }
        }
        let mut listed = BTreeSet::new();
        list(&dir, "", &mut listed)?;
        drop(mounted);
        let written: BTreeSet<String> = expected.keys().cloned().collect();
        if let Some(path) = written.difference(&listed).next() {
            bail!("blocks of {block_size}: GRUB does not list {path}");
        }
        // GRUB also lists the first entry of a block when it is free: names that were removed.
        if let Some(path) = listed.difference(&written).find(|path| !removed.contains(*path)) {
            bail!("blocks of {block_size}: GRUB lists {path}, which was never there");
        }
        let names = written.len();
        println!("blocks of {block_size}: GRUB reads {names} files equally");
    }
    Ok(())
}

/// Adds the paths of all files below a directory.
fn list(dir: &Path, prefix: &str, paths: &mut BTreeSet<String>) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            list(&entry.path(), &format!("{path}/"), paths)?;
        } else {
            paths.insert(path);
        }
    }
    Ok(())
}

/// What files hold, by path.
type Contents = BTreeMap<String, Vec<u8>>;

/// Files of all sizes in some directories, in several checkpoints, with changes between them; and the
/// paths that were removed.
fn write(image: &Path, block_size: u32) -> Result<(Contents, BTreeSet<String>)> {
    let size = u64::from(block_size) * 64 * 512;
    let device: Arc<dyn Device> = Arc::new(silt_device::create_image(image, size, true)?);
    let parameters = Parameters {
        block_size,
        blocks_per_segment: 64,
        label: b"grub".to_vec(),
        uuid: [5; 16],
        crc_seed: 4711,
        now: 1_790_000_000,
        block_count: true,
        ..Parameters::default()
    };
    Plan::new(parameters, size)?.write(&*device, false)?;
    let options = OpenOptions { now: 1_790_000_001, ..OpenOptions::default() };
    let (mut volume, _) = Volume::open(device.clone(), &options)?;
    volume.take_over(1_790_000_001)?;
    let mut fs = Fs::new(volume, &silt_fs::Options::default());
    let ctx = Context { privileged: true, ..Context::default() };
    let mut rng = Rng::new(u64::from(block_size));
    let mut expected: BTreeMap<String, (Ino, Ino, Vec<u8>)> = BTreeMap::new();
    let mut removed = BTreeSet::new();
    let dirs: Vec<(String, Ino)> = (0..5)
        .map(|n| Ok((format!("dir{n}"), fs.mkdir(&ctx, Ino::ROOT, format!("dir{n}").as_bytes(), 0o755)?.ino)))
        .collect::<Result<_>>()?;
    for round in 0..6u64 {
        for n in 0..60 {
            let (dir, parent) = &dirs[(n % 5) as usize];
            let name = format!("file {round} {n}");
            let ino = fs.create(&ctx, *parent, name.as_bytes(), 0o100_644)?.ino;
            let len = match n % 6 {
                0 => 0,
                1 => 100 + n,
                2 => u64::from(block_size),
                3 => u64::from(block_size) * 7 + 1,
                4 => 40_000 + rng.below(40_000),
                _ => u64::from(block_size) * 3 - 1,
            };
            let content: Vec<u8> =
                (0..len).map(|i| (i * 7 + n * 13 + round) as u8 ^ (i >> 8) as u8).collect();
            let mut at = 0;
            while at < content.len() {
                at += fs.write(&ctx, ino, at as u64, &content[at..], WriteFlags::default())?;
            }
            expected.insert(format!("{dir}/{name}"), (*parent, ino, content));
        }
        // Some are changed, some grow, some go. No holes: GRUB does not read them, whoever wrote them.
        let some: Vec<String> = expected.keys().step_by(9).cloned().collect();
        for (i, path) in some.iter().enumerate() {
            let Some((parent, ino, content)) = expected.get_mut(path) else { continue };
            if i % 3 == 0 {
                let name = path.rsplit('/').next().unwrap_or(path).to_owned();
                fs.unlink(&ctx, *parent, name.as_bytes())?;
                expected.remove(path);
                removed.insert(path.clone());
            } else {
                let offset = content.len() as u64 / (1 + i as u64 % 4);
                fs.write(&ctx, *ino, offset, &[0xA5; 5000], WriteFlags::default())?;
                content.resize(content.len().max(offset as usize + 5000), 0);
                content[offset as usize..offset as usize + 5000].fill(0xA5);
            }
        }
        fs.sync_all(1_790_000_100 + round)?;
    }
    fs.volume_mut().close(1_790_001_000)?;
    Ok((expected.into_iter().map(|(path, (_, _, content))| (path, content)).collect(), removed))
}

/// A `grub-mount`, ended when dropped.
struct Mounted {
    dir: PathBuf,
}

impl Mounted {
    fn new(rig: &Rig, image: &Path, dir: &Path) -> Result<Self> {
        let status = Command::new(rig.tool("grub-mount")?)
            .args([image, dir])
            .envs(rig.environment())
            .stdout(Stdio::null())
            .status()?;
        if !status.success() {
            bail!("grub-mount {} ended with {status}", image.display());
        }
        Ok(Mounted { dir: dir.to_owned() })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.dir).status();
    }
}
