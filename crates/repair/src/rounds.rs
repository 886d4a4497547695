//! Which mend comes next.

mod doing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use silt_device::{Device, Overlay};
use silt_engine::OpenOptions;
use silt_engine::mend::{self, Known, Wounds};
use silt_format::Geometry;
use silt_verify::{Options as CheckOptions, Report, Severity, Watch, check_watched};

use crate::{Error, Options, Result, classes, past, supers, tables, tree};

/// Findings looked at of each kind in a round; what is more waits for the next one.
const FINDINGS: usize = 50_000;
/// Bytes of segments that are emptied at once: what is wanted of them is in memory until it is written.
const AT_ONCE: u64 = 256 << 20;
/// How often tables and logs are tried again when nothing else is left.
const AGAIN: u32 = 3;
/// Free segments below which a round does as little as it can.
const TIGHT: u64 = 8;
/// How often it is tried to empty a segment.
const TRIES: u32 = 3;

/// Tells the stages of a plan, not those of each check.
struct Quiet<'a>(&'a dyn Watch);

impl Watch for Quiet<'_> {
    fn stop(&self) -> bool {
        self.0.stop()
    }
}

/// What a round is about; each begins where the ones before it find nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Of segments that lie over others.
    Twins,
    Supers,
    /// Of what does not verify and has a whole copy.
    Copies,
    /// Of the newest checkpoint's tree.
    Root,
    Tables(Stage),
    Tree,
    /// Synced data behind the newest checkpoint, once what it belongs to is mended.
    Synced,
    Logs,
    /// Of blocks in the place of which other ones lie.
    Overwritten,
    /// Of segments that hold copies of what lies elsewhere.
    Stale,
    /// Of those that cannot be emptied: they are marked as bad.
    Bad,
    /// Of what a rescue reads and is not there.
    Rescued,
    PastTrees,
    Past,
    Back,
    /// Of a checkpoint, written where no other driver goes on behind a damaged log.
    Anew,
    Flag,
}

impl Kind {
    /// Whether segments are emptied in such a round.
    pub fn empties(self) -> bool {
        matches!(self, Kind::Logs | Kind::Overwritten | Kind::Stale)
    }

    /// Whether such a round may find that there is nothing to do, and leaves all as it was.
    pub fn may_be_idle(self) -> bool {
        self.empties() || matches!(self, Kind::Copies | Kind::Rescued)
    }
}

/// Metadata, in the order in which one rests on the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Of the current inode file, before all others.
    Bits,
    Translation,
    Nodes,
    Checkpoints,
    Rest,
}

impl Stage {
    const ALL: [Stage; 4] = [Stage::Translation, Stage::Nodes, Stage::Checkpoints, Stage::Rest];
}

/// A round.
pub(crate) struct Step {
    pub kind: Kind,
    /// What kinds of mend, and how many findings each is for.
    pub classes: BTreeMap<&'static str, u64>,
    wounds: Wounds,
    tree: tree::Work,
    past: Vec<past::Past>,
    /// It mends fewer past trees than it would with more space.
    pub in_parts: bool,
}

impl Step {
    fn new(kind: Kind, findings: &[&silt_verify::Finding], wounds: Wounds, tree: tree::Work) -> Step {
        let mut classes = BTreeMap::new();
        for f in findings {
            // What lies there that cannot be read is of any kind.
            let class = if kind == Kind::Copies || kind.empties() { "log" } else { classes::of(f.id) };
            *classes.entry(class).or_insert(0) += 1;
        }
        Step { kind, classes, wounds, tree, past: Vec::new(), in_parts: false }
    }
}

/// How many segments may be in memory at once.
fn at_once(g: Option<&Geometry>) -> usize {
    let bytes = g.map_or(AT_ONCE, |g| u64::from(g.blocks_per_segment) << g.block_bits);
    usize::try_from(AT_ONCE / bytes.max(1)).unwrap_or(1).max(1)
}

/// What is known while a plan is made.
pub(crate) struct State<'a> {
    options: &'a Options,
    watch: &'a dyn Watch,
    overlay: Arc<Overlay>,
    /// What the rounds before know.
    pub known: Known,
    /// How often an inode was put back.
    tried: BTreeMap<u64, u32>,
    /// Kinds of round that change nothing any more.
    pub given_up: BTreeSet<Kind>,
    /// What was tried with past trees.
    past: past::Tries,
    /// Checkpoints that are kept with their damage.
    kept: BTreeSet<u64>,
    /// Checkpoints dropped so far.
    dropped: BTreeSet<u64>,
    /// Whether the newest whole checkpoint was kept.
    guarded: bool,
    /// Segments of which whole copies were looked for.
    copied: BTreeSet<u64>,
    /// How often counts and entries were tried again at the end.
    again: u32,
    /// How often it was tried to empty a segment.
    emptied: BTreeMap<u64, u32>,
    /// Of which nothing can be moved, as long as nothing else changes.
    stuck: BTreeSet<u64>,
    /// Of which all is given up that nothing maps.
    disowned: BTreeSet<u64>,
    /// There is no space for past trees that could be mended: no snapshot is dropped for that.
    pub plain_only: bool,
    /// Of what a rescue reads there was no space for everything: what fits is taken.
    what_fits: bool,
    /// Rounds that mended fewer past trees than they would have for want of space.
    pub in_parts: usize,
    /// So many past trees are mended at once.
    past_at_once: usize,
    /// Free segments below which rounds give back what they took.
    tight: u64,
    /// Whether space was taken back since the last round.
    roomed: bool,
    /// So many segments are emptied at once; less where there is no space for more.
    at_once: usize,
    /// Whether segments that lie in the place of others were looked for.
    spared: bool,
    /// Whether whole super roots that no mount comes to are taken.
    ahead: bool,
    /// The checkpoint that a mount came to, where one was.
    pub passed: Option<u64>,
    /// Inodes that the rounds so far tell of.
    pub told: BTreeSet<u64>,
    /// Of those, the ones that were put back to an older version or put together.
    pub put_back: BTreeSet<u64>,
    /// Errors that are left so far of the latest tree.
    pub left: usize,
    /// Whether a round so far may have lost something of the current tree.
    may_lose: bool,
}

impl<'a> State<'a> {
    /// At the beginning of a plan.
    pub fn new(
        options: &'a Options,
        watch: &'a dyn Watch,
        device: &Arc<dyn Device>,
        overlay: Arc<Overlay>,
        ahead: bool,
    ) -> Self {
        State {
            options,
            known: Known::of(device),
            watch,
            overlay,
            tried: BTreeMap::new(),
            given_up: BTreeSet::new(),
            past: past::Tries::default(),
            kept: BTreeSet::new(),
            dropped: BTreeSet::new(),
            guarded: false,
            copied: BTreeSet::new(),
            again: 0,
            emptied: BTreeMap::new(),
            stuck: BTreeSet::new(),
            disowned: BTreeSet::new(),
            plain_only: false,
            what_fits: false,
            in_parts: 0,
            past_at_once: usize::MAX,
            tight: TIGHT,
            roomed: false,
            at_once: usize::MAX,
            spared: false,
            ahead,
            passed: None,
            told: BTreeSet::new(),
            put_back: BTreeSet::new(),
            left: 0,
            may_lose: false,
        }
    }
}

impl State<'_> {
    /// Checks what there is so far, all checkpoints of it.
    pub fn check(&self) -> Result<Report> {
        self.check_of(&*self.overlay)
    }

    /// Past checkpoints that were mended so far, each once.
    pub fn past_mended(&self) -> usize {
        self.past.mended()
    }

    fn check_of(&self, device: &dyn Device) -> Result<Report> {
        let options = CheckOptions {
            all_checkpoints: true,
            findings_per_invariant: FINDINGS,
            cache_bytes: usize::try_from(self.options.cache_bytes).unwrap_or(64 << 20).max(1 << 20),
            ..CheckOptions::default()
        };
        let report = check_watched(device, &options, &Quiet(self.watch));
        if report.stopped { Err(Error::Stopped) } else { Ok(report) }
    }

    fn open_options(&self) -> OpenOptions {
        OpenOptions {
            cache_bytes: self.options.cache_bytes.max(1 << 20),
            now: self.options.now,
            seed: self.options.seed,
            ..OpenOptions::default()
        }
    }

    /// The newest checkpoint but the latest in which nothing is wrong.
    fn newest_whole(&self, report: &Report) -> Option<u64> {
        let wrong: BTreeSet<u64> = report.errors().filter_map(|f| f.place.cno).collect();
        let all = mend::checkpoints(self.overlay.clone()).unwrap_or_default();
        // A check looks at one of those that share a tree.
        let last = report.stats.last_cno;
        let bad: BTreeSet<_> =
            all.iter().filter(|(c, _)| **c == last || wrong.contains(c)).map(|(_, tree)| *tree).collect();
        all.iter().rev().find(|(c, tree)| **c < last && !bad.contains(*tree)).map(|(c, _)| *c)
    }

    /// The round in which synced data that was set aside is taken in, if there is any.
    pub fn synced_step(&mut self) -> Option<Step> {
        if self.known.aside.is_empty() || self.given_up.contains(&Kind::Synced) {
            return None;
        }
        let wounds = Wounds { take_in: true, ..Wounds::default() };
        let mut step = Step::new(Kind::Synced, &[], wounds, tree::Work::default());
        step.classes.insert("recovery", 0);
        Some(step)
    }

    /// Segments that lie over others.
    fn twins(&self) -> Vec<mend::Twin> {
        supers::geometry(&*self.overlay).map(|g| mend::twins(&*self.overlay, &g)).unwrap_or_default()
    }

    /// The next round, if there is anything to do.
    pub fn next(&mut self, report: &Report) -> Result<Option<Step>> {
        let found: Vec<_> = report.findings.iter().filter(|f| f.severity == Severity::Error).collect();
        let step = Step::new;
        let none = tree::Work::default;
        if !found.is_empty() && self.given_up.insert(Kind::Twins) && !self.twins().is_empty() {
            let mut step = step(Kind::Twins, &[], Wounds::default(), none());
            step.classes.insert("log", 1);
            return Ok(Some(step));
        }
        if let Some(g) = supers::geometry(&*self.overlay).filter(|_| !found.is_empty() && !self.spared) {
            self.known.spared = mend::misplaced(&*self.overlay, &g);
            self.spared = true;
        }
        let supers: Vec<_> =
            found.iter().copied().filter(|f| supers::is_about(f.id) && f.place.cno.is_none()).collect();
        if !supers.is_empty() && !self.given_up.contains(&Kind::Supers) {
            // Where nothing else is wrong, nothing has to be mended first.
            let wounds = Wounds { take_in: supers.len() == found.len(), ..Wounds::default() };
            return Ok(Some(step(Kind::Supers, &supers, wounds, none())));
        }
        let geometry = supers::geometry(&*self.overlay);
        let (segments, logs) = tables::segments(&found, geometry.as_ref());
        let copies = segments.difference(&self.copied).copied();
        let copies: BTreeSet<u64> = copies.take(at_once(geometry.as_ref())).collect();
        if !copies.is_empty() {
            self.copied.extend(&copies);
            return Ok(Some(step(Kind::Copies, &logs, Wounds { copies, ..Wounds::default() }, none())));
        }
        let root: Vec<_> = found
            .iter()
            .copied()
            .filter(|f| past::is_root(f) && f.place.cno == Some(report.stats.last_cno))
            .collect();
        let sound = past::table_is_sound(&found);
        if !root.is_empty() && sound && self.given_up.insert(Kind::Root) {
            let wounds = Wounds { ifile_root: true, ..Wounds::default() };
            return Ok(Some(step(Kind::Root, &root, wounds, none())));
        }
        let roots = |times, tries: &mut past::Tries| {
            let (past, mine) = past::roots(&found, report, tries, &self.kept, times);
            let step = step(Kind::PastTrees, &mine, Wounds::default(), none());
            (!past.is_empty()).then_some(Step { past, ..step })
        };
        if sound && let Some(step) = roots(1, &mut self.past) {
            return Ok(Some(step));
        }
        let (_, mut tables) = tables::wounds(&found, report, geometry.as_ref());
        if tree::is_open(&found, report) {
            // The blocks of an inode that cannot be understood are not lost yet.
            let lost = |f: &silt_verify::Finding| f.id == "dat-live-unmapped";
            tables.retain(|f| !lost(f));
        }
        // Bits of the inode file that are noise make files of what was deleted, and blocks seem to be theirs: those are
        // looked at when the bits are right.
        let of_ifile =
            |f: &silt_verify::Finding| f.place.ino == Some(6) && f.place.cno == Some(report.stats.last_cno);
        let counts: Vec<_> = tables
            .iter()
            .copied()
            .filter(|f| {
                of_ifile(f) && (f.id == "palloc-free-count" || tables::is_lost_bitmap(f, geometry.as_ref()))
            })
            .collect();
        if !counts.is_empty()
            && !found.iter().any(|f| tables::hides_inodes(f))
            && !self.given_up.contains(&Kind::Tables(Stage::Bits))
        {
            let (wounds, _) = tables::wounds(&counts, report, None);
            return Ok(Some(step(Kind::Tables(Stage::Bits), &counts, wounds, none())));
        }
        // What builds on a table is looked at when the table is right: till then its findings may be that table's.
        for stage in Stage::ALL {
            if stage == Stage::Checkpoints
                && let Some(step) = roots(2, &mut self.past)
            {
                return Ok(Some(step));
            }
            let mine: Vec<_> = tables.iter().copied().filter(|f| tables::stage(f) == stage).collect();
            if !mine.is_empty() && !self.given_up.contains(&Kind::Tables(stage)) {
                let (mut wounds, _) = tables::wounds(&mine, report, None);
                wounds.table_blocks = tables::noisy_bitmaps(&mine, geometry.as_ref());
                return Ok(Some(step(Kind::Tables(stage), &mine, wounds, none())));
            }
        }
        let (work, files) = tree::work(&found, report, geometry.as_ref(), &mut self.tried, self.options.cut);
        if !files.is_empty() && !self.given_up.contains(&Kind::Tree) {
            let keep = self.options.keep && self.kept.is_empty();
            if keep {
                self.kept.insert(report.stats.last_cno);
            }
            // What is lost now may be whole in an older checkpoint: a cleaner must not take it.
            let snapshot = if tree::may_lose(&work) && !std::mem::replace(&mut self.guarded, true) {
                self.newest_whole(report)
            } else {
                None
            };
            let wounds = tree::wounds(&work, keep, snapshot);
            return Ok(Some(step(Kind::Tree, &files, wounds, work)));
        }
        if let Some(step) = self.synced_step() {
            return Ok(Some(step));
        }
        let segments = self.next_to_empty(segments, geometry.as_ref());
        if !segments.is_empty() && !self.given_up.contains(&Kind::Logs) {
            return Ok(Some(step(
                Kind::Logs,
                &logs,
                Wounds { segments, zero_unreadable: self.options.zero_unreadable, ..Wounds::default() },
                none(),
            )));
        }
        let (segments, mine) = tables::overwritten(&found, geometry.as_ref());
        let segments = self.next_to_empty(segments, geometry.as_ref());
        if !segments.is_empty() && !self.given_up.contains(&Kind::Overwritten) {
            let wounds = Wounds { segments, ..Wounds::default() };
            return Ok(Some(step(Kind::Overwritten, &mine, wounds, none())));
        }
        let (segments, mine) = tables::stale(&found, geometry.as_ref());
        let segments = self.next_to_empty(segments, geometry.as_ref());
        if !segments.is_empty() && !self.given_up.contains(&Kind::Stale) {
            let wounds = Wounds { segments, ..Wounds::default() };
            return Ok(Some(step(Kind::Stale, &mine, wounds, none())));
        }
        if self.may_lose && self.given_up.insert(Kind::Rescued) {
            let mut step = step(Kind::Rescued, &[], Wounds::default(), none());
            step.classes.insert("rescued", 0);
            return Ok(Some(step));
        }
        if !self.given_up.contains(&Kind::PastTrees) {
            // Each is a checkpoint, or some.
            let at_once = self.past_at_once;
            let in_parts = at_once < usize::MAX;
            let cut = self.options.cut;
            let (past, mine) =
                past::works(&found, report, geometry.as_ref(), &mut self.past, &self.kept, cut, at_once);
            if !past.is_empty() {
                self.in_parts += usize::from(in_parts);
                let step = step(Kind::PastTrees, &mine, Wounds::default(), none());
                return Ok(Some(Step { past, in_parts, ..step }));
            }
        }
        let (drop, past) = tables::past(
            &found,
            report,
            self.options.drop_snapshots && !self.plain_only,
            &self.kept,
            &self.overlay,
        );
        let new = drop.iter().any(|c| !self.dropped.contains(c));
        self.dropped.extend(&drop);
        if new && !self.given_up.contains(&Kind::Past) {
            return Ok(Some(step(
                Kind::Past,
                &past,
                Wounds { drop, checkpoints: true, ..Wounds::default() },
                none(),
            )));
        }
        if let Some(c) = self.options.to_checkpoint
            && self.given_up.insert(Kind::Back)
        {
            let wounds = Wounds { back: Some(c), keep: true, checkpoints: false, ..Wounds::default() };
            let mut step = step(Kind::Back, &[], wounds, none());
            step.classes.insert("roll-back", 0);
            return Ok(Some(step));
        }
        // What was given up because other things hindered it.
        let left = Stage::ALL.iter().find_map(|stage| {
            let mine: Vec<_> = tables.iter().copied().filter(|f| tables::stage(f) == *stage).collect();
            (!mine.is_empty()).then_some((*stage, mine))
        });
        if let Some((stage, mine)) = left.filter(|_| self.again < AGAIN) {
            self.again += 1;
            let (wounds, _) = tables::wounds(&mine, report, None);
            return Ok(Some(step(Kind::Tables(stage), &mine, wounds, none())));
        }
        // Past trees are mended as far as they can be.
        let (mut segments, logs) = tables::segments(&found, geometry.as_ref());
        let again = self.again < AGAIN;
        segments.retain(|s| !self.disowned.contains(s) || (again && !self.stuck.contains(s)));
        let segments: BTreeSet<u64> = segments.into_iter().take(self.at_once(geometry.as_ref())).collect();
        if !segments.is_empty() {
            self.again += u32::from(segments.is_subset(&self.disowned));
            self.disowned.extend(&segments);
            let zero_unreadable = self.options.zero_unreadable;
            let wounds = Wounds { segments, zero_unreadable, unowned: true, ..Wounds::default() };
            return Ok(Some(step(Kind::Logs, &logs, wounds, none())));
        }
        let stale: Vec<_> = found.iter().copied().filter(|f| tables::is_stale(f)).collect();
        if !stale.is_empty() && self.given_up.insert(Kind::Bad) {
            let bad = stale.iter().filter_map(|f| f.place.segment).collect();
            return Ok(Some(step(Kind::Bad, &stale, Wounds { bad, ..Wounds::default() }, none())));
        }
        // Nothing may be passed over by who goes on behind a damaged log; a repair that was cut off may have left nothing else.
        if found.is_empty()
            && silt_verify::differs_for_linux(&*self.overlay).is_some()
            && self.given_up.insert(Kind::Anew)
        {
            let mut step = step(Kind::Anew, &[], Wounds::default(), none());
            step.classes.insert("anew", 1);
            return Ok(Some(step));
        }
        if found.is_empty() && supers::error_flag(&*self.overlay) && self.given_up.insert(Kind::Flag) {
            let mut step = step(Kind::Flag, &[], Wounds::default(), none());
            step.classes.insert("error-flag", 1);
            return Ok(Some(step));
        }
        Ok(None)
    }

    /// How many segments may be emptied at once, for want of memory or of space.
    fn at_once(&self, g: Option<&Geometry>) -> usize {
        at_once(g).min(self.at_once).max(1)
    }

    /// Of segments that are to be emptied, those that are in this round: which was tried least often.
    fn next_to_empty(&self, segments: BTreeSet<u64>, g: Option<&Geometry>) -> BTreeSet<u64> {
        let tries = |s: &u64| self.emptied.get(s).copied().unwrap_or(0);
        let mut all: Vec<u64> =
            segments.into_iter().filter(|s| tries(s) < TRIES && !self.stuck.contains(s)).collect();
        all.sort_by_key(tries);
        all.into_iter().take(self.at_once(g)).collect()
    }

    /// Free segments, as a check counted them.
    fn free(&self, report: &Report) -> u64 {
        let g = supers::geometry(&*self.overlay).filter(|_| report.stats.segments > 0);
        g.map_or(u64::MAX, |g| g.nsegments.saturating_sub(report.stats.segments))
    }

    /// Whether so few segments are free that a round may not find enough, and less than when it was last tried to take some
    /// back in vain.
    pub fn is_tight(&self, report: &Report) -> bool {
        self.free(report) < self.tight
    }

    /// A step was not done for want of space.
    pub fn not_tried(&mut self, step: &Step) {
        self.past.take_back(&step.past);
    }

    /// Does less at once, if there was no space for all of `step`; whether that can be tried.
    pub fn with_less(&mut self, step: &Step) -> bool {
        let (segments, past) = (step.wounds.segments.len(), step.past.len());
        self.not_tried(step);
        if segments > 1 {
            self.at_once = segments / 2;
        }
        if past > 1 {
            self.past_at_once = past / 2;
        }
        let rescued = step.kind == Kind::Rescued && !std::mem::replace(&mut self.what_fits, true);
        segments > 1 || past > 1 || rescued
    }
}
