//! A witness beside other work: it changes files of its own, has them synced in every way there is, and remembers
//! what it was promised. After a crash each of its names must be as promised, byte for byte, or newer.
//!
//! Of every name it knows the states that a crash may leave: what the last promise covered, and each change since.
//! fsync, O_SYNC and fsync of a directory promise everything so far; fdatasync and O_DSYNC the data of one file.
//! Nobody promises that a write is one change: the kernel hands over the part in a page that it does not know
//! whole by itself, and a checkpoint may come between that and the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use silt_model::content::pattern_bytes;
use silt_model::rng::Rng;

/// Names it plays with, and one that files have before they are given one of them.
const NAMES: u64 = 8;
const NEW: &str = "new";
/// Largest file and largest write, in bytes.
const LARGEST: u64 = 200 << 10;
const WRITE: u64 = 64 << 10;

/// What a name held at a moment; `None` where there was none.
type State = Option<Arc<Vec<u8>>>;

/// What was done to a name.
#[derive(Clone)]
struct Change {
    state: State,
    /// The bytes it wrote, in order: a crash may leave a first part of them on the state before.
    written: Option<Range<usize>>,
}

impl Change {
    /// Whether a crash in the middle of it may leave `found` of the state `before`.
    fn leaves(&self, before: &State, found: &State) -> bool {
        let (Some(written), Some(after), Some(found)) = (&self.written, &self.state, found) else {
            return false;
        };
        let old = before.as_deref().map_or(&[][..], Vec::as_slice);
        let (Some(new), Some(there)) = (after.get(written.clone()), found.get(written.start..)) else {
            return false;
        };
        let arrived = new.iter().zip(there).take_while(|(a, b)| a == b).count();
        let mut torn = old.to_vec();
        put(&mut torn, written.start, &new[..arrived]);
        torn == **found
    }
}

/// What may be found at a name: the oldest is what was promised.
type States = Vec<Change>;

/// How a change is made to stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sync {
    Fsync,
    Fdatasync,
    /// Through a descriptor with O_DSYNC.
    DataWrite,
    /// Through a descriptor with O_SYNC.
    Write,
    None,
}

/// The witness of one directory.
pub struct Witness {
    dir: PathBuf,
    rng: Rng,
    names: BTreeMap<String, States>,
    /// Names that may be another file's after a crash: syncing the data alone does not help them.
    unbound: BTreeSet<String>,
    version: u64,
    /// Promises so far.
    pub promises: u64,
}

impl Witness {
    /// One for the directory `dir`, which is made by [`Witness::work`].
    pub fn new(dir: &Path, seed: u64) -> Self {
        let names = (0..NAMES).map(|n| format!("f{n}")).chain([NEW.to_owned()]);
        let names = names.map(|name| (name, promised(None))).collect();
        let rng = Rng::new(seed);
        let version = seed << 32;
        Self { dir: dir.to_owned(), rng, names, unbound: BTreeSet::new(), version, promises: 0 }
    }

    /// Works until `killed` is set and something fails, or `killed` is set; a failure before is an error.
    pub fn work(&mut self, killed: &AtomicBool) -> Result<()> {
        while !killed.load(Ordering::SeqCst) {
            let stepped = self.prepare().and_then(|()| self.step());
            if let Err(e) = stepped
                && !killed.load(Ordering::SeqCst)
            {
                return Err(e).with_context(|| format!("the witness in {}", self.dir.display()));
            }
        }
        Ok(())
    }

    fn prepare(&mut self) -> io::Result<()> {
        if self.dir.is_dir() {
            return Ok(());
        }
        std::fs::create_dir(&self.dir)?;
        File::open(&self.dir)?.sync_all()
    }

    fn now(&self, name: &str) -> State {
        self.names.get(name).and_then(|states| states.last()?.state.clone())
    }

    /// A change that is about to be made, in one piece.
    fn change(&mut self, name: &str, state: State) {
        self.names.entry(name.to_owned()).or_default().push(Change { state, written: None });
    }

    /// Bytes that are about to be written.
    fn write(&mut self, name: &str, content: &[u8], offset: usize, data: &[u8]) {
        let mut after = content.to_vec();
        put(&mut after, offset, data);
        let written = Some(offset..offset + data.len());
        self.names.entry(name.to_owned()).or_default().push(Change { state: Some(Arc::new(after)), written });
    }

    fn promise_all(&mut self) {
        self.names.values_mut().for_each(keep_last);
        self.unbound.clear();
        self.promises += 1;
    }

    fn promise(&mut self, name: &str) {
        self.names.get_mut(name).into_iter().for_each(keep_last);
        self.promises += 1;
    }

    fn fresh(&mut self, len: u64) -> Vec<u8> {
        self.version += 1;
        pattern_bytes(self.version, usize::try_from(len).unwrap_or(0))
    }

    fn step(&mut self) -> io::Result<()> {
        let name = format!("f{}", self.rng.below(NAMES));
        match (self.now(&name), self.rng.below(20)) {
            (None, _) | (Some(_), 0..4) => self.replace(&name),
            (Some(_), 4) => {
                self.change(&name, None);
                self.unbound.insert(name.clone());
                std::fs::remove_file(self.dir.join(&name))?;
                self.sync_dir()
            }
            (Some(content), 5) => {
                let to = format!("f{}", self.rng.below(NAMES));
                if to == name {
                    return Ok(());
                }
                self.change(&name, None);
                self.change(&to, Some(content));
                self.unbound.extend([name.clone(), to.clone()]);
                std::fs::rename(self.dir.join(&name), self.dir.join(&to))?;
                if self.rng.percent(50) { self.sync_dir() } else { Ok(()) }
            }
            (Some(content), 6..8) => {
                let size = self.rng.below(LARGEST);
                let sync = self.sync();
                let mut cut = (*content).clone();
                cut.resize(usize::try_from(size).unwrap_or(0), 0);
                self.change(&name, Some(Arc::new(cut)));
                let file = self.open(&name, sync)?;
                file.set_len(size)?;
                // The flags of a descriptor are about writes.
                let sync = if matches!(sync, Sync::DataWrite | Sync::Write) { Sync::Fsync } else { sync };
                self.keep(&name, &file, sync)
            }
            (Some(content), n) => {
                let size = content.len() as u64;
                let append = size == 0 || (n < 10 && size + WRITE < LARGEST);
                let offset = if append { size } else { self.rng.below(size) };
                let most = if append { WRITE } else { WRITE.min(size - offset) };
                let len = 1 + self.rng.below(most);
                let data = self.fresh(len);
                let sync = self.sync();
                self.write(&name, &content, usize::try_from(offset).unwrap_or(0), &data);
                let file = self.open(&name, sync)?;
                file.write_all_at(&data, offset)?;
                self.keep(&name, &file, sync)
            }
        }
    }

    fn sync(&mut self) -> Sync {
        match self.rng.below(10) {
            0..2 => Sync::Fsync,
            2..5 => Sync::Fdatasync,
            5..7 => Sync::DataWrite,
            7 => Sync::Write,
            _ => Sync::None,
        }
    }

    fn open(&self, name: &str, sync: Sync) -> io::Result<File> {
        // Not those of rustix, whose DSYNC is O_SYNC.
        let flags = match sync {
            Sync::DataWrite => libc::O_DSYNC,
            Sync::Write => libc::O_SYNC,
            _ => 0,
        };
        OpenOptions::new().write(true).custom_flags(flags).open(self.dir.join(name))
    }

    /// Syncs what was written and notes the promise.
    fn keep(&mut self, name: &str, file: &File, sync: Sync) -> io::Result<()> {
        match sync {
            Sync::None => {}
            Sync::Write => self.promise_all(),
            Sync::DataWrite if !self.unbound.contains(name) => self.promise(name),
            Sync::Fdatasync if !self.unbound.contains(name) => {
                file.sync_data()?;
                self.promise(name);
            }
            Sync::DataWrite | Sync::Fdatasync | Sync::Fsync => {
                file.sync_all()?;
                self.promise_all();
            }
        }
        Ok(())
    }

    fn sync_dir(&mut self) -> io::Result<()> {
        File::open(&self.dir)?.sync_all()?;
        self.promise_all();
        Ok(())
    }

    /// What programs do that must not lose a file: write a new one, sync it, rename it over the old one.
    fn replace(&mut self, name: &str) -> io::Result<()> {
        let len = self.rng.below(LARGEST);
        let data = Arc::new(self.fresh(len));
        let path = self.dir.join(NEW);
        self.unbound.insert(NEW.to_owned());
        // A file that a crash left is cut first.
        self.change(NEW, Some(Arc::default()));
        let file = File::create(&path)?;
        self.write(NEW, &[], 0, &data);
        for (n, part) in data.chunks(WRITE as usize).enumerate() {
            file.write_all_at(part, n as u64 * WRITE)?;
        }
        file.sync_all()?;
        self.promise_all();
        self.change(NEW, None);
        self.change(name, Some(data));
        self.unbound.extend([NEW.to_owned(), name.to_owned()]);
        std::fs::rename(path, self.dir.join(name))?;
        self.sync_dir()
    }

    /// Compares the directory with what was promised, and goes on from what is there.
    pub fn check(&mut self) -> Result<()> {
        let listed = match std::fs::read_dir(&self.dir) {
            // It was never synced; then nothing in it was.
            Err(e) if e.kind() == io::ErrorKind::NotFound && self.promises == 0 => {
                self.names.values_mut().for_each(|states| *states = promised(None));
                return Ok(());
            }
            listed => listed.with_context(|| self.dir.display().to_string())?,
        };
        for entry in listed {
            let name = entry?.file_name();
            if !name.to_str().is_some_and(|name| self.names.contains_key(name)) {
                bail!("{} holds {}, which nobody made", self.dir.display(), name.display());
            }
        }
        for (name, states) in &mut self.names {
            let path = self.dir.join(name);
            let found: State = match std::fs::read(&path) {
                Ok(bytes) => Some(Arc::new(bytes)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => None,
                Err(e) => return Err(e).with_context(|| format!("reading {}", path.display())),
            };
            if !may_be(states, &found) {
                let told: Vec<_> = states.iter().map(|change| told(change, &found)).collect();
                let bytes = found.as_ref().map(|f| f.len());
                bail!("{} is {bytes:?} bytes, promised was {}", path.display(), told.join(", then "));
            }
            *states = promised(found);
        }
        self.unbound.clear();
        Ok(())
    }
}

fn promised(state: State) -> States {
    vec![Change { state, written: None }]
}

fn keep_last(states: &mut States) {
    states.drain(..states.len().saturating_sub(1));
}

fn may_be(states: &[Change], found: &State) -> bool {
    states.iter().any(|change| change.state == *found)
        || states.windows(2).any(|pair| pair[1].leaves(&pair[0].state, found))
}

/// Puts `data` at `offset` into `content`, which grows where it must.
fn put(content: &mut Vec<u8>, offset: usize, data: &[u8]) {
    content.resize(content.len().max(offset + data.len()), 0);
    content[offset..offset + data.len()].copy_from_slice(data);
}

/// A state in words, and where what was found begins to differ from it.
fn told(change: &Change, found: &State) -> String {
    let Some(bytes) = &change.state else { return "nothing".to_owned() };
    let same = found.as_ref().map_or(0, |o| bytes.iter().zip(o.iter()).take_while(|(a, b)| a == b).count());
    let written = change.written.as_ref().map_or(String::new(), |w| format!(" by a write of {w:?}"));
    format!("{} bytes{written}, the first {same} as found", bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays some steps in a directory that loses nothing.
    fn played(dir: &Path) -> Witness {
        let mut witness = Witness::new(&dir.join("w"), 7);
        witness.prepare().unwrap();
        (0..300).for_each(|_| witness.step().unwrap());
        witness
    }

    #[test]
    fn what_is_kept_is_accepted() {
        let place = tempfile::tempdir().unwrap();
        let mut witness = played(place.path());
        assert!(witness.promises > 100);
        witness.check().unwrap();
        witness.check().unwrap();
    }

    #[test]
    fn what_is_lost_is_seen() {
        for loss in 0..4 {
            let place = tempfile::tempdir().unwrap();
            let mut witness = played(place.path());
            witness.promise_all();
            let dir = place.path().join("w");
            let there = |w: &Witness| {
                (0..NAMES).map(|n| format!("f{n}")).find(|n| w.now(n).is_some_and(|c| !c.is_empty()))
            };
            let path = dir.join(there(&witness).unwrap());
            match loss {
                0 => std::fs::remove_file(&path).unwrap(),
                1 => {
                    let mut bytes = std::fs::read(&path).unwrap();
                    *bytes.last_mut().unwrap() ^= 1;
                    std::fs::write(&path, bytes).unwrap();
                }
                2 => std::fs::write(dir.join("stranger"), "").unwrap(),
                _ => {
                    let file = OpenOptions::new().write(true).open(&path).unwrap();
                    file.set_len(file.metadata().unwrap().len() + 1).unwrap();
                }
            }
            assert!(witness.check().is_err(), "{loss}");
        }
    }

    #[test]
    fn older_states_are_accepted_until_promised() {
        let place = tempfile::tempdir().unwrap();
        let mut witness = Witness::new(&place.path().join("w"), 1);
        witness.prepare().unwrap();
        let path = place.path().join("w/f0");
        let state = |text: &str| Some(Arc::new(text.as_bytes().to_vec()));
        witness.change("f0", state("one"));
        witness.promise_all();
        witness.change("f0", state("two"));
        for (text, right) in [("one", true), ("two", true), ("six", false)] {
            std::fs::write(&path, text).unwrap();
            let states = witness.names.clone();
            assert_eq!(witness.check().is_ok(), right, "{text}");
            witness.names = states;
        }
        witness.promise("f0");
        std::fs::write(&path, "one").unwrap();
        assert!(witness.check().is_err());
    }

    #[test]
    fn a_write_may_be_cut_short_but_not_shuffled() {
        let place = tempfile::tempdir().unwrap();
        let mut witness = Witness::new(&place.path().join("w"), 1);
        witness.prepare().unwrap();
        let path = place.path().join("w/f0");
        witness.change("f0", Some(Arc::new(b"abcdef".to_vec())));
        witness.promise_all();
        witness.write("f0", b"abcdef", 4, b"XYZ");
        for (text, right) in [
            ("abcdef", true),
            ("abcdXf", true),
            ("abcdXY", true),
            ("abcdXYZ", true),
            ("abcdeY", false),
            ("abcdX", false),
            ("abcdXYf", false),
            ("abc", false),
        ] {
            std::fs::write(&path, text).unwrap();
            let states = witness.names.clone();
            assert_eq!(witness.check().is_ok(), right, "{text}");
            witness.names = states;
        }
    }
}
