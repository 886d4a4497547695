//! The fields that hold names: for `#[serde(flatten, with = "silt_names::path")]` and the like.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use data_encoding::HEXLOWER;
use serde::Deserialize;

use crate::ByteName;

/// What such a field may hold: bytes, or none.
pub trait Bytes: Sized {
    /// The bytes.
    fn bytes(&self) -> Option<&[u8]>;

    /// Of what was read. Errors: why it cannot be that.
    fn of(bytes: Option<Vec<u8>>) -> Result<Self, &'static str>;
}

impl Bytes for ByteName {
    fn bytes(&self) -> Option<&[u8]> {
        Some(self.as_bytes())
    }

    fn of(bytes: Option<Vec<u8>>) -> Result<Self, &'static str> {
        bytes.map(ByteName::from).ok_or("a name is missing")
    }
}

impl Bytes for Option<ByteName> {
    fn bytes(&self) -> Option<&[u8]> {
        self.as_ref().map(ByteName::as_bytes)
    }

    fn of(bytes: Option<Vec<u8>>) -> Result<Self, &'static str> {
        Ok(bytes.map(ByteName::from))
    }
}

/// One with a NUL in it is refused, since no system call takes it.
impl Bytes for PathBuf {
    fn bytes(&self) -> Option<&[u8]> {
        Some(self.as_os_str().as_bytes())
    }

    fn of(bytes: Option<Vec<u8>>) -> Result<Self, &'static str> {
        let bytes = bytes.ok_or("a path is missing")?;
        if bytes.contains(&0) {
            return Err("a path with a NUL in it");
        }
        Ok(PathBuf::from(OsString::from_vec(bytes)))
    }
}

/// The string of a field. Programs from before `_bytes` have an array of numbers there for what is no UTF-8.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    String(String),
    Numbers(Vec<u8>),
}

/// What is said of both fields as they were read.
fn read<T: Bytes>(text: Option<Text>, digits: Option<&str>) -> Result<T, &'static str> {
    let bytes = match (digits, text) {
        (Some(digits), _) => {
            Some(HEXLOWER.decode(digits.as_bytes()).map_err(|_| "bytes that are no hexadecimal digits")?)
        }
        (None, Some(Text::String(text))) => Some(text.into_bytes()),
        (None, Some(Text::Numbers(bytes))) => Some(bytes),
        (None, None) => None,
    };
    T::of(bytes)
}

macro_rules! field {
    ($(#[$doc:meta])* $text:ident, $bytes:ident) => {
        $(#[$doc])*
        pub mod $text {
            use std::borrow::Cow;

            use serde::{Deserialize, Deserializer, Serialize, Serializer};

            use super::{Bytes, Text};

            #[derive(Serialize)]
            struct Written<'a> {
                $text: Option<Cow<'a, str>>,
                #[serde(skip_serializing_if = "Option::is_none")]
                $bytes: Option<String>,
            }

            #[derive(Deserialize)]
            struct Read {
                $text: Option<Text>,
                $bytes: Option<String>,
            }

            /// Writes the field, and the one with the bytes where it is needed.
            pub fn serialize<T: Bytes, S: Serializer>(name: &T, to: S) -> Result<S::Ok, S::Error> {
                let bytes = name.bytes();
                let exact = bytes.filter(|bytes| std::str::from_utf8(bytes).is_err());
                let written = Written {
                    $text: bytes.map(String::from_utf8_lossy),
                    $bytes: exact.map(|bytes| data_encoding::HEXLOWER.encode(bytes)),
                };
                written.serialize(to)
            }

            /// Reads both fields.
            pub fn deserialize<'de, T: Bytes, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
                let read = Read::deserialize(from)?;
                super::read(read.$text, read.$bytes.as_deref()).map_err(serde::de::Error::custom)
            }
        }
    };
}

field! {
    /// `path`: of a file, mostly from the root of a volume.
    path, path_bytes
}
field! {
    /// `entry_path`: of a file whose entry in a table it is.
    entry_path, entry_path_bytes
}
field! {
    /// `volume`: an image file or block device.
    volume, volume_bytes
}
field! {
    /// `dir`: where something is mounted.
    dir, dir_bytes
}
field! {
    /// `to`: where something was put.
    to, to_bytes
}
field! {
    /// `file`: one outside of volumes.
    file, file_bytes
}
field! {
    /// `label`: of a volume.
    label, label_bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde::Serialize;

    use super::*;

    #[derive(Serialize, Deserialize, PartialEq, Debug, Clone)]
    struct Holder {
        before: u64,
        #[serde(flatten, with = "super::path", skip_serializing_if = "Option::is_none")]
        path: Option<ByteName>,
        #[serde(flatten, with = "super::label")]
        label: Option<ByteName>,
        #[serde(flatten, with = "super::volume")]
        volume: PathBuf,
    }

    fn holder(path: Option<&[u8]>, label: Option<&[u8]>, volume: &[u8]) -> Holder {
        let volume = PathBuf::from(OsString::from_vec(volume.to_vec()));
        Holder { before: u64::MAX, path: path.map(ByteName::from), label: label.map(ByteName::from), volume }
    }

    #[test]
    fn what_is_utf_8_is_a_string_and_nothing_else() {
        let text = serde_json::to_string(&holder(Some("/\u{e4} b".as_bytes()), Some(b""), b"/v")).unwrap();
        let begin = r#"{"before":18446744073709551615,"#;
        assert_eq!(text, format!("{begin}\"path\":\"/\u{e4} b\",\"label\":\"\",\"volume\":\"/v\"}}"));
        let text = serde_json::to_string(&holder(None, None, b"/v")).unwrap();
        assert_eq!(text, format!(r#"{begin}"label":null,"volume":"/v"}}"#));
    }

    #[test]
    fn what_is_not_has_its_bytes_beside_it() {
        let text = serde_json::to_string(&holder(Some(b"bad\xff\xfename"), Some(b"ok"), b"/\xc3")).unwrap();
        let part =
            "\"path\":\"bad\u{fffd}\u{fffd}name\",\"path_bytes\":\"626164fffe6e616d65\",\"label\":\"ok\",";
        assert!(text.contains(part), "{text}");
        assert!(text.ends_with("\"volume\":\"/\u{fffd}\",\"volume_bytes\":\"2fc3\"}"), "{text}");
    }

    #[test]
    fn all_comes_back() {
        let names = [None, Some(&b""[..]), Some(b"/a b"), Some(b"/\xff\xfe"), Some("\u{fffd}".as_bytes())];
        for path in names {
            for label in names {
                for volume in names.into_iter().flatten() {
                    let holder = holder(path, label, volume);
                    let text = serde_json::to_string(&holder).unwrap();
                    assert_eq!(serde_json::from_str::<Holder>(&text).unwrap(), holder, "{text}");
                }
            }
        }
    }

    #[test]
    fn what_older_programs_wrote_is_read() {
        let text = r#"{"before":1,"path":"/p","volume":[47,255]}"#;
        let read: Holder = serde_json::from_str(text).unwrap();
        assert_eq!(read, Holder { before: 1, ..holder(Some(b"/p"), None, b"/\xff") });
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in [
            r#"{"before":1}"#,
            r#"{"before":1,"volume":null}"#,
            r#"{"before":1,"volume":7}"#,
            r#"{"before":1,"volume":"a\u0000b"}"#,
            r#"{"before":1,"volume":"a","volume_bytes":"6100"}"#,
            r#"{"before":1,"volume":"a","volume_bytes":"6"}"#,
            r#"{"before":1,"volume":"a","path_bytes":"FF"}"#,
        ] {
            assert!(serde_json::from_str::<Holder>(text).is_err(), "{text}");
        }
    }
}
