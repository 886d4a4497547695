//! What was synced behind the newest checkpoint and is lost to every mount, since a log before it, or its own, does not
//! verify (spec 4.2, 4.4). A power cut may leave the same of writes that nobody was told of.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::ops::Range;

use silt_device::Device;
use silt_format::summary::{self, BlockInfo, SYNDT};
use silt_format::{BlockNr, Geometry, SegNr};

use crate::chain::{self, Chain};
use crate::check::LogPosition;
use crate::headless::Headless;
use crate::reader::Reader;
use crate::search::{self, Log};

/// Files that are named; of more it is said that there are more.
const FILES: usize = 20;

/// Synced data that no mount comes to: see [`behind`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unreached {
    /// The newest checkpoint.
    pub checkpoint: u64,
    /// Block of the first log that does not verify.
    pub block: u64,
    /// Whole logs behind it, which no mount comes to.
    pub logs: u64,
    /// It was whole once. Otherwise a power cut in the midst of a sync may have left it so.
    pub certain: bool,
    /// Bytes of files, by inode, as far as summaries of these logs can be read.
    pub files: BTreeMap<u64, Vec<Range<u64>>>,
    /// Logs of synced data among them that were made when a later checkpoint was there: which files they are of is not said,
    /// since it may have given numbers of inodes away.
    pub later: u64,
    /// Whether the summary of a log that does not verify is lost: what it held is not known.
    pub unknown: bool,
    /// When the first and the last of these logs of synced data were made, seconds since 1970, as far as their heads tell.
    pub written: Option<(u64, u64)>,
}

/// What does not verify behind the newest checkpoint of a volume that was not cleanly unmounted: see [`behind`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Behind {
    /// Data that was synced by itself (spec 12.5), and that no mount comes to.
    pub synced: Option<Unreached>,
    /// Checkpoints that no mount comes to, in a sentence.
    pub logs: Option<String>,
    /// Where what does not verify was whole once: logs that made a checkpoint and that no mount comes to, the newest first.
    /// Those among them that do not verify have a head that says so.
    pub roots: Vec<LogPosition>,
    /// A log that does not verify and of which nothing else is told, since nothing whole follows it.
    pub torn: Option<Torn>,
    /// A log whose head is lost and whose super root is whole, behind all others.
    pub headless: Option<Headless>,
    /// Segments with whole logs that no mount comes to, ascending: what is left of what was synced and is lost.
    pub segments: Vec<SegNr>,
}

/// A log that a power cut leaves of a sync that nobody was told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Torn {
    /// The newest checkpoint.
    pub checkpoint: u64,
    /// The first block of the log.
    pub block: u64,
}

impl Display for Torn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "behind checkpoint {} the log at block {} does not verify, and no mount takes it: a power cut in the midst of a \
             sync leaves that, and then nobody was told that it was done",
            self.checkpoint, self.block
        )
    }
}

impl Behind {
    /// Whether something is lost, or may be, that was synced.
    pub fn is_lost(&self) -> bool {
        self.synced.is_some() || self.logs.is_some()
    }

    /// What a power cut leaves of what nobody was told of, in sentences.
    pub fn untold(&self) -> impl Iterator<Item = String> + use<> {
        let torn = self.torn.map(|torn| torn.to_string());
        torn.into_iter().chain(self.headless.map(|log| log.to_string()))
    }

    /// What the chain behind this checkpoint tells; `None` where all of it verifies.
    pub(crate) fn new(r: &Reader<'_>, chain: &Chain, checkpoint: u64) -> Option<Self> {
        let headless = chain.headless;
        let Some(first) = chain.broken.first() else {
            return headless.map(|_| Behind { headless, ..Behind::default() });
        };
        let (synced, logs) = (in_chain(r, chain, checkpoint), chain.lost_checkpoints());
        let untold = synced.is_none() && logs.is_none() && !first.bare;
        let torn = untold.then_some(Torn { checkpoint, block: first.pos });
        let roots = chain.roots(r);
        let is_lost = synced.is_some() || logs.is_some();
        let lost = if is_lost { chain.unreached(first) } else { Vec::new() };
        let mut segments: Vec<SegNr> = lost.iter().map(|log| r.g.segment_of(log.pos)).collect();
        segments.sort_unstable();
        segments.dedup();
        Some(Behind { synced, logs, roots, torn, headless, segments })
    }
}

/// What does not verify behind the newest checkpoint; `None` where all of it is whole, of a volume that was cleanly
/// unmounted, and where no checkpoint is found. Whoever opens such a volume for writing goes on beside these logs, and
/// nothing tells of them afterwards.
pub fn behind(device: &dyn Device) -> Option<Behind> {
    let (r, start) = search::open(device, 1 << 20).ok()?;
    if start.clean { None } else { Behind::new(&r, &chain::follow(&r, &start.found), start.found.cno) }
}

/// The synced data behind this checkpoint that no mount comes to.
fn in_chain(r: &Reader<'_>, chain: &Chain, checkpoint: u64) -> Option<Unreached> {
    let first = chain.broken.first()?;
    let synced = |log: &Log| log.header.has(SYNDT);
    let logs = chain.unreached(first);
    let mut out = Unreached {
        checkpoint,
        block: first.pos,
        logs: logs.len() as u64,
        certain: first.certain,
        ..Unreached::default()
    };
    let mut any = logs.iter().any(synced);
    for log in chain.begun(first).iter().chain(&logs) {
        out.note(r, log);
    }
    for broken in &chain.broken {
        let head = r.block(BlockNr(broken.pos)).ok().and_then(|b| summary::Header::parse(&r.g, &b).ok());
        let log = head.map(|header| Log { pos: BlockNr(broken.pos), header });
        // What lies behind the newest whole log may be of an earlier use of the segment.
        let own = |log: &Log| log.header.seq.get() == broken.seq && log.end() <= broken.end;
        match log.filter(|log| r.g.holds(log.pos) && own(log)) {
            Some(log) if out.note(r, &log) => any |= synced(&log),
            _ => {
                // Before other synced data there was some, or what led to it.
                any |= chain.logs.get(broken.behind..).unwrap_or_default().iter().any(synced);
                out.unknown = true;
            }
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
        if log.header.cno.get() > self.checkpoint.saturating_add(1) {
            self.later += 1;
            return true;
        }
        let made = log.header.create.get();
        let (first, last) = self.written.unwrap_or((made, made));
        self.written = Some((first.min(made), last.max(made)));
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

impl Unreached {
    /// The files that are named: of more it is said how many there are.
    pub fn named(&self) -> impl Iterator<Item = (u64, &[Range<u64>])> {
        self.files.iter().take(FILES).map(|(ino, parts)| (*ino, parts.as_slice()))
    }

    /// In a sentence, with the name of each file, and `written` behind what does not verify.
    pub fn told(&self, name: impl Fn(u64) -> String, written: &str) -> String {
        let Unreached { checkpoint, block, logs, .. } = self;
        let broken = match logs {
            0 => format!("the log at block {block} does not verify"),
            1 => format!(
                "the log at block {block} does not verify, and no mount comes to the whole log behind it"
            ),
            n => format!(
                "the log at block {block} does not verify, and no mount comes to the {n} whole logs behind it"
            ),
        };
        let (is, cut) = if self.certain {
            ("is", "")
        } else {
            // Nothing else is left to tell what is torn from what was damaged.
            (
                "may be",
                "; a power cut in the midst of a sync leaves that, and then nobody was told that it was done",
            )
        };
        let mut out = format!("synced data behind checkpoint {checkpoint} {is} lost: {broken}{cut}");
        out += written;
        for (ino, parts) in self.named() {
            let parts: Vec<_> = parts.iter().map(|p| format!("{} to {}", p.start, p.end - 1)).collect();
            out += &format!("; {}: bytes {}", name(ino), parts.join(", "));
        }
        if self.files.len() > FILES {
            out += &format!("; and {} more files", self.files.len() - FILES);
        }
        if self.later > 0 {
            out += "; and what was synced when a later checkpoint was there";
        }
        if self.unknown {
            out += "; of what its own log held nothing is known";
        }
        out
    }
}

impl Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.told(|ino| format!("inode {ino}"), ""))
    }
}
