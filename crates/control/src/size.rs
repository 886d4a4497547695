//! Sizes as people write and read them.

/// What is taken, for whoever wrote something else.
const HOW: &str = "write a whole number with K, M, G or T behind it, as 512M (s is 512 bytes)";

/// Parses `16G`: a number and a suffix s (512), K, M, G, T (powers of 1024), with an optional
/// B or iB behind it.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is not a size; {HOW}"))?;
    let unit: u64 = match suffix.trim_end_matches("iB").trim_end_matches('B') {
        "" => 1,
        "s" => 512,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        "t" | "T" => 1 << 40,
        _ if suffix.starts_with(['.', ',']) => return Err(format!("{text:?} is no whole number; {HOW}")),
        _ => return Err(format!("{suffix:?} is not a unit of size; {HOW}")),
    };
    // Files end at 2^63 bytes.
    number
        .checked_mul(unit)
        .filter(|n| i64::try_from(*n).is_ok())
        .ok_or_else(|| format!("{text} is too large"))
}

/// Writes bytes in the largest unit that leaves at least one.
pub fn show(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    match bytes {
        1 => return "1 byte".to_owned(),
        0..1024 => return format!("{bytes} bytes"),
        _ => {}
    }
    let mut whole = bytes as f64 / 1024.0;
    let mut unit = 0;
    // What would round to 1024 is shown in the next unit.
    while whole >= 1023.95 && unit + 1 < UNITS.len() {
        whole /= 1024.0;
        unit += 1;
    }
    let text = if whole < 99.95 { format!("{whole:.1}") } else { format!("{whole:.0}") };
    format!("{} {}", text.trim_end_matches(".0"), UNITS[unit])
}

/// The same with all digits behind it, for a size that may be typed again.
pub fn exact(bytes: u64) -> String {
    if bytes < 1024 { show(bytes) } else { format!("{} ({bytes} bytes)", show(bytes)) }
}

/// As [`parse`] takes it, rounded up to whole KiB: for sizes that are suggested.
pub fn typed(bytes: u64) -> String {
    let kib = bytes.div_ceil(1 << 10);
    let (mut number, mut unit) = (kib, 0);
    while number > 0 && number.is_multiple_of(1 << 10) && unit < 3 {
        number >>= 10;
        unit += 1;
    }
    format!("{number}{}", ["K", "M", "G", "T"][unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse("16G"), Ok(16 << 30));
        assert_eq!(parse("16GiB"), Ok(16 << 30));
        assert_eq!(parse("3s"), Ok(1536));
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("1kB"), Ok(1024));
        for bad in ["", "G", "1.5G", "-1", "1X", "9999999999T", "1GG"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_taken_is_said() {
        for bad in ["x", "1.5M", "1,5M", "1X"] {
            let said = parse(bad).unwrap_err();
            assert!(said.contains("a whole number with K, M, G or T"), "{said}");
        }
    }

    #[test]
    fn suggested_sizes_can_be_typed() {
        for (bytes, text) in [
            (1, "1K"),
            ((4 << 20) + 4096, "4100K"),
            (28 << 20, "28M"),
            (16 << 30, "16G"),
            ((1 << 40) - 1, "1T"),
        ] {
            assert_eq!(typed(bytes), text);
            assert!(parse(text).unwrap() >= bytes);
        }
        assert_eq!(parse(&typed(1 << 50)), Ok(1 << 50));
    }

    #[test]
    fn sizes_are_written() {
        assert_eq!(show(1), "1 byte");
        assert_eq!(show(0), "0 bytes");
        assert_eq!(show(1023), "1023 bytes");
        assert_eq!(show(1024), "1 KiB");
        assert_eq!(show(1536), "1.5 KiB");
        assert_eq!(show((1 << 20) - 1), "1 MiB");
        assert_eq!(show(16 << 30), "16 GiB");
        assert_eq!(show(255 << 20), "255 MiB");
        assert_eq!(show(u64::MAX), "16 EiB");
        assert_eq!((exact(1000), exact(1536)), ("1000 bytes".to_owned(), "1.5 KiB (1536 bytes)".to_owned()));
    }
}
