//! The figures as a table and a plot.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::{Cell, Results};
use crate::load::Load;
use crate::panels::{Axis, Panel, Plot};
use crate::report::figure;
use crate::report::statistics::Spread;
use silt_cleaner::Policy;

/// As fast as on a fresh volume is the top; noise goes above.
const TENTHS: i32 = 12;

impl Results {
    fn loads(&self) -> Vec<Load> {
        Load::ALL.into_iter().filter(|load| self.cells.iter().any(|c| c.load == *load)).collect()
    }

    fn lives(&self) -> Vec<u64> {
        let mut lives: Vec<u64> = self.cells.iter().map(|c| c.live).collect();
        lives.sort_unstable();
        lives.dedup();
        lives
    }

    /// Names of those that were measured.
    fn policies(&self) -> Vec<&'static str> {
        let measured = |name: &&str| self.cells.iter().any(|c| c.policy.as_deref() == Some(name));
        Policy::ALL.iter().map(|p| p.name()).filter(measured).collect()
    }

    fn of(&self, load: Load, live: u64, policy: Option<&str>) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(move |c| c.load == load && c.live == live && c.policy.as_deref() == policy)
    }

    fn spread(&self, load: Load, live: u64, policy: Option<&str>, f: fn(&Cell) -> f64) -> Option<Spread> {
        Spread::of(self.of(load, live, policy).map(f).collect())
    }

    /// Rates by that of a fresh volume, of each round.
    fn ratio(&self, load: Load, live: u64, policy: &str) -> Option<Spread> {
        let ratio = |c: &Cell| {
            let fresh = self.of(load, live, None).find(|f| f.round == c.round)?;
            Some(c.rate / fresh.rate)
        };
        Spread::of(self.of(load, live, Some(policy)).filter_map(ratio).collect())
    }
}

/// A row a load and share of live data.
fn table(r: &Results) -> Table {
    let policies = r.policies();
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    let mut head = vec!["load".to_owned(), "live".to_owned(), "fresh".to_owned()];
    head.extend(policies.iter().map(|p| (*p).to_owned()));
    table.set_header(head);
    for load in r.loads() {
        for live in r.lives() {
            let shown = |policy, f: fn(&Cell) -> f64, digits| {
                r.spread(load, live, policy, f).map_or(String::new(), |s| format!("{:.digits$}", s.median))
            };
            let rate = shown(None, |c| c.rate / f64::from(1 << 20), 0);
            let fresh = format!("{rate} MiB/s; {}", shown(None, |c| c.cost, 2));
            let mut row = vec![load.name().to_owned(), format!("{live} %"), fresh];
            row.extend(policies.iter().map(|policy| {
                let ratio = r.ratio(load, live, policy).map_or(String::new(), |s| s.text(figure));
                let cost = shown(Some(policy), |c| c.cost, 2);
                format!("{ratio}; {cost} ({})", shown(Some(policy), |c| c.copied, 2))
            }));
            table.add_row(row);
        }
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

/// The whole report.
pub fn text(r: &Results) -> String {
    let busy = if r.machine.load_before > 0.5 { "The machine was busy with other work.\n" } else { "" };
    format!(
        "{}\n{}\nThe run took {:.0} s.\n{busy}\nRate by that of a fresh volume; bytes written for a byte of programs, copies \
         in parentheses.\n\n{}",
        r.command,
        r.machine.text(),
        r.seconds,
        table(r)
    )
}

/// The rates at a glance.
pub fn plot(r: &Results) -> Plot<'static> {
    let policies = r.policies();
    let panel = |load: &Load| {
        let line = |policy: &&str| {
            r.lives().iter().filter_map(|live| Some((*live, r.ratio(*load, *live, policy)?.median))).collect()
        };
        Panel { name: load.name(), lines: policies.iter().map(line).collect(), marks: Vec::new(), notes: &[] }
    };
    let panels = r.loads().iter().map(panel).collect();
    let title = "Rate through a mount by that of a fresh volume, by live data in percent of what fits";
    Plot { title, names: policies, axis: Axis::Tenths(TENTHS), panels }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn rates_are_told_by_the_fresh_volume_of_their_round() {
        let cell = |round, policy: Option<&str>, rate| Cell {
            load: Load::Mail,
            live: 80,
            round,
            policy: policy.map(str::to_owned),
            rate,
            cost: 2.0,
            copied: 0.5,
            used: 0.3,
        };
        let cells = vec![
            cell(0, None, 100.0),
            cell(0, Some("greedy"), 50.0),
            cell(1, None, 10.0),
            cell(1, Some("greedy"), 8.0),
        ];
        let r = Results { command: String::new(), machine: Machine::default(), seconds: 1.0, cells };
        let s = r.ratio(Load::Mail, 80, "greedy").unwrap();
        assert_eq!((s.least, s.most), (0.5, 0.8));
        assert_eq!((r.policies(), r.loads(), r.lives()), (vec!["greedy"], vec![Load::Mail], vec![80]));
        assert!(text(&r).contains("0.650 (0.500 to 0.800); 2.00 (0.50)"), "{}", text(&r));
    }
}
