//! A table for every workload on every disk.

use clap::ValueEnum;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::statistics::Spread;
use super::{Results, bytes, figure, rate, time};
use crate::disk::Kind;
use crate::measure::{Latency, Measured};
use crate::system::System;
use crate::workload::Workload;

/// What the columns say.
pub const LEGEND: &str = "
Figures are medians over the rounds, with the range behind them. x ext4: rate by that of ext4 in the same round.
p50, p99, max: of single operations; the max is the highest of all rounds. cpu: processor seconds of the whole machine
(others included), and of the daemon. memory: the daemon's peak. disk: what reached it while the clock ran, written and
read; writes counted by the kernel (on `here`) include empty ones that carry a flush. w/alloc: bytes written by bytes of
files, each rounded up to 4 KiB.
";

/// One table.
fn one(results: &Results, workload: &Workload, kind: Kind) -> Option<String> {
    let systems: Vec<System> = System::value_variants()
        .iter()
        .copied()
        .filter(|system| {
            results.cells.iter().any(|cell| {
                cell.key.workload == workload.name && cell.key.disk == kind && cell.key.system == *system
            })
        })
        .collect();
    if systems.is_empty() {
        return None;
    }
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header([
        "", "rate", "x ext4", "p50", "p99", "max", "cpu", "memory", "writes", "written", "flushes", "reads",
        "read", "discards", "w/alloc",
    ]);
    for system in systems {
        table.add_row(row(results, workload, kind, system));
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    let quick = if results.quick { " --quick" } else { "" };
    Some(format!(
        "\n{} on {}: {}\n  cargo xtask bench{quick} --only {} --disk {} --rounds {}\n{table}\n",
        workload.name,
        kind.name(),
        workload.about,
        workload.name,
        kind.name(),
        results.rounds
    ))
}

/// One after the other.
pub fn all(results: &Results) -> String {
    let mut text = String::new();
    for kind in Kind::value_variants() {
        for workload in crate::workload::all() {
            text.push_str(&one(results, &workload, *kind).unwrap_or_default());
        }
    }
    text
}

fn row(results: &Results, workload: &Workload, kind: Kind, system: System) -> Vec<String> {
    let runs: Vec<&Measured> = results.of(&workload.name, kind, system).into_iter().map(|(_, m)| m).collect();
    let mut row = vec![system.name().to_owned()];
    if runs.is_empty() {
        let error = results.cells.iter().find_map(|cell| {
            let key = &cell.key;
            let same = key.workload == workload.name && key.disk == kind && key.system == system;
            same.then_some(cell.error.as_deref()?)
        });
        let error: String = error.unwrap_or("nothing").chars().take(70).collect();
        row.push(format!("failed: {error}"));
        return row;
    }
    let spread =
        |f: &dyn Fn(&Measured) -> Option<f64>| Spread::of(runs.iter().filter_map(|m| f(m)).collect());
    let median = |f: &dyn Fn(&Measured) -> Option<f64>, show: &dyn Fn(f64) -> String| {
        spread(f).map_or(String::new(), |s| show(s.median))
    };
    let latency = |f: fn(&Latency) -> f64| median(&|m| m.latency.as_ref().map(f), &time);
    row.push(
        spread(&|m| Some(m.rate())).map_or(String::new(), |s| s.text(|value| rate(value, workload.unit))),
    );
    let ratio = results.ratio(&workload.name, kind, system, System::Ext4);
    row.push(ratio.map_or(String::new(), |s| s.text(figure)));
    row.push(latency(|l| l.p50));
    row.push(latency(|l| l.p99));
    row.push(spread(&|m| m.latency.as_ref().map(|l| l.max)).map_or(String::new(), |s| time(s.most)));
    let cpu = median(&|m| Some(m.cpu_machine), &|s| format!("{s:.2} s"));
    let daemon = median(&|m| m.cpu_daemon, &|s| format!(", {s:.2} s"));
    row.push(format!("{cpu}{daemon}"));
    row.push(median(&|m| m.daemon_memory.map(|b| b as f64), &bytes));
    if system.has_disk() {
        let count = |f: fn(&Measured) -> u64| median(&|m| Some(f(m) as f64), &|v| v.round().to_string());
        row.push(count(|m| m.disk.writes));
        row.push(median(&|m| Some(m.disk.write_bytes as f64), &bytes));
        row.push(count(|m| m.disk.flushes));
        row.push(count(|m| m.disk.reads));
        row.push(median(&|m| Some(m.disk.read_bytes as f64), &bytes));
        row.push(count(|m| m.disk.discards));
        let amplification =
            |m: &Measured| Some(m.disk.write_bytes as f64 / m.allocated.filter(|a| *a > 0)? as f64);
        row.push(median(&amplification, &figure));
    }
    row
}
