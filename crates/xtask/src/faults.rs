//! Planted faults: does the round trip see what it is for?
//!
//! Each fault is a change of one place of the writer. A copy of the project is built with it, plays a
//! few histories, and must complain. Slow (a build a fault): run by hand when the writer or the
//! instrument changes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::scratch::Scratch;

/// One wrong change.
struct Fault {
    name: &'static str,
    file: &'static str,
    right: &'static str,
    wrong: &'static str,
}

const fn fault(name: &'static str, file: &'static str, right: &'static str, wrong: &'static str) -> Fault {
    Fault { name, file, right, wrong }
}

/// Every `right` occurs exactly once in its file.
const FAULTS: &[Fault] = &[
    fault(
        "old versions live one checkpoint too long",
        "engine/src/dat.rs",
        "e.end = if dead { e.start } else { c.0.into() };",
        "e.end = if dead { e.start } else { (c.0 + 1).into() };",
    ),
    fault(
        "old versions of cpfile and sufile are kept like those of files",
        "engine/src/dat.rs",
        "e.end = if dead { e.start } else { c.0.into() };",
        "e.end = c.0.into();",
    ),
    fault(
        "a segment is said to be shorter than it is",
        "engine/src/fill.rs",
        "u32::try_from(log.cursor.offset + total).unwrap_or(u32::MAX);",
        "u32::try_from(log.cursor.offset + total - 2).unwrap_or(u32::MAX);",
    ),
    fault(
        "free entries are not counted down",
        "engine/src/palloc.rs",
        "self.change_group_free(file, store, r, group, -1)",
        "self.change_group_free(file, store, r, group, 0)",
    ),
    fault(
        "the summary's checksum is wrong",
        "format/src/summary.rs",
        "let sum = crc32(seed, &summary[8..sumbytes]);",
        "let sum = crc32(seed, &summary[8..sumbytes]) ^ 1;",
    ),
    fault(
        "the log says another offset than that of the block",
        "engine/src/stages.rs",
        "let info = BlockInfo::Data { vblock, offset: *key };",
        "let info = BlockInfo::Data { vblock, offset: *key + 1 };",
    ),
    fault(
        "the log says another checkpoint than that of the block",
        "engine/src/fill.rs",
        "        let fi_cno = self.dat.past.map_or(self.cno, |(from, _)| from);",
        "        let fi_cno = Cno(1);",
    ),
    fault(
        "blocks of a file are not counted",
        "engine/src/virt.rs",
        "map.blocks = map.blocks.saturating_add_signed(units);",
        "map.blocks = map.blocks.saturating_add_signed(units.max(0));",
    ),
    fault(
        "a node's first key is not told to its parent",
        "engine/src/bmap/change.rs",
        "with_mut(root, nodes, step.ptr, |n| n.set_key(step.index, key))?;",
        "let _ = key;",
    ),
    fault(
        "the super block of a closed volume points at an older checkpoint",
        "engine/src/claim.rs",
        "            supers::set_cursor(b, last, free);\n            b.state = (state",
        "            let _ = (last, free);\n            b.state = (state",
    ),
    fault(
        "a snapshot does not know the one before it",
        "engine/src/cpfile.rs",
        "            e.list_next = next.into();\n            e.list_prev = prev.into();",
        "            e.list_next = next.into();",
    ),
    fault(
        "checkpoints of a block are not counted",
        "engine/src/cpfile.rs",
        "first.checkpoints_count = n.into();",
        "first.checkpoints_count = n.min(1).into();",
    ),
    fault(
        "deleted inodes keep their number",
        "engine/src/stages.rs",
        "match self.ifile.palloc.clear(&mut self.ifile.file, &self.store, &self.dat, inode.ino.0) {",
        "match Ok::<_, Error>(true) {",
    ),
];

fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg("-r").args([from, to]).status()?;
    if status.success() { Ok(()) } else { bail!("copying {} failed", from.display()) }
}

/// Plants each fault in turn; those that nobody complains of are an error.
pub fn faults(root: &Path, histories: u64, from: usize) -> Result<()> {
    let scratch = Scratch::new("faults")?;
    let project = scratch.join("project");
    std::fs::create_dir(&project)?;
    for part in ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml", "crates"] {
        copy(&root.join(part), &project.join(part))?;
    }
    if root.join("rig").exists() {
        std::os::unix::fs::symlink(root.join("rig"), project.join("rig"))?;
    }
    if let Some(complaint) = play(&project, histories).context("without any fault")? {
        bail!("there are complaints without any fault: {complaint}");
    }
    let mut missed = Vec::new();
    for f in FAULTS.iter().skip(from) {
        let path = project.join("crates").join(f.file);
        let text = std::fs::read_to_string(&path)?;
        if text.matches(f.right).count() != 1 {
            bail!("{}: the place of \"{}\" has moved; mend the list", f.file, f.name);
        }
        std::fs::write(&path, text.replace(f.right, f.wrong))?;
        let seen = play(&project, histories).with_context(|| f.name.to_owned());
        std::fs::write(&path, text)?;
        match seen? {
            Some(complaint) => println!("seen:   {}\n        {complaint}", f.name),
            None => {
                println!("MISSED: {}", f.name);
                missed.push(f.name);
            }
        }
    }
    if missed.is_empty() { Ok(()) } else { bail!("{} faults were not seen", missed.len()) }
}

/// The first complaint of a round trip of this project.
fn play(project: &Path, histories: u64) -> Result<Option<String>> {
    let cargo = |arguments: &[&str]| {
        Command::new("cargo")
            .args(arguments)
            .current_dir(project)
            .env("CARGO_TARGET_DIR", project.join("target"))
            .env("RUSTFLAGS", "-Awarnings")
            .output()
    };
    let built = cargo(&["build", "--release", "--quiet", "--package", "xtask"])?;
    if !built.status.success() {
        bail!("it does not build:\n{}", String::from_utf8_lossy(&built.stderr));
    }
    let output = Command::new(project.join("target/release/xtask"))
        .args(["round-trip", "--through", "0", "--histories", &histories.to_string()])
        .current_dir(project)
        .output()?;
    if output.status.success() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let complaint =
        text.lines().find(|l| l.starts_with("  ")).map(str::trim).unwrap_or("the round trip ended");
    Ok(Some(complaint.chars().take(160).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_its_place() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for f in FAULTS {
            let text = std::fs::read_to_string(crates.join(f.file)).unwrap();
            assert_eq!(text.matches(f.right).count(), 1, "{}: {}", f.file, f.name);
        }
    }
}
