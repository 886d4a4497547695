//! What Silt wants to reach. A benchmark reports and asserts nothing: "below" is a word, not an exit code.

use comfy_table::{ContentArrangement, Table, presets};

use super::statistics::Spread;
use super::{Results, figure, time};
use crate::disk::Kind;
use crate::measure::Measured;
use crate::system::System;
use crate::workload::{Family, all};

/// What is looked at.
enum What {
    /// Silt's rate by another's, at least.
    Ratio(System, f64),
    /// A figure of a file system, at most.
    Most(System, Figure, f64),
    /// A rate of a file system, at least.
    Rate(System, f64),
}

/// A figure of a run.
enum Figure {
    /// Requests that write, by operations.
    WritesPerOperation,
    /// Flushes by operations.
    FlushesPerOperation,
    /// Bytes written by bytes allocated.
    Amplification,
    /// Seconds below which 99 of 100 lie.
    P99,
    /// The slowest.
    Slowest,
}

impl Figure {
    fn of(&self, m: &Measured) -> Option<f64> {
        let per = |count: u64| (m.amount > 0).then(|| count as f64 / m.amount as f64);
        match self {
            // The kernel's count holds more than these.
            Figure::WritesPerOperation => m.exact.then(|| per(m.disk.writes)).flatten(),
            Figure::FlushesPerOperation => per(m.disk.flushes),
            Figure::Amplification => Some(m.disk.write_bytes as f64 / m.allocated.filter(|a| *a > 0)? as f64),
            Figure::P99 => Some(m.latency.as_ref()?.p99),
            Figure::Slowest => Some(m.latency.as_ref()?.max),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Figure::WritesPerOperation => "writes an operation",
            Figure::FlushesPerOperation => "flushes an operation",
            Figure::Amplification => "bytes written an allocated byte",
            Figure::P99 => "p99",
            Figure::Slowest => "slowest request",
        }
    }

    fn show(&self, value: f64) -> String {
        if matches!(self, Figure::P99 | Figure::Slowest) { time(value) } else { figure(value) }
    }
}

struct Floor {
    workload: String,
    disk: Kind,
    what: What,
}

/// All of them.
fn floors() -> Vec<Floor> {
    use System::{Ext4, Fuse2fs, Memfs, Ntfs3g, Silt};
    let mut floors = Vec::new();
    let mut add =
        |workload: &str, disk, what| floors.push(Floor { workload: workload.to_owned(), disk, what });
    for workload in all() {
        let name = workload.name.as_str();
        if matches!(workload.family, Family::Small | Family::Tree) {
            add(name, Kind::Here, What::Ratio(Ntfs3g, 3.0));
            add(name, Kind::Here, What::Ratio(Fuse2fs, 3.0));
        }
        if workload.family == Family::Small {
            add(name, Kind::Here, What::Ratio(Memfs, 0.7));
        }
        let ext4 = match name {
            "create" | "create-200" => Some(0.4),
            "read-warm" | "read-warm-200" | "stat-warm" | "stat-warm-200" => Some(0.6),
            "unpack" | "cp" | "rsync" | "git-clone" => Some(0.3),
            "stream-write" | "stream-read" => Some(0.7),
            _ => None,
        };
        if let Some(least) = ext4 {
            add(name, Kind::Here, What::Ratio(Ext4, least));
        }
    }
    for name in ["unpack", "cp", "rsync", "git-clone"] {
        add(name, Kind::Spinning, What::Ratio(Ext4, 1.0));
    }
    add("random-write", Kind::Spinning, What::Ratio(Ext4, 3.0));
    add("unpack", Kind::Here, What::Most(Silt, Figure::Amplification, 1.15));
    add("fsync-grow-1", Kind::Flush2ms, What::Most(Silt, Figure::WritesPerOperation, 1.05));
    add("fsync-grow-1", Kind::Flush2ms, What::Most(Silt, Figure::FlushesPerOperation, 1.05));
    add("fsync-grow-1", Kind::Flush2ms, What::Ratio(Ext4, 1.3));
    add("fdatasync-over-1", Kind::Flush2ms, What::Ratio(Ext4, 0.8));
    add("fsync-grow-8", Kind::Flush2ms, What::Most(Silt, Figure::FlushesPerOperation, 0.4));
    if cfg!(feature = "sqlite") {
        add("sqlite-wal", Kind::Flush2ms, What::Ratio(Ext4, 1.0));
        add("sqlite-rollback", Kind::Flush2ms, What::Ratio(Ext4, 1.0));
    }
    add("fsync-beside-writer", Kind::Flush2ms, What::Most(Silt, Figure::P99, 0.150));
    add("pause", Kind::Here, What::Most(Silt, Figure::Slowest, 0.100));
    add("create", Kind::Here, What::Rate(Memfs, 25_000.0));
    floors
}

struct Verdict {
    wanted: String,
    got: Option<String>,
    reached: bool,
}

impl Floor {
    fn judge(&self, results: &Results) -> Verdict {
        let of = |system, f: &dyn Fn(&Measured) -> Option<f64>| {
            let runs = results.of(&self.workload, self.disk, system);
            Spread::of(runs.into_iter().filter_map(|(_, m)| f(m)).collect())
        };
        let (wanted, spread, show, least): (_, _, Box<dyn Fn(f64) -> String>, _) = match &self.what {
            What::Ratio(to, least) => (
                format!("silt by {to}: at least {}", figure(*least)),
                results.ratio(&self.workload, self.disk, System::Silt, *to),
                Box::new(figure),
                Ok(*least),
            ),
            What::Rate(system, least) => (
                format!("{system}: at least {}/s", figure(*least)),
                of(*system, &|m| Some(m.rate())),
                Box::new(figure),
                Ok(*least),
            ),
            What::Most(system, value, most) => (
                format!("{system}, {}: at most {}", value.name(), value.show(*most)),
                of(*system, &|m| value.of(m)),
                Box::new(|v| value.show(v)),
                Err(*most),
            ),
        };
        let reached = spread.is_some_and(|spread| match least {
            Ok(least) => spread.median >= least,
            Err(most) => spread.median <= most,
        });
        Verdict { wanted, got: spread.map(|spread| spread.text(show)), reached }
    }
}

/// The floors that this run says something about, and how many.
pub fn summary(results: &Results) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["workload", "disk", "wanted", "got", ""]);
    let (mut reached, mut looked) = (0, 0);
    for floor in floors() {
        let verdict = floor.judge(results);
        let Some(got) = verdict.got else { continue };
        looked += 1;
        reached += u32::from(verdict.reached);
        let word = if verdict.reached { "pass" } else { "below" };
        table.add_row([&floor.workload, floor.disk.name(), &verdict.wanted, &got, word]);
    }
    if looked == 0 {
        return String::new();
    }
    format!("\nFloors, judged by medians: {reached} of {looked} pass\n{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{Cell, Key};
    use crate::machine::Machine;
    use crate::measure::{Latency, Unit};

    fn cell(workload: &str, disk: Kind, system: System, round: u64, seconds: f64) -> Cell {
        let latency = Latency { count: 100, p50: 0.001, p99: 0.2, p999: 0.3, max: 0.4 };
        let disk_counters =
            crate::disk::counters::Counters { writes: 101, flushes: 110, ..Default::default() };
        Cell {
            key: Key { workload: workload.to_owned(), disk, system, round },
            whole_seconds: 1.0,
            measured: Some(Measured {
                seconds,
                amount: 100,
                unit: Unit::Operations,
                latency: Some(latency),
                cpu_machine: 1.0,
                cpu_daemon: None,
                daemon_memory: None,
                disk: disk_counters,
                exact: disk != Kind::Here,
                allocated: None,
            }),
            error: None,
        }
    }

    fn results(cells: Vec<Cell>) -> Results {
        let machine = Machine {
            kernel: String::new(),
            processor: String::new(),
            processors: 2,
            memory: 0,
            disk: String::new(),
            setting: None,
            load_before: 0.0,
            load_after: 0.0,
            versions: Vec::new(),
            time: 0,
        };
        Results { command: String::new(), quick: true, whole: false, rounds: 2, machine, cells }
    }

    #[test]
    fn every_floor_is_of_a_workload_that_runs_on_its_disk() {
        for floor in floors() {
            let workload = all().into_iter().find(|w| w.name == floor.workload).unwrap();
            assert!(workload.disks.contains(&floor.disk), "{}", floor.workload);
        }
    }

    #[test]
    fn ratios_are_of_the_same_round_and_words_tell_both_ways() {
        let results = results(vec![
            cell("fsync-grow-1", Kind::Flush2ms, System::Silt, 0, 1.0),
            cell("fsync-grow-1", Kind::Flush2ms, System::Ext4, 0, 2.0),
            // A slow minute for both.
            cell("fsync-grow-1", Kind::Flush2ms, System::Silt, 1, 10.0),
            cell("fsync-grow-1", Kind::Flush2ms, System::Ext4, 1, 20.0),
            cell("fsync-grow-1", Kind::Flush2ms, System::Ext4, 2, 1.0),
        ]);
        let ratio = results.ratio("fsync-grow-1", Kind::Flush2ms, System::Silt, System::Ext4).unwrap();
        assert_eq!((ratio.median, ratio.least, ratio.most), (2.0, 2.0, 2.0));
        let text = summary(&results);
        let line = |part: &str| text.lines().find(|line| line.contains(part)).unwrap().trim().to_owned();
        assert!(line("silt by ext4").contains("| pass"), "{text}");
        assert!(line("writes an operation").contains("| pass"), "{text}");
        assert!(line("flushes an operation").contains("| below"), "{text}");
        assert!(text.contains("2 of 3 pass"), "{text}");
    }

    #[test]
    fn inexact_counts_are_not_judged_and_missing_ones_not_shown() {
        let results = results(vec![cell("pause", Kind::Here, System::Silt, 0, 1.0)]);
        let text = summary(&results);
        assert!(text.contains("0 of 1 pass") && text.contains("400 ms"), "{text}");
    }
}
