//! Volumes with a past to be damaged: some hundred files in directories of several blocks, overwritten, renamed and
//! removed between checkpoints, cleaned, with snapshots; cleanly unmounted or as a crash leaves them.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use anyhow::{Result, anyhow};
use silt_device::{Device, MemoryDevice};
use silt_engine::mkfs::{Parameters, Plan};
use silt_format::Geometry;
use silt_format::palloc::Layout;
use silt_fs_model::FsTarget;
use silt_model::op::{Each, FileRef, Op, RenameHow};
use silt_model::path::TreePath;
use silt_model::rng::Rng;
use silt_model::target::Target;
use silt_verify::rescue::Rescue;
use silt_verify::surgeon::Surgeon;
use silt_verify::{Moment, Tree, Unwatched};

const NOW: u64 = 1_790_000_000;
/// Bytes of a file that are compared.
const LONGEST: u64 = 64 << 20;
const INODE_FILE: u64 = 6;

/// What a file is to whoever looks for it by name: a digest of attributes and content.
pub type Names = BTreeMap<Vec<u8>, u64>;

/// A sound volume.
pub struct Aged {
    /// As it is.
    pub device: MemoryDevice,
    /// What it was some time before, newest first.
    pub older: Vec<MemoryDevice>,
    /// Its numbers.
    pub geometry: Geometry,
    /// Whether it was not unmounted: a damaged log at its end is as one that a power cut tore.
    pub crashed: bool,
    /// Its newest checkpoint.
    pub cno: u64,
    /// The newest tree.
    pub names: Names,
    /// Contents alone, as a copy elsewhere has them.
    pub contents: Names,
    /// The snapshots, and what is in each.
    pub snapshots: Vec<(u64, Names)>,
    /// Inode numbers on the way to each name, the file's last.
    pub ways: BTreeMap<Vec<u8>, Vec<u64>>,
    /// Blocks without which an inode cannot be read: its own, that of its inode, and the summaries that tell of them.
    pub needs: BTreeMap<u64, BTreeSet<u64>>,
    /// Blocks in use by the newest log and its tree's tables.
    pub newest: Vec<u64>,
    /// Segments in use, of all.
    pub free: String,
    /// First block behind the last log.
    pub end: u64,
    /// Head and super root of the newest log, of which one is all that leads to the newest checkpoint where both super
    /// blocks are lost.
    pub root: BTreeSet<u64>,
}

/// Paths of a tree with digests of all that is to be compared, and of content alone; files that cannot be read are
/// left out. None: the tree cannot be read.
pub fn names(device: &dyn Device) -> Option<(Names, Names)> {
    names_at(device, Moment::Latest)
}

/// The same of a moment.
pub fn names_at(device: &dyn Device, moment: Moment) -> Option<(Names, Names)> {
    let tree = Tree::open(device, moment).ok()?;
    let (mut whole, mut contents) = (Names::new(), Names::new());
    for file in tree.walk().ok()? {
        let a = &file.attributes;
        let mut h = DefaultHasher::new();
        if a.is_regular() {
            // Nothing in these volumes is larger; what a damaged inode claims is.
            let mut content = vec![0; usize::try_from(a.size.min(LONGEST)).unwrap_or(0)];
            let part = |at: u64, bytes: &[u8]| {
                let room = usize::try_from(at).ok().and_then(|at| content.get_mut(at..)).unwrap_or_default();
                let n = room.len().min(bytes.len());
                room[..n].copy_from_slice(&bytes[..n]);
            };
            if tree.for_each_part(a.ino, part).is_err() {
                continue;
            }
            digest_of(a.size, &content).hash(&mut h);
        } else if a.is_symlink() {
            (2, tree.read_link(a.ino).ok()).hash(&mut h);
        }
        contents.insert(file.path.clone(), h.finish());
        (a.mode, a.uid, a.gid, a.mtime, a.links).hash(&mut h);
        whole.insert(file.path, h.finish());
    }
    Some((whole, contents))
}

/// Of a file's content.
pub fn digest_of(size: u64, content: &[u8]) -> u64 {
    let mut h = DefaultHasher::new();
    (size, content).hash(&mut h);
    h.finish()
}

fn path(text: &str) -> TreePath {
    TreePath::new(text.as_bytes())
}

/// Writes a volume's history.
struct Story {
    target: FsTarget,
    rng: Rng,
    files: Vec<String>,
    made: u32,
    block: u64,
}

impl Story {
    fn apply(&mut self, op: &Op) {
        // What does not fit or is not there any more is not done.
        let _ = self.target.apply(op);
    }

    fn len(&mut self) -> u64 {
        match self.rng.below(12) {
            0 => 0,
            1..=3 => self.rng.between(1, 700),
            4..=6 => self.rng.between(1, self.block * 3),
            7..=9 => self.rng.between(1, self.block * 12),
            10 => self.rng.between(1, self.block * 40),
            _ => self.rng.between(1, self.block * 150),
        }
    }

    fn dir(&mut self) -> String {
        match self.rng.below(10) {
            0 => String::new(),
            1 => "d1/sub/deep/".into(),
            2 => "d2/sub/".into(),
            n => format!("d{}/", n % 6),
        }
    }

    fn create(&mut self) {
        let name = format!("{}f{}", self.dir(), self.made);
        self.made += 1;
        self.apply(&Op::Create { path: path(&name), mode: 0o644 });
        let (len, seed) = (self.len(), self.rng.next_u64() | 1);
        if len > 0 {
            self.apply(&Op::Write { file: FileRef::Path(path(&name)), offset: 0, len, seed });
        }
        self.files.push(name);
    }

    fn change(&mut self) {
        let Some(at) = (!self.files.is_empty()).then(|| self.rng.index(self.files.len())) else {
            return self.create();
        };
        let name = self.files[at].clone();
        let seed = self.rng.next_u64() | 1;
        match self.rng.below(12) {
            0..=2 => {
                let (offset, len) = (self.rng.below(self.block * 6), self.rng.between(1, self.block * 4));
                self.apply(&Op::Write { file: FileRef::Path(path(&name)), offset, len, seed });
            }
            3 => {
                let len = self.rng.between(1, self.block);
                self.apply(&Op::Append { path: path(&name), len, seed });
            }
            4 => {
                let mode = 0o400 + self.rng.between_u32(0, 0o377);
                self.apply(&Op::Chmod { path: path(&name), mode });
            }
            5 | 6 => {
                let to = format!("{}r{}", self.dir(), self.made);
                self.made += 1;
                self.apply(&Op::Rename { from: path(&name), to: path(&to), how: RenameHow::Plain });
                self.files[at] = to;
            }
            7 | 8 => {
                self.apply(&Op::Unlink { path: path(&name) });
                self.files.swap_remove(at);
            }
            9 => {
                let size = self.rng.below(self.block * 5);
                self.apply(&Op::Truncate { file: FileRef::Path(path(&name)), size });
            }
            _ => self.create(),
        }
    }

    /// Data that is synced behind the newest checkpoint, in half of the stories.
    fn sync_data(&mut self) {
        for _ in 0..self.rng.below(12).saturating_sub(5) {
            let Some(name) = self.rng.pick(&self.files).cloned() else { return };
            let file = FileRef::Path(path(&name));
            let seed = self.rng.next_u64() | 1;
            let (offset, len) = (self.rng.below(self.block * 6), self.rng.between(1, self.block * 4));
            self.apply(&Op::Write { file: file.clone(), offset, len, seed });
            self.apply(&Op::Fdatasync { file });
        }
    }

    fn round(&mut self) {
        for _ in 0..self.rng.between(3, 40) {
            self.change();
        }
        match self.rng.below(10) {
            0 => self.apply(&Op::Snapshot),
            1..=3 => {
                if let Some(name) = self.rng.pick(&self.files).cloned() {
                    self.apply(&Op::Fdatasync { file: FileRef::Path(path(&name)) });
                }
            }
            _ => self.apply(&Op::Sync),
        }
    }
}

impl Aged {
    /// The volume of a number: always the same.
    pub fn new(seed: u64) -> Result<Aged> {
        let mut rng = Rng::new(seed);
        let block_size = if seed.is_multiple_of(2) { 4096 } else { 1024 };
        let blocks_per_segment = 32 << rng.below(5);
        let size = u64::from(block_size) * 1024 * rng.between(6, 16);
        let size = size.max(u64::from(block_size) * blocks_per_segment * 24);
        let device = Arc::new(MemoryDevice::new(size));
        let parameters = Parameters {
            block_size,
            blocks_per_segment: u32::try_from(blocks_per_segment)?,
            uuid: [9; 16],
            crc_seed: 4711,
            now: NOW,
            ..Parameters::default()
        };
        Plan::new(parameters, size)?.write(&*device, false)?;
        let target = FsTarget::open(device.clone(), silt_fs::Options::default(), NOW + 1)?;
        let mut s = Story { target, rng, files: Vec::new(), made: 0, block: u64::from(block_size) };
        for n in 0..6 {
            s.apply(&Op::Mkdir { path: path(&format!("d{n}")), mode: 0o755 });
        }
        for name in ["d1/sub", "d1/sub/deep", "d2/sub", "many"] {
            s.apply(&Op::Mkdir { path: path(name), mode: 0o755 });
        }
        let count = s.rng.between_u32(20, 400);
        let each = Each::Fill { len: 90, seed: 77 };
        s.apply(&Op::Many { each, dir: path("many"), prefix: b"name".to_vec(), first: 0, count });
        for _ in 0..s.rng.between(60, 400) {
            s.create();
        }
        s.apply(&Op::Sync);
        let rounds = s.rng.between(8, 40);
        let crashed = s.rng.percent(40);
        let mut older = Vec::new();
        for n in 0..rounds {
            s.round();
            if n % 7 == 5 && s.rng.percent(70) {
                s.target.clean()?;
            }
            if n + 6 > rounds {
                older.insert(0, device.fork());
            }
        }
        if crashed {
            s.apply(&Op::Sync);
            s.sync_data();
        } else {
            s.target.close_volume()?;
        }
        let sound = device.fork();
        drop(s);
        Self::known(sound, older, crashed)
    }

    fn known(device: MemoryDevice, older: Vec<MemoryDevice>, crashed: bool) -> Result<Aged> {
        let (names, contents) = names(&device).ok_or_else(|| anyhow!("a sound volume cannot be read"))?;
        let mut snapshots = Vec::new();
        for c in silt_engine::mend::snapshots(Arc::new(device.fork()))? {
            let (whole, _) = names_at(&device, Moment::Checkpoint(c))
                .ok_or_else(|| anyhow!("snapshot {c} of a sound volume cannot be read"))?;
            snapshots.push((c, whole));
        }
        let tree = Tree::open(&device, Moment::Latest)?;
        let walked = tree.walk()?;
        let inodes: BTreeMap<Vec<u8>, u64> =
            walked.iter().map(|w| (w.path.clone(), w.attributes.ino)).collect();
        let ways = inodes.keys().map(|p| {
            let above = (0..p.len()).filter(|n| p[*n] == b'/').map(|n| p[..n].to_vec());
            let all = std::iter::once(Vec::new()).chain(above).chain([p.clone()]);
            (p.clone(), all.filter_map(|p| inodes.get(&p).copied()).collect())
        });
        let ways = ways.collect();
        let s = Surgeon { device: device.fork() };
        let (geometry, cno, latest) = (s.g(), s.cno(), s.latest());
        let rescue = Rescue::open(&device, &Unwatched)?;
        let told_by = |block: u64| {
            let before = rescue.survey.logs.iter().rev().find(|l| l.pos <= block);
            before.filter(|l| block < l.end()).map_or(block..block, |l| l.pos..l.payload())
        };
        let inode_file = s.file(INODE_FILE);
        let mut nodes: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for log in &rescue.survey.logs {
            for block in log.payload()..log.end() {
                if let Some(c) = rescue.records().at(block).filter(|c| c.offset().is_none()) {
                    nodes.entry(c.ino).or_default().push(block);
                }
            }
        }
        let mut needs = BTreeMap::new();
        let mut newest: BTreeSet<u64> = (latest.pos.0..latest.end()).collect();
        newest.extend(inode_file.values().chain(s.dat().blocks.values()));
        newest.extend(s.file(4).values().chain(s.file(5).values()));
        for w in &walked {
            let ino = w.attributes.ino;
            let at = inode_file.get(&Layout::ifile(&geometry).entry(ino).block);
            let offsets = tree.extents(ino)?.into_iter().flat_map(|(first, n)| first..first + n);
            let own: Vec<u64> = offsets.filter_map(|at| tree.block_of(ino, at).ok().flatten()).collect();
            let nodes = nodes.get(&ino).into_iter().flatten().copied();
            let mut all: BTreeSet<u64> = own.into_iter().chain(nodes).chain(at.copied()).collect();
            let told: Vec<u64> = all.iter().flat_map(|b| told_by(*b)).collect();
            all.extend(told);
            needs.insert(ino, all);
        }
        let head = u64::from(latest.header.summary_blocks(&geometry));
        let root = (latest.pos.0..latest.pos.0 + head).chain([latest.end() - 1]).collect();
        let report = silt_verify::check(&device, &silt_verify::Options::default());
        anyhow::ensure!(report.is_clean(), "a sound volume is not");
        let free = format!("{} of {} in use", report.stats.segments, geometry.nsegments);
        let end = rescue.survey.logs.iter().map(|l| l.end()).max().unwrap_or(0);
        drop(rescue);
        drop(tree);
        let newest = newest.into_iter().collect();
        Ok(Aged {
            device,
            older,
            geometry,
            crashed,
            cno,
            names,
            contents,
            snapshots,
            ways,
            needs,
            newest,
            free,
            end,
            root,
        })
    }

    /// What lay in blocks.
    pub fn whose(&self, blocks: &[u64]) -> String {
        let Ok(rescue) = Rescue::open(&self.device, &Unwatched) else { return String::new() };
        let mut out = String::new();
        for block in blocks.iter().take(40) {
            let what = match (
                rescue.records().at(*block),
                rescue.survey.logs.iter().rev().find(|l| l.pos <= *block),
            ) {
                (Some(c), _) => format!("inode {} {:?} checkpoint {}", c.ino, c.role, c.cno),
                (None, Some(l)) if *block < l.payload() => format!("summary of {} to {}", l.pos, l.end()),
                (None, Some(l)) if *block + 1 == l.end() => format!("super root of {} to {}", l.pos, l.end()),
                _ => "nothing".into(),
            };
            let names = self
                .ways
                .iter()
                .filter(|(_, w)| w.last().and_then(|i| self.needs.get(i)).is_some_and(|n| n.contains(block)));
            let names: Vec<_> = names.take(3).map(|(p, _)| String::from_utf8_lossy(p)).collect();
            out += &format!("\n    {block}: {what} ({})", names.join(" "));
        }
        out
    }
}
