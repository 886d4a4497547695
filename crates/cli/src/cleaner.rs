//! What cleans a mounted volume, in words.

use silt_control::cleaner::{Cleaner, Pace};
use silt_control::retention::Source;

use crate::output::count;
use crate::size;

/// What it goes by and what it did; below that, what somebody said of it and who.
pub fn lines(c: &Cleaner, block_size: u32) -> Vec<String> {
    let begins = match (c.begins_below.value, c.ends_at.value) {
        (Some(low), Some(high)) => format!("begins below {low} clean segments, ends at {high}"),
        (Some(low), None) => format!("begins below {low} clean segments"),
        (None, _) => "always on".to_owned(),
    };
    let did = match c.work.segments {
        0 => "nothing was to be done yet".to_owned(),
        n => format!(
            "{} emptied since it was mounted, {} copied",
            count(n, "segment"),
            size::show(c.work.moved.saturating_mul(u64::from(block_size)))
        ),
    };
    let mut lines = vec![if c.on {
        format!("cleaner: {begins}, {} first; {did}", c.policy.value)
    } else {
        format!("cleaner: off; silt clean empties segments, {} so far", c.work.segments)
    }];
    let file = c.file.as_ref().map(ToString::to_string).unwrap_or_default();
    let mut say = |what: String, from: Source| match from {
        Source::Default | Source::Unknown => {}
        Source::File => lines.push(format!("  {what} ({file})")),
        Source::Mount => lines.push(format!("  {what} (as mounted)")),
        Source::Volume => lines.push(format!("  {what} (the volume says so)")),
    };
    say(format!("order: {}", c.policy.value), c.policy.from);
    let below = c.begins_below.value.map_or_else(|| "always".to_owned(), |n| format!("below {n}"));
    say(format!("begins: {below}"), c.begins_below.from);
    let ends = c.ends_at.value.map_or_else(|| "never".to_owned(), |n| format!("at {n}"));
    say(format!("ends: {ends}"), c.ends_at.from);
    say(format!("looks every {} s", c.look.value), c.look.from);
    for (pace, when) in [(&c.usual, ""), (&c.short, " where little is clean")] {
        speed(pace).into_iter().for_each(|what| say(format!("{what}{when}"), Source::File));
    }
    lines.extend(c.unknown.iter().map(|u| format!("  {u}")));
    lines
}

fn speed(pace: &Pace) -> Vec<String> {
    let segments = pace.segments.map(|n| format!("at most {} a step", count(n, "segment")));
    let interval = pace.interval.map(|t| format!("{t} s of rest after a step"));
    let least =
        pace.least.map(|n| format!("segments with fewer than {} to gain are left", count(n, "block")));
    [segments, interval, least].into_iter().flatten().collect()
}
