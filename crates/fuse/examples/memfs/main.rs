//! Mounts a file system in memory and serves it until unmounted.
//!
//! `memfs [--threads N] [--writeback] [--rings] [--no-create] [--ttl SECONDS] [--allow-other] [--block DEVICE]
//! [--source NAME] DIRECTORY`, or `memfs --unmount DIRECTORY`

mod memfs;

use memfs::{Memfs, Settings};
use silt_fuse::{BlockDevice, MountOptions, Session, Unmount};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

const USAGE: &str = "usage: memfs [--threads N] [--writeback] [--rings] [--no-create] [--ttl SECONDS] [--allow-other] \
                     [--block DEVICE] [--source NAME] DIRECTORY\n       memfs --unmount DIRECTORY";

struct Arguments {
    threads: usize,
    settings: Settings,
    options: MountOptions,
    directory: PathBuf,
    unmount: bool,
}

fn arguments() -> Option<Arguments> {
    let mut settings = Settings {
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        ..Settings::default()
    };
    let mut options =
        MountOptions { source: "memfs".to_owned(), subtype: "memfs".to_owned(), ..MountOptions::default() };
    let mut threads = 1;
    let mut directory = None;
    let mut unmount = false;
    let mut words = std::env::args_os().skip(1);
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--threads") => threads = words.next()?.to_str()?.parse().ok()?,
            Some("--ttl") => settings.ttl = Duration::from_secs(words.next()?.to_str()?.parse().ok()?),
            Some("--unmount") => unmount = true,
            Some("--writeback") => settings.writeback = true,
            Some("--rings") => settings.rings = true,
            Some("--no-create") => settings.create = false,
            Some("--allow-other") => options.allow_other = true,
            Some("--source") => options.source = words.next()?.into_string().ok()?,
            Some("--block") => {
                options.block_device = Some(BlockDevice { path: words.next()?.into(), block_size: 4096 });
            }
            _ if directory.is_none() => directory = Some(PathBuf::from(word)),
            _ => return None,
        }
    }
    Some(Arguments { threads, settings, options, directory: directory?, unmount })
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if arguments.unmount {
        return match silt_fuse::unmount(&arguments.directory, Unmount::Strict) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("memfs: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let fs = Arc::new(Memfs::new(arguments.settings));
    let ended = Session::mount(&arguments.directory, &arguments.options)
        .and_then(|session| session.run(fs, arguments.threads));
    match ended {
        Ok(ended) => {
            println!("{ended:?}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("memfs: {error}");
            ExitCode::FAILURE
        }
    }
}
