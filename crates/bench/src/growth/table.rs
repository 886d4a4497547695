//! The figures as text: a table for each dimension, the memory of the daemon.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::{Dimension, Growth};
use crate::report::{bytes, figure, time};

/// Sizes and operations of a dimension, as they came.
pub fn axes(growth: &Growth, dimension: Dimension) -> (Vec<u64>, Vec<&str>) {
    let (mut sizes, mut operations) = (Vec::new(), Vec::new());
    for point in growth.points.iter().filter(|point| point.dimension == dimension) {
        if !sizes.contains(&point.size) {
            sizes.push(point.size);
        }
        if !operations.contains(&point.operation.as_str()) {
            operations.push(point.operation.as_str());
        }
    }
    sizes.sort_unstable();
    (sizes, operations)
}

/// Seconds of an operation at a size.
pub fn at(growth: &Growth, dimension: Dimension, operation: &str, size: u64) -> Option<f64> {
    let wanted = |p: &&super::Point| p.dimension == dimension && p.operation == operation && p.size == size;
    growth.points.iter().find(wanted).map(|point| point.seconds)
}

fn one(growth: &Growth, dimension: Dimension) -> Option<String> {
    let (sizes, operations) = axes(growth, dimension);
    let (first, last) = (*sizes.first()?, *sizes.last()?);
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    let mut head = vec![dimension.title().to_owned()];
    head.extend(sizes.iter().map(|size| dimension.size(*size)));
    if sizes.len() > 1 {
        head.push("last by first".to_owned());
    }
    table.set_header(head);
    for operation in operations {
        let seconds = |size| at(growth, dimension, operation, size);
        let mut row = vec![operation.to_owned()];
        row.extend(sizes.iter().map(|size| seconds(*size).map_or(String::new(), time)));
        if sizes.len() > 1 {
            let ratio = seconds(last).zip(seconds(first)).map(|(last, first)| figure(last / first));
            row.push(ratio.unwrap_or_default());
        }
        table.add_row(row);
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    Some(format!("\n{table}\n"))
}

fn memory(growth: &Growth) -> Option<String> {
    growth.memory.first()?;
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["while", "most memory of the daemon"]);
    for memory in &growth.memory {
        table.add_row([memory.during.clone(), bytes(memory.peak as f64)]);
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    Some(format!("\n{table}\n"))
}

/// The whole report.
pub fn text(growth: &Growth) -> String {
    use clap::ValueEnum;
    let mut text = format!("{}\n{}\n", growth.command, growth.machine.text());
    text.push_str(&format!("The run took {:.0} s.\n", growth.seconds));
    if growth.machine.load_before > 0.5 {
        text.push_str("The machine was busy with other work: these figures say little.\n");
    }
    growth.notes.iter().for_each(|note| text.push_str(&format!("Note: {note}.\n")));
    for dimension in Dimension::value_variants() {
        text.push_str(&one(growth, *dimension).unwrap_or_default());
    }
    text.push_str(&memory(growth).unwrap_or_default());
    if growth.quick {
        text.push_str("\nQuick: small sizes. A first look, not a result.\n");
    }
    text
}
