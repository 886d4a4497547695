//! What `silt rescue` says: in words and as JSON.

use std::path::Path;

use serde::Serialize;
use silt_format::super_block::Copy;
use silt_names::ByteName;
use silt_verify::rescue::geometry::Source;
use silt_verify::rescue::{Answer, Grade, Note, Problem, Rated, Rescue, Tally};

use super::super::check::TornLog;
use super::shown;
use crate::failure::Result;
use crate::output::{Output, count};
use crate::{size, times};

/// What of a file is lost.
#[derive(Serialize)]
struct Item {
    #[serde(flatten, with = "silt_names::path")]
    path: ByteName,
    inode: u64,
    /// Whether something is lost; else it only does not verify.
    lost: bool,
    /// Byte ranges that are lost: [from, to).
    missing: Vec<(u64, u64)>,
    /// Bytes that came back and do not verify.
    unverified: u64,
    /// The checkpoint whose attributes it has, where that is an older one.
    #[serde(skip_serializing_if = "Option::is_none")]
    attributes_from: Option<u64>,
    /// The checkpoint of which a whole version was put beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    whole_version_from: Option<u64>,
    /// Bytes that were synced later and are whole, in a copy that was put beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    synced_beside: Option<u64>,
    notes: Vec<String>,
}

impl Item {
    fn new(p: &Problem) -> Self {
        let mut item = Item {
            path: ByteName::from_root(&p.path),
            inode: p.ino,
            lost: !p.only_unverified(),
            missing: p.missing.iter().map(|r| (r.start, r.end)).collect(),
            unverified: 0,
            attributes_from: None,
            whole_version_from: None,
            synced_beside: None,
            notes: p.notes.iter().map(note_in_words).collect(),
        };
        for note in &p.notes {
            match note {
                Note::Unverified { bytes } => item.unverified = *bytes,
                Note::OlderAttributes { cno } => item.attributes_from = Some(*cno),
                Note::WholeVersionBeside { cno } => item.whole_version_from = Some(*cno),
                Note::SyncedBeside { bytes } => item.synced_beside = Some(*bytes),
                _ => {}
            }
        }
        item
    }
}

fn note_in_words(note: &Note) -> String {
    match note {
        Note::Unverified { bytes } => match bytes {
            1 => "1 byte lies in a log whose checksum does not match".to_owned(),
            _ => format!("{bytes} bytes lie in logs whose checksum does not match"),
        },
        Note::Doubtful => {
            "its map or inode lies in a log whose checksum does not match, or may be of an earlier moment"
                .into()
        }
        Note::OlderAttributes { cno } => {
            format!("owner, permissions and times are those of checkpoint {cno}")
        }
        Note::AttributesLost => "owner, permissions and times are lost".into(),
        Note::SizeGuessed => {
            "its exact size is lost: of zeros at its end there may be too few or too many".into()
        }
        Note::NamesLost { blocks: 1 } => "a block of the directory is lost, and names with it".into(),
        Note::NamesLost { blocks } => {
            format!("{blocks} blocks of the directory are lost, and names with them")
        }
        Note::Lost { why } => (*why).into(),
        Note::NotMade { why } => format!("it cannot be made there: {why}"),
        Note::WholeVersionBeside { cno } => {
            format!("a whole version of checkpoint {cno} was put beside it, as NAME.checkpoint-{cno}")
        }
        Note::SyncedBeside { bytes: 1 } => {
            "1 byte that was synced later and is whole was put beside it, in NAME.synced".into()
        }
        Note::SyncedBeside { bytes } => {
            format!("{bytes} bytes that were synced later and are whole were put beside it, in NAME.synced")
        }
    }
}

fn in_words(p: &Problem) -> String {
    let mut parts = Vec::new();
    match p.missing.as_slice() {
        [] => {}
        [r] => parts.push(format!("bytes {} to {} are lost", r.start, r.end)),
        all => parts.push(format!("{} bytes in {} places are lost", p.missing_bytes(), all.len())),
    }
    parts.extend(p.notes.iter().map(note_in_words));
    format!("{}: {}", shown(&p.path), parts.join("; "))
}

/// What was copied out.
#[derive(Serialize)]
pub struct Copied<'a> {
    moment: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(flatten, with = "silt_names::to")]
    to: ByteName,
    complete: bool,
    directories: u64,
    files: u64,
    links: u64,
    bytes: u64,
    /// Files and directories of which something is lost.
    damaged: u64,
    /// Files and directories of which something does not verify, and nothing is known to be lost.
    unverified: u64,
    /// Both; not more than a limit.
    items: Vec<Item>,
    /// Synced data behind the moment that did not come back.
    #[serde(skip_serializing_if = "Option::is_none")]
    synced_lost: Option<String>,
    #[serde(skip)]
    tally: &'a Tally,
    #[serde(skip)]
    created: u64,
}

impl<'a> Copied<'a> {
    pub fn new(cno: u64, created: u64, to: &Path, tally: &'a Tally, synced_lost: Option<String>) -> Self {
        Copied {
            moment: cno,
            time: Some(created).filter(|t| *t != 0).and_then(times::iso),
            to: to.into(),
            complete: tally.grade() == Grade::Whole && synced_lost.is_none(),
            directories: tally.directories,
            files: tally.files,
            links: tally.links,
            bytes: tally.bytes,
            damaged: tally.damaged,
            unverified: tally.unverified,
            items: tally.problems.iter().map(Item::new).collect(),
            synced_lost,
            tally,
            created,
        }
    }

    /// In words.
    pub fn text(&self, out: &mut Output, lines: usize) -> Result<()> {
        out.line(format!(
            "{}: checkpoint {} of {}: {}, {}, {}",
            self.to,
            self.moment,
            times::stamp(self.created, true),
            count(self.files, "file"),
            count(self.directories, "directory"),
            size::show(self.bytes),
        ))?;
        if let Some(lost) = &self.synced_lost {
            out.line(lost)?;
        }
        let (damaged, unverified): (Vec<_>, Vec<_>) =
            self.tally.problems.iter().partition(|p| !p.only_unverified());
        if self.complete {
            return out.line("Everything came back, and everything verifies.");
        }
        if self.damaged > 0 {
            out.line(format!("Something is lost of {}:", count(self.damaged, "name")))?;
            list(out, &damaged, self.damaged, lines)?;
        }
        if self.unverified > 0 {
            out.line(format!(
                "In the same logs as damage lie parts of {}; most likely they are as they were:",
                count(self.unverified, "name")
            ))?;
            list(out, &unverified, self.unverified, lines)?;
        }
        Ok(())
    }
}

fn list(out: &mut Output, problems: &[&Problem], count: u64, lines: usize) -> Result<()> {
    let shown = lines.min(problems.len());
    problems.iter().take(shown).try_for_each(|p| out.line(format!("  {}", in_words(p))))?;
    match count - shown as u64 {
        0 => Ok(()),
        more => out.line(format!("  {more} more (--report lists them)")),
    }
}

/// How good a moment is, in words.
pub fn grade_in_words(rated: &Rated) -> String {
    let Some(t) = &rated.tally else { return "not looked at (--all)".into() };
    let all = t.files + t.directories;
    match t.grade() {
        Grade::Whole => format!("whole: {}", count(all, "file")),
        Grade::Unverified => format!("{}; {}", count(all, "file"), unverified(t)),
        Grade::Partly => {
            format!("{}; {} damaged or lost, {}", count(all, "file"), t.damaged, unverified(t))
        }
        Grade::Unreadable => "nothing".into(),
    }
}

fn unverified(t: &Tally) -> String {
    format!("{} {} not verify", t.unverified, if t.unverified == 1 { "does" } else { "do" })
}

/// What the device holds, in words.
pub fn survey_lines(rescue: &Rescue<'_>) -> Vec<String> {
    let (g, s) = (rescue.geometry(), &rescue.survey);
    let copy = |c: Copy| if c == Copy::Primary { "first" } else { "second" };
    let mut lines = vec![match (rescue.shape.source, rescue.shape.copies) {
        (_, (true, true)) => "Both super blocks are sound.".to_owned(),
        (Source::SuperBlock(c), _) => format!("The {} super block is sound, the other one is not.", copy(c)),
        (Source::BrokenSuperBlock(c), _) => {
            format!("No super block is sound; the logs confirm the numbers in the {} one.", copy(c))
        }
        (Source::Logs, _) => format!(
            "Both super blocks are lost; the logs tell blocks of {} bytes and segments of {} blocks.",
            g.block_size, g.blocks_per_segment
        ),
    }];
    let in_use = s.logs.iter().filter(|l| !l.stale);
    let broken = in_use.clone().filter(|l| !l.whole).count();
    lines.push(format!(
        "{} in use, {} of them damaged; {}.",
        count(in_use.count() as u64, "log"),
        broken,
        count(rescue.roots().len() as u64, "super root")
    ));
    let unreadable: u64 = s.unreadable.iter().map(|r| r.end - r.start).sum();
    if unreadable > 0 {
        lines.push(format!(
            "{} cannot be read, in {}.",
            count(unreadable, "block"),
            count(s.unreadable.len() as u64, "place")
        ));
    }
    lines
}

/// What is lost after the newest whole moment, or of the one that was named, in words.
pub fn lost_lines(newest: &Rated, named: bool, whole: Option<&Rated>, lines: usize) -> Vec<String> {
    let m = &newest.moment;
    let Some(t) = &newest.tally else {
        return vec![format!("Checkpoint {} cannot be read.", m.cno)];
    };
    let after = whole.map_or_else(String::new, |w| format!(" after checkpoint {}", w.moment.cno));
    if t.grade() == Grade::Unreadable {
        let what = if named { format!(" of checkpoint {}", m.cno) } else { after };
        return vec![format!("Nothing{what} can be read.")];
    }
    let kept = |only: bool| t.problems.iter().filter(move |p| p.only_unverified() == only);
    let mut out = Vec::new();
    for (count, only, what) in [
        (t.damaged, false, "of these something is lost"),
        (t.unverified, true, "these can be read but do not verify"),
    ] {
        if count == 0 {
            continue;
        }
        let which = if named { "In checkpoint" } else { "In the newest, checkpoint" };
        let comma = if named { "" } else { "," };
        out.push(format!("{which} {}{comma} {what}:", m.cno));
        let names: Vec<_> = kept(only).take(lines).map(|p| format!("  {}", in_words(p))).collect();
        let more = count - names.len() as u64;
        out.extend(names);
        if more > 0 {
            out.push(format!("  {more} more"));
        }
    }
    out
}

/// What can be mounted: the log, and the number of an older moment that is read through it.
pub fn mountable(rescue: &Rescue<'_>, wanted: u64) -> Option<(u64, Option<u64>)> {
    let root = rescue.root_for(wanted).filter(|r| r.whole)?;
    Some((root.log?, (root.cno != wanted).then_some(wanted)))
}

#[derive(Serialize)]
struct Shown {
    moment: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    snapshot: bool,
    /// whole, unverified, partly, unreadable, or nothing where it was not looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    grade: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unverified: Option<u64>,
    /// First block of the log that completes it: for mount -o rescue=.
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<u64>,
}

/// What survives.
#[derive(Serialize)]
pub struct Survey {
    super_blocks: (bool, bool),
    block_size: u32,
    blocks_per_segment: u32,
    logs: u64,
    damaged_logs: u64,
    unreadable_blocks: u64,
    /// Of the moments that were asked for.
    newest: Option<u64>,
    newest_whole: Option<u64>,
    /// Synced data behind the newest checkpoint that does not come back with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    synced_lost: Option<String>,
    /// A log behind the newest checkpoint that a power cut has torn, or may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    torn_log: Option<TornLog>,
    moments: Vec<Shown>,
    /// Of the newest moment, what is damaged or does not verify.
    items: Vec<Item>,
}

impl Survey {
    pub fn new(rescue: &Rescue<'_>, answer: &Answer, synced_lost: Option<String>) -> Self {
        let (g, s) = (rescue.geometry(), &rescue.survey);
        let in_use = s.logs.iter().filter(|l| !l.stale);
        let newest = answer.moments.first().and_then(|r| r.tally.as_ref());
        Survey {
            super_blocks: rescue.shape.copies,
            block_size: g.block_size,
            blocks_per_segment: g.blocks_per_segment,
            logs: in_use.clone().count() as u64,
            damaged_logs: in_use.filter(|l| !l.whole).count() as u64,
            unreadable_blocks: s.unreadable.iter().map(|r| r.end - r.start).sum(),
            newest: answer.newest,
            newest_whole: answer.newest_whole,
            synced_lost,
            torn_log: rescue.torn().map(TornLog::new),
            moments: answer.moments.iter().map(|r| shown_moment(rescue, r)).collect(),
            items: newest.map(|t| t.problems.iter().map(Item::new).collect()).unwrap_or_default(),
        }
    }
}

fn shown_moment(rescue: &Rescue<'_>, r: &Rated) -> Shown {
    let m = &r.moment;
    Shown {
        moment: m.cno,
        time: Some(m.created).filter(|t| *t != 0).and_then(times::iso),
        snapshot: m.snapshot,
        grade: r.grade().map(|g| match g {
            Grade::Whole => "whole",
            Grade::Unverified => "unverified",
            Grade::Partly => "partly",
            Grade::Unreadable => "unreadable",
        }),
        files: r.tally.as_ref().map(|t| t.files + t.directories),
        damaged: r.tally.as_ref().map(|t| t.damaged),
        unverified: r.tally.as_ref().map(|t| t.unverified),
        log: rescue.roots().iter().find(|root| root.cno == m.cno && root.whole).and_then(|root| root.log),
    }
}
