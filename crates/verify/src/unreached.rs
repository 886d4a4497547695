//! What was synced behind the newest checkpoint and is lost to every mount, since a log before it, or its own, does not
//! verify (spec 4.2, 4.4). A power cut may leave the same of writes that nobody was told of.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::ops::Range;

use silt_device::Device;
use silt_format::summary::{self, BlockInfo, SYNDT};
use silt_format::{BlockNr, Geometry};

use crate::reader::Reader;
use crate::scrub::tail;
use crate::search::{self, Log};

/// Files that are named; of more it is said that there are more.
const FILES: usize = 20;

/// See [`unreached`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unreached {
    /// The newest checkpoint.
    pub checkpoint: u64,
    /// Block of the first log that does not verify.
    pub block: u64,
    /// Whole logs behind it, which no mount comes to.
    pub logs: u64,
    /// Bytes of files, by inode, as far as summaries of these logs can be read.
    pub files: BTreeMap<u64, Vec<Range<u64>>>,
    /// Whether the summary of a log that does not verify is lost: what it held is not known.
    pub unknown: bool,
}

/// What synced data behind the newest checkpoint of a volume that was not cleanly unmounted no mount comes to; `None`
/// where all of it is whole, and where no checkpoint is found.
pub fn unreached(device: &dyn Device) -> Option<Unreached> {
    let (r, start) = search::open(device, 1 << 20).ok()?;
    if start.clean { None } else { behind(&r, &start.found.latest, start.found.cno) }
}

/// The same behind a log with a super root.
pub(crate) fn behind(r: &Reader<'_>, latest: &Log, checkpoint: u64) -> Option<Unreached> {
    let chain = tail::follow(r, latest);
    let first = chain.broken.first()?;
    let synced = |log: &Log| log.header.has(SYNDT);
    let logs = chain.logs.get(first.behind..).unwrap_or_default();
    let mut out = Unreached { checkpoint, block: first.pos, logs: logs.len() as u64, ..Unreached::default() };
    let mut any = logs.iter().any(synced);
    for log in logs {
        out.note(r, log);
    }
    for broken in &chain.broken {
        let head = r.block(BlockNr(broken.pos)).ok().and_then(|b| summary::Header::parse(&r.g, &b).ok());
        let log = head.map(|header| Log { pos: BlockNr(broken.pos), header });
        // What lies behind the newest whole log may be of an earlier use of the segment.
        match log.filter(|log| r.g.holds(log.pos) && log.end() <= broken.end) {
            Some(log) if out.note(r, &log) => any |= synced(&log),
            _ => out.unknown = true,
        }
    }
    if !any {
        return None;
    }
    for list in out.files.values_mut() {
        list.sort_by_key(|part| part.start);
        let mut joined: Vec<Range<u64>> = Vec::new();
        for part in list.drain(..) {
            match joined.last_mut() {
                Some(last) if last.end >= part.start => last.end = last.end.max(part.end),
                _ => joined.push(part),
            }
        }
        *list = joined;
    }
    Some(out)
}

impl Unreached {
    /// Adds the blocks of files that a log holds, if it is of synced data; whether its summary is whole.
    fn note(&mut self, r: &Reader<'_>, log: &Log) -> bool {
        let g: &Geometry = &r.g;
        let Ok(bytes) = search::summary_of(r, log) else { return false };
        if !summary::summary_sum_matches(g.crc_seed, &log.header, &bytes) {
            return false;
        }
        if !log.header.has(SYNDT) {
            return true;
        }
        let bs = u64::from(g.block_size);
        let walked = summary::for_each_payload(g, &log.header, &bytes, |p| {
            if let BlockInfo::Data { offset, .. } = p.info {
                let from = offset.saturating_mul(bs);
                self.files.entry(p.ino.0).or_default().push(from..from.saturating_add(bs));
            }
        });
        walked.is_ok()
    }
}

impl Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unreached { checkpoint, block, logs, .. } = self;
        write!(
            f,
            "synced data behind checkpoint {checkpoint} is lost: the log at block {block} does not verify"
        )?;
        match logs {
            0 => f.write_str(", as after a power cut in the midst of a write")?,
            1 => f.write_str(", and no mount comes to the whole log behind it")?,
            n => write!(f, ", and no mount comes to the {n} whole logs behind it")?,
        }
        for (ino, parts) in self.files.iter().take(FILES) {
            let parts: Vec<_> = parts.iter().map(|p| format!("{} to {}", p.start, p.end - 1)).collect();
            write!(f, "; inode {ino}: bytes {}", parts.join(", "))?;
        }
        if self.files.len() > FILES {
            write!(f, "; and {} more files", self.files.len() - FILES)?;
        }
        if self.unknown {
            f.write_str("; of what its own log held nothing is known")?;
        }
        Ok(())
    }
}
