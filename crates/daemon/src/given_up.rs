//! What the cleaner gave up, in words.

use silt_control::GivenUp;

/// Units of an age in seconds, the longest first.
const UNITS: [(u64, &str); 4] = [(86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")];

/// Says what went beyond the wish; nothing where nothing did.
pub fn sentence(given: &GivenUp, now: u64) -> Option<String> {
    let (when, kept) = (given.when?, given.down_to.as_deref()?);
    let age = now.saturating_sub(when);
    let (size, unit) = UNITS.iter().find(|(size, _)| age >= *size).copied().unwrap_or((1, "second"));
    let n = age / size;
    let s = |n: u64| if n == 1 { "" } else { "s" };
    let kept = if kept == "nothing" { "nothing of the past".to_owned() } else { format!("\"{kept}\"") };
    let beyond = given.beyond;
    Some(format!(
        "space was short: {beyond} moment{} beyond the wish {} given up, the last {n} {unit}{} ago, when {kept} was kept; \
         snapshots (silt du) and the floor (silt retain) stay",
        s(beyond),
        if beyond == 1 { "was" } else { "were" },
        s(n)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_in_words() {
        assert_eq!(sentence(&GivenUp::default(), 5), None);
        let given = GivenUp {
            beyond: 2,
            when: Some(1_000),
            down_to: Some("all for 1 hour".into()),
            ..GivenUp::default()
        };
        let said = sentence(&given, 8_200).unwrap_or_default();
        assert!(
            said.contains(
                "2 moments beyond the wish were given up, the last 2 hours ago, when \"all for 1 hour\" was"
            ),
            "{said}"
        );
        let given = GivenUp { beyond: 1, down_to: Some("nothing".into()), ..given };
        let said = sentence(&given, 1_001).unwrap_or_default();
        assert!(
            said.contains(
                "1 moment beyond the wish was given up, the last 1 second ago, when nothing of the past"
            ),
            "{said}"
        );
    }
}
