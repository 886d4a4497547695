//! Who operations are applied to, and what they answer.

use std::fmt;

use crate::caps::Capabilities;
use crate::errno::Errno;
use crate::hash::Digest;
use crate::manifest::{Columns, Entry, Manifest};
use crate::op::Op;
use crate::path::{escape, unescape};

/// What a successful operation tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Nothing but its success.
    Done,
    /// Bytes that were read: how many, and their fingerprint as if they began a file.
    Data(u64, Digest),
    /// Names in a directory, without `.` and `..`: how many, and the fingerprint of the sorted list.
    Names(u64, Digest),
    /// A symlink's target.
    Target(Vec<u8>),
    /// All attributes of an object; the content is not told.
    Stat(Box<Entry>),
}

impl Reply {
    /// The reply to a listing. Sorts `names`.
    pub fn names(names: &mut [Vec<u8>]) -> Self {
        names.sort();
        let mut joined = Vec::new();
        for name in names.iter() {
            joined.extend_from_slice(name);
            joined.push(0);
        }
        Self::Names(names.len() as u64, Digest::of(&joined))
    }

    /// Whether both tell the same, as far as they know.
    pub fn agrees(&self, other: &Self) -> bool {
        match (self, other) {
            (Reply::Stat(a), Reply::Stat(b)) => {
                let columns = Columns { data: false, ..Columns::ALL };
                let mut b = b.clone();
                // A single object does not know its other names.
                b.same_as.clone_from(&a.same_as);
                a.differences(&b, columns).is_empty()
            }
            (a, b) => a == b,
        }
    }

    /// Parses what [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
        let counted = || {
            let (count, digest) = rest.split_once(' ')?;
            Some((count.parse().ok()?, Digest::parse(digest)?))
        };
        Some(match verb {
            "done" if rest.is_empty() => Reply::Done,
            "data" => counted().map(|(count, digest)| Reply::Data(count, digest))?,
            "names" => counted().map(|(count, digest)| Reply::Names(count, digest))?,
            "target" => Reply::Target(unescape(rest)?),
            "stat" => Reply::Stat(Box::new(Entry::parse(rest)?)),
            _ => return None,
        })
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Done => f.write_str("done"),
            Reply::Data(count, digest) => write!(f, "data {count} {digest}"),
            Reply::Names(count, digest) => write!(f, "names {count} {digest}"),
            Reply::Target(target) => write!(f, "target {}", escape(target)),
            Reply::Stat(entry) => write!(f, "stat {entry}"),
        }
    }
}

/// What an operation comes to.
pub type Outcome = Result<Reply, Errno>;

/// An outcome as one line of text.
pub fn outcome_text(outcome: &Outcome) -> String {
    match outcome {
        Ok(reply) => reply.to_string(),
        Err(errno) => format!("error {}", errno.0),
    }
}

/// Parses what [`outcome_text`] writes.
pub fn parse_outcome(text: &str) -> Option<Outcome> {
    match text.strip_prefix("error ") {
        Some(number) => Some(Err(Errno(number.parse().ok()?))),
        None => Reply::parse(text).map(Ok),
    }
}

/// Whether two outcomes are the same, as far as both know.
pub fn outcomes_agree(a: &Outcome, b: &Outcome) -> bool {
    match (a, b) {
        (Ok(a), Ok(b)) => a.agrees(b),
        (Err(a), Err(b)) => a == b,
        _ => false,
    }
}

/// Which tree of a target is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tree {
    /// The live one.
    Live,
    /// What checkpoint number `n` (as the model counts them, from 0) holds.
    Checkpoint(u32),
    /// What snapshot number `n` (as the model counts them, from 0) holds.
    Snapshot(u32),
}

/// Something that operations are applied to.
pub trait Target {
    /// What it can do. Must not change over a history.
    fn capabilities(&self) -> Capabilities;

    /// Applies one operation.
    fn apply(&mut self, op: &Op) -> Outcome;

    /// What a tree looks like, with `columns` filled in as far as can be known. The error is a sentence.
    fn manifest(&mut self, tree: Tree, columns: Columns) -> Result<Manifest, String>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_survive_as_text() {
        let mut names = vec![b"b".to_vec(), b"a".to_vec()];
        let outcomes = [
            Ok(Reply::Done),
            Ok(Reply::Data(3, Digest::of(b"abc"))),
            Ok(Reply::names(&mut names)),
            Ok(Reply::Target(b"a b".to_vec())),
            Err(Errno::ENOTEMPTY),
        ];
        for outcome in &outcomes {
            assert_eq!(parse_outcome(&outcome_text(outcome)).as_ref(), Some(outcome));
            assert!(outcomes_agree(outcome, outcome));
        }
        assert!(!outcomes_agree(&outcomes[0], &outcomes[1]));
        assert!(!outcomes_agree(&outcomes[0], &outcomes[4]));
        assert_eq!(parse_outcome("done twice"), None);
        assert_eq!(outcomes[2], Ok(Reply::names(&mut [b"a".to_vec(), b"b".to_vec()])));
    }
}
