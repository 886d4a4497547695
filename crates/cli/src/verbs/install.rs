//! `silt install`: puts the program, its helpers, man pages, completions and units in place.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use silt_control::{ControlError, Kind};

use crate::args::Cli;
use crate::exit;
use crate::failure::Result;
use crate::names;
use crate::output::Output;
use crate::target;

/// Install this program, its mount helpers, man pages, completions and systemd units
///
/// mount(8) finds its helpers in /sbin only: with the prefix /usr or /usr/local they go there. What is there under the name of
/// one and is not ours stays, and so does a program silt that is not this one.
#[derive(clap::Args)]
pub struct Args {
    /// Where
    #[arg(long, default_value = "/usr/local")]
    prefix: PathBuf,
    /// Put everything below this directory, for making a package
    #[arg(long, value_name = "DIR")]
    destdir: Option<PathBuf>,
    /// Also install the names of nilfs-utils (mkfs.nilfs2, lscp, mkcp, ...); files that are there
    /// are left alone
    #[arg(long)]
    nilfs_names: bool,
    /// Print each file
    #[arg(short, long)]
    verbose: bool,
}

/// The units, with `@BIN@` where the program's directory belongs.
const UNITS: &[(&str, &str, &str)] = &[
    ("system", "silt@.service", include_str!("../../../../packaging/systemd/silt@.service")),
    ("user", "silt.service", include_str!("../../../../packaging/systemd/silt.service")),
];

struct Installer<'a> {
    args: &'a Args,
    out: Output,
    left_alone: Vec<PathBuf>,
    /// Something of them is needed.
    needed: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let prefix =
        std::path::absolute(&args.prefix).map_err(|e| ControlError::io(args.prefix.display(), &e))?;
    let mut to = Installer { args, out: Output::new(), left_alone: Vec::new(), needed: false };
    to.program(&prefix)?;
    to.names(&prefix)?;
    to.pages(&prefix)?;
    to.completions(&prefix)?;
    to.units(&prefix)?;
    let place = to.below_root(&prefix);
    let Installer { mut out, left_alone, needed, .. } = to;
    for path in &left_alone {
        target::eprintln_quiet(&format!("note: {} is there already and was left alone", path.display()));
    }
    if needed {
        out.finish()?;
        return Err(ControlError::new(
            Kind::Other,
            format!("silt is installed in {}, but for what is not ours and stays", place.display()),
        )
        .hint("without a helper of its name mount(8), and so fstab, cannot mount; move away what is there, and install again")
        .into());
    }
    out.line(format!("silt is installed in {}", place.display()))?;
    out.finish()
}

/// For errors: something could not be put in its place.
fn not_put(place: &Path, e: &io::Error) -> ControlError {
    let error = ControlError::io(place.display(), e);
    match error.kind {
        Kind::NotPermitted => error.hint("become root, or name a directory of yours with --prefix"),
        _ => error,
    }
}

impl Installer<'_> {
    fn below_root(&self, path: &Path) -> PathBuf {
        match &self.args.destdir {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }

    /// The path to write to, with its directory made.
    fn place(&mut self, path: &Path) -> Result<PathBuf> {
        let place = self.below_root(path);
        if let Some(dir) = place.parent() {
            fs::create_dir_all(dir).map_err(|e| not_put(dir, &e))?;
        }
        if self.args.verbose {
            self.out.line(place.display())?;
        }
        Ok(place)
    }

    /// Writes beside, then renames: a running program's file cannot be written, and half a file
    /// helps nobody.
    fn write(&mut self, path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
        let place = self.place(path)?;
        let fail = |e: io::Error| not_put(&place, &e);
        let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let new = place.with_file_name(format!(".{name}.new"));
        fs::write(&new, bytes).map_err(fail)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(mode)).map_err(fail)?;
        fs::rename(&new, &place).map_err(fail)?;
        Ok(())
    }

    fn program(&mut self, prefix: &Path) -> Result<()> {
        let this = std::env::current_exe().map_err(|e| ControlError::io("cannot find this program", &e))?;
        let bytes = fs::read(&this).map_err(|e| ControlError::io(this.display(), &e))?;
        let place = self.below_root(&prefix.join("bin/silt"));
        if is_foreign(&place, &this) {
            let message =
                format!("{} is not this program, and stays: nothing was installed", place.display());
            return Err(ControlError::new(Kind::Other, message)
                .hint("move it away, or name another --prefix")
                .into());
        }
        self.write(&prefix.join("bin/silt"), &bytes, 0o755)
    }

    /// Helpers and, if asked for, the names of nilfs-utils, as links to the program.
    fn names(&mut self, prefix: &Path) -> Result<()> {
        let program = prefix.join("bin/silt");
        let usual = [Path::new("/usr"), Path::new("/usr/local")].contains(&prefix);
        let sbin = prefix.join("sbin");
        let helpers = match (usual, prefix == Path::new("/usr")) {
            // /sbin is a link to it, and packages must not go through links.
            (true, true) => sbin.clone(),
            (true, false) => PathBuf::from("/sbin"),
            (false, _) => sbin.clone(),
        };
        for (name, _) in names::HELPERS {
            self.needed |= !self.link(&program, &helpers.join(name))?;
        }
        if self.args.nilfs_names {
            for (name, _) in names::TOOLS {
                let dir = if is_administrative(name) { sbin.clone() } else { prefix.join("bin") };
                self.link(&program, &dir.join(name))?;
            }
        }
        Ok(())
    }

    /// False: something that is not ours is there.
    fn link(&mut self, program: &Path, path: &Path) -> Result<bool> {
        let place = self.place(path)?;
        let fail = |e: io::Error| not_put(&place, &e);
        match fs::read_link(&place) {
            Ok(old) if old == program => return Ok(true),
            Ok(old) if old.file_name() == Some("silt".as_ref()) => fs::remove_file(&place).map_err(fail)?,
            Ok(_) => {
                self.left_alone.push(place);
                return Ok(false);
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(_) => {
                self.left_alone.push(place);
                return Ok(false);
            }
        }
        symlink(program, &place).map_err(fail)?;
        Ok(true)
    }

    /// `silt(1)` and `silt-VERB(1)`, and under each name that was linked what it stands for.
    fn pages(&mut self, prefix: &Path) -> Result<()> {
        let man = prefix.join("share/man");
        for (name, command) in commands() {
            let page = page(&name, 1, command)
                .map_err(|e| ControlError::io(format!("the manual page of {name}"), &e))?;
            self.write(&man.join(format!("man1/{name}.1")), &page, 0o644)?;
        }
        let tools = if self.args.nilfs_names { names::TOOLS } else { &[] };
        for (name, verb) in names::HELPERS.iter().chain(tools) {
            let (section, page) = linked_page(name, verb)
                .map_err(|e| ControlError::io(format!("the manual page of {name}"), &e))?;
            let path = man.join(format!("man{section}/{name}.{section}"));
            if self.is_theirs(&path) {
                self.left_alone.push(path);
                continue;
            }
            self.write(&path, &page, 0o644)?;
        }
        Ok(())
    }

    /// Whether a manual page is there that is not ours.
    fn is_theirs(&self, path: &Path) -> bool {
        fs::read(self.below_root(path)).is_ok_and(|old| {
            let old = String::from_utf8_lossy(&old);
            !old.starts_with(".so man1/silt-") && !old.contains(&format!("\"{SOURCE}"))
        })
    }

    fn completions(&mut self, prefix: &Path) -> Result<()> {
        let share = prefix.join("share");
        let places = [
            (Shell::Bash, "bash-completion/completions/silt"),
            (Shell::Zsh, "zsh/site-functions/_silt"),
            (Shell::Fish, "fish/vendor_completions.d/silt.fish"),
        ];
        for (shell, path) in places {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut visible(), "silt", &mut script);
            self.write(&share.join(path), &script, 0o644)?;
        }
        Ok(())
    }

    fn units(&mut self, prefix: &Path) -> Result<()> {
        let bin = prefix.join("bin");
        for (kind, name, text) in UNITS {
            let text = text.replace("@BIN@", &bin.to_string_lossy());
            self.write(&prefix.join("lib/systemd").join(kind).join(name), text.as_bytes(), 0o644)?;
        }
        Ok(())
    }
}

/// What every version of this program has in its file and no other program does: that by which it knows an earlier one.
#[used]
static MARK: [u8; 56] = *b"silt, this program: 5f0c9c1e-8d5b-4a43-9a1c-2f7f3c0e6b7d";

/// Versions that have no mark have the default volume of root in their help.
const OLDER: &[u8] = b"/var/lib/silt/default.img";

/// Whether something is there that this program, of whatever version, is not. A link is foreign unless it leads to `this`.
fn is_foreign(place: &Path, this: &Path) -> bool {
    let has = |file: &[u8], mark: &[u8]| file.windows(mark.len()).any(|part| part == mark);
    match fs::symlink_metadata(place) {
        Ok(meta) if meta.is_symlink() => match (place.canonicalize(), this.canonicalize()) {
            (Ok(to), Ok(this)) => to != this,
            _ => true,
        },
        Ok(meta) if meta.is_file() => fs::read(place)
            .is_ok_and(|old| !(old.starts_with(b"\x7fELF") && (has(&old, &MARK) || has(&old, OLDER)))),
        Ok(_) => true,
        Err(_) => false,
    }
}

/// What manual pages name as their source, but for the version.
const SOURCE: &str = "silt ";

/// The manual page of a name that stands for a verb, with its section: that verb's, or one of its own.
fn linked_page(name: &str, verb: &str) -> io::Result<(u8, Vec<u8>)> {
    let administrative = name.contains("mount.") || is_administrative(name);
    let section = if administrative { 8 } else { 1 };
    let of = match verb {
        "mount-helper" => "mount",
        "umount-helper" => "umount",
        "fsck-helper" => {
            let command =
                Cli::command().find_subcommand(verb).cloned().unwrap_or_else(|| Command::new("fsck"));
            return Ok((section, page(name, section, command.name("fsck.nilfs2"))?));
        }
        verb => verb,
    };
    Ok((section, format!(".so man1/silt-{of}.1\n").into_bytes()))
}

/// Whether a name of nilfs-utils belongs to those for administrators.
fn is_administrative(name: &str) -> bool {
    ["mkfs.", "fsck.", "nilfs-"].iter().any(|head| name.starts_with(head))
}

/// A manual page. Usage and the text after the help are tables, which are left as they are.
fn page(name: &str, section: u8, mut command: Command) -> io::Result<Vec<u8>> {
    let usage = command.render_usage().to_string();
    let after = command.get_after_help().map(ToString::to_string);
    let has_verbs = command.has_subcommands();
    let man = clap_mangen::Man::new(command)
        .title(name.to_uppercase())
        .section(section.to_string())
        .source(format!("{SOURCE}{}", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    verbatim(&mut page, "SYNOPSIS", usage.trim_start_matches("Usage: "));
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_verbs {
        let mut verbs = Vec::new();
        man.render_subcommands_section(&mut verbs)?;
        // What prints help has no page.
        let verbs = String::from_utf8_lossy(&verbs);
        let all: Vec<&str> = verbs.split("\n.TP\n").filter(|verb| !verb.contains("\\-help(1)")).collect();
        page.extend_from_slice(all.join("\n.TP\n").trim_end().as_bytes());
        page.push(b'\n');
    }
    if let Some((title, text)) = after.as_deref().and_then(|t| t.split_once(":\n")) {
        verbatim(&mut page, &title.to_uppercase(), text);
    }
    if let Some((_, verb)) = name.rsplit_once('-') {
        verbatim(&mut page, "EXIT STATUS", &exit::table_of(verb));
        page.extend_from_slice(b".SH \"SEE ALSO\"\nsilt(1)\n");
    }
    Ok(page)
}

/// A section whose lines stay as they are.
fn verbatim(page: &mut Vec<u8>, title: &str, text: &str) {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    // A line must not begin like a request of roff.
    let lines: Vec<String> = text.lines().map(|l| format!("\\&{l}")).collect();
    page.extend_from_slice(format!(".SH \"{title}\"\n.nf\n{}\n.fi\n", lines.join("\n")).as_bytes());
}

/// The command without what only programs call: completions would offer it.
fn visible() -> Command {
    let all = Cli::command();
    let verbs = all.get_subcommands().filter(|c| !c.is_hide_set()).cloned();
    Command::new("silt")
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .about(all.get_about().cloned().unwrap_or_default())
        .subcommands(verbs)
}

/// The program's command and its verbs', each with the name of its page.
fn commands() -> Vec<(String, Command)> {
    let mut root = Cli::command();
    root.build();
    let mut all = Vec::new();
    below("silt", &root, &mut all);
    all.insert(0, ("silt".to_owned(), root));
    all
}

/// Adds what is below a command and not hidden, at any depth.
fn below(name: &str, command: &Command, all: &mut Vec<(String, Command)>) {
    for c in command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        let name = format!("{name}-{}", c.get_name());
        all.push((name.clone(), c.clone()));
        below(&name, c, all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn completions_offer_what_people_call() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut visible(), "silt", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("dumpseg") && script.contains("umount"), "{shell}");
            assert!(!script.contains("mount-helper"), "{shell}");
        }
    }

    #[test]
    fn every_verb_has_a_page_with_its_options() {
        let all = commands();
        assert!(all.len() > 10);
        for (name, command) in all {
            let page = String::from_utf8(page(&name, 1, command).unwrap()).unwrap();
            assert!(page.contains(".SH NAME") && page.contains(".SH \"SYNOPSIS\""), "{name}");
            assert!(page.contains("   0  "), "{name}");
        }
    }
}
