//! `mount.silt`: the helper that mount(8) calls, so that /etc/fstab and `mount -t silt` work.

use std::path::PathBuf;

use super::Job;
use super::options::Options;
use crate::failure::Result;

/// Mount helper, as mount(8) calls it
#[derive(clap::Args)]
#[command(override_usage = "mount.silt SOURCE DIR [-fnrsvw] [-o OPTIONS] [-t TYPE] [-N NAMESPACE]")]
pub struct Args {
    /// Image or block device
    source: PathBuf,
    /// Where
    dir: PathBuf,
    /// Options
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Leave unknown options out
    #[arg(short)]
    sloppy: bool,
    /// Do not mount, only look whether it could be done
    #[arg(short)]
    fake: bool,
    /// Accepted: there is no mtab
    #[arg(short)]
    no_mtab: bool,
    /// Say more
    #[arg(short)]
    verbose: bool,
    /// Read-only
    #[arg(short)]
    read_only: bool,
    /// Read-write
    #[arg(short)]
    write: bool,
    /// Accepted: the type
    #[arg(short = 't')]
    kind: Option<String>,
    /// Accepted: mount(8) has entered the namespace
    #[arg(short = 'N')]
    namespace: Option<String>,
}

pub fn run(args: Args) -> Result<()> {
    let mut options = Options::parse(args.options.iter().map(String::as_str), args.sloppy)?;
    options.read_only = (options.read_only || args.read_only) && !args.write;
    if args.fake {
        return options.check().map(|_| ());
    }
    if options.remount {
        return super::remount::run(&args.dir, &options);
    }
    super::mount(Job {
        volume: args.source,
        dir: args.dir,
        options,
        log: None,
        foreground: false,
        verbose: args.verbose,
        tell: args.verbose,
        shown: None,
    })
}
