//! How far a pass has come, and what it has found: enough to go on in another process.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use silt_names::ByteName;

use crate::scrub::finding::{Finding, Owner};
use crate::scrub::supers::SuperFinding;
use crate::scrub::view::View;

/// Findings kept; more are counted.
pub const FINDINGS: usize = 500;
/// Bytes of a path that are shown.
const PATH: usize = 1000;
/// Of this form.
const VERSION: u32 = 1;

/// Where a pass goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    pub segment: u64,
    /// Disk block; 0: the beginning of the segment.
    pub block: u64,
}

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Logs verified, sound or not.
    pub logs: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Logs in which nothing is needed any more.
    pub logs_left_out: u64,
    pub bytes_left_out: u64,
}

/// A pass over a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub version: u32,
    /// Of the volume.
    pub uuid: String,
    /// What only plain checkpoints need was left out.
    pub live_only: bool,
    pub at: Position,
    /// Bytes in use up to there, and in all.
    pub bytes_behind: u64,
    pub bytes_in_use: u64,
    pub finished: bool,
    pub block_size: u64,
    pub counts: Counts,
    pub findings: Vec<Finding>,
    pub findings_left_out: u64,
    /// Copies of the super block that do not verify.
    #[serde(default)]
    pub super_blocks: Vec<SuperFinding>,
    /// What of the volume's tables could not be read, in sentences.
    pub problems: Vec<String>,
    /// Where this process began.
    #[serde(skip)]
    resumed: Position,
}

impl State {
    /// A pass that has not begun.
    pub fn new() -> Self {
        State { version: VERSION, ..State::default() }
    }

    /// Whether this program can go on with it.
    pub fn is_known(&self) -> bool {
        self.version == VERSION
    }

    /// Logs and super blocks that are damaged, and whatever else is.
    pub fn damaged(&self) -> u64 {
        let logs = self.findings.iter().filter(|f| f.is_damage()).count() as u64;
        logs + self.findings_left_out + (self.super_blocks.len() + self.problems.len()) as u64
    }

    pub(crate) fn begin(&mut self, view: &View<'_>, live_only: bool) {
        self.live_only = live_only;
        self.finished = false;
        self.resumed = self.at;
        self.block_size = view.r.g.block_size.into();
        self.bytes_in_use =
            view.used.values().fold(0u64, |sum, n| sum.saturating_add(*n)) << view.r.g.block_bits;
        self.problems.clone_from(&view.problems);
    }

    /// Everything before `position` is done, `bytes` of what is in use.
    pub(crate) fn reach(&mut self, position: Position, bytes: u64) {
        if position >= self.at {
            self.at = position;
            self.bytes_behind = bytes;
        }
    }

    /// The first block of a segment that an earlier process has not looked at.
    pub(crate) fn resumed_at(&self, segment: u64) -> u64 {
        if segment == self.resumed.segment { self.resumed.block } else { 0 }
    }

    /// One more finding. Of a log there is one, the newest.
    pub(crate) fn add(&mut self, finding: Finding) {
        if let Some(old) = self.findings.iter_mut().find(|f| f.log == finding.log) {
            *old = finding;
        } else if self.findings.len() < FINDINGS {
            self.findings.push(finding);
        } else {
            self.findings_left_out += 1;
        }
    }

    fn owners(&mut self) -> impl Iterator<Item = &mut Owner> {
        self.findings
            .iter_mut()
            .flat_map(|f| f.suspects.iter_mut().chain(f.spots.iter_mut().filter_map(|s| s.owner.as_mut())))
    }

    /// Inodes that findings are about and that have no path yet.
    pub(crate) fn nameless(&mut self) -> BTreeSet<u64> {
        let mut wanted: BTreeSet<u64> = self
            .owners()
            .filter(|o| o.path.is_none() && !(3..=6).contains(&o.inode))
            .map(|o| o.inode)
            .collect();
        let spots = self.findings.iter().flat_map(|f| &f.spots);
        wanted.extend(spots.filter(|s| s.entry_path.is_none()).filter_map(|s| s.entry_of));
        wanted
    }

    /// Puts paths to inodes.
    pub(crate) fn set_names(&mut self, names: &BTreeMap<u64, Vec<u8>>) {
        let path = |ino: u64| names.get(&ino).map(|path| shown(path));
        for owner in self.owners().filter(|o| o.path.is_none()) {
            owner.path = path(owner.inode);
        }
        for spot in self.findings.iter_mut().flat_map(|f| f.spots.iter_mut()) {
            if spot.entry_path.is_none() {
                spot.entry_path = spot.entry_of.and_then(path);
            }
        }
    }
}

/// A path from the root, its end left out where it is long: not in the midst of a character.
fn shown(path: &[u8]) -> ByteName {
    let Some(head) = path.get(..PATH).filter(|head| head.len() < path.len()) else {
        return ByteName::from_root(path);
    };
    let whole = match std::str::from_utf8(head) {
        Err(e) if e.error_len().is_none() => &head[..e.valid_up_to()],
        _ => head,
    };
    ByteName::from_root(&[whole, b"..."].concat())
}

/// A UUID as its text is written.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (i, byte) in uuid.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_end_between_characters() {
        assert_eq!(shown(b"a/\xff"), b"/a/\xff"[..].into());
        let head = "x".repeat(PATH - 1);
        assert_eq!(shown(format!("{head}y").as_bytes()), format!("/{head}y").as_str().into());
        assert_eq!(shown(format!("{head}\u{e4}").as_bytes()), format!("/{head}...").as_str().into());
        assert_eq!(shown(format!("{head}yz").as_bytes()), format!("/{head}y...").as_str().into());
    }

    #[test]
    fn a_uuid_in_text() {
        let uuid = [0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 1, 2, 3, 4, 5, 6, 7, 0xff];
        assert_eq!(uuid_text(&uuid), "12345678-9abc-def0-0102-0304050607ff");
    }
}
