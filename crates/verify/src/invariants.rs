//! Every invariant the check knows: identifier, severity, one line, section of `docs/format.md`.
//!
//! Identifiers are stable: tests, documents and people quote them. A note marked strict is
//! something volumes of other writers may do but this implementation never does; with
//! [`crate::Options::strict`] it counts as an error.

use crate::report::Severity::{self, Error, Note};

/// One invariant.
#[derive(Debug, PartialEq, Eq)]
pub struct Invariant {
    /// Stable identifier.
    pub id: &'static str,
    pub severity: Severity,
    /// Counts as an error in a strict check.
    pub strict: bool,
    /// What must hold, in one line.
    pub says: &'static str,
    /// Section of the format's description.
    pub spec: &'static str,
}

macro_rules! invariants {
    ($($name:ident $id:literal $severity:ident $strict:literal $spec:literal $says:literal;)*) => {
        $(
            #[doc = $says]
            pub static $name: Invariant =
                Invariant { id: $id, severity: $severity, strict: $strict, says: $says, spec: $spec };
        )*
        /// All of them, in the order of the document.
        pub static ALL: &[&Invariant] = &[$(&$name),*];
    };
}

invariants! {
    DEVICE_READ "device-read" Error false "1" "Every block that is needed can be read.";
    SUPER_COPY "super-block-copy" Error false "2.5" "Both copies of the super block carry a magic and a matching checksum.";
    SUPER_FIELDS "super-block-fields" Error false "2.6" "The preferred super block's fields are within their limits.";
    SUPER_PLACE "super-block-place" Note false "2.5" "The secondary super block has a place outside the segments.";
    SUPER_AGREE "super-block-agreement" Error false "2.7" "The two copies agree in all that does not change between their writes.";
    SUPER_OTHER "super-block-other-cursor" Error false "2.7" "The other copy's cursor too points at a valid log with a super root.";
    SUPER_CHAIN "super-block-other-chain" Note false "2.7" "The chain of logs from the other copy's cursor leads to the latest super root.";
    SUPER_STATE "super-block-state" Note true "2.2" "No error was recorded, no resize is under way, no unknown state bit is set.";
    SUPER_FEATURES "super-block-features" Note false "2.4" "No unknown read-only-compatible feature is set.";
    SUPER_SIZE "super-block-device-size" Note true "2.2" "The recorded size is that of the device.";
    SUPER_FIRST_INODE "super-block-first-inode" Error false "2.2" "No inode in use lies below the first one that the super block allows files to have.";
    SUPER_RESERVED "super-block-reserved" Note true "2.2" "Unused bytes of the super block are zero.";

    ROOT_FOUND "super-root-found" Error false "4.2" "The preferred super block's cursor leads to a valid log with a super root.";
    ROOT_NEWER "super-root-newer" Error false "2.7" "On a cleanly unmounted volume nothing that counts follows the cursor's log: no super root, no data-sync log.";
    ROOT_BLOCK "super-root-block" Error false "3.6" "The super root's length, checksum and inodes are sound.";
    ROOT_RESERVED "super-root-reserved" Error false "3.6" "Flags and unused bytes of the super root are zero.";
    ROOT_COUNTED "super-root-counted-cno" Error false "4.2" "Checkpoint numbers of logs with super roots follow one another from the cursor's on.";
    ROOT_NONGC "super-root-nongc-time" Note true "3.6" "The time of the newest ordinary log is not later than the super root's own log.";
    RECOVERY_MIX "recovery-sequence" Error false "4.4" "Data-sync logs behind the super root form whole sequences with nothing else among them.";
    RECOVERY_INODE "recovery-inode" Error false "4.4" "Data-sync logs behind the super root name files of the latest checkpoint.";
    RECOVERY_REACHED "recovery-reached" Error false "4.2" "Of logs behind the newest super root that a mount comes to none is damaged that whole ones follow.";

    LOG_HEADER "log-header" Error false "3.3" "Logs follow one another through all used blocks of a segment, each with a sound header.";
    LOG_SUMSUM "log-summary-checksum" Error false "3.5" "The checksum of a log's summary matches.";
    LOG_DATASUM "log-checksum" Error false "3.5" "The checksum of a whole log matches.";
    LOG_FIT "log-in-segment" Error false "3.2" "No log crosses the end of its segment.";
    LOG_RECORDS "log-records" Error false "3.4" "File and block records are well-formed and describe exactly the payload.";
    LOG_SUMBYTES "log-sumbytes" Error false "3.4" "ss_sumbytes ends exactly behind the last record.";
    LOG_GAPS "log-gaps" Note true "3.4" "Bytes of a summary between and behind records are zero.";
    LOG_FLAGS "log-flags" Error false "3.3" "Flags are known, a super root only ends a logical segment, data-sync logs hold nothing but data.";
    LOG_STALE "log-stale" Error false "13.4" "The blocks that logs in use describe lie there: a cleaner takes them for what their numbers are.";
    LOG_SEQ "log-seq" Error false "3.2" "All logs of a segment carry one sequence number, and no two segments carry the same.";
    LOG_NEXT "log-next" Error false "3.2" "All logs of a segment name the same next segment, and the next sequence number is there.";
    LOG_CNO "log-cno" Error false "3.3" "The checkpoint number of logs never goes back, and grows by one behind each super root.";
    LOG_OWN "log-payload-metadata" Error false "3.4" "A block record's inode, pointer and offset can exist.";
    LOG_CREATE "log-create" Note false "19.33" "Creation times of logs do not run backwards.";

    SU_BLOCK0 "sufile-header-block" Error false "2.6" "The sufile's first block is present.";
    SU_CLEAN_COUNT "sufile-clean-count" Error false "11.2" "sh_ncleansegs is the number of clean segments.";
    SU_DIRTY_COUNT "sufile-dirty-count" Error false "11.2" "sh_ndirtysegs is the number of dirty segments.";
    SU_LAST_ALLOC "sufile-last-alloc" Error false "11.1" "sh_last_alloc is a segment of the volume.";
    SU_CLEAN_ZERO "sufile-clean-entry" Error false "11.1" "The entry of a clean segment is all zero.";
    SU_FLAGS "sufile-flags" Error false "11.1" "Only known flags are set, and used segments are dirty.";
    SU_ACTIVE "sufile-active" Note true "11.1" "The flag ACTIVE is not on disk (mkfs.nilfs2 leaves it there).";
    SU_ERROR "sufile-error" Note true "11.1" "No segment is marked as bad.";
    SU_NBLOCKS "sufile-nblocks" Error false "11.1" "A segment's used blocks are exactly those its logs cover.";
    SU_LASTMOD "sufile-lastmod" Note true "11.5" "A segment's time is that of its last log.";
    SU_CURRENT "sufile-current" Error false "11.5" "The writer's segment is dirty and filled exactly up to the latest super root.";
    SU_NEXT "sufile-next" Error false "3.7" "The writer's next segment is dirty and unused.";
    SU_SCRAPPED "sufile-scrapped" Note false "4.5" "No dirty segment but the writer's next is empty.";
    SU_TAIL "sufile-tail" Note true "15" "Nothing is stored for segments behind the last one.";

    DAT_BLOCKNR "dat-blocknr" Error false "14.6" "A translated block lies in the used part of a dirty segment.";
    DAT_LIFETIME "dat-lifetime" Error false "7.2" "A lifetime begins at a checkpoint that exists or existed and does not end before it begins.";
    DAT_SHARED "dat-shared-block" Error false "7" "No two allocated entries share a disk block, and none claims a block of the DAT.";
    DAT_ENTRY_HOLE "dat-entry-missing" Error false "7.7" "An allocated entry's block is present.";
    DAT_ZERO "dat-entry-zero" Error false "7.1" "Entry 0 is allocated and translates to nothing.";
    DAT_UNWRITTEN "dat-unwritten" Error false "7.2" "No entry is allocated without a place on disk.";
    DAT_RSV "dat-reserved" Note true "7.1" "Reserved bytes of entries are zero.";
    DAT_ATTRIBUTION "dat-attribution" Error false "19.21" "The log record at an entry's disk block names this virtual block.";
    DAT_FI_CNO "dat-record-cno" Error false "3.4" "A record's checkpoint number is its entry's start (0 for cpfile and sufile).";
    DAT_VS_END "dat-single-version" Error false "7.4" "An ended entry of cpfile or sufile ends where it starts.";
    DAT_UNMAPPED "dat-live-unmapped" Error false "22" "Every current entry is mapped by the current tree or by metadata.";
    DAT_OWN_BLOCK "dat-own-block" Error false "19.21" "The log record at a block of the DAT names its offset, or its key and level.";
    DAT_OWN_PLACE "dat-own-place" Error false "14.6" "A block of the DAT lies in the used part of a dirty segment and is claimed once.";

    PALLOC_FREES "palloc-free-count" Error false "6" "pg_nfrees is the number of zero bits of its group.";
    PALLOC_DESC "palloc-descriptor" Error false "6" "A group with allocated entries has a descriptor.";
    PALLOC_KEY "palloc-key" Error false "14.6" "Block offsets of DAT and ifile belong to groups that can exist.";

    DIRECT_MAP_FLAGS "direct-map-flags" Error false "5.1" "The flags of a direct map are zero.";
    DIRECT_MAP_HEADER "direct-map-header" Note true "5.1" "The bytes behind a direct map's flags are zero (the kernel leaves those of a B-tree it shrank).";
    BTREE_ROOT "btree-root" Error false "5.1" "A B-tree root's flags, level and count are within their limits.";
    BTREE_NODE_FLAGS "btree-node-flags" Error false "5.1" "A node block's flags are zero.";
    BTREE_LEVEL "btree-level" Error false "5.2" "A node's level is one below its parent's.";
    BTREE_COUNT "btree-count" Error false "5.1" "A node has at least one child and no more than fit.";
    BTREE_ONLY_CHILD "btree-only-child" Error false "5.2" "A node above the leaves has at least two children, unless it is the root's only child.";
    BTREE_ORDER "btree-order" Error false "5.2" "Keys of a node ascend strictly.";
    BTREE_BOUND "btree-bound" Error false "5.2" "Keys of a node are below the first key of the node after it.";
    BTREE_PARENT_KEY "btree-parent-key" Error false "5.2" "A node's first key equals the key its parent has for it.";
    BTREE_POINTER_ZERO "btree-pointer-zero" Error false "5.2" "No pointer of a B-tree is 0.";
    MAP_VBLOCK "map-vblock" Error false "14.6" "A mapped virtual block is allocated, and its number can exist.";
    MAP_UNWRITTEN "map-unwritten" Error false "7.7" "A mapped virtual block has a place on disk.";
    MAP_DEAD "map-dead" Error false "7.2" "A block mapped by the current tree is current and began no later than it.";
    MAP_LIFETIME "map-lifetime" Error false "7.1" "The lifetime of a block mapped by a checkpoint contains that checkpoint.";
    MAP_TWICE "map-twice" Error false "14.6" "No virtual block is mapped twice by one tree.";
    MAP_OWNER "map-owner" Error false "19.21" "The log record at a mapped block names the file and offset that map it.";
    MAP_KEY "map-key" Error false "14.6" "Offsets of a file's blocks fit the greatest file size.";

    CP_BLOCK0 "cpfile-header-block" Error false "2.6" "The cpfile's first block is present.";
    CP_COUNT "cpfile-count" Error false "10.1" "ch_ncheckpoints is the number of checkpoints.";
    CP_BLOCK_COUNT "cpfile-block-count" Error false "19.11" "The count in a block's first slot is the number of its checkpoints.";
    CP_CNO "cpfile-cno" Error false "10.1" "A checkpoint's number is that of its slot, and none is later than the latest.";
    CP_FLAGS "cpfile-flags" Error false "10.1" "Only known flags are set.";
    CP_LATEST "cpfile-latest" Error false "2.6" "The latest checkpoint is present.";
    CP_EMPTY "cpfile-empty-block" Note true "10.5" "A block without checkpoints is not kept.";
    CP_LIST "cpfile-snapshot-list" Error false "10.4" "The list of snapshots ascends, agrees in both directions, and ends.";
    CP_LIST_FLAGS "cpfile-snapshot-flags" Error false "10.4" "Exactly the checkpoints with the flag SNAPSHOT are in the list; others have no links.";
    CP_SNAPSHOT_COUNT "cpfile-snapshot-count" Error false "10.1" "ch_nsnapshots is the number of snapshots.";
    CP_INODES "cpfile-inodes-count" Error false "10.3" "cp_inodes_count is the number of inodes in use.";
    CP_BLOCKS "cpfile-blocks-count" Error false "10.3" "cp_blocks_count is the number of blocks of the tree and the ifile.";
    CP_NBLK_INC "cpfile-nblk-inc" Note true "10.1" "cp_nblk_inc is the number of blocks of the logs that made the checkpoint.";
    CP_CREATE "cpfile-create" Note true "10.2" "cp_create is the creation time of the log with its super root.";
    CP_MINOR "cpfile-minor" Error false "10.2" "A checkpoint with the flag MINOR changed nothing of the tree.";
    CP_IFILE "cpfile-ifile" Error false "8.5" "A checkpoint's ifile inode is that of a metadata file.";

    INODE_RESERVED_BITS "inode-reserved-bits" Error false "19.30" "Inodes 0 to 10 are allocated.";
    INODE_ENTRY_HOLE "inode-entry-missing" Error false "8.2" "An allocated inode's block is present.";
    INODE_RESERVED "inode-reserved" Error false "8.2" "A reserved inode owns no blocks.";
    INODE_TYPE "inode-type" Error false "14.5" "An inode's file type is known.";
    INODE_ROOT "inode-root" Error false "2.6" "The root inode is a directory with links, size and blocks.";
    INODE_ZERO "inode-zero" Note true "8.1" "i_xattr, i_pad and bytes behind the inode are zero.";
    INODE_TIMES "inode-times" Error false "8.1" "Nanoseconds are below one thousand million.";
    INODE_GENERATION "inode-generation" Error false "8.3" "A file keeps its generation from checkpoint to checkpoint.";
    INODE_LINKS "inode-links" Error false "8.3" "The link count is the number of entries (of a directory: 2 and one a subdirectory).";
    INODE_LINK_MAX "inode-link-max" Error false "8.3" "No inode has more than 32000 links.";
    INODE_ORPHAN "inode-orphan" Note false "8.3" "No inode without links is allocated.";
    INODE_LOST "inode-lost" Error false "8.3" "Every inode with links is named by a directory.";
    INODE_SIZE "inode-size" Error false "8.1" "No block lies behind the end of a file, and no file is larger than can be.";
    INODE_BLOCKS "inode-blocks" Error false "8.4" "i_blocks counts the data and node blocks in units of 512 bytes.";
    INODE_BLOCKS_MKFS "inode-blocks-mkfs" Note false "8.4" "i_blocks of inodes from mkfs.nilfs2 is off by a constant.";
    INODE_SPECIAL "inode-special" Note true "8.1" "Device nodes, FIFOs and sockets have nothing but a device number in their map.";
    INODE_META "inode-metadata" Error false "8.5" "Inodes of metadata files are regular files with a link.";

    SYMLINK_SIZE "symlink-size" Error false "9.4" "A symlink's length is 1 to B - 1, its target is one block.";
    SYMLINK_TARGET "symlink-target" Error false "9.4" "A symlink's target has no NUL, and the rest of its block is zero.";

    DIR_SIZE "directory-size" Error false "9.1" "A directory's size is a multiple of the block size, without holes.";
    DIR_TILING "directory-tiling" Error false "9.3" "Entries tile each block exactly and are well-formed.";
    DIR_DOTS "directory-dots" Error false "9.1" "The first entries are \".\" with the own number and \"..\" with the parent's.";
    DIR_NAME "directory-name" Error false "9.4" "No name has a NUL or a slash.";
    DIR_DUPLICATE "directory-duplicate" Error false "9" "No name occurs twice.";
    DIR_RESERVED "directory-reserved-inode" Error false "8.2" "No entry names a reserved inode.";
    DIR_DANGLING "directory-dangling" Error false "19.29" "Every entry names an allocated inode with links.";
    DIR_TYPE "directory-type" Error false "9.1" "An entry's type is that of its inode.";
    DIR_PARENTS "directory-parents" Error false "9" "A directory is named once.";
    DIR_LOOP "directory-loop" Error false "9" "Every directory leads up to the root.";
}

/// The table as Markdown, for the documentation.
pub fn markdown() -> String {
    let mut out = String::from("| identifier | severity | what must hold | format |\n|---|---|---|---|\n");
    for i in ALL {
        let severity = match (i.severity, i.strict) {
            (Error, _) => "error",
            (Note, false) => "note",
            (Note, true) => "note (error if strict)",
        };
        out += &format!("| `{}` | {severity} | {} | {} |\n", i.id, i.says, i.spec);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_document_has_them_as_they_are() {
        assert!(include_str!("../../../docs/check.md").ends_with(&format!("\n\n{}", markdown())));
    }

    #[test]
    fn identifiers_are_unique_and_plain() {
        let mut seen = HashSet::new();
        for i in ALL {
            assert!(seen.insert(i.id), "{} twice", i.id);
            assert!(
                i.id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'),
                "{}",
                i.id
            );
            assert!(i.says.ends_with('.') && !i.spec.is_empty());
            assert!(!(i.strict && i.severity == Error), "{}", i.id);
        }
    }
}
