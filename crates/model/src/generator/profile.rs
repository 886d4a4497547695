//! How much of what a history consists of.

use crate::rng::Rng;

/// Everything that can come next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Choice {
    Create,
    Mkdir,
    Symlink,
    Mknod,
    Link,
    Unlink,
    Rmdir,
    DeleteTree,
    Rename,
    RenameOver,
    Exchange,
    RenameAll,
    Write,
    Append,
    MapWrite,
    Truncate,
    Fallocate,
    Read,
    Stat,
    List,
    Chmod,
    Chown,
    Utimens,
    Flags,
    Fixed,
    Fsync,
    DataSync,
    Sync,
    Open,
    Tmpfile,
    LinkSlot,
    Close,
    Burst,
    BurstAgain,
    Checkpoint,
    Snapshot,
    RemoveSnapshot,
    Remount,
    Wrong,
}

/// Weights: mixed, names, data, deep, sync.
const WEIGHTS: &[(Choice, [u32; 5])] = &[
    (Choice::Create, [80, 120, 30, 20, 60]),
    (Choice::Mkdir, [35, 60, 8, 5, 20]),
    (Choice::Symlink, [15, 25, 4, 2, 10]),
    (Choice::Mknod, [15, 20, 2, 2, 5]),
    (Choice::Link, [25, 40, 5, 3, 15]),
    (Choice::Unlink, [35, 60, 15, 10, 25]),
    (Choice::Rmdir, [10, 20, 2, 2, 5]),
    (Choice::DeleteTree, [2, 4, 1, 1, 1]),
    (Choice::Rename, [30, 70, 8, 5, 20]),
    (Choice::RenameOver, [15, 30, 4, 3, 15]),
    (Choice::Exchange, [8, 20, 2, 2, 5]),
    (Choice::RenameAll, [2, 5, 0, 0, 1]),
    (Choice::Write, [130, 30, 200, 250, 120]),
    (Choice::Append, [25, 10, 40, 10, 30]),
    (Choice::MapWrite, [8, 2, 20, 5, 5]),
    (Choice::Truncate, [35, 10, 60, 90, 25]),
    (Choice::Fallocate, [25, 5, 50, 60, 15]),
    (Choice::Read, [25, 5, 50, 60, 20]),
    (Choice::Stat, [15, 20, 10, 10, 10]),
    (Choice::List, [8, 15, 2, 2, 5]),
    (Choice::Chmod, [25, 25, 10, 5, 15]),
    (Choice::Chown, [20, 20, 8, 5, 10]),
    (Choice::Utimens, [45, 50, 25, 20, 25]),
    (Choice::Flags, [15, 15, 5, 3, 8]),
    (Choice::Fixed, [5, 6, 3, 2, 2]),
    (Choice::Fsync, [15, 10, 15, 15, 80]),
    (Choice::DataSync, [10, 3, 20, 15, 90]),
    (Choice::Sync, [8, 8, 8, 8, 30]),
    (Choice::Open, [12, 6, 12, 8, 10]),
    (Choice::Tmpfile, [4, 4, 4, 3, 3]),
    (Choice::LinkSlot, [4, 4, 4, 3, 3]),
    (Choice::Close, [10, 6, 10, 8, 8]),
    (Choice::Burst, [4, 14, 1, 1, 2]),
    (Choice::BurstAgain, [6, 20, 1, 1, 3]),
    (Choice::Checkpoint, [6, 6, 6, 6, 15]),
    (Choice::Snapshot, [6, 6, 6, 6, 8]),
    (Choice::RemoveSnapshot, [4, 4, 4, 4, 5]),
    (Choice::Remount, [2, 2, 2, 2, 3]),
    (Choice::Wrong, [30, 40, 15, 15, 20]),
];

/// What a history is mostly about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flavour {
    /// Everything.
    Mixed,
    /// Many objects, much moving about, large directories.
    Names,
    /// Few files, written over and over.
    Data,
    /// Sparse files with data far out.
    Deep,
    /// Small changes, synced often.
    Sync,
}

const FLAVOURS: [Flavour; 5] = [Flavour::Mixed, Flavour::Names, Flavour::Data, Flavour::Deep, Flavour::Sync];

/// The bounds of a history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    /// What it is mostly about.
    pub flavour: Flavour,
    /// Bytes that all writes together may write; with it used up, writes are tiny.
    pub write_budget: u64,
    /// Bytes that live files may hold.
    pub live_max: u64,
    /// Bytes of the largest write.
    pub write_max: u64,
    /// Objects at one time.
    pub entries_max: usize,
    /// Names in one burst.
    pub burst_max: u32,
    /// Snapshots at one time.
    pub snapshots_max: usize,
    /// Whether to run once into the limit of links (tens of thousands of names).
    pub link_burst: bool,
}

impl Profile {
    /// A small history for a volume of 64 MiB or more.
    pub fn new(flavour: Flavour) -> Self {
        Self {
            flavour,
            write_budget: 16 << 20,
            live_max: 8 << 20,
            write_max: 2 << 20,
            entries_max: 3000,
            burst_max: 1000,
            snapshots_max: 4,
            link_burst: false,
        }
    }

    /// The flavour that belongs to `seed`; [`Flavour::Mixed`] is the most frequent, every tenth one of names has bursts of
    /// several thousand, and a few run into the limit of links.
    pub fn of_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x7072_6f66_696c_6500);
        let flavour = if rng.percent(25) { Flavour::Mixed } else { FLAVOURS[rng.index(FLAVOURS.len())] };
        let mut profile = Self::new(flavour);
        if flavour == Flavour::Names && rng.percent(10) {
            profile.entries_max = 8000;
            profile.burst_max = 5000;
        }
        profile.link_burst = flavour == Flavour::Names && rng.percent(2);
        if flavour == Flavour::Sync || rng.percent(20) {
            profile.write_max = 64 << 10;
        }
        profile
    }

    pub(super) fn choose(&self, rng: &mut Rng) -> Choice {
        // The position of a flavour is that of its weights.
        let column = FLAVOURS.iter().position(|f| *f == self.flavour).unwrap_or(0);
        let total: u32 = WEIGHTS.iter().map(|(_, weights)| weights[column]).sum();
        let mut at = rng.below(u64::from(total));
        for (choice, weights) in WEIGHTS {
            let weight = u64::from(weights[column]);
            if at < weight {
                return *choice;
            }
            at -= weight;
        }
        Choice::Create
    }
}
