//! The figures as text.

use std::path::Path;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::Results;
use crate::report::statistics::Spread;
use crate::report::{figure, time};

fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(head.to_vec());
    table
}

fn finish(mut table: Table) -> String {
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    format!("\n{table}\n")
}

/// The names in the order in which they came.
fn names<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names = Vec::new();
    for name in all {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn latencies(r: &Results, place: &Path) -> Option<String> {
    let of = || r.latencies.iter().filter(|l| l.place == place);
    of().next()?;
    let mut table =
        table(&["", "p50 off", "on", "p99 off", "on", "max off", "on", "p99 on / off, of each round"]);
    for name in names(of().map(|l| l.operation.as_str())) {
        let spread = |on: bool, value: fn(&super::Latency) -> f64| {
            let values = of().filter(|l| l.operation == name && l.cleaner == on).map(value);
            Spread::of(values.collect())
        };
        let median = |on, value: fn(&super::Latency) -> f64| {
            spread(on, value).map_or(String::new(), |s| time(s.median))
        };
        let most = |on| spread(on, |l| l.max).map_or(String::new(), |s| time(s.most));
        let ratios = of().filter(|l| l.operation == name && l.cleaner).filter_map(|on| {
            let off = of().find(|l| l.operation == name && !l.cleaner && l.round == on.round)?;
            Some(on.p99 / off.p99)
        });
        let ratio = Spread::of(ratios.collect()).map_or(String::new(), |s| s.text(figure));
        table.add_row([
            name.to_owned(),
            median(false, |l| l.p50),
            median(true, |l| l.p50),
            median(false, |l| l.p99),
            median(true, |l| l.p99),
            most(false),
            most(true),
            ratio,
        ]);
    }
    Some(finish(table))
}

fn rates(r: &Results, place: &Path) -> Option<String> {
    let of = || r.rates.iter().filter(|l| l.place == place);
    of().next()?;
    let mut table = table(&["MiB/s", "fresh", "full", "full / fresh, of each round"]);
    for name in names(of().map(|l| l.load.as_str())) {
        let rate = |full: bool| {
            let values =
                of().filter(|l| l.load == name && l.full == full).map(|l| l.rate / f64::from(1 << 20));
            Spread::of(values.collect()).map_or(String::new(), |s| s.text(|v| format!("{v:.0}")))
        };
        let ratios = of().filter(|l| l.load == name && l.full).filter_map(|full| {
            let fresh = of().find(|l| l.load == name && !l.full && l.round == full.round)?;
            Some(full.rate / fresh.rate)
        });
        let ratio = Spread::of(ratios.collect()).map_or(String::new(), |s| s.text(figure));
        table.add_row([name.to_owned(), rate(false), rate(true), ratio]);
    }
    Some(finish(table))
}

fn work(r: &Results, place: &Path) -> Option<String> {
    let of = || r.work.iter().filter(|l| l.place == place);
    of().next()?;
    let mut table = table(&["the cleaner, a round", "segments emptied", "in use of them"]);
    for name in names(of().map(|l| l.during.as_str())) {
        let spread = |value: fn(&super::Work) -> f64| {
            Spread::of(of().filter(|w| w.during == name).map(value).collect())
        };
        let segments = spread(|w| w.segments as f64).map_or(String::new(), |s| s.text(|v| format!("{v:.0}")));
        let used = spread(|w| 100.0 * w.copied as f64 / (w.segments * w.segment_size).max(1) as f64);
        let used = used.map_or(String::new(), |s| s.text(|v| format!("{v:.0} %")));
        table.add_row([name.to_owned(), segments, used]);
    }
    Some(finish(table))
}

/// The whole report.
pub fn text(r: &Results) -> String {
    let mut text = format!("{}\n{}\nThe run took {:.0} s.\n", r.command, r.machine.text(), r.seconds);
    if r.machine.load_before > 0.5 {
        text.push_str("The machine was busy with other work.\n");
    }
    let mut places: Vec<&Path> = r.work.iter().map(|w| w.place.as_path()).collect();
    places.dedup();
    for place in places {
        text.push_str(&format!("\n{}\n", place.display()));
        for part in [latencies(r, place), rates(r, place), work(r, place)] {
            text.push_str(&part.unwrap_or_default());
        }
    }
    text
}
