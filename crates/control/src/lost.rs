//! What was synced and no mount comes to, since a log of it, or one before it, is damaged: looked for before a volume is
//! opened, as opening it for writing goes on beside those logs and ends what tells of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use silt_device::Device;
use silt_engine::Tree;
use silt_format::Ino;
use silt_format::dir::file_type;
use silt_fs::Fs;
use silt_verify::Behind;

/// Names that are looked at for those of files, and the time that this may take.
const NAMES: usize = 200_000;
const PATIENCE: Duration = Duration::from_secs(2);

/// Looks behind the newest checkpoint, as a check does: reads the logs there, 1 MiB of memory. `None` where all is whole,
/// and where no checkpoint is found (which whoever opens the volume says).
pub fn look(device: &dyn Device) -> Option<Behind> {
    silt_verify::behind(device)
}

/// What is lost in sentences, with the names of files as far as they are found in the live tree.
pub fn sentences(behind: &Behind, fs: &mut Fs) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(synced) = &behind.synced {
        let names = names(fs, synced.named().map(|(ino, _)| ino).collect());
        let name = |ino: u64| match names.get(&ino) {
            Some(path) => format!("{} (inode {ino})", String::from_utf8_lossy(path)),
            None => format!("inode {ino}"),
        };
        out.push(synced.told(name, &when(synced.written)));
    }
    out.extend(behind.logs.clone());
    out
}

/// When logs were made, in the local time zone; nothing where no log tells.
fn when(span: Option<(u64, u64)>) -> String {
    let show = |seconds: u64| {
        let stamp = jiff::Timestamp::from_second(i64::try_from(seconds).ok()?).ok()?;
        Some(stamp.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string())
    };
    let Some((first, last)) = span else { return String::new() };
    match (show(first), show(last)) {
        (Some(a), Some(b)) if a == b => format!(", written {a}"),
        (Some(a), Some(b)) => format!(", written {a} to {b}"),
        _ => String::new(),
    }
}

/// A name of each of a few files, by a walk of the live tree that ends when all are found, and in any case soon.
fn names(fs: &mut Fs, mut wanted: BTreeSet<u64>) -> BTreeMap<u64, Vec<u8>> {
    let (mut found, mut left, until) = (BTreeMap::new(), NAMES, Instant::now() + PATIENCE);
    let mut todo = VecDeque::from([(Ino::ROOT, Vec::new())]);
    let mut seen = BTreeSet::from([Ino::ROOT.0]);
    while let Some((dir, path)) = todo.pop_front() {
        // A directory that cannot be read hides the names in it.
        let _ = fs.readdir(Tree::Live, dir, 0, false, |e| {
            left = left.saturating_sub(1);
            if left == 0 || wanted.is_empty() || Instant::now() > until {
                left = 0;
                return ControlFlow::Break(());
            }
            if e.name != b"." && e.name != b".." {
                let own = [path.as_slice(), b"/", e.name].concat();
                if e.file_type == file_type::to_mode(file_type::DIR) && seen.insert(e.ino.0) {
                    todo.push_back((e.ino, own.clone()));
                }
                if wanted.remove(&e.ino.0) {
                    found.insert(e.ino.0, own);
                }
            }
            ControlFlow::Continue(())
        });
        if left == 0 {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::ops::Range;
    use std::sync::Arc;

    use silt_device::{Fault, MemoryDevice};
    use silt_engine::mkfs::{Parameters, Plan};
    use silt_engine::{OpenOptions, Volume};
    use silt_format::summary::Header;
    use silt_fs::{Context, WriteFlags};

    use super::*;

    const SIZE: u64 = 24 << 20;

    /// A mounted volume with segments of 64 blocks, which most logs of these tests fill.
    fn mounted() -> (Arc<MemoryDevice>, Fs) {
        let device = Arc::new(MemoryDevice::new(SIZE));
        let parameters = Parameters { blocks_per_segment: 64, now: 1000, ..Parameters::default() };
        Plan::new(parameters, SIZE).unwrap().write(&*device, false).unwrap();
        let (mut volume, _) = Volume::open(device.clone(), &OpenOptions::default()).unwrap();
        volume.take_over(2000).unwrap();
        (device, Fs::new(volume, &silt_fs::Options::default()))
    }

    /// A file of its own checkpoint.
    fn file(fs: &mut Fs, n: u8) -> Ino {
        let ctx = Context { privileged: true, ..Context::default() };
        let file = fs.create(&ctx, Ino::ROOT, &[b'a' + n], 0o644).unwrap();
        fs.write(&ctx, file.ino, 0, &vec![n; 400_000], WriteFlags::default()).unwrap();
        fs.sync_all(3000).unwrap();
        file.ino
    }

    /// The head of a log.
    fn head(fs: &Fs, device: &MemoryDevice, block: u64) -> Option<Header> {
        let mut bytes = [0; 4096];
        device.read_at(block << 12, &mut bytes).unwrap();
        Header::parse(fs.volume().geometry(), &bytes).ok()
    }

    /// The block behind the newest checkpoint.
    fn end(fs: &Fs, device: &MemoryDevice) -> u64 {
        let last = fs.volume().last_log().pseg;
        last + u64::from(head(fs, device, last).unwrap().nblocks.get())
    }

    /// Each of some blocks in turn, all of it overwritten and then a byte of it.
    fn each_damaged(device: &MemoryDevice, blocks: Range<u64>, mut then: impl FnMut(u64, Arc<MemoryDevice>)) {
        for block in blocks {
            for (byte, noise) in [(0, 4096), (2000, 1)] {
                let damaged = device.fork();
                damaged.write_at((block << 12) + byte, &[&vec![0xE5; noise]]).unwrap();
                then(block, Arc::new(damaged));
            }
        }
    }

    fn open(device: Arc<MemoryDevice>) -> Volume {
        Volume::open(device, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap().0
    }

    /// Whatever block of the chain is damaged: a mount that comes to less than all checkpoints says so.
    #[test]
    fn no_checkpoint_is_lost_in_silence() {
        let (device, mut fs) = mounted();
        let ends: Vec<_> = (0..12).map(|n| (file(&mut fs, n), end(&fs, &device)).1).collect();
        let [first, .., before, last] = ends.as_slice() else { panic!() };
        let all = open(device.clone()).last_log().cno;
        assert!(look(&*device).is_none());
        let (mut lost, mut torn) = (0, 0);
        each_damaged(&device, *first..*last, |block, damaged| {
            let newest = open(damaged.clone()).last_log().cno;
            assert!(newest <= all);
            // A power cut leaves the last one so, and nobody was told of it.
            if block >= *before {
                torn += u32::from(newest < all);
                // Only with its super root does the last trace go.
                let told = look(&*damaged).is_some() || newest == all || block + 1 == *last;
                assert!(told, "{block} of {before} to {last}");
            } else if newest < all {
                lost += 1;
                let told = look(&*damaged).and_then(|lost| lost.logs);
                let told = told.unwrap_or_else(|| panic!("{block}: {newest} of {all}"));
                assert!(told.contains(&format!("the newest of checkpoint {all}")), "{block}: {told}");
            }
        });
        assert!(lost > 500 && torn > 50, "{lost}, {torn}");
    }

    fn sync_data(fs: &mut Fs, ino: Ino, offset: u64, data: &[u8]) {
        fs.write(
            &Context { privileged: true, ..Context::default() },
            ino,
            offset,
            data,
            WriteFlags::default(),
        )
        .unwrap();
        assert!(fs.volume_mut().begin_data_sync(&[ino], 3000).unwrap());
        fs.volume_mut().finish_construction(3000).unwrap();
    }

    /// What a mount makes of files.
    fn content(device: Arc<MemoryDevice>, files: &[Ino]) -> Vec<Vec<u8>> {
        let mut fs = Fs::new(open(device), &silt_fs::Options::default());
        files.iter().map(|ino| fs.read(Tree::Live, *ino, 0, 400_000).unwrap()).collect()
    }

    /// Data that is synced by itself by writes of `sizes` bytes, and any block of it damaged: whoever mounts less says so, and
    /// mounts what was before some of these writes.
    fn damage_synced(sizes: impl Fn(u64, usize) -> usize) -> u32 {
        let (device, mut fs) = mounted();
        let files: Vec<_> = (0..3).map(|n| file(&mut fs, n)).collect();
        let begin = end(&fs, &device);
        let room = fs.volume().geometry().segment_end(silt_format::SegNr(begin / 64)).0 - begin;
        let mut moments = vec![content(device.clone(), &files)];
        for n in 0..12 {
            let data = vec![100 + u8::try_from(n).unwrap(); sizes(room, n)];
            sync_data(&mut fs, files[n % 3], 69_632 * (n as u64 % 4), &data);
            moments.push(content(device.clone(), &files));
        }
        let last = (begin..SIZE >> 12).rfind(|at| head(&fs, &device, *at).is_some()).unwrap();
        let whole = content(device.clone(), &files);
        assert!(whole[2].contains(&111) && look(&*device).is_none());
        let mut lost = 0;
        each_damaged(&device, begin..last + 30, |block, damaged| {
            let held = content(damaged.clone(), &files);
            if held != whole {
                lost += 1;
                assert!(moments.contains(&held), "{block} of {begin} to {last}: a mixture");
                let told = look(&*damaged);
                // Without its head nothing tells that there was a last log.
                let told = told.is_some_and(|lost| lost.synced.is_some()) || block == last;
                assert!(told, "{block} of {begin} to {last}");
            }
        });
        lost
    }

    /// The same of data that was synced by itself.
    #[test]
    fn no_synced_data_is_lost_in_silence() {
        let lost = damage_synced(|_, _| 150_000);
        assert!(lost > 500, "{lost}");
    }

    /// Logs that end where their segments end: of one whose head is lost the place alone tells.
    #[test]
    fn no_log_at_the_end_of_a_segment_is_lost_in_silence() {
        // One fills the segment, and then two fill one each time; a block of each is its summary.
        let blocks = |room: u64, n| if n == 0 { usize::try_from(room).unwrap() - 1 } else { 31 };
        let lost = damage_synced(|room, n| blocks(room, n) << 12);
        assert!(lost > 500, "{lost}");
    }

    /// Where no mount comes to is written by none before what could be recovered is durable, wherever the power fails till then.
    #[test]
    fn a_recovery_leaves_alone_what_no_mount_comes_to() {
        let (device, mut fs) = mounted();
        let ino = file(&mut fs, 0);
        let begin = end(&fs, &device);
        (0..9).for_each(|n| sync_data(&mut fs, ino, 0, &[100 + n; 150_000]));
        let logs: Vec<u64> = (begin..SIZE >> 12).filter(|at| head(&fs, &device, *at).is_some()).collect();
        let segments: BTreeSet<u64> = logs.iter().map(|at| at / 64).collect();
        assert!(segments.len() > 4, "{segments:?}");
        let options = |unreached| OpenOptions { unreached, cache_bytes: 80 << 10, ..OpenOptions::default() };
        for damaged in &logs[1..6] {
            let broken = device.fork();
            broken.write_at((damaged + 1) << 12, &[&[0xE5; 64]]).unwrap();
            let lost = look(&broken).unwrap().segments;
            let behind = logs.iter().filter(|at| *at > damaged).map(|at| at / 64).collect::<BTreeSet<_>>();
            assert_eq!(lost.iter().map(|s| s.0).collect::<BTreeSet<_>>(), behind, "{damaged}");
            let bytes = |device: &MemoryDevice| {
                let all = logs.iter().filter(|at| *at > damaged);
                let read = all.map(|at| {
                    let mut log = vec![0; 38 << 12];
                    device.read_at(*at << 12, &mut log).unwrap();
                    log
                });
                read.collect::<Vec<_>>()
            };
            let whole = bytes(&broken);
            for writes in 0.. {
                let device = Arc::new(Fault::new(broken.fork()));
                device.cut_power_after(writes, 2000);
                let done = Volume::open(device.clone(), &options(lost.clone()))
                    .and_then(|(mut volume, _)| volume.take_over(4000))
                    .is_ok();
                assert!(bytes(device.inner()) == whole, "{damaged}: cut after {writes}");
                if done {
                    assert!(writes > 2, "{writes}");
                    break;
                }
            }
            // Nothing is kept where that leaves no room.
            let all = (0..SIZE >> 18).map(silt_format::SegNr).collect();
            let (mut volume, _) = Volume::open(Arc::new(broken), &options(all)).unwrap();
            volume.take_over(4000).unwrap();
        }
    }

    /// Data that was synced behind a checkpoint is not put into the tree of an earlier one.
    #[test]
    fn synced_data_of_a_lost_checkpoint_is_not_mixed_into_an_earlier_one() {
        let (device, mut fs) = mounted();
        let ctx = Context { privileged: true, ..Context::default() };
        let size = |i: u8| (1 + 2 * usize::from(i)) << 12;
        let mut files = Vec::new();
        for i in 0..7 {
            let ino = fs.create(&ctx, Ino::ROOT, &[b'a' + i], 0o644).unwrap().ino;
            fs.write(&ctx, ino, 0, &vec![0; size(i)], WriteFlags::default()).unwrap();
            files.push(ino);
        }
        fs.sync_all(3000).unwrap();
        // What the files hold, by checkpoint and by what was synced behind it; and the last logs of checkpoints.
        let mut moments: BTreeMap<u64, Vec<[u8; 7]>> = BTreeMap::new();
        let (mut now, mut roots) = ([0; 7], Vec::new());
        moments.insert(fs.volume().last_log().cno, vec![now]);
        // So many that a checkpoint ends where its segment does.
        for n in 1..=270_u32 {
            let i = u8::try_from((n * n + n / 7) % 7).unwrap();
            let value = u8::try_from(n % 251).unwrap();
            now[usize::from(i)] = value;
            let data = vec![value; size(i)];
            if n % 3 > 0 {
                fs.write(&ctx, files[usize::from(i)], 0, &data, WriteFlags::default()).unwrap();
                fs.sync_all(3000).unwrap();
                roots.push(end(&fs, &device) - 1);
            } else {
                sync_data(&mut fs, files[usize::from(i)], 0, &data);
            }
            moments.entry(fs.volume().last_log().cno).or_default().push(now);
        }
        // Behind one checkpoint another, and synced data behind that.
        let at_ends = roots.iter().skip(1).step_by(2).filter(|root| **root % 64 >= 62).count();
        assert!(at_ends > 0);
        for root in roots {
            let damaged = device.fork();
            damaged.write_at((root << 12) + 9, &[&[0xE5; 9]]).unwrap();
            let damaged = Arc::new(damaged);
            let cno = open(damaged.clone()).last_log().cno;
            let held: Vec<u8> = content(damaged.clone(), &files)
                .iter()
                .map(|bytes| {
                    assert!(bytes.iter().all(|b| *b == bytes[0]), "{root}: a file of two moments");
                    bytes[0]
                })
                .collect();
            // Something follows each, which tells that it was there.
            assert!(look(&*damaged).is_some_and(|lost| lost.logs.is_some()), "{root}: nothing is said");
            let known = moments[&cno].iter().any(|values| values[..] == held);
            assert!(known, "{root}: {held:?} is not checkpoint {cno}: {:?}", moments[&cno]);
        }
    }
}
