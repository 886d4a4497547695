//! The golden volumes of `tests/golden`, for tests of any crate. Panics where one is missing.
#![allow(clippy::expect_used, clippy::panic)] // test support

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

use silt_device::{Device, MemoryDevice};

/// Names of all golden volumes.
pub const NAMES: [&str; 8] =
    ["basic-4k", "basic-1k", "btree-1k", "gc-4k", "cut-4k", "full-4k", "dsync-4k", "dsync-1k"];

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
    let mut out = Manifest::new();
    let mut section = None;
    for line in text.lines() {
        if let Some(label) = line.strip_prefix("MANIFEST-BEGIN ") {
            out.entry(label.to_string()).or_default();
            section = Some(label.to_string());
        } else if line.starts_with("MANIFEST-END") {
            section = None;
        } else if let Some(files) = section.as_ref().and_then(|s| out.get_mut(s)) {
            let (path, line) = parse(line).unwrap_or_else(|| panic!("manifest line {line:?}"));
            files.insert(path, line);
        }
    }
    out
}

fn parse(line: &str) -> Option<(String, Line)> {
    let mut rest = line;
    let mut field = || {
        let (first, tail) = rest.split_once(' ')?;
        rest = tail;
        Some(first)
    };
    let mode = u32::from_str_radix(field()?, 16).ok()?;
    let (uid, gid) = (field()?.parse().ok()?, field()?.parse().ok()?);
    let (size, mtime) = (field()?.parse().ok()?, field()?.parse().ok()?);
    let (links, blocks) = (field()?.parse().ok()?, field()?.parse().ok()?);
    let content = field()?;
    let content = if let Some(md5) = content.strip_prefix("md5:") {
        Content::Md5(md5.into())
    } else if let Some(target) = content.strip_prefix("link:") {
        Content::Link(target.into())
    } else if let Some((major, minor)) = content.strip_prefix("dev:").and_then(|d| d.split_once(',')) {
        Content::Device(u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?)
    } else if content == "huge" {
        Content::Huge
    } else {
        Content::Nothing
    };
    Some((rest.to_string(), Line { mode, uid, gid, size, mtime, links, blocks, content }))
}
