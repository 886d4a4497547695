//! Repair before the real kernel: golden volumes are damaged and mended, or taken back to older checkpoints; the kernel
//! mounts each for writing, finds what Silt finds in the tree and in all snapshots, runs its cleaner to the end and
//! unmounts; a check finds nothing afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use silt_device::MemoryDevice;
use silt_fs_model::FsTarget;
use silt_model::manifest::Columns;
use silt_model::target::{Target, Tree};
use silt_repair::{Options, errors, plan};
use silt_verify::surgeon::{Sums, Surgeon};
use silt_verify::{Options as CheckOptions, check};

use crate::golden::{snapshot_trees, store};
use crate::guest;
use crate::rig::Rig;
use crate::scratch::Scratch;
use crate::turn::{KernelTurn, Trees, kernel_turns};

/// Seconds since 1970, later than the volumes were made.
const NOW: u64 = 1_800_000_000;

/// What to do to a volume before it is repaired.
type Damage = fn(&mut Surgeon);

fn noise(s: &mut Surgeon, block: u64) {
    s.patch_with(block, Sums::None, |b| {
        let mut x = 0x9E37_79B9_7F4A_7C15u64;
        for byte in b {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (x >> 33) as u8;
        }
    });
}

/// Classes of mend by name, and what calls for them.
const DAMAGE: &[(&str, Damage)] = &[
    ("super-block", |s| s.patch_super((true, false), |b| b.last_pseg = 3.into())),
    ("sufile", |s| {
        let block = s.file(5).into_values().next().unwrap_or(0);
        noise(s, block);
    }),
    ("dat", |s| {
        let block = s.dat().blocks.into_values().last().unwrap_or(0);
        noise(s, block);
    }),
    ("cpfile", |s| {
        let block = s.file(4).into_values().next().unwrap_or(0);
        noise(s, block);
    }),
    ("counts", |s| {
        let cno = s.cno();
        s.patch_checkpoint(cno, |e| e.blocks_count = 1.into());
    }),
    ("ifile", |s| {
        let block = s.file(6).into_values().next().unwrap_or(0);
        noise(s, block);
    }),
    ("directory", |s| {
        let block = s.file(2).into_values().next().unwrap_or(0);
        noise(s, block);
    }),
    ("links", |s| s.patch_inode(2, |i| i.links_count = 90.into())),
    ("log", |s| {
        let block = s.latest().pos.0;
        noise(s, block);
    }),
];

struct Case {
    name: String,
    broken: MemoryDevice,
    options: Options,
}

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for volume in ["basic-4k", "basic-1k", "gc-4k", "btree-1k"] {
        for (class, damage) in DAMAGE {
            let mut s = Surgeon::golden(volume);
            damage(&mut s);
            let options = Options { drop_snapshots: true, ..options() };
            all.push(Case { name: format!("{volume}, {class}"), broken: s.device, options });
        }
        let sound = Surgeon::golden(volume);
        let every = silt_engine::mend::snapshots(Arc::new(sound.device.fork())).unwrap_or_default();
        let past = every.into_iter().chain([sound.cno().saturating_sub(1)]);
        for c in past {
            let options = Options { to_checkpoint: Some(c), ..options() };
            all.push(Case {
                name: format!("{volume}, roll-back to {c}"),
                broken: sound.device.fork(),
                options,
            });
        }
    }
    all
}

fn options() -> Options {
    Options { now: NOW, seed: 11, cache_bytes: 64 << 20, ..Options::default() }
}

/// Repairs all of them; one guest looks at them.
pub fn repair(rig: &Rig) -> Result<()> {
    let scratch = Scratch::new("repair")?;
    let (mut turns, mut names, mut bad) = (Vec::new(), Vec::new(), 0);
    for (n, case) in cases().into_iter().enumerate() {
        let made = plan(Arc::new(case.broken.fork()), &case.options)?;
        if errors(&made.after) > 0 || made.is_empty() {
            println!("{}: {} errors are left, {:?}", case.name, errors(&made.after), made.stopped);
            bad += 1;
            continue;
        }
        made.apply(&case.broken)?;
        let image = scratch.join(&format!("{n}.img"));
        let device = store(&case.broken, &image)?;
        let options = silt_engine::OpenOptions { read_only: true, now: NOW, ..Default::default() };
        let (volume, _) = silt_engine::Volume::open(device.clone(), &options)?;
        let block_size = volume.geometry().bs();
        let snapshots: BTreeMap<u32, u64> = (0..).zip(volume.snapshots()?.into_iter().map(|c| c.0)).collect();
        drop(volume);
        // Reading is done on a copy: opening for writing is the kernel's.
        let copy: Arc<dyn silt_device::Device> = Arc::new(case.broken.fork());
        let mut target = FsTarget::open(copy, silt_fs::Options::default(), NOW + 1000)?;
        let mut read: Trees = snapshot_trees(&mut target, &snapshots)?;
        read.live = target.manifest(Tree::Live, Columns::ALL).map_err(|e| anyhow!(e))?;
        drop((target, device));
        turns.push(KernelTurn {
            before: vec![(read, Columns::ALL)],
            snapshots,
            snapshots_made: 100,
            read_only: false,
            clean: true,
            ..KernelTurn::look(&image, block_size)
        });
        names.push((case.name, image));
    }
    let reports = kernel_turns(rig, &turns, 1, &guest::Options::default())?;
    for ((name, image), report) in names.iter().zip(reports) {
        let device = silt_device::open(image, silt_device::Access::ReadOnly, &Default::default())?;
        let after = check(&device, &CheckOptions { all_checkpoints: true, ..CheckOptions::default() });
        let files = report.trees.map_or(0, |t| t.live.len());
        println!(
            "{name}: {files} names, {} complaints, {} errors after",
            report.complaints.len(),
            errors(&after)
        );
        report.complaints.iter().take(5).for_each(|c| println!("  {c}"));
        after.errors().take(5).for_each(|f| println!("  {f}"));
        bad += report.complaints.len() + usize::from(!after.is_clean());
    }
    if bad > 0 { bail!("the kernel does not agree") } else { Ok(()) }
}
