//! Makes a failing workload small, and tells it as a story.

use std::fmt;

use silt_device::{CrashOptions, CrashState, Device as _, Fate};
use silt_format::super_block;

use crate::campaign::{Failed, cuts_of, examine, guarded, how, judge, special};
use crate::history::Progress;
use crate::workload::Workload;
use crate::{Failure, driver, oracle};

/// States that are tried of each smaller workload.
const CUTS: CrashOptions = CrashOptions { seed: 0, max_states: 600, per_flush: 24 };

/// A failure, made small.
#[derive(Debug, Clone)]
pub struct Story {
    /// The workload's name as the campaign knows it, and its number there.
    pub name: String,
    pub number: u64,
    /// What was there before, what was done, and what was answered, a line each.
    pub steps: Vec<String>,
    /// Where the power failed, and what landed of the rest, a line each.
    pub cut: Vec<String>,
    /// What is wrong.
    pub found: String,
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "workload {} ({}):", self.number, self.name)?;
        self.steps.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        self.cut.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        write!(f, "  found: {}", self.found)
    }
}

/// The first thing that is wrong with a workload, if it still is.
fn wrong(workload: &Workload, options: CrashOptions) -> Option<Failure> {
    guarded(|| examine(workload, options, &mut |_, _, _| true)).err()
}

/// Whether two failures are of a kind: begun with the same words, numbers left out.
fn alike(a: &Failure, b: &Failure) -> bool {
    let words = |f: &Failure| {
        let text = f.0.split("landed").last().unwrap_or_default();
        let text: String = text.chars().filter(|c| !c.is_ascii_digit()).collect();
        text.split_whitespace().take(7).collect::<Vec<_>>().join(" ")
    };
    words(a) == words(b)
}

/// Leaves out steps as long as it still fails in the same way, for at most so many tries.
pub fn shrink(failed: &Failed, mut tries: u32) -> Story {
    let Some(workload) = &failed.workload else {
        return Story {
            name: special(failed.number).unwrap_or_default().to_owned(),
            number: failed.number,
            steps: Vec::new(),
            cut: Vec::new(),
            found: failed.what.to_string(),
        };
    };
    let mut kept = workload.clone();
    let cuts = CrashOptions { seed: workload.seed, ..CUTS };
    let mut options = cuts_of(workload);
    let mut fails = |w: &Workload, options: &mut CrashOptions| {
        if tries == 0 {
            return false;
        }
        tries -= 1;
        // With fewer steps the same choices cut elsewhere: look at more of them.
        for o in [*options, cuts] {
            if wrong(w, o).is_some_and(|e| alike(&e, &failed.what)) {
                *options = o;
                return true;
            }
        }
        false
    };
    loop {
        let before = kept.steps.len() + kept.setup.len();
        for part in [2, 4, 8, usize::MAX] {
            shrink_list(part, kept.steps.len(), &mut |range| {
                let mut w = kept.clone();
                w.steps.drain(range);
                let smaller = fails(&w, &mut options);
                if smaller {
                    kept = w;
                }
                smaller
            });
            shrink_list(part, kept.setup.len(), &mut |range| {
                let mut w = kept.clone();
                w.setup.drain(range);
                let smaller = fails(&w, &mut options);
                if smaller {
                    kept = w;
                }
                smaller
            });
        }
        if kept.steps.len() + kept.setup.len() == before {
            break;
        }
    }
    tell(failed, &kept, options)
}

/// Tries to leave out each of `parts` parts of a list; `try_without` says whether it did.
fn shrink_list(parts: usize, len: usize, try_without: &mut dyn FnMut(std::ops::Range<usize>) -> bool) {
    let size = len.div_ceil(parts.min(len.max(1))).max(1);
    let mut end = len;
    while end > 0 {
        let start = end.saturating_sub(size);
        try_without(start..end);
        end = start;
    }
}

/// The story of the failing state of which least landed.
fn tell(failed: &Failed, workload: &Workload, options: CrashOptions) -> Story {
    let mut story = Story {
        name: workload.name.clone(),
        number: failed.number,
        steps: vec![format!(
            "a volume of {} KiB, blocks of {}, segments of {} blocks{}",
            workload.size >> 10,
            workload.block_size,
            workload.segment,
            if workload.barrier { "" } else { ", mounted with nobarrier" },
        )],
        cut: Vec::new(),
        found: failed.what.to_string(),
    };
    story.steps.extend(workload.setup.iter().map(|op| format!("before: {op}")));
    let history = match guarded(|| driver::play(workload)) {
        Ok(history) => history,
        Err(e) => {
            story.steps.extend(workload.steps.iter().enumerate().map(|(i, s)| format!("{}. {s}", i + 1)));
            story.found = e.to_string();
            return story;
        }
    };
    let mut best: Option<((usize, usize), u64, CrashState, Failure)> = None;
    for (life, state) in history.states(options) {
        let Ok(state) = state else { continue };
        let looked = guarded(|| {
            let seen = oracle::look(oracle::disk(&state.device), how(workload, &history, &state))?;
            judge(workload, &history, &state, &seen)
        });
        let Err(e) = looked else { continue };
        let landed = state.pending.iter().filter(|p| p.fate != Fate::Lost).count();
        let size = (state.pending.len() - landed, landed);
        if best.as_ref().is_none_or(|(least, ..)| size < *least) {
            best = Some((size, life.base.len(), state, e));
        }
    }
    let progress = best.as_ref().map(|(_, _, state, _)| Progress::of(&state.acknowledged));
    for (i, step) in workload.steps.iter().enumerate() {
        let number = i + 1;
        let how = match progress {
            Some(p) if number > p.begun => continue,
            Some(p) if number > p.answered => "under way",
            _ if history.done.get(number).is_some_and(|d| !d.answered) => "failed",
            _ => "done",
        };
        story.steps.push(format!("{number}. {step}   ({how})"));
    }
    let Some((_, len, state, e)) = best else { return story };
    story.cut.push(format!("the power fails; {}", state.cut));
    for p in &state.pending {
        let fate = match p.fate {
            Fate::Lost => "is lost",
            Fate::Landed => "landed",
            Fate::Torn(_) => "landed in some of its sectors",
        };
        story.cut.push(format!("  {} {fate}", place(workload, len, p.offset, p.len)));
    }
    story.found = e.to_string();
    story
}

/// What lies somewhere, in words.
fn place(workload: &Workload, device: u64, offset: u64, len: u64) -> String {
    let secondary = super_block::secondary_offset(device);
    if offset == super_block::PRIMARY_OFFSET {
        return "the write of the first super block".to_owned();
    }
    if offset == secondary {
        return "the write of the second super block".to_owned();
    }
    let block = offset / u64::from(workload.block_size);
    let segment = block / u64::from(workload.segment);
    let blocks = len / u64::from(workload.block_size);
    format!("the write of {blocks} blocks at block {block} (segment {segment})")
}
