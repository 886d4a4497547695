//! Paths on the wire: text where they are text, else their bytes.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    Bytes(Vec<u8>),
}

/// Writes a path.
pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    match path.to_str() {
        Some(text) => Form::Text(text.to_owned()),
        None => Form::Bytes(path.as_os_str().as_bytes().to_vec()),
    }
    .serialize(to)
}

/// Reads a path; one with a NUL in it is refused, since no system call takes it.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    let bytes = match Form::deserialize(from)? {
        Form::Text(text) => text.into_bytes(),
        Form::Bytes(bytes) => bytes,
    };
    if bytes.contains(&0) {
        return Err(serde::de::Error::custom("a path with a NUL in it"));
    }
    Ok(PathBuf::from(OsString::from_vec(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    struct Holder(#[serde(with = "super")] PathBuf);

    #[test]
    fn any_path_comes_through() {
        for bytes in [&b"/a b"[..], b"/\xff\xfe", "/\u{e4}".as_bytes()] {
            let path = Holder(PathBuf::from(OsString::from_vec(bytes.to_vec())));
            let text = serde_json::to_string(&path).unwrap();
            assert_eq!(serde_json::from_str::<Holder>(&text).unwrap(), path);
        }
        assert!(serde_json::from_str::<Holder>(r#""a\u0000b""#).is_err());
    }
}
