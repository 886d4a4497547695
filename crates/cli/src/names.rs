//! The names under which this program is known, and what they change.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use crate::exit;

/// How the program was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// As itself.
    Silt,
    /// As a tool of nilfs-utils; the name, and the verb it is.
    Tool(&'static str, &'static str),
    /// As a helper of mount(8) or umount(8); the name, and the hidden verb it is.
    Helper(&'static str, &'static str),
}

/// Names of tools and their verbs; `silt install` makes them where asked.
pub const TOOLS: &[(&str, &str)] = &[
    ("mkfs.nilfs2", "mkfs"),
    ("fsck.nilfs2", "fsck-helper"),
    ("lscp", "lscp"),
    ("mkcp", "mkcp"),
    ("chcp", "chcp"),
    ("rmcp", "rmcp"),
    ("lssu", "lssu"),
    ("dumpseg", "dumpseg"),
    ("nilfs-tune", "tune"),
    ("nilfs-clean", "clean"),
    ("nilfs-resize", "resize"),
];

/// Names of helpers and their hidden verbs.
pub const HELPERS: &[(&str, &str)] = &[
    ("mount.silt", "mount-helper"),
    ("mount.fuse.silt", "mount-helper"),
    ("mount.fuseblk.silt", "mount-helper"),
    ("umount.silt", "umount-helper"),
    ("umount.fuse.silt", "umount-helper"),
    ("umount.fuseblk.silt", "umount-helper"),
];

impl Name {
    /// From the first argument.
    pub fn of_program(arg0: Option<OsString>) -> Self {
        let arg0 = arg0.unwrap_or_default();
        let file = Path::new(&arg0).file_name().and_then(OsStr::to_str).unwrap_or("silt");
        let of =
            |table: &'static [(&'static str, &'static str)]| table.iter().find(|(name, _)| *name == file);
        match (of(TOOLS), of(HELPERS)) {
            (Some((name, verb)), _) => Name::Tool(name, verb),
            (None, Some((name, verb))) => Name::Helper(name, verb),
            (None, None) => Name::Silt,
        }
    }

    /// The arguments with the verb put in where the name stands for it.
    pub fn arguments(self, all: impl Iterator<Item = OsString>) -> Vec<OsString> {
        let mut all: Vec<OsString> = all.collect();
        if all.is_empty() {
            all.push("silt".into());
        }
        if let Name::Tool(_, verb) | Name::Helper(_, verb) = self {
            all[0] = "silt".into();
            all.insert(1, verb.into());
        }
        all
    }

    /// What messages begin with.
    pub fn prefix(self) -> &'static str {
        match self {
            Name::Silt => "silt",
            Name::Tool(name, _) | Name::Helper(name, _) => name,
        }
    }

    /// A text about the verb that the name stands for, with the name in its place.
    pub fn its(self, text: &str) -> String {
        match self {
            Name::Silt => text.to_owned(),
            Name::Tool(name, verb) | Name::Helper(name, verb) => text.replace(&format!("silt {verb}"), name),
        }
    }

    /// The exit code under this name.
    pub fn exit(self, code: u8) -> ExitCode {
        ExitCode::from(match (self, code) {
            (_, exit::OK) => exit::OK,
            (Name::Silt, code) => code,
            // fsck(8): 16 wrong invocation; the verb knows the others.
            (Name::Tool("fsck.nilfs2", _), exit::USAGE) => 16,
            (Name::Tool("fsck.nilfs2", _), code) => code,
            (Name::Tool(..), _) => 1,
            // mount(8): 1 wrong invocation or permissions, 32 failure.
            (Name::Helper(..), exit::USAGE | 7) => 1,
            (Name::Helper(..), _) => 32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(all: &[&str]) -> Vec<OsString> {
        let name = Name::of_program(Some(all[0].into()));
        name.arguments(all.iter().map(OsString::from))
    }

    #[test]
    fn names_stand_for_verbs() {
        assert_eq!(args(&["/usr/bin/silt", "lscp", "x"]), ["/usr/bin/silt", "lscp", "x"]);
        assert_eq!(args(&["/sbin/mkfs.nilfs2", "-f", "x"]), ["silt", "mkfs", "-f", "x"]);
        assert_eq!(args(&["fsck.nilfs2", "-a", "x"]), ["silt", "fsck-helper", "-a", "x"]);
        assert_eq!(args(&["mount.silt", "a", "b"]), ["silt", "mount-helper", "a", "b"]);
        assert_eq!(args(&["cargo-run-thing", "lscp"]), ["cargo-run-thing", "lscp"]);
    }
}
