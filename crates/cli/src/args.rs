//! The command line.

use clap::{Command, CommandFactory, Parser, Subcommand};

use crate::exit;
use crate::names::Name;
use crate::verbs::{
    chcp, check, clean, du, dumpseg, fsck, install, lab, lscp, lssu, map, mkcp, mkfs, mount, repair, rescue,
    resize, retain, rmcp, scrub, status, sync, trim, tune, umount,
};

/// A file system that keeps every moment, on the NILFS2 format, in user space.
#[derive(Parser)]
#[command(name = "silt", version, propagate_version = true, after_help = exit::TABLE, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do.
#[derive(Subcommand)]
pub enum Verb {
    Mkfs(mkfs::Args),
    Mount(mount::Args),
    Umount(umount::Args),
    Status(status::Args),
    Sync(sync::Args),
    Lscp(lscp::Args),
    Mkcp(mkcp::Args),
    Chcp(chcp::Args),
    Rmcp(rmcp::Args),
    Lssu(lssu::Args),
    Du(du::Args),
    Dumpseg(dumpseg::Args),
    Map(map::Args),
    Tune(tune::Args),
    Resize(resize::Args),
    Clean(clean::Args),
    Trim(trim::Args),
    Retain(retain::Args),
    Check(check::Args),
    Scrub(scrub::Args),
    Rescue(rescue::Args),
    Lab(lab::Args),
    Repair(repair::Args),
    Install(install::Args),
    #[command(hide = true)]
    Serve(mount::serve::Args),
    #[command(hide = true)]
    MountHelper(mount::helper::Args),
    #[command(hide = true)]
    UmountHelper(umount::HelperArgs),
    #[command(hide = true, disable_help_flag = true, disable_version_flag = true)]
    FsckHelper(fsck::Args),
}

/// The command line, with its exit codes in the help of every verb.
pub fn command() -> Command {
    let root = Cli::command();
    let verbs: Vec<String> =
        root.get_subcommands().filter(|c| !c.is_hide_set()).map(|c| c.get_name().to_owned()).collect();
    let root = verbs.iter().fold(root, |root, verb| root.mut_subcommand(verb, with_codes));
    root.mut_subcommand("lab", |lab| lab.mut_subcommand("torture", with_codes))
}

/// The command line of a program with this name.
pub fn command_as(name: Name) -> Command {
    let (verb, codes) = match name {
        // It counts as fsck(8) does, and says so.
        Name::Silt | Name::Tool(_, "fsck-helper") => return command(),
        Name::Tool(_, verb) => (verb, exit::OF_TOOLS),
        Name::Helper(_, verb) => (verb, exit::OF_HELPERS),
    };
    Cli::command().mut_subcommand(verb, |verb| with_text(verb.display_name(name.prefix()), codes))
}

fn with_codes(verb: Command) -> Command {
    let codes = format!("Exit codes:\n{}", exit::table_of(verb.get_name()));
    with_text(verb, &codes)
}

/// With a text behind what its help ends with.
fn with_text(verb: Command, text: &str) -> Command {
    let text = match verb.get_after_help() {
        Some(before) => format!("{before}\n\n{text}"),
        None => text.to_owned(),
    };
    verb.after_help(text)
}

/// Of a command line that was refused: the number with a minus before it that was taken for an option.
pub fn negative(e: &clap::Error) -> Option<&str> {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let Some(ContextValue::String(arg)) = e.get(ContextKind::InvalidArg) else { return None };
    let is = e.kind() == ErrorKind::UnknownArgument
        && arg.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    is.then_some(arg.as_str())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::command;
    use crate::exit::COLUMNS;

    /// All options and arguments that take a value, with the commands they are of, in reach of `path`.
    fn values(command: &clap::Command, path: &[String]) -> Vec<Vec<String>> {
        let named = command.get_opts().filter_map(|o| o.get_long()).map(|long| {
            let mut line = path.to_vec();
            line.push(format!("--{long}"));
            line
        });
        let below = command.get_subcommands().flat_map(|c| {
            let mut path = path.to_vec();
            path.push(c.get_name().to_owned());
            values(c, &path)
        });
        named.chain(below).collect()
    }

    /// What makes no sense as a value is told in our words, and not in those of whatever parses it.
    #[test]
    fn wrong_values_are_told_plainly() {
        let mut refused = 0;
        for line in values(&command(), &["silt".to_owned()]) {
            for value in ["x", "", "-1", "1.5", "99999999999999999999999"] {
                let mut line = line.clone();
                if let Some(last) = line.last_mut() {
                    *last += &format!("={value}");
                }
                let Err(e) = command().try_get_matches_from(&line) else { continue };
                let text = e.to_string();
                for word in
                    ["invalid digit", "digit found", "invalid float", "parse integer", "too large to fit"]
                {
                    assert!(!text.contains(word), "{line:?}: {text}");
                }
                refused += usize::from(e.kind() == clap::error::ErrorKind::ValueValidation);
            }
        }
        assert!(refused > 60, "{refused}");
    }

    /// Every option of every verb is on a page that is about the verb.
    #[test]
    fn every_option_is_in_the_documents() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let pages = std::fs::read_dir(root.join("docs")).unwrap().map(|e| e.unwrap().path());
        let pages =
            pages.filter(|p| p.extension().is_some_and(|e| e == "md")).chain([root.join("README.md")]);
        let pages: Vec<String> = pages.map(|p| std::fs::read_to_string(p).unwrap()).collect();
        let has = |page: &str, word: &str| {
            let ends = |at: usize| !page[at..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
            page.match_indices(word).any(|(at, _)| ends(at + word.len()))
        };
        fn missing(verb: &clap::Command, name: &str, told: &impl Fn(&str, &str) -> bool) -> Vec<String> {
            let mut all = Vec::new();
            for option in verb.get_opts().filter(|o| !o.is_hide_set()) {
                let Some(long) = option.get_long().filter(|long| *long != "json") else { continue };
                if !told(name, &format!("--{long}")) {
                    all.push(format!("{name} --{long}"));
                }
            }
            for below in verb.get_subcommands().filter(|c| !c.is_hide_set()) {
                all.extend(missing(below, &format!("{name} {}", below.get_name()), told));
            }
            all
        }
        let told = |verb: &str, option: &str| pages.iter().any(|p| has(p, verb) && has(p, option));
        assert_eq!(missing(&command(), "silt", &told), [""; 0]);
    }

    /// What is wider clap breaks, and its next line begins at the edge.
    #[test]
    fn help_texts_are_broken_where_they_are_indented() {
        let root = command();
        let codes = root.clone();
        let all = root.get_subcommands().filter(|c| !c.is_hide_set()).chain([&codes]);
        for verb in all {
            let name = verb.get_name();
            let after = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            let help = verb.clone().term_width(COLUMNS).render_long_help().to_string();
            for line in after.lines() {
                assert!(line.chars().count() <= COLUMNS, "{name}: {line}");
                assert!(help.lines().any(|l| l == line.trim_end()), "{name}: {line}: {help}");
            }
        }
        let mount = root.find_subcommand("mount").unwrap().clone();
        let help = mount.term_width(COLUMNS).render_long_help().to_string();
        let table = help.split("Mount options:\n").nth(1).unwrap();
        let table: Vec<&str> = table.lines().take_while(|l| !l.starts_with("Options that")).collect();
        assert!(table.len() > 40 && table.iter().all(|l| l.starts_with("  ")), "{help}");
    }
}
