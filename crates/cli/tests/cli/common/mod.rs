//! Running the command on volumes of its own.

pub mod account;
pub mod disk;

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use silt_device::{Device, MemoryDevice};
use tempfile::TempDir;

/// The command.
pub const SILT: &str = env!("CARGO_BIN_EXE_silt");

/// A directory of a test's own, in which the command finds nothing of the user's.
pub struct Bench {
    dir: TempDir,
}

/// What a run of the command came to.
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Run {
    pub fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap_or_else(|| -output.status.signal().unwrap_or(0));
        let run = Run { code, out: text(&output.stdout), err: text(&output.stderr) };
        for word in ["panicked", "internal error", "stack backtrace", "RUST_BACKTRACE"] {
            assert!(!run.err.contains(word), "{}", run.err);
        }
        run
    }
}

impl Bench {
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("silt-cli-").tempdir().unwrap();
        std::fs::create_dir(dir.path().join("run")).unwrap();
        Bench { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file's path as text.
    pub fn name(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.dir.path())
            .env("TZ", "UTC")
            .env("LC_ALL", "C")
            .env("HOME", self.dir.path())
            .env("XDG_DATA_HOME", self.path("data"))
            .env("XDG_STATE_HOME", self.path("state"))
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .stdin(Stdio::null());
        command
    }

    /// A device in memory as a file, and its path.
    pub fn image(&self, name: &str, device: &MemoryDevice) -> String {
        let mut bytes = vec![0; usize::try_from(device.len()).unwrap()];
        device.read_at(0, &mut bytes).unwrap();
        std::fs::write(self.path(name), bytes).unwrap();
        self.name(name)
    }

    /// Runs the command.
    pub fn run<A: AsRef<OsStr>>(&self, args: &[A]) -> Run {
        Run::of(&self.command(SILT).args(args).output().unwrap())
    }

    /// Runs it; it must succeed. What it printed.
    #[track_caller]
    pub fn ok<A: AsRef<OsStr> + std::fmt::Debug>(&self, args: &[A]) -> String {
        let run = self.run(args);
        assert_eq!(run.code, 0, "{args:?}: {}{}", run.out, run.err);
        run.out
    }

    /// Runs it; it must fail with `code`, one sentence on standard error, and perhaps a hint in
    /// brackets on the next line. What it said.
    #[track_caller]
    pub fn fails<A: AsRef<OsStr> + std::fmt::Debug>(&self, code: i32, args: &[A]) -> String {
        let run = self.run(args);
        assert_eq!(run.code, code, "{args:?}: {}{}", run.out, run.err);
        let lines: Vec<&str> = run.err.lines().filter(|l| !l.starts_with("note: ")).collect();
        assert!(lines.first().is_some_and(|l| l.starts_with("silt: ")), "{}", run.err);
        assert!(lines.iter().skip(1).all(|l| l.starts_with("  (") && l.ends_with(')')), "{}", run.err);
        assert!(lines.len() <= 2, "{}", run.err);
        run.err
    }

    /// Makes a volume.
    #[track_caller]
    pub fn volume(&self, name: &str, size: &str) -> String {
        self.ok(&["mkfs", "-q", "-B", "64", "--size", size, name]);
        self.name(name)
    }

    /// A volume that the kernel has written.
    pub fn golden(&self, name: &str) -> String {
        let packed = golden_dir().join(format!("{name}.img.zst"));
        let to = self.path(&format!("{name}.img"));
        unpack(&packed, &to);
        to.to_str().unwrap().to_owned()
    }

    pub fn json<A: AsRef<OsStr> + std::fmt::Debug>(&self, args: &[A]) -> serde_json::Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    /// The checkpoints there are, minor ones too.
    pub fn checkpoints(&self, volume: &str) -> Vec<(u64, bool)> {
        let list = self.json(&["lscp", "-a", "--json", volume]);
        list.as_array()
            .unwrap()
            .iter()
            .map(|c| (c["number"].as_u64().unwrap(), c["snapshot"].as_bool().unwrap()))
            .collect()
    }
}

pub fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden")
}

/// Unpacks with the zstd command.
pub fn unpack(from: &Path, to: &Path) {
    let run = Command::new("zstd").args(["-dqf", "--sparse"]).arg(from).arg("-o").arg(to).status();
    assert!(run.expect("zstd is needed (Debian package zstd)").success(), "{}", from.display());
}

/// Whether this machine can mount; tests of mounting end early where not.
pub fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists() && (is_root() || find("fusermount3"));
    if !can {
        eprintln!("skipped: there is no FUSE here");
    }
    can
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn find(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|p| std::env::split_paths(&p).any(|d| d.join(program).exists()))
}

/// A mounted directory, unmounted at the end of the test whatever comes.
pub struct Mounted<'a> {
    bench: &'a Bench,
    dir: PathBuf,
}

impl<'a> Mounted<'a> {
    /// Mounts; what was printed is in the second part.
    #[track_caller]
    pub fn new(bench: &'a Bench, args: &[&str], dir: &str) -> (Self, String) {
        let mut all = vec!["mount"];
        all.extend(args);
        all.push(dir);
        let out = bench.ok(&all);
        (Mounted { bench, dir: bench.path(dir) }, out)
    }

    /// Where something is mounted already.
    pub fn at(bench: &'a Bench, dir: &str) -> Self {
        Mounted { bench, dir: bench.path(dir) }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn dir(&self) -> &str {
        self.dir.to_str().unwrap()
    }

    pub fn is_mounted(&self) -> bool {
        is_mounted(&self.dir)
    }

    /// Unmounts. A child process that another test starts just now holds our files until it calls exec.
    #[track_caller]
    pub fn unmount(self) {
        const IN_USE: i32 = 6;
        let tried = (0..100).map(|_| self.bench.run(&["umount", self.dir()]));
        let pause = |run: &Run| {
            if run.code == IN_USE {
                std::thread::sleep(std::time::Duration::from_millis(50))
            }
        };
        let run = tried.inspect(pause).find(|run| run.code != IN_USE);
        assert!(run.is_some_and(|run| run.code == 0), "umount {}", self.dir());
        assert!(!self.is_mounted());
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = self.bench.run(&["umount", self.dir()]);
        }
        if self.is_mounted() {
            // Not to leave something behind on which everything waits.
            let _ = silt_fuse::abort_connection(&self.dir);
            let _ = silt_fuse::unmount(&self.dir, silt_fuse::Unmount::Lazy);
        }
    }
}

pub fn is_mounted(dir: &Path) -> bool {
    silt_fuse::find_mount(dir).is_ok_and(|m| m.is_some())
}
