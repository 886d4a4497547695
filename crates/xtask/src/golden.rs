//! The golden volumes, which the real kernel wrote: Silt takes them over, writes on, and the kernel
//! reads everything equally, old snapshots included.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use silt_cleaner::Whole;
use silt_control::retention::Given;
use silt_device::{Device, MemoryDevice};
use silt_engine::{OpenOptions, Volume};
use silt_fs::{Context, Ino, Seek, Tree as FsTree, WriteFlags};
use silt_fs_model::FsTarget;
use silt_model::manifest::Columns;
use silt_model::op::Op;
use silt_model::path::TreePath;
use silt_model::target::{Reply, Target, Tree};
use silt_verify::golden;

use crate::guest::Options;
use crate::rig::Rig;
use crate::scratch::Scratch;
use crate::turn::{KernelTurn, Trees, kernel_turns};

/// Seconds since 1970, later than the volumes were made.
const NOW: u64 = 1_800_000_000;

/// Copies what a device in memory holds to a sparse image.
pub(crate) fn store(from: &MemoryDevice, image: &std::path::Path) -> Result<Arc<dyn Device>> {
    let device = silt_device::create_image(image, from.len(), true)?;
    let mut result = Ok(());
    from.for_each_chunk(|offset, bytes| {
        if result.is_ok() {
            result = device.write_at(offset, &[bytes]);
        }
    });
    result?;
    Ok(Arc::new(device))
}

/// What came of it, unless there was no room for it.
fn room<T>(result: silt_fs::Result<T>) -> Result<Option<T>> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(e) if e.errno() == rustix::io::Errno::NOSPC.raw_os_error() => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// New files, changed files and removed names, in several checkpoints.
fn change(target: &mut FsTarget) -> Result<()> {
    let ctx = Context { privileged: true, ..Context::default() };
    let fs = &mut target.fs;
    // A full volume has no room for more than removals.
    if let Some(dir) = room(fs.mkdir(&ctx, Ino::ROOT, b"by silt", 0o755))? {
        for n in 0..40u64 {
            let name = format!("file {n}");
            let Some(file) = room(fs.create(&ctx, dir.ino, name.as_bytes(), 0o100_640))? else { break };
            let data: Vec<u8> = (0..n * 700).map(|i| (i % 251) as u8).collect();
            room(fs.write(&ctx, file.ino, n * 300, &data, WriteFlags::default()))?;
            if n % 10 == 0 {
                fs.sync_all(NOW + 100 + n)?;
            }
        }
    }
    let mut names = Vec::new();
    fs.readdir(FsTree::Live, Ino::ROOT, 0, true, |e| {
        if e.stat.is_some_and(|s| s.is_regular()) {
            names.push((e.ino, e.name.to_vec()));
        }
        std::ops::ControlFlow::Continue(())
    })?;
    for (i, (ino, name)) in names.iter().enumerate() {
        match i % 3 {
            0 => drop(fs.unlink(&ctx, Ino::ROOT, name)?),
            1 => drop(room(fs.write(&ctx, *ino, 1500, &[0x5A; 3000], WriteFlags::default()))?),
            _ => {}
        }
    }
    fs.sync_all(NOW + 500)?;
    Ok(())
}

/// Plays all volumes; one guest looks at them in the end.
pub fn golden(rig: &Rig) -> Result<()> {
    let scratch = Scratch::new("golden")?;
    let mut turns = Vec::new();
    for name in golden::NAMES {
        let image = scratch.join(&format!("{name}.img"));
        let device = store(&golden::open(name), &image)?;
        let mut target = FsTarget::open(device.clone(), silt_fs::Options::default(), NOW)?;
        let snapshots: BTreeMap<u32, u64> =
            (0..).zip(target.fs.volume().snapshots()?.into_iter().map(|c| c.0)).collect();
        let before = snapshot_trees(&mut target, &snapshots)?;
        change(&mut target)?;
        target.close_volume()?;
        drop(target);
        let mut target = FsTarget::open(device, silt_fs::Options::default(), NOW + 1000)?;
        let mut read = snapshot_trees(&mut target, &snapshots)?;
        let changed = before.differences(&read, Columns::ALL);
        if !changed.is_empty() {
            bail!("{name}: writing changed a snapshot: {changed:#?}");
        }
        read.live = target.manifest(Tree::Live, Columns::ALL).map_err(|e| anyhow!(e))?;
        let mut probes = probes(&mut target, FsTree::Live)?;
        for c in snapshots.values() {
            target.fs.volume_mut().open_view(silt_format::Cno(*c))?;
            probes.extend(self::probes(&mut target, FsTree::Past(*c))?);
        }
        probes.sort_unstable();
        probes.dedup();
        let block_size = target.fs.volume().geometry().bs();
        target.close_volume()?;
        turns.push(KernelTurn {
            before: vec![(read, Columns::ALL)],
            snapshots,
            snapshots_made: 100,
            probes,
            ..KernelTurn::look(&image, block_size)
        });
    }
    for name in golden::WEDGED {
        turns.push(wedged(name, &scratch)?);
    }
    let reports = kernel_turns(rig, &turns, 1, &Options::default())?;
    let mut bad = 0;
    for (name, report) in golden::NAMES.iter().chain(&golden::WEDGED).zip(reports) {
        println!(
            "{name}: {} names, {} complaints",
            report.trees.map_or(0, |t| t.live.len()),
            report.complaints.len()
        );
        report.complaints.iter().for_each(|c| println!("  {c}"));
        bad += report.complaints.len();
    }
    if bad > 0 { bail!("the kernel does not agree") } else { Ok(()) }
}

/// A volume on which the kernel left no segment to write to: Silt empties as few as will do, which changes no file, and
/// the kernel can remove files and make one again.
fn wedged(name: &str, scratch: &Scratch) -> Result<KernelTurn> {
    let image = scratch.join(&format!("{name}.img"));
    let before = read_only(store(&golden::open(name), &image)?)?;
    let device: Arc<dyn Device> = Arc::new(silt_device::open(
        &image,
        silt_device::Access::ReadWrite,
        &silt_device::OpenOptions::default(),
    )?);
    let options = OpenOptions { now: NOW, ..OpenOptions::default() };
    let (mut volume, _, note) = silt_control::open_with_room(&device, &options, &Given::default(), NOW)?;
    if note.is_none() || volume.is_wedged() {
        bail!("{name}: no room was made: {note:?}");
    }
    volume.take_over(NOW)?;
    // An ordinary cleaning fits now.
    silt_cleaner::run(&Whole::new(&mut volume, NOW), &silt_cleaner::Options::default(), |_| true)?;
    // The kernel keeps eight segments to itself, and takes some for what was removed.
    let fits = volume.available_segments() > 16;
    volume.close(NOW + 1)?;
    let block_size = volume.geometry().bs();
    drop(volume);
    let gone = (10..20).map(|n| Op::Unlink { path: TreePath::new(format!("f{n}").as_bytes()) });
    let new = Op::Create { path: TreePath::new(b"by the kernel"), mode: 0o644 };
    let ops = gone
        .chain([Op::Sync])
        .chain(fits.then_some(new))
        .chain([Op::Sync])
        .map(|op| (op, Ok(Reply::Done)))
        .collect();
    let after = read_only(device)?;
    let changed = before.differences(&after, Columns::ALL);
    if !changed.is_empty() {
        bail!("{name}: making room changed files: {changed:#?}");
    }
    Ok(KernelTurn {
        before: vec![(after, Columns::ALL)],
        read_only: false,
        ops,
        ..KernelTurn::look(&image, block_size)
    })
}

/// The live tree of a volume, which is left as it is.
fn read_only(device: Arc<dyn Device>) -> Result<Trees> {
    let options = OpenOptions { read_only: true, now: NOW, ..OpenOptions::default() };
    let (volume, _) = Volume::open(device.clone(), &options)?;
    let fs = silt_fs::Fs::new(volume, &silt_fs::Options::default());
    let mut target = FsTarget::over(fs, device, silt_fs::Options::default(), NOW);
    let live = target.manifest(Tree::Live, Columns::ALL).map_err(|e| anyhow!(e))?;
    Ok(Trees { live, ..Trees::default() })
}

/// Where large files hold data: the guest reads far offsets only where it is told to look.
pub(crate) fn probes(target: &mut FsTarget, tree: FsTree) -> Result<Vec<(u64, u64)>> {
    let fs = &mut target.fs;
    let mut found = Vec::new();
    let mut todo = vec![Ino::ROOT];
    while let Some(dir) = todo.pop() {
        let mut entries = Vec::new();
        fs.readdir(tree, dir, 0, true, |e| {
            entries.extend(e.stat);
            std::ops::ControlFlow::Continue(())
        })?;
        for stat in entries {
            if stat.is_dir() {
                todo.push(stat.ino);
            } else if stat.is_regular() && stat.size > 1 << 20 {
                let mut at = 0;
                while let Ok(data) = fs.seek(tree, stat.ino, at, Seek::Data) {
                    at = fs.seek(tree, stat.ino, data, Seek::Hole)?;
                    found.push((data, at - data));
                }
            }
        }
    }
    Ok(found)
}

pub(crate) fn snapshot_trees(target: &mut FsTarget, snapshots: &BTreeMap<u32, u64>) -> Result<Trees> {
    target.set_snapshots(snapshots.clone(), 100);
    let mut trees = Trees::default();
    for id in snapshots.keys() {
        let tree = target.manifest(Tree::Snapshot(*id), Columns::ALL).map_err(|e| anyhow!(e))?;
        trees.snapshots.insert(*id, tree);
    }
    Ok(trees)
}
