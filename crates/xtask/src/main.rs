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
use xtask::suites::{On, Programs, fsx, pjdfstest};
use xtask::tree::Files;
use xtask::uring::Switch;
use xtask::{
    bench, cuts, cycles, damage, datasync, faults, golden, grub, hostile, kill, repair, roundtrip, scratch,
    shapes, tree, whole,
};

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
        /// Guests of the round trip at once.
        #[arg(long, default_value_t = GUESTS)]
        guests: usize,
        /// Operations of fsx on each block size.
        #[arg(long, default_value_t = 20_000)]
        fsx: u64,
        /// How often the daemon is killed.
        #[arg(long, default_value_t = 12)]
        kills: u64,
        /// How many files are unpacked into a mount.
        #[arg(long, default_value_t = 6000)]
        files: usize,
        /// Unpack the whole sources of Linux instead.
        #[arg(long)]
        linux: bool,
    },
    /// pjdfstest, fsx and killed daemons through mounts; root only.
    Suites {
        /// Operations of fsx on each block size.
        #[arg(long, default_value_t = 20_000)]
        fsx: u64,
        /// How often the daemon is killed.
        #[arg(long, default_value_t = 12)]
        kills: u64,
    },
    /// Kills daemons beside the suites and looks for what was promised; root only.
    Kills {
        /// How often.
        #[arg(long, default_value_t = 12)]
        kills: u64,
    },
    /// Fills volumes, makes space and fills them again, through mounts: they never wedge; root only.
    Cycles {
        /// First volume.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Volumes.
        #[arg(long, default_value_t = 6)]
        volumes: u64,
        /// How often each is filled.
        #[arg(long, default_value_t = 6)]
        cycles: u64,
        /// Volumes at once.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
        /// Those as well that the kernel has filled.
        #[arg(long)]
        kernel: bool,
    },
    /// Several writers keep small volumes nearly full, while snapshots come and go, the size changes, and the daemon is
    /// killed. Needs root and /dev/fuse.
    Crowd {
        /// First volume.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Volumes, one after the other.
        #[arg(long, default_value_t = 2)]
        volumes: u64,
        /// Seconds for each.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Writers.
        #[arg(long, default_value_t = 3)]
        writers: u64,
        /// Keep the image of a volume that fails in this directory, and what it was before its last mount.
        #[arg(long)]
        keep: Option<PathBuf>,
        /// Put each image on a file system with room for so many hundredths of it.
        #[arg(long)]
        host: Option<u64>,
        /// Keep the one volume in this directory, with what its writers know, and go on with it when called again.
        #[arg(long, value_name = "DIR")]
        sittings: Option<PathBuf>,
    },
    /// How fast a tree is unpacked over and over from mkfs on, by Silt and by the kernel in one guest.
    FirstRun {
        /// How often.
        #[arg(long, default_value_t = 24)]
        rounds: u64,
    },
    /// A large tree unpacked into a mount and copied there, equal after a remount and in the kernel; root only.
    Tree {
        /// How many files.
        #[arg(long, default_value_t = 6000)]
        files: usize,
        /// The whole sources of Linux instead.
        #[arg(long)]
        linux: bool,
        /// The package linux-source-6.1, if it is not to be downloaded.
        #[arg(long, requires = "linux")]
        package: Option<PathBuf>,
    },
    /// The kernel mounts disks as power cuts leave them and must see what Silt sees.
    Cuts {
        /// How many disks.
        #[arg(long, default_value_t = cuts::SAMPLE)]
        sample: usize,
        /// Which.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Guests at once.
        #[arg(long, default_value_t = 2)]
        guests: usize,
    },
    /// The kernel recovers the synced data of daemons that were killed and of power cuts; root only.
    DataSync,
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
        #[arg(long, default_value_t = GUESTS)]
        guests: usize,
        /// In one history of so many Silt's turns go through a mount, as root; 0 for none.
        #[arg(long, default_value_t = whole::THROUGH)]
        through: u64,
        /// Keep the volumes in this directory.
        #[arg(long)]
        keep: Option<PathBuf>,
    },
    /// Silt writes on in volumes that the kernel wrote, and the kernel reads them again.
    Golden,
    /// Damaged golden volumes are repaired, and the kernel takes them over.
    Repair {
        /// One volume of them.
        #[arg(long)]
        sample: bool,
    },
    /// The kernel takes apart block maps of every shape that Silt leaves behind.
    Shapes,
    /// Compares file systems side by side; root only. `cargo xtask bench --help` says more.
    #[command(disable_help_flag = true)]
    Bench {
        /// Passed on.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Has GRUB's reader read volumes of every block size; root only.
    Grub,
    /// Crafted images with right checksums through every path: none panics, hangs, takes memory or is written to
    /// unasked.
    Hostile {
        /// How many.
        #[arg(long, default_value_t = hostile::IMAGES)]
        images: u64,
        /// Number of the first: the same numbers are the same images.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Keep failing images in this directory.
        #[arg(long)]
        keep: Option<PathBuf>,
    },
    /// Volumes with a past are damaged at random: what check, rescue and repair make of each is held against what was
    /// on it.
    Damage {
        /// First volume: the same numbers are the same cases.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Volumes.
        #[arg(long, default_value_t = 4)]
        volumes: u64,
        /// Cases of each kind of damage on each.
        #[arg(long, default_value_t = 2)]
        cases: u64,
        /// One case of this kind alone.
        #[arg(long)]
        kind: Option<String>,
        /// Which.
        #[arg(long, default_value_t = 0)]
        case: u64,
        /// Put the damaged volume, or without a kind the sound one, into this file, and do no more.
        #[arg(long)]
        image: Option<PathBuf>,
        /// Volumes at once.
        #[arg(long, default_value_t = 2)]
        jobs: u64,
    },
    /// Unpacks the corpus of the fuzz targets below fuzz/corpus.
    FuzzSeeds {
        /// The other way round: what lies there becomes the corpus that is committed.
        #[arg(long)]
        pack: bool,
    },
    /// Plants faults in the writer, one at a time: the round trip must see each.
    Faults {
        /// Histories for each.
        #[arg(long, default_value_t = 8)]
        histories: u64,
        /// The faults that power cuts bring to light, with the campaign of power cuts instead.
        #[arg(long)]
        cuts: bool,
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
    let verb = Arguments::parse().verb;
    // The first process of a guest has no one to signal it.
    let ready = if matches!(verb, Verb::Agent(_)) { Ok(()) } else { scratch::clean_up_on_signals() };
    match ready.and_then(|()| act(verb)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn act(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Test { histories, guests, fsx, kills, files, linux } => {
            let plan =
                whole::Plan { histories, guests, fsx_ops: fsx, kills, files: which(files, linux, None) };
            whole::test(&root(), &silt()?, &plan)?;
        }
        Verb::Suites { fsx: ops, kills } => {
            let (silt, programs) = (built()?, Programs::get(&root())?);
            let rings = Switch::on();
            for on in On::all(&silt, &programs, rings.is_some()) {
                pjdfstest(on)?;
                fsx(on, ops)?;
            }
            kill::kill(&silt, &programs, kills)?;
        }
        Verb::Kills { kills } => {
            let _rings = Switch::on();
            kill::kill(&built()?, &Programs::get(&root())?, kills)?;
        }
        Verb::Cycles { seed, volumes, cycles: n, jobs, kernel } => {
            let seeds: Vec<u64> = (seed..seed + volumes).collect();
            cycles::cycles(&built()?, &seeds, kernel, n, jobs)?;
        }
        Verb::Crowd { seed, volumes, seconds, writers, keep, host, sittings } => {
            let each = std::time::Duration::from_secs(seconds);
            let how = cycles::crowd::Crowd { writers, each, keep, host, sittings };
            cycles::crowd::crowd(&built()?, seed..seed + volumes, &how)?;
        }
        Verb::FirstRun { rounds } => xtask::first_run::first_run(&Rig::find()?, &built()?, rounds)?,
        Verb::Tree { files, linux, package } => {
            tree::tree(&Rig::find()?, &built()?, &which(files, linux, package))?;
        }
        Verb::Cuts { sample, seed, guests } => cuts::sample(&Rig::find()?, sample, seed, guests)?,
        Verb::DataSync => datasync::data_sync(&Rig::find()?, &built()?)?,
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
        Verb::RoundTrip { seed, histories, guests, through, keep } => {
            let seeds = seed..seed + histories;
            let through = if through > 0 && rustix::process::geteuid().is_root() {
                Some((built()?, through))
            } else {
                None
            };
            let plan = roundtrip::Plan { seeds, ops: (300, 200, 200), guests, through, keep };
            roundtrip::round_trip(&Rig::find()?, &plan)?;
        }
        Verb::Golden => golden::golden(&Rig::find()?)?,
        Verb::Repair { sample } => repair::repair(&Rig::find()?, sample)?,
        Verb::Shapes => shapes::shapes(&Rig::find()?)?,
        Verb::Bench { arguments } => bench::bench(&root(), &arguments)?,
        Verb::Grub => grub::grub(&Rig::find()?)?,
        Verb::Hostile { images, from, keep } => {
            hostile::hostile(&built()?.with_file_name("hostile"), images, from, keep.as_deref())?;
        }
        Verb::Damage { seed, kind, case, image: Some(image), .. } => {
            damage::write_image(seed, kind.as_deref(), case, &image)?;
        }
        Verb::Damage { seed, volumes, cases, kind, case, jobs, .. } => {
            let only = kind.map(|kind| (kind, case));
            let explained = only.is_some();
            let cases = cases.max(case + 1);
            damage::damage(&damage::Campaign { seed, volumes, cases, only, explained, jobs })?;
        }
        Verb::FuzzSeeds { pack } => hostile::fuzz_seeds(&root(), &built()?.with_file_name("hostile"), pack)?,
        Verb::Faults { cuts: true, from, .. } => cuts::faults(&root(), from)?,
        Verb::Faults { histories, from, .. } => faults::faults(&root(), histories, from)?,
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

/// Guests at once where nothing else is said.
const GUESTS: usize = 4;

fn which(files: usize, linux: bool, package: Option<PathBuf>) -> Files {
    if linux { Files::Linux(package) } else { Files::Some(files) }
}

/// The `silt` command that is built beside this program.
fn silt() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("silt"))
}

/// The same, built from the sources as they are; as it is with `SILT_NO_BUILD=1`.
fn built() -> Result<PathBuf> {
    if std::env::var_os("SILT_NO_BUILD").is_none() {
        whole::build(&root())?;
    }
    silt()
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
