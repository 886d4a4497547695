//! A path in a command that is printed for typing.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The path as a shell takes it for one word and a program for no option: as it is, in quotes where a shell would take
/// it apart, and in `$'...'` where it holds what cannot be printed.
pub fn quoted(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let here = if bytes.starts_with(b"-") { "./" } else { "" };
    let Some(text) = path.to_str().filter(|text| !text.chars().any(char::is_control)) else {
        let escaped: String =
            bytes.utf8_chunks().map(|chunk| escaped(chunk.valid(), chunk.invalid())).collect();
        return format!("$'{here}{escaped}'");
    };
    let plain = |c: char| c.is_alphanumeric() || "/._-+:,@%=".contains(c);
    // One that begins with `=` stands for a program in zsh.
    if !text.is_empty() && !text.starts_with('=') && text.chars().all(plain) {
        return format!("{here}{text}");
    }
    format!("'{here}{}'", text.replace('\'', r"'\''"))
}

/// Part of a word in `$'...'`. Octal digits, since shells differ in how many hexadecimal ones they take.
fn escaped(valid: &str, invalid: &[u8]) -> String {
    let octal = |bytes: &[u8]| bytes.iter().map(|b| format!("\\{b:03o}")).collect::<String>();
    let mut word = String::new();
    for c in valid.chars() {
        match c {
            '\'' | '\\' => word.extend(['\\', c]),
            c if c.is_control() => word += &octal(c.encode_utf8(&mut [0; 4]).as_bytes()),
            c => word.push(c),
        }
    }
    word + &octal(invalid)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::process::Command;

    use super::*;

    fn of(bytes: &[u8]) -> String {
        quoted(Path::new(OsStr::from_bytes(bytes)))
    }

    #[test]
    fn what_is_plain_stays_as_it_is() {
        assert_eq!(of(b"/var/a-b_1.img"), "/var/a-b_1.img");
        assert_eq!(of("f\u{e4}llig".as_bytes()), "f\u{e4}llig");
        assert_eq!(of(b"it's a"), r"'it'\''s a'");
        assert_eq!(of(b""), "''");
        assert_eq!(of(b"=ls"), "'=ls'");
        assert_eq!(of(b"a=b"), "a=b");
    }

    #[test]
    fn no_option_and_what_cannot_be_printed() {
        assert_eq!(of(b"-v.img"), "./-v.img");
        assert_eq!(of(b"-v a"), "'./-v a'");
        assert_eq!(of(b"a\xff7'\n\\"), r"$'a\3777\'\012\\'");
    }

    /// A shell gives back the same bytes.
    #[test]
    fn a_shell_takes_it_for_one_word() {
        for bytes in [
            &b"a\xff7'\n\\ \xc2\x9bb"[..],
            b"it's $HOME `id` \"",
            b"~",
            b"*",
            b"a\tb",
            "\u{e4}\u{1}".as_bytes(),
        ] {
            let script = format!("printf %s {}", of(bytes));
            let Ok(out) = Command::new("bash").args(["-c", &script]).output() else { return };
            assert_eq!(out.stdout, bytes, "{script}");
        }
    }
}
