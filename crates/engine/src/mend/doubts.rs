//! What may be other than it was: entries of inode files in logs that do not verify, and blocks that are taken for the
//! newest since nothing says any more when they died.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use silt_device::Device;
use silt_format::{BlockNr, Geometry, Ino};

use super::evacuate::{LISTED, inodes_in};
use super::{Known, count};
use crate::ifile::IFile;
use crate::verify_log::{LogState, Verifier};
use crate::volume::Volume;

/// What is known of logs.
pub(crate) struct Doubts {
    device: Arc<dyn Device>,
    verifier: Verifier,
    /// Before the mend: a log that was accepted verifies since.
    original: Option<(Arc<dyn Device>, Verifier)>,
    /// Blocks of inode files, by offset, that were moved out of logs that do not verify, now or before.
    pub(super) moved: BTreeSet<u64>,
}

impl Doubts {
    pub(super) fn new(device: &Arc<dyn Device>, g: Geometry, known: &Known) -> Self {
        let original = known.original.as_ref().map(|o| (o.0.clone(), Verifier::new(o.0.clone(), g)));
        Doubts {
            device: device.clone(),
            verifier: Verifier::new(device.clone(), g),
            original,
            moved: known.inode_blocks.clone(),
        }
    }

    /// Whether a block lies in a log that does not verify, or did not at first.
    pub(super) fn is_bad(&self, g: &Geometry, at: BlockNr) -> bool {
        if !g.holds(at) || self.verifier.verify(at).1 == LogState::Bad {
            return true;
        }
        let Some((device, verifier)) = &self.original else { return false };
        if verifier.verify(at).1 != LogState::Bad {
            return false;
        }
        // What was written since is another matter.
        let (mut now, mut then) = (vec![0; g.bs()], vec![0; g.bs()]);
        let read = self.device.read_at(g.byte_of(at), &mut now).is_ok()
            && device.read_at(g.byte_of(at), &mut then).is_ok();
        !read || now == then
    }
}

/// Files with such blocks, and how many, and those whose inodes lie in some.
#[derive(Default)]
pub(crate) struct Unsure {
    files: BTreeMap<u64, usize>,
    attributes: BTreeSet<u64>,
}

impl Unsure {
    /// What may be wrong, in words.
    pub(super) fn words(&self) -> Vec<String> {
        let files = self.files.iter().take(LISTED).map(|(ino, n)| {
            format!("inode {ino}: {} taken from the logs may be older than what is lost", count(*n, "block"))
        });
        let attributes = self.attributes.iter().take(LISTED).map(|ino| {
            format!("inode {ino}: its attributes, taken from the logs, may be older than what is lost")
        });
        let more = (self.files.len() + self.attributes.len()).saturating_sub(2 * LISTED);
        let more = (more > 0).then(|| format!("and {more} more files that may be older"));
        files.chain(attributes).chain(more).collect()
    }
}

impl Volume {
    /// Notes a block of a file, of data at an offset, if nothing says when it died; `current`: it becomes part of the tree at
    /// hand.
    pub(super) fn note_unsure(&self, ino: Ino, offset: u64, v: u64, current: bool, out: &mut Unsure) {
        if !self.unsure.contains(v) {
        } else if ino != Ino::IFILE {
            *out.files.entry(ino.0).or_default() += 1;
        } else if current && let Ok(b) = self.bytes_of(v) {
            out.attributes.extend(inodes_in(&self.store.geometry, offset, &b));
        }
    }

    /// Whether the block of an inode file that has this inode's entry, or is to have it, lies in a log that does not verify,
    /// did so before it was moved, or cannot be found.
    pub(super) fn is_doubtful(&self, ifile: &IFile, ino: Ino, doubts: &Doubts) -> bool {
        let offset = ifile.palloc.layout.entry(ino.0).block;
        let place = ifile.file.place(&self.store, &self.dat, offset);
        let Ok(Some(at)) = place else { return true };
        doubts.moved.contains(&offset) || doubts.is_bad(&self.store.geometry, at)
    }
}
