//! The wish of a volume: where it is kept, and which one counts.
//!
//! It lies in an ordinary file of the volume, `.silt/retention`, and so every moment has the one that counted then.
//! Mount options go before it; without either there is a default. Where others may write into the root directory they can
//! make such a file as well: it counts only if it is root's or the root directory's owner's.
//!
//! A floor is a promise. Where the file cannot be told, what it said last holds; where that is not known either, all of the
//! past is kept, for the floor may be that. What is made from then on goes when space is short: deletions make checkpoints,
//! and would fill the volume with them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use silt_engine::{Time, Tree};
use silt_format::Ino;
use silt_fs::{Context, Fs, FsError, Stat, WriteFlags};
use silt_retention::{LARGEST, Settings, Wish};

/// The directory and the file in it.
pub const DIR: &[u8] = b".silt";
pub const FILE: &[u8] = b"retention";
/// What a new file is called until it is whole.
pub const NEW: &[u8] = b"retention.new";

/// What comes of a floor that is not known.
const PROTECTED: &str = "; no moment that was there by then is given up, since what was to be kept whatever comes is not known: say it with \
    the mount option keep=, or with silt retain --keep and the wish, both";

/// What was said when the volume was mounted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given {
    /// `retain=`
    pub wish: Option<Wish>,
    /// `keep=`
    pub floor: Option<Wish>,
    /// `pp=`: everything younger than so many seconds is part of the wish.
    pub protection: Option<u64>,
    /// The same in a file of the original cleaner's, for where nobody else says what is kept.
    pub file_protection: Option<u64>,
}

/// Where something comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Nobody said anything.
    Default,
    /// The file on the volume.
    Volume,
    /// A mount option.
    Mount,
    /// `nilfs_cleanerd.conf`.
    File,
    /// It is not known what the volume says: as if it were everything there was when that was found.
    Unknown,
}

/// What counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effective {
    pub wish: Wish,
    pub wish_from: Source,
    pub floor: Wish,
    pub floor_from: Source,
    /// Why the file on the volume does not count, where it should.
    pub problem: Option<String>,
}

/// Why the file on a volume does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// What it says is not known: it cannot be read, or makes no sense.
    Unknown(String),
    /// It is not of those who say what is kept: as if there were none.
    Foreign(String),
}

impl Problem {
    fn into_text(self) -> String {
        match self {
            Problem::Unknown(text) | Problem::Foreign(text) => text,
        }
    }
}

/// For so long a file that is gone may be one that an editor has moved away.
const AWAY: Duration = Duration::from_secs(10);
/// Where nobody has looked for so long, it may have been there meanwhile.
const LOOKED: Duration = Duration::from_secs(600);

/// What a volume's file said when it could be told last.
#[derive(Debug, Default)]
pub struct Known(Mutex<Said>);

#[derive(Debug, Default)]
struct Said {
    last: Option<Settings>,
    /// Since when it is found gone, and when that was last.
    away: Option<(Instant, Instant)>,
    /// The newest checkpoint when the file could not be told, and never had been.
    unknown_from: Option<u64>,
}

impl Known {
    fn said(&self) -> MutexGuard<'_, Said> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what the file says now.
    pub fn note(&self, settings: &Settings) {
        *self.said() = Said { last: Some(settings.clone()), ..Said::default() };
    }

    /// What it said last, of one that is there and cannot be told; none where it never could be.
    pub fn last(&self) -> Option<Settings> {
        let mut said = self.said();
        said.away = None;
        said.last.clone()
    }

    /// What it said last, of one that is not there, as long as it may come back; none where it said nothing.
    pub fn while_away(&self, now: Instant) -> Option<Settings> {
        let mut said = self.said();
        let last = said.last.clone().filter(|last| *last != Settings::default())?;
        // Nobody may have looked while it was there.
        let (since, _) = said
            .away
            .filter(|(_, seen)| now.saturating_duration_since(*seen) <= LOOKED)
            .unwrap_or((now, now));
        said.away = Some((since, now));
        (now.saturating_duration_since(since) < AWAY).then_some(last)
    }

    /// For how long at most that holds from now on; none where it is not away.
    pub fn may_be_away_for(&self) -> Option<Duration> {
        self.said().away.map(|_| AWAY)
    }

    /// The newest checkpoint, `now`, or the one that was the newest when this was asked first.
    fn unknown_from(&self, now: u64) -> u64 {
        *self.said().unknown_from.get_or_insert(now)
    }
}

impl Effective {
    /// Of what was given, of what the volume says, and else the default.
    pub fn of(given: &Given, volume: Result<Settings, Problem>) -> Self {
        let is_unknown = matches!(volume, Err(Problem::Unknown(_)));
        let (volume, mut problem) = match volume {
            Ok(settings) => (settings, None),
            Err(problem) => (Settings::default(), Some(problem.into_text())),
        };
        let (wish, wish_from) = match (&given.wish, volume.wish, given.protection) {
            (Some(wish), _, pp) => (with(wish, pp), Source::Mount),
            (None, Some(wish), pp) => (with(&wish, pp), Source::Volume),
            // What was wished for is not known: nothing goes for it as long as there is space.
            (None, None, _) if is_unknown => (Wish::everything(), Source::Unknown),
            (None, None, Some(seconds)) => (Wish::protecting(seconds), Source::Mount),
            (None, None, None) => match given.file_protection {
                Some(seconds) => (Wish::protecting(seconds), Source::File),
                None => (Wish::usual(), Source::Default),
            },
        };
        let (floor, floor_from) = match (&given.floor, volume.floor) {
            (Some(floor), _) => (floor.clone(), Source::Mount),
            (None, Some(floor)) => (floor, Source::Volume),
            (None, None) if is_unknown => (Wish::everything(), Source::Unknown),
            (None, None) => (Wish::nothing(), Source::Default),
        };
        if floor_from == Source::Unknown
            && let Some(problem) = &mut problem
        {
            problem.push_str(PROTECTED);
        }
        Effective { wish, wish_from, floor, floor_from, problem }
    }

    /// Of a file system and how it was mounted, and where its file cannot be told, or is away for a moment, of what that said
    /// last.
    pub fn read(fs: &mut Fs, given: &Given, known: &Known) -> Self {
        let volume = read(fs);
        let (last, why) = match &volume {
            Ok(None) => (known.while_away(Instant::now()), ".silt/retention is not there"),
            Err(Problem::Unknown(text)) => (known.last(), &text[..]),
            _ => (None, ""),
        };
        if let Some(last) = last {
            let problem = Some(format!("{why}; what it said before holds"));
            return Effective { problem, ..Effective::of(given, Ok(last)) };
        }
        let volume = volume.map(Option::unwrap_or_default);
        match &volume {
            Ok(settings) => known.note(settings),
            // As if there were none.
            Err(Problem::Foreign(_)) => known.note(&Settings::default()),
            Err(Problem::Unknown(_)) => {}
        }
        let mut counts = Effective::of(given, volume);
        if counts.floor_from == Source::Unknown {
            let from = known.unknown_from(fs.volume().last_log().cno);
            counts.floor = counts.floor.up_to(from);
        }
        counts
    }
}

/// What a cleaning is planned by. A floor that was stored since, and told to be, holds for it as well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedBy {
    /// None where whoever asks says himself what he wishes.
    pub wish: Option<Wish>,
    pub floor: Wish,
}

impl PlannedBy {
    /// What counts.
    pub fn all_of(counts: &Effective) -> Self {
        PlannedBy { wish: Some(counts.wish.clone()), floor: counts.floor.clone() }
    }

    /// Whether that is what counts now.
    pub fn still_counts(&self, now: &Effective) -> bool {
        self.wish.as_ref().is_none_or(|wish| *wish == now.wish) && self.floor == now.floor
    }
}

/// What is kept of the past, and what went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// In words.
    pub wish: String,
    pub wish_from: Source,
    /// What is kept even where it leaves no space, in words.
    pub floor: String,
    pub floor_from: Source,
    /// Why the volume's file does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Plain checkpoints that there are, and snapshots.
    pub moments: u64,
    pub snapshots: u64,
    /// What the cleaner gave up since the volume was mounted; none where it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given_up: Option<GivenUp>,
}

/// What the cleaner gave up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenUp {
    /// Moments that went as the wish has it.
    pub as_wished: u64,
    /// Moments that went beyond it, for want of space.
    pub beyond: u64,
    /// When that was last, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<u64>,
    /// All that was kept then, in words, besides the floor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_to: Option<String>,
}

/// What a wish would bring.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetentionPreview {
    /// In words.
    pub wish: String,
    pub floor: String,
    /// Plain checkpoints that there are, and those of them that would go.
    pub moments: u64,
    pub gone: u64,
    /// Bytes that only those hold.
    pub bytes: u64,
    /// Bytes in use that no moment needs, the ends of segments included: a cleaning frees most of them in any case.
    pub unused: u64,
    /// Bytes of a segment.
    pub segment_size: u64,
}

fn with(wish: &Wish, protection: Option<u64>) -> Wish {
    protection.map_or_else(|| wish.clone(), |seconds| wish.and_all(seconds))
}

/// Whether only root and the owner of the root directory have made it what it is. The group of the root directory may write
/// into it: that is how a umask of 002 makes it.
fn is_theirs(root: &Stat, stat: &Stat) -> bool {
    let others = if stat.gid == root.gid { 0o002 } else { 0o022 };
    (stat.uid == 0 || stat.uid == root.uid) && stat.mode & others == 0
}

/// Whose something is, or who else may write there, for people.
fn whose(root: &Stat, stat: &Stat) -> String {
    if stat.uid != 0 && stat.uid != root.uid {
        return format!("belongs to user {}, and not to root or the owner of the root directory", stat.uid);
    }
    format!("can be written by others (mode {:03o})", stat.mode & 0o777)
}

/// What the file on a volume says; `None` where there is none. Else what is wrong with it.
pub fn read(fs: &mut Fs) -> Result<Option<Settings>, Problem> {
    let text = |what: String| format!(".silt/retention does not count: {what}");
    let about = |what: String| Problem::Unknown(text(what));
    // A link has a mode that means nothing.
    let unfit = |root: &Stat, stat: &Stat, name: &str, what: &str| {
        if stat.uid == 0 || stat.uid == root.uid {
            return about(format!("{name} is {what}"));
        }
        Problem::Foreign(text(format!("{name} {}", whose(root, stat))))
    };
    let mut found = || {
        let dir = fs.lookup(Tree::Live, Ino::ROOT, DIR)?;
        Ok((fs.getattr(Tree::Live, Ino::ROOT)?, fs.lookup(Tree::Live, dir.ino, FILE)?, dir))
    };
    let (root, stat, dir) = match found() {
        Ok(found) => found,
        Err(FsError::NotFound) => return Ok(None),
        Err(FsError::NotDir) => {
            let root = fs.getattr(Tree::Live, Ino::ROOT).map_err(|e| about(e.to_string()))?;
            let stat = fs.lookup(Tree::Live, Ino::ROOT, DIR).map_err(|e| about(e.to_string()))?;
            return Err(unfit(&root, &stat, ".silt", "no directory"));
        }
        Err(e) => return Err(about(e.to_string())),
    };
    if !is_theirs(&root, &dir) {
        return Err(Problem::Foreign(text(format!("the directory .silt {}", whose(&root, &dir)))));
    }
    if !stat.is_regular() {
        return Err(unfit(&root, &stat, "it", "no plain file"));
    }
    if !is_theirs(&root, &stat) {
        return Err(Problem::Foreign(text(format!("it {}", whose(&root, &stat)))));
    }
    // Who edits it cuts it off first, and the new words may have to wait for space.
    if stat.size == 0 {
        return Err(about("it is empty".to_owned()));
    }
    let bytes = fs.read(Tree::Live, stat.ino, 0, LARGEST + 1).map_err(|e| about(e.to_string()))?;
    Settings::parse(&bytes).map(Some).map_err(|e| about(e.to_string()))
}

/// Why a file that is put in place would not count; none where it would.
pub fn in_the_way(fs: &mut Fs) -> Option<String> {
    let root = fs.getattr(Tree::Live, Ino::ROOT).ok()?;
    let dir = fs.lookup(Tree::Live, Ino::ROOT, DIR).ok()?;
    if !dir.is_dir() {
        return Some("is no directory".to_owned());
    }
    (!is_theirs(&root, &dir)).then(|| whose(&root, &dir))
}

/// Puts the file in place, whole or not at all; it belongs to whom the root directory belongs.
pub fn store(fs: &mut Fs, settings: &Settings, now: Time) -> Result<(), FsError> {
    let root = fs.getattr(Tree::Live, Ino::ROOT)?;
    let ctx = Context { uid: root.uid, gid: root.gid, now, privileged: true, ..Context::default() };
    let dir = match fs.lookup(Tree::Live, Ino::ROOT, DIR) {
        Err(FsError::NotFound) => fs.mkdir(&ctx, Ino::ROOT, DIR, 0o755)?,
        other => other?,
    };
    if !dir.is_dir() {
        return Err(FsError::NotDir);
    }
    match fs.unlink(&ctx, dir.ino, NEW) {
        Ok(_) | Err(FsError::NotFound) => {}
        Err(e) => return Err(e),
    }
    let file = fs.create(&ctx, dir.ino, NEW, 0o644)?;
    let text = settings.text();
    let made = match fs.write(&ctx, file.ino, 0, text.as_bytes(), WriteFlags::default()) {
        Ok(n) if n < text.len() => Err(FsError::NoSpace),
        Ok(_) => fs.rename(&ctx, dir.ino, NEW, dir.ino, FILE, 0),
        Err(e) => Err(e),
    };
    if let Err(e) = made {
        // It would be in the way of nobody.
        let _ = fs.unlink(&ctx, dir.ino, NEW);
        return Err(e);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_gone_counts_a_while_and_no_longer() {
        let begin = Instant::now();
        let after = |secs| begin + Duration::from_secs(secs);
        let known = Known::default();
        assert_eq!(known.while_away(begin), None, "nobody knows of one");
        known.note(&Settings::default());
        assert_eq!(known.while_away(begin), None, "it said nothing");
        let said = Settings { wish: None, floor: "all for 1 day".parse().ok() };
        known.note(&said);
        for (secs, holds) in [(1, true), (10, true), (11, false), (12, false)] {
            assert_eq!(known.while_away(after(secs)), holds.then(|| said.clone()), "after {secs} seconds");
        }
        // It was there between, whether it could be told or not.
        assert_eq!(known.last(), Some(said.clone()));
        assert_eq!(known.while_away(after(20)), Some(said.clone()));
        known.note(&said);
        assert_eq!(known.while_away(after(40)), Some(said.clone()));
        // Nor has to be known of.
        assert_eq!(known.while_away(after(5000)), Some(said));
        assert_eq!(known.while_away(after(5010)), None);
    }

    #[test]
    fn mount_options_go_before_the_file_and_that_before_the_default() {
        let wish = |text: &str| text.parse::<Wish>().unwrap();
        let unknown = || Err(Problem::Unknown("broken".to_owned()));
        let file = |w: Option<&str>| Ok(Settings { wish: w.map(wish), floor: None });
        let none = Given::default();
        let of = |given: &Given, volume| {
            let e = Effective::of(given, volume);
            (e.wish.to_string(), e.wish_from)
        };
        assert_eq!(of(&none, file(None)), (Wish::usual().to_string(), Source::Default));
        assert_eq!(of(&none, file(Some("nothing"))), ("nothing".to_owned(), Source::Volume));
        let pp = Given { protection: Some(60), ..Given::default() };
        assert!(of(&pp, file(None)).0.starts_with("all for 1 minute, one an hour for 1 month"));
        let conf = Given { file_protection: Some(3600), ..Given::default() };
        assert_eq!(of(&conf, file(None)).1, Source::File);
        assert!(of(&conf, file(None)).0.starts_with("all for 1 hour, one an hour for 1 month"));
        for given in [&conf, &pp] {
            assert_eq!(of(given, unknown()), ("all for ever".to_owned(), Source::Unknown));
        }
        assert_eq!(of(&conf, file(Some("nothing"))), ("nothing".to_owned(), Source::Volume));
        let both = Given { protection: Some(60), ..conf };
        assert!(of(&both, file(None)).0.starts_with("all for 1 minute,"), "{:?}", of(&both, file(None)));
        let day = file(Some("one a day for ever"));
        assert_eq!(of(&pp, day.clone()).0, "all for 1 minute, one a day for ever");
        let given = Given { wish: Some(wish("all for ever")), floor: Some(wish("all for 1 hour")), ..pp };
        assert_eq!(of(&given, day.clone()), ("all for ever".to_owned(), Source::Mount));
        let e = Effective::of(&none, unknown());
        assert_eq!((&e.wish, &e.floor), (&Wish::everything(), &Wish::everything()));
        assert!(
            e.problem.is_some_and(|p| p.starts_with("broken; no moment that was there by then is given up"))
        );
        let e = Effective::of(&given, unknown());
        assert_eq!((e.floor.to_string(), e.floor_from), ("all for 1 hour".to_owned(), Source::Mount));
        assert_eq!(e.problem.as_deref(), Some("broken"));
        let e = Effective::of(&none, Err(Problem::Foreign("not yours".to_owned())));
        assert_eq!((e.wish, e.problem.as_deref()), (Wish::usual(), Some("not yours")));
    }
}
