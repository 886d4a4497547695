//! `mount.silt`: the helper that mount(8) calls, so that /etc/fstab and `mount -t silt` work.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use silt_control::mounts;

use super::Job;
use super::options::{Options, words_of};
use crate::failure::Result;

/// Mount helper, as mount(8) calls it
#[derive(clap::Args)]
#[command(
    override_usage = "silt mount-helper SOURCE DIR [-fnrsvw] [-o OPTIONS] [-t TYPE] [-N NAMESPACE]",
    after_help = super::options::HELP
)]
pub struct Args {
    /// Image or block device
    source: PathBuf,
    /// Directory to mount it on
    dir: PathBuf,
    /// Options, with commas between them (see below)
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<OsString>,
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
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
    /// Accepted: mount(8) has entered the namespace
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<String>,
}

/// What the kernel's table shows of a mount: mount(8) hands it on at a remount as if it had been asked for.
const SHOWN: &[&str] = &[
    "user_id",
    "group_id",
    "rootmode",
    "default_permissions",
    "max_read",
    "blksize",
    "seclabel",
    "context",
    "fscontext",
    "defcontext",
    "rootcontext",
];

/// The same of what can be asked for as well: only where it is so already, nobody asks.
const SHOWN_WHERE_IT_IS_SO: &[&str] = &["allow_other", "sync", "dirsync"];

/// `so`: whether the table has a word.
fn is_shown(word: &str, so: impl Fn(&str) -> bool) -> bool {
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    SHOWN.contains(&name) || (SHOWN_WHERE_IT_IS_SO.contains(&word) && so(word))
}

/// What a table as /etc/fstab says of what is mounted on `dir`.
fn usual(table: &str, dir: &Path) -> Vec<String> {
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of_it = lines.filter_map(|fields| match fields.as_slice() {
        [first, on, _, options, ..] if !first.starts_with('#') => {
            // Blanks are the only ones that come up in names.
            (Path::new(&on.replace("\\040", " ")) == dir).then(|| (*options).to_owned())
        }
        _ => None,
    });
    of_it.flat_map(|options| options.split(',').map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Most of what mount(8) hands on at a remount nobody asks to be changed: it says how things are, or what it always says.
fn remount(args: &Args, words: &[&OsStr]) -> Result<()> {
    let table = std::fs::read("/etc/fstab").unwrap_or_default();
    let dir = mounts::locate(&args.dir)?;
    let usual = usual(&String::from_utf8_lossy(&table), &dir);
    let seen = super::remount::seen_on(&dir)?;
    let so = |word: &str| seen.as_ref().is_some_and(|(_, shown)| super::remount::has(shown, word));
    let is_shown = |word: &OsStr| word.to_str().is_some_and(|word| is_shown(word, so));
    let of =
        |is: &dyn Fn(&OsStr) -> bool| Options::parse(words.iter().copied().filter(|w| is(w)), args.sloppy);
    let mut options = of(&|word| !is_shown(word))?;
    options.read_only = (options.read_only || args.read_only) && !args.write;
    let asked = of(&|word| !is_shown(word) && !usual.iter().any(|known| word == known.as_str()))?;
    super::remount::run(&args.dir, &options, &asked)
}

pub fn run(args: Args) -> Result<()> {
    let words: Vec<&OsStr> = args.options.iter().flat_map(|value| words_of(value)).collect();
    if words.iter().any(|word| *word == "remount") && !args.fake {
        return remount(&args, &words);
    }
    let mut options = Options::parse(words.into_iter(), args.sloppy)?;
    options.read_only = (options.read_only || args.read_only) && !args.write;
    if args.fake {
        return options.check();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_always_said_is_found_in_the_table() {
        let table = "# /dev/x /mnt silt nope 0 0\n\n/v.img /mnt/a\\040b silt defaults,interval=2 0 0\n/w.img /mnt silt ro";
        assert_eq!(usual(table, Path::new("/mnt/a b/")), ["defaults", "interval=2"]);
        assert_eq!(usual(table, Path::new("/mnt")), ["ro"]);
        assert!(usual(table, Path::new("/")).is_empty());
    }

    #[test]
    fn what_the_kernel_shows_is_told_apart() {
        let is_sync = |word: &str| word == "sync";
        assert!(["user_id=0", "sync", "rootcontext=x"].into_iter().all(|word| is_shown(word, is_sync)));
        assert!(
            !["interval=2", "ro", "user", "dirsync", "allow_other"]
                .into_iter()
                .any(|word| is_shown(word, is_sync))
        );
    }
}
