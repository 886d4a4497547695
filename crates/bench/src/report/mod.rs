//! What is made of the cells: tables, the summary against the floors, JSON, a plot.

pub mod floors;
pub mod plot;
pub mod statistics;
pub mod tables;

use serde::{Deserialize, Serialize};

use crate::cell::Cell;
use crate::disk::Kind;
use crate::machine::Machine;
use crate::measure::{Measured, Unit};
use crate::system::System;
use statistics::Spread;

/// A run's results; this is the JSON file.
#[derive(Serialize, Deserialize)]
pub struct Results {
    /// What was typed.
    pub command: String,
    /// Sizes for a first look.
    pub quick: bool,
    /// Nothing was left out.
    pub whole: bool,
    /// How often each cell was run.
    pub rounds: u64,
    /// Where.
    pub machine: Machine,
    /// Everything measured.
    pub cells: Vec<Cell>,
}

impl Results {
    /// The whole report.
    pub fn text(&self) -> String {
        let mut text =
            format!("{}\n{}\n{}\n", self.command, self.machine.text(), self.machine.versions.join("; "));
        if self.machine.load_before > 0.5 {
            let load = self.machine.load_before;
            text.push_str(&format!(
                "The machine was busy with other work (load {load:.1}): these figures say little.\n"
            ));
        }
        text.push_str(tables::LEGEND);
        text.push_str(&tables::all(self));
        text.push_str(&floors::summary(self));
        if self.quick {
            text.push_str("\nQuick: small sizes and few rounds. A first look, not a result.\n");
        }
        text
    }

    /// The measurements of a workload on a disk by a file system, with their rounds.
    pub fn of(&self, workload: &str, disk: Kind, system: System) -> Vec<(u64, &Measured)> {
        self.cells
            .iter()
            .filter(|cell| {
                cell.key.workload == workload && cell.key.disk == disk && cell.key.system == system
            })
            .filter_map(|cell| Some((cell.key.round, cell.measured.as_ref()?)))
            .collect()
    }

    /// Rates of one file system by those of another in the same round.
    pub fn ratio(&self, workload: &str, disk: Kind, system: System, to: System) -> Option<Spread> {
        let others = self.of(workload, disk, to);
        let ratios = self.of(workload, disk, system).into_iter().filter_map(|(round, one)| {
            let (_, other) = others.iter().find(|(r, _)| *r == round)?;
            Some(one.rate() / other.rate())
        });
        Spread::of(ratios.collect())
    }
}

/// A line while it goes on.
pub fn progress(cell: &Cell) -> String {
    let key = &cell.key;
    let what = format!("{:8} {:20} {:8} round {}", key.disk.name(), key.workload, key.system, key.round + 1);
    match (&cell.measured, &cell.error) {
        (Some(measured), _) => format!(
            "{what}: {} in {:.2} s (whole cell {:.1} s)",
            rate(measured.rate(), measured.unit),
            measured.seconds,
            cell.whole_seconds
        ),
        (None, error) => format!("{what}: {}", error.as_deref().unwrap_or("nothing")),
    }
}

/// A rate as people read it.
pub fn rate(rate: f64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => format!("{} MB/s", figure(rate / 1e6)),
        Unit::Operations => format!("{}/s", figure(rate)),
    }
}

/// Three digits that count.
pub fn figure(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let (whole, rest) =
        text.split_once('.').map_or((text.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let mut grouped = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 && !whole.starts_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    rest.map_or(grouped.clone(), |rest| format!("{grouped}.{rest}"))
}

/// A time as people read it.
pub fn time(seconds: f64) -> String {
    if seconds >= 1.0 {
        format!("{} s", figure(seconds))
    } else if seconds >= 1e-3 {
        format!("{} ms", figure(seconds * 1e3))
    } else {
        format!("{} us", figure(seconds * 1e6))
    }
}

/// Bytes as people read them.
pub fn bytes(bytes: f64) -> String {
    if bytes >= 1e9 { format!("{} GB", figure(bytes / 1e9)) } else { format!("{} MB", figure(bytes / 1e6)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let got: Vec<String> =
            [0.0, 0.12345, 1.5, 12.345, 99.96, 123.4, 28_431.0, 1_234_567.0].map(figure).into();
        assert_eq!(got, ["0.000", "0.123", "1.50", "12.3", "100", "123", "28,431", "1,234,567"]);
        assert_eq!([2.5, 0.0025, 0.000_002_5].map(time), ["2.50 s", "2.50 ms", "2.50 us"]);
    }
}
