//! Exit codes. They are an interface: programs decide by them.

use silt_control::Kind;

/// All went well.
pub const OK: u8 = 0;
/// Something failed that has no code of its own; of a list, some items failed.
pub const FAILURE: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;

/// Ended by Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// The codes for people, in help texts and man pages.
pub const TABLE: &str = "\
Exit codes:
   0  success
   1  failure that has no code of its own, or some items of a list failed
   2  wrong command line
   3  not a NILFS2 volume
   4  the volume is damaged
   5  the volume is of a kind that this program cannot use
   6  in use
   7  not permitted
   8  no space left
   9  no such file, volume, checkpoint or mount
  10  the device or the operating system failed
  11  read-only
  12  cannot be done here or now
 130  ended by Ctrl-C

Under the names of nilfs-utils every failure is 1, under mount.silt the codes are those of mount(8),
under fsck.nilfs2 those of fsck(8).";

/// Codes under the names of nilfs-utils, for people.
pub const OF_TOOLS: &str = "\
Exit codes:
   0  success
   1  failure";

/// Codes under the names of helpers, for people.
pub const OF_HELPERS: &str = "\
Exit codes:
   0  success
   1  wrong command line, or not permitted
  32  failure";

/// Columns of a help text: wider ones clap breaks, and does not indent.
pub const COLUMNS: usize = 100;

/// Codes of a verb, each with words of its own or none where those of [`TABLE`] do.
type Codes = &'static [(u8, &'static str)];

/// What whoever reads a volume may meet.
const READING: &[u8] = &[0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 12];
/// What whoever changes one may meet.
const CHANGING: &[u8] = &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
/// The same, of what Ctrl-C ends in good order.
const INTERRUPTIBLE: &[u8] = &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, INTERRUPTED];

/// Which codes a verb has, and what some of them mean there.
fn of_verb(verb: &str) -> (&'static [u8], Codes) {
    match verb {
        "mkfs" => (
            &[0, 1, 2, 6, 7, 8, 9, 10, 11],
            &[(1, "there is something on it already, or a failure that has no code of its own")],
        ),
        "mount" => (
            INTERRUPTIBLE,
            &[(
                INTERRUPTED,
                "ended by Ctrl-C: what was mounted is unmounted again, unless it says otherwise or there was another Ctrl-C",
            )],
        ),
        "umount" => (&[0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 12], &[]),
        "status" => (READING, &[(1, "of several volumes some did not answer, or another failure")]),
        "chcp" => (
            CHANGING,
            &[(1, "some of the checkpoints were refused, or another failure"), (9, "none of them is there")],
        ),
        "rmcp" => (
            CHANGING,
            &[
                (1, "some of the checkpoints stay or are not there, or another failure"),
                (9, "none of them is there"),
            ],
        ),
        "clean" => {
            (INTERRUPTIBLE, &[(8, "less can be had than --until asks for, or there is no room to work in")])
        }
        "trim" => (CHANGING, &[(12, "what holds the volume cannot discard, or not now")]),
        "resize" => (INTERRUPTIBLE, &[]),
        "check" => (
            &[0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 12, INTERRUPTED],
            &[(0, "the volume is sound"), (12, "the daemon let go of it before the check was done")],
        ),
        "scrub" => (
            READING,
            &[
                (0, "all is sound"),
                (1, "paused before its end, and nothing damaged was found so far; or another failure"),
                (4, "something is damaged"),
            ],
        ),
        "rescue" => (
            &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, INTERRUPTED],
            &[
                (0, "everything of the moment verifies"),
                (1, "something is lost or does not verify (it is listed), or another failure"),
                (4, "nothing can be read"),
                (8, "no space left where it is copied to"),
            ],
        ),
        "repair" => (
            &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, INTERRUPTED],
            &[
                (0, "the volume is sound now; with --dry-run: it is"),
                (
                    2,
                    "wrong command line; or nothing was written, since neither --undo FILE nor --no-undo was said, or nobody \
                     was there to answer and --yes was not",
                ),
                (4, "errors are left, or are there and nothing was written"),
                (8, "too little free space to mend in: nothing was written"),
                (12, "the volume was written since the repair that is to be taken back"),
            ],
        ),
        "lab" | "torture" => (
            &[0, 1, 2, 10, INTERRUPTED],
            &[(0, "nothing that was promised is lost"), (1, "something is (it is told), or another failure")],
        ),
        "install" => (
            &[0, 1, 2, 7, 8, 9, 10, 11],
            &[(1, "something of that name is not ours, and stays; or another failure")],
        ),
        "lscp" | "lssu" | "du" | "dumpseg" | "map" => (READING, &[]),
        _ => (CHANGING, &[]),
    }
}

/// The codes of a verb for people: a line each.
pub fn table_of(verb: &str) -> String {
    let (codes, own) = of_verb(verb);
    let words = |code: u8| {
        let own = own.iter().find(|(c, _)| *c == code).map(|(_, words)| *words);
        own.or_else(|| TABLE.lines().find_map(|l| l.trim_start().strip_prefix(&format!("{code}  "))))
    };
    codes
        .iter()
        .flat_map(|c| wrapped(&format!("{c:>4}  {}", words(*c).unwrap_or_default())))
        .collect::<Vec<_>>()
        .join("\n")
}

/// A line of a table of codes as lines that are not too long, the further ones indented.
fn wrapped(line: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let (head, text) = line.split_at(6);
    let mut now = head.to_owned();
    for word in text.split(' ') {
        if now.len() + 1 + word.len() > COLUMNS {
            lines.push(std::mem::replace(&mut now, " ".repeat(6)));
        }
        if now.len() > 6 {
            now.push(' ');
        }
        now += word;
    }
    lines.push(now);
    lines
}

/// The code of a kind of failure.
pub fn of(kind: Kind) -> u8 {
    match kind {
        Kind::Other => FAILURE,
        Kind::Invalid => USAGE,
        Kind::NotNilfs => 3,
        Kind::Corrupt => 4,
        Kind::Incompatible => 5,
        Kind::Busy => 6,
        Kind::NotPermitted => 7,
        Kind::NoSpace => 8,
        Kind::NotFound => 9,
        Kind::Io => 10,
        Kind::ReadOnly => 11,
        Kind::Unavailable => 12,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_words_for_each_of_its_codes() {
        for verb in [
            "mount", "scrub", "repair", "lscp", "check", "rescue", "lab", "install", "resize", "clean",
            "chcp",
        ] {
            let table = table_of(verb);
            assert!(table.starts_with("   0  "), "{verb}: {table}");
            for line in table.lines() {
                assert!(line.len() > 6 && line[6..].starts_with(char::is_alphabetic), "{verb}: {line}");
            }
            let (codes, own) = of_verb(verb);
            assert!(codes.is_sorted() && own.iter().all(|(code, _)| codes.contains(code)), "{verb}");
        }
    }

    #[test]
    fn every_code_is_in_the_table_once() {
        let kinds = [
            Kind::Other,
            Kind::Invalid,
            Kind::NotNilfs,
            Kind::Corrupt,
            Kind::Incompatible,
            Kind::Busy,
            Kind::NotPermitted,
            Kind::NoSpace,
            Kind::NotFound,
            Kind::Io,
            Kind::ReadOnly,
            Kind::Unavailable,
        ];
        let mut codes: Vec<u8> = kinds.iter().map(|k| of(*k)).collect();
        codes.push(OK);
        codes.sort_unstable();
        assert_eq!(codes, (0..=12).collect::<Vec<u8>>());
        for code in codes {
            let lines = TABLE.lines().filter(|l| l.trim_start().starts_with(&format!("{code}  ")));
            assert_eq!(lines.count(), 1, "{code}");
        }
    }
}
