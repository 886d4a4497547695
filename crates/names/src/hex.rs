//! Bytes as hexadecimal digits.

/// Two digits a byte, in lower case.
pub fn of(bytes: &[u8]) -> String {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    let digit = |half: u8| char::from(DIGITS[usize::from(half & 15)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

/// The bytes that [`of`] made digits of; none where it made no such thing.
pub fn bytes(text: &str) -> Option<Vec<u8>> {
    let half = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(half(*high)? << 4 | half(*low)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        let text = of(&all);
        assert!(text.starts_with("000102") && text.ends_with("fdfeff"), "{text}");
        assert_eq!(bytes(&text), Some(all));
        assert_eq!(bytes(""), Some(Vec::new()));
    }

    #[test]
    fn other_text_is_no_bytes() {
        for text in ["0", "0g", "FF", "-1", "é", " 00"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }
}
