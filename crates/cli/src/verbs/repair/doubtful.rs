//! Files of which something lies in a log that does not verify: each is named once, and what may be wrong is said once.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::output::count;

/// What all such lines of a plan have.
const MARK: &str = " in a log that does not verify: ";

/// Files that are named of each kind.
const NAMED: usize = 100;

/// Columns of a line.
const WIDTH: usize = 110;

/// Whether a line tells of such a file.
pub(super) fn is_one(line: &str) -> bool {
    parts(line).is_some()
}

/// A file of the current tree, or of a checkpoint; those of the current tree first, then the newest.
type File = (Reverse<u64>, u64);

/// The file, its name, and whether the line is about attributes.
fn parts(line: &str) -> Option<(File, String, bool)> {
    let (file, what) = line.get(..line.find(MARK)?)?.rsplit_once(": ")?;
    let (checkpoint, file) = match file.strip_prefix("checkpoint ") {
        Some(of) => of.split_once(": ").map(|(c, file)| (Some(c), file))?,
        None => (None, file),
    };
    let number = file.strip_prefix("inode ")?;
    let name = number.split_once(" (").and_then(|(_, path)| path.strip_suffix(')')).unwrap_or(file);
    let number = number.split(' ').next()?.parse().ok()?;
    let of = checkpoint.map_or(Some(u64::MAX), |c| c.parse().ok())?;
    let name = checkpoint.map_or_else(|| name.to_owned(), |c| format!("{name} of checkpoint {c}"));
    Some(((Reverse(of), number), name, what.starts_with("its attributes")))
}

/// The lines in fewer words.
pub(super) fn in_words(lines: &[&String]) -> Vec<String> {
    let mut files: BTreeMap<File, (String, bool, bool)> = BTreeMap::new();
    for (file, name, attributes) in lines.iter().filter_map(|line| parts(line)) {
        let file = files.entry(file).or_insert((name, false, false));
        (file.1, file.2) = (file.1 || !attributes, file.2 || attributes);
    }
    if files.is_empty() {
        return Vec::new();
    }
    let mut out = vec![
        "what these files have in a log that does not verify may be wrong, and nothing tells of that from now on:".into(),
    ];
    for (of, content, attributes) in
        [("content and attributes", true, true), ("content", true, false), ("attributes", false, true)]
    {
        let names: Vec<&str> =
            files.values().filter(|f| (f.1, f.2) == (content, attributes)).map(|f| &f.0[..]).collect();
        if names.is_empty() {
            continue;
        }
        let mut line = format!("  {of} of {}:", count(names.len() as u64, "file"));
        for (n, name) in names.iter().take(NAMED).enumerate() {
            if n > 0 {
                line.push(',');
            }
            if line.chars().count() + name.chars().count() > WIDTH {
                out.push(std::mem::replace(&mut line, "   ".into()));
            }
            line = line + " " + name;
        }
        if names.len() > NAMED {
            line += &format!(" and {} more (--json shows them)", names.len() - NAMED);
        }
        out.push(line);
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn line(file: &str, what: &str) -> String {
        format!("inode {file}: {what}{MARK}they may be wrong, and nothing tells of that from now on")
    }

    #[test]
    fn each_file_is_named_once() {
        let all = [
            line("12 (/a: (b))", "3 blocks lie"),
            line("13", "1 block lies"),
            line("12 (/a: (b))", "its attributes lie"),
            line("14 (/c)", "its attributes lie"),
            format!("checkpoint 7: {}", line("13", "2 blocks lie")),
        ];
        assert!(all.iter().all(|l| is_one(l)));
        assert!(!is_one("inode 12 is put back") && !is_one("checkpoint 3: it is"));
        let said = in_words(&all.iter().collect::<Vec<_>>());
        let wanted = [
            "  content and attributes of 1 file: /a: (b)",
            "  content of 2 files: inode 13, inode 13 of checkpoint 7",
            "  attributes of 1 file: /c",
        ];
        assert_eq!(said[1..], wanted);
        assert!(in_words(&[]).is_empty());
    }

    #[test]
    fn many_are_wrapped_and_counted() {
        let all: Vec<String> = (0..130).map(|n| line(&format!("{n} (/file{n})"), "1 block lies")).collect();
        let said = in_words(&all.iter().collect::<Vec<_>>());
        assert!(said.len() > 5 && said.iter().all(|l| l.len() <= WIDTH + 40), "{said:?}");
        assert!(said.last().unwrap().ends_with("/file99 and 30 more (--json shows them)"), "{said:?}");
    }
}
