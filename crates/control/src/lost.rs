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
use silt_verify::Lost;

/// Names that are looked at for those of files, and the time that this may take.
const NAMES: usize = 200_000;
const PATIENCE: Duration = Duration::from_secs(2);

/// Looks behind the newest checkpoint, as a check does: reads the logs there, 1 MiB of memory. `None` where nothing is
/// lost, and where no checkpoint is found (which whoever opens the volume says).
pub fn look(device: &dyn Device) -> Option<Lost> {
    silt_verify::lost(device)
}

/// What is lost in sentences, with the names of files as far as they are found in the live tree.
pub fn sentences(lost: &Lost, fs: &mut Fs) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(synced) = &lost.synced {
        let names = names(fs, synced.named().map(|(ino, _)| ino).collect());
        let name = |ino: u64| match names.get(&ino) {
            Some(path) => format!("{} (inode {ino})", String::from_utf8_lossy(path)),
            None => format!("inode {ino}"),
        };
        out.push(synced.told(name, &when(synced.written)));
    }
    out.extend(lost.logs.clone());
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
