//! The `silt` command: one file a verb, no logic of its own.
//!
//! `main` only chooses the verb, runs it, and turns its failure into a sentence and an exit code.
//! Under the names of nilfs-utils and of mount helpers the same program behaves as they do.

mod args;
mod cleaner;
mod content;
mod exit;
mod failure;
mod interrupt;
mod json;
mod names;
mod number;
mod output;
mod overwrite;
mod own;
mod picture;
mod progress;
mod signatures;
mod space;
mod target;
mod times;
mod verbs;

use std::io::Write as _;
use std::process::ExitCode;

use clap::FromArgMatches as _;
use silt_control::{ControlError, Kind, size};

use crate::args::Cli;
use crate::failure::Failure;
use crate::names::Name;

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(|l| format!(" at {}:{}", l.file(), l.line())).unwrap_or_default();
        let what = info.payload_as_str().unwrap_or("no more is known");
        target::eprintln_quiet(&format!("silt: an internal error{place}: {what}"));
        target::eprintln_quiet("  (please report it)");
    }));
    let name = Name::of_program(std::env::args_os().next());
    failure::set_prefix(name.prefix());
    let parsed = args::command_as(name)
        .try_get_matches_from(name.arguments(std::env::args_os()))
        .and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(e) => {
            if let Some(number) = args::negative(&e) {
                let message = format!("{number} is no option, and no number here is below 0");
                let error = ControlError::new(Kind::Invalid, message)
                    .hint(format!("write it without the minus; a file of that name is ./{number}"));
                return ended(name, &error.into());
            }
            // Help and version come here too; what cannot be said on standard error is said nowhere.
            let printed = print(name, &e).and_then(|()| std::io::stdout().flush());
            if e.use_stderr() {
                return name.exit(exit::USAGE);
            }
            return printed.map_or_else(|e| ended(name, &output::failed(e)), |()| ExitCode::SUCCESS);
        }
    };
    match verbs::run(cli.verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => ended(name, &failure),
    }
}

/// Prints what clap has to say, under the name that this program was called by.
fn print(name: Name, e: &clap::Error) -> std::io::Result<()> {
    match name {
        Name::Silt => e.print(),
        _ if e.use_stderr() => std::io::stderr().write_all(name.its(&e.render().to_string()).as_bytes()),
        _ => std::io::stdout().write_all(name.its(&e.render().to_string()).as_bytes()),
    }
}

fn ended(name: Name, failure: &Failure) -> ExitCode {
    failure.tell();
    name.exit(failure.code())
}
