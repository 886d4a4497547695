//! `silt retain`: shows, sets and tries what is kept of the past.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use silt_control::retention::Source;
use silt_control::{
    ControlError, Kind, Request, Response, Retain, Retention, RetentionPreview, answers, mounts,
};

use crate::failure::{Failure, Result};
use crate::output::{Output, count};
use crate::{size, target, times};

/// Show or set how much of the past is kept, mounted or not
///
/// Every moment is kept until its space is needed; then the cleaner goes by a wish in words:
///
///   all for 1 day, one an hour for 1 month, one a day for 1 year, one a week for ever
///
/// which is the default. A part is "all for" a time, or "one a", "one every 10" or "1/" with a unit of time, and "for" a
/// time or "for ever"; "nothing" keeps nothing of the past. Of the moments of an hour that one is kept that stood longest
/// before much changed. Where the wish leaves no space, ever weaker ones count, down to what --keep says, which is nothing
/// unless said otherwise. Snapshots and mounted moments always stay.
///
/// The wish lies in the file .silt/retention of the volume. The mount options retain= and keep= go before it.
#[derive(clap::Args)]
pub struct Args {
    /// What is kept even where it leaves no space, in words; "default" takes it away
    #[arg(long, value_name = "WORDS")]
    keep: Option<String>,
    /// Set nothing; say how many moments would go, and how much space would come back
    #[arg(long)]
    preview: bool,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    /// Image, device or mounted directory (none: the only volume mounted), and the wish in words; "default" takes it away
    #[arg(value_name = "VOLUME|WORDS", num_args = 0..)]
    what: Vec<OsString>,
}

/// The volume, and the words.
fn split(what: &[OsString]) -> Result<(Option<PathBuf>, Option<String>)> {
    let text = |words: &OsString| {
        words
            .to_str()
            .map(str::to_owned)
            .ok_or_else(|| Failure::usage("the wish is no text: write it in words, as 'all for 1 day'"))
    };
    match what {
        [words, volume] if is_words(words) && !is_there(words)? && is_there(volume)? => {
            Ok((Some(volume.into()), Some(text(words)?)))
        }
        [volume, words] => Ok((Some(volume.into()), Some(text(words)?))),
        [one] if !is_words(one) || is_there(one)? => Ok((Some(one.into()), None)),
        [one] => Ok((None, Some(text(one)?))),
        [] => Ok((None, None)),
        [_, _, ..] => Err(ControlError::new(Kind::Invalid, "these are more words than a volume and a wish")
            .hint("a wish is one argument: put it in quotes, as silt retain VOLUME 'all for 1 day'")
            .into()),
    }
}

/// Whether there is something of that name. What is mounted is not touched before its daemon gives a sign of life: the kernel
/// would have us wait for it for ever.
fn is_there(arg: &OsString) -> Result<bool> {
    let path = Path::new(arg);
    if mounts::is_mount_point(path)? {
        return Ok(true);
    }
    answers(path)?;
    Ok(path.exists())
}

/// Whether somebody meant a wish, well said or not.
fn is_words(arg: &OsString) -> bool {
    let text = arg.to_string_lossy();
    text.eq_ignore_ascii_case("default") || text.contains(' ') || text.parse::<silt_retention::Wish>().is_ok()
}

pub fn run(args: &Args) -> Result<()> {
    let (volume, wish) = split(&args.what)?;
    let retain = Retain { wish, floor: args.keep.clone() };
    let sets = retain != Retain::default();
    let request = match (args.preview, sets) {
        (true, _) => Request::PreviewRetention(retain),
        (false, true) => Request::SetRetention(retain),
        (false, false) => Request::ShowRetention,
    };
    let mut control = target::open(volume.as_deref())?;
    let mut out = Output::new();
    target::call(&mut *control, request, |part| match part {
        Response::Retention(r) if args.json => out.json(&*r),
        Response::RetentionPreview(p) if args.json => out.json(&*p),
        Response::Retention(r) => lines(&r).iter().try_for_each(|line| out.line(line)),
        Response::RetentionPreview(p) => preview(&p).iter().try_for_each(|line| out.line(line)),
        _ => Ok(()),
    })?;
    out.finish()
}

fn from(source: Source) -> &'static str {
    match source {
        Source::Default => "the default",
        Source::Volume => "the volume says so",
        Source::Mount => "as mounted",
        Source::File => "nilfs_cleanerd.conf says so",
        Source::Unknown => "what the volume says is not known",
    }
}

fn lines(r: &Retention) -> Vec<String> {
    let mut lines = vec![
        format!("kept as long as there is space: {} ({})", r.wish, from(r.wish_from)),
        format!("kept whatever comes: {} ({}), and snapshots", r.floor, from(r.floor_from)),
    ];
    lines.extend(r.problem.iter().map(|p| format!("note: {p}")));
    let are = if r.moments == 1 { "is" } else { "are" };
    lines.push(format!("there {are} {} and {}", count(r.moments, "moment"), count(r.snapshots, "snapshot")));
    if let Some(g) = &r.given_up {
        lines.push(match (g.as_wished, g.beyond) {
            (0, 0) => "nothing was given up by itself since it was mounted".to_owned(),
            (n, beyond) => {
                format!(
                    "given up by itself since it was mounted: {} as wished, {beyond} beyond that for want of space",
                    count(n, "moment")
                )
            }
        });
        if let (Some(when), Some(kept)) = (g.when, &g.down_to) {
            let stamp = times::stamp(when, false);
            lines.push(format!("space was short {} ({stamp}), when this was kept: {kept}", times::ago(when)));
        }
    }
    lines
}

fn preview(p: &RetentionPreview) -> Vec<String> {
    let mut lines = vec![format!("kept would be: {}", p.wish)];
    if p.floor != "nothing" {
        lines.push(format!("and whatever comes: {}", p.floor));
    }
    let which = match (p.gone, p.moments) {
        (0, 0) => "there is no moment that could go".to_owned(),
        (0, 1) => "the only moment stays".to_owned(),
        (0, all) => format!("none of {} would go", count(all, "moment")),
        (1, 1) => "the only moment would go".to_owned(),
        (gone, all) => format!("{gone} of {} would go", count(all, "moment")),
    };
    lines.push(match p.gone {
        0 => which,
        gone => {
            let them = if gone == 1 { "it" } else { "them" };
            format!("{which} once space is short, and {} come back with {them}", size::show(p.bytes))
        }
    });
    if p.unused > 0 {
        lines.push(format!("{} in use serve no moment at all", size::show(p.unused)));
    }
    lines
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn one_moment_and_many_are_told_apart() {
        let of = |gone, moments| {
            let wish = "nothing".to_owned();
            let p = RetentionPreview {
                wish: wish.clone(),
                floor: wish,
                moments,
                gone,
                bytes: 4096,
                unused: 0,
                segment_size: 8 << 20,
            };
            preview(&p).pop().unwrap()
        };
        assert_eq!(of(0, 0), "there is no moment that could go");
        assert_eq!(of(0, 1), "the only moment stays");
        assert_eq!(of(0, 2), "none of 2 moments would go");
        assert_eq!(of(1, 1), "the only moment would go once space is short, and 4 KiB come back with it");
        assert_eq!(of(1, 2), "1 of 2 moments would go once space is short, and 4 KiB come back with it");
        assert_eq!(of(3, 4), "3 of 4 moments would go once space is short, and 4 KiB come back with them");
    }

    #[test]
    fn volumes_and_words_are_told_apart() {
        let of = |args: &[&str]| split(&args.iter().map(Into::into).collect::<Vec<_>>()).unwrap();
        let path = |p: &str| Some(PathBuf::from(p));
        assert_eq!(of(&[]), (None, None));
        assert_eq!(of(&["/"]), (path("/"), None));
        assert_eq!(of(&["no-such.img"]), (path("no-such.img"), None));
        assert_eq!(of(&["all for ever"]), (None, Some("all for ever".into())));
        assert_eq!(of(&["one an hour for a mouth"]), (None, Some("one an hour for a mouth".into())));
        assert_eq!(of(&["nothing"]), (None, Some("nothing".into())));
        assert_eq!(of(&["Default"]), (None, Some("Default".into())));
        assert_eq!(of(&["nothing", "/"]), (path("/"), Some("nothing".into())));
        assert_eq!(of(&["v.img", "nothing"]), (path("v.img"), Some("nothing".into())));
        let unquoted = ["v.img", "all", "for", "1", "day"].map(OsString::from);
        assert!(
            matches!(split(&unquoted), Err(Failure::Error(e)) if e.hint.as_ref().unwrap().contains("quotes"))
        );
    }
}
