//! Moments that are named by a time, as people write it.

use crate::common::{Bench, Mounted, can_mount};

/// What is said of a time decides whether it was understood, with no mount at all.
#[test]
fn times_are_understood_as_they_are_typed_and_others_are_told_with_some_that_are() {
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    for time in
        ["yesterday 14:00", "Yesterday", "10 Minutes Ago", "last Monday", "two hours ago", "yesterday_2pm"]
    {
        let error = b.fails(9, &["rescue", &v, "--moment", time]);
        assert!(error.contains("no moment that old survives"), "{time}: {error}");
        let error = b.fails(9, &["repair", &v, "--roll-back", time, "--dry-run"]);
        assert!(error.contains("no checkpoint as old as that"), "{time}: {error}");
        let error = b.fails(9, &["mount", "-o", &format!("at={time}"), &v, "m"]);
        assert!(error.contains("there is no checkpoint that old"), "{time}: {error}");
    }
    for args in [
        &["rescue", &v, "--moment", "last night"][..],
        &["repair", &v, "--roll-back", "last night", "--dry-run"],
        &["mount", "-o", "at=last night", &v, "m"],
    ] {
        let error = b.fails(2, args);
        assert!(
            error.contains(
                "\"last night\" names no moment\n  (write a checkpoint number, or a time as 14:00, yester"
            ),
            "{error}"
        );
    }
    let error = b.fails(2, &["mount", "-o", "at=10 minutes", &v, "m"]);
    assert!(error.contains("(write \"10 minutes ago\" if it is that)"), "{error}");
    // The quotes were forgotten.
    let error = b.fails(2, &["mount", "-o", "at=10", "minutes", "ago", &v, "m"]);
    assert!(
        error.contains("(quote a time with blanks: silt mount -o at='10 minutes ago' VOLUME DIR)"),
        "{error}"
    );
}

#[test]
fn a_moment_is_mounted_by_words() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let v = b.volume("v.img", "64M");
    let (m, _) = Mounted::new(&b, &[&v], "m");
    for time in ["Today", "NOW", "today_23:59", "0 Seconds Ago"] {
        let (past, said) = Mounted::new(&b, &["-o", &format!("at={time}"), m.dir()], "past");
        assert!(said.contains("shows checkpoint "), "{said}");
        past.unmount();
    }
    m.unmount();
}
