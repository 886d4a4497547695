//! What a broken invariant means to whoever owns the files, and what mends it.
//!
//! One entry for every invariant of [`crate::invariants`]; those that come to the same stand together.

/// What a finding says of the content of the file it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// It can be read.
    Well,
    /// The part that is named cannot be read.
    Not,
    /// The part that is named can be read and may be wrong.
    Doubtful,
}

/// What some invariants mean.
#[derive(Debug, PartialEq, Eq)]
pub struct Meaning {
    /// Identifiers of the invariants.
    pub ids: &'static [&'static str],
    /// Of the file that a finding names.
    pub reads: Reads,
    /// A sentence.
    pub means: &'static str,
    /// What mends it, a sentence.
    pub mends: &'static str,
}

use Reads::{Doubtful, Not, Well};

/// All of them, in the order of the document.
pub static ALL: &[Meaning] = &[
    Meaning {
        ids: &["device-read"],
        reads: Not,
        means: "The device does not give back what was stored there.",
        mends: "Copy the device away before it gets worse; silt rescue reads around such places.",
    },
    Meaning {
        ids: &[
            "super-block-copy",
            "super-block-agreement",
            "super-block-other-cursor",
            "super-block-other-chain",
        ],
        reads: Well,
        means: "One of the two copies of the super block, or the log that it leads to, is of no use; the volume hangs on the other.",
        mends: "silt repair writes it anew from the other copy or from the log.",
    },
    Meaning {
        ids: &["super-block-fields", "super-root-found", "super-root-block"],
        reads: Well,
        means: "The volume cannot be mounted as it is.",
        mends: "silt rescue lists the moments that are whole; silt repair --dry-run shows whether the newest can be mended or an older one is used.",
    },
    Meaning {
        ids: &["super-block-place", "super-block-device-size"],
        reads: Well,
        means: "The device is not as long as when the volume was made or resized; one copy of the super block may be out of place.",
        mends: "silt resize, where the device has grown.",
    },
    Meaning {
        ids: &["super-block-state"],
        reads: Well,
        means: "Whoever mounted the volume last met an error, or did not finish resizing it.",
        mends: "Nothing need be done if nothing else was found; silt repair takes the mark away.",
    },
    Meaning {
        ids: &["super-block-first-inode"],
        reads: Not,
        means: "The super block says that files have higher inode numbers than some have: no mount reads those.",
        mends: "silt repair sets the number to 11, which it is on every volume.",
    },
    Meaning {
        ids: &["super-block-features"],
        reads: Well,
        means: "A newer program has changed the volume; here it can only be read.",
        mends: "Use that program.",
    },
    Meaning {
        ids: &[
            "super-block-reserved",
            "super-root-reserved",
            "super-root-nongc-time",
            "log-gaps",
            "log-create",
            "sufile-active",
            "sufile-lastmod",
            "sufile-scrapped",
            "sufile-tail",
            "dat-reserved",
            "direct-map-header",
            "cpfile-empty-block",
            "cpfile-nblk-inc",
            "cpfile-create",
            "cpfile-minor",
            "inode-blocks-mkfs",
            "inode-zero",
            "inode-special",
        ],
        reads: Well,
        means: "Nothing is lost: a byte that nothing reads, a time or a count that is only shown.",
        mends: "Nothing need be done.",
    },
    Meaning {
        ids: &["super-root-newer", "super-root-counted-cno"],
        reads: Well,
        means: "The super block is behind the log; a mount shows an older state, and may write over the newer one.",
        mends: "silt repair points the super block at the end of the log. Do not mount for writing before.",
    },
    Meaning {
        ids: &["recovery-sequence", "recovery-inode"],
        reads: Well,
        means: "What was synced last cannot be brought back, and a mount for writing is refused.",
        mends: "silt repair leaves out what cannot be replayed.",
    },
    Meaning {
        ids: &["recovery-reached"],
        reads: Not,
        means: "A log is damaged, and what was written after it, checkpoints or synced data, is lost to every mount.",
        mends: "silt rescue copies out what these logs hold: do that first. silt repair takes checkpoints among them in. Do not mount for writing before: that gives them up.",
    },
    Meaning {
        ids: &["log-checksum"],
        reads: Doubtful,
        means: "Something in this stretch of the log is not as it was written. What lies in it may be wrong.",
        mends: "Compare the files named with older versions; silt scrub narrows it down.",
    },
    Meaning {
        ids: &[
            "log-header",
            "log-summary-checksum",
            "log-in-segment",
            "log-records",
            "log-sumbytes",
            "log-flags",
            "log-seq",
            "log-next",
            "log-cno",
            "log-payload-metadata",
        ],
        reads: Well,
        means: "The log no longer tells what lies here. Files can be read; cleaning this segment would lose or mix them up.",
        mends: "silt repair moves what is alive elsewhere. Do not run a cleaner before.",
    },
    Meaning {
        ids: &["log-stale"],
        reads: Well,
        means: "A segment is in use with old copies of blocks that lie elsewhere: a cleaner of Linux ends at it with an error, or takes the copy for the block.",
        mends: "silt repair gives the segment back. Do not run a cleaner before.",
    },
    Meaning {
        ids: &["sufile-header-block", "sufile-clean-count", "sufile-dirty-count", "sufile-last-alloc"],
        reads: Well,
        means: "Free space is miscounted: writing may end too early, or go on until nothing is left.",
        mends: "silt repair counts anew.",
    },
    Meaning {
        ids: &["sufile-clean-entry", "sufile-flags", "sufile-nblocks", "sufile-current", "sufile-next"],
        reads: Well,
        means: "The table of segments is wrong: what is alive may be written over.",
        mends: "silt repair builds the table anew. Do not mount for writing before.",
    },
    Meaning {
        ids: &["sufile-error"],
        reads: Well,
        means: "A part of the device could not be written once and is not used any more.",
        mends: "Nothing need be done; if there are many, the device is failing.",
    },
    Meaning {
        ids: &["dat-blocknr", "dat-entry-missing", "dat-unwritten"],
        reads: Not,
        means: "A block of a file cannot be found any more.",
        mends: "silt repair looks for it in the log, or replaces the file by its newest whole version.",
    },
    Meaning {
        ids: &["dat-shared-block", "dat-attribution"],
        reads: Doubtful,
        means: "A block belongs to two files, or to another one than the log says: one of them shows what is not its own.",
        mends: "silt repair goes by the log; compare the file with older versions.",
    },
    Meaning {
        ids: &["dat-lifetime", "dat-record-cno", "dat-single-version"],
        reads: Well,
        means: "It is not known which moments need a block: a cleaner may free it too early, or never.",
        mends: "silt repair sets it right from the log.",
    },
    Meaning {
        ids: &["dat-entry-zero", "palloc-free-count", "palloc-descriptor", "palloc-key"],
        reads: Well,
        means: "Free numbers are miscounted: a new file or block may be refused, or get a number in use.",
        mends: "silt repair counts anew. Do not mount for writing before.",
    },
    Meaning {
        ids: &["dat-live-unmapped"],
        reads: Well,
        means: "A block that nobody uses takes up space, or the file it belonged to has lost it.",
        mends: "silt repair frees it.",
    },
    Meaning {
        ids: &["dat-own-block", "dat-own-place"],
        reads: Well,
        means: "The table that says where blocks lie is damaged: any file may be concerned, the findings about files say which.",
        mends: "silt repair builds the table anew from the log.",
    },
    Meaning {
        ids: &[
            "direct-map-flags",
            "btree-root",
            "btree-node-flags",
            "btree-level",
            "btree-count",
            "btree-order",
            "btree-bound",
            "btree-parent-key",
            "btree-pointer-zero",
            "map-vblock",
            "map-unwritten",
            "map-key",
        ],
        reads: Not,
        means: "The list of a file's blocks is damaged here: what it covers cannot be read.",
        mends: "silt repair replaces the file by its newest whole version, or cuts the part out.",
    },
    Meaning {
        ids: &["btree-only-child"],
        reads: Well,
        means: "The file can be read; Linux may stop writing to the volume when the file is made shorter.",
        mends: "silt repair, or copying the file and deleting the old one under Silt.",
    },
    Meaning {
        ids: &["map-dead", "map-lifetime", "map-twice", "map-owner"],
        reads: Doubtful,
        means: "The file shows a block that is not, or no longer, its own.",
        mends: "silt repair replaces the file by its newest whole version.",
    },
    Meaning {
        ids: &["cpfile-header-block", "cpfile-latest", "cpfile-cno", "cpfile-flags", "cpfile-ifile"],
        reads: Well,
        means: "A moment cannot be read any more; if it is the latest, the volume cannot be mounted.",
        mends: "silt repair drops that moment, or goes back to the one before.",
    },
    Meaning {
        ids: &[
            "cpfile-count",
            "cpfile-block-count",
            "cpfile-snapshot-list",
            "cpfile-snapshot-flags",
            "cpfile-snapshot-count",
        ],
        reads: Well,
        means: "Moments are miscounted or the list of snapshots is broken: a snapshot may be hidden, or not be kept.",
        mends: "silt repair counts anew and ties the list again.",
    },
    Meaning {
        ids: &["cpfile-inodes-count", "cpfile-blocks-count", "inode-blocks"],
        reads: Well,
        means: "A count that df, du or ls show is wrong; the files are whole.",
        mends: "silt repair counts anew.",
    },
    Meaning {
        ids: &["inode-reserved-bits", "inode-reserved", "inode-metadata"],
        reads: Well,
        means: "A number that the format keeps for itself is in use, or its entry is not what it must be.",
        mends: "silt repair.",
    },
    Meaning {
        ids: &["inode-entry-missing", "inode-type", "inode-root"],
        reads: Not,
        means: "The entry of a file is damaged: it cannot be opened.",
        mends: "silt repair replaces it by its newest whole version, or cuts it out.",
    },
    Meaning {
        ids: &["inode-generation"],
        reads: Well,
        means: "A file counts as another one than in an older moment: programs that remember it, such as NFS, may lose it.",
        mends: "Nothing need be done.",
    },
    Meaning {
        ids: &["inode-times"],
        reads: Well,
        means: "A file shows a time that cannot be.",
        mends: "touch, or silt repair.",
    },
    Meaning {
        ids: &["inode-links", "inode-link-max"],
        reads: Well,
        means: "A file has more or fewer names than it says: deleting one may free it too early, or never.",
        mends: "silt repair counts anew.",
    },
    Meaning {
        ids: &["inode-orphan"],
        reads: Well,
        means: "A deleted file that was in use still takes up space.",
        mends: "A mount by Silt frees it.",
    },
    Meaning {
        ids: &["inode-lost"],
        reads: Well,
        means: "A file is whole but has no name any more.",
        mends: "silt repair puts it into lost+found.",
    },
    Meaning {
        ids: &["inode-size"],
        reads: Doubtful,
        means: "The size of a file does not go with what is stored for it: its end may be missing.",
        mends: "silt repair; compare the file with older versions.",
    },
    Meaning {
        ids: &["symlink-size", "symlink-target"],
        reads: Not,
        means: "A symbolic link leads nowhere.",
        mends: "Make it anew, or silt repair takes it from its newest whole version.",
    },
    Meaning {
        ids: &["directory-size", "directory-tiling", "directory-dots"],
        reads: Not,
        means: "A part of a directory is damaged: names in it are not found, and Linux may refuse the whole directory.",
        mends: "silt repair keeps the names that can be read, and reconnects the files that lost theirs.",
    },
    Meaning {
        ids: &[
            "directory-name",
            "directory-duplicate",
            "directory-reserved-inode",
            "directory-dangling",
            "directory-type",
        ],
        reads: Well,
        means: "A name leads to nothing, or to something else than it says.",
        mends: "silt repair removes or corrects the name.",
    },
    Meaning {
        ids: &["directory-parents", "directory-loop"],
        reads: Well,
        means: "A directory is found in two places, or in itself: programs that walk the tree may not come to an end.",
        mends: "silt repair leaves one of the names.",
    },
];

/// That of an invariant.
pub fn of(id: &str) -> Option<&'static Meaning> {
    ALL.iter().find(|m| m.ids.contains(&id))
}

/// The table as Markdown, for the documentation.
pub fn markdown() -> String {
    let mut out = String::from("| identifiers | what it means | what mends it |\n|---|---|---|\n");
    for m in ALL {
        let ids: Vec<String> = m.ids.iter().map(|id| format!("`{id}`")).collect();
        out += &format!("| {} | {} | {} |\n", ids.join(", "), m.means, m.mends);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants;

    #[test]
    fn every_invariant_means_something_once() {
        for i in invariants::ALL {
            assert_eq!(ALL.iter().filter(|m| m.ids.contains(&i.id)).count(), 1, "{}", i.id);
        }
        for id in ALL.iter().flat_map(|m| m.ids) {
            assert!(invariants::ALL.iter().any(|i| i.id == *id), "{id} is no invariant");
        }
        for m in ALL {
            assert!(m.means.ends_with('.') && m.mends.ends_with('.'), "{:?}", m.ids);
        }
    }

    #[test]
    fn the_document_has_them_as_they_are() {
        let document = include_str!("../../../docs/check.md");
        assert!(document.contains(&format!("\n\n{}\n", markdown())), "{}", markdown());
    }
}
