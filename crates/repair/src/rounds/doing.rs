//! Doing a round on a copy of what there is so far.

use std::sync::Arc;

use silt_device::Overlay;
use silt_engine::mend::{self, LastLog, Mender, SetAside, Wounds};

use silt_verify::Report;

use super::{Kind, Quiet, Stage, State, Step, TIGHT};
use crate::{Result, errors, errors_now, newest_log, past, rescued, supers, tree};

/// Super blocks that were put right.
struct Righted {
    said: Vec<String>,
    /// Synced data behind them.
    aside: SetAside,
    /// The checkpoint whose tree the newest one has, where one was written.
    base: Option<u64>,
}

impl State<'_> {
    /// Where a log in the midst is damaged and whole ones follow: the volume goes on behind the newest of these, and what
    /// is damaged is mended as in any other log.
    fn go_ahead(&mut self) -> Result<Option<Vec<String>>> {
        let lost = silt_verify::behind(&*self.overlay).filter(|_| self.ahead);
        let known = (supers::geometry(&*self.overlay), supers::reached(&*self.overlay));
        let (Some(g), Some(base)) = known else { return Ok(None) };
        for root in lost.map(|lost| lost.roots).unwrap_or_default() {
            let root = LastLog { pseg: root.block, seq: root.sequence, cno: root.checkpoint };
            let trial = Arc::new(Overlay::new(self.overlay.clone()));
            // The damaged log may be that of the newest checkpoint itself.
            let Some(doubtful) = mend::accept(&*trial, &g, &root)? else { continue };
            if root.cno <= base || !supers::go_on_at(&*trial, &root)? {
                continue;
            }
            trial.apply(&*self.overlay)?;
            self.passed = Some(base);
            let said = format!(
                "behind checkpoint {base} a log is damaged, and no mount comes to what was written after it: the super \
                 blocks are pointed at checkpoint {}, the newest, and what is wrong is mended one by one",
                root.cno
            );
            return Ok(Some([said].into_iter().chain(doubtful).collect()));
        }
        Ok(None)
    }

    /// Super blocks put right, on a copy each: by the copies that lead to a whole log, and by a newer log of which only
    /// the checksum is wrong. A volume that was cleanly unmounted had that log whole: it is taken, and mended. Otherwise
    /// a power cut may have torn it, where the disk or `nobarrier` let that happen: it is taken if what it leads to is no
    /// worse. So it is with a log that cannot be read to the end, but that file data which is lost counts for nothing.
    fn mend_supers(&self) -> Result<Option<Righted>> {
        let mut best: Option<(u64, Arc<Overlay>, Righted)> = None;
        // Where nothing says how it was left, a power cut is the less likely to have come with the loss of both.
        let clean = supers::is_clean(&*self.overlay) || supers::are_lost(&*self.overlay);
        let open = self.open_options();
        let bad = newest_log::bad(&*self.overlay);
        let mut sure = clean;
        if let Some(kept) = newest_log::keep_newest(&self.overlay, self.options, &open) {
            // None where the root directory is lost with it, which is mended later.
            let all = mend::checkpoints(kept.trial.clone()).unwrap_or_default();
            let (after, g) = (self.check_of(&*kept.trial)?, supers::geometry(&*kept.trial));
            let given_up = bad.iter().copied().chain([kept.segment]).collect();
            // A volume that was cleanly unmounted had this checkpoint, and so has its checkpoint file.
            sure &= !kept.doubtful || all.contains_key(&kept.checkpoint);
            let errors = newest_log::errors_but_of_data(&after, g.as_ref(), &given_up);
            let base = Some(kept.checkpoint);
            best = Some((errors, kept.trial, Righted { said: kept.said, aside: kept.aside, base }));
        }
        let whole = best.as_ref().is_some_and(|(errors, ..)| sure || *errors == 0);
        let ways: &[bool] = match (whole, clean) {
            (true, _) => &[],
            (false, true) => &[true],
            (false, false) => &[true, false],
        };
        for &torn in ways {
            let trial = Arc::new(Overlay::new(self.overlay.clone()));
            let mut said = match supers::put_right(&*trial, torn, self.options.seed)? {
                Some(said) => said,
                None if !bad.is_empty() => Vec::new(),
                None => continue,
            };
            let (mut aside, mut base) = (SetAside::default(), None);
            if supers::are_lost(&*self.overlay)
                && let Some(kept) = newest_log::keep_newest(&trial, self.options, &open)
            {
                // The newest log can be used after all.
                said.truncate(1);
                said.extend(kept.said);
                kept.trial.apply(&*trial)?;
                (aside, base) = (kept.aside, Some(kept.checkpoint));
            } else if !bad.is_empty() {
                base = supers::reached(&*trial);
                let left = newest_log::leave(&trial, &bad, self.options, &open)?;
                said.extend(left.0);
                aside = left.1;
            }
            let errors = errors(&self.check_of(&*trial)?);
            if best.as_ref().is_none_or(|(least, ..)| errors < *least) {
                best = Some((errors, trial, Righted { said, aside, base }));
            }
        }
        let Some((_, trial, done)) = best else { return Ok(None) };
        trial.apply(&*self.overlay)?;
        Ok(Some(done))
    }

    /// Puts whole copies in the place of blocks that do not verify; nothing is said where there are none.
    fn take_copies(&mut self, step: &Step) -> Result<Vec<String>> {
        let trial = Arc::new(Overlay::new(self.overlay.clone()));
        let wounds = Wounds { known: self.known.clone(), ..step.wounds.clone() };
        let mut mender = Mender::open(trial.clone(), &self.open_options(), &wounds)?;
        if !mender.moves() {
            return Ok(Vec::new());
        }
        let mut said = std::mem::take(&mut mender.said);
        let known = mender.leave();
        said.extend(mender.finish(self.options.now)?);
        trial.apply(&*self.overlay)?;
        self.known = known;
        Ok(said)
    }

    /// Takes space back that the rounds so far took for themselves, once after each; whether there was any. `report` is of
    /// now.
    pub fn make_room(&mut self, report: &Report) -> bool {
        if std::mem::replace(&mut self.roomed, true) {
            return false;
        }
        let made = self.try_to_make_room().unwrap_or(false);
        self.tight = if made { TIGHT } else { self.free(report).min(TIGHT) };
        made
    }

    fn try_to_make_room(&mut self) -> Result<bool> {
        let trial = Arc::new(Overlay::new(self.overlay.clone()));
        let wounds = Wounds { known: self.known.clone(), ..Wounds::default() };
        let mut mender = Mender::open(trial.clone(), &self.open_options(), &wounds)?;
        if !mender.make_room()? {
            return Ok(false);
        }
        let known = mender.leave();
        mender.finish(self.options.now)?;
        trial.apply(&*self.overlay)?;
        self.known = known;
        Ok(true)
    }

    /// Does a round, or leaves all as it is.
    pub fn mend(&mut self, step: &Step) -> Result<Vec<String>> {
        match step.kind {
            Kind::Supers => {
                if step.classes.contains_key("recovery")
                    && let Some(said) = self.go_ahead()?
                {
                    (self.known.own, self.known.mended_from) = (false, None);
                    // It lies before what is taken in.
                    self.known.aside = SetAside::default();
                    return Ok(said);
                }
                // Nothing is to be written over sectors that cannot be read, now or later.
                let ahead_is_bad = || !newest_log::bad(&*self.overlay).is_empty();
                if (step.classes.contains_key("super-block") || ahead_is_bad())
                    && let Some(righted) = self.mend_supers()?
                {
                    self.known.own = false;
                    self.known.aside = righted.aside;
                    self.known.mended_from = righted.base.or(self.known.mended_from);
                    return Ok(righted.said);
                }
            }
            Kind::Flag => {
                let trial = Arc::new(Overlay::new(self.overlay.clone()));
                let said = supers::clear_error_flag(&*trial)?;
                trial.apply(&*self.overlay)?;
                return Ok(said);
            }
            Kind::Copies => return Ok(self.take_copies(step).unwrap_or_default()),
            Kind::Twins => {
                let Some(g) = supers::geometry(&*self.overlay) else { return Ok(Vec::new()) };
                let trial = Arc::new(Overlay::new(self.overlay.clone()));
                let mut said = Vec::new();
                for twin in self.twins() {
                    mend::forget_twin(&*trial, &g, &twin)?;
                    said.push(format!(
                        "segment {} was written a second time in the place of segment {}: what that held is lost, and the \
                         copy is made invalid",
                        twin.right, twin.wrong
                    ));
                }
                trial.apply(&*self.overlay)?;
                return Ok(said);
            }
            _ => {}
        }
        self.may_lose |= match step.kind {
            Kind::Root | Kind::Tree | Kind::Synced | Kind::Overwritten => true,
            Kind::Tables(stage) => stage != Stage::Rest,
            _ => false,
        };
        // What fails half-way must not stay: it is tried on a copy.
        let trial = Arc::new(Overlay::new(self.overlay.clone()));
        let wounds = Wounds { known: self.known.clone(), ..step.wounds.clone() };
        let mut mender = Mender::open(trial.clone(), &self.open_options(), &wounds)?;
        let mut said = std::mem::take(&mut mender.said);
        if step.kind == Kind::Tree {
            for ino in tree::mend(&mut mender, &step.tree, &mut said)? {
                self.tried.remove(&ino);
            }
        }
        let mut doubts = Vec::new();
        if step.kind == Kind::Rescued {
            let original = self.known.original.clone();
            let (Some(original), Some(checkpoint)) = (original, self.known.mended_from) else {
                return Ok(Vec::new());
            };
            let wanted = rescued::Wanted {
                original: &*original.0,
                checkpoint,
                told: &self.told,
                put_back: &self.put_back,
                whole_only: self.options.cut,
                memory: self.options.memory_bytes.saturating_sub(self.overlay.memory()),
                what_fits: self.what_fits,
                now: self.options.now,
            };
            let watch = Quiet(self.watch);
            if !rescued::bring(&mut mender, &trial, &wanted, &watch, &mut said, &mut doubts)? {
                return Ok(doubts);
            }
        }
        if step.kind == Kind::Bad {
            said.extend(step.wounds.bad.iter().map(|s| {
                format!(
                    "segment {s} holds what cannot be moved, and old copies of what was: it is marked as bad, so that no \
                     cleaner takes these for the blocks"
                )
            }));
        }
        past::mend(&mut mender, &step.past, &mut self.past, &self.kept, self.options.now, &mut said)?;
        if step.kind.empties() {
            // What cannot be moved was told when it was first tried.
            if !mender.empties() && step.wounds.segments.iter().all(|s| self.emptied.contains_key(s)) {
                self.stuck.extend(&step.wounds.segments);
                return Ok(Vec::new());
            }
        } else {
            self.stuck.clear();
        }
        if step.kind == Kind::Anew {
            said.push(
                "a checkpoint is written anew elsewhere: behind a damaged log lies the rest of a later one, with which Linux's \
                 driver would go on"
                    .into(),
            );
        }
        let known = mender.leave();
        said.extend(mender.finish(self.options.now)?);
        if step.kind == Kind::Rescued && errors_now(&self.check_of(&*trial)?) > self.left {
            doubts.push(format!(
                "what a rescue reads besides cannot be taken without new damage: {}",
                rescued::FIRST
            ));
            return Ok(doubts);
        }
        said.extend(doubts);
        for segment in &step.wounds.segments {
            *self.emptied.entry(*segment).or_default() += 1;
        }
        if !step.wounds.segments.is_empty() {
            // What was emptied is space for more.
            self.at_once = self.at_once.saturating_mul(2);
        }
        if step.kind == Kind::Past {
            // What those checkpoints held back may be emptied now.
            self.emptied.clear();
        }
        trial.apply(&*self.overlay)?;
        self.known = known;
        self.roomed = false;
        Ok(said)
    }
}
