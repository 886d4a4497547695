//! Opening a volume that its last user left without a segment to write to.

use std::sync::Arc;

use silt_cleaner::{History, Options, Policy, Whole, clock, unwedge};
use silt_device::Device;
use silt_engine::{OpenOptions, OpenReport, Result, Volume};
use silt_fs::Fs;
use silt_retention::{Clock, Ladder};

use crate::retention::{Effective, Given, Known};

/// Opens a volume, which it does not take over, and, for writing, makes room on it where there is none even for
/// the cleaner: of what retention does not keep, and where that is too little, of ever more, down to the floor. What was
/// done about it is told in words. Where nothing can be done the volume is as it was. `now` in seconds.
pub fn open_with_room(
    device: &Arc<dyn Device>,
    options: &OpenOptions,
    given: &Given,
    now: u64,
) -> Result<(Volume, OpenReport, Option<String>)> {
    // It is opened anew where an attempt came to nothing. That may have left logs, behind a number that the seed draws: no other
    // is to go on with the same.
    let mut seed = options.seed;
    // What was written meanwhile says nothing of how long nobody had it: that is known from the first time.
    let mut watch = None;
    let mut open = || {
        let opened = Volume::open(device.clone(), &OpenOptions { seed, ..options.clone() });
        seed = seed.wrapping_add(1);
        opened.map(|(mut volume, report)| {
            volume.go_on_with(watch.get_or_insert_with(|| volume.watch()).clone());
            (volume, report)
        })
    };
    let (volume, report) = open()?;
    if volume.is_read_only() || !volume.is_wedged() {
        return Ok((volume, report, None));
    }
    Ok(match make_room(volume, &mut || Ok(open()?.0), given, now) {
        Ok((volume, note)) => (volume, report, note),
        Err(e) => {
            let note = format!("hardly a segment is clean, and none can be emptied: {e}");
            (open()?.0, report, Some(note))
        }
    })
}

fn make_room(
    volume: Volume,
    reopen: &mut dyn FnMut() -> Result<Volume>,
    given: &Given,
    now: u64,
) -> Result<(Volume, Option<String>)> {
    let mut fs = Fs::new(volume, &silt_fs::Options::default());
    let counts = Effective::read(&mut fs, given, &Known::default());
    let mut volume = fs.into_volume();
    let ladder = Ladder::new(&counts.wish, &counts.floor);
    let (mut segments, mut moments, mut beyond) = (0, 0, 0);
    let mut before = None;
    for step in 0..ladder.steps().len() {
        let whole = Whole::new(&mut volume, now);
        let history = History::read(&whole)?;
        // Where nothing is promised it is a wish alone that goes by the time for which perhaps nobody had the volume.
        let clock = if counts.floor.is_nothing() { Clock::at(now) } else { clock(&whole, now)? };
        let kept = ladder.kept(step, &history.points, &clock);
        if before.as_ref() == Some(&kept) {
            continue;
        }
        let mut options = Options { policy: Policy::Greedy, now, ..Options::default() };
        history.keep(&kept, &mut options);
        let outcome;
        (volume, outcome) = unwedge(volume, &options, reopen)?;
        segments += outcome.cleaned.segments;
        *(if step == 0 { &mut moments } else { &mut beyond }) += outcome.cleaned.checkpoints;
        if !outcome.out_of_room {
            break;
        }
        before = Some(kept);
    }
    // A volume of Silt's own may be so for a while when it is full: its cleaner goes on.
    let note = (segments > 0).then(|| said(segments, moments, beyond));
    // Of an unknown floor nothing goes: that may be why there is no room.
    let note = match (note, counts.problem) {
        (Some(note), Some(problem)) => Some(format!("{note}; {problem}")),
        (note, problem) => note.or(problem),
    };
    Ok((volume, note))
}

/// What was emptied, and what moments went for it: those that are not to be kept, and others.
fn said(segments: u64, moments: u64, beyond: u64) -> String {
    let were = if segments == 1 { "was" } else { "were" };
    let gone = match (moments, beyond) {
        (0, 0) => String::new(),
        (1, 0) => "; 1 moment that is not to be kept went".to_owned(),
        (n, 0) => format!("; {n} moments that are not to be kept went"),
        (0, 1) => "; 1 moment went, for want of space".to_owned(),
        (n, m) => format!("; {} moments went, {m} of them for want of space", n + m),
    };
    format!("hardly a segment was clean, so {segments} {were} emptied{gone}")
}

#[cfg(test)]
mod tests {
    use super::said;

    #[test]
    fn one_is_not_many() {
        assert!(said(1, 0, 0).ends_with("so 1 was emptied"));
        assert!(said(2, 1, 0).ends_with("so 2 were emptied; 1 moment that is not to be kept went"));
        assert!(said(2, 0, 1).ends_with("; 1 moment went, for want of space"));
        assert!(said(2, 3, 1).ends_with("; 4 moments went, 1 of them for want of space"));
    }
}
