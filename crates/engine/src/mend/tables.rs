//! Opening what can be opened of the metadata, from the bottom up: the table, the files of checkpoints and segments, the inode
//! file, nodes; what is lost of each is made anew.

use silt_format::super_root::SuperRoot;
use silt_format::{Ino, SegNr};

use super::bits::Bits;
use super::doubts::Doubts;
use super::moves::Moved;
use super::{Wounds, count, start};
use crate::Result;
use crate::cpfile::CpFile;
use crate::ifile::IFile;
use crate::meta::Physical;
use crate::sufile::SuFile;
use crate::volume::Volume;

impl Volume {
    /// DAT, then what is needed to look at the rest: cpfile, sufile, ifile; then lost nodes.
    pub(super) fn mend_tables(
        v: &mut Volume,
        wounds: &Wounds,
        root: &SuperRoot,
        end_of_log: (SegNr, u64),
        doubts: &Doubts,
    ) -> Result<(Vec<String>, Vec<Moved>)> {
        let mut said = Vec::new();
        if wounds.table_map {
            said.push(v.mend_table_map(end_of_log)?);
        }
        if !wounds.known.own {
            // What cannot be read is looked at below.
            let _ = v.keep_numbers(doubts, end_of_log);
        }
        let mut suspects = Bits::default();
        wounds.entries.iter().for_each(|e| {
            suspects.insert(*e);
        });
        if wounds.table || wounds.table_map || !wounds.table_blocks.is_empty() {
            let mut lost: Vec<u64> = wounds.table_blocks.iter().copied().collect();
            if wounds.table_map {
                // No check could look into them.
                lost.extend(v.noisy_entries(doubts)?);
            }
            let lost = v.clear_lost_table_blocks(&lost, &mut suspects, end_of_log)?;
            if !lost.is_empty() {
                said.push(format!(
                    "lost and made anew: {} of the translation table",
                    count(lost.len(), "block")
                ));
            }
        }
        let mut records = v.mend_places(&suspects, end_of_log)?;
        v.open_metadata(root, end_of_log, wounds, doubts, &mut said)?;
        if wounds.table || wounds.table_map || !suspects.is_empty() {
            // What is mapped and passes for free would be handed out again.
            let free = v.mapped_and_free()?;
            records.extend(v.mend_places(&free, end_of_log)?);
            free.iter().for_each(|b| {
                suspects.insert(b);
            });
        }
        let mut moved = Vec::new();
        if wounds.nodes {
            let mut distrust = Bits::default();
            wounds.bad_nodes.iter().for_each(|b| {
                distrust.insert(*b);
            });
            let rebuilt = v.rebuild_nodes(distrust, end_of_log)?;
            if !rebuilt.moved.is_empty() {
                said.push(format!(
                    "built anew from the logs: {} of block maps",
                    count(rebuilt.moved.len(), "node")
                ));
            }
            said.extend(rebuilt.unsure.words());
            for (ino, b, _) in &rebuilt.lost {
                said.push(match b {
                    0 => format!("inode {ino}: a node of its map stays lost: the pointer to it is 0"),
                    b => format!("inode {ino}: the node at virtual block {b} stays lost"),
                });
            }
            moved = rebuilt.moved;
        }
        if !suspects.is_empty() {
            let mappers = v.mappers(suspects.clone());
            let free = v.surely_free(&wounds.known.spared);
            let next = v.next_written(&records, end_of_log);
            said.extend(v.mend_lifetimes(&suspects, (&records, &next), &mappers, &free)?);
        }
        if wounds.table || wounds.table_map || !suspects.is_empty() || !wounds.table_blocks.is_empty() {
            let palloc = v.dat.palloc;
            let n = palloc.recount(&mut v.dat.file, &v.store, &Physical)?;
            if n > 0 {
                said.push(format!("free entries of {n} groups of the translation table are counted again"));
            }
        }
        Ok((said, moved))
    }

    /// Opens cpfile, sufile and the newest ifile as far as they can be.
    fn open_metadata(
        &mut self,
        root: &SuperRoot,
        end_of_log: (SegNr, u64),
        wounds: &Wounds,
        doubts: &Doubts,
        said: &mut Vec<String>,
    ) -> Result<()> {
        let cpfile = if wounds.root {
            let file = self.table_from_logs(Ino::CPFILE, root.cpfile, end_of_log)?;
            CpFile::of(&self.store, &self.dat, file)
        } else {
            CpFile::open(&self.store, &self.dat, root.cpfile)
        };
        match cpfile {
            Ok(cpfile) => self.cpfile = cpfile,
            Err(e) => said.push(format!("the head of the checkpoint file is lost ({e})")),
        }
        if wounds.checkpoints {
            said.extend(self.older_checkpoint_blocks(end_of_log));
        }
        let g = self.store.geometry;
        let sufile = if wounds.root {
            let file = self.table_from_logs(Ino::SUFILE, root.sufile, end_of_log)?;
            SuFile::of(&g, &self.store, &self.dat, file)
        } else {
            SuFile::open(&g, &self.store, &self.dat, root.sufile)
        };
        match sufile {
            Ok(sufile) => self.sufile = sufile,
            Err(e) => said.push(format!("the head of the segment usage file is lost ({e})")),
        }
        let latest = self.last.cno;
        let found = self.cpfile.every(&self.store, &self.dat).into_iter().find(|e| e.cno.get() == latest);
        if wounds.ifile_root
            && let Some(entry) = &found
        {
            let (ifile, unsure) = self.whole_ifile_from_logs(end_of_log, entry)?;
            self.ifile = ifile;
            (self.inodes_count, self.tree_blocks) = self.count_tree_of(&self.ifile)?;
            said.push(format!("the inode file of checkpoint {latest} is put together from the logs"));
            said.extend(unsure.words());
            return Ok(());
        }
        let ifile = found.and_then(|e| Some((IFile::new(&self.store.geometry, e.ifile_inode).ok()?, e)));
        match ifile {
            Some((ifile, entry)) => {
                self.ifile = ifile;
                self.inodes_count = entry.inodes_count.get();
                self.tree_blocks = entry.blocks_count.get();
            }
            None => {
                said.push(format!(
                    "the entry of checkpoint {latest} is lost: its tree is put together from the logs"
                ));
                self.places_from_logs(Ino::IFILE, end_of_log, doubts)?;
                let (ifile, unsure) = self.ifile_from_logs(end_of_log)?;
                said.extend(unsure.words());
                self.ifile = ifile;
                if self.ifile.file.map.is_empty() {
                    return Err(start::no_tree(latest));
                }
            }
        }
        Ok(())
    }
}
