//! A name as it is.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

/// A name, path or label: any bytes. Shown, what is no UTF-8 in it is replaced.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteName(Vec<u8>);

impl ByteName {
    /// It for people.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// It as it is.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A path from the root of a volume that is known without the slash it begins with.
    pub fn from_root(path: &[u8]) -> Self {
        ByteName([b"/", path].concat())
    }
}

impl fmt::Display for ByteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text())
    }
}

impl fmt::Debug for ByteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl From<Vec<u8>> for ByteName {
    fn from(bytes: Vec<u8>) -> Self {
        ByteName(bytes)
    }
}

impl From<&[u8]> for ByteName {
    fn from(bytes: &[u8]) -> Self {
        ByteName(bytes.to_vec())
    }
}

impl From<&str> for ByteName {
    fn from(text: &str) -> Self {
        ByteName(text.as_bytes().to_vec())
    }
}

impl From<&Path> for ByteName {
    fn from(path: &Path) -> Self {
        use std::os::unix::ffi::OsStrExt;
        ByteName(path.as_os_str().as_bytes().to_vec())
    }
}
