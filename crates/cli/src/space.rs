//! The account of space in words, for those who print it.

use silt_control::Account;

use crate::output::count;
use crate::{size, times};

/// A line of a table: what, how much, and what of it.
fn row(what: &str, bytes: u64, of_it: &str) -> String {
    let line = format!("  {what:<22}{:>11}", size::show(bytes));
    if of_it.is_empty() { line } else { format!("{line}  ({of_it})") }
}

/// The classes, one a line; those that few volumes have only where there is something in them.
pub fn table(a: &Account) -> Vec<String> {
    let parts = |all: &[(u64, &str)]| {
        let some = all.iter().filter(|(bytes, _)| *bytes > 0);
        some.map(|(bytes, what)| format!("{} {what}", size::show(*bytes))).collect::<Vec<_>>().join(", ")
    };
    let history = parts(&[
        (a.history_soon, "of it goes within an hour"),
        (a.history_shared, "of it in snapshots, too"),
        (
            a.history.saturating_sub(a.history_shared).saturating_sub(a.history_loose),
            "of it kept whatever comes",
        ),
    ]);
    let shown = parts(&[(a.shown, "of it still shown by moments that may go")]);
    let mut lines = vec![
        row("live files", a.live, ""),
        row("history", a.history, &history),
        row("snapshots alone", a.snapshots, ""),
    ];
    if a.mounted > 0 {
        lines.push(row("mounted moments alone", a.mounted, ""));
    }
    lines.push(row("reclaimable now", a.reclaimable, &shown));
    lines.push(row("metadata", a.metadata, ""));
    lines.push(row("held by the log", a.log, "what is left of two segments"));
    lines.push(row("reserve", a.reserve, "so that deleting always works"));
    lines.push(row("free", a.free, ""));
    if a.bad > 0 {
        lines.push(row("marked bad", a.bad, ""));
    }
    lines.push(row("outside of segments", a.outside, ""));
    lines
}

/// What is to be said of the figures themselves.
pub fn remarks(a: &Account) -> Vec<String> {
    let mut lines = Vec::new();
    if a.unreadable > 0 || a.overfull > 0 {
        lines.push(format!(
            "{} of the block table cannot be read and {} are named twice: these figures are not right by what \
             those stand for; silt check says more",
            count(a.unreadable, "block"),
            a.overfull
        ));
    }
    if a.moving {
        lines.push("something was written while this was counted".to_owned());
    }
    lines
}

/// When it was counted.
pub fn counted(a: &Account) -> String {
    format!("counted {} at checkpoint {}", times::ago(a.time), a.checkpoint)
}
