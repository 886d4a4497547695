//! Which invariants stand for which rule: the validation list (spec 14.6) and the checklist (spec 19).
//!
//! Rules on how to write, of which a volume at rest shows nothing, say so.

/// A rule of the format's description.
#[derive(Debug)]
pub struct Rule {
    /// Section and number of the item, from 1.
    pub rule: &'static str,
    /// What it is about, in a few words.
    pub about: &'static str,
    /// Identifiers of the invariants that stand for it.
    pub ids: &'static [&'static str],
    /// What of it cannot be seen on a volume at rest; empty: nothing.
    pub rest: &'static str,
}

macro_rules! rules {
    ($($rule:literal $about:literal [$($id:literal)*] $rest:literal;)*) => {
        /// All rules, in their order.
        pub static ALL: &[Rule] =
            &[$(Rule { rule: $rule, about: $about, ids: &[$($id),*], rest: $rest }),*];
    };
}

rules! {
    "14.6.1" "what a mount checks; arithmetic without overflow" ["super-block-copy" "super-block-fields" "super-block-features" "super-block-place" "super-root-found" "super-root-block" "inode-metadata" "cpfile-header-block" "cpfile-latest" "cpfile-ifile" "sufile-header-block" "inode-root"] "";
    "14.6.2" "sizes and counts in logs and super roots" ["log-header" "log-in-segment" "log-records" "log-sumbytes" "super-root-block"] "";
    "14.6.3" "disk block numbers" ["dat-blocknr" "dat-own-place" "super-block-fields"] "";
    "14.6.4" "B-trees: levels, bounds, order, no cycles" ["btree-root" "btree-level" "btree-count" "btree-order" "btree-bound" "map-twice"] "";
    "14.6.5" "offsets and numbers that can exist" ["map-key" "palloc-key" "inode-size" "log-payload-metadata" "super-block-first-inode"] "";
    "14.6.6" "virtual blocks that exist; lifetimes" ["btree-pointer-zero" "map-vblock" "dat-entry-zero" "dat-lifetime"] "";
    "14.6.7" "directory entries, sizes of directories and symlinks" ["directory-tiling" "directory-dots" "directory-name" "directory-reserved-inode" "directory-size" "symlink-size"] "";
    "14.6.8" "the list of snapshots ends" ["cpfile-snapshot-list"] "";
    "14.6.9" "counters of the sufile" ["sufile-clean-count" "sufile-dirty-count"] "";
    "19.1" "seed and extent of checksums" ["super-block-copy" "log-summary-checksum" "log-checksum" "super-root-block"] "";
    "19.2" "checksums after all contents" ["super-root-block" "log-summary-checksum" "log-checksum"] "";
    "19.3" "what the summary's checksum covers" ["log-summary-checksum"] "";
    "19.4" "records do not straddle blocks" ["log-records" "log-sumbytes" "log-gaps"] "";
    "19.5" "records of the DAT" ["log-records" "dat-own-block"] "";
    "19.6" "where the pointers of a node lie" ["btree-pointer-zero" "map-vblock" "map-owner" "btree-count"] "";
    "19.7" "a parent's key is the child's first" ["btree-parent-key"] "";
    "19.8" "the flag that tells B-trees from direct maps" ["btree-root" "direct-map-flags" "btree-node-flags"] "";
    "19.9" "virtual block 0" ["dat-entry-zero" "btree-pointer-zero" "map-vblock"] "";
    "19.10" "places of entries in cpfile and sufile" ["cpfile-cno" "sufile-nblocks" "sufile-tail"] "";
    "19.11" "unused slots are invalid; the count of a block" ["cpfile-block-count" "cpfile-cno" "cpfile-empty-block"] "";
    "19.12" "free counts of groups that do not exist yet" ["palloc-free-count" "palloc-descriptor"] "";
    "19.13" "one checkpoint a super root, consecutive" ["super-root-counted-cno" "log-cno" "cpfile-latest"] "";
    "19.14" "sequence numbers" ["log-seq" "log-next"] "The jump behind a discontinuity shows only as a number that is not used twice.";
    "19.15" "the next segment" ["sufile-next" "sufile-current" "log-next"] "";
    "19.16" "when the volume may be marked as clean" ["super-root-newer"] "That the mark is taken away before the first log: a rule of time.";
    "19.17" "end and start of lifetimes" ["dat-unwritten" "dat-lifetime" "map-dead" "map-lifetime" "dat-live-unmapped"] "";
    "19.18" "lifetimes in cpfile and sufile" ["dat-single-version"] "";
    "19.19" "a moved block keeps its number" ["dat-attribution" "map-owner" "log-stale"] "";
    "19.20" "the checkpoint number of records" ["dat-record-cno"] "";
    "19.21" "every block is described, and rightly" ["log-records" "dat-attribution" "map-owner" "dat-own-block"] "";
    "19.22" "fill levels of segments" ["sufile-nblocks" "sufile-current" "dat-blocknr"] "";
    "19.23" "counters that are trusted" ["sufile-clean-count" "palloc-free-count" "cpfile-count" "cpfile-snapshot-count" "cpfile-block-count"] "";
    "19.24" "reuse of freed segments" ["super-block-other-cursor" "super-block-other-chain" "dat-blocknr"] "When a segment is used again: a rule of time. What it would have destroyed is found.";
    "19.25" "what may be freed" ["map-vblock" "map-lifetime" "map-unwritten"] "Seen in the trees that are walked: with --all in every checkpoint.";
    "19.26" "old checkpoints are read through the current DAT" ["map-lifetime" "map-vblock"] "";
    "19.27" "counts of inodes and blocks" ["cpfile-inodes-count" "cpfile-blocks-count" "inode-blocks" "inode-blocks-mkfs"] "";
    "19.28" "minor checkpoints, and the time of ordinary logs" ["cpfile-minor" "super-root-nongc-time"] "";
    "19.29" "the root directory; no name without an inode" ["inode-root" "directory-dangling"] "";
    "19.30" "reserved inode numbers" ["inode-reserved-bits"] "";
    "19.31" "entries fill their block; sizes of directories" ["directory-tiling" "directory-size"] "";
    "19.32" "flags of segments" ["sufile-active" "sufile-flags" "sufile-clean-entry"] "";
    "19.33" "times do not run backwards" ["log-create" "cpfile-create" "sufile-lastmod"] "That they are real: nobody can tell.";
    "19.34" "unknown bytes" ["super-block-reserved" "super-root-reserved" "inode-zero" "dat-reserved" "direct-map-header" "log-gaps"] "That they are kept as found: a rule of writing.";
    "19.35" "both super blocks are kept up" ["super-block-copy" "super-block-agreement" "super-block-other-cursor" "super-block-place"] "That they are written in turn: a rule of time.";
    "19.36" "from which copy recovery starts" ["super-root-found" "super-root-counted-cno"] "";
}

/// The table as Markdown, for the documentation.
pub fn markdown() -> String {
    let mut out = String::from("| rule | about | identifiers | not seen at rest |\n|---|---|---|---|\n");
    for r in ALL {
        let ids: Vec<String> = r.ids.iter().map(|id| format!("`{id}`")).collect();
        out += &format!("| {} | {} | {} | {} |\n", r.rule, r.about, ids.join(", "), r.rest);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants;

    const FORMAT: &str = include_str!("../../../docs/format.md");

    /// Numbers of the items of a section as the description has them.
    fn items(section: &str, end: &str, item: fn(&str) -> bool) -> usize {
        let text = FORMAT.split(section).nth(1).unwrap().split(end).next().unwrap();
        text.lines().filter(|line| item(line)).count()
    }

    #[test]
    fn every_rule_of_the_description_is_there() {
        let listed = items("\n### 14.6 ", "\n---", |line| line.starts_with("* "));
        let numbered = items("\n## 19. ", "\nWhat the kernel verifies", |line| {
            line.split_once(". ").is_some_and(|(n, _)| n.parse::<u32>().is_ok())
        });
        let rules: Vec<&str> = ALL.iter().map(|r| r.rule).collect();
        let expected: Vec<String> = (1..=listed)
            .map(|n| format!("14.6.{n}"))
            .chain((1..=numbered).map(|n| format!("19.{n}")))
            .collect();
        assert_eq!(rules, expected);
    }

    #[test]
    fn every_rule_has_an_invariant_that_exists() {
        for r in ALL {
            assert!(!r.ids.is_empty(), "{}", r.rule);
            for id in r.ids {
                assert!(invariants::ALL.iter().any(|i| i.id == *id), "{}: {id} is no invariant", r.rule);
            }
        }
        // And the other way round: what names an item of a list as its origin is in that item's row.
        for i in invariants::ALL.iter().filter(|i| i.spec.starts_with("19.")) {
            let rule = ALL.iter().find(|r| r.rule == i.spec);
            assert!(rule.is_some_and(|r| r.ids.contains(&i.id)), "{} is not in the row of {}", i.id, i.spec);
        }
    }

    #[test]
    fn the_document_has_them_as_they_are() {
        let document = include_str!("../../../docs/check.md");
        assert!(document.contains(&format!("\n\n{}\n", markdown())), "{}", markdown());
    }
}
