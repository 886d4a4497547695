//! The checkers of file systems side by side: the same tree on each, an image each, in turns.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::{Deserialize, Serialize};

use crate::growth::drop_caches;
use crate::machine::Machine;
use crate::measure::peak_memory;
use crate::process::{go_on, run};
use crate::report::statistics::Spread;
use crate::report::{bytes, time};
use crate::system::{self, Mounted, System, Tools};
use crate::{packages, process};

/// Options of `cargo xtask bench check`.
#[derive(Args)]
pub struct Options {
    /// How many files
    #[arg(long, default_value_t = 1_000_000)]
    files: u64,
    /// Bytes of each
    #[arg(long, default_value_t = 1000)]
    bytes: usize,
    /// How many in a directory
    #[arg(long, default_value_t = 1000)]
    per_directory: u64,
    /// How often each checker runs
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Write everything here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where images go
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,
}

/// A checker with its options.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Checker {
    Silt,
    SiltAll,
    E2fsck,
    XfsRepair,
}

impl Checker {
    const ALL: [Checker; 4] = [Checker::Silt, Checker::SiltAll, Checker::E2fsck, Checker::XfsRepair];

    fn name(self) -> &'static str {
        match self {
            Checker::Silt => "silt check",
            Checker::SiltAll => "silt check --all",
            Checker::E2fsck => "e2fsck -f -n",
            Checker::XfsRepair => "xfs_repair -n",
        }
    }

    fn system(self) -> System {
        match self {
            Checker::Silt | Checker::SiltAll => System::Silt,
            Checker::E2fsck => System::Ext4,
            Checker::XfsRepair => System::Xfs,
        }
    }

    fn command(self, tools: &Tools, image: &Path) -> Command {
        let (program, arguments): (&Path, &[&str]) = match self {
            Checker::Silt => (&tools.silt, &["check", "--json"]),
            Checker::SiltAll => (&tools.silt, &["check", "--json", "--all"]),
            Checker::E2fsck => ("e2fsck".as_ref(), &["-f", "-n"]),
            Checker::XfsRepair => ("xfs_repair".as_ref(), &["-n", "-f"]),
        };
        let mut command = Command::new(program);
        command.args(arguments).arg(image).stdin(Stdio::null());
        command
    }
}

/// A run of a checker.
#[derive(Serialize, Deserialize)]
struct Go {
    checker: String,
    round: u64,
    seconds: f64,
    /// Seconds of processors.
    processor: f64,
    /// Most bytes of memory it had resident (`VmHWM`).
    memory: u64,
}

/// A run's results; this is the JSON file.
#[derive(Serialize, Deserialize)]
struct Results {
    command: String,
    machine: Machine,
    files: u64,
    bytes: usize,
    /// What the checkers say of the volumes.
    volumes: Vec<String>,
    goes: Vec<Go>,
}

const IMAGE: u64 = 16 << 30;

/// The content of a file: differs from file to file.
fn fill(n: u64, content: &mut [u8]) {
    for (i, word) in content.chunks_mut(8).enumerate() {
        let mixed = (n << 16 | i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        word.copy_from_slice(&(mixed ^ (mixed >> 29)).to_le_bytes()[..word.len()]);
    }
}

/// Makes a volume that holds the tree; its image.
fn make(options: &Options, system: System, tools: &Tools, scratch: &Path) -> Result<PathBuf> {
    let image = scratch.join(format!("{system}.img"));
    fs::File::create(&image)?.set_len(IMAGE)?;
    if let Some(mut command) = system.make(tools, &image, false) {
        run(&mut command)?;
    }
    let dir = scratch.join(format!("{system}"));
    // mount(8) puts a loop device under an image by itself.
    let mounted = Mounted::new(system, tools, &image, &dir, false)?;
    let start = Instant::now();
    let mut content = vec![0; options.bytes];
    for n in 0..options.files {
        let directory = dir.join(format!("d{:05}", n / options.per_directory));
        if n % options.per_directory == 0 {
            go_on()?;
            fs::create_dir(&directory)?;
        }
        fill(n, &mut content);
        fs::write(directory.join(format!("file{n:08}")), &content)?;
    }
    system::sync(system, &dir, None)?;
    eprintln!("{system}: {} files written in {}", options.files, time(start.elapsed().as_secs_f64()));
    mounted.unmount()?;
    Ok(image)
}

/// Processor seconds of all children that were waited for.
fn children_seconds() -> f64 {
    // SAFETY: the structure is plain numbers, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Runs a checker that must find the volume sound; what it printed.
fn go(checker: Checker, round: u64, tools: &Tools, image: &Path) -> Result<(Go, String)> {
    go_on()?;
    drop_caches()?;
    let before = children_seconds();
    let log = image.with_extension("said");
    let file = fs::File::create(&log)?;
    let start = Instant::now();
    let mut child = checker
        .command(tools, image)
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .context(checker.name())?;
    // The most memory is that of the last look: it never falls.
    let mut memory = 0;
    let status = loop {
        memory = peak_memory(child.id()).unwrap_or(0).max(memory);
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let seconds = start.elapsed().as_secs_f64();
    let said = fs::read_to_string(&log)?;
    ensure!(status.signal().is_none(), "{} ended with {status}", checker.name());
    if !status.success() {
        bail!("{} ended with {status}: {said}", checker.name());
    }
    let processor = children_seconds() - before;
    let go = Go { checker: checker.name().to_owned(), round, seconds, processor, memory };
    eprintln!("round {round}: {}: {}, {}", checker.name(), time(seconds), bytes(memory as f64));
    Ok((go, said))
}

/// Measures and reports.
pub fn measure(options: &Options) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("only root can do this: it makes file systems, mounts them and drops caches");
    }
    ensure!(options.files > 0 && options.per_directory > 0, "at least one file, and one a directory");
    let free =
        rustix::fs::statvfs(&options.scratch).with_context(|| options.scratch.display().to_string())?;
    let blocks = options.files.saturating_mul(options.bytes as u64 / 4096 + 1);
    let (free, need) = (free.f_bavail * free.f_frsize, (blocks << 12).saturating_mul(4) + (2 << 30));
    if free < need {
        bail!("{} has {} GiB free, and {} are needed", options.scratch.display(), free >> 30, need >> 30);
    }
    let tools = Tools::find()?;
    packages::install()?;
    process::catch_signals()?;
    crate::own_mounts()?;
    let scratch = tempfile::Builder::new().prefix("silt-checkers-").tempdir_in(&options.scratch)?;
    let mut machine = Machine::look(&tools, scratch.path());
    let systems = [System::Silt, System::Ext4, System::Xfs];
    let images: Vec<(System, PathBuf)> = systems
        .iter()
        .map(|system| Ok((*system, make(options, *system, &tools, scratch.path())?)))
        .collect::<Result<_>>()?;
    let mut volumes = Vec::new();
    let mut goes = Vec::new();
    let measured = (0..options.rounds).try_for_each(|round| {
        let first = usize::try_from(round)? % Checker::ALL.len();
        for checker in Checker::ALL.iter().cycle().skip(first).take(Checker::ALL.len()) {
            let image = images.iter().find(|(system, _)| *system == checker.system());
            let (go, said) = go(*checker, round, &tools, &image.context("no image")?.1)?;
            if checker.system() == System::Silt && !goes.iter().any(|g: &Go| g.checker == go.checker) {
                volumes.push(format!("{}: {}", checker.name(), told(&said)?));
            }
            goes.push(go);
        }
        Ok(())
    });
    machine.load_after = crate::machine::load();
    let results = Results {
        command: format!("cargo xtask bench {}", std::env::args().skip(1).collect::<Vec<_>>().join(" ")),
        machine,
        files: options.files,
        bytes: options.bytes,
        volumes,
        goes,
    };
    // What was measured before an interruption is reported, too.
    if !results.goes.is_empty() {
        println!("{}", results.text());
        if let Some(path) = &options.json {
            fs::write(path, serde_json::to_string_pretty(&results)?)
                .with_context(|| path.display().to_string())?;
        }
    }
    measured
}

/// What `silt check --json` says of a volume's size.
fn told(said: &str) -> Result<String> {
    let told: serde_json::Value = serde_json::from_str(said)?;
    let number = |name: &str| told.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0);
    Ok(format!(
        "{} inodes, {} checkpoints, {} trees walked, {} segments, {} logs",
        number("inodes"),
        number("checkpoints"),
        number("trees_walked"),
        number("segments"),
        number("logs")
    ))
}

impl Results {
    fn text(&self) -> String {
        let mut text = format!("{}\n{}\n", self.command, self.machine.text());
        text.push_str(&format!("{} files of {} bytes.\n", self.files, self.bytes));
        if self.machine.load_before > 0.5 {
            text.push_str("The machine was busy with other work: only the comparison says something.\n");
        }
        self.volumes.iter().for_each(|line| text.push_str(&format!("{line}\n")));
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(["", "time", "of processors", "most memory"]);
        for checker in Checker::ALL {
            let of = |value: fn(&Go) -> f64| {
                Spread::of(self.goes.iter().filter(|g| g.checker == checker.name()).map(value).collect())
            };
            let show = |spread: Option<Spread>, show: fn(f64) -> String| {
                spread.map_or(String::new(), |spread| spread.text(show))
            };
            table.add_row([
                checker.name().to_owned(),
                show(of(|g| g.seconds), time),
                show(of(|g| g.processor), time),
                show(of(|g| g.memory as f64), bytes),
            ]);
        }
        table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        text.push_str(&format!("\n{table}\n"));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_differ() {
        let content = |n: u64| {
            let mut content = vec![0; 1000];
            fill(n, &mut content);
            content
        };
        assert_eq!(content(5), content(5));
        assert_ne!(content(5), content(6));
        assert_ne!(content(5)[992..], content(5)[984..992]);
    }
}
