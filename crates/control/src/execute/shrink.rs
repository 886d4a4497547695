//! Making a volume smaller: what is in the way moves, or is given up as under pressure.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use silt_cleaner::shrink::{self, Emptied, Fit, Stopped};
use silt_retention::Wish;

use super::Out;
use super::clean::{Planner, Via};
use super::retain::{effective, tell_problem};
use crate::host::{Host, change, with};
use crate::response::{Progress, Resized, Response};
use crate::retention::PlannedBy;
use crate::{ControlError, Kind, Result, size};

/// For so long those are waited for who read behind the new end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes the volume `size` bytes large, and the image it lies in.
pub fn resize(host: &dyn Host, size: u64, out: Out<'_>) -> Result<()> {
    host.sync()?;
    tell_problem(host, out)?;
    let result = tried(host, size, out);
    // Those who waited for what it would come to hear of it with the next checkpoint.
    if let Err(e) = host.settle() {
        tracing::warn!("{e}");
    }
    let resized = result?;
    host.resized();
    out(Response::Resized(resized))
}

/// Tries it with ever less of the past.
fn tried(host: &dyn Host, size: u64, out: Out<'_>) -> Result<Resized> {
    let begin = Instant::now();
    let mut from = 0;
    let mut wishes = wishes(host);
    loop {
        let by = PlannedBy { wish: Some(wishes.0.clone()), floor: wishes.1.clone() };
        let planner = Planner::new(host, by);
        let fit = shrink::fit(&planner, size, (&wishes.0, &wishes.1), host.now(), from)?;
        let fit = match fit {
            Ok(fit) => fit,
            Err(e) => {
                let (_, present) = of(host)?;
                let little = with(host, |v| v.counts_backed_only())?;
                return Err(too_small(size, e.least, present, little));
            }
        };
        if let Some(wish) = &fit.down_to {
            let kept = if wish == "nothing" { String::new() } else { format!(", and {wish}") };
            let text = format!("not all of the past has room in it: snapshots and the floor are kept{kept}");
            out(Response::Notice(text))?;
        }
        let result = confined(host, size, (&planner, &fit), &wishes, out);
        let held = with(host, |v| v.held_segments());
        // Also after an error: the volume has its old size, and all of it.
        let lifted = shrink::confine(&planner, None);
        match result {
            // What was emptied is kept from being written: that is no reason to give up any of the past.
            Err(e) if e.kind == Kind::NoSpace && held? > 0 => {
                lifted?;
                if begin.elapsed() > PATIENCE {
                    return Err(in_use());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            // There was room by number of blocks, and not enough of it in one place: less is kept.
            Err(e) if e.kind == Kind::NoSpace => from = fit.step + 1,
            Ok(None) => {
                lifted?;
                (wishes, from) = (self::wishes(host), 0);
            }
            Ok(Some(resized)) => return Ok(resized),
            Err(e) => return Err(e),
        }
    }
}

/// What counts now: the wish and the floor.
fn wishes(host: &dyn Host) -> (Wish, Wish) {
    let counts = effective(host);
    (counts.wish, counts.floor)
}

/// Segments are held for somebody.
fn in_use() -> ControlError {
    let message = "somebody reads what lies behind the new end, such as a check or a scrub";
    ControlError::new(Kind::Busy, message).hint("try again when that is done")
}

/// Segments, and bytes of the volume.
pub(super) fn of(host: &dyn Host) -> Result<(u64, u64)> {
    with(host, |v| (v.geometry().nsegments, v.super_block().dev_size.get()))
}

/// Refuses a size, of a volume that has another one now; `little`: what holds the image has little left.
fn too_small(size: u64, least: u64, present: u64, little: bool) -> ControlError {
    // What works is counted from above, with what is kept back: it may be more than there is.
    if least >= present {
        let message = format!(
            "the volume cannot be made smaller now: what it has to keep needs all of its {}",
            size::exact(present)
        );
        return ControlError::new(Kind::NoSpace, message)
            .hint("with less in it, or fewer snapshots, it can be; silt du says what holds how much");
    }
    let hint = if least > size {
        format!("{} works now; with less in it, or fewer snapshots, less will do", size::typed(least))
    } else if little {
        "the file system that holds the image has too little left to move what lies behind the new end; make room there, or \
         delete something"
            .into()
    } else {
        "what lies behind the new end could not be moved in front of it; a larger size works, or deleting something".into()
    };
    let message = format!(
        "{} {} too few for what the volume has to keep",
        size::exact(size),
        if size == 1 { "is" } else { "are" }
    );
    ControlError::new(Kind::NoSpace, message).hint(hint)
}

/// Empties the end as a fit has it and cuts it off; nothing where another wish or floor counts before that is done.
fn confined(
    host: &dyn Host,
    size: u64,
    (planner, fit): (&Planner<'_>, &Fit),
    as_of: &(Wish, Wish),
    out: Out<'_>,
) -> Result<Option<Resized>> {
    let before = of(host)?;
    let gone = RefCell::new(None);
    let changed = Cell::new(false);
    let mut watch = |e: &Emptied| {
        let progress = Progress { done: e.done, total: e.total };
        let told = out(Response::Progress(progress)).inspect_err(|e| *gone.borrow_mut() = Some(e.clone()));
        changed.set(wishes(host) != *as_of);
        told.is_ok() && !changed.get()
    };
    let begin = Instant::now();
    let emptied = loop {
        let emptied = shrink::empty(planner, fit, &mut watch);
        if let Some(e) = gone.take() {
            return Err(e);
        }
        if changed.get() && matches!(emptied, Err(Stopped::Asked)) {
            return Ok(None);
        }
        let emptied = emptied.map_err(plain)?;
        let (used, held) = with(host, |v| v.in_the_way(fit.limit))??;
        if let Some(s) = used.first() {
            whole(host, *s)?;
        }
        if !held {
            break emptied;
        }
        if begin.elapsed() > PATIENCE {
            return Err(in_use());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let image = host.is_image();
    // At once: a super block would be written behind the end of the image.
    change(host, |v| {
        v.shrink(size, host.now())?;
        if image {
            host.shrink_device(size)?;
        }
        v.device_was_cut()
    })?;
    let (segments, size) = of(host)?;
    Ok(Some(Resized {
        segments_before: before.0,
        segments,
        size_before: before.1,
        size,
        moments_gone: emptied.moments,
    }))
}

/// Nothing that is needed may lie in a segment that is marked bad.
fn whole(host: &dyn Host, segment: silt_format::SegNr) -> Result<()> {
    let keep = with(host, |v| v.keep(Some(0)))??;
    let usage = silt_cleaner::count(&Via(host), keep)?;
    let bad = with(host, |v| v.in_the_way(segment.0))??.0;
    // What cannot be counted may be needed.
    let unknown = usage.damaged() > 0;
    match bad.into_iter().find(|s| unknown || usage.of(*s).live + usage.of(*s).kept > 0) {
        None => Ok(()),
        Some(s) => Err(ControlError::new(
            Kind::Unavailable,
            if unknown {
                format!(
                    "segment {s} is marked bad, and what it holds cannot be told, so it cannot be cut off"
                )
            } else {
                format!("segment {s} is marked bad and holds blocks that are needed, so it cannot be cut off")
            },
        )
        .hint("silt scrub tells which files are hurt")),
    }
}

fn plain(why: Stopped) -> ControlError {
    match why {
        Stopped::Asked => {
            ControlError::new(Kind::Other, "ended before it was done; the volume has its old size")
        }
        Stopped::Aside(a) => ControlError::new(
            Kind::Unavailable,
            format!("segment {} cannot be emptied: {}", a.segment, a.why),
        )
        .hint("silt scrub looks closer, and silt clean --salvage takes what can be read"),
        Stopped::Busy => {
            ControlError::new(Kind::Busy, "what lies behind the new end is written again and again")
                .hint("try again")
        }
        Stopped::Failed(e) => e.into(),
    }
}
