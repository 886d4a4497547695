//! What is kept of the past: shown, set, and tried.

use std::time::Instant;

use silt_cleaner::History;
use silt_engine::{Time, Tree};
use silt_format::Ino;
use silt_retention::{Ladder, Settings, Wish};

use super::Out;
use super::clean::Via;
use crate::host::{Host, ROOM, wait_for_room, with, with_fs};
use crate::response::Progress;
use crate::retention::{
    DIR, Effective, Known, Problem, Retention, RetentionPreview, Source, in_the_way, read, store,
};
use crate::{ControlError, Kind, Response, Result, Retain, brief};

/// What counts on a volume.
pub fn effective(host: &dyn Host) -> Effective {
    let (given, none) = (host.retention_given(), Known::default());
    with_fs(host, |fs| Effective::read(fs, &given, host.retention_known().unwrap_or(&none)))
        .unwrap_or_else(|| Effective::of(&given, Ok(Settings::default())))
}

/// Tells why the volume's file does not count, if it does not: less is given up then than whoever asks may expect.
pub fn tell_problem(host: &dyn Host, out: Out<'_>) -> Result<()> {
    effective(host).problem.map_or(Ok(()), |problem| out(Response::Notice(problem)))
}

/// A wish in words.
pub fn wish(words: &str) -> Result<Wish> {
    words.parse().map_err(|e: silt_retention::WordsError| {
        ControlError::new(Kind::Invalid, format!("{:?}: {e}", brief(words)))
            .hint("such as: all for 1 day, one an hour for 1 month, one a day for ever")
    })
}

/// Says what is kept, and what went.
pub fn show(host: &dyn Host, out: Out<'_>) -> Result<()> {
    let e = effective(host);
    let stat = with(host, |v| v.stat())??;
    out(Response::Retention(Box::new(Retention {
        wish: e.wish.to_string(),
        wish_from: e.wish_from,
        floor: e.floor.to_string(),
        floor_from: e.floor_from,
        problem: e.problem,
        moments: stat.checkpoints.saturating_sub(stat.snapshots),
        snapshots: stat.snapshots,
        given_up: host.given_up(),
    })))
}

/// How often it is tried to store a wish where there is no room: each may leave something to be cleaned after.
const TRIES: u32 = 3;

/// What is asked for: nothing, that the file says nothing of it any more, or a wish.
fn words(given: Option<&str>) -> Result<Option<Option<Wish>>> {
    match given.map(str::trim) {
        None => Ok(None),
        Some(text) if text.eq_ignore_ascii_case("default") => Ok(Some(None)),
        Some(text) => wish(text).map(|w| Some(Some(w))),
    }
}

/// What the volume's file says besides what is set anew. What nobody can tell is not lost silently.
fn rest(host: &dyn Host, fs: &mut silt_fs::Fs, sets_all: bool) -> Result<Settings> {
    match read(fs) {
        Ok(Some(settings)) => Ok(settings),
        Ok(None) => {
            let away = host.retention_known().and_then(|known| known.while_away(Instant::now()));
            Ok(away.unwrap_or_default())
        }
        Err(Problem::Foreign(_)) => Ok(Settings::default()),
        Err(Problem::Unknown(why)) => match host.retention_known().and_then(Known::last) {
            Some(last) => Ok(last),
            None if sets_all => Ok(Settings::default()),
            None => Err(ControlError::new(
                Kind::Invalid,
                format!("{why}, so what else it says would be lost"),
            )
            .hint(
                "say both: silt retain DIR 'all for 1 day' --keep nothing (\"default\" is a wish as well)",
            )),
        },
    }
}

/// Puts words into the volume's file; what there is of them else stays.
pub fn set(host: &dyn Host, retain: &Retain, out: Out<'_>) -> Result<()> {
    let (new_wish, new_floor) = (words(retain.wish.as_deref())?, words(retain.floor.as_deref())?);
    if with(host, |v| v.is_read_only())? {
        return Err(silt_engine::Error::ReadOnly.into());
    }
    if let Some(why) = with_fs(host, in_the_way).flatten() {
        let message = format!(".silt {why}, so what it holds does not count and nothing was written there");
        return Err(ControlError::new(Kind::NotPermitted, message).hint(
            "look at what it holds and remove it, or have it belong to the root directory's owner (chown, chmod go-w)",
        ));
    }
    let now = Time { secs: i64::try_from(host.now()).unwrap_or(i64::MAX), nanos: 0 };
    let store = || {
        with_fs(host, |fs| {
            let mut settings = rest(host, fs, new_wish.is_some() && new_floor.is_some())?;
            settings.wish = new_wish.clone().unwrap_or(settings.wish);
            settings.floor = new_floor.clone().unwrap_or(settings.floor);
            // A full volume may be full of what is to be kept no more.
            let stored = fs.of_the_reserve(|fs| store(fs, &settings, now));
            if let (Ok(()), Some(known)) = (&stored, host.retention_known()) {
                known.note(&settings);
            }
            Ok::<_, ControlError>((stored, fs.lookup(Tree::Live, Ino::ROOT, DIR)))
        })
    };
    let until = Instant::now() + ROOM;
    let mut waits = || out(Response::Progress(Progress { done: 0, total: 1 }));
    let mut tries = 0;
    let (stored, dir, gone) = loop {
        let Some(stored) = store() else {
            return Err(ControlError::new(Kind::Unavailable, "the volume is being closed"));
        };
        let (stored, dir) = stored?;
        tries += 1;
        if stored != Err(silt_fs::FsError::NoSpace) || tries == TRIES {
            break (stored, dir, None);
        }
        match wait_for_room(host, true, until, &mut waits) {
            Ok(true) => {}
            Ok(false) => break (stored, dir, None),
            Err(error) => break (stored, dir, Some(error)),
        }
    };
    let synced = if stored.is_ok() { host.sync().map(|_| ()) } else { Ok(()) };
    // Whatever came of it: names may be others than the kernel remembers.
    if let Ok(dir) = dir {
        host.retention_changed(dir.ino);
    }
    if let Some(error) = gone {
        return Err(error);
    }
    stored.map_err(|e| {
        let error =
            ControlError::io("writing .silt/retention", &std::io::Error::from_raw_os_error(e.errno()));
        if e == silt_fs::FsError::NoSpace { error.hint("delete something first") } else { error }
    })?;
    synced?;
    let e = effective(host);
    for (set, from, option) in [
        (retain.wish.is_some(), e.wish_from, "retain= or pp="),
        (retain.floor.is_some(), e.floor_from, "keep="),
    ] {
        if set && from == Source::Mount {
            let text =
                format!("the mount option {option} goes before it as long as the volume is mounted with it");
            out(Response::Notice(text))?;
        }
    }
    show(host, out)
}

/// Says what a wish would bring.
pub fn preview(host: &dyn Host, retain: &Retain, out: Out<'_>) -> Result<()> {
    let e = effective(host);
    // What would count if the volume's file said nothing.
    let silent = Effective::of(&host.retention_given(), Ok(Settings::default()));
    let tried = |given: &Option<String>, now: Wish, silent: Wish| {
        Ok::<_, ControlError>(words(given.as_deref())?.map_or(now, |asked| asked.unwrap_or(silent)))
    };
    let wish = tried(&retain.wish, e.wish, silent.wish)?;
    let floor = tried(&retain.floor, e.floor, silent.floor)?;
    let access = Via(host);
    let history = History::read(&access)?;
    let clock = silt_cleaner::clock(&access, host.now())?;
    let kept = Ladder::new(&wish, &floor).kept(0, &history.points, &clock);
    let p = silt_cleaner::preview(&access, &history, &kept)?;
    let (block, segment) = with(host, |v| {
        let g = v.geometry();
        (u64::from(g.block_size), u64::from(g.blocks_per_segment))
    })?;
    out(Response::RetentionPreview(Box::new(RetentionPreview {
        wish: wish.to_string(),
        floor: floor.to_string(),
        moments: p.moments,
        gone: p.gone,
        bytes: p.blocks.saturating_mul(block),
        unused: p.unused.saturating_mul(block),
        segment_size: segment.saturating_mul(block),
    })))
}
