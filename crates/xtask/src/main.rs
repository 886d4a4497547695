//! `cargo xtask VERB`: project chores.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::{Parser, Subcommand};
use silt_model::caps::Capabilities;
use silt_model::manifest::Columns;
use silt_model::syscalls::{Look, NoMoments, PathTarget, probe, tree_manifest};
use xtask::guest::{self, Options};
use xtask::prove::{Plan, prove, shrink_first_turn};
use xtask::rig::{self, Rig};
use xtask::{faults, golden, grub, roundtrip, suites, whole};

#[derive(Parser)]
#[command(about = "Chores of the Silt project")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Everything: packages, style, lints, tests, suites of others, the round trip with the real kernel.
    Test {
        /// Histories of the round trip.
        #[arg(long, default_value_t = 200)]
        histories: u64,
        /// Operations of each run of fsx.
        #[arg(long, default_value_t = 20_000)]
        fsx: u64,
    },
    /// pjdfstest, fsx and killed daemons through mounts of ./target/release/silt; root only.
    Suites {
        /// Operations of each run of fsx.
        #[arg(long, default_value_t = 20_000)]
        fsx: u64,
        /// How often the daemon is killed.
        #[arg(long, default_value_t = 20)]
        kills: u64,
    },
    /// Gets the Debian packages that tests need.
    Rig,
    /// Runs a shell script under the real kernel, with images as /dev/ubda, /dev/ubdb, ...
    Guest {
        /// Images.
        images: Vec<PathBuf>,
        /// The script.
        #[arg(last = true, required = true)]
        script: Vec<String>,
        /// Directory that the script sees as $OUT.
        #[arg(long, default_value = ".")]
        out: PathBuf,
        /// Memory of the guest in MiB.
        #[arg(long, default_value_t = 768)]
        memory: u32,
        /// Seconds after which it is ended.
        #[arg(long, default_value_t = 600)]
        timeout: u64,
    },
    /// The kernel against itself: proves the instrument.
    Prove {
        /// First seed.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Number of histories.
        #[arg(long, default_value_t = 24)]
        histories: u64,
        /// Operations in a turn.
        #[arg(long, default_value_t = 200)]
        ops: usize,
        /// Turns of each history.
        #[arg(long, default_value_t = 2)]
        turns: u64,
        /// Guests at once.
        #[arg(long, default_value_t = 2)]
        guests: usize,
        /// End every third turn by cutting the power.
        #[arg(long)]
        cut: bool,
        /// Look between working and cleaning, too.
        #[arg(long)]
        thorough: bool,
        /// Do not run the cleaner.
        #[arg(long)]
        no_clean: bool,
        /// Keep the volumes in this directory.
        #[arg(long)]
        keep: Option<PathBuf>,
    },
    /// Silt and the real kernel take turns on the same volumes.
    RoundTrip {
        /// First seed.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Number of histories.
        #[arg(long, default_value_t = 200)]
        histories: u64,
        /// Guests at once.
        #[arg(long, default_value_t = 2)]
        guests: usize,
        /// Keep the volumes in this directory.
        #[arg(long)]
        keep: Option<PathBuf>,
    },
    /// Silt writes on in volumes that the kernel wrote, and the kernel reads them again.
    Golden,
    /// Has GRUB's reader read volumes of every block size; root only.
    Grub,
    /// Plants faults in the writer, one at a time: the round trip must see each.
    Faults {
        /// Histories for each.
        #[arg(long, default_value_t = 8)]
        histories: u64,
        /// Leaves out so many from the beginning of the list.
        #[arg(long, default_value_t = 0)]
        from: usize,
    },
    /// Makes a first turn of `prove` that fails as short as possible.
    Shrink {
        /// The history.
        seed: u64,
        /// Operations in the turn.
        #[arg(long, default_value_t = 200)]
        ops: usize,
    },
    /// What runs inside the guest, or on any mounted tree.
    #[command(subcommand)]
    Agent(AgentVerb),
}

#[derive(Subcommand)]
enum AgentVerb {
    /// The first process of a guest.
    Init {
        /// What to do.
        job: PathBuf,
        /// What the kernel adds to its own command line ends up here.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        ignored: Vec<String>,
    },
    /// Prints the manifest of a tree.
    Manifest {
        /// Its root.
        dir: PathBuf,
        /// Only what a model can foretell.
        #[arg(long)]
        model: bool,
    },
    /// Plays a history in a directory and compares with the model.
    Run {
        /// An empty directory.
        dir: PathBuf,
        /// The history.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Number of operations.
        #[arg(long, default_value_t = 500)]
        ops: usize,
        /// Prints the operations as they come.
        #[arg(long)]
        verbose: bool,
    },
    /// Finds out what the file system under a directory can do.
    Probe {
        /// Directory.
        dir: PathBuf,
    },
}

fn main() -> ExitCode {
    match act(Arguments::parse().verb) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn act(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Test { histories, fsx } => whole::test(&root(), whole::Plan { histories, fsx_ops: fsx })?,
        Verb::Suites { fsx, kills } => {
            suites::suites(
                &root(),
                &root().join("target/release/silt"),
                suites::Plan { fsx_ops: fsx, kills },
            )?;
        }
        Verb::Rig => rig::fetch()?,
        Verb::Guest { images, script, out, memory, timeout } => {
            let options = Options { memory, timeout: std::time::Duration::from_secs(timeout) };
            let (log, code) = guest::shell(&Rig::find()?, &images, &script.join(" "), &out, &options)?;
            for line in log.lines() {
                println!("{line}");
            }
            let complaints = log.complaints();
            for (_, line) in &complaints {
                eprintln!("xtask: the kernel complains: {line}");
            }
            let code = if code == 0 && !complaints.is_empty() { 1 } else { code };
            return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
        }
        Verb::Prove { seed, histories, ops, turns, guests, cut, thorough, no_clean, keep } => {
            let seeds = seed..seed + histories;
            prove(&Rig::find()?, &Plan { seeds, ops, turns, guests, cut, thorough, clean: !no_clean, keep })?;
        }
        Verb::RoundTrip { seed, histories, guests, keep } => {
            let plan = roundtrip::Plan { seeds: seed..seed + histories, ops: (300, 200, 200), guests, keep };
            roundtrip::round_trip(&Rig::find()?, &plan)?;
        }
        Verb::Golden => golden::golden(&Rig::find()?)?,
        Verb::Grub => grub::grub(&Rig::find()?)?,
        Verb::Faults { histories, from } => faults::faults(&root(), histories, from)?,
        Verb::Shrink { seed, ops } => shrink_first_turn(&Rig::find()?, seed, ops)?,
        Verb::Agent(AgentVerb::Init { job, .. }) => xtask::agent::init(&job),
        Verb::Agent(AgentVerb::Manifest { dir, model }) => {
            let root = PathTarget::<NoMoments>::open_root(&dir)?;
            let columns = if model { Columns::MODEL } else { Columns::ALL };
            let flags = Capabilities::silt(4096).flags;
            let manifest = tree_manifest(root.as_fd(), &Look { columns, flags, probes: None })
                .map_err(|e| anyhow!(e))?;
            print!("{}", manifest.to_text());
        }
        Verb::Agent(AgentVerb::Run { dir, seed, ops, verbose }) => play(&dir, seed, ops, verbose)?,
        Verb::Agent(AgentVerb::Probe { dir }) => println!("{:#?}", probe(&dir)?),
    }
    Ok(ExitCode::SUCCESS)
}

/// The root of the project.
fn root() -> PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(PathBuf::from).unwrap_or_default()
}

fn play(dir: &std::path::Path, seed: u64, ops: usize, verbose: bool) -> Result<()> {
    use silt_model::generator::{Generator, Profile};
    use silt_model::model::Model;
    use silt_model::run::{compare, run};
    let caps = probe(dir)?;
    let mut target = PathTarget::new(dir, caps.clone(), NoMoments)?;
    let mut model = Model::new(caps);
    let mut generator = Generator::new(seed, Profile::of_seed(seed));
    let played = run(&mut model, &mut target, &mut generator, ops)?;
    if verbose {
        played.iter().for_each(|op| println!("{op}"));
    }
    let found = compare(&model, &mut target);
    if found.is_empty() { Ok(()) } else { Err(anyhow!("{}", found.join("\n"))) }
}
