//! Runs crafted images: `hostile run`, and keeps what it finds. `hostile bases` makes the bases anew.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use silt_hostile::campaign::{self, Campaign};
use silt_hostile::memory::Meter;
use silt_hostile::{Base, base, corpus, judge, make, paths, seeds, story};

#[global_allocator]
static METER: Meter = Meter;

#[derive(Parser)]
#[command(about = "Crafted volumes with right checksums, and every path over them")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Runs random images; fails where a promise is broken or fewer than half get past mount.
    Run {
        #[arg(long, default_value_t = 100_000)]
        images: u64,
        /// Number of the first image: the same numbers are the same images.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// 0: one a processor.
        #[arg(long, default_value_t = 0)]
        threads: usize,
        /// One base alone.
        #[arg(long)]
        base: Option<String>,
        /// Where failing images are kept.
        #[arg(long)]
        keep: Option<PathBuf>,
        /// Different findings after which it ends.
        #[arg(long, default_value_t = 20)]
        findings: usize,
    },
    /// Tells what one image is and what becomes of it.
    Show {
        number: u64,
        #[arg(long)]
        base: Option<String>,
        /// Keep it as a test of this name.
        #[arg(long, requires = "about")]
        keep: Option<String>,
        /// What was wrong.
        #[arg(long)]
        about: Option<String>,
    },
    /// Runs one kept case.
    Replay { case: PathBuf },
    /// Writes the first seeds of the fuzz targets below this directory, made from the bases.
    Seeds { to: PathBuf },
    /// Unpacks the committed corpus of the fuzz targets below this directory, as a fuzzer wants it.
    Unpack { to: PathBuf },
    /// Packs what lies below this directory, a directory for each target, as the corpus that is committed.
    Pack { from: PathBuf },
    /// Makes the committed bases anew: kept cases lose their meaning by it. Packed loosely; `zstd --ultra -22` packs them
    /// to a twentieth.
    Bases,
}

fn main() -> anyhow::Result<ExitCode> {
    match Arguments::parse().verb {
        Verb::Run { images, from, threads, base, keep, findings } => {
            let threads = match threads {
                0 => std::thread::available_parallelism().map_or(1, usize::from),
                n => n,
            };
            Ok(run(&Campaign { images, from, threads, base, most_findings: findings }, keep))
        }
        Verb::Show { number, base, keep, about } => {
            let (base, changes) = campaign::image(number, base.as_deref());
            println!("image {number} of {}:\n{changes}", base.name);
            if let (Some(name), Some(about)) = (keep, about) {
                let case = story::Case { about, base: base.name.into(), changes: changes.clone() };
                story::keep(&story::directory(), &name, &case)?;
            }
            Ok(tell(&judge::judge(&base, &changes.apply(&base))))
        }
        Verb::Replay { case } => {
            let case: story::Case = serde_json::from_str(&std::fs::read_to_string(case)?)?;
            let base = Base::get(&case.base);
            println!("{}\n{}", case.about, case.changes);
            Ok(tell(&judge::judge(&base, &case.changes.apply(&base))))
        }
        Verb::Seeds { to } => {
            seeds::write(&to)?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Unpack { to } => {
            println!("{} inputs below {}", corpus::unpack(&to)?, to.display());
            Ok(ExitCode::SUCCESS)
        }
        Verb::Pack { from } => {
            for (target, inputs) in corpus::pack(&from)? {
                println!("{target}: {inputs} inputs");
            }
            Ok(ExitCode::SUCCESS)
        }
        Verb::Bases => {
            std::fs::create_dir_all(base::directory())?;
            for recipe in &make::RECIPES {
                let packed = base::pack(&make::make(recipe));
                println!("{}: {} bytes packed", recipe.name, packed.len());
                std::fs::write(base::directory().join(format!("{}.img.zst", recipe.name)), packed)?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn tell(verdict: &judge::Verdict) -> ExitCode {
    println!("{:?}\n{:?}", verdict.seen, verdict.most);
    for finding in &verdict.findings {
        println!("FOUND {finding}");
    }
    if verdict.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(campaign: &Campaign, keep: Option<PathBuf>) -> ExitCode {
    let started = Instant::now();
    let terminal = std::io::stderr().is_terminal();
    let outcome = campaign::run(campaign, |done| {
        if terminal && done % 500 == 0 {
            eprint!("\r{done} of {}", campaign.images);
        }
    });
    if terminal {
        eprint!("\r");
    }
    for (name, (images, most)) in &outcome.most {
        println!(
            "{name:9} {images:7} images; most: {:7} reads, {:10} bytes read, {:6.1} ms, {:6.1} MiB held",
            most.requests,
            most.bytes,
            most.time.as_secs_f64() * 1e3,
            most.memory as f64 / f64::from(1 << 20)
        );
    }
    for (path, share) in paths::PATHS.iter().zip(&outcome.paths) {
        println!(
            "{:28} {:7} images, {:6.2} ms each; most: {:6} reads, {:10} bytes read, {:6.1} ms, {:6.1} MiB held",
            path.name,
            share.images,
            share.time.as_secs_f64() * 1e3 / share.images.max(1) as f64,
            share.most.requests,
            share.most.bytes,
            share.most.time.as_secs_f64() * 1e3,
            share.most.memory as f64 / f64::from(1 << 20)
        );
    }
    println!(
        "{} images: {} mounted, {} taken over, {} written and closed, {} of them opened again, {} walked by the \
         check, {} found wrong by it, {} rescued, {} scrubbed, {} planned to repair; {:.0} s",
        outcome.images,
        outcome.mounted,
        outcome.taken_over,
        outcome.closed,
        outcome.reopened,
        outcome.walked,
        outcome.complained,
        outcome.rescued,
        outcome.scrubbed,
        outcome.planned,
        started.elapsed().as_secs_f64()
    );
    for f in &outcome.found {
        println!("FOUND on image {} of {}: {}\n{}", f.number, f.base, f.finding, f.changes);
        if let Some(to) = &keep {
            let case =
                story::Case { about: f.finding.to_string(), base: f.base.into(), changes: f.changes.clone() };
            match story::keep(to, &format!("{}-{}", f.base, f.number), &case) {
                Ok(path) => println!("kept as {}", path.display()),
                Err(e) => println!("could not be kept: {e}"),
            }
        }
    }
    if !outcome.found.is_empty() {
        println!("{} images broke a promise", outcome.failing);
        return ExitCode::FAILURE;
    }
    if outcome.mounted * 2 < outcome.images {
        println!("fewer than half got past mount: too little was tried");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
