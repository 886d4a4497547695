//! Sizes as people write and read them.

/// Parses `16G`: a number and a suffix s (512), K, M, G, T (powers of 1024), with an optional
/// B or iB behind it.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    let number: u64 =
        number.parse().map_err(|_| format!("{text:?} is not a size; write it as 512M or 16G"))?;
    let unit: u64 = match suffix.trim_end_matches("iB").trim_end_matches('B') {
        "" => 1,
        "s" => 512,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        "t" | "T" => 1 << 40,
        _ => return Err(format!("{suffix:?} is not a unit of size; there are s, K, M, G and T")),
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
    if bytes < 1024 {
        return format!("{bytes} bytes");
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
    fn sizes_are_written() {
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
