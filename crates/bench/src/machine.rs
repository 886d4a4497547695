//! What a result must say of the machine and of this run.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::system::Tools;

/// The machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Release of the kernel.
    pub kernel: String,
    /// Of the first processor.
    pub processor: String,
    /// How many.
    pub processors: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// The device and file system of the scratch directory.
    pub disk: String,
    /// What was set for this run, if anything.
    #[serde(default)]
    pub setting: Option<String>,
    /// How busy it was in the minute before.
    pub load_before: f64,
    /// How busy it was at the end, by this run too.
    pub load_after: f64,
    /// Versions of the file systems' programs.
    pub versions: Vec<String>,
    /// Seconds since 1970.
    pub time: u64,
}

fn field(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_once(':').map_or("unknown", |(_, value)| value.trim()).to_owned()
}

/// The load of the last minute.
pub fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

fn first_line(command: &mut Command) -> String {
    let output = command.output().map(|o| [o.stdout, o.stderr].concat()).unwrap_or_default();
    let text = String::from_utf8_lossy(&output);
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or("unknown").trim().to_owned()
}

impl Machine {
    /// Looks around.
    pub fn look(tools: &Tools, scratch: &Path) -> Self {
        let version = |program: &str, argument: &str| first_line(Command::new(program).arg(argument));
        let memory = field("/proc/meminfo", "MemTotal");
        let kib: u64 = memory.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let disk = first_line(
            Command::new("findmnt").args(["-n", "-o", "SOURCE,FSTYPE,OPTIONS", "-T"]).arg(scratch),
        );
        Machine {
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            processor: field("/proc/cpuinfo", "model name"),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory: kib * 1024,
            disk,
            setting: None,
            load_before: load(),
            load_after: 0.0,
            versions: vec![
                first_line(Command::new(&tools.silt).arg("--version")),
                version("mkfs.ext4", "-V"),
                version("mkfs.xfs", "-V"),
                version("mkfs.btrfs", "--version"),
                version("ntfs-3g", "--version"),
                version("fuse2fs", "-V"),
                #[cfg(feature = "sqlite")]
                format!("SQLite {}", rusqlite::version()),
                version("git", "--version"),
                version("rsync", "--version"),
                version("tar", "--version"),
                version("gcc", "--version"),
            ],
            time: std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs()),
        }
    }

    /// One paragraph.
    pub fn text(&self) -> String {
        format!(
            "Linux {}, {} x {}, {:.1} GiB of memory, {}; load {:.2} before, {:.2} after{}{}",
            self.kernel,
            self.processors,
            self.processor,
            self.memory as f64 / (1u64 << 30) as f64,
            self.disk,
            self.load_before,
            self.load_after,
            if self.setting.is_some() { "; " } else { "" },
            self.setting.as_deref().unwrap_or_default()
        )
    }
}
