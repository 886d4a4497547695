//! Whether a log that does not verify was whole once: what whole logs behind it say of the order in which a writer works.
//!
//! - A checkpoint ends with a flush. What lies before a super root that something whole follows was flushed, and so was
//!   what lies before a super root that is missing where a log of a later checkpoint is whole (spec 4.2: they are counted).
//! - Synced data of several files may share one flush, but not twice that of one file.
//!
//! None of it holds where a flush had failed, the volume was mounted without them, or Linux wrote it, which makes checkpoints
//! by the clock without one (spec 12.1).
//!
//! Memory: some 40 bytes a file that was synced by itself behind the first log that does not verify, for at most [`FILES`].

use std::collections::HashMap;

use silt_format::BlockNr;
use silt_format::summary::{self, BlockInfo, Header, LOGBGN, SR, SYNDT};

use crate::chain::Broken;
use crate::reader::Reader;
use crate::search::{self, Log};

/// Files that are remembered; what others tell is left out.
const FILES: usize = 1 << 16;

/// The checkpoint that the next super root behind a log makes; 0 where that is not known.
pub(crate) fn next_checkpoint(log: &Log) -> u64 {
    let cno = log.header.cno.get();
    if cno == 0 { 0 } else { cno.saturating_add(1) }
}

/// Marks what was whole once, while whole logs are met in order.
pub(crate) struct Promised {
    /// Broken logs before the last whole super root that was met.
    before_root: usize,
    cno: u64,
    /// Of each file whose synced data was met: how many broken logs lie before it or are it, and in which group.
    synced: HashMap<u64, (usize, u64)>,
    /// Groups of synced data so far.
    groups: u64,
    /// So many broken logs are marked already.
    marked: usize,
}

impl Promised {
    /// Behind the newest checkpoint that a mount comes to.
    pub fn behind(log: &Log) -> Self {
        Promised { before_root: 0, cno: next_checkpoint(log), synced: HashMap::new(), groups: 0, marked: 0 }
    }

    /// One that does not verify; `all` with it.
    pub fn broken(&mut self, r: &Reader<'_>, broken: &Broken, all: usize) {
        let header = r.block(BlockNr(broken.pos)).ok().and_then(|b| Header::parse(&r.g, &b).ok());
        let own = |log: &Log| log.header.seq.get() == broken.seq && log.end() <= broken.end;
        let Some(log) = header.map(|header| Log { pos: BlockNr(broken.pos), header }).filter(own) else {
            return;
        };
        let files = files(r, &log);
        // One whose head is lost may have been of the group before it, or of the one behind.
        self.groups += u64::from(!files.is_empty() && log.header.has(LOGBGN));
        for ino in files {
            self.remember(ino, all);
        }
    }

    /// Synced data of a file, behind so many broken logs; what was known of it.
    fn remember(&mut self, ino: u64, broken: usize) -> Option<(usize, u64)> {
        if self.synced.len() >= FILES && !self.synced.contains_key(&ino) {
            return None;
        }
        self.synced.insert(ino, (broken, self.groups))
    }

    /// The next whole log, and the broken ones before it.
    pub fn next(&mut self, r: &Reader<'_>, log: &Log, broken: &mut [Broken]) {
        if broken.is_empty() {
            self.cno = if log.header.has(SR) { next_checkpoint(log) } else { self.cno };
            return;
        }
        let mut certain = self.before_root;
        // Each log tells the checkpoint that comes next: those before it were made.
        if self.cno != 0 && log.header.cno.get() > self.cno {
            certain = certain.max(1);
        }
        if log.header.has(SR) {
            (self.before_root, self.cno) = (broken.len(), next_checkpoint(log));
        }
        if log.header.has(LOGBGN) {
            self.groups += 1;
        }
        for ino in files(r, log) {
            let before = self.remember(ino, broken.len());
            if let Some((place, _)) = before.filter(|(_, group)| *group != self.groups) {
                certain = certain.max(place);
            }
        }
        broken.iter_mut().take(certain).skip(self.marked).for_each(|b| b.certain = true);
        self.marked = self.marked.max(certain);
    }
}

/// The files of a log of synced data, if its summary is whole.
fn files(r: &Reader<'_>, log: &Log) -> Vec<u64> {
    let mut all = Vec::new();
    if !log.header.has(SYNDT) {
        return all;
    }
    let Ok(bytes) = search::summary_of(r, log) else { return all };
    if summary::summary_sum_matches(r.g.crc_seed, &log.header, &bytes) {
        // What was walked of one that makes no sense counts.
        let _ = summary::for_each_payload(&r.g, &log.header, &bytes, |p| {
            if matches!(p.info, BlockInfo::Data { .. }) && all.last() != Some(&p.ino.0) {
                all.push(p.ino.0);
            }
        });
    }
    all
}
