//! The figures at a glance: upwards what reaches the device for a byte written.

use std::path::Path;

use anyhow::Result;

use super::{Cell, Workload, find, theory};
use crate::panels::{Axis, Mark, Panel, Plot};

/// The axis ends at 64.
const DOUBLINGS: i32 = 6;

/// Writes the plot as SVG.
pub fn draw(cells: &[Cell], workloads: &[Workload], policies: &[&str], path: &Path) -> Result<()> {
    let mut lives: Vec<u64> = cells.iter().map(|c| c.live).collect();
    lives.sort_unstable();
    lives.dedup();
    let panel = |workload: &Workload| {
        let cost = |live: u64, policy: &str| find(cells, *workload, live, policy);
        let line = |policy: &&str| {
            lives.iter().filter_map(|live| Some((*live, cost(*live, policy)?.all))).collect::<Vec<_>>()
        };
        let mut panel = Panel {
            name: workload.name(),
            lines: policies.iter().map(line).collect(),
            marks: Vec::new(),
            notes: &[],
        };
        if *workload == Workload::Uniform {
            for live in &lives {
                let logs = cost(*live, "cost-benefit").map(|c| (*live, theory::of_logs(c), Mark::Cross));
                let oldest = cost(*live, "oldest").map(|c| (*live, theory::of_oldest_first(c), Mark::Ring));
                panel.marks.extend(logs.into_iter().chain(oldest));
            }
            panel.notes = &["x: in theory", "o: oldest, in theory"];
        }
        panel
    };
    Plot {
        title: "Bytes on the device for a byte written, by live data in percent of the segments that are not kept clean",
        names: policies.to_vec(),
        axis: Axis::Doublings(DOUBLINGS),
        panels: workloads.iter().map(panel).collect(),
    }
    .draw(path)
}
