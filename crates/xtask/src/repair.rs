//! Repair before the real kernel: golden volumes are damaged and mended, or taken back to older checkpoints; the kernel
//! mounts each for writing, finds what Silt finds in the tree and in all snapshots, runs its cleaner to the end and
//! unmounts; a check finds nothing afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use silt_device::MemoryDevice;
use silt_format::SegNr;
use silt_format::btree::{self, Node};
use silt_format::segment_usage::{self, SuEntry};
use silt_format::summary::SR;
use silt_fs::Tree as FsTree;
use silt_fs_model::FsTarget;
use silt_model::manifest::Columns;
use silt_model::target::{Target, Tree as ModelTree};
use silt_repair::{Options, Plan, errors, plan};
use silt_verify::surgeon::{Sums, Surgeon};
use silt_verify::{Moment, Options as CheckOptions, Tree, check};

use crate::damage;
use crate::golden::{self, snapshot_trees, store};
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
    // As a crash leaves it, with a damaged log between the super blocks' checkpoint and the newest.
    ("recovery", |s| {
        let (g, newest) = (s.g(), s.latest());
        let mut roots: Vec<_> =
            (0..g.nsegments).flat_map(|n| s.logs(n)).filter(|l| l.header.has(SR)).collect();
        roots.retain(|l| (l.header.seq.get(), l.pos.0) <= (newest.header.seq.get(), newest.pos.0));
        roots.sort_by_key(|l| (l.header.seq.get(), l.pos.0));
        let [.., base, _, broken, _] = roots.as_slice() else { return };
        s.patch_super((true, true), |b| {
            b.state = 0.into();
            b.last_pseg = base.pos.0.into();
            b.last_seq = base.header.seq;
            b.last_cno = base.header.cno;
        });
        noise(s, broken.end() - 2);
    }),
    ("links", |s| s.patch_inode(2, |i| i.links_count = 90.into())),
    // As a repair leaves one that cannot be read to the end: no cleaner takes it.
    ("bad segment", |s| {
        let (g, newest) = (s.g(), s.latest());
        let segment = (0..g.segment_of(newest.pos).0).find(|n| !s.logs(*n).is_empty()).unwrap_or(0);
        let (offset, byte) = segment_usage::place(&g, SegNr(segment));
        let Some(block) = s.file(5).get(&offset).copied() else { return };
        s.patch(block, |b| {
            if let Ok(mut e) = SuEntry::read(b, byte) {
                e.flags = (e.flags.get() | segment_usage::DIRTY | segment_usage::ERROR).into();
                e.store(b, byte);
            }
        });
        s.patch_inode(2, |i| i.links_count = 90.into());
    }),
    ("log", |s| {
        let block = s.latest().pos.0;
        noise(s, block);
    }),
];

/// The oldest snapshot that has a block of a file that the latest tree has not, and such blocks.
fn past_blocks(s: &Surgeon, ino: u64) -> Vec<u64> {
    let snapshots = silt_engine::mend::snapshots(Arc::new(s.device.fork())).unwrap_or_default();
    let now: BTreeSet<u64> = s.file(ino).into_values().collect();
    let only =
        |c: u64| -> Vec<u64> { s.past_file(c, ino).into_values().filter(|b| !now.contains(b)).collect() };
    snapshots.into_iter().map(only).find(|all| !all.is_empty()).unwrap_or_default()
}

/// Damage that some volumes have a place for: of nodes, and in snapshots, mended in them.
const PAST: &[(&str, Damage)] = &[
    // With right checksums: nothing but a repair keeps a cleaner from bringing the old bytes back.
    ("map", |s| {
        let walked = Tree::open(&s.device, Moment::Latest).and_then(|t| t.walk()).unwrap_or_default();
        let roots =
            walked.iter().filter(|w| w.attributes.is_regular()).map(|w| s.inode(w.attributes.ino).bmap);
        let deep = |root: &[u8; 56]| btree::is_btree(root) && Node::root(root).level() > 1;
        if let Some(root) = roots.collect::<Vec<_>>().into_iter().find(deep) {
            let block = s.place_of(Node::root(&root).ptr(0));
            s.patch(block, |b| b[16..].fill(0));
        }
    }),
    ("directory of a snapshot", |s| past_blocks(s, 2).first().into_iter().for_each(|b| noise(s, *b))),
    // Descriptor, bitmap, and the first inodes with the root directory's.
    ("counts of a snapshot's inode file", |s| {
        past_blocks(s, 6).first().into_iter().for_each(|b| noise(s, *b));
    }),
    ("bits of a snapshot's inode file", |s| {
        past_blocks(s, 6).get(1).into_iter().for_each(|b| noise(s, *b));
    }),
    ("inodes of a snapshot", |s| past_blocks(s, 6).get(2).into_iter().for_each(|b| noise(s, *b))),
    ("more inodes of a snapshot", |s| past_blocks(s, 6).last().into_iter().for_each(|b| noise(s, *b))),
];

struct Case {
    name: String,
    broken: MemoryDevice,
    options: Options,
    /// Checkpoints that become snapshots after the repair, so that the kernel can show them.
    shown: Vec<u64>,
    /// Whether the kernel's cleaner runs: it does not come to an end where there is little room.
    cleaned: bool,
}

/// Volumes of [`damage`] with so little free space that a repair takes back what it took itself: volume, kind, number.
const TIGHT: [(u64, &str, u64); 3] =
    [(1010, "the beginning", 1), (9003, "run of zeros", 0), (9015, "two kinds", 1)];

/// The golden volumes of the campaign, and of its sample.
const VOLUMES: &[&str] = &["basic-4k", "basic-1k", "gc-4k", "btree-1k"];
const SAMPLE: &[&str] = &["gc-4k"];

/// Checkpoints that are shown of a volume after going back.
const SHOWN: usize = 6;

/// Golden volumes damaged in every way, and volumes with a past damaged at random; of those only such as are mended whole
/// are shown, since [`crate::damage`] judges the others.
fn cases(volumes: &[&'static str], random: Vec<(String, MemoryDevice)>) -> Vec<Case> {
    let mut all = Vec::new();
    for (name, broken) in random {
        let options = Options { drop_snapshots: true, zero_unreadable: true, ..options() };
        let made = plan(Arc::new(broken.fork()), &options);
        // The kernel's cleaner does not come to an end where there is little room.
        let room = |made: &Plan| {
            let mended = Surgeon { device: broken.fork() };
            made.apply(&mended.device).is_ok() && made.after.stats.segments * 2 < mended.g().nsegments
        };
        if made.is_ok_and(|made| !made.is_empty() && errors(&made.after) == 0 && room(&made)) {
            all.push(Case { name, broken, options, shown: Vec::new(), cleaned: true });
        }
    }
    for volume in volumes {
        for (class, damage) in DAMAGE {
            let mut s = Surgeon::golden(volume);
            damage(&mut s);
            let options = Options { drop_snapshots: true, ..options() };
            all.push(Case {
                name: format!("{volume}, {class}"),
                broken: s.device,
                options,
                shown: Vec::new(),
                cleaned: true,
            });
        }
        for (what, damage) in PAST {
            let mut s = Surgeon::golden(volume);
            damage(&mut s);
            if check(&s.device, &CheckOptions::default()).is_clean() {
                continue;
            }
            let name = format!("{volume}, {what}");
            all.push(Case { name, broken: s.device, options: options(), shown: Vec::new(), cleaned: true });
        }
        let sound = Surgeon::golden(volume);
        let every = silt_engine::mend::snapshots(Arc::new(sound.device.fork())).unwrap_or_default();
        let past: BTreeSet<u64> = every.into_iter().chain([sound.cno().saturating_sub(1)]).collect();
        for (n, c) in past.into_iter().enumerate() {
            let options = Options { to_checkpoint: Some(c), ..options() };
            // What lies between is read before and after the cleaner ran, or left to it.
            let between: Vec<u64> = (c..sound.cno()).collect();
            let shown = if n == 0 {
                between.iter().copied().step_by(between.len().div_ceil(SHOWN).max(1)).collect()
            } else {
                Vec::new()
            };
            let name = format!("{volume}, roll-back to {c}, {} shown", shown.len());
            all.push(Case { name, broken: sound.device.fork(), options, shown, cleaned: true });
        }
    }
    all
}

/// Makes the checkpoints there are of `cnos` snapshots.
fn show(device: &Arc<MemoryDevice>, cnos: &[u64]) -> Result<()> {
    if cnos.is_empty() {
        return Ok(());
    }
    let options = silt_engine::OpenOptions { now: NOW, ..Default::default() };
    let (mut volume, _) = silt_engine::Volume::open(device.clone(), &options)?;
    for c in cnos {
        match volume.make_snapshot(silt_format::Cno(*c)) {
            Ok(()) | Err(silt_engine::Error::NoCheckpoint(_)) => {}
            Err(e) => return Err(e.into()),
        }
    }
    volume.close(NOW)?;
    Ok(())
}

fn options() -> Options {
    Options { now: NOW, seed: 11, cache_bytes: 64 << 20, ..Options::default() }
}

/// Repairs golden volumes damaged in every way, or some of them for a `sample`; one guest looks at them.
pub fn repair(rig: &Rig, sample: bool) -> Result<()> {
    let scratch = Scratch::new("repair")?;
    let (mut turns, mut names, mut bad) = (Vec::new(), Vec::new(), 0);
    let random = if sample { damage::images(2..3, 5)? } else { damage::images(0..3, 1)? };
    let mut all = cases(if sample { SAMPLE } else { VOLUMES }, random);
    for (volume, kind, case) in TIGHT.into_iter().take(if sample { 1 } else { TIGHT.len() }) {
        all.push(Case {
            name: format!("volume {volume}, {kind}, little room"),
            broken: damage::image(volume, kind, case)?,
            options: Options { drop_snapshots: true, zero_unreadable: true, ..options() },
            shown: Vec::new(),
            cleaned: false,
        });
    }
    for (n, case) in all.into_iter().enumerate() {
        let made = plan(Arc::new(case.broken.fork()), &case.options)?;
        if errors(&made.after) > 0 || made.is_empty() {
            println!("{}: {} errors are left, {:?}", case.name, errors(&made.after), made.stopped);
            made.rounds.iter().for_each(|r| println!("  {:?}: {}", r.classes, r.done.join("; ")));
            made.after.errors().take(8).for_each(|f| println!("  left: {f}"));
            bad += 1;
            continue;
        }
        made.apply(&case.broken)?;
        let mended = Arc::new(case.broken);
        show(&mended, &case.shown)?;
        let image = scratch.join(&format!("{n}.img"));
        let device = store(&mended, &image)?;
        let options = silt_engine::OpenOptions { read_only: true, now: NOW, ..Default::default() };
        let (volume, _) = silt_engine::Volume::open(device.clone(), &options)?;
        let block_size = volume.geometry().bs();
        let snapshots: BTreeMap<u32, u64> = (0..).zip(volume.snapshots()?.into_iter().map(|c| c.0)).collect();
        drop(volume);
        // Reading is done on a copy: opening for writing is the kernel's.
        let copy: Arc<dyn silt_device::Device> = Arc::new(mended.fork());
        let mut target = FsTarget::open(copy, silt_fs::Options::default(), NOW + 1000)?;
        let mut read: Trees = snapshot_trees(&mut target, &snapshots)?;
        read.live = target.manifest(ModelTree::Live, Columns::ALL).map_err(|e| anyhow!(e))?;
        let mut probes = golden::probes(&mut target, FsTree::Live)?;
        for c in snapshots.values() {
            target.fs.volume_mut().open_view(silt_format::Cno(*c))?;
            probes.extend(golden::probes(&mut target, FsTree::Past(*c))?);
        }
        probes.sort_unstable();
        probes.dedup();
        drop((target, device));
        turns.push(KernelTurn {
            probes,
            before: vec![(read, Columns::ALL)],
            snapshots,
            snapshots_made: 100,
            read_only: false,
            clean: case.cleaned,
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
