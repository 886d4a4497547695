//! The words of a plan: files are named, and of checkpoints that the rounds themselves make nothing is said.

use std::collections::{BTreeMap, BTreeSet};

use silt_device::Device;
use silt_verify::{Moment, Tree};

/// Files that are named.
const FILES: usize = 10_000;

/// What a number comes behind that is one of an inode.
const BEFORE: [&str; 2] = ["inode ", "directory "];

/// Names the files of the current tree that lines tell of by their inodes: as the mended volume has them, else as the
/// damaged one. Memory: as for the names of all directories.
pub(crate) fn name_files<'a>(
    lines: impl Iterator<Item = &'a mut String>,
    mended: &dyn Device,
    damaged: &dyn Device,
) {
    // A number may have been another file's in an earlier checkpoint.
    let lines: Vec<&mut String> = lines.filter(|line| !line.starts_with("checkpoint ")).collect();
    let mut wanted: BTreeSet<u64> =
        lines.iter().flat_map(|line| numbers(line)).map(|(_, ino)| ino).take(FILES).collect();
    let mut names = BTreeMap::new();
    for device in [mended, damaged] {
        if wanted.is_empty() {
            break;
        }
        let Ok(tree) = Tree::open(device, Moment::Latest) else { continue };
        let found = tree.names_of(&wanted);
        wanted.retain(|ino| !found.contains_key(ino));
        names.extend(found);
        // A repair makes it with a number that another file may have had in what a line tells of.
        names.retain(|_, path| path != b"lost+found");
    }
    for line in lines {
        // From the end, so that what was found before keeps its place.
        for (at, ino) in numbers(line).into_iter().rev() {
            if let Some(path) = names.get(&ino) {
                line.insert_str(at, &format!(" (/{})", String::from_utf8_lossy(path)));
            }
        }
    }
}

/// Numbers of inodes in a line, each with the place behind it.
fn numbers(line: &str) -> Vec<(usize, u64)> {
    let words = unquoted(line);
    let mut out = Vec::new();
    for before in BEFORE {
        for (at, _) in words.match_indices(before) {
            let from = at + before.len();
            let digits = words.get(from..).unwrap_or_default();
            let len = digits.bytes().take_while(u8::is_ascii_digit).count();
            if let Some(ino) = digits.get(..len).and_then(|n| n.parse().ok()) {
                out.push((from + len, ino));
            }
        }
    }
    out.sort_unstable();
    out
}

/// Inodes of the current tree that those lines tell of that `wanted` is true of.
pub(crate) fn inodes(lines: &[String], wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = u64> {
    let lines = lines.iter().filter(move |line| !line.starts_with("checkpoint ") && wanted(line));
    lines.flat_map(|line| numbers(line)).map(|(_, ino)| ino)
}

/// The line with what stands in quotes, names, made nothing of, every place kept.
fn unquoted(line: &str) -> String {
    let (mut quoted, mut escaped) = (false, false);
    let byte = |b: u8| {
        let end = b == b'"' && !escaped;
        let inside = quoted && !end;
        quoted ^= end;
        escaped = inside && b == b'\\' && !escaped;
        if inside || !b.is_ascii() { '.' } else { char::from(b) }
    };
    line.bytes().map(byte).collect()
}

/// How many files of the current tree lines tell of that are not what they were, or may not be: not those of which only the
/// log's checksum is wrong.
pub(crate) fn patched<'a>(lines: impl Iterator<Item = &'a String>) -> usize {
    let mine = lines.filter(|l| !l.starts_with("checkpoint ") && is_patched(l));
    let told = mine.map(|l| numbers(l).first().map_or_else(|| l.clone(), |(_, ino)| ino.to_string()));
    told.collect::<BTreeSet<String>>().len()
}

/// Whether a line tells of a file that is not what it was, or may not be.
pub(crate) fn is_patched(line: &str) -> bool {
    const PATCHED: [&str; 7] = [
        CHANGES_LOST,
        "may be older than what is lost",
        "is put together from the logs",
        "is built anew from the logs",
        FOREIGN,
        "is cut out",
        "becomes lost+found",
    ];
    PATCHED.iter().any(|p| line.contains(p))
}

/// How lines end that tell of blocks which no log has for their file.
pub(crate) const FOREIGN: &str = "may be another file's";

/// How lines end that put an older version in the place of a file.
pub(crate) const CHANGES_LOST: &str = "what was changed since is lost";

/// Whether a line tells of something else than what is mended in a checkpoint that the repair itself made.
pub(crate) fn is_of_volume(line: &str, newest: u64) -> bool {
    let Some(rest) = line.strip_prefix("checkpoint ") else { return true };
    let number = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    let mended =
        rest.strip_prefix(number).is_some_and(|rest| rest.starts_with(':') || rest.starts_with(" has "));
    !(mended && number.parse::<u64>().is_ok_and(|c| c > newest))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use silt_verify::golden;

    use super::*;

    #[test]
    fn files_are_named_by_what_holds_them() {
        let device = golden::open("basic-4k");
        let tree = Tree::open(&device, Moment::Latest).unwrap();
        let (six, dir) = (tree.lookup(b"six").unwrap(), tree.lookup(b"moved/f").unwrap());
        let mut lines = [
            format!("inode {six} is put back"),
            format!("the name \"inode \\\"{six}\" in directory {dir} is dropped"),
            format!("directory {dir} is written anew, inode {six} too"),
            "inode 999999 is cut out".to_owned(),
            format!("checkpoint 3: inode {six} is another"),
            "no number behind inode".to_owned(),
            format!("é in quotes \"é inode {six}\" and inode {six}"),
        ];
        name_files(lines.iter_mut(), &device, &device);
        assert_eq!(lines[0], format!("inode {six} (/six) is put back"));
        assert_eq!(
            lines[1],
            format!("the name \"inode \\\"{six}\" in directory {dir} (/moved/f) is dropped")
        );
        assert_eq!(lines[2], format!("directory {dir} (/moved/f) is written anew, inode {six} (/six) too"));
        assert_eq!(lines[3], "inode 999999 is cut out");
        assert_eq!(lines[4], format!("checkpoint 3: inode {six} is another"));
        assert_eq!(lines[5], "no number behind inode");
        assert_eq!(lines[6], format!("é in quotes \"é inode {six}\" and inode {six} (/six)"));
    }

    #[test]
    fn checkpoints_of_the_repair_are_told_from_those_of_the_volume() {
        assert!(is_of_volume("checkpoint 7 has 51 inodes", 7) && is_of_volume("checkpoint 7: it is", 8));
        assert!(!is_of_volume("checkpoint 8 has 51 inodes", 7) && !is_of_volume("checkpoint 8: it is", 7));
        assert!(is_of_volume("checkpoint 8, the state before, is kept as a snapshot", 7));
        assert!(is_of_volume("inode 8 is", 7) && is_of_volume("checkpoint 5, the newest that is whole", 7));
    }
}
