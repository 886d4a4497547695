//! Ways to fill a directory until nothing more fits, and what must be there afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Result, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use silt_model::rng::{Rng, mix};

/// How a volume is filled.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Pattern {
    /// Files of a mebibyte.
    Large,
    /// Files of one block in many directories.
    Small,
    /// One file that grows, synced now and then.
    Log,
    /// Blocks here and there in sparse files.
    Scattered,
    /// Names alone: empty files, links, directories.
    Names,
    /// Files of all sizes, some of them written over before others are made.
    Mixed,
}

impl Pattern {
    pub const ALL: [Pattern; 6] =
        [Pattern::Large, Pattern::Small, Pattern::Log, Pattern::Scattered, Pattern::Names, Pattern::Mixed];
}

/// Bytes written at once.
const PIECE: usize = 64 << 10;
/// Files a directory.
const DIRECTORY: usize = 100;

/// What is known of a file: each of its 4 KiB pieces that was written whole begins with what [`stamp`] says.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Known {
    /// By piece, the round in which it was written last.
    pieces: BTreeMap<u64, u64>,
}

/// An error with what was done to which file.
fn during(what: &str, path: &Path, e: &std::io::Error) -> std::io::Error {
    std::io::Error::new(e.kind(), format!("{what} {}: {e}", path.display()))
}

/// The files below a directory. Whatever was told to be written is known; what an error left behind is not.
#[derive(Deserialize, Serialize)]
pub struct Filling {
    dir: PathBuf,
    #[serde(skip, default = "unseeded")]
    rng: Rng,
    files: BTreeMap<PathBuf, Known>,
    /// Names without content.
    names: Vec<PathBuf>,
    /// Files that changed since all was synced.
    unsettled: BTreeSet<PathBuf>,
    made: usize,
    round: u64,
    /// Bytes that were taken.
    pub written: u64,
}

fn stamp(name: &Path, piece: u64, round: u64) -> [u8; 8] {
    let word = name.as_os_str().as_encoded_bytes().iter().fold(7, |w: u64, b| mix(w ^ u64::from(*b)));
    mix(word ^ mix(piece) ^ round.rotate_left(40)).to_le_bytes()
}

/// Until [`Filling::go_on`] seeds it.
pub(super) fn unseeded() -> Rng {
    Rng::new(0)
}

fn is_full(e: &std::io::Error) -> bool {
    e.kind() == ErrorKind::StorageFull
}

impl Filling {
    pub fn new(dir: &Path, seed: u64) -> Self {
        Filling {
            dir: dir.to_owned(),
            rng: Rng::new(seed),
            files: BTreeMap::new(),
            names: Vec::new(),
            unsettled: BTreeSet::new(),
            made: 0,
            round: 0,
            written: 0,
        }
    }

    /// Goes on after it was put down, with other choices than before.
    pub fn go_on(&mut self, seed: u64) {
        self.rng = Rng::new(seed);
    }

    /// Bytes that the files it knows hold.
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|k| k.pieces.len() as u64 * 4096).sum()
    }

    /// Writes in a way until there is no space. Any other error ends it, and is one.
    pub fn fill(&mut self, pattern: Pattern) -> Result<()> {
        self.begin();
        while self.step(pattern)? {}
        Ok(())
    }

    /// What is written from here on differs from what was written before.
    pub fn begin(&mut self) {
        self.round += 1;
    }

    /// Writes once in a way; whether there was space.
    pub fn step(&mut self, pattern: Pattern) -> Result<bool> {
        let step = match pattern {
            Pattern::Large => self.file(1 << 20),
            Pattern::Small => self.file(4096),
            Pattern::Log => self.grow(),
            Pattern::Scattered => self.scatter(),
            Pattern::Names => self.name(),
            Pattern::Mixed => self.any(),
        };
        match step {
            Ok(()) => Ok(true),
            Err(e) if is_full(&e) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Makes the directory.
    pub fn make_dir(&self) -> Result<()> {
        std::fs::create_dir(&self.dir)
    }

    /// Has everything made durable.
    pub fn sync(&mut self) -> Result<()> {
        File::open(&self.dir)?.sync_all().map_err(|e| during("syncing", &self.dir, &e))?;
        self.unsettled.clear();
        Ok(())
    }

    /// After a crash: what was durable and not changed since is there; all else goes.
    pub fn after_crash(&mut self) -> Result<std::result::Result<(), String>> {
        let lost = std::mem::take(&mut self.unsettled);
        self.files.retain(|path, _| !lost.contains(path));
        self.names.clear();
        if let Err(differs) = self.compare()? {
            return Ok(Err(differs));
        }
        self.remove_unknown(&self.dir)?;
        self.sync()?;
        Ok(Ok(()))
    }

    fn remove_unknown(&self, dir: &Path) -> Result<()> {
        for entry in std::fs::read_dir(dir)? {
            let (entry, path) = entry.map(|e| (e.file_type(), e.path()))?;
            if entry?.is_dir() {
                self.remove_unknown(&path)?;
                // Others may be in it.
                let _ = std::fs::remove_dir(&path);
            } else if !self.files.contains_key(&path) {
                std::fs::remove_file(&path).map_err(|e| during("removing", &path, &e))?;
            }
        }
        Ok(())
    }

    /// Files of a block until not even one fits.
    pub fn top_up(&mut self) -> Result<()> {
        self.fill(Pattern::Small)
    }

    /// Makes a small file; whether there was space.
    pub fn one_more(&mut self) -> Result<bool> {
        self.step(Pattern::Small)
    }

    fn new_name(&mut self) -> Result<PathBuf> {
        let dir = self.dir.join(format!("d{}", self.made / DIRECTORY));
        if self.made.is_multiple_of(DIRECTORY) || !dir.exists() {
            match std::fs::create_dir(&dir) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                    return Err(during("making", &dir, &e));
                }
                _ => {}
            }
        }
        self.made += 1;
        Ok(dir.join(format!("f{}", self.made)))
    }

    /// A new file.
    fn file(&mut self, bytes: usize) -> Result<()> {
        let path = self.new_name()?;
        self.unsettled.insert(path.clone());
        let file = match File::create_new(&path) {
            Ok(file) => file,
            Err(e) => {
                self.made -= 1;
                return Err(during("making", &path, &e));
            }
        };
        self.files.insert(path.clone(), Known::default());
        self.put(&file, &path, 0, bytes)
    }

    /// Writes pieces of a file; those that were taken are known.
    fn put(&mut self, file: &File, path: &Path, from: u64, bytes: usize) -> Result<()> {
        self.unsettled.insert(path.to_owned());
        let mut done = 0;
        while done < bytes {
            let n = (bytes - done).min(PIECE);
            let at = from + done as u64;
            let mut buffer = vec![0u8; n];
            for (i, piece) in buffer.chunks_mut(4096).enumerate() {
                let stamp = stamp(path, at / 4096 + i as u64, self.round);
                for word in piece.chunks_mut(8) {
                    let n = word.len();
                    word.copy_from_slice(&stamp[..n]);
                }
            }
            // A short write is as good as none for the rest.
            let taken = file.write_at(&buffer, at).map_err(|e| during("writing", path, &e))?;
            let known = self.files.entry(path.to_owned()).or_default();
            for piece in 0..taken as u64 / 4096 {
                known.pieces.insert(at / 4096 + piece, self.round);
            }
            self.written += taken as u64;
            if taken < n {
                return Err(ErrorKind::StorageFull.into());
            }
            done += n;
        }
        Ok(())
    }

    fn grow(&mut self) -> Result<()> {
        let path = self.dir.join("log");
        let mut file =
            OpenOptions::new().append(false).create(true).truncate(false).write(true).open(&path)?;
        let at = file.seek(SeekFrom::End(0))?.div_ceil(4096) * 4096;
        self.put(&file, &path, at, PIECE)?;
        if self.rng.below(16) == 0 {
            file.sync_data()?;
        }
        Ok(())
    }

    fn scatter(&mut self) -> Result<()> {
        let path = self.dir.join(format!("sparse{}", self.rng.below(4)));
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
        let at = self.rng.below(1 << 22) * 4096;
        self.put(&file, &path, at, 4096)
    }

    fn name(&mut self) -> Result<()> {
        let path = self.new_name()?;
        let made = match self.made % 8 {
            0 => std::fs::create_dir(&path),
            1 => std::os::unix::fs::symlink("x".repeat(200), &path),
            2 if let Some(old) = self.names.iter().rev().find(|n| n.is_file()) => {
                std::fs::hard_link(old, &path)
            }
            _ => File::create_new(&path).map(drop),
        };
        if made.is_ok() {
            self.names.push(path.clone());
        } else {
            self.made -= 1;
        }
        made.map_err(|e| during("making the name", &path, &e))
    }

    fn any(&mut self) -> Result<()> {
        match self.rng.below(8) {
            0 => self.name(),
            1 => self.scatter(),
            2 | 3 => {
                let n = self.files.len() as u64;
                let which = usize::try_from(self.rng.below(n.max(1))).unwrap_or(0);
                let Some((path, known)) = self.files.iter().nth(which) else { return self.file(4096) };
                let (path, at) = (path.clone(), known.pieces.keys().next().copied().unwrap_or(0));
                let file = OpenOptions::new().write(true).open(&path)?;
                self.put(&file, &path, at * 4096, 4096)
            }
            4 => self.file(1 << 20),
            _ => {
                let bytes = usize::try_from(1 + self.rng.below(16)).unwrap_or(1) * 4096;
                self.file(bytes)
            }
        }
    }

    /// Removes everything.
    pub fn remove_all(&mut self) -> Result<()> {
        (self.files, self.names) = Default::default();
        for entry in std::fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let removed =
                if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            removed.map_err(|e| during("removing all, at", &path, &e))?;
        }
        Ok(())
    }

    /// Removes files of at least so many bytes together, if there are that many; how many it were.
    pub fn remove(&mut self, bytes: u64) -> Result<u64> {
        let mut freed = 0;
        while freed < bytes {
            let n = self.files.len() as u64;
            let which = usize::try_from(self.rng.below(n.max(1))).unwrap_or(0);
            let Some(path) = self.files.keys().nth(which).cloned() else { break };
            self.unsettled.insert(path.clone());
            std::fs::remove_file(&path).map_err(|e| during("removing", &path, &e))?;
            freed += self.files.remove(&path).map_or(0, |k| k.pieces.len() as u64 * 4096);
        }
        Ok(freed)
    }

    /// Cuts all files off at the beginning.
    pub fn truncate_all(&mut self) -> Result<()> {
        for (path, known) in &mut self.files {
            self.unsettled.insert(path.clone());
            let cut = OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(0));
            cut.map_err(|e| during("cutting off", path, &e))?;
            known.pieces.clear();
        }
        Ok(())
    }

    /// Reads what is known; the first that differs.
    pub fn compare(&self) -> Result<std::result::Result<(), String>> {
        for (path, known) in &self.files {
            let mut file = File::open(path).map_err(|e| during("reading", path, &e))?;
            let mut piece = vec![0; 4096];
            for (at, round) in &known.pieces {
                file.seek(SeekFrom::Start(at * 4096))?;
                file.read_exact(&mut piece).map_err(|e| during("reading", path, &e))?;
                let stamp = stamp(path, *at, *round);
                if piece.chunks(8).any(|word| word != stamp) {
                    return Ok(Err(format!(
                        "{} at byte {} is not what was written",
                        path.display(),
                        at * 4096
                    )));
                }
            }
        }
        Ok(Ok(()))
    }
}
