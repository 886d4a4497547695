//! `silt check`: looks at everything the format says of a volume, and says what does not hold.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use silt_control::{ControlError, Kind};
use silt_device::{Access, Device, OpenOptions};
use silt_verify::{Finding, Moment, Options, Report, Severity, Tree};

use crate::failure::{Failure, Result};
use crate::output::{Output, printable};

/// Check a volume that nobody uses, and write nothing
#[derive(clap::Args)]
pub struct Args {
    /// Walk the trees of all checkpoints, not only of the latest and of snapshots
    #[arg(short, long)]
    all: bool,
    /// Show notes too: what is allowed and worth knowing
    #[arg(short, long)]
    verbose: bool,
    /// Show so many findings of each kind; more are counted
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 10)]
    lines: usize,
    /// As JSON, notes included
    #[arg(long)]
    json: bool,
    /// Image or device
    volume: PathBuf,
}

/// A finding as it is shown.
#[derive(Serialize)]
struct Shown {
    id: &'static str,
    severity: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
    /// From the root of the latest tree, where the inode has a name there.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// Block of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    virtual_block: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    segment: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<u64>,
    message: String,
}

#[derive(Serialize)]
struct Summary<'a> {
    sound: bool,
    errors: u64,
    last_checkpoint: u64,
    cleanly_unmounted: bool,
    checkpoints: u64,
    snapshots: u64,
    trees_walked: u64,
    inodes: u64,
    segments: u64,
    logs: u64,
    live_blocks: u64,
    findings: &'a [Shown],
    /// How often each was found, those that are not shown included.
    counts: &'a BTreeMap<&'static str, u64>,
}

pub fn run(args: &Args) -> Result<()> {
    let device = silt_device::open(&args.volume, Access::ReadOnly, &OpenOptions::default())?;
    if silt_verify::is_no_volume(&device) {
        return Err(ControlError::new(
            Kind::NotNilfs,
            format!("{} is not a NILFS2 volume, or both its super blocks are lost", args.volume.display()),
        )
        .into());
    }
    let options = Options {
        all_checkpoints: args.all,
        findings_per_invariant: args.lines.max(1),
        ..Options::default()
    };
    let report = silt_verify::check(&device, &options);
    let paths = paths(&device, &report);
    let shown: Vec<Shown> = report.findings.iter().map(|finding| show(finding, &paths)).collect();
    let errors = errors(&report);
    if args.json {
        json(&report, &shown, errors)?
    } else {
        text(args, &report, &shown, errors)?
    }
    if errors == 0 {
        return Ok(());
    }
    Err(Failure::Damaged)
}

/// How many errors there are, those that are not kept included.
fn errors(report: &Report) -> u64 {
    let of_an_error = |id: &&str| report.errors().any(|finding| finding.id == *id);
    report.counts.iter().filter(|(id, _)| of_an_error(id)).map(|(_, count)| count).sum()
}

/// Names of the inodes that findings are about.
fn paths(device: &dyn Device, report: &Report) -> BTreeMap<u64, Vec<u8>> {
    let wanted = report.findings.iter().filter_map(|finding| finding.place.ino).collect();
    Tree::open(device, Moment::Latest).map(|tree| tree.names_of(&wanted)).unwrap_or_default()
}

fn show(finding: &Finding, paths: &BTreeMap<u64, Vec<u8>>) -> Shown {
    let place = &finding.place;
    let path = place.ino.and_then(|ino| paths.get(&ino));
    Shown {
        id: finding.id,
        severity: match finding.severity {
            Severity::Error => "error",
            Severity::Note => "note",
        },
        checkpoint: place.cno,
        inode: place.ino,
        path: path.map(|path| format!("/{}", String::from_utf8_lossy(path))),
        offset: place.offset,
        virtual_block: place.vblock,
        segment: place.segment,
        block: place.block,
        message: finding.message.clone(),
    }
}

fn json(report: &Report, findings: &[Shown], errors: u64) -> Result<()> {
    let s = &report.stats;
    let mut out = Output::new();
    out.json(&Summary {
        sound: errors == 0,
        errors,
        last_checkpoint: s.last_cno,
        cleanly_unmounted: s.clean,
        checkpoints: s.checkpoints,
        snapshots: s.snapshots,
        trees_walked: s.trees_walked,
        inodes: s.inodes,
        segments: s.segments,
        logs: s.logs,
        live_blocks: s.live_blocks,
        findings,
        counts: &report.counts,
    })?;
    out.finish()
}

fn text(args: &Args, report: &Report, shown: &[Shown], errors: u64) -> Result<()> {
    let mut out = Output::new();
    for (finding, shown) in report.findings.iter().zip(shown) {
        if finding.severity == Severity::Note && !args.verbose {
            continue;
        }
        let path = shown.path.as_ref().map(|path| format!(" ({})", printable(path))).unwrap_or_default();
        out.line(format!(
            "{} [{}] {}{path}: {}",
            shown.severity, finding.id, finding.place, finding.message
        ))?;
    }
    for (id, count) in &report.counts {
        let kept = report.findings.iter().filter(|finding| finding.id == *id).count() as u64;
        let is_error = report.errors().any(|finding| finding.id == *id);
        if *count > kept && (is_error || args.verbose) {
            out.line(format!("[{id}] {} more", count - kept))?;
        }
    }
    let s = &report.stats;
    let plural = |n: u64, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
    out.line(format!(
        "{}: {}; {}, {}, {} ({} walked), {} in use, {}",
        args.volume.display(),
        if errors == 0 { "sound".to_owned() } else { plural(errors, "error") },
        plural(s.inodes, "inode"),
        plural(s.checkpoints, "checkpoint"),
        plural(s.snapshots, "snapshot"),
        plural(s.trees_walked, "tree"),
        plural(s.segments, "segment"),
        if s.clean { "cleanly unmounted" } else { "not cleanly unmounted" },
    ))?;
    out.finish()
}
