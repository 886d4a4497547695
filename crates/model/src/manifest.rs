//! What a whole tree looks like: one [`Entry`] for each name, comparable between any two who can tell.
//!
//! A field that the teller cannot know (the model does not know a write's time, a directory's size, block
//! counts, inode numbers) is `None`, written `?`, and agrees with everything. Hard links are told by the first
//! path, in byte order, of the same inode. As text: a header line, then a line for each entry, sorted by path.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use crate::hash::Digest;
use crate::path::{TreePath, escape, unescape};

/// A point in time: `sec` may be negative (before 1970), `nsec` counts upwards from it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time {
    /// Seconds since 1970.
    pub sec: i64,
    /// Nanoseconds, below 10^9.
    pub nsec: u32,
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.sec, self.nsec)
    }
}

impl Time {
    /// Parses what [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (sec, nsec) = text.split_once('.')?;
        Some(Self { sec: sec.parse().ok()?, nsec: nsec.parse().ok()? })
    }
}

/// File type bits of a mode.
pub const S_IFMT: u32 = 0o170_000;
/// Socket.
pub const S_IFSOCK: u32 = 0o140_000;
/// Symbolic link.
pub const S_IFLNK: u32 = 0o120_000;
/// Regular file.
pub const S_IFREG: u32 = 0o100_000;
/// Block device.
pub const S_IFBLK: u32 = 0o060_000;
/// Directory.
pub const S_IFDIR: u32 = 0o040_000;
/// Character device.
pub const S_IFCHR: u32 = 0o020_000;
/// FIFO.
pub const S_IFIFO: u32 = 0o010_000;

/// What an object holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// Nothing of its own: directories and special files.
    Nothing,
    /// A regular file's bytes.
    Data(Digest),
    /// A symbolic link's target.
    Target(Vec<u8>),
}

/// One name of the tree and the inode behind it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Where it is.
    pub path: TreePath,
    /// Type and permission bits as in `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: Option<u64>,
    /// Time of the last modification.
    pub mtime: Option<Time>,
    /// Time of the last change of the inode.
    pub ctime: Option<Time>,
    /// Number of names.
    pub nlink: u32,
    /// Major and minor number of a device, zeroes for all else.
    pub rdev: (u32, u32),
    /// Allocated units of 512 bytes.
    pub blocks: Option<u64>,
    /// Inode flags as `FS_IOC_GETFLAGS` gives them; known for regular files and directories only.
    pub flags: Option<u32>,
    /// Inode number.
    pub ino: Option<u64>,
    /// Inode generation; known for regular files and directories only.
    pub generation: Option<u32>,
    /// The first path of the same inode, if it has more than one name and is no directory.
    pub same_as: Option<TreePath>,
    /// The content.
    pub body: Body,
}

/// Which of the optional fields to gather or to compare; the others always are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Columns {
    /// Modification times.
    pub mtime: bool,
    /// Change times.
    pub ctime: bool,
    /// Block counts.
    pub blocks: bool,
    /// Inode flags.
    pub flags: bool,
    /// Inode numbers.
    pub ino: bool,
    /// Inode generations.
    pub generation: bool,
    /// The content of regular files.
    pub data: bool,
}

impl Columns {
    /// Everything: for comparing two readers of one volume.
    pub const ALL: Self =
        Self { mtime: true, ctime: true, blocks: true, flags: true, ino: true, generation: true, data: true };
    /// What the model can foretell.
    pub const MODEL: Self = Self {
        mtime: true,
        ctime: false,
        blocks: false,
        flags: true,
        ino: false,
        generation: false,
        data: true,
    };
}

/// A whole tree.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Manifest {
    entries: BTreeMap<TreePath, Entry>,
}

const HEADER: &str = "# silt manifest 1: mode uid gid size mtime ctime nlink rdev blocks flags ino generation same-as body path";

/// Why a text is not a manifest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ManifestError {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: &'static str,
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "manifest, line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for ManifestError {}

impl Manifest {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry; one with the same path is replaced.
    pub fn insert(&mut self, entry: Entry) {
        self.entries.insert(entry.path.clone(), entry);
    }

    /// The entry at `path`.
    pub fn get(&self, path: &TreePath) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// The entries, sorted by path.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// Number of entries, the root included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry, not even the root.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Fills in [`Entry::same_as`] from `id`, which tells an entry's inode; for those who gather a manifest.
    pub fn link_names<K: Ord>(&mut self, mut id: impl FnMut(&Entry) -> Option<K>) {
        let mut first: BTreeMap<K, TreePath> = BTreeMap::new();
        for entry in self.entries.values_mut() {
            if entry.nlink < 2 || entry.mode & S_IFMT == S_IFDIR {
                entry.same_as = None;
            } else if let Some(key) = id(entry) {
                entry.same_as = Some(first.entry(key).or_insert_with(|| entry.path.clone()).clone());
            }
        }
    }

    /// The text form.
    pub fn to_text(&self) -> String {
        let mut text = String::with_capacity(64 + self.entries.len() * 128);
        text.push_str(HEADER);
        text.push('\n');
        for entry in self.entries.values() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{entry}");
        }
        text
    }

    /// Parses the text form.
    pub fn from_text(text: &str) -> Result<Self, ManifestError> {
        let mut manifest = Self::new();
        let mut lines = text.lines().enumerate();
        if lines.next().map(|(_, line)| line) != Some(HEADER) {
            return Err(ManifestError { line: 1, what: "not the header of a manifest" });
        }
        for (index, line) in lines {
            let entry = Entry::parse(line).ok_or(ManifestError { line: index + 1, what: "not an entry" })?;
            manifest.insert(entry);
        }
        Ok(manifest)
    }
}

fn or_unknown<T: fmt::Display>(value: Option<&T>) -> String {
    value.map_or_else(|| "?".to_owned(), T::to_string)
}

impl fmt::Display for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Body::Nothing => f.write_str("-"),
            Body::Data(digest) => write!(f, "data:{digest}"),
            Body::Target(target) => write!(f, "link:{}", escape(target)),
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:06o} {} {} {} {} {} {} {},{} {} {} {} {} {} {} {}",
            self.mode,
            self.uid,
            self.gid,
            or_unknown(self.size.as_ref()),
            or_unknown(self.mtime.as_ref()),
            or_unknown(self.ctime.as_ref()),
            self.nlink,
            self.rdev.0,
            self.rdev.1,
            or_unknown(self.blocks.as_ref()),
            self.flags.map_or_else(|| "?".to_owned(), |flags| format!("{flags:#x}")),
            or_unknown(self.ino.as_ref()),
            or_unknown(self.generation.as_ref()),
            self.same_as.as_ref().map_or_else(|| "-".to_owned(), |path| format!("={path}")),
            self.body,
            self.path,
        )
    }
}

/// `?` is `Some(None)`: a well-formed unknown.
fn known<T>(text: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<Option<T>> {
    if text == "?" { Some(None) } else { parse(text).map(Some) }
}

impl Entry {
    /// Parses what [`fmt::Display`] writes.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let mut next = || words.next();
        let mode = u32::from_str_radix(next()?, 8).ok()?;
        let uid = next()?.parse().ok()?;
        let gid = next()?.parse().ok()?;
        let size = known(next()?, |t| t.parse().ok())?;
        let mtime = known(next()?, Time::parse)?;
        let ctime = known(next()?, Time::parse)?;
        let nlink = next()?.parse().ok()?;
        let (major, minor) = next()?.split_once(',')?;
        let rdev = (major.parse().ok()?, minor.parse().ok()?);
        let blocks = known(next()?, |t| t.parse().ok())?;
        let flags = known(next()?, |t| u32::from_str_radix(t.strip_prefix("0x")?, 16).ok())?;
        let ino = known(next()?, |t| t.parse().ok())?;
        let generation = known(next()?, |t| t.parse().ok())?;
        let same_as = match next()? {
            "-" => None,
            text => Some(TreePath::parse(text.strip_prefix('=')?)?),
        };
        let body = match next()? {
            "-" => Body::Nothing,
            text => match text.split_once(':')? {
                ("data", digest) => Body::Data(Digest::parse(digest)?),
                ("link", target) => Body::Target(unescape(target)?),
                _ => return None,
            },
        };
        let path = TreePath::parse(next()?)?;
        if words.next().is_some() {
            return None;
        }
        Some(Self {
            path,
            mode,
            uid,
            gid,
            size,
            mtime,
            ctime,
            nlink,
            rdev,
            blocks,
            flags,
            ino,
            generation,
            same_as,
            body,
        })
    }

    /// How `other` differs from this one, field by field, unknown fields left out; empty if they agree.
    pub fn differences(&self, other: &Entry, columns: Columns) -> Vec<String> {
        let mut found = Vec::new();
        let mut plain = |name: &str, a: String, b: String| {
            if a != b {
                found.push(format!("{name} {a} / {b}"));
            }
        };
        plain("mode", format!("{:06o}", self.mode), format!("{:06o}", other.mode));
        plain("uid", self.uid.to_string(), other.uid.to_string());
        plain("gid", self.gid.to_string(), other.gid.to_string());
        plain("links", self.nlink.to_string(), other.nlink.to_string());
        plain("rdev", format!("{:?}", self.rdev), format!("{:?}", other.rdev));
        if columns.data || !matches!((&self.body, &other.body), (Body::Data(_), Body::Data(_))) {
            plain("content", self.body.to_string(), other.body.to_string());
        }
        if self.same_as != other.same_as {
            let name = |e: &Entry| e.same_as.as_ref().map_or_else(|| "alone".to_owned(), TreePath::to_string);
            plain("is the same file as", name(self), name(other));
        }
        compare("size", self.size, other.size, true, &mut found);
        compare("mtime", self.mtime, other.mtime, columns.mtime, &mut found);
        compare("ctime", self.ctime, other.ctime, columns.ctime, &mut found);
        compare("blocks", self.blocks, other.blocks, columns.blocks, &mut found);
        compare("flags", self.flags, other.flags, columns.flags, &mut found);
        compare("inode", self.ino, other.ino, columns.ino, &mut found);
        compare("generation", self.generation, other.generation, columns.generation, &mut found);
        found
    }
}

fn compare<T: PartialEq + fmt::Display>(
    name: &str,
    a: Option<T>,
    b: Option<T>,
    wanted: bool,
    found: &mut Vec<String>,
) {
    if let (true, Some(a), Some(b)) = (wanted, a, b)
        && a != b
    {
        found.push(format!("{name} {a} / {b}"));
    }
}

/// How two trees differ, one sentence each, `a` named first; empty if they agree in `columns` and in what is
/// always compared.
pub fn diff(a: &Manifest, b: &Manifest, columns: Columns) -> Vec<String> {
    let mut found = Vec::new();
    for (path, ours) in &a.entries {
        match b.entries.get(path) {
            None => found.push(format!("{path}: only in the first ({ours})")),
            Some(theirs) => {
                let differences = ours.differences(theirs, columns);
                if !differences.is_empty() {
                    found.push(format!("{path}: {}", differences.join(", ")));
                }
            }
        }
    }
    for (path, theirs) in &b.entries {
        if !a.entries.contains_key(path) {
            found.push(format!("{path}: only in the second ({theirs})"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str) -> Entry {
        Entry {
            path: TreePath::new(path.as_bytes()),
            mode: S_IFREG | 0o644,
            uid: 1,
            gid: 2,
            size: Some(3),
            mtime: Some(Time { sec: -5, nsec: 7 }),
            ctime: None,
            nlink: 1,
            rdev: (0, 0),
            blocks: Some(8),
            flags: Some(0x40),
            ino: Some(12),
            generation: None,
            same_as: None,
            body: Body::Data(Digest::of(b"abc")),
        }
    }

    #[test]
    fn text_round_trip() {
        let mut manifest = Manifest::new();
        manifest.insert(entry("b c"));
        manifest.insert(Entry {
            body: Body::Target(b" x\n".to_vec()),
            same_as: Some(TreePath::new(b"b c")),
            ..entry("a/%")
        });
        manifest.insert(Entry { body: Body::Nothing, size: None, rdev: (4095, 1 << 19), ..entry("") });
        let text = manifest.to_text();
        assert_eq!(Manifest::from_text(&text).unwrap(), manifest);
        assert_eq!(text.lines().count(), 4);
        assert!(Manifest::from_text("").is_err());
        assert_eq!(Manifest::from_text(&(text + "x\n")).unwrap_err().line, 5);
    }

    #[test]
    fn differences_are_told_and_unknowns_agree() {
        let (mut a, mut b) = (Manifest::new(), Manifest::new());
        a.insert(entry("x"));
        b.insert(Entry {
            size: None,
            ctime: Some(Time::default()),
            mtime: Some(Time { sec: -5, nsec: 8 }),
            ..entry("x")
        });
        assert_eq!(diff(&a, &b, Columns::ALL), ["x: mtime -5.000000007 / -5.000000008"]);
        assert!(diff(&a, &b, Columns { mtime: false, ..Columns::ALL }).is_empty());
        b.insert(entry("y"));
        b.insert(Entry { body: Body::Data(Digest::of(b"z")), nlink: 2, ..entry("x") });
        let told = diff(&a, &b, Columns::MODEL);
        assert_eq!(told.len(), 2);
        assert!(told[0].contains("links 1 / 2") && told[0].contains("content"));
        assert!(told[1].starts_with("y: only in the second"));
    }

    #[test]
    fn names_of_one_inode_are_joined() {
        let mut manifest = Manifest::new();
        for (path, ino, nlink) in [("a", 5, 2), ("b", 6, 1), ("c", 5, 2)] {
            manifest.insert(Entry { ino: Some(ino), nlink, ..entry(path) });
        }
        manifest.link_names(|e| e.ino);
        let same: Vec<_> = manifest.entries().map(|e| e.same_as.as_ref().map(|p| p.to_string())).collect();
        assert_eq!(same, [Some("a".to_owned()), None, Some("a".to_owned())]);
    }
}
