//! The manifests that lie beside the golden volumes: what the kernel read from them.
//!
//! A text has sections `MANIFEST-BEGIN LABEL` ... `MANIFEST-END LABEL`, a line for each name: mode in hex, uid,
//! gid, size, mtime in seconds, links, 512-byte blocks, content, path. The content of a regular file is told by its
//! MD5, which this crate does not compute: the caller hashes what it reads and compares the text.

use std::fmt;

use crate::path::TreePath;

/// What an object holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GoldenBody {
    /// A regular file with this MD5 (32 hexadecimal digits, lower case).
    Md5(String),
    /// A regular file too large to be read through; only its attributes are told.
    Huge,
    /// A symlink to this target.
    Link(Vec<u8>),
    /// A device: major and minor.
    Device(u32, u32),
    /// A directory, FIFO or socket.
    Nothing,
}

/// A name and the inode behind it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GoldenEntry {
    /// Where it is.
    pub path: TreePath,
    /// Type and permission bits as in `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Seconds of the modification time.
    pub mtime: i64,
    /// Number of names.
    pub nlink: u32,
    /// Allocated units of 512 bytes.
    pub blocks: u64,
    /// What it holds.
    pub body: GoldenBody,
}

/// One tree: the live one (`cur`, `base`) or a snapshot (`cp=N`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GoldenTree {
    /// The section's label.
    pub label: String,
    /// Its entries in the order of the file.
    pub entries: Vec<GoldenEntry>,
}

impl GoldenTree {
    /// The checkpoint number if this is a snapshot.
    pub fn checkpoint(&self) -> Option<u64> {
        self.label.strip_prefix("cp=")?.parse().ok()
    }
}

/// Why a text is not such a manifest: the number of the bad line, from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GoldenError(pub usize);

impl fmt::Display for GoldenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} is not part of a golden manifest", self.0)
    }
}

impl std::error::Error for GoldenError {}

fn entry(line: &[u8]) -> Option<GoldenEntry> {
    let mut words = line.splitn(8, |&b| b == b' ');
    let mut next = || std::str::from_utf8(words.next()?).ok();
    let mode = u32::from_str_radix(next()?, 16).ok()?;
    let uid = next()?.parse().ok()?;
    let gid = next()?.parse().ok()?;
    let size: u64 = next()?.parse().ok()?;
    let mtime = next()?.parse().ok()?;
    let nlink = next()?.parse().ok()?;
    let blocks = next()?.parse().ok()?;
    let rest = words.next()?;
    // The target of a symlink may hold blanks; its length is the size.
    let (body, path) = if let Some(rest) = rest.strip_prefix(b"link:") {
        let (target, path) = rest.split_at_checked(usize::try_from(size).ok()?)?;
        (GoldenBody::Link(target.to_vec()), path.strip_prefix(b" ")?)
    } else {
        let at = rest.iter().position(|&b| b == b' ')?;
        let word = std::str::from_utf8(&rest[..at]).ok()?;
        let body = match word.split_once(':') {
            None if word == "-" => GoldenBody::Nothing,
            None if word == "huge" => GoldenBody::Huge,
            Some(("md5", digest)) if digest.len() == 32 => GoldenBody::Md5(digest.to_owned()),
            Some(("dev", numbers)) => {
                let (major, minor) = numbers.split_once(',')?;
                let hex = |text| u32::from_str_radix(text, 16).ok();
                GoldenBody::Device(hex(major)?, hex(minor)?)
            }
            _ => return None,
        };
        (body, &rest[at + 1..])
    };
    Some(GoldenEntry { path: TreePath::new(path), mode, uid, gid, size, mtime, nlink, blocks, body })
}

/// Parses a manifest file, whose paths may be any bytes but line feeds.
pub fn parse(text: &[u8]) -> Result<Vec<GoldenTree>, GoldenError> {
    let mut trees: Vec<GoldenTree> = Vec::new();
    let mut open = false;
    for (index, line) in text.split(|&b| b == b'\n').enumerate() {
        let bad = GoldenError(index + 1);
        let label = |prefix: &[u8]| {
            line.strip_prefix(prefix).map(|label| String::from_utf8_lossy(label).into_owned())
        };
        if line.is_empty() {
            continue;
        } else if let Some(label) = label(b"MANIFEST-BEGIN ") {
            if open {
                return Err(bad);
            }
            trees.push(GoldenTree { label, entries: Vec::new() });
            open = true;
        } else if let Some(label) = label(b"MANIFEST-END ") {
            if !open || trees.last().map(|tree| &tree.label) != Some(&label) {
                return Err(bad);
            }
            open = false;
        } else {
            let tree = trees.last_mut().filter(|_| open).ok_or(bad)?;
            tree.entries.push(entry(line).ok_or(bad)?);
        }
    }
    if open { Err(GoldenError(text.split(|&b| b == b'\n').count())) } else { Ok(trees) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "MANIFEST-BEGIN cur
41ed 0 0 1024 1795217123 5 1 - .
81a4 0 0 100 1795217122 1 2 md5:70b65fc9a4d19d871d384038bcb15807 ./a b
61a4 0 0 0 1795217122 1 0 dev:103,10001 ./bdev
a1ff 7 8 4 -5 1 2 link:/a b ./s l
81a4 0 0 4398046511104 9 1 64 huge ./giant
MANIFEST-END cur
MANIFEST-BEGIN cp=12
MANIFEST-END cp=12
";

    #[test]
    fn sections_and_entries() {
        let trees = parse(TEXT.as_bytes()).unwrap();
        assert_eq!((trees.len(), trees[0].entries.len()), (2, 5));
        assert_eq!((trees[0].checkpoint(), trees[1].checkpoint()), (None, Some(12)));
        let entries = &trees[0].entries;
        assert_eq!(entries[0].path, TreePath::root());
        assert_eq!((entries[0].mode, entries[0].nlink, entries[0].blocks), (0o040755, 5, 1));
        assert_eq!(entries[1].path.as_bytes(), b"a b");
        assert_eq!(entries[1].body, GoldenBody::Md5("70b65fc9a4d19d871d384038bcb15807".to_owned()));
        assert_eq!(entries[2].body, GoldenBody::Device(0x103, 0x10001));
        assert_eq!((entries[3].body.clone(), entries[3].mtime), (GoldenBody::Link(b"/a b".to_vec()), -5));
        assert_eq!(entries[3].path.as_bytes(), b"s l");
        assert_eq!(entries[4].body, GoldenBody::Huge);
    }

    #[test]
    fn bad_lines_are_told() {
        for (bad, line) in [
            ("x", 1),
            ("MANIFEST-BEGIN a\nMANIFEST-BEGIN b", 2),
            ("MANIFEST-BEGIN a\nMANIFEST-END b", 2),
            ("MANIFEST-BEGIN a\n41ed 0 0 1 1 1 1 -", 2),
            ("MANIFEST-BEGIN a\na1ff 0 0 40 1 1 1 link:short ./s", 2),
            ("MANIFEST-BEGIN a", 1),
        ] {
            assert_eq!(parse(bad.as_bytes()), Err(GoldenError(line)), "{bad}");
        }
    }
}
