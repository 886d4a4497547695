//! `silt check`: looks at everything the format says of a volume, and says what does not hold.

pub mod source;
pub mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Serialize;
use silt_control::{ControlError, Kind};
use silt_names::ByteName;
use silt_verify::{Behind, Finding, Headless, Impact, Options, Report, Severity, Torn, Watch};

use crate::failure::{Failure, Result};
use crate::interrupt::Interruptible;
use crate::output::{Output, count, printable};
use crate::progress::Stages;
use crate::{number, own, size, times};

/// Check a volume, mounted by silt or not, and write nothing
///
/// Of a mounted volume, what was written until now is checked, while it goes on being used.
#[derive(clap::Args)]
pub struct Args {
    /// Walk the trees of all checkpoints, not only of the latest and of snapshots
    #[arg(short, long)]
    all: bool,
    /// Show notes too: what is allowed and worth knowing
    #[arg(short, long)]
    verbose: bool,
    /// Show so many findings of each kind, or none with 0; more are counted
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 10, value_parser = number::whole::<usize>)]
    lines: usize,
    /// As JSON, notes included (of names that are no UTF-8 the bytes, too)
    #[arg(long)]
    json: bool,
    /// Say what memory it took, on standard error
    #[arg(long)]
    memory: bool,
    /// Image or device, or a directory where it is mounted
    volume: PathBuf,
}

/// A finding as it is shown.
#[derive(Serialize)]
struct Shown<'a> {
    id: &'static str,
    severity: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
    /// From the root of the latest tree, where the inode has a name there.
    #[serde(flatten, with = "silt_names::path", skip_serializing_if = "Option::is_none")]
    path: Option<ByteName>,
    /// Block of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    virtual_block: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    segment: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<u64>,
    message: &'a str,
    /// What it means for the files it is about, or else whatever it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    meaning: Option<String>,
    /// What mends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    mends: Option<&'static str>,
    /// Bytes of the file, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    range: Option<Range>,
    #[serde(skip_serializing_if = "Option::is_none")]
    whole_version: Option<Version>,
    /// Files whose content it touches.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    files: Vec<File>,
    /// Files beyond those.
    #[serde(skip_serializing_if = "is_zero")]
    more_files: u64,
}

/// A file that a finding is about.
#[derive(Serialize)]
struct File {
    inode: u64,
    #[serde(flatten, with = "silt_names::path", skip_serializing_if = "Option::is_none")]
    path: Option<ByteName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    range: Option<Range>,
    #[serde(skip_serializing_if = "Option::is_none")]
    whole_version: Option<Version>,
}

/// Bytes, from the first to behind the last.
#[derive(Serialize, Clone, Copy)]
struct Range {
    from: u64,
    to: u64,
}

/// The newest other version that is whole.
#[derive(Serialize, Clone)]
struct Version {
    checkpoint: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    /// It is what the latest tree shows.
    current: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_zero(n: &u64) -> bool {
    *n == 0
}

#[derive(Serialize)]
struct Summary<'a> {
    sound: bool,
    /// It was ended before it was done: more may be wrong.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ended_early: bool,
    /// The daemon let go of it before it was done: what was found may be what was written since.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    let_go: bool,
    errors: u64,
    last_checkpoint: u64,
    cleanly_unmounted: bool,
    /// It was mounted, and checked as of `last_checkpoint`.
    mounted: bool,
    checkpoints: u64,
    snapshots: u64,
    trees_walked: u64,
    inodes: u64,
    segments: u64,
    logs: u64,
    live_blocks: u64,
    findings: &'a [Shown<'a>],
    /// Findings beyond so many of a kind (`--lines`).
    findings_left_out: u64,
    /// How often each was found, those that are not shown included.
    counts: &'a BTreeMap<&'static str, u64>,
    /// Of a device that is shorter than the volume: what is missing, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut_short: Option<&'a str>,
    /// A log behind the newest checkpoint that a power cut has torn, or may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    torn_log: Option<TornLog>,
    /// A log behind the newest checkpoint that has lost its head.
    #[serde(skip_serializing_if = "Option::is_none")]
    headless_log: Option<HeadlessLog>,
}

/// See [`silt_verify::Torn`].
#[derive(Serialize)]
pub struct TornLog {
    checkpoint: u64,
    block: u64,
}

impl TornLog {
    pub fn new(torn: Torn) -> Self {
        TornLog { checkpoint: torn.checkpoint, block: torn.block }
    }
}

/// See [`silt_verify::Headless`].
#[derive(Serialize)]
struct HeadlessLog {
    checkpoint: u64,
    block: u64,
    newest: u64,
}

impl HeadlessLog {
    fn new(log: Headless) -> Self {
        HeadlessLog { checkpoint: log.checkpoint, block: log.block, newest: log.newest }
    }
}

pub fn run(args: &Args) -> Result<()> {
    // A signal ends at once what waits for a daemon.
    let mut source = source::open(&args.volume)?;
    let watch = Interruptible::new(Stages::new(false));
    if silt_verify::is_no_volume(&source.device) {
        return Err(no_volume(&args.volume).into());
    }
    let options = Options {
        all_checkpoints: args.all,
        // One tells an error from a note, though none is shown.
        findings_per_invariant: args.lines.max(1),
        at: source.at,
        ..Options::default()
    };
    let report = silt_verify::check_watched(&source.device, &options, &watch);
    let impacts = silt_verify::explain(&source.device, &options, &report, &watch);
    let stopped = watch.stop();
    drop(watch);
    if args.memory {
        memory();
    }
    let errors = errors(&report);
    // What is sound then was so when it was read.
    let let_go = errors > 0 && !stopped && source.was_let_go();
    // Of a mounted one it is what is written next.
    let behind = if source.at.is_some() { None } else { silt_verify::behind(&source.device) };
    let behind = behind.unwrap_or_default();
    if args.json {
        let seen = Seen { mounted: source.at.is_some(), let_go, behind: &behind };
        json(&report, &impacts, errors, args.lines, &seen)?;
    } else {
        let mut out = Output::new();
        // Hundreds of errors that are none would be taken for the volume's end.
        if !let_go || args.verbose {
            text(&mut out, &report, &impacts, args.verbose, args.lines > 0)?;
        }
        behind.untold().try_for_each(|line| out.line(line))?;
        let name = args.volume.display().to_string();
        out.line(match (stopped, let_go) {
            (true, _) => ended(&name, errors),
            (_, true) => {
                format!(
                    "{name}: let go before it was done; {} that may be none (-v shows them)",
                    count(errors, "error")
                )
            }
            _ => summary(&name, &report, errors, source.at.is_some()),
        })?;
        out.finish()?;
    }
    if let_go {
        return Err(was_let_go(&args.volume).into());
    }
    match (stopped, errors) {
        (true, _) => Err(Failure::Interrupted),
        (false, 0) => Ok(()),
        (false, _) => Err(Failure::Damaged),
    }
}

/// Says that what was found is no verdict.
fn was_let_go(path: &std::path::Path) -> ControlError {
    let message = format!(
        "{} was let go before the check was done, since its space was needed or it was unmounted: what was found may be what \
         was written over meanwhile",
        path.display()
    );
    ControlError::new(Kind::Unavailable, message)
        .hint("free space and check it again, or check it unmounted; silt scrub goes on piecewise and holds no space")
}

/// How it was looked at.
struct Seen<'a> {
    mounted: bool,
    let_go: bool,
    behind: &'a Behind,
}

/// Says that this may be anything.
pub fn no_volume(path: &std::path::Path) -> ControlError {
    let message = format!("{} is not a NILFS2 volume, or both its super blocks are lost", path.display());
    ControlError::new(Kind::NotNilfs, message).hint(
        "silt repair shows what it would mend of a volume without super blocks, silt rescue copies out what can be read",
    )
}

/// The most memory this process has had, as the kernel counts it.
fn memory() {
    let kib = own::status("VmHWM").and_then(|most| most.strip_suffix(" kB")?.parse::<u64>().ok());
    let bytes = kib.map_or_else(|| "not known".to_owned(), |kib| size::show(kib.saturating_mul(1024)));
    crate::target::eprintln_quiet(&format!("most memory: {bytes}"));
}

/// How many errors there are, those that are not kept included.
pub fn errors(report: &Report) -> u64 {
    let ids: BTreeSet<&str> = report.errors().map(|finding| finding.id).collect();
    report.counts.iter().filter(|(id, _)| ids.contains(*id)).map(|(_, count)| count).sum()
}

/// The path of the inode that a finding names.
fn path(finding: &Finding, impact: &Impact) -> Option<ByteName> {
    let file = impact.files.iter().find(|file| Some(file.ino) == finding.place.ino)?;
    file.path.as_deref().map(ByteName::from_root)
}

fn show<'a>(finding: &'a Finding, impact: &Impact, latest: u64) -> Shown<'a> {
    let place = &finding.place;
    let files = impact.files.iter().map(|file| File {
        inode: file.ino,
        path: file.path.as_deref().map(ByteName::from_root),
        range: file.range.map(|(from, to)| Range { from, to }),
        whole_version: file.whole.map(|(checkpoint, time)| Version {
            checkpoint,
            time: times::iso(time),
            current: file.whole_is_current,
        }),
    });
    let files: Vec<File> = files.collect();
    let own = files.iter().find(|file| Some(file.inode) == place.ino);
    let sentence = words::sentence(finding, impact, latest);
    Shown {
        id: finding.id,
        severity: match finding.severity {
            Severity::Error => "error",
            Severity::Note => "note",
        },
        checkpoint: place.cno,
        inode: place.ino,
        path: path(finding, impact),
        offset: place.offset,
        virtual_block: place.vblock,
        segment: place.segment,
        block: place.block,
        message: &finding.message,
        meaning: sentence.or_else(|| impact.meaning.map(|m| m.means.to_owned())),
        mends: impact.meaning.map(|m| m.mends),
        range: own.and_then(|file| file.range),
        whole_version: own.and_then(|file| file.whole_version.clone()),
        files,
        more_files: impact.more,
    }
}

fn json(report: &Report, impacts: &[Impact], errors: u64, lines: usize, seen: &Seen<'_>) -> Result<()> {
    let s = &report.stats;
    let shown = report.findings.iter().zip(impacts).filter(|_| lines > 0);
    let findings: Vec<Shown<'_>> = shown.map(|(f, i)| show(f, i, s.last_cno)).collect();
    let all: u64 = report.counts.values().sum();
    let mut out = Output::new();
    out.json(&Summary {
        sound: errors == 0 && !report.stopped,
        ended_early: report.stopped,
        let_go: seen.let_go,
        errors,
        last_checkpoint: s.last_cno,
        cleanly_unmounted: s.clean,
        mounted: seen.mounted,
        checkpoints: s.checkpoints,
        snapshots: s.snapshots,
        trees_walked: s.trees_walked,
        inodes: s.inodes,
        segments: s.segments,
        logs: s.logs,
        live_blocks: s.live_blocks,
        findings: &findings,
        findings_left_out: all.saturating_sub(findings.len() as u64),
        counts: &report.counts,
        cut_short: report.cut_short.as_deref(),
        torn_log: seen.behind.torn.map(TornLog::new),
        headless_log: seen.behind.headless.map(HeadlessLog::new),
    })?;
    out.finish()
}

/// The findings, each with what it means, or where they are not `listed` how many there are.
pub fn text(
    out: &mut Output,
    report: &Report,
    impacts: &[Impact],
    verbose: bool,
    listed: bool,
) -> Result<()> {
    let mut told = BTreeSet::new();
    for (finding, impact) in report.findings.iter().zip(impacts).filter(|_| listed) {
        if finding.severity == Severity::Note && !verbose {
            continue;
        }
        let path =
            path(finding, impact).map(|path| format!(" ({})", printable(&path.text()))).unwrap_or_default();
        let severity = if finding.severity == Severity::Error { "error" } else { "note" };
        out.line(format!("{severity} [{}] {}{path}: {}", finding.id, finding.place, finding.message))?;
        if let Some(sentence) = words::sentence(finding, impact, report.stats.last_cno) {
            out.line(format!("    {sentence}"))?;
        }
        // The same for all of a kind: once.
        if let Some(meaning) = impact.meaning.filter(|m| told.insert(m.ids)) {
            out.line(format!("    {}", meaning.means))?;
            out.line(format!("    {}", meaning.mends))?;
        }
    }
    for (id, count) in &report.counts {
        let kept = report.findings.iter().filter(|finding| listed && finding.id == *id).count() as u64;
        let is_error = report.errors().any(|finding| finding.id == *id);
        if *count > kept && (is_error || verbose) {
            let more = if listed { " more" } else { "" };
            out.line(format!("[{id}] {}{more}", count - kept))?;
        }
    }
    if let Some(sentence) = &report.cut_short {
        out.line(sentence)?;
    }
    if let Some(sentence) = words::only_past(report) {
        out.line(sentence)?;
    }
    Ok(())
}

/// That it was ended early, in a line: nothing of it is a verdict.
pub fn ended(name: &str, errors: u64) -> String {
    let found = if errors == 0 { "no error".to_owned() } else { count(errors, "error") };
    format!("{name}: ended before it was done; {found} until then")
}

/// What was looked at, and how it is, in a line.
pub fn summary(name: &str, report: &Report, errors: u64, mounted: bool) -> String {
    let s = &report.stats;
    let state = match (mounted, s.clean) {
        (true, _) => format!("mounted, as of checkpoint {}", s.last_cno),
        (false, true) => "cleanly unmounted".to_owned(),
        (false, false) => "not cleanly unmounted".to_owned(),
    };
    format!(
        "{name}: {}; {}, {}, {} ({} walked), {} in use, {state}",
        if errors == 0 { "sound".to_owned() } else { count(errors, "error") },
        count(s.inodes, "inode"),
        count(s.checkpoints, "checkpoint"),
        count(s.snapshots, "snapshot"),
        count(s.trees_walked, "tree"),
        count(s.segments, "segment"),
    )
}
