//! The account of space as it is answered and printed. All sizes in bytes.

use serde::{Deserialize, Serialize};

/// Where the space of a volume is. The classes from `live` to `outside` are apart, and add up to `size`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The device or image.
    pub size: u64,
    pub block_size: u64,
    pub segment_size: u64,
    /// The newest checkpoint when it was counted, and the clock that retention went by, in seconds since 1970.
    pub checkpoint: u64,
    pub time: u64,
    /// What retention went by, in words: what is kept while there is space, and whatever comes.
    pub wish: String,
    pub floor: String,

    /// The files as they are now.
    pub live: u64,
    /// The past that retention keeps.
    pub history: u64,
    /// What snapshots hold besides both.
    pub snapshots: u64,
    /// What mounted moments hold besides those.
    pub mounted: u64,
    /// Needed by nothing: what cleaning gives back.
    pub reclaimable: u64,
    pub metadata: u64,
    /// What is left of the segment being written, and the next one.
    pub log: u64,
    /// Kept back so that deleting always works.
    pub reserve: u64,
    pub free: u64,
    /// Segments marked bad.
    pub bad: u64,
    /// Super blocks, and an end too small for a segment.
    pub outside: u64,

    /// Of `history`: goes within an hour when nothing is written.
    pub history_soon: u64,
    /// Of `history`: snapshots hold it as well.
    pub history_shared: u64,
    /// Of `history`: goes where space is short.
    pub history_loose: u64,
    /// Of what is reclaimable: moments still show it, which retention does not keep.
    pub shown: u64,
    /// What each snapshot alone holds: the greatest [`crate::request::MAX_LIST`], ascending by number.
    pub alone: Vec<Alone>,
    pub snapshot_count: u64,

    /// Blocks of the block table that could not be read, and blocks that it names twice: the sums are not right by what
    /// they stand for.
    pub unreadable: u64,
    pub overfull: u64,
    /// Something was written while it was counted.
    pub moving: bool,
}

/// What one snapshot alone holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alone {
    pub number: u64,
    /// Of `snapshots`: removing it gives this back.
    pub bytes: u64,
    /// Besides, of `history`: removing it gives this back, too, once space is short and such history is given up.
    #[serde(default)]
    pub left: u64,
}

/// An account that is kept in the background.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// It is being counted, for the first time or anew.
    pub counting: bool,
    /// How far that is, in percent.
    pub percent: u8,
    /// As it was counted last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl Account {
    /// Of a count in blocks, made with a wish and a floor.
    pub fn new(a: &silt_cleaner::Account, wish: String, floor: String) -> Self {
        let bytes = |blocks: u64| blocks.saturating_mul(a.block_size);
        let mut alone: Vec<Alone> = a
            .alone
            .iter()
            .zip(&a.left_to)
            .map(|(alone, left)| Alone { number: alone.0, bytes: bytes(alone.1), left: bytes(left.1) })
            .collect();
        let snapshot_count = alone.len() as u64;
        if alone.len() > crate::request::MAX_LIST {
            alone.sort_unstable_by_key(|s| std::cmp::Reverse(s.bytes.saturating_add(s.left)));
            alone.truncate(crate::request::MAX_LIST);
            alone.sort_unstable_by_key(|s| s.number);
        }
        Account {
            size: bytes(a.sum().saturating_sub(a.overfull)),
            block_size: a.block_size,
            segment_size: bytes(a.blocks_per_segment),
            checkpoint: a.checkpoint,
            time: a.time,
            wish,
            floor,
            live: bytes(a.live),
            history: bytes(a.history),
            snapshots: bytes(a.snapshots),
            mounted: bytes(a.mounted),
            reclaimable: bytes(a.reclaimable),
            metadata: bytes(a.metadata),
            log: bytes(a.log),
            reserve: bytes(a.reserve),
            free: bytes(a.free),
            bad: bytes(a.bad),
            outside: bytes(a.outside),
            history_soon: bytes(a.history_soon),
            history_shared: bytes(a.history_shared),
            history_loose: bytes(a.history_loose),
            shown: bytes(a.shown),
            alone,
            snapshot_count,
            unreadable: a.unreadable,
            overfull: a.overfull,
            moving: a.moving,
        }
    }
}
