//! What somebody wrote, as far as it is repeated in an error: a message is read by people.

use std::borrow::Cow;

/// Characters that are repeated.
const LONGEST: usize = 200;

/// A text, or its beginning where it is long.
pub fn brief(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(LONGEST) {
        None => text.into(),
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_is_cut() {
        let short = "\u{e4}".repeat(LONGEST);
        assert_eq!(brief(&short), short);
        assert_eq!(brief(&format!("{short}x")), format!("{short}..."));
        assert_eq!(brief(""), "");
    }
}
