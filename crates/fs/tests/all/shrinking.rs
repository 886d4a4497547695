//! Directories that become smaller, under random changes, faults of the device, and power cuts.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Form, ROOT, device, names, root_at};
use silt_device::{Device, Fault, MemoryDevice, Times};
use silt_engine::{OpenOptions, Step, Volume};
use silt_fs::{Fs, FsError, Ino, Options, Tree};
use silt_model::rng::Rng;

/// Opens for writing, with hardly any memory, so that much is read from the device.
fn open(device: Arc<dyn Device>, options: &Options) -> Fs {
    let o = OpenOptions { now: 2000, cache_bytes: 64 << 10, cached_inodes: 10, ..Default::default() };
    let (mut volume, _) = Volume::open(device, &o).unwrap();
    volume.take_over(2000).unwrap();
    Fs::new(volume, options)
}

type Names = BTreeMap<Vec<u8>, Ino>;

/// A listing that goes on while names come and go.
struct Listing {
    dir: usize,
    from: u64,
    /// What was there when it began and is still.
    must: BTreeSet<Vec<u8>>,
    seen: Vec<Vec<u8>>,
}

struct Play {
    fs: Fs,
    fault: Arc<Fault<Arc<MemoryDevice>>>,
    options: Options,
    dice: Rng,
    dirs: Vec<Ino>,
    now: Vec<Names>,
    synced: Vec<Names>,
    /// What the checkpoint under way will hold.
    frozen: Option<Vec<Names>>,
    listings: Vec<Listing>,
    chunk: u64,
    has_faults: bool,
    next: u64,
    failed: u32,
    gone: u32,
}

const DIRS: usize = 3;

impl Play {
    fn new(seed: u64, bs: u32, options: Options, has_faults: bool) -> Self {
        let inner = device(Form::new(bs, u64::from(bs) * 256 * 512));
        let fault = Arc::new(Fault::new(inner));
        let options = Options { pause: Duration::ZERO, ..options };
        let mut fs = open(fault.clone(), &options);
        let dirs: Vec<Ino> = (0..DIRS)
            .map(|i| fs.mkdir(&root_at(5), ROOT, format!("d{i}").as_bytes(), 0o755).unwrap().ino)
            .collect();
        fs.sync_all(6).unwrap();
        let none = vec![Names::new(); DIRS];
        let dice = Rng::new(seed);
        let (now, synced) = (none.clone(), none);
        Play {
            fs,
            fault,
            options,
            dice,
            dirs,
            now,
            synced,
            frozen: None,
            listings: vec![],
            chunk: bs.into(),
            has_faults,
            next: 0,
            failed: 0,
            gone: 0,
        }
    }

    fn a_name(&mut self) -> Vec<u8> {
        self.next += 1;
        let longest = [12, 60, 255][self.dice.below(3) as usize];
        let mut name = format!("{}-", self.next).into_bytes();
        name.resize((name.len() + self.dice.below(longest) as usize).min(255), b'x');
        name
    }

    /// The device is well again, and that is known.
    fn heal(&mut self) {
        self.fault.heal();
        for dir in self.dirs.clone() {
            let until = Instant::now() + Duration::from_secs(60);
            while !matches!(self.fs.lookup(Tree::Live, dir, b"none"), Err(FsError::NotFound)) {
                assert!(Instant::now() < until, "a directory stays damaged");
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    fn some(&mut self, d: usize) -> Option<Vec<u8>> {
        let n = self.now[d].len() as u64;
        let at = self.dice.below(n.max(1)) as usize;
        self.now[d].keys().nth(at).cloned()
    }

    fn forget(&mut self, d: usize, name: &[u8]) {
        for l in self.listings.iter_mut().filter(|l| l.dir == d) {
            l.must.remove(name);
        }
    }

    /// What a name is now, whatever came of a change that failed.
    fn settle(&mut self, d: usize, name: &[u8]) -> bool {
        self.heal();
        self.failed += 1;
        match self.fs.lookup(Tree::Live, self.dirs[d], name) {
            Ok(s) => {
                self.now[d].insert(name.to_vec(), s.ino);
                true
            }
            Err(FsError::NotFound) => {
                self.now[d].remove(name);
                self.forget(d, name);
                false
            }
            Err(e) => panic!("{e:?} of {:?}", String::from_utf8_lossy(name)),
        }
    }

    fn step(&mut self, grows: bool) {
        let d = self.dice.below(DIRS as u64) as usize;
        let dir = self.dirs[d];
        match self.dice.below(if grows { 10 } else { 20 }) {
            0..5 => {
                let name = self.a_name();
                match self.fs.create(&root_at(10), dir, &name, 0o644) {
                    Ok(s) => _ = self.now[d].insert(name, s.ino),
                    Err(_) => _ = self.settle(d, &name),
                }
            }
            5 => {
                let Some(old) = self.some(d) else { return };
                let e = self.dice.below(DIRS as u64) as usize;
                let new = if self.dice.below(3) == 0 { self.some(e) } else { None };
                let new = match new {
                    Some(new) => new,
                    None => self.a_name(),
                };
                if e == d && new == old {
                    return;
                }
                let ino = self.now[d][&old];
                match self.fs.rename(&root_at(11), dir, &old, self.dirs[e], &new, 0) {
                    Ok(_) => {
                        self.now[d].remove(&old);
                        self.forget(d, &old);
                        self.forget(e, &new);
                        self.now[e].insert(new, ino);
                    }
                    Err(_) => {
                        self.forget(e, &new);
                        let (a, b) = (self.settle(d, &old), self.settle(e, &new));
                        let is_new = b && self.now[e][&new] == ino;
                        assert!(a || is_new, "a name is lost");
                        assert!(!a || !is_new, "two names with one link");
                    }
                }
            }
            6 => {
                if self.dice.below(10) == 0 {
                    let must = self.now[d].keys().cloned().collect();
                    self.listings.push(Listing { dir: d, from: 0, must, seen: vec![] });
                } else {
                    self.go_on_listing();
                }
            }
            7 => {
                // All from the end of the listing, as far as that goes.
                let all = match self.fs.readdir(Tree::Live, dir, 0, false, |_| ControlFlow::Break(())) {
                    Ok(_) => {
                        self.heal();
                        names(&mut self.fs, Tree::Live, dir)
                    }
                    _ => return,
                };
                let n = self.dice.below(60) as usize;
                for name in all.into_iter().rev().filter(|n| n != b"." && n != b"..").take(n) {
                    self.unlink(d, &name);
                }
            }
            _ => {
                if let Some(name) = self.some(d) {
                    self.unlink(d, &name);
                }
            }
        }
    }

    fn unlink(&mut self, d: usize, name: &[u8]) {
        match self.fs.unlink(&root_at(13), self.dirs[d], name) {
            Ok(_) => {
                assert!(self.now[d].remove(name).is_some());
                self.gone += 1;
                self.forget(d, name);
            }
            Err(_) => _ = self.settle(d, name),
        }
    }

    fn go_on_listing(&mut self) {
        if self.listings.is_empty() {
            return;
        }
        let at = self.dice.below(self.listings.len() as u64) as usize;
        let most = self.dice.below(30) + 1;
        let mut l = self.listings.swap_remove(at);
        self.heal();
        let mut n = 0;
        self.fs
            .readdir(Tree::Live, self.dirs[l.dir], l.from, false, |e| {
                l.seen.push(e.name.to_vec());
                l.from = e.next;
                n += 1;
                if n < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .unwrap();
        if n < most {
            for name in &l.must {
                assert_eq!(
                    l.seen.iter().filter(|s| *s == name).count(),
                    1,
                    "{}",
                    String::from_utf8_lossy(name)
                );
            }
        } else {
            self.listings.push(l);
        }
    }

    /// Begins a checkpoint, or goes on with it.
    fn construct(&mut self, begins: bool) {
        self.fault.heal();
        if self.frozen.is_none() {
            if begins && self.fs.volume_mut().begin_checkpoint(15).unwrap() {
                self.frozen = Some(self.now.clone());
            }
            return;
        }
        match self.fs.volume_mut().step(3).unwrap() {
            Step::Write(mut log) => {
                log.seal();
                log.write(&**self.fault.inner()).unwrap();
                self.fs.volume_mut().log_written();
            }
            Step::Working | Step::Waiting => {}
            Step::Done(_) => self.synced = self.frozen.take().unwrap(),
        }
    }

    fn compare(fs: &mut Fs, dirs: &[Ino], all: &[Names]) {
        for (dir, all) in dirs.iter().zip(all) {
            let found: BTreeSet<Vec<u8>> = names(fs, Tree::Live, *dir).into_iter().collect();
            let mut expected: BTreeSet<Vec<u8>> = all.keys().cloned().collect();
            expected.extend([b".".to_vec(), b"..".to_vec()]);
            assert_eq!(found.len(), expected.len());
            assert_eq!(found, expected);
            for (name, ino) in all {
                let s = fs.lookup(Tree::Live, *dir, name).unwrap();
                assert_eq!((s.ino, s.links), (*ino, 1));
            }
            assert!(matches!(fs.lookup(Tree::Live, *dir, b"none"), Err(FsError::NotFound)));
        }
    }

    fn sync(&mut self, whole: bool) {
        self.heal();
        while self.frozen.is_some() {
            self.construct(false);
        }
        self.fs.sync_all(20).unwrap();
        for dir in &self.dirs {
            let s = self.fs.getattr(Tree::Live, *dir).unwrap();
            let nodes = if s.size / self.chunk > 6 { s.size / self.chunk / 16 + 4 } else { 1 };
            let blocks = s.blocks * 512 / self.chunk;
            assert!((s.size / self.chunk..=s.size / self.chunk + nodes).contains(&blocks), "{s:?}");
        }
        self.synced = self.now.clone();
        Self::compare(&mut self.fs, &self.dirs, &self.now);
        if whole {
            let fork = self.fault.inner().fork();
            let report = silt_verify::check(&fork, &silt_verify::Options::default());
            // Where the inode of a name that is removed cannot be read, the name goes and the number stays taken.
            let is_known = |id: &str| self.has_faults && id == "inode-lost";
            let errors: Vec<String> =
                report.errors().filter(|f| !is_known(f.id)).map(|f| format!("{f:?}")).collect();
            assert!(errors.is_empty(), "{errors:#?}");
        }
    }

    /// What a power cut leaves now.
    fn cut(&mut self) {
        let mut fs = open(Arc::new(self.fault.inner().fork()), &self.options);
        // All logs of the one under way may be there already.
        let found: Vec<BTreeSet<_>> =
            self.dirs.iter().map(|dir| names(&mut fs, Tree::Live, *dir).into_iter().collect()).collect();
        let is = |all: &[Names]| {
            found.iter().zip(all).all(|(found, all)| {
                found.len() == all.len() + 2 && all.keys().all(|name| found.contains(name))
            })
        };
        let kept = self.frozen.as_ref().filter(|frozen| is(frozen)).unwrap_or(&self.synced);
        Self::compare(&mut fs, &self.dirs, kept);
    }

    fn reopen(&mut self) {
        self.sync(true);
        self.fs.volume_mut().close(30).unwrap();
        self.fs = open(self.fault.clone(), &self.options);
    }
}

fn play(seed: u64, faults: bool) -> (u32, u32) {
    let bs = [1024, 4096, 65536][(seed % 3) as usize];
    let index_bytes = [64 << 20, 0, 3000][(seed / 3 % 3) as usize];
    let mut p = Play::new(seed, bs, Options { index_bytes, seed, ..Options::default() }, faults);
    for phase in 0..8 {
        let n = if bs == 65536 { 1000 } else { 500 };
        for step in 0..n {
            if faults && p.dice.below(6) == 0 {
                let whole = p.fault.inner().len();
                let at = p.dice.below(whole);
                let len = [whole, whole / 4, 100_000][p.dice.below(3) as usize];
                p.fault.fail_reads(at.min(whole / 2)..at.saturating_add(len), Times::Always);
            }
            p.step(phase % 2 == 0);
            let begins = p.dice.below(60) == 0;
            if begins || p.dice.below(3) == 0 {
                p.construct(begins);
            }
            match p.dice.below(300) {
                0 => p.sync(false),
                1 => p.cut(),
                2 if step > 0 => p.reopen(),
                _ => {}
            }
        }
        p.reopen();
    }
    (p.gone, p.failed)
}

fn histories() -> u64 {
    std::env::var("SILT_HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(9)
}

#[test]
fn no_name_is_lost() {
    for seed in 0..histories() {
        let (gone, _) = play(seed, false);
        assert!(gone > 400, "{gone}");
    }
}

#[test]
fn no_name_is_lost_to_errors() {
    let mut failed = 0;
    for seed in 0..histories() {
        failed += play(1_000_000 + seed, true).1;
    }
    println!("{failed} changes failed");
    assert!(failed > 0);
}
