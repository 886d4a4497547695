//! Compares file systems side by side: same machine, same disks, same minutes.
//!
//! ```text
//! for every disk, round and workload: the file systems, in an order that turns
//!   empty disk -> mkfs -> mount -> prepare -> (cold: unmount, drop caches, mount) -> run -> unmount
//! -> cells -> tables, floors, JSON, plot
//! ```

mod cell;
mod checkers;
mod cleaning;
mod disk;
mod foreground;
mod growth;
mod load;
mod machine;
mod measure;
mod packages;
mod panels;
mod policies;
mod process;
mod report;
mod settings;
mod system;
mod workload;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};

use cell::{Key, Lab};
use disk::{Kind, Shelf};
use machine::Machine;
use report::Results;
use system::{System, Tools};
use workload::{Scale, Workload};

#[derive(Parser)]
#[command(
    name = "cargo xtask bench",
    about = "Compare file systems side by side",
    args_conflicts_with_subcommands = true
)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    role: Option<Role>,
}

/// What this program is when it starts itself.
#[derive(Subcommand)]
#[command(subcommand_help_heading = None)]
enum Role {
    /// Serves a disk
    #[command(hide = true)]
    Serve {
        #[arg(long)]
        disk: Kind,
        #[arg(long)]
        size: u64,
        dir: PathBuf,
    },
    /// A part of a cell
    #[command(hide = true)]
    Cell { job: String },
    /// Writes a large file
    #[command(hide = true)]
    Write { path: PathBuf, bytes: u64 },
    /// Prints the report of an earlier run from its JSON file
    Report {
        file: PathBuf,
        /// Draw the ratios
        #[arg(long)]
        plot: Option<PathBuf>,
    },
    /// Measures how Silt's cost grows with files, sizes and checkpoints
    Growth(growth::Options),
    /// Compares the checkers of silt, ext4 and xfs on the same tree
    Check(checkers::Options),
    /// Measures what cleaning writes, by policy, workload and live data, in memory
    Cleaning(cleaning::Options),
    /// Measures what the cleaner costs those in the foreground
    Foreground(foreground::Options),
    /// Measures what each of the cleaner's policies costs those who write, through a mount
    Policies(policies::Options),
}

#[derive(Args)]
struct Options {
    /// Small sizes and two rounds: a first look, not a result
    #[arg(long)]
    quick: bool,
    /// Only these workloads (a name, or the beginning of some)
    #[arg(long, num_args = 1.., value_name = "WORKLOAD")]
    only: Vec<String>,
    /// Only these file systems
    #[arg(long = "fs", num_args = 1.., value_name = "NAME")]
    systems: Vec<System>,
    /// Only on these disks; without this every workload runs on those that tell something
    #[arg(long = "disk", num_args = 1.., value_name = "DISK")]
    disks: Vec<Kind>,
    /// How often each cell is run [default: 5; with --quick 2]
    #[arg(long)]
    rounds: Option<u64>,
    /// Write everything here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the ratios here
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// List workloads, file systems and disks
    #[arg(long)]
    list: bool,
    /// Write the image of the disk `here` full once, instead of a new sparse one for every cell: no block is then
    /// new to the file system below it, as on a disk of its own
    #[arg(long)]
    filled: bool,
    /// Where images and materials go: a directory on the disk `here`
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    scratch: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.role {
        None if arguments.options.list => {
            list();
            Ok(())
        }
        None => compare(&arguments.options),
        Some(Role::Serve { disk, size, dir }) => disk::served::serve(disk, size, &dir),
        Some(Role::Cell { job }) => cell::work(&job),
        Some(Role::Write { path, bytes }) => workload::write_file(&path, bytes),
        Some(Role::Growth(options)) => growth::run(&options),
        Some(Role::Check(options)) => checkers::measure(&options),
        Some(Role::Cleaning(options)) => cleaning::run(&options),
        Some(Role::Foreground(options)) => foreground::run(&options),
        Some(Role::Policies(options)) => policies::run(&options),
        Some(Role::Report { file, plot }) => again(&file, plot.as_deref()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn list() {
    for workload in workload::all() {
        let disks: Vec<_> = workload.disks.iter().map(|disk| disk.name()).collect();
        println!("{:20} {} [{}]", workload.name, workload.about, disks.join(", "));
    }
    println!();
    for disk in Kind::value_variants() {
        println!("{:20} {}", disk.name(), disk.about());
    }
    let systems: Vec<_> = System::value_variants().iter().map(|system| system.name()).collect();
    println!("\nfile systems: {}", systems.join(", "));
}

fn again(file: &std::path::Path, plot: Option<&std::path::Path>) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let results: Results = serde_json::from_str(&text).with_context(|| file.display().to_string())?;
    println!("{}", results.text());
    plot.map_or(Ok(()), |path| report::plot::draw(&results, path))
}

/// The workloads that were asked for.
fn chosen(only: &[String]) -> Result<Vec<Workload>> {
    let all = workload::all();
    for word in only {
        if !all.iter().any(|workload| workload.name.starts_with(word.as_str())) {
            bail!("there is no workload {word}; --list shows all");
        }
    }
    let wanted = |workload: &Workload| {
        only.is_empty()
            || only.contains(&workload.name)
            // A beginning, unless it is a whole name.
            || only.iter().any(|w| workload.name.starts_with(w.as_str()) && !all.iter().any(|a| a.name == *w))
    };
    let names: BTreeSet<String> = all.iter().filter(|w| wanted(w)).map(|w| w.name.clone()).collect();
    Ok(all.into_iter().filter(|workload| names.contains(&workload.name)).collect())
}

/// Leaves the mounts of others alone and lets them not see ours; theirs may go while we run.
fn own_mounts() -> Result<()> {
    use rustix::mount::{MountPropagationFlags, mount_change};
    // SAFETY: there is one thread, and only the mount namespace is changed.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }
        .context("an own mount namespace")?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(())
}

/// Bytes of the disks: enough for the largest workload, of which a file system without cleaning keeps all.
fn disk_size(kind: Kind, quick: bool) -> u64 {
    match (kind, quick) {
        (Kind::Here, false) => 16 << 30,
        (Kind::Here, true) => 8 << 30,
        (_, false) => 8 << 30,
        (_, true) => 2 << 30,
    }
}

fn check_room(options: &Options, kinds: &[Kind]) -> Result<()> {
    let free =
        rustix::fs::statvfs(&options.scratch).with_context(|| options.scratch.display().to_string())?;
    let (free, need) = (free.f_bavail * free.f_frsize, if options.quick { 6u64 << 30 } else { 24 << 30 });
    if free < need {
        bail!("{} has {} GiB free, and {} are needed", options.scratch.display(), free >> 30, need >> 30);
    }
    let models = kinds.iter().filter(|kind| kind.model().is_some());
    let need = models.map(|kind| disk_size(*kind, options.quick)).max().unwrap_or(0) + (2 << 30);
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap_or_default();
    let free = line.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0) * 1024;
    if free < need {
        bail!(
            "{} GiB of memory are available, and {} are needed for the modelled disk",
            free >> 30,
            need >> 30
        );
    }
    Ok(())
}

fn compare(options: &Options) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("only root can do this: it makes file systems, mounts them and drops caches");
    }
    let workloads = chosen(&options.only)?;
    let usual: Vec<System> =
        System::value_variants().iter().copied().filter(|system| system.is_usual()).collect();
    let systems = match options.systems.as_slice() {
        [] => usual.as_slice(),
        some => some,
    };
    let _rings = if systems.contains(&System::SiltUring) { Some(settings::Rings::start()?) } else { None };
    let tools = Tools::find()?;
    packages::install()?;
    process::catch_signals()?;
    own_mounts()?;
    let runs_on = |workload: &Workload, kind: &Kind| match options.disks.as_slice() {
        [] => workload.disks.contains(kind),
        some => some.contains(kind),
    };
    let kinds: Vec<Kind> = Kind::value_variants()
        .iter()
        .copied()
        .filter(|kind| workloads.iter().any(|workload| runs_on(workload, kind)))
        .collect();
    check_room(options, &kinds)?;
    // Unmounted and removed when dropped, in this order: `lab` names what lies in it.
    let scratch = tempfile::Builder::new().prefix("silt-bench-").tempdir_in(&options.scratch)?;
    let mut machine = Machine::look(&tools, scratch.path());
    let polling = settings::Polling::start();
    machine.setting = polling.as_ref().map(settings::Polling::text);
    let scale = if options.quick { Scale::Quick } else { Scale::Whole };
    let lab = Lab { filled: options.filled, tools, scratch: scratch.path().to_owned(), scale };
    let rounds = options.rounds.unwrap_or(if options.quick { 2 } else { 5 });
    let mut cells = Vec::new();
    let measured = measure(&lab, &workloads, systems, &kinds, rounds, &runs_on, &mut cells);
    machine.load_after = machine::load();
    let whole =
        (options.only.is_empty() && options.systems.is_empty() && options.disks.is_empty()).then_some(());
    let results = Results {
        command: format!("cargo xtask bench {}", std::env::args().skip(1).collect::<Vec<_>>().join(" ")),
        quick: options.quick,
        whole: whole.is_some() && measured.is_ok(),
        rounds,
        machine,
        cells,
    };
    // What was measured before an interruption is reported, too.
    if !results.cells.is_empty() {
        println!("{}", results.text());
        if let Some(path) = &options.json {
            std::fs::write(path, serde_json::to_string_pretty(&results)?)
                .with_context(|| path.display().to_string())?;
        }
        if let Some(path) = &options.plot {
            report::plot::draw(&results, path)?;
        }
    }
    measured
}

/// Runs the cells: disk by disk, since a modelled one takes memory.
fn measure(
    lab: &Lab,
    workloads: &[Workload],
    systems: &[System],
    kinds: &[Kind],
    rounds: u64,
    runs_on: &dyn Fn(&Workload, &Kind) -> bool,
    cells: &mut Vec<cell::Cell>,
) -> Result<()> {
    for material in workloads.iter().filter_map(|workload| workload.material) {
        process::go_on()?;
        material.make(&lab.scratch, lab.scale)?;
    }
    for kind in kinds {
        let shelf = Shelf::new(*kind, disk_size(*kind, lab.scale == Scale::Quick), &lab.scratch, lab.filled)?;
        for round in 0..rounds {
            for workload in workloads.iter().filter(|workload| runs_on(workload, kind)) {
                let taking_part: Vec<System> = systems
                    .iter()
                    .copied()
                    .filter(|system| system.has_disk() || (*kind == Kind::Here && !workload.durable))
                    .collect();
                let first = usize::try_from(round)? % taking_part.len().max(1);
                for system in taking_part.iter().cycle().skip(first).take(taking_part.len()) {
                    // What failed or took too long would do so again.
                    let failed = |cell: &cell::Cell| {
                        let key = &cell.key;
                        (&key.workload, key.disk, key.system) == (&workload.name, *kind, *system)
                            && cell.error.is_some()
                    };
                    if cells.iter().any(failed) {
                        continue;
                    }
                    let key = Key { workload: workload.name.clone(), disk: *kind, system: *system, round };
                    let cell = lab.run(&shelf, workload, key)?;
                    eprintln!("{}", report::progress(&cell));
                    cells.push(cell);
                }
            }
        }
    }
    Ok(())
}
