//! The volume as its newest checkpoint describes it: which segments hold logs, and which blocks somebody needs.
//!
//! A block is needed if the DAT names it for a checkpoint that exists (spec 13.4), if it is the DAT's own, or if a mount
//! reads its log on the way to the newest super root. What of the tables cannot be read makes more needed, never less.
//!
//! Memory: a bit or two a block that is needed, some 30 bytes a block of the DAT and as many a segment in use, 8 bytes a
//! checkpoint.

use std::collections::BTreeMap;

use silt_device::Device;
use silt_format::dat::{DatEntry, LIVE};
use silt_format::palloc::{Kind, Layout};
use silt_format::segment_usage::{self, SuEntry};
use silt_format::summary::{Header, SR};
use silt_format::super_block::{self, STATE_VALID, SuperBlock};
use silt_format::super_root::SuperRoot;
use silt_format::{BlockNr, Cno, SegNr, checkpoint};

use crate::Error;
use crate::chain::{self, Chain};
use crate::check::LogPosition;
use crate::dat::Dat;
use crate::files;
use crate::reader::Reader;
use crate::scrub::needed::Needed;
use crate::scrub::syndrome::{self, Place};
use crate::scrub::{Options, Unpaced, whole};
use crate::search::{self, Log};
use crate::tree::Tree;

/// Bytes of blocks kept in memory.
const CACHE: usize = 16 << 20;

/// What is known of the volume.
pub(crate) struct View<'a> {
    pub r: Reader<'a>,
    pub uuid: [u8; 16],
    /// The log with the newest super root.
    pub latest: Log,
    pub cno: u64,
    pub root: SuperRoot,
    pub dat: Dat,
    pub needed: Needed,
    /// Used blocks of each segment that holds logs, from its first block on.
    pub used: BTreeMap<u64, u64>,
    /// (Sequence number, block) of the logs that the copies of the super block name.
    cursors: Vec<(u64, u64)>,
    /// Checkpoints that keep blocks, ascending.
    checkpoints: Vec<u64>,
    /// Logs behind the newest checkpoint, where the volume was not cleanly unmounted.
    pub chain: Chain,
    /// Those that a mount needs, or would if they were whole: (first block, block behind).
    tail: Vec<(u64, u64)>,
    /// What of the tables could not be read, in sentences.
    pub problems: Vec<String>,
}

/// Where the newest super root was found.
struct Found<'a> {
    r: Reader<'a>,
    uuid: [u8; 16],
    /// With what a mount comes to behind it.
    newest: search::Found,
    root: SuperRoot,
    /// The logs that the copies of the super block name, as (sequence number, block).
    cursors: Vec<(u64, u64)>,
    /// Logs behind it do not count.
    clean: bool,
    problem: Option<String>,
}

/// The newest super root as far as a scrub can trust it: the log that the super block names counts with a sound super
/// root alone, since a scrub is there to tell what else is wrong with it.
///
/// Where `newest` is known, and its super root is sound, it is that.
fn find(device: &dyn Device, newest: Option<LogPosition>) -> Result<Found<'_>, Error> {
    let (first, second) = search::super_blocks(device);
    let copies = super_block::choose(first, second, device.len())?;
    let g = copies.first.1.geometry(device.len())?;
    let r = Reader::new(device, g, CACHE);
    let uuid = copies.first.1.uuid;
    let mut all = vec![copies.first.1];
    all.extend(copies.second.map(|(_, sb)| sb).filter(|sb| {
        sb.uuid == uuid && sb.geometry(device.len()).is_ok_and(|o| o.block_size == g.block_size)
    }));
    let cursors = all.iter().map(|sb| (sb.last_seq.get(), sb.last_pseg.get())).collect();
    let known = newest.and_then(|n| Some((lenient(&r, BlockNr(n.block), n.sequence)?, n.checkpoint)));
    if let Some(((latest, root), cno)) = known {
        let newest = behind(&r, latest, cno);
        // By now there may be a newer one.
        let newest = if newest.newer > 0 { search::Found::of(latest, cno) } else { newest };
        return Ok(Found { r, uuid, newest, root, cursors, clean: false, problem: None });
    }
    let mut problem = None;
    for (i, sb) in all.iter().enumerate() {
        let clean = i == 0 && sb.state.get() & STATE_VALID != 0;
        let strict = |sb: &SuperBlock| {
            let found = search::search(&r, sb, !clean).ok().flatten()?;
            let root = SuperRoot::parse(&g, &r.block(BlockNr(found.latest.end() - 1)).ok()?).ok()?;
            Some((found, root))
        };
        let found = strict(sb).or_else(|| {
            let (log, root) = lenient(&r, BlockNr(sb.last_pseg.get()), sb.last_seq.get())?;
            let cno = sb.last_cno.get();
            if clean {
                return Some((search::Found::of(log, cno), root));
            }
            let newer = behind(&r, log, cno);
            if newer.newer == 0 {
                return Some((newer, root));
            }
            let newest = r.block(BlockNr(newer.latest.end() - 1)).ok();
            let newest = newest.and_then(|b| SuperRoot::parse(&g, &b).ok());
            Some(newest.map_or((search::Found::of(log, cno), root), |root| (newer, root)))
        });
        if let Some((newest, root)) = found {
            return Ok(Found { r, uuid, newest, root, cursors, clean, problem });
        }
        problem = Some(format!("the newest checkpoint ({}) has no super root that can be read", sb.last_cno));
    }
    Err(Error::Damaged("no super root was found".into()))
}

/// What a mount comes to from a log with a super root on. What cannot be read ends the way: what comes before it counts.
fn behind(r: &Reader<'_>, from: Log, cno: u64) -> search::Found {
    let mut found = search::Found::of(from, cno);
    let _ = search::behind(r, &mut found);
    found
}

/// The log that a super block, or who has the volume, names, if its super root is sound, or would be without one flipped
/// bit.
fn lenient(r: &Reader<'_>, pos: BlockNr, seq: u64) -> Option<(Log, SuperRoot)> {
    let g = &r.g;
    if !g.holds(pos) {
        return None;
    }
    let end = g.segment_end(g.segment_of(pos)).0;
    let header = r.block(pos).ok().and_then(|b| Header::parse(g, &b).ok());
    if let Some(header) = header.filter(|h| h.has(SR) && h.seq.get() == seq) {
        let log = Log { pos, header };
        if log.end() <= end
            && let Some(root) = root_of(r, &log)
        {
            return Some((log, root));
        }
    }
    // Its head is damaged: the first super root behind it is its own.
    for block in pos.0 + 1..end {
        if let Some(root) = r.block(BlockNr(block)).ok().and_then(|b| SuperRoot::parse(g, &b).ok()) {
            let mut header = Header::zeroed();
            header.seq = seq.into();
            header.nblocks = u32::try_from(block + 1 - pos.0).ok()?.into();
            return Some((Log { pos, header }, root));
        }
    }
    None
}

fn root_of(r: &Reader<'_>, log: &Log) -> Option<SuperRoot> {
    let last = log.end() - 1;
    let mut bytes = r.block(BlockNr(last)).ok()?.to_vec();
    if let Ok(root) = SuperRoot::parse(&r.g, &bytes) {
        return Some(root);
    }
    let whole = whole::read(r, log.pos.0, log.nblocks(), None, &Unpaced).ok()?;
    let length = (log.nblocks() << r.g.block_bits) - 4;
    let Some(Place::Message(byte, bit)) = syndrome::flipped_bit(whole.stored, whole.computed, length) else {
        return None;
    };
    let at = (byte + 4).checked_sub((last - log.pos.0) << r.g.block_bits)?;
    *bytes.get_mut(usize::try_from(at).ok()?)? ^= 1 << bit;
    SuperRoot::parse(&r.g, &bytes).ok()
}

impl<'a> View<'a> {
    /// Reads the tables. `newest` is the newest log with a super root, if that is known. Errors: no volume, no super root.
    pub fn load(
        device: &'a dyn Device,
        options: &Options,
        newest: Option<LogPosition>,
    ) -> Result<Self, Error> {
        let Found { r, uuid, newest, root, cursors, clean, problem } = find(device, newest)?;
        let (latest, cno) = (newest.latest, newest.cno);
        // Of a volume that somebody writes to what does not verify there is on its way; synced data becomes part of the next
        // checkpoint.
        let chain = if clean || options.changing { Chain::default() } else { chain::follow(&r, &newest) };
        let synced = search::complete(&newest).map(|log| (log.pos.0, log.end())).collect();
        let mut problems: Vec<String> = problem.into_iter().collect();
        let known = problems.len();
        let dat = Dat::load(&r, &root.dat, |invariant, place, what| {
            if invariant.severity == crate::Severity::Error && problems.len() == known {
                problems.push(format!("the table of block addresses cannot be read whole: {place}: {what}"));
            }
        });
        let mut view = View {
            uuid,
            latest,
            cno,
            root,
            dat,
            needed: Needed::default(),
            used: BTreeMap::new(),
            cursors,
            checkpoints: Vec::new(),
            chain,
            tail: synced,
            problems,
            r,
        };
        let unknown = view.problems.len() > known;
        let every = !view.read_checkpoints(options.live_only);
        view.read_usage();
        let whole = view.read_needed(every);
        view.read_tail();
        if unknown || !whole {
            view.needed.set_all();
        }
        Ok(view)
    }

    /// Whether all checkpoints are known.
    fn read_checkpoints(&mut self, live_only: bool) -> bool {
        let g = self.r.g;
        let (blocks, mut wrong) = files::plain(&self.r, &self.dat, &self.root.cpfile);
        for (offset, block) in blocks {
            let bytes = match self.r.block(BlockNr(block)) {
                Ok(bytes) => bytes,
                Err(e) => {
                    wrong.get_or_insert(e);
                    continue;
                }
            };
            for slot in 0..checkpoint::per_block(&g) {
                let byte = usize::try_from(slot).unwrap_or(0) * g.checkpoint_size as usize;
                let (Ok(entry), Some(cno)) =
                    (checkpoint::entry(&bytes, byte), checkpoint::cno_at(&g, offset, slot))
                else {
                    continue;
                };
                let kept = !live_only || entry.is_snapshot() || cno.0 == self.cno;
                if !entry.is_invalid() && cno.0 <= self.cno && kept {
                    self.checkpoints.push(cno.0);
                }
            }
        }
        self.checkpoints.push(self.cno);
        self.checkpoints.sort_unstable();
        self.checkpoints.dedup();
        self.problems
            .extend(wrong.iter().map(|e| format!("the table of checkpoints cannot be read whole: {e}")));
        wrong.is_none()
    }

    fn read_usage(&mut self) {
        let g = self.r.g;
        let (blocks, mut wrong) = files::plain(&self.r, &self.dat, &self.root.sufile);
        let (per_block, first) = (segment_usage::per_block(&g), segment_usage::first_offset(&g));
        for (offset, block) in blocks {
            let bytes = match self.r.block(BlockNr(block)) {
                Ok(bytes) => bytes,
                Err(e) => {
                    wrong.get_or_insert(e);
                    continue;
                }
            };
            for slot in 0..per_block {
                let index = offset.checked_mul(per_block).and_then(|i| i.checked_add(slot));
                let Some(segment) = index.and_then(|i| i.checked_sub(first)) else { continue };
                let byte = usize::try_from(slot).unwrap_or(0) * g.segment_usage_size as usize;
                let Ok(entry) = SuEntry::read(&bytes, byte) else { continue };
                if segment < g.nsegments && entry.is_dirty() && entry.nblocks.get() > 0 {
                    let blocks = u64::from(entry.nblocks.get()).min(g.segment_blocks(SegNr(segment)));
                    self.used.insert(segment, blocks);
                }
            }
        }
        self.problems
            .extend(wrong.iter().map(|e| format!("the table of segments cannot be read whole: {e}")));
        // Where the newest log ends is known without the table.
        self.uses(self.latest.end() - 1);
        for (_, pos) in self.cursors.clone() {
            if !g.holds(BlockNr(pos)) {
                continue;
            }
            let header = self.r.block(BlockNr(pos)).ok().and_then(|b| Header::parse(&g, &b).ok());
            let end = g.segment_end(g.segment_of(BlockNr(pos))).0;
            let behind = header.map_or(pos + 1, |h| pos + u64::from(h.nblocks.get()));
            self.uses(behind.min(end) - 1);
        }
    }

    /// Logs behind the newest checkpoint are needed, too.
    fn read_tail(&mut self) {
        // Of what left nothing there is nothing to look at.
        self.tail.extend(self.chain.broken.iter().filter(|b| !b.bare).map(|b| (b.pos, b.end)));
        self.tail.sort_unstable();
        for (pos, end) in self.tail.clone() {
            (pos..end).for_each(|block| self.needed.insert(block));
            self.uses(end - 1);
        }
    }

    /// Whether a block lies in a log behind the newest checkpoint that counts.
    pub fn is_behind(&self, block: u64) -> bool {
        let next = self.tail.partition_point(|(pos, _)| *pos <= block);
        next.checked_sub(1).and_then(|i| self.tail.get(i)).is_some_and(|(_, end)| block < *end)
    }

    /// Whether a log that does not verify may be what a power cut left of a write.
    pub fn may_be_torn(&self, pos: u64) -> bool {
        self.chain.broken.iter().any(|b| b.pos == pos && !b.certain)
    }

    /// A block lies in the used part of its segment.
    fn uses(&mut self, block: u64) {
        let segment = self.r.g.segment_of(BlockNr(block));
        let fill = (block + 1).saturating_sub(self.r.g.segment_start(segment).0);
        let used = self.used.entry(segment.0).or_default();
        *used = fill.max(*used);
    }

    /// Fills the set of needed blocks; whether the whole DAT could be read. `every`: every allocated entry counts.
    fn read_needed(&mut self, every: bool) -> bool {
        let g = self.r.g;
        let mut needed = Needed::default();
        self.dat.blocks.values().chain(self.dat.nodes.keys()).for_each(|block| needed.insert(*block));
        let whole = self.for_each_entry(|_, entry| {
            if g.holds(BlockNr(entry.blocknr.get())) && (every || self.is_kept(entry)) {
                needed.insert(entry.blocknr.get());
            }
        });
        self.needed = needed;
        // A segment that the table has wrong is looked at all the same.
        let last = g.end_block();
        let mut at = 0;
        loop {
            let Some(block) = self.needed.known(at..last).next() else { break };
            let end = g.segment_end(g.segment_of(BlockNr(block))).0;
            self.uses(self.needed.last(block..end).unwrap_or(block));
            at = end;
        }
        if let Err(e) = &whole {
            self.problems.push(format!("the table of block addresses cannot be read whole: {e}"));
        }
        whole.is_ok()
    }

    /// Whether a checkpoint that counts has what the entry describes.
    pub fn is_kept(&self, entry: &DatEntry) -> bool {
        let (start, end) = (entry.start.get(), entry.end.get());
        if end == LIVE {
            return true;
        }
        let next = self.checkpoints.partition_point(|c| *c < start);
        self.checkpoints.get(next).is_some_and(|c| *c < end)
    }

    /// Calls `f` for every allocated entry of the DAT that can be read; the first error, if there was one.
    pub fn for_each_entry(&self, mut f: impl FnMut(u64, &DatEntry)) -> Result<(), String> {
        let layout = &self.dat.layout;
        let size = self.r.g.dat_entry_size as usize;
        let mut wrong = Ok(());
        for (offset, block) in &self.dat.blocks {
            let Kind::Entries { first } = layout.kind(*offset) else { continue };
            let bytes = match self.r.block(BlockNr(*block)) {
                Ok(bytes) => bytes,
                Err(e) => {
                    wrong = Err(e);
                    continue;
                }
            };
            for i in 0..layout.entries_per_block() {
                let Some(v) = first.checked_add(i) else { break };
                match self.dat.is_allocated(&self.r, v) {
                    Ok(true) => {}
                    Ok(false) => continue,
                    Err(e) => {
                        wrong = Err(e);
                        break;
                    }
                }
                let byte = usize::try_from(i).unwrap_or(0) * size;
                if let Ok(entry) = DatEntry::read(&bytes, byte) {
                    f(v, &entry);
                }
            }
        }
        wrong
    }

    /// Whether mounting needs the log at `block`: a super block names it, or it lies between the newest of those and
    /// the newest super root.
    pub fn is_on_the_way(&self, seq: u64, block: u64) -> bool {
        let newest = (self.latest.header.seq.get(), self.latest.pos.0);
        let first = self.cursors.iter().copied().max().unwrap_or(newest);
        let named = self.cursors.iter().any(|(_, pos)| *pos == block);
        named || self.tail.iter().any(|(pos, _)| *pos == block) || (first..=newest).contains(&(seq, block))
    }
}

/// The newest tree, damaged or not: for names. None where its beginning cannot be read.
pub(crate) fn tree<'a>(view: &View<'_>, device: &'a dyn Device) -> Option<Tree<'a>> {
    let r = Reader::new(device, view.r.g, CACHE);
    let dat = Dat::load(&r, &view.root.dat, |_, _, _| {});
    let (cpfile, _) = files::plain(&r, &dat, &view.root.cpfile);
    let (block, byte) = checkpoint::place(&r.g, Cno(view.cno)).ok()?;
    let entry = checkpoint::entry(&r.block(BlockNr(*cpfile.get(&block)?)).ok()?, byte).ok()?;
    let (ifile, _) = files::plain(&r, &dat, &entry.ifile_inode);
    let layout = Layout::ifile(&r.g);
    Some(Tree { r, dat, layout, cno: view.cno, ifile, overlay: BTreeMap::new() })
}
