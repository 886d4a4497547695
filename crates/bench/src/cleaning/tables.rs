//! The figures as tables.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::{Cell, Cost, Workload, find, theory};

fn empty(head: Vec<String>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(head);
    table
}

fn right(mut table: Table) -> Table {
    table.column_iter_mut().skip(1).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    table
}

/// What reaches the device for a byte written, copies in parentheses.
pub fn costs(cells: &[Cell], workloads: &[Workload], live: &[u64], policies: &[&str]) -> Table {
    let mut head = vec!["workload".to_owned(), "live %".to_owned()];
    head.extend(policies.iter().map(|p| (*p).to_owned()));
    head.extend(["without cleaning", "in theory", "oldest, in theory"].map(str::to_owned));
    let mut table = empty(head);
    for workload in workloads {
        for live in live {
            let mut row = vec![workload.name().to_owned(), live.to_string()];
            row.extend(policies.iter().map(|policy| {
                find(cells, *workload, *live, policy)
                    .map_or("no space".to_owned(), |c| format!("{:.2} ({:.2})", c.all, c.copied))
            }));
            let any = ["cost-benefit"].iter().chain(policies);
            let own = any.clone().find_map(|policy| find(cells, *workload, *live, policy));
            row.push(own.map_or(String::new(), |c| format!("{:.2}", c.own)));
            let even = *workload == Workload::Uniform;
            let told = |cost: Option<&Cost>, theory: fn(&Cost) -> f64| {
                cost.filter(|_| even).map_or(String::new(), |c| format!("{:.2}", theory(c)))
            };
            row.push(told(own, theory::of_logs));
            row.push(told(find(cells, *workload, *live, "oldest"), theory::of_oldest_first));
            table.add_row(row);
        }
    }
    right(table)
}

/// How often the least and the most written segment was written for once on average, and how much that varies.
pub fn wear(cells: &[Cell], workloads: &[Workload], live: &[u64], policies: &[&str]) -> Table {
    let mut head = vec!["wear".to_owned(), "live %".to_owned()];
    head.extend(policies.iter().map(|p| (*p).to_owned()));
    let mut table = empty(head);
    for workload in workloads {
        for live in live {
            let mut row = vec![workload.name().to_owned(), live.to_string()];
            row.extend(policies.iter().map(|policy| {
                find(cells, *workload, *live, policy).map_or(String::new(), |c| {
                    let (w, mean) = (&c.wear, c.wear.mean.max(f64::MIN_POSITIVE));
                    format!("{:.2} to {:.2}, {:.2}", w.least / mean, w.most / mean, w.variation)
                })
            }));
            table.add_row(row);
        }
    }
    right(table)
}
