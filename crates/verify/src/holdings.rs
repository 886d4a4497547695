//! Who holds the blocks of a volume, counted from the logs: an independent count to hold accounts of space against.
//!
//! Every log of every segment in use is read. What its records say lies where it does is looked up in the DAT, and held
//! against plain lists of checkpoints. The segment file says what becomes of the rest.
//!
//! For tests: time grows with the number of old blocks times that of moments. Memory: what the DAT takes (16 bytes a block
//! of it) and 40 bytes a segment in use.

use std::collections::BTreeMap;

use silt_device::Device;
use silt_format::checkpoint;
use silt_format::dat::LIVE;
use silt_format::segment_usage::{DIRTY, ERROR};
use silt_format::summary::Header;
use silt_format::super_root::SuperRoot;
use silt_format::{BlockNr, Cno, Geometry, Ino, SegNr};

use crate::check::{Way, find_root};
use crate::context::Context;
use crate::dat::{Dat, DatState};
use crate::files;
use crate::records::{self, Record};
use crate::report::Sink;
use crate::search::{self, Log};
use crate::segments::{self, Segments};
use crate::shared::Shared;
use crate::{Options, Unwatched};

/// Checkpoints that are kept besides snapshots.
#[derive(Debug, Clone, Copy, Default)]
pub struct Kept<'a> {
    /// By retention.
    pub retention: &'a [u64],
    /// By retention, an hour later.
    pub soon: &'a [u64],
    /// By retention, whatever comes.
    pub firm: &'a [u64],
    /// By mounts.
    pub mounted: &'a [u64],
}

/// Blocks by who holds them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holdings {
    /// The newest checkpoint.
    pub checkpoint: u64,
    pub live: u64,
    pub history: u64,
    pub history_soon: u64,
    pub history_shared: u64,
    pub history_loose: u64,
    pub snapshots: u64,
    /// What each snapshot alone holds.
    pub alone: BTreeMap<u64, u64>,
    /// Of the history: what each snapshot alone holds once only the floor is left of that.
    pub left_to: BTreeMap<u64, u64>,
    pub mounted: u64,
    pub metadata: u64,
    /// Held by nobody: in segments in use, in the two of the log, in bad and in clean ones.
    pub reclaimable: u64,
    pub log: u64,
    pub bad: u64,
    pub clean: u64,
    /// Outside of the segments.
    pub outside: u64,
    /// Of each segment that is not clean, how many of its blocks nobody holds.
    pub unheld: BTreeMap<u64, u64>,
    /// Of each such segment, its blocks up to the end of its last log.
    pub written: BTreeMap<u64, u64>,
    geometry: Option<Geometry>,
}

impl Holdings {
    /// Blocks of a segment.
    pub fn segment_blocks(&self, segment: u64) -> u64 {
        self.geometry.map_or(0, |g| g.segment_blocks(SegNr(segment)))
    }
}

fn any(list: &[u64], start: u64, end: u64) -> bool {
    list.iter().any(|c| start <= *c && *c < end)
}

/// Counts on a volume that nobody writes to. An error says in words why that cannot be done: this is no check.
pub fn holdings(device: &dyn Device, kept: Kept<'_>) -> Result<Holdings, String> {
    let out = Sink::new(false, 1);
    let options = Options::default();
    let c = context(device, &out, &options)?;
    let all = listed(&c)?;
    let snapshots: Vec<u64> = all.iter().filter(|c| c.snapshot).map(|c| c.number).collect();
    let mut count = Holdings { checkpoint: c.cno, ..Holdings::default() };
    count.alone = snapshots.iter().map(|s| (*s, 0)).collect();
    count.left_to = count.alone.clone();
    let mut held: BTreeMap<u64, u64> = BTreeMap::new();
    let g = c.r.g;
    let mut hold = |block: u64| *held.entry(g.segment_of(BlockNr(block)).0).or_default() += 1;
    for block in c.dat.blocks.values().chain(c.dat.nodes.keys()) {
        count.metadata += 1;
        hold(*block);
    }
    // The ends of the newest log.
    for block in (0..u64::from(c.latest.header.summary_blocks(&g))).map(|n| c.latest.pos.0 + n) {
        count.metadata += 1;
        hold(block);
    }
    count.metadata += 1;
    hold(c.latest.end() - 1);
    for segment in c.segments.used.keys() {
        let end = for_each_record(&c, *segment, |ino, vblock, block| {
            if !c.dat.is_allocated(&c.r, vblock)? {
                return Ok(());
            }
            let Some(entry) = c.dat.entry(&c.r, vblock)? else { return Ok(()) };
            let (start, end) = (entry.start.get(), entry.end.get());
            if entry.blocknr.get() != block {
                return Ok(());
            }
            let own: Vec<u64> = snapshots.iter().copied().filter(|s| start <= *s && *s < end).collect();
            let mounted = any(kept.mounted, start, end);
            if end == LIVE || (start <= c.cno && c.cno < end) {
                let table = [Ino::IFILE, Ino::CPFILE, Ino::SUFILE].contains(&Ino(ino));
                *(if table { &mut count.metadata } else { &mut count.live }) += 1;
            } else if any(kept.retention, start, end) {
                count.history += 1;
                count.history_shared += u64::from(!own.is_empty());
                let loose = own.is_empty() && !mounted && !any(kept.firm, start, end);
                count.history_loose += u64::from(loose);
                count.history_soon += u64::from(own.is_empty() && !mounted && !any(kept.soon, start, end));
                if let ([one], false, false) = (&own[..], mounted, any(kept.firm, start, end)) {
                    *count.left_to.entry(*one).or_default() += 1;
                }
            } else if !own.is_empty() {
                count.snapshots += 1;
                if let ([one], false) = (&own[..], mounted) {
                    *count.alone.entry(*one).or_default() += 1;
                }
            } else if mounted {
                count.mounted += 1;
            } else {
                return Ok(());
            }
            hold(block);
            Ok(())
        })?;
        count.written.insert(*segment, end - g.segment_start(SegNr(*segment)).0);
    }
    rest(&c, &held, &mut count);
    count.geometry = Some(g);
    count.outside = (device.len() >> g.block_bits).saturating_sub(g.end_block() - g.first_data_block);
    Ok(count)
}

fn context<'a>(device: &'a dyn Device, out: &'a Sink, options: &'a Options) -> Result<Context<'a>, String> {
    let Way { r, found, .. } = find_root(device, options, out).ok_or("no super root is found")?;
    let root =
        SuperRoot::parse(&r.g, &r.block(BlockNr(found.latest.end() - 1))?).map_err(|e| e.to_string())?;
    let dat = Dat::load(&r, &root.dat, |_, _, _| {});
    let (dat_state, segments, shared) = (DatState::default(), Segments::default(), Shared::default());
    let (cno, latest, watch) = (found.cno, found.latest, &Unwatched);
    let mut c = Context { r, out, watch, options, cno, latest, root, dat, dat_state, segments, shared };
    let (blocks, wrong) = files::plain(&c.r, &c.dat, &c.root.sufile);
    if let Some(wrong) = wrong {
        return Err(format!("sufile: {wrong}"));
    }
    segments::check(&mut c, &blocks.into_iter().collect::<Vec<_>>(), false);
    Ok(c)
}

/// A checkpoint as its entry has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    pub number: u64,
    /// Seconds since 1970.
    pub created: u64,
    pub snapshot: bool,
    pub minor: bool,
    /// Blocks that its logs wrote.
    pub written: u64,
}

/// The checkpoints of a volume that nobody writes to, ascending.
pub fn checkpoints(device: &dyn Device) -> Result<Vec<Listed>, String> {
    let (out, options) = (Sink::new(false, 1), Options::default());
    listed(&context(device, &out, &options)?)
}

/// What nobody holds, by the state of its segment.
fn rest(c: &Context<'_>, held: &BTreeMap<u64, u64>, count: &mut Holdings) {
    let g = &c.r.g;
    let current = g.segment_of(c.latest.pos).0;
    let next = g.segment_of(BlockNr(c.latest.header.next.get())).0;
    for segment in 0..g.nsegments {
        let unheld = g.segment_blocks(SegNr(segment)) - held.get(&segment).copied().unwrap_or(0);
        let flags = c.segments.used.get(&segment).map_or(0, |u| u.flags);
        let class = match flags {
            f if f & ERROR != 0 => &mut count.bad,
            _ if segment == current || segment == next => &mut count.log,
            f if f & DIRTY != 0 => &mut count.reclaimable,
            _ => &mut count.clean,
        };
        *class += unheld;
        if flags != 0 {
            count.unheld.insert(segment, unheld);
        }
    }
}

/// Checkpoints that there are, by the entries in the checkpoint file.
fn listed(c: &Context<'_>) -> Result<Vec<Listed>, String> {
    let g = &c.r.g;
    let (blocks, wrong) = files::plain(&c.r, &c.dat, &c.root.cpfile);
    if let Some(wrong) = wrong {
        return Err(format!("cpfile: {wrong}"));
    }
    let mut found = Vec::new();
    for (offset, block) in blocks {
        let bytes = c.r.block(BlockNr(block))?;
        for slot in 0..checkpoint::per_block(g) {
            let byte = usize::try_from(slot).unwrap_or(0) * g.checkpoint_size as usize;
            let (Ok(entry), Some(Cno(number))) =
                (checkpoint::entry(&bytes, byte), checkpoint::cno_at(g, offset, slot))
            else {
                continue;
            };
            if !entry.is_invalid() && number <= c.cno {
                let (created, written) = (entry.create.get(), entry.nblk_inc.get());
                let (snapshot, minor) = (entry.is_snapshot(), entry.is_minor());
                found.push(Listed { number, created, snapshot, minor, written });
            }
        }
    }
    Ok(found)
}

/// Calls `f` with inode, number and place of every block with a number that a segment's logs describe; where the last log
/// ends.
fn for_each_record(
    c: &Context<'_>,
    segment: u64,
    mut f: impl FnMut(u64, u64, u64) -> Result<(), String>,
) -> Result<u64, String> {
    let g = c.r.g;
    let mut at = g.segment_start(SegNr(segment)).0;
    let Some(usage) = c.segments.used.get(&segment) else { return Ok(at) };
    let end = at + usage.nblocks;
    let mut sequence = None;
    while at < end {
        let Ok(header) = Header::parse(&g, &c.r.block(BlockNr(at))?) else { return Ok(at) };
        let log = Log { pos: BlockNr(at), header };
        if *sequence.get_or_insert(header.seq.get()) != header.seq.get() || log.end() > end {
            return Ok(at);
        }
        if header.summary_blocks(&g) as usize > search::SUMMARY_LIMIT / g.bs() {
            return Err(format!("log at block {at}: a summary of {} bytes", header.sumbytes));
        }
        let summary = search::summary_of(&c.r, &log)?;
        let first = at + u64::from(header.summary_blocks(&g));
        let mut result = Ok(());
        let each = |ino, _, record, index| {
            if let Record::Data { vblock, .. } | Record::Node { vblock } = record
                && result.is_ok()
            {
                result = f(ino, vblock, first + index);
            }
        };
        records::walk(&g, &header, &summary, each, |_, _| {});
        result?;
        at = log.end();
    }
    Ok(at)
}
