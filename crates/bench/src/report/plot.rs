//! The ratios at a glance: a row for every workload on every disk, a mark for every file system, with its range,
//! on a scale on which twice and half are equally far from 1.

use std::path::Path;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Results;
use super::statistics::Spread;
use crate::disk::Kind;
use crate::system::System;

const ROW: i32 = 22;
const HEAD: i32 = 70;
const FOOT: i32 = 50;
const LEFT: i32 = 240;
const WIDTH: i32 = 1100;
const RIGHT: i32 = 30;

fn colour(system: System) -> RGBColor {
    match system {
        System::Silt => RGBColor(200, 30, 40),
        System::SiltUring => RGBColor(240, 120, 130),
        System::SiltVerify => RGBColor(240, 170, 90),
        System::SiltRoot => RGBColor(150, 30, 60),
        System::Ext4 => RGBColor(90, 90, 90),
        System::Xfs => RGBColor(30, 110, 190),
        System::Btrfs => RGBColor(20, 140, 90),
        System::Ntfs3g => RGBColor(190, 130, 20),
        System::Ntfs3gPermissions => RGBColor(120, 80, 10),
        System::Fuse2fs => RGBColor(130, 70, 170),
        System::Memfs => RGBColor(150, 150, 150),
        System::MemfsWriteback => RGBColor(190, 190, 190),
    }
}

/// Where a ratio lies between 1/100 and 100.
fn x(ratio: f64) -> i32 {
    let share = (ratio.clamp(0.01, 100.0).log10() + 2.0) / 4.0;
    LEFT + (share * f64::from(WIDTH - LEFT - RIGHT)).round() as i32
}

type Row = (String, Vec<(System, Spread)>);

fn rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in Kind::value_variants() {
        for workload in crate::workload::all() {
            let spreads: Vec<_> = System::value_variants()
                .iter()
                .filter(|system| **system != System::Ext4)
                .filter_map(|s| Some((*s, results.ratio(&workload.name, *kind, *s, System::Ext4)?)))
                .collect();
            if !spreads.is_empty() {
                rows.push((format!("{} ({})", workload.name, kind.name()), spreads));
            }
        }
    }
    rows
}

/// Writes the plot as SVG.
pub fn draw(results: &Results, path: &Path) -> Result<()> {
    let rows = rows(results);
    let height = HEAD + FOOT + ROW * i32::try_from(rows.len())?;
    let size = (u32::try_from(WIDTH)?, u32::try_from(height)?);
    let area = SVGBackend::new(path, size).into_drawing_area();
    paint(&area, results, &rows, height).map_err(|error| anyhow!("{}: {error}", path.display()))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Painted<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

fn paint<'a>(area: &Area<'a>, results: &Results, rows: &[Row], height: i32) -> Painted<'a> {
    let font = |size: i32| ("sans-serif", size).into_font();
    let text = |size: i32, horizontal| font(size).color(&BLACK).pos(Pos::new(horizontal, VPos::Center));
    area.fill(&WHITE)?;
    let machine = &results.machine;
    let title = format!(
        "Rates by that of ext4, medians and ranges; rounds: {}; Linux {}, {} processors{}",
        results.rounds,
        machine.kernel,
        machine.processors,
        if results.quick { "; quick: a first look" } else { "" }
    );
    area.draw(&Text::new(title, (16, 20), text(16, HPos::Left)))?;
    let mut at = LEFT;
    let took_part = |system: &&System| {
        **system != System::Ext4 && results.cells.iter().any(|cell| cell.key.system == **system)
    };
    for system in System::value_variants().iter().filter(took_part) {
        area.draw(&Circle::new((at, 46), 5, colour(*system).filled()))?;
        area.draw(&Text::new(system.name(), (at + 10, 46), text(13, HPos::Left)))?;
        at += 110;
    }
    let bottom = height - FOOT;
    for ratio in [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0] {
        let strong = if (ratio - 1.0f64).abs() < 1e-9 {
            BLACK.stroke_width(2)
        } else {
            BLACK.mix(0.15).stroke_width(1)
        };
        area.draw(&PathElement::new([(x(ratio), HEAD), (x(ratio), bottom)], strong))?;
        area.draw(&Text::new(format!("{ratio}"), (x(ratio), bottom + 14), text(12, HPos::Center)))?;
    }
    area.draw(&Text::new("slower than ext4", (x(0.1), bottom + 34), text(13, HPos::Center)))?;
    area.draw(&Text::new("faster", (x(10.0), bottom + 34), text(13, HPos::Center)))?;
    for (number, (name, spreads)) in rows.iter().enumerate() {
        let y = HEAD + ROW * i32::try_from(number).unwrap_or(0) + ROW / 2;
        if number % 2 == 0 {
            let stripe = [(0, y - ROW / 2), (WIDTH, y + ROW / 2)];
            area.draw(&Rectangle::new(stripe, BLACK.mix(0.03).filled()))?;
        }
        area.draw(&Text::new(name.clone(), (LEFT - 12, y), text(13, HPos::Right)))?;
        // Silt lies on top.
        for (system, spread) in spreads.iter().rev() {
            let colour = colour(*system);
            let range = [(x(spread.least), y), (x(spread.most), y)];
            area.draw(&PathElement::new(range, colour.mix(0.6).stroke_width(2)))?;
            let radius = if *system == System::Silt { 6 } else { 4 };
            area.draw(&Circle::new((x(spread.median), y), radius, colour.filled()))?;
        }
    }
    area.present()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_is_even_on_both_sides_of_one() {
        assert!(((x(1.0) - x(0.1)) - (x(10.0) - x(1.0))).abs() <= 1);
        assert_eq!((x(0.000_1), x(1e9)), (LEFT, WIDTH - RIGHT));
    }
}
