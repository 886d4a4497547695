//! What has no name: it is freed, or gets one in `lost+found`.

use std::collections::BTreeSet;

use silt_engine::{Attr, Tree};
use silt_format::Ino;
use silt_format::dir::{self, file_type};

use super::{Entry, Known, Mend, Written};
use crate::Result;

/// Where it goes.
const LOST: &[u8] = b"lost+found";

/// The name in `lost+found` of what has none.
pub(crate) fn name_of_lost(ino: u64) -> Vec<u8> {
    format!("#{ino}").into_bytes()
}

impl Mend<'_> {
    /// What has no name: without links it goes, else it gets a name.
    pub(super) fn orphans(&mut self) -> Result<()> {
        let nameless: Vec<u64> = self
            .inodes
            .iter()
            .filter(|(nr, k)| !k.reached && **nr != Ino::ROOT.0)
            .map(|(nr, _)| *nr)
            .collect();
        if nameless.is_empty() {
            return Ok(());
        }
        // Directories first that no other of them names, so that trees stay together.
        let mut inside: BTreeSet<u64> = BTreeSet::new();
        for nr in &nameless {
            if self.inodes.get(nr).is_some_and(Known::is_dir) {
                for key in self.blocks(*nr)? {
                    let Ok(Some(b)) = self.v.read_block(Tree::Live, Ino(*nr), key) else { continue };
                    inside.extend(dir::entries(&b).map_while(std::result::Result::ok).filter_map(|e| {
                        (e.name != b"." && e.name != b".." && e.ino.0 != *nr).then_some(e.ino.0)
                    }));
                }
            }
        }
        let mut order = nameless.clone();
        order.sort_by_key(|nr| (inside.contains(nr), !self.inodes.get(nr).is_some_and(Known::is_dir), *nr));
        let mut found: Option<u64> = None;
        for nr in order {
            let Some(k) = self.inodes.get(&nr).copied() else { continue };
            if k.reached {
                continue;
            }
            if k.links == 0 {
                self.v.delete_inode(Ino(nr))?;
                self.inodes.remove(&nr);
                self.said.push(format!("inode {nr} has neither name nor link: its space is freed"));
                continue;
            }
            let home = match found {
                Some(home) => home,
                None => *found.insert(self.lost_and_found()?),
            };
            self.name(home, nr, name_of_lost(nr));
            self.said.push(format!("a file without a name becomes lost+found/#{nr}"));
            if k.is_dir() {
                self.walk(nr, home)?;
            }
        }
        Ok(())
    }

    /// Takes away a `lost+found` that nothing is left in.
    pub(super) fn drop_empty(&mut self) -> Result<()> {
        let root = Ino::ROOT.0;
        for directory in std::mem::take(&mut self.left) {
            let is_one = |e: &Entry| e.ino == directory && e.name.starts_with(LOST);
            let empty = self.entries_of(directory)?.entries.is_empty();
            if !empty || !self.entries_of(root)?.entries.iter().any(is_one) {
                continue;
            }
            if let Some(written) = self.written.get_mut(&root) {
                written.entries.retain(|e| !is_one(e));
            }
            if let Some(k) = self.inodes.get_mut(&root) {
                k.below = k.below.saturating_sub(1);
            }
            self.written.remove(&directory);
            self.inodes.remove(&directory);
            self.v.delete_inode(Ino(directory))?;
            self.said.push("lost+found is empty again and goes".into());
        }
        Ok(())
    }

    /// The directory for what has no name, made if need be.
    fn lost_and_found(&mut self) -> Result<u64> {
        let root = Ino::ROOT.0;
        let Written { entries, taken, .. } = self.entries_of(root)?;
        if let Some(e) = entries.iter().find(|e| e.name == LOST && e.kind == file_type::DIR) {
            return Ok(e.ino);
        }
        let mut name = LOST.to_vec();
        while taken.contains(&name) {
            name.push(b'+');
        }
        let like = self.v.inode(Tree::Live, Ino::ROOT)?.attr.clone();
        let attr = Attr { mode: 0o040_700, links: 2, size: 0, flags: 0, device: (0, 0), ..like };
        // Numbers that names tell of are those of files that may come back.
        let ino = self.v.create_inode_behind(Ino(self.greatest), attr)?.0;
        self.inodes.insert(ino, Known { mode: 0o040_700, links: 2, reached: true, ..Known::default() });
        self.written.insert(ino, Written::new(root, Vec::new()));
        self.name(root, ino, name);
        Ok(ino)
    }
}
