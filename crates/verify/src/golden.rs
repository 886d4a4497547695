//! The golden volumes of `tests/golden`, for tests of any crate. Panics where one is missing.
#![allow(clippy::expect_used, clippy::panic)] // test support

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

use silt_device::{Device, MemoryDevice};

/// Names of all golden volumes.
pub const NAMES: [&str; 9] =
    ["basic-4k", "basic-1k", "btree-1k", "gc-4k", "cut-4k", "full-4k", "dsync-4k", "dsync-1k", "wrap-4k"];

/// Volumes on which the kernel left hardly a segment clean: no manifests, file `fN` holds `file N` over and over. The last
/// was not cleanly unmounted.
pub const WEDGED: [&str; 3] = ["wedged-4k", "wedged-1k", "wedged-cut-4k"];

/// Bytes of each file on those.
pub const WEDGED_FILE: usize = 49152;

/// What file `fN` on those holds.
pub fn wedged_content(name: &str) -> Vec<u8> {
    let line = format!("file {}\n", name.trim_start_matches('f'));
    line.bytes().cycle().take(WEDGED_FILE).collect()
}

fn path(name: &str, extension: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(format!("{name}.{extension}"))
}

/// Unpacks a volume into memory; parts that are zero take no space.
pub fn open(name: &str) -> MemoryDevice {
    let path = path(name, "img.zst");
    let file = std::fs::File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut decoder =
        ruzstd::decoding::StreamingDecoder::new(std::io::BufReader::new(file)).expect("a zstd stream");
    let mut parts: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut at = 0u64;
    loop {
        let mut part = Vec::new();
        let n = decoder.by_ref().take(1 << 20).read_to_end(&mut part).expect("a sound zstd stream");
        if n == 0 {
            break;
        }
        if part.iter().any(|b| *b != 0) {
            parts.push((at, part));
        }
        at += n as u64;
    }
    let device = MemoryDevice::new(at);
    for (at, part) in parts {
        for (i, chunk) in part.chunks(64 << 10).enumerate() {
            if chunk.iter().any(|b| *b != 0) {
                device.write_at(at + ((i as u64) << 16), &[chunk]).expect("memory");
            }
        }
    }
    device
}

/// One line of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    /// Seconds since 1970, negative before.
    pub mtime: i64,
    pub links: u32,
    /// 512-byte units.
    pub blocks: u64,
    pub content: Content,
}

/// What a manifest says of a file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// MD5 in hexadecimal.
    Md5(String),
    /// Too large to be read through.
    Huge,
    /// Symlink target.
    Link(String),
    /// Major and minor number.
    Device(u32, u32),
    Nothing,
}

/// A manifest: by section (`cur`, `base`, `cp=N`) the files by path, such as `.` or `./d/hard2`.
pub type Manifest = BTreeMap<String, BTreeMap<String, Line>>;

/// Reads the manifest of a volume.
pub fn manifest(name: &str) -> Manifest {
    let path = path(name, "manifest");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    parse(&text).unwrap_or_else(|line| panic!("{}: line {line} is not part of a manifest", path.display()))
}

/// Parses sections `MANIFEST-BEGIN LABEL` ... `MANIFEST-END LABEL` with a line for each name: mode in
/// hexadecimal, uid, gid, size, mtime in seconds, links, 512-byte units, content, path. Whatever else there is
/// would leave something uncompared: the number of the first such line, from 1.
fn parse(text: &str) -> Result<Manifest, usize> {
    let mut out = Manifest::new();
    let mut open: Option<(String, BTreeMap<String, Line>)> = None;
    let mut number = 0;
    for line in text.lines() {
        number += 1;
        if let Some(label) = line.strip_prefix("MANIFEST-BEGIN ") {
            if open.is_some() || out.contains_key(label) {
                return Err(number);
            }
            open = Some((label.to_owned(), BTreeMap::new()));
        } else if let Some(label) = line.strip_prefix("MANIFEST-END ") {
            let (begun, files) = open.take().filter(|(begun, _)| begun == label).ok_or(number)?;
            out.insert(begun, files);
        } else if !line.is_empty() {
            let (path, line) = entry(line).ok_or(number)?;
            let (_, files) = open.as_mut().ok_or(number)?;
            if files.insert(path, line).is_some() {
                return Err(number);
            }
        }
    }
    if open.is_some() { Err(number) } else { Ok(out) }
}

fn entry(line: &str) -> Option<(String, Line)> {
    let mut words = line.splitn(8, ' ');
    let mut field = || words.next();
    let mode = u32::from_str_radix(field()?, 16).ok()?;
    let (uid, gid) = (field()?.parse().ok()?, field()?.parse().ok()?);
    let (size, mtime) = (field()?.parse().ok()?, field()?.parse().ok()?);
    let (links, blocks) = (field()?.parse().ok()?, field()?.parse().ok()?);
    let rest = field()?;
    // The target of a symlink may hold blanks; its length is the size.
    let (content, path) = match rest.strip_prefix("link:") {
        Some(rest) => {
            let (target, path) = rest.split_at_checked(usize::try_from(size).ok()?)?;
            (Content::Link(target.to_owned()), path.strip_prefix(' ')?)
        }
        None => {
            let (word, path) = rest.split_once(' ')?;
            let content = match word.split_once(':') {
                None if word == "-" => Content::Nothing,
                None if word == "huge" => Content::Huge,
                Some(("md5", digest)) if digest.len() == 32 => Content::Md5(digest.to_owned()),
                Some(("dev", numbers)) => {
                    let (major, minor) = numbers.split_once(',')?;
                    let hex = |text| u32::from_str_radix(text, 16).ok();
                    Content::Device(hex(major)?, hex(minor)?)
                }
                _ => return None,
            };
            (content, path)
        }
    };
    let path = (path == "." || path.starts_with("./")).then(|| path.to_owned())?;
    Some((path, Line { mode, uid, gid, size, mtime, links, blocks, content }))
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
        let all = parse(TEXT).unwrap();
        assert_eq!((all.len(), all["cur"].len(), all["cp=12"].len()), (2, 5, 0));
        let files = &all["cur"];
        assert_eq!((files["."].mode, files["."].links, files["."].blocks), (0o040_755, 5, 1));
        assert_eq!(files["./a b"].content, Content::Md5("70b65fc9a4d19d871d384038bcb15807".to_owned()));
        assert_eq!(files["./bdev"].content, Content::Device(0x103, 0x10001));
        let link = &files["./s l"];
        assert_eq!((&link.content, link.mtime), (&Content::Link("/a b".to_owned()), -5));
        assert_eq!(files["./giant"].content, Content::Huge);
    }

    #[test]
    fn nothing_is_passed_over() {
        for (bad, line) in [
            ("x", 1),
            ("41ed 0 0 1 1 1 1 - .", 1),
            ("MANIFEST-BEGIN a\nMANIFEST-BEGIN b", 2),
            ("MANIFEST-BEGIN a\nMANIFEST-END b", 2),
            ("MANIFEST-BEGIN a\nMANIFEST-END a\nMANIFEST-BEGIN a", 3),
            ("MANIFEST-BEGIN a\n41ed 0 0 1 1 1 1 -", 2),
            ("MANIFEST-BEGIN a\n41ed 0 0 1 1 1 1 sha:1 ./x", 2),
            ("MANIFEST-BEGIN a\na1ff 0 0 40 1 1 1 link:short ./s", 2),
            ("MANIFEST-BEGIN a\n41ed 0 0 1 1 1 1 - .\n41ed 0 0 1 1 1 1 - .", 3),
            ("MANIFEST-BEGIN a", 1),
        ] {
            assert_eq!(parse(bad), Err(line), "{bad}");
        }
    }
}
