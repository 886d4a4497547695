//! What a request may end with: an error with a kind, a sentence, and what to do about it. It
//! crosses the wire unchanged.

use serde::{Deserialize, Serialize};

/// Result of a request.
pub type Result<T> = std::result::Result<T, ControlError>;

/// What kind of failure it was; programs decide by this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Nothing there is a NILFS2 volume.
    NotNilfs,
    /// A structure of the volume cannot be right.
    Corrupt,
    /// A sound volume that this program must not touch.
    Incompatible,
    /// Somebody or something uses it.
    Busy,
    /// The caller may not.
    NotPermitted,
    /// No room on the volume or below it.
    NoSpace,
    /// No such file, volume, checkpoint or mount.
    NotFound,
    /// The device or the operating system failed.
    Io,
    /// Nothing can be written.
    ReadOnly,
    /// The request makes no sense.
    Invalid,
    /// Cannot be had here and now.
    Unavailable,
    /// A kind that this program does not know.
    #[serde(other)]
    Other,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct ControlError {
    /// For programs.
    pub kind: Kind,
    /// One sentence, without a period, for people.
    pub message: String,
    /// What to do next, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl ControlError {
    /// An error without a hint.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        ControlError { kind, message: without_number(message.into()), hint: None }
    }

    /// Adds what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds what to do where `dir` cannot be unmounted because it is in use.
    #[must_use]
    pub fn in_use(self, dir: &std::path::Path) -> Self {
        let dir = silt_names::quoted(dir);
        self.hint(format!(
            "leave the directory and end the programs that use it (fuser -vm {dir} shows them), or use -l"
        ))
    }

    /// Adds what to do where `dir` cannot be unmounted because something else lies over it, or over a directory above.
    #[must_use]
    pub fn covered(self, dir: &std::path::Path) -> Self {
        let dir = silt_names::quoted(dir);
        self.hint(format!("unmount what lies over it first; findmnt -T {dir} shows what that is"))
    }

    /// Puts the name of what it is about before the sentence, unless it is there.
    #[must_use]
    pub fn about(mut self, what: impl std::fmt::Display) -> Self {
        let what = what.to_string();
        if !self.message.contains(&what) {
            self.message = format!("{what}: {}", self.message);
        }
        self
    }

    /// An error of the operating system, by its code.
    pub fn io(what: impl std::fmt::Display, source: &std::io::Error) -> Self {
        ControlError::new(kind_of_io(source), format!("{what}: {}", plain(source)))
    }
}

/// An error of the operating system without the number behind it.
pub(crate) fn plain(source: &std::io::Error) -> String {
    without_number(source.to_string())
}

/// A sentence without the numbers of the operating system's errors in it, which say nothing to people.
fn without_number(mut text: String) -> String {
    const NUMBER: &str = " (os error ";
    while let Some(at) = text.find(NUMBER) {
        let Some(length) = text[at..].find(')') else { break };
        text.replace_range(at..=at + length, "");
    }
    text
}

fn kind_of_io(source: &std::io::Error) -> Kind {
    use std::io::ErrorKind as E;
    match source.kind() {
        E::NotFound => Kind::NotFound,
        E::PermissionDenied => Kind::NotPermitted,
        E::ReadOnlyFilesystem => Kind::ReadOnly,
        E::StorageFull | E::QuotaExceeded => Kind::NoSpace,
        E::InvalidInput | E::IsADirectory | E::NotADirectory | E::AlreadyExists => Kind::Invalid,
        E::ResourceBusy => Kind::Busy,
        _ => Kind::Io,
    }
}

impl From<silt_device::Error> for ControlError {
    fn from(e: silt_device::Error) -> Self {
        use silt_device::{Error as E, Operation};
        match &e {
            E::ReadOnly => ControlError::new(Kind::ReadOnly, e.to_string()).hint(
                "make it writable (chmod of an image, blockdev --setrw of a device), or work on a copy",
            ),
            E::NoSpace { .. } => ControlError::new(Kind::NoSpace, e.to_string())
                .hint("make room on the file system that holds the image, then try again"),
            E::Busy { .. } => ControlError::new(Kind::Busy, e.to_string())
                .hint("unmount it, or wait until whoever uses it is done"),
            E::Open { path, source } => {
                let error = ControlError::io(path, source);
                match (error.kind, source.kind()) {
                    (Kind::NotPermitted, _) => error.hint("become its owner or root"),
                    (_, std::io::ErrorKind::IsADirectory) => error
                        .hint("name the image or device; where a volume is mounted on the directory, unmount it first"),
                    (_, std::io::ErrorKind::FileTooLarge) => ControlError { kind: Kind::Invalid, ..error }
                        .hint("the file system that holds the image has no files as large as that: name a smaller size"),
                    (Kind::Invalid, std::io::ErrorKind::InvalidInput) => {
                        error.hint("name the file that holds the volume, or the device; silt mkfs --size 1G FILE makes one")
                    }
                    _ => error,
                }
            }
            E::Io { operation: Operation::Read, .. } => ControlError::new(Kind::Io, e.to_string())
                .hint("silt check says what that hits, silt rescue copies out what can be read"),
            E::Shorter { .. } => ControlError::new(Kind::Io, e.to_string()).hint(
                "make it as long as it was with what it held, or let silt rescue copy out what is left",
            ),
            E::Io { .. } | E::OutOfRange { .. } => ControlError::new(Kind::Io, e.to_string())
                .hint("the kernel's log (dmesg) may say why; silt rescue copies out what can be read"),
        }
    }
}

/// What to do with a sound volume that is not for this program.
const INCOMPATIBLE: &str =
    "what made the volume can use it, and so may a newer version of silt; nothing was written";

fn of_format(e: &silt_format::Error) -> Kind {
    match e {
        silt_format::Error::NotNilfs => Kind::NotNilfs,
        silt_format::Error::Incompatible(_) => Kind::Incompatible,
        silt_format::Error::Corrupt { .. } => Kind::Corrupt,
    }
}

impl From<silt_engine::Error> for ControlError {
    fn from(e: silt_engine::Error) -> Self {
        use silt_engine::Error as E;
        match e {
            E::Device(e) => e.into(),
            E::Format { ref source, .. } => {
                let error = ControlError::new(of_format(source), e.to_string());
                match error.kind {
                    Kind::Corrupt => error.hint(
                        "silt check says what is wrong, silt repair shows what it would mend, silt rescue what can be read",
                    ),
                    Kind::Incompatible => error.hint(INCOMPATIBLE),
                    _ => error,
                }
            }
            E::Unusable(ref source) => match source {
                silt_format::Error::NotNilfs => {
                    ControlError::new(Kind::NotNilfs, "this is not a NILFS2 volume (there is no super block)")
                        .hint("name an image file or device that holds one; where there was one, silt repair shows what it would mend, silt rescue what is left of it")
                }
                silt_format::Error::Corrupt { .. } => ControlError::new(Kind::Corrupt, e.to_string())
                    .hint(
                        "silt check says what is wrong, silt repair shows what it would mend, silt rescue what can be read; if it was \
                         cut short, copy it again",
                    ),
                silt_format::Error::Incompatible(_) => {
                    ControlError::new(Kind::Incompatible, e.to_string()).hint(INCOMPATIBLE)
                }
            },
            E::NoSpace => ControlError::new(Kind::NoSpace, e.to_string()).hint("delete something first; where it is mounted with nogc, run silt clean"),
            E::NoCheckpoint(n) => ControlError::new(Kind::NotFound, format!("there is no checkpoint {n}"))
                .hint(crate::named::LISTS_MOMENTS),
            E::CheckpointBusy(..) => ControlError::new(Kind::Busy, e.to_string())
                .hint("unmount it where silt status shows it; where it is the newest make another one first, with silt mkcp"),
            E::NoInode(_) => ControlError::new(Kind::NotFound, e.to_string()),
            E::ReadOnly => ControlError::new(Kind::ReadOnly, e.to_string()),
            E::Stale => ControlError::new(Kind::Busy, e.to_string()).hint("try again"),
            E::Constructing => {
                ControlError::new(Kind::Busy, "a checkpoint is being written").hint("try again")
            }
            E::Failed(_) => ControlError::new(Kind::Io, e.to_string()),
            E::ReadOnlyFeatures(_) => ControlError::new(Kind::Incompatible, e.to_string()),
            E::Older { .. } => ControlError::new(Kind::Corrupt, e.to_string()),
            E::Unclean | E::Invalid(_) => ControlError::new(Kind::Invalid, e.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_cross_the_wire_and_unknown_kinds_are_no_error() {
        let e = ControlError::new(Kind::Busy, "no").hint("wait");
        let text = serde_json::to_string(&e).unwrap();
        assert_eq!(serde_json::from_str::<ControlError>(&text).unwrap(), e);
        let e: ControlError = serde_json::from_str(r#"{"kind":"of-the-future","message":"m"}"#).unwrap();
        assert_eq!((e.kind, e.hint), (Kind::Other, None));
    }

    #[test]
    fn what_cannot_be_a_volume_or_so_large_says_what_to_do() {
        for (number, part) in [(21, "unmount it first"), (27, "a smaller size")] {
            let source = std::io::Error::from_raw_os_error(number);
            let e = ControlError::from(silt_device::Error::Open { path: "x".into(), source });
            assert_eq!(e.kind, Kind::Invalid, "{e}");
            assert!(e.hint.is_some_and(|hint| hint.contains(part)), "{}", e.message);
        }
    }

    #[test]
    fn numbers_of_errors_are_left_out() {
        let io = std::io::Error::from_raw_os_error(5);
        let e = ControlError::new(Kind::Io, format!("reading: {io}; again: {io} (os error"));
        assert_eq!(e.message, "reading: Input/output error; again: Input/output error (os error");
    }

    #[test]
    fn the_subject_is_named_once() {
        let e = ControlError::new(Kind::Io, "a.img: bad").about("a.img");
        assert_eq!(e.message, "a.img: bad");
        assert_eq!(ControlError::new(Kind::Io, "bad").about("a.img").message, "a.img: bad");
    }

    #[test]
    fn kinds_of_engine_errors() {
        let kind = |e: silt_engine::Error| ControlError::from(e).kind;
        assert_eq!(kind(silt_engine::Error::Unusable(silt_format::Error::NotNilfs)), Kind::NotNilfs);
        assert_eq!(kind(silt_engine::Error::NoCheckpoint(4)), Kind::NotFound);
        assert_eq!(kind(silt_engine::Error::NoSpace), Kind::NoSpace);
        let corrupt = || silt_format::Error::corrupt("super block", "points to no checkpoint");
        for e in [silt_engine::Error::Unusable(corrupt()), silt_engine::Error::at("block 7", corrupt())] {
            let e = ControlError::from(e);
            assert_eq!(e.kind, Kind::Corrupt);
            assert!(e.hint.is_some_and(|hint| hint.contains("silt rescue")), "{}", e.message);
        }
        let i = silt_format::Incompatible::Features(2);
        assert_eq!(kind(silt_engine::Error::Unusable(i.into())), Kind::Incompatible);
        let io = std::io::Error::from_raw_os_error(2);
        let e = ControlError::io("/x", &io);
        assert_eq!((e.kind, e.message.as_str()), (Kind::NotFound, "/x: No such file or directory"));
    }
}
