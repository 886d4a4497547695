//! What a scrub tells, for people and for programs: the names of the fields are an interface.

use serde::{Deserialize, Serialize};
use silt_names::ByteName;

/// Exact places kept for one log; more are counted.
pub(crate) const SPOTS: usize = 50;
/// Suspects kept for one log; more are counted.
pub(crate) const SUSPECTS: usize = 50;

/// A flipped bit that other damage looks like more often than once in so many times is not told where a torn write is
/// more likely.
const CREDIBLE: u64 = 1024;

/// What is wrong with a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// One bit is flipped, and it is known which.
    FlippedBit,
    /// Parts of it cannot be read.
    Unreadable,
    /// The checksum does not match, and blocks in it make no sense.
    Structure,
    /// Its head is no head of a log: what is in it can be told no more.
    Header,
    /// The checksum does not match, and no more is known.
    Checksum,
    /// It did not match and did when it was read again: nothing is damaged yet.
    Transient,
}

/// What of an inode lies in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Content of a file, entries of a directory or of a metadata file.
    Data,
    /// Nodes of its map.
    Map,
}

/// Who needs blocks of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Inode number; 3 to 6 are the volume's own tables.
    pub inode: u64,
    /// From the root of the newest tree, where the inode has a name there.
    #[serde(flatten, with = "silt_names::path", skip_serializing_if = "Option::is_none")]
    pub path: Option<ByteName>,
    pub part: Part,
    /// First block in the file, for data.
    pub first: u64,
    /// So many blocks.
    pub blocks: u64,
    /// The first checkpoint that has them.
    pub since: u64,
    /// The first that no longer does; none: the newest state has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
}

/// A flipped bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flip {
    /// 0 is the least significant.
    pub bit: u8,
    /// The byte as it is.
    pub found: u8,
    /// The byte as it was.
    pub right: u8,
}

/// An exact place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spot {
    /// Disk block.
    pub block: u64,
    /// First byte in it.
    pub byte: u32,
    /// So many bytes.
    pub bytes: u32,
    /// What lies there, in words.
    pub what: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flip: Option<Flip>,
    /// Who needs the block; none: nobody does, or it is the log's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// First byte in the file `owner`, for data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_byte: Option<u64>,
    /// The inode whose entry in the table of inodes it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_of: Option<u64>,
    /// Its path in the newest tree.
    #[serde(flatten, with = "silt_names::entry_path", skip_serializing_if = "Option::is_none")]
    pub entry_path: Option<ByteName>,
    /// Nothing that anybody needs lies there.
    pub unused: bool,
}

/// A log that does not verify.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub kind: Kind,
    pub segment: u64,
    /// Its first block.
    pub log: u64,
    /// So many blocks, as far as can be told.
    pub blocks: u64,
    /// Exact places.
    pub spots: Vec<Spot>,
    pub spots_left_out: u64,
    /// Who needs blocks of the log of which it cannot be told whether they are damaged.
    pub suspects: Vec<Owner>,
    pub suspects_left_out: u64,
    /// Blocks of the log that are needed and of which nothing tells any more by whom.
    pub unknown: u64,
    /// The log's own records are lost: owners come from the maps of the newest tree, at the end of a pass.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub records_lost: bool,
    /// Of so many damages of other kinds one would look like this flipped bit, where no second checksum confirms it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_in: Option<u64>,
}

impl Finding {
    /// Whether anything is damaged on the medium.
    pub fn is_damage(&self) -> bool {
        self.kind != Kind::Transient
    }

    /// Whether it is nothing that a write leaves which a power cut ended.
    pub(crate) fn is_no_torn_write(&self) -> bool {
        match self.kind {
            Kind::Unreadable => true,
            Kind::FlippedBit => self.one_in.is_none_or(|n| n >= CREDIBLE),
            _ => false,
        }
    }

    /// In words: a line about the log, and one each for places and suspects, which begin with blanks.
    pub fn lines(&self, block_size: u64) -> Vec<String> {
        let what = match self.kind {
            Kind::FlippedBit => "one bit is flipped",
            Kind::Unreadable => "cannot be read whole",
            Kind::Structure => "its checksum does not match, and blocks in it make no sense",
            Kind::Header => "its head is damaged",
            Kind::Checksum => "its checksum does not match",
            Kind::Transient => {
                "its checksum did not match at first and does now: the memory, the cable or the drive may be failing"
            }
        };
        let mut lines = vec![format!(
            "segment {}, log of {} at block {}: {what}",
            self.segment,
            count(self.blocks, "block"),
            self.log
        )];
        lines.extend(self.spots.iter().map(|spot| format!("  {}", spot.words())));
        if self.spots_left_out > 0 {
            lines.push(format!("  and {} more", count(self.spots_left_out, "place")));
        }
        if let Some(n) = self.one_in {
            lines.push(format!("  (other damage would look like this once in {n} times)"));
        }
        if !self.suspects.is_empty() {
            lines.push("  in danger, since the log has one checksum for all:".to_owned());
            lines.extend(self.suspects.iter().map(|owner| format!("    {}", owner.words(block_size))));
        }
        if self.suspects_left_out > 0 {
            lines.push(format!("    and {} more", count(self.suspects_left_out, "range")));
        }
        if self.unknown > 0 {
            lines.push(format!(
                "  {} that somebody needs, and nothing tells who",
                count(self.unknown, "block")
            ));
        }
        lines
    }
}

/// `3 blocks`.
pub(crate) fn count(n: u64, one: &str) -> String {
    format!("{n} {one}{}", if n == 1 { "" } else { "s" })
}

impl Owner {
    /// The inode in words.
    pub fn name(&self) -> String {
        match (self.inode, &self.path) {
            (3, _) => "the table of block addresses (DAT)".to_owned(),
            (4, _) => "the table of checkpoints (cpfile)".to_owned(),
            (5, _) => "the table of segments (sufile)".to_owned(),
            (6, _) => "the table of inodes (ifile)".to_owned(),
            (ino, Some(path)) => format!("{path} (inode {ino})"),
            (ino, None) => format!("inode {ino}"),
        }
    }

    /// Which versions have it, in words.
    fn versions(&self) -> String {
        match self.until {
            None => "as it is now".to_owned(),
            Some(until) if until == self.since + 1 => format!("in checkpoint {} only", self.since),
            Some(until) => format!("in checkpoints {} to {}, not now", self.since, until.saturating_sub(1)),
        }
    }

    fn words(&self, block_size: u64) -> String {
        let what = match self.part {
            Part::Map => format!("{} of the map", count(self.blocks, "node")),
            Part::Data => {
                let from = self.first.saturating_mul(block_size);
                let to = self.first.saturating_add(self.blocks).saturating_mul(block_size);
                format!("bytes {from} to {}", to.saturating_sub(1))
            }
        };
        format!("{}, {what}, {}", self.name(), self.versions())
    }
}

impl Spot {
    fn words(&self) -> String {
        let place = match self.bytes {
            1 => format!("block {}, byte {}", self.block, self.byte),
            n => format!("block {}, {n} bytes from byte {}", self.block, self.byte),
        };
        let flip = self
            .flip
            .map(|f| format!(", bit {}: is {:#04x}, was {:#04x}", f.bit, f.found, f.right))
            .unwrap_or_default();
        let whose = match (&self.owner, self.file_byte) {
            (Some(owner), Some(at)) => {
                format!("{} of {}, byte {at}, {}", self.what, owner.name(), owner.versions())
            }
            (Some(owner), None) => format!("{} of {}, {}", self.what, owner.name(), owner.versions()),
            (None, _) => self.what.clone(),
        };
        let whose = match &self.entry_path {
            Some(path) => format!("{whose} ({path})"),
            None => whose,
        };
        let unused = if self.unused { "; nothing that is needed lies there" } else { "" };
        format!("{place}{flip}: {whose}{unused}")
    }
}
