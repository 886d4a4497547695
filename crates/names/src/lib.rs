//! Names that need be no UTF-8, and how JSON has them.
//!
//! Names, paths and labels are bytes on Linux, and a string of JSON is UTF-8. One rule holds for all of them, in what
//! `--json` prints and between the daemon and who asks it:
//!
//! - the field (`path`) is a string, with U+FFFD in place of what is no UTF-8;
//! - where something was replaced, and only there, a field with `_bytes` appended (`path_bytes`) lies beside it: the
//!   exact bytes, each as two hexadecimal digits in lower case.
//!
//! ```
//! #[derive(serde::Serialize)]
//! struct File {
//!     #[serde(flatten, with = "silt_names::path")]
//!     path: silt_names::ByteName,
//! }
//! let text = |path: &[u8]| serde_json::to_string(&File { path: path.into() }).unwrap();
//! assert_eq!(text(b"/a"), r#"{"path":"/a"}"#);
//! assert_eq!(text(b"/\xff"), "{\"path\":\"/\u{fffd}\",\"path_bytes\":\"2fff\"}");
//! ```

mod byte_name;
mod field;
mod quoted;

pub use byte_name::ByteName;
pub use field::{Bytes, dir, entry_path, file, label, path, to, volume};
pub use quoted::quoted;
