//! The kinds of mend, by name, and which findings call for them.

/// A kind of mend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class {
    /// Its stable name.
    pub name: &'static str,
    /// What it does, in words.
    pub what: &'static str,
}

const fn class(name: &'static str, what: &'static str) -> Class {
    Class { name, what }
}

/// All kinds of mend.
pub const CLASSES: &[Class] = &[
    class("super-block", "super blocks are written anew from the good copy or from the log"),
    class("sufile", "the segment usage file is made to say what the segments hold"),
    class("dat", "blocks, entries and bits of the translation table are rebuilt from logs and trees"),
    class("cpfile", "checkpoints and snapshots are counted and linked again"),
    class("counts", "inodes and blocks of checkpoints are counted again"),
    class("ifile", "bits and counts of the inode file are made right"),
    class("map", "lost nodes of block maps are rebuilt from the logs"),
    class("inode", "damaged inodes are put back to an older version, or cut out"),
    class("directory", "damaged directories are written anew with the entries that are sound"),
    class("links", "link counts are set to the number of names"),
    class("orphans", "files without a name are put into lost+found"),
    class("log", "segments with logs that do not verify, or that hold old copies of blocks, are emptied"),
    class("checkpoints", "checkpoints that cannot be read are dropped"),
    class("recovery", "synced data behind the newest checkpoint is taken in as far as it can be"),
    class("rescued", "what a rescue reads and all other mends did not bring back is taken from there"),
    class("roll-back", "the tree becomes that of an older checkpoint"),
    class("anew", "a checkpoint is written where no other driver goes on behind a damaged log"),
    class("error-flag", "the mark that an error was met is taken away"),
];

/// The kind of mend that a finding calls for.
pub(crate) fn of(id: &str) -> &'static str {
    match id {
        "inode-lost" | "inode-orphan" => "orphans",
        "inode-links" | "inode-link-max" => "links",
        "inode-reserved-bits" => "ifile",
        "cpfile-inodes-count" | "cpfile-blocks-count" => "counts",
        "cpfile-ifile" => "checkpoints",
        "super-root-reserved" => "log",
        "recovery-sequence" | "recovery-inode" | "recovery-reached" => "recovery",
        _ => match id.split('-').next().unwrap_or("") {
            "super" => "super-block",
            "sufile" => "sufile",
            "dat" | "palloc" => "dat",
            "map" | "btree" => "map",
            "cpfile" => "cpfile",
            "log" => "log",
            "directory" => "directory",
            _ => "inode",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_invariant_has_a_class_that_exists() {
        for i in silt_verify::invariants::ALL {
            assert!(CLASSES.iter().any(|c| c.name == of(i.id)), "{}", i.id);
        }
    }
}
