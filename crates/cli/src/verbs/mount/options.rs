//! Mount options: the kernel's, ours, and those that mount(8) passes to everybody.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use silt_control::{ControlError, Kind, Moment, brief};
use silt_daemon::{Conf, ConfError, MountOptions, OnError};
use silt_names::quoted;
use silt_retention::Wish;

use crate::failure::{Failure, Result};
use crate::{size, times};

/// For `--help` and the man page.
pub const HELP: &str = "\
Mount options:
  ro, rw                 read-only (writes not one byte), or read-write (default)
  at=NUMBER, at=TIME     show a past moment: a checkpoint's or snapshot's number, or the newest
                         moment at a time: 2026-11-21T14:03:05, 2026-11-21 14:03 (to the end of
                         that minute, as with an hour or a day), 14:00, yesterday 2pm, last monday,
                         Nov 21, 10 minutes ago, now or @SECONDS since 1970; implies ro. Quote one
                         with blanks, or write _ for them: -o at='last monday'
  cp=NUMBER              show a snapshot; needs ro (at=NUMBER implies it)
  rescue=BLOCK           of a damaged volume, show what silt rescue found: the checkpoint whose
                         log begins at BLOCK, whatever the super blocks say; implies ro; at=NUMBER
                         shows an older one through it
  interval=SECONDS       time between checkpoints while something changes (default: what silt tune
                         set, else 5)
  cache=SIZE             memory for metadata, directory indexes and known files (default 128M)
  dirty=SIZE             limit of data not yet written, frozen and new together (default 256M);
                         beyond it writers are slowed to the speed of the device
  order=relaxed|strict   relaxed (default): an fdatasync that changed only data need not make a
                         checkpoint; strict: every sync makes one
  barrier, nobarrier     flush the device's cache where durability is promised (default), or never
  errors=continue        an error in metadata is EIO for what has it, and nothing more (default)
  errors=remount-ro      after one nothing is written any more
  errors=panic           is treated as remount-ro
  norecovery             do not look for synced data behind the newest checkpoint; needs ro on a
                         volume that was not cleanly unmounted
  direct                 all requests go around the host's page cache, not only large ones
  sync, dirsync          answer every change, every change of a directory, only when it is durable
                         (default: async)
  allow_other            let other users in (default for root; others need user_allow_other in
                         /etc/fuse.conf); noallow_other, with which the kernel need not check
                         permissions for root: a fifth more creates a second, half as many
                         deletions again. A moment beside a mount is as open as that, unless one
                         of them is said
  suid, dev              honour set-user-id bits, device nodes; root only (default: nosuid, nodev)
  exec, noexec           allow programs to be run (default), or not
  fuseblk, nofuseblk     as root, mount on a block device where sync(2) reaches it then (default)
  verify, noverify       the first read from a log holds all of it against its checksum, once a
                         mount; new logs of file data are kept to 1 MiB (default: noverify)
  io_uring, noio_uring   requests come through io_uring (Linux 6.14), for several programs at
                         once, where /sys/module/fuse/parameters/enable_uring says Y (default:
                         noio_uring)
  remount                of what is mounted already, change ro, rw, suid, dev and exec; root only
  gc, nogc               empty segments when few are clean (default), or leave that to silt clean
  retain=WORDS           what is kept of the past as long as there is space, as silt retain has
                         it, with ; or + for commas (default: what the volume says, else all for a
                         day and ever less of what is older)
  keep=WORDS             what is kept even where it leaves no space (default: what the volume
                         says, else nothing)
  pp=SECONDS             everything younger than this is part of that wish (of the default one in
                         place of the day)
  policy=NAME            the order in which segments are emptied: cost-benefit (default), greedy,
                         oldest or wear-levelling
  cleanerd_conf[=FILE]   clean as /etc/nilfs_cleanerd.conf, or FILE, has it, where no option says
                         otherwise
  discard, nodiscard     tell the device of segments that became free, or do not; an image file is
                         made sparse there (default: discard for image files, nodiscard for
                         devices)
Options that mount(8) and fstab know (defaults, noauto, user, nofail, noatime, x-..., ...) are
accepted. Access times are kept in memory only, whatever is asked.";

/// Said where io_uring is asked for and cannot be had.
const NO_RINGS: &str = "requests do not come through io_uring: this needs Linux 6.14 or newer, and before mounting \
                        echo Y > /sys/module/fuse/parameters/enable_uring";

/// Parsed options.
#[derive(Debug, Clone)]
pub struct Options {
    /// For the daemon; `read_only` and `moment` are set by [`Options::for_daemon`].
    pub daemon: MountOptions,
    pub read_only: bool,
    /// Change what is mounted already.
    pub remount: bool,
    /// It was said that it shall be for writing.
    rw: bool,
    /// Whether others are let in, where that was said.
    pub allow_other: Option<bool>,
    /// The moment to show, and whether it must be a snapshot.
    pub at: Option<(Moment, bool)>,
    /// The log through which a damaged volume is read.
    pub rescue: Option<u64>,
    /// What is to be said of them once they are obeyed.
    pub notes: Vec<String>,
    /// The text for the process in the background.
    pub text: OsString,
}

/// What a file is named behind, whose name need be no UTF-8.
const CONF: &[u8] = b"cleanerd_conf=";

/// The options of one value.
pub fn words_of(value: &OsStr) -> impl Iterator<Item = &OsStr> {
    value.as_bytes().split(|byte| *byte == b',').map(OsStr::from_bytes)
}

/// Options that mean nothing here and are no mistake.
const NEUTRAL: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "nofail",
    "_netdev",
    "atime",
    "noatime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "diratime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "silent",
    "loud",
    "mand",
    "nomand",
    "iversion",
    "noiversion",
    "loop",
    "rw",
];
const NEUTRAL_WITH_VALUE: &[&str] = &["comment", "uhelper", "helper", "user", "loop", "fsname", "subtype"];

impl Options {
    /// Parses the values of `-o`. `sloppy`: unknown options are left out.
    pub fn parse<'a>(values: impl Iterator<Item = &'a OsStr>, sloppy: bool) -> Result<Self> {
        let mut options = Options {
            daemon: MountOptions::default(),
            read_only: false,
            remount: false,
            at: None,
            rescue: None,
            rw: false,
            allow_other: None,
            notes: Vec::new(),
            text: OsString::new(),
        };
        let mut text = Vec::new();
        for word in values.flat_map(words_of).filter(|word| !word.is_empty()) {
            if let Some(file) = word.as_bytes().strip_prefix(CONF).filter(|file| !file.is_empty()) {
                // The process in the background is somewhere else.
                let file = Path::new(OsStr::from_bytes(file));
                let file = std::path::absolute(file).map_err(|e| ControlError::io(file.display(), &e))?;
                options.go_by(&file)?;
                let mut word = OsStr::from_bytes(CONF).to_owned();
                word.push(file);
                text.push(word);
                continue;
            }
            let is_known = match word.to_str() {
                Some(word) => match word.split_once('=') {
                    Some((name, value)) => options.set(name, Some(value))?,
                    None => options.set(word, None)?,
                },
                None => false,
            };
            if !is_known && !sloppy {
                return Err(ControlError::new(
                    Kind::Invalid,
                    format!("there is no mount option {:?}", brief(&word.to_string_lossy())),
                )
                .hint("silt mount --help lists them")
                .into());
            }
            text.push(word.to_owned());
        }
        // Unknown ones are left out already for whoever parses this again.
        options.text = text.join(OsStr::new(","));
        Ok(options)
    }

    /// Goes by what a file for the cleaner of nilfs-utils says.
    fn go_by(&mut self, file: &Path) -> Result<()> {
        self.daemon.go_by(Conf::read(file).map_err(|e| wrong_file(&e))?);
        Ok(())
    }

    /// Takes one option; false if there is none of this name.
    fn set(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        let d = &mut self.daemon;
        match (name, value) {
            ("ro" | "rw", None) => (self.read_only, self.rw) = (name == "ro", name == "rw"),
            ("at", Some(v)) => {
                self.at = Some((Moment::parse(v)?, false));
                self.notes.extend(times::to_come(v));
            }
            ("cp", Some(v)) => match Moment::parse(v)? {
                at @ Moment::Checkpoint(_) => self.at = Some((at, true)),
                Moment::Time(_) => return Err(bad(name, v, "a checkpoint number")),
            },
            ("rescue", Some(v)) => {
                self.rescue = Some(v.parse().map_err(|_| bad(name, v, "the number of a block"))?);
            }
            ("interval", Some(v)) => d.interval = Some(interval(v)?),
            ("cache", Some(v)) => d.cache = bytes(name, v)?,
            ("dirty", Some(v)) => d.dirty = bytes(name, v)?,
            ("order", Some("relaxed")) => d.order_strict = false,
            ("order", Some("strict")) => d.order_strict = true,
            ("order", Some(v)) => return Err(bad(name, v, "relaxed or strict")),
            ("barrier", None) => d.barrier = true,
            ("nobarrier", None) => d.barrier = false,
            ("errors", Some("continue")) => d.on_error = OnError::Continue,
            ("errors", Some("remount-ro")) => d.on_error = OnError::RemountReadOnly,
            ("errors", Some("panic")) => {
                d.on_error = OnError::RemountReadOnly;
                self.notes.push("errors=panic is treated as errors=remount-ro".to_owned());
            }
            ("errors", Some(v)) => return Err(bad(name, v, "continue, remount-ro or panic")),
            ("norecovery", None) => d.norecovery = true,
            ("direct", None) => d.direct = true,
            ("nodirect", None) => d.direct = false,
            ("allow_other" | "noallow_other", None) => {
                d.allow_other = name == "allow_other";
                self.allow_other = Some(d.allow_other);
            }
            ("suid", None) => d.suid = true,
            ("nosuid", None) => d.suid = false,
            ("dev", None) => d.dev = true,
            ("nodev", None) => d.dev = false,
            ("exec", None) => d.exec = true,
            ("noexec", None) => d.exec = false,
            ("fuseblk", None) => d.block_type = true,
            ("nofuseblk", None) => d.block_type = false,
            ("verify", None) => d.verify = true,
            ("noverify", None) => d.verify = false,
            ("io_uring", None) => {
                d.io_uring = true;
                if !silt_fuse::io_uring_is_on() {
                    self.notes.push(NO_RINGS.to_owned());
                }
            }
            ("noio_uring", None) => d.io_uring = false,
            ("pp", Some(v)) => {
                let seconds = v.parse().map_err(|_| bad(name, v, "a number of seconds"))?;
                d.retention.protection = Some(seconds);
            }
            ("retain", Some(v)) => d.retention.wish = Some(words(name, v)?),
            ("keep", Some(v)) => d.retention.floor = Some(words(name, v)?),
            ("discard", None) => d.discard = Some(true),
            ("nodiscard", None) => d.discard = Some(false),
            ("gc", None) => d.gc = true,
            ("nogc", None) => d.gc = false,
            ("policy", Some(v)) => {
                let policy = v.parse().map_err(|e| Failure::usage(format!("{name}={v}: {e}")))?;
                d.cleaner.policy = Some(policy);
            }
            ("cleanerd_conf", None) => self.go_by(Path::new(silt_daemon::USUAL))?,
            ("remount", None) => self.remount = true,
            ("sync", None) => d.sync = true,
            ("async", None) => d.sync = false,
            ("dirsync", None) => d.dirsync = true,
            (name, None) if NEUTRAL.contains(&name) || name.starts_with("x-") || name.starts_with("X-") => {}
            (name, Some(_))
                if NEUTRAL_WITH_VALUE.contains(&name) || name.starts_with("x-") || name.starts_with("X-") => {
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Notes that it is mounted read-only all the same, where something else was said.
    pub fn note_what_is_in_vain(&mut self) {
        if self.rw && (self.at.is_some() || self.rescue.is_some()) {
            let note = "a moment of the past cannot be written: it is mounted read-only";
            self.notes.push(note.to_owned());
        }
    }

    /// Checks what depends on more than one option.
    pub fn check(&self) -> Result<()> {
        if self.at.is_some_and(|(_, snapshot_only)| snapshot_only) && !self.read_only {
            return Err(ControlError::new(Kind::Invalid, "cp= needs ro: a snapshot cannot be written to")
                .hint("say -o ro,cp=NUMBER, or -o at=NUMBER, which implies ro")
                .into());
        }
        if self.rescue.is_some() && matches!(self.at, Some((Moment::Time(_), _))) {
            let error = ControlError::new(Kind::Invalid, "with rescue= a moment is named by its number");
            return Err(error.hint("silt rescue VOLUME lists them").into());
        }
        let needs_root = self.daemon.suid || self.daemon.dev;
        if needs_root && !rustix::process::geteuid().is_root() {
            let error = ControlError::new(Kind::NotPermitted, "only root may mount with suid or dev");
            return Err(error.hint("leave them out, or become root").into());
        }
        Ok(())
    }

    /// What the daemon gets.
    pub fn for_daemon(&self, moment: Option<u64>) -> MountOptions {
        MountOptions {
            read_only: self.read_only || moment.is_some() || self.rescue.is_some(),
            moment: moment.map(silt_daemon::Moment),
            ..self.daemon.clone()
        }
    }
}

fn bad(name: &str, value: &str, wanted: &str) -> Failure {
    let message = format!("{name}={}: this takes {wanted}", brief(value));
    ControlError::new(Kind::Invalid, message).hint("silt mount --help says what each option takes").into()
}

fn wrong_file(e: &ConfError) -> Failure {
    /// Cleaning needs no such file.
    const OTHERWISE: &str = "name the file there is: -o cleanerd_conf=FILE; or leave the option out";
    match e {
        ConfError::Unreadable { path, source } => ControlError::io(path.display(), source).hint(OTHERWISE),
        ConfError::NoFile { .. } => ControlError::new(Kind::Invalid, e.to_string()).hint(OTHERWISE),
        ConfError::Value { path, .. } => ControlError::new(Kind::Invalid, e.to_string())
            .hint(format!("mend it in {}, or leave the option cleanerd_conf out", quoted(path))),
    }
    .into()
}

fn words(name: &str, text: &str) -> Result<Wish> {
    text.parse().map_err(|e| {
        ControlError::new(Kind::Invalid, format!("{name}={}: {e}", brief(text)))
            .hint("such as: all for 1 day; one an hour for 1 month; one a day for ever")
            .into()
    })
}

fn interval(text: &str) -> Result<Duration> {
    let number = text.strip_suffix('s').unwrap_or(text);
    let seconds: f64 = number.parse().map_err(|_| bad("interval", text, "a number of seconds"))?;
    // A day is longer than anybody wants to lose.
    if !(0.01..=86_400.0).contains(&seconds) {
        return Err(bad("interval", text, "0.01 to 86400 seconds"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn bytes(name: &str, text: &str) -> Result<u64> {
    /// Less than this no file system can work in.
    const LEAST: u64 = 4 << 20;
    let bytes = size::parse(text).map_err(|e| Failure::usage(format!("{name}={text}: {e}")))?;
    if bytes < LEAST {
        return Err(bad(name, text, "at least 4M"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options> {
        Options::parse(std::iter::once(OsStr::new(text)), false)
    }

    #[test]
    fn the_kernels_options_and_ours_are_understood() {
        let o = parse("ro,cp=7,norecovery,order=strict,nobarrier,errors=panic,discard,pp=60,nogc").unwrap();
        assert!(o.read_only && o.daemon.norecovery && o.daemon.order_strict && !o.daemon.barrier);
        assert_eq!(o.at, Some((Moment::Checkpoint(7), true)));
        assert_eq!(o.daemon.on_error, OnError::RemountReadOnly);
        o.check().unwrap();
        assert_eq!(o.notes.len(), 1);
        assert!(o.daemon.discard == Some(true) && parse("nodiscard").unwrap().daemon.discard == Some(false));
        assert!(!o.daemon.gc && parse("").unwrap().daemon.gc && o.daemon.retention.protection == Some(60));
        let o =
            parse("retain=all for 1 day;1/hour for 1 month+one_a_day_for_ever,keep=all for 1 hour").unwrap();
        let said = |w: &Option<Wish>| w.as_ref().unwrap().to_string();
        assert_eq!(
            said(&o.daemon.retention.wish),
            "all for 1 day, one an hour for 1 month, one a day for ever"
        );
        assert_eq!(said(&o.daemon.retention.floor), "all for 1 hour");

        let o = parse("interval=0.5,cache=64M,dirty=1G,direct,allow_other,at=9,noexec,io_uring").unwrap();
        assert!(parse("verify").unwrap().daemon.verify && !parse("verify,noverify").unwrap().daemon.verify);
        assert!(o.daemon.io_uring && !parse("io_uring,noio_uring").unwrap().daemon.io_uring);
        assert_eq!(o.daemon.interval, Some(Duration::from_millis(500)));
        assert_eq!((o.daemon.cache, o.daemon.dirty), (64 << 20, 1 << 30));
        assert!(o.daemon.direct && o.daemon.allow_other && !o.daemon.exec);
        let daemon = o.for_daemon(Some(9));
        assert!(daemon.read_only);
        assert_eq!(daemon.moment, Some(silt_daemon::Moment(9)));
    }

    #[test]
    fn what_fstab_says_to_everybody_is_no_mistake() {
        let o =
            parse("defaults,rw,noatime,nofail,_netdev,x-systemd.automount,x-systemd.device-timeout=5,user,,");
        assert!(o.unwrap().check().is_ok());
    }

    #[test]
    fn mistakes_are_told() {
        for text in [
            "nosuchoption",
            "order=x",
            "errors=x",
            "errors",
            "cp=x",
            "cp=0",
            "cp=2026-11-21",
            "at=",
            "interval=0",
            "interval=x",
            "interval=NaN",
            "interval=1e99",
            "cache=1",
            "dirty=x",
            "pp=x",
            "pp",
            "retain=sometimes",
            "keep",
            "ro=1",
            "rescue=x",
            "rescue",
            "policy",
            "policy=newest",
            "cleanerd_conf=",
            "cleanerd_conf=/dev/null",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(Options::parse([OsStr::new("nosuchoption")].into_iter(), true).is_ok(), "sloppy");
        let hint = |result: Result<()>| match result {
            Err(Failure::Error(e)) => e.hint.unwrap(),
            other => panic!("{other:?}"),
        };
        let said = hint(parse("cp=3").unwrap().check());
        assert!(said.contains("-o ro,cp=NUMBER"), "cp without ro: {said}");
        assert!(
            hint(parse("retain=sometimes").map(|_| ())).starts_with("such as: all for 1 day; one an hour")
        );
        assert!(
            parse("rescue=9,at=2026-11-21").unwrap().check().is_err(),
            "a time needs the checkpoint file"
        );
        assert!(parse("rescue=9,at=3").unwrap().for_daemon(Some(3)).read_only);
    }

    #[test]
    fn defaults_are_those_that_the_help_states() {
        let d = MountOptions::default();
        assert!(HELP.contains(&format!("(default {}M)", d.cache >> 20)));
        assert!(HELP.contains(&format!("(default {}M)", d.dirty >> 20)));
        assert!(!d.suid && !d.dev && d.exec && d.barrier && !d.order_strict);
    }
}
