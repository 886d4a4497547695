//! The newest checkpoint of a volume is kept, whatever is damaged of its log or of one before it.

use std::sync::Arc;

use silt_device::{Device, Fault, MemoryDevice, Times};
use silt_engine::OpenOptions;
use silt_format::summary::SR;
use silt_format::{BlockNr, Geometry};
use silt_repair::{errors, plan};
use silt_verify::Moment;
use silt_verify::surgeon::{Log, Surgeon};

use crate::common::{checked, noise, options, say, tree};

/// A volume as a crash leaves it whose super blocks name an early checkpoint, and all logs behind, in order.
fn crashed(name: &'static str) -> (Surgeon, Vec<Log>) {
    let mut s = Surgeon::golden(name);
    let (g, newest) = (s.g(), s.latest());
    let mut logs: Vec<Log> = (0..g.nsegments).flat_map(|n| s.logs(n)).collect();
    logs.retain(|l| (l.header.seq.get(), l.pos.0) <= (newest.header.seq.get(), newest.pos.0));
    logs.sort_by_key(|l| (l.header.seq.get(), l.pos.0));
    let first = logs.iter().position(|l| l.header.has(SR)).unwrap();
    let base = logs[first];
    s.patch_super((true, true), |sb| {
        sb.state = 0.into();
        sb.last_pseg = base.pos.0.into();
        sb.last_seq = base.header.seq;
        sb.last_cno = base.header.cno;
    });
    let behind = logs.split_off(first + 1);
    assert_eq!(
        (comes_to(&s.device), behind.last().map(|l| l.pos)),
        (newest.header.cno.get(), Some(newest.pos))
    );
    (s, behind)
}

/// The checkpoint that a mount comes to.
fn comes_to(device: &MemoryDevice) -> u64 {
    let read = OpenOptions { read_only: true, ..OpenOptions::default() };
    silt_engine::Volume::open(Arc::new(device.fork()), &read).unwrap().0.last_log().cno
}

fn damaged(device: &MemoryDevice, g: &Geometry, block: u64, bit: bool) -> MemoryDevice {
    let device = device.fork();
    let at = g.byte_of(BlockNr(block));
    let mut bytes = vec![0; g.bs()];
    device.read_at(at, &mut bytes).unwrap();
    if bit {
        bytes[777] ^= 8;
    } else {
        bytes = noise(g.bs(), block);
    }
    device.write_at(at, &[&bytes]).unwrap();
    device
}

/// Whatever block is damaged of the log that one super block names, while the other names an early one: nobody writes behind what
/// that leads to before it is repaired, and then the newest checkpoint is there.
#[test]
fn what_one_super_block_names_is_taken_in() {
    for name in ["basic-4k", "cut-4k"] {
        let (mut s, logs) = crashed(name);
        let (g, newest) = (s.g(), s.latest());
        let sound = tree(&s.device, Moment::Latest).unwrap();
        let mut roots = logs.iter().filter(|l| l.header.has(SR)).rev();
        let mut kept = 0;
        for named in [roots.next().unwrap(), roots.next().unwrap()] {
            s.patch_super((false, true), |sb| {
                sb.last_pseg = named.pos.0.into();
                sb.last_seq = named.header.seq;
                sb.last_cno = named.header.cno;
            });
            let write = |device: &MemoryDevice| {
                let (mut v, report) =
                    silt_engine::Volume::open(Arc::new(device.fork()), &OpenOptions::default())?;
                assert_eq!(report.older, None);
                v.take_over(1_900_000_100)
            };
            write(&s.device).unwrap();
            for (n, block) in (named.pos.0..named.end())
                .enumerate()
                .step_by(3)
                .chain([(1, named.pos.0), (2, named.end() - 1)])
            {
                let broken = damaged(&s.device, &g, block, n % 2 == 0);
                let what = format!("{name}, checkpoint {}, block {block}", named.header.cno);
                let refused = write(&broken).unwrap_err();
                assert!(matches!(refused, silt_engine::Error::Older { .. }), "{what}: {refused}");
                let made = plan(Arc::new(broken.fork()), &options()).unwrap();
                let said = say(&made);
                made.apply(&broken).unwrap();
                assert!(checked(&broken).is_clean(), "{what}: {said}");
                write(&broken).unwrap_or_else(|e| panic!("{what}: {e}\n{said}"));
                // Where nothing whole follows it may be what a power cut tore.
                let older =
                    format!("a super block names checkpoint {}, whose log is broken", newest.header.cno);
                if named.pos == newest.pos && said.contains(&older) {
                    continue;
                }
                kept += 1;
                assert!(comes_to(&broken) >= newest.header.cno.get(), "{what}: {said}");
                let now = tree(&broken, Moment::Latest).unwrap();
                let lost = sound.iter().filter(|(path, digest)| now.get(*path) != Some(digest));
                let untold = lost.filter(|_| !said.contains("inode ")).count();
                assert_eq!(untold, 0, "{what}: {said}");
            }
        }
        assert!(kept > 5, "{name}: {kept}");
    }
}

/// Whatever block behind it is damaged: the newest checkpoint is there, with every file but those that the plan names.
#[test]
fn the_newest_checkpoint_is_kept_whatever_is_damaged_before_it() {
    for name in ["basic-4k", "cut-4k"] {
        let (s, logs) = crashed(name);
        let (g, newest) = (s.g(), s.latest());
        let sound = tree(&s.device, Moment::Latest).unwrap();
        let (mut cut, mut whole, mut kept) = (0, 0, 0);
        let before_newest = logs.iter().filter(|l| l.pos != newest.pos);
        let blocks = before_newest.flat_map(|l| l.pos.0..l.end()).enumerate().step_by(5);
        for (n, block) in blocks {
            let broken = damaged(&s.device, &g, block, n % 2 == 0);
            if comes_to(&broken) == s.cno() {
                whole += 1;
                continue;
            }
            cut += 1;
            let made = plan(Arc::new(broken.fork()), &options()).unwrap();
            let said = say(&made);
            made.apply(&broken).unwrap();
            assert!(checked(&broken).is_clean(), "{name}, block {block}: {said}");
            assert!(plan(Arc::new(broken.fork()), &options()).unwrap().is_empty(), "{block}: {said}");
            let now = comes_to(&broken);
            if now < s.cno() {
                assert!(made.unreached.is_some() || made.checkpoints_lost.is_some(), "{block}: {said}");
                println!("{name}: block {block}: {now} of {}\n{said}", s.cno());
                continue;
            }
            kept += 1;
            assert_eq!((made.unreached, &made.checkpoints_lost), (None, &None), "{block}: {said}");
            // With a name of a directory its files go to lost+found.
            let told = |path: &String| {
                let named = |path: &str| {
                    let mut lines = made.rounds.iter().flat_map(|r| &r.done);
                    lines.any(|line| line.contains(&format!("(/{path})")))
                };
                let parents = path.match_indices('/').map(|(at, _)| path.get(..at).unwrap());
                let name = path.rsplit('/').next().unwrap();
                let mut lines = made.rounds.iter().flat_map(|r| &r.done);
                let dropped = lines.any(|line| line.contains(&format!("the name \"{name}\" in directory")));
                dropped || parents.chain([path.as_str()]).any(named)
            };
            let mended = tree(&broken, Moment::Latest).unwrap();
            let mut lost: Vec<String> = Vec::new();
            for (path, digest) in &sound {
                let path = String::from_utf8_lossy(path).into_owned();
                if mended.get(path.as_bytes()) != Some(digest) && !told(&path) {
                    lost.push(path);
                }
            }
            assert!(lost.is_empty(), "{name}, block {block}: {lost:?}\n{said}");
        }
        println!("{name}: {cut} cut off, of {kept} the newest is there; {whole} are mounted as they are");
        assert!(cut > 50 && kept * 10 >= cut * 9, "{name}: {kept} of {cut}");
    }
}

/// What a mount would have gone on from can be gone back to.
#[test]
fn the_checkpoint_before_the_damage_stays() {
    let (s, logs) = crashed("basic-4k");
    let broken = damaged(&s.device, &s.g(), logs[logs.len() / 2].end() - 2, true);
    let base = comes_to(&broken);
    assert!(base < s.cno());
    let was = tree(&broken, Moment::Checkpoint(base)).unwrap();
    let back = silt_repair::Options { to_checkpoint: Some(base), ..options() };
    let made = plan(Arc::new(broken.fork()), &back).unwrap();
    made.apply(&broken).unwrap();
    assert!(checked(&broken).is_clean(), "{}", say(&made));
    assert_eq!(tree(&broken, Moment::Latest).unwrap(), was);
    let newest = Surgeon::golden("basic-4k");
    assert!(tree(&broken, Moment::Checkpoint(newest.cno())).is_some(), "{}", say(&made));
}

/// Sectors that cannot be read are damage like any other.
#[test]
fn sectors_that_cannot_be_read_do_not_cut_it_off() {
    let (s, logs) = crashed("basic-4k");
    let g = s.g();
    let (mut cut, mut kept) = (0, 0);
    for log in logs.iter().rev().skip(1) {
        for block in [log.pos.0, log.pos.0 + log.nblocks() / 2, log.end() - 1] {
            let at = g.byte_of(BlockNr(block));
            let broken = Fault::new(s.device.fork());
            broken.fail_reads(at..at + u64::from(g.block_size), Times::Always);
            let broken = Arc::new(broken);
            let read = OpenOptions { read_only: true, ..OpenOptions::default() };
            // Where the log cannot be read no mount goes on without it: it may be readable tomorrow.
            let comes_to =
                |d: Arc<dyn Device>| silt_engine::Volume::open(d, &read).map_or(0, |(v, _)| v.last_log().cno);
            if comes_to(broken.clone()) == s.cno() {
                continue;
            }
            cut += 1;
            let made = plan(broken.clone(), &options()).unwrap();
            let mended: Arc<dyn Device> = broken;
            made.apply(&*mended).unwrap();
            kept += u32::from(comes_to(mended.clone()) >= s.cno());
            let left: Vec<_> =
                checked(&*mended).errors().filter(|f| f.id != "device-read").cloned().collect();
            assert!(left.is_empty(), "{block}: {left:?}\n{}", say(&made));
            assert!(errors(&made.after) < 3, "{block}: {}", say(&made));
        }
    }
    println!("{cut} cut off, of {kept} the newest is there");
    assert!(cut > 8 && kept == cut, "{kept} of {cut}");
}

/// The newest log of a volume that was cleanly unmounted has lost its summary or its super root, and a cleaner has given
/// away what older ones need: nothing is lost all the same.
#[test]
fn the_newest_checkpoint_is_kept_without_its_head_or_root() {
    for name in ["basic-4k", "basic-1k", "gc-4k", "btree-1k"] {
        let mut s = Surgeon::golden(name);
        crate::common::unmounted(&mut s);
        let (g, newest) = (s.g(), s.latest());
        let whole = tree(&s.device, Moment::Latest).unwrap();
        for block in [newest.pos.0, newest.end() - 1] {
            let broken = damaged(&s.device, &g, block, false);
            let made = plan(Arc::new(broken.fork()), &options()).unwrap();
            made.apply(&broken).unwrap();
            let said = say(&made);
            assert!(comes_to(&broken) >= s.cno(), "{name}, block {block}: {said}");
            assert_eq!(tree(&broken, Moment::Latest).unwrap(), whole, "{name}, block {block}: {said}");
            assert!(checked(&broken).is_clean(), "{name}, block {block}: {said}");
            assert!(plan(Arc::new(broken.fork()), &options()).unwrap().is_empty(), "{block}: {said}");
        }
    }
}
