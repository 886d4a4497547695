//! Operations as lines of text: `write :a/b%20c 4096 100 77`. What `Display` writes, [`Op::parse`] reads.

use std::fmt;
use std::str::FromStr;

use crate::manifest::Time;
use crate::op::{Allocate, Each, FileRef, Op, RenameHow, Special};
use crate::path::{TreePath, escape, unescape};

impl fmt::Display for FileRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileRef::Path(path) => write!(f, ":{path}"),
            FileRef::Slot(slot) => write!(f, "#{slot}"),
        }
    }
}

/// Pairs of a variant and its word.
macro_rules! words {
    ($type:ident: $($variant:ident = $word:literal),*) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($type::$variant => $word),* })
            }
        }
        impl $type {
            fn parse(word: &str) -> Option<Self> {
                match word { $($word => Some($type::$variant),)* _ => None }
            }
        }
    };
}

words!(Special: Fifo = "fifo", Socket = "socket", Char = "char", Block = "block");
words!(RenameHow: Plain = "plain", NoReplace = "noreplace", Exchange = "exchange");
words!(Allocate: Punch = "punch", Zero = "zero", ZeroKeep = "zero-keep", Extend = "extend", Keep = "keep");

/// An id that may be left as it is.
struct MaybeId(Option<u32>);

impl fmt::Display for MaybeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, "{id}"),
            None => f.write_str("-"),
        }
    }
}

/// Bytes that may be none; a lone `=` keeps the word from being empty.
struct Word<'a>(&'a [u8]);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "={}", escape(self.0))
    }
}

impl fmt::Display for Each {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Each::Create => f.write_str("create"),
            Each::Fill { len, seed } => write!(f, "fill {len} {seed}"),
            Each::Mkdir => f.write_str("mkdir"),
            Each::Symlink(target) => write!(f, "symlink {}", Word(target)),
            Each::Link(from) => write!(f, "link {from}"),
            Each::Unlink => f.write_str("unlink"),
            Each::Rmdir => f.write_str("rmdir"),
            Each::Rename(to, prefix) => write!(f, "rename {to} {}", Word(prefix)),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Create { path, mode } => write!(f, "create {path} {mode:o}"),
            Op::Mkdir { path, mode } => write!(f, "mkdir {path} {mode:o}"),
            Op::Symlink { path, target } => write!(f, "symlink {path} {}", Word(target)),
            Op::Mknod { path, kind, mode, major, minor } => {
                write!(f, "mknod {path} {kind} {mode:o} {major} {minor}")
            }
            Op::Link { from, to } => write!(f, "link {from} {to}"),
            Op::Unlink { path } => write!(f, "unlink {path}"),
            Op::Rmdir { path } => write!(f, "rmdir {path}"),
            Op::Rename { from, to, how } => write!(f, "rename {from} {to} {how}"),
            Op::Write { file, offset, len, seed } => write!(f, "write {file} {offset} {len} {seed}"),
            Op::Append { path, len, seed } => write!(f, "append {path} {len} {seed}"),
            Op::MapWrite { path, offset, len, seed } => write!(f, "map-write {path} {offset} {len} {seed}"),
            Op::Truncate { file, size } => write!(f, "truncate {file} {size}"),
            Op::Fallocate { file, how, offset, len } => write!(f, "fallocate {file} {how} {offset} {len}"),
            Op::Read { file, offset, len } => write!(f, "read {file} {offset} {len}"),
            Op::Stat { path } => write!(f, "stat {path}"),
            Op::List { path } => write!(f, "list {path}"),
            Op::Readlink { path } => write!(f, "readlink {path}"),
            Op::Chmod { path, mode } => write!(f, "chmod {path} {mode:o}"),
            Op::Chown { path, uid, gid } => write!(f, "chown {path} {} {}", MaybeId(*uid), MaybeId(*gid)),
            Op::Utimens { path, mtime } => write!(f, "utimens {path} {mtime}"),
            Op::SetFlags { path, flags } => write!(f, "set-flags {path} {flags:#x}"),
            Op::Fsync { file } => write!(f, "fsync {file}"),
            Op::Fdatasync { file } => write!(f, "fdatasync {file}"),
            Op::Sync => f.write_str("sync"),
            Op::Open { slot, path } => write!(f, "open {slot} {path}"),
            Op::Tmpfile { slot, dir, mode } => write!(f, "tmpfile {slot} {dir} {mode:o}"),
            Op::LinkSlot { slot, to } => write!(f, "link-slot {slot} {to}"),
            Op::Close { slot } => write!(f, "close {slot}"),
            Op::Many { each, dir, prefix, first, count } => {
                write!(f, "many {dir} {} {first} {count} {each}", Word(prefix))
            }
            Op::Checkpoint => f.write_str("checkpoint"),
            Op::Snapshot => f.write_str("snapshot"),
            Op::RemoveSnapshot { id } => write!(f, "remove-snapshot {id}"),
            Op::Remount => f.write_str("remount"),
        }
    }
}

/// Takes a line apart, word by word.
struct Words<'a>(std::str::Split<'a, char>);

impl Words<'_> {
    fn word(&mut self) -> Option<&str> {
        self.0.next()
    }

    fn path(&mut self) -> Option<TreePath> {
        TreePath::parse(self.word()?)
    }

    fn file(&mut self) -> Option<FileRef> {
        let word = self.word()?;
        if let Some(slot) = word.strip_prefix('#') {
            return Some(FileRef::Slot(slot.parse().ok()?));
        }
        Some(FileRef::Path(TreePath::parse(word.strip_prefix(':')?)?))
    }

    fn number<T: FromStr>(&mut self) -> Option<T> {
        self.word()?.parse().ok()
    }

    fn mode(&mut self) -> Option<u32> {
        u32::from_str_radix(self.word()?, 8).ok()
    }

    fn maybe_id(&mut self) -> Option<Option<u32>> {
        match self.word()? {
            "-" => Some(None),
            word => Some(Some(word.parse().ok()?)),
        }
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        unescape(self.word()?.strip_prefix('=')?)
    }

    fn each(&mut self) -> Option<Each> {
        Some(match self.word()? {
            "create" => Each::Create,
            "fill" => Each::Fill { len: self.number()?, seed: self.number()? },
            "mkdir" => Each::Mkdir,
            "symlink" => Each::Symlink(self.bytes()?),
            "link" => Each::Link(self.path()?),
            "unlink" => Each::Unlink,
            "rmdir" => Each::Rmdir,
            "rename" => Each::Rename(self.path()?, self.bytes()?),
            _ => return None,
        })
    }

    fn op(&mut self) -> Option<Op> {
        let verb = self.word()?.to_owned();
        Some(match verb.as_str() {
            "create" => Op::Create { path: self.path()?, mode: self.mode()? },
            "mkdir" => Op::Mkdir { path: self.path()?, mode: self.mode()? },
            "symlink" => Op::Symlink { path: self.path()?, target: self.bytes()? },
            "mknod" => Op::Mknod {
                path: self.path()?,
                kind: Special::parse(self.word()?)?,
                mode: self.mode()?,
                major: self.number()?,
                minor: self.number()?,
            },
            "link" => Op::Link { from: self.path()?, to: self.path()? },
            "unlink" => Op::Unlink { path: self.path()? },
            "rmdir" => Op::Rmdir { path: self.path()? },
            "rename" => {
                Op::Rename { from: self.path()?, to: self.path()?, how: RenameHow::parse(self.word()?)? }
            }
            "write" => Op::Write {
                file: self.file()?,
                offset: self.number()?,
                len: self.number()?,
                seed: self.number()?,
            },
            "append" => Op::Append { path: self.path()?, len: self.number()?, seed: self.number()? },
            "map-write" => Op::MapWrite {
                path: self.path()?,
                offset: self.number()?,
                len: self.number()?,
                seed: self.number()?,
            },
            "truncate" => Op::Truncate { file: self.file()?, size: self.number()? },
            "fallocate" => Op::Fallocate {
                file: self.file()?,
                how: Allocate::parse(self.word()?)?,
                offset: self.number()?,
                len: self.number()?,
            },
            "read" => Op::Read { file: self.file()?, offset: self.number()?, len: self.number()? },
            "stat" => Op::Stat { path: self.path()? },
            "list" => Op::List { path: self.path()? },
            "readlink" => Op::Readlink { path: self.path()? },
            "chmod" => Op::Chmod { path: self.path()?, mode: self.mode()? },
            "chown" => Op::Chown { path: self.path()?, uid: self.maybe_id()?, gid: self.maybe_id()? },
            "utimens" => Op::Utimens { path: self.path()?, mtime: Time::parse(self.word()?)? },
            "set-flags" => Op::SetFlags {
                path: self.path()?,
                flags: u32::from_str_radix(self.word()?.strip_prefix("0x")?, 16).ok()?,
            },
            "fsync" => Op::Fsync { file: self.file()? },
            "fdatasync" => Op::Fdatasync { file: self.file()? },
            "sync" => Op::Sync,
            "open" => Op::Open { slot: self.number()?, path: self.path()? },
            "tmpfile" => Op::Tmpfile { slot: self.number()?, dir: self.path()?, mode: self.mode()? },
            "link-slot" => Op::LinkSlot { slot: self.number()?, to: self.path()? },
            "close" => Op::Close { slot: self.number()? },
            "many" => Op::Many {
                dir: self.path()?,
                prefix: self.bytes()?,
                first: self.number()?,
                count: self.number()?,
                each: self.each()?,
            },
            "checkpoint" => Op::Checkpoint,
            "snapshot" => Op::Snapshot,
            "remove-snapshot" => Op::RemoveSnapshot { id: self.number()? },
            "remount" => Op::Remount,
            _ => return None,
        })
    }
}

impl Op {
    /// Parses one line; `None` if it is not an operation.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = Words(line.split(' '));
        let op = words.op()?;
        if words.word().is_some() { None } else { Some(op) }
    }

    /// Parses a list, a line each; the error is the number of the bad line, from 1.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, usize> {
        text.lines().enumerate().map(|(n, line)| Self::parse(line).ok_or(n + 1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_as_text() {
        let lines = "create a%20b 4755\nmkdir d 1777\nsymlink s =\nmknod c char 644 4095 1048575\nlink a b/c\n\
            unlink a\nrmdir d\nrename a b exchange\nwrite :a 9223372036854775806 1 0\nwrite #7 0 5 9\nappend a 5 6\n\
            map-write a 0 4 1\ntruncate :#3 77\nfallocate #0 zero-keep 1 2\nread :a 0 9\nstat .\nlist .\nreadlink s\n\
            chmod a 0\nchown a - 4294967294\nutimens a -1.999999999\nset-flags a 0x20048\nfsync :.\nfdatasync #1\n\
            sync\nopen 3 a\ntmpfile 2 d 600\nlink-slot 2 x\nclose 2\nmany . =f 0 9 create\nmany d = 5 2 fill 100 3\n\
            many d =%20 5 2 rename e =\nmany d =x 0 1 link y\nmany d =x 0 1 symlink =t\nmany d =x 0 1 rmdir\n\
            many d =x 0 1 unlink\nmany d =x 0 1 mkdir\ncheckpoint\nsnapshot\nremove-snapshot 3\nremount";
        for line in lines.lines() {
            let op = Op::parse(line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(op.to_string(), line);
        }
        assert_eq!(Op::parse_all(lines).unwrap().len(), 41);
        for bad in ["", "create a", "sync now", "write a 0 1 2", "nothing"] {
            assert_eq!(Op::parse(bad), None, "{bad}");
        }
        assert_eq!(Op::parse_all("sync\nx"), Err(2));
    }
}
