//! Paths inside a tree, and how names of any bytes are written as text.
//!
//! A [`TreePath`] is relative to the root of the tree, which is the empty path. Components are separated by
//! single slashes; there is no leading or trailing slash, no `.` and no `..`.

use std::fmt;

/// A path relative to the root of the tree; empty for the root itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TreePath(Vec<u8>);

impl TreePath {
    /// The root of the tree.
    pub fn root() -> Self {
        Self::default()
    }

    /// The path of these bytes; slashes at both ends are dropped, and `.` is the root.
    pub fn new(bytes: &[u8]) -> Self {
        let start = bytes.iter().position(|&b| b != b'/').unwrap_or(bytes.len());
        let end = bytes.iter().rposition(|&b| b != b'/').map_or(start, |at| at + 1);
        match &bytes[start..end] {
            b"." => Self::root(),
            rest => Self(rest.strip_prefix(b"./").unwrap_or(rest).to_vec()),
        }
    }

    /// The bytes, without leading slash; empty for the root.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes to hand to a system call: `.` for the root.
    pub fn for_syscall(&self) -> &[u8] {
        if self.0.is_empty() { b"." } else { &self.0 }
    }

    /// This path with one more component.
    pub fn join(&self, name: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + name.len());
        bytes.extend_from_slice(&self.0);
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        Self(bytes)
    }

    /// The directory and the last component; `None` for the root.
    pub fn split(&self) -> Option<(TreePath, &[u8])> {
        if self.0.is_empty() {
            return None;
        }
        Some(match self.0.iter().rposition(|&b| b == b'/') {
            Some(at) => (TreePath(self.0[..at].to_vec()), &self.0[at + 1..]),
            None => (TreePath::root(), &self.0),
        })
    }

    /// The components, from the root down.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&b| b == b'/').filter(|c| !c.is_empty())
    }

    /// Parses what [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        Some(Self::new(&unescape(text)?))
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape(self.for_syscall()))
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Bytes as one word of printable ASCII: everything else, blanks and `%` become `%XX`.
pub fn escape(bytes: &[u8]) -> String {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len());
    for &b in bytes {
        if b.is_ascii_graphic() && b != b'%' {
            text.push(char::from(b));
        } else {
            text.push('%');
            text.push(char::from(HEX[usize::from(b >> 4)]));
            text.push(char::from(HEX[usize::from(b & 15)]));
        }
    }
    text
}

/// The inverse of [`escape`]; `None` if `text` is not of that form.
pub fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_survive_escaping() {
        let all: Vec<u8> = (0..=255).collect();
        let text = escape(&all);
        assert!(text.is_ascii() && !text.contains(' ') && !text.contains('\n'));
        assert_eq!(unescape(&text), Some(all));
        assert_eq!(unescape("a%2"), None);
        assert_eq!(unescape("a%zz"), None);
    }

    #[test]
    fn paths_split_and_join() {
        let path = TreePath::new(b"./a/b c/d");
        assert_eq!(path.to_string(), "a/b%20c/d");
        assert_eq!(TreePath::parse("a/b%20c/d"), Some(path.clone()));
        let (dir, name) = path.split().unwrap();
        assert_eq!((dir.to_string().as_str(), name), ("a/b%20c", &b"d"[..]));
        assert_eq!(dir.join(b"d"), path);
        assert_eq!(path.components().count(), 3);
        assert_eq!(TreePath::root().to_string(), ".");
        assert_eq!(TreePath::parse("."), Some(TreePath::root()));
        assert!(TreePath::root().split().is_none());
        assert_eq!(TreePath::root().join(b"x").as_bytes(), b"x");
    }
}
