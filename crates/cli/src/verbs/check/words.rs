//! What a finding means, in words.

use std::collections::BTreeSet;

use silt_verify::impact::{Touched, What};
use silt_verify::meanings::Reads;
use silt_verify::{Finding, Impact, Report};

use crate::times;

/// Where in a file something is; nothing where that may be all of it, since its size is not known.
fn stretch((from, to): (u64, u64)) -> Option<String> {
    // No file is larger.
    if to <= i64::MAX.cast_unsigned() {
        Some(format!("between {}", between((from, to))))
    } else {
        (from > 0).then(|| format!("from {} on", crate::size::show(from)))
    }
}

/// Bytes from the first to behind the last, in the unit that tells them apart: `1.2 and 1.3 MB`.
pub fn between((from, to): (u64, u64)) -> String {
    const UNITS: [(u64, &str); 4] =
        [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    let unit = UNITS.iter().find(|(size, _)| to >= 10 * size || (to >= *size && from >= size / 10));
    let Some((size, name)) = unit else { return format!("{from} and {to} bytes") };
    for digits in 1..=6u32 {
        // Outwards: what is left out of the range can be read.
        let scale = 10u64.pow(digits);
        let (a, b) = (
            u128::from(from) * u128::from(scale) / u128::from(*size),
            (u128::from(to) * u128::from(scale)).div_ceil(u128::from(*size)),
        );
        // No more than four times as much as it is.
        let shown = (b - a) * u128::from(*size) / u128::from(scale);
        if shown <= 4 * u128::from(to.saturating_sub(from)) || digits == 6 {
            let places = digits as usize;
            let show = |n: u128| format!("{}.{:0places$}", n / u128::from(scale), n % u128::from(scale));
            return format!("{} and {} {name}", show(a), show(b));
        }
    }
    format!("{from} and {to} bytes")
}

/// What a finding means for the files it is about; none where it names no file whose content it touches.
pub fn sentence(finding: &Finding, impact: &Impact, latest: u64) -> Option<String> {
    let reads = impact.meaning.map_or(Reads::Well, |m| m.reads);
    if reads == Reads::Well || impact.files.is_empty() {
        return None;
    }
    let parts: Vec<String> = impact.files.iter().map(|file| part(finding, file, reads)).collect();
    let mut text = parts.join("; ");
    if impact.more > 0 {
        text += &format!("; and {} more", impact.more);
    }
    if let Some(cno) = finding.place.cno.filter(|cno| *cno != latest) {
        text = format!("in checkpoint {cno}: {text}");
    }
    Some(text)
}

fn part(finding: &Finding, file: &Touched, reads: Reads) -> String {
    let subject = if finding.place.ino == Some(file.ino) {
        match file.what {
            What::Directory => "this directory".to_owned(),
            What::Symlink => "this link".to_owned(),
            What::File | What::Other => "this file".to_owned(),
        }
    } else {
        match &file.path {
            Some(path) => format!("/{}", String::from_utf8_lossy(path)),
            None => format!("inode {}", file.ino),
        }
    };
    let range = file.range.and_then(stretch);
    let mut text = match (reads, file.what, range) {
        (Reads::Not, What::Directory, Some(range)) => {
            format!("names in {subject} {range} are not found")
        }
        (Reads::Not, What::Symlink, _) => format!("{subject} leads nowhere"),
        (Reads::Not, _, Some(range)) => format!("{subject} cannot be read {range}"),
        (Reads::Not, _, None) => format!("{subject} cannot be read"),
        (_, _, Some(range)) => format!("what {subject} shows {range} may be wrong"),
        (_, _, None) => format!("what {subject} shows may be wrong"),
    };
    match file.whole {
        Some(_) if file.whole_is_current => text += "; as it is now it is whole",
        Some((cno, time)) => {
            text += &format!("; the version of {} (checkpoint {cno}) is whole", times::stamp(time, true));
        }
        None => {}
    }
    text
}

/// Where everything that is wrong is in past checkpoints.
pub fn only_past(report: &Report) -> Option<String> {
    const NAMED: usize = 8;
    let mut past = BTreeSet::new();
    for finding in report.errors() {
        past.insert(finding.place.cno.filter(|c| *c < report.stats.last_cno)?);
    }
    let named: Vec<String> = past.iter().take(NAMED).map(ToString::to_string).collect();
    let more = if past.len() > NAMED { format!(" and {} more", past.len() - NAMED) } else { String::new() };
    (!named.is_empty()).then(|| {
        format!(
            "The latest tree is sound: all of this is in {} {}{more}, of the past or kept by silt repair --keep. \
             silt repair mends it there.",
            if past.len() == 1 { "checkpoint" } else { "checkpoints" },
            named.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_told_in_a_fitting_unit() {
        assert_eq!(between((1_200_128, 1_290_240)), "1.2 and 1.3 MB");
        assert_eq!(between((0, 4096)), "0 and 4096 bytes");
        assert_eq!(between((1 << 20, (1 << 20) + 4096)), "1.048 and 1.053 MB");
        assert_eq!(between((0, 3_000_000_000)), "0.0 and 3000.0 MB");
        assert_eq!(between((8192, 12288)), "8.1 and 12.3 kB");
        assert_eq!(between((0, u64::MAX)), "0.0 and 18446744.1 TB");
        assert_eq!(stretch((0, u64::MAX)), None);
        assert_eq!(stretch((4096, u64::MAX)).unwrap(), "from 4 KiB on");
        assert_eq!(stretch((0, 4096)).unwrap(), "between 0 and 4096 bytes");
    }
}
