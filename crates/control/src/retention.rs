//! The wish of a volume: where it is kept, and which one counts.
//!
//! It lies in an ordinary file of the volume, `.silt/retention`, and so every moment has the one that counted then.
//! Mount options go before it; without either there is a default.

use serde::{Deserialize, Serialize};
use silt_engine::{Time, Tree};
use silt_format::Ino;
use silt_fs::{Context, Fs, FsError, WriteFlags};
use silt_retention::{LARGEST, Settings, Wish};

/// The directory and the file in it.
pub const DIR: &[u8] = b".silt";
pub const FILE: &[u8] = b"retention";
/// What a new file is called until it is whole.
const NEW: &[u8] = b"retention.new";

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

impl Effective {
    /// Of what was given, of what the volume says, and else the default.
    pub fn of(given: &Given, volume: Result<Settings, String>) -> Self {
        let (volume, problem) = match volume {
            Ok(settings) => (settings, None),
            Err(problem) => (Settings::default(), Some(problem)),
        };
        let (wish, wish_from) = match (&given.wish, volume.wish, given.protection) {
            (Some(wish), _, pp) => (with(wish, pp), Source::Mount),
            (None, Some(wish), pp) => (with(&wish, pp), Source::Volume),
            // What was wished for is not known: nothing goes for it as long as there is space.
            (None, None, _) if problem.is_some() => (Wish::everything(), Source::Default),
            (None, None, Some(seconds)) => (Wish::protecting(seconds), Source::Mount),
            (None, None, None) => match given.file_protection {
                Some(seconds) => (Wish::protecting(seconds), Source::File),
                None => (Wish::usual(), Source::Default),
            },
        };
        let (floor, floor_from) = match (&given.floor, volume.floor) {
            (Some(floor), _) => (floor.clone(), Source::Mount),
            (None, Some(floor)) => (floor, Source::Volume),
            (None, None) => (Wish::nothing(), Source::Default),
        };
        Effective { wish, wish_from, floor, floor_from, problem }
    }

    /// Of a file system and how it was mounted.
    pub fn read(fs: &mut Fs, given: &Given) -> Self {
        Effective::of(given, read(fs))
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

/// What the file on a volume says; nothing where there is none. Else what is wrong with it, in words.
pub fn read(fs: &mut Fs) -> Result<Settings, String> {
    let about = |what: String| format!(".silt/retention does not count: {what}");
    let found = fs.lookup(Tree::Live, Ino::ROOT, DIR).and_then(|dir| fs.lookup(Tree::Live, dir.ino, FILE));
    let stat = match found {
        Ok(stat) => stat,
        Err(FsError::NotFound | FsError::NotDir) => return Ok(Settings::default()),
        Err(e) => return Err(about(e.to_string())),
    };
    if !stat.is_regular() {
        return Err(about("it is no plain file".to_owned()));
    }
    let bytes = fs.read(Tree::Live, stat.ino, 0, LARGEST + 1).map_err(|e| about(e.to_string()))?;
    Settings::parse(&bytes).map_err(|e| about(e.to_string()))
}

/// Puts the file in place, whole or not at all; it belongs to whom the root directory belongs. Returns the directory
/// it lies in.
pub fn store(fs: &mut Fs, settings: &Settings, now: Time) -> Result<Ino, FsError> {
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
    Ok(dir.ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_options_go_before_the_file_and_that_before_the_default() {
        let wish = |text: &str| text.parse::<Wish>().unwrap();
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
            assert_eq!(of(given, Err("broken".to_owned())), ("all for ever".to_owned(), Source::Default));
        }
        assert_eq!(of(&conf, file(Some("nothing"))), ("nothing".to_owned(), Source::Volume));
        let both = Given { protection: Some(60), ..conf };
        assert!(of(&both, file(None)).0.starts_with("all for 1 minute,"), "{:?}", of(&both, file(None)));
        let day = file(Some("one a day for ever"));
        assert_eq!(of(&pp, day.clone()).0, "all for 1 minute, one a day for ever");
        let given = Given { wish: Some(wish("all for ever")), floor: Some(wish("all for 1 hour")), ..pp };
        assert_eq!(of(&given, day.clone()), ("all for ever".to_owned(), Source::Mount));
        let e = Effective::of(&none, Err("broken".to_owned()));
        assert_eq!((e.wish, e.problem.as_deref()), (Wish::everything(), Some("broken")));
    }
}
