//! The figures at a glance: a panel a workload, a line a policy; upwards what reaches the device for a byte written.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Cell, Workload, find, theory};

const WIDTH: i32 = 330;
const HEIGHT: i32 = 300;
const HEAD: i32 = 60;
const LEFT: i32 = 46;
const RIGHT: i32 = 18;
const TOP: i32 = 34;
const BOTTOM: i32 = 40;
const COLUMNS: usize = 3;
/// The axis, whose steps are doublings, ends here; what is above is drawn at its end.
const DOUBLINGS: i32 = 6;

const COLOURS: [RGBColor; 4] =
    [RGBColor(200, 30, 40), RGBColor(30, 110, 190), RGBColor(20, 140, 90), RGBColor(130, 70, 170)];

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Painted<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

/// Writes the plot as SVG.
pub fn draw(cells: &[Cell], workloads: &[Workload], policies: &[&str], path: &Path) -> Result<()> {
    let rows = workloads.len().div_ceil(COLUMNS);
    let size = (WIDTH * i32::try_from(COLUMNS)?, HEAD + HEIGHT * i32::try_from(rows)?);
    let area = SVGBackend::new(path, (u32::try_from(size.0)?, u32::try_from(size.1)?)).into_drawing_area();
    paint(&area, cells, workloads, policies).map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn text(size: i32, horizontal: HPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(horizontal, VPos::Center))
}

fn paint<'a>(area: &Area<'a>, cells: &[Cell], workloads: &[Workload], policies: &[&str]) -> Painted<'a> {
    area.fill(&WHITE)?;
    let title = "Bytes on the device for a byte written, by live data in percent of the segments that are not kept clean";
    area.draw(&Text::new(title, (16, 20), text(15, HPos::Left)))?;
    for (n, (policy, colour)) in (0..).zip(policies.iter().zip(COLOURS)) {
        let at = (16 + 150 * n, 44);
        area.draw(&PathElement::new([at, (at.0 + 20, at.1)], colour.stroke_width(2)))?;
        area.draw(&Text::new((*policy).to_owned(), (at.0 + 26, at.1), text(13, HPos::Left)))?;
    }
    for (n, workload) in workloads.iter().enumerate() {
        let (column, row) = ((n % COLUMNS) as i32, (n / COLUMNS) as i32);
        panel(area, cells, *workload, policies, (WIDTH * column, HEAD + HEIGHT * row))?;
    }
    area.present()
}

fn panel<'a>(
    area: &Area<'a>,
    cells: &[Cell],
    workload: Workload,
    policies: &[&str],
    (left, top): (i32, i32),
) -> Painted<'a> {
    let mut lives: Vec<u64> = cells.iter().map(|c| c.live).collect();
    lives.sort_unstable();
    lives.dedup();
    let (first, last) = (lives.first().copied().unwrap_or(0), lives.last().copied().unwrap_or(100));
    let across = |live: u64| {
        let share = (live - first) as f64 / (last - first).max(1) as f64;
        left + LEFT + (share * f64::from(WIDTH - LEFT - RIGHT)).round() as i32
    };
    let up = |cost: f64| {
        let share = (cost.max(1.0).log2() / f64::from(DOUBLINGS)).min(1.0);
        top + HEIGHT - BOTTOM - (share * f64::from(HEIGHT - TOP - BOTTOM)).round() as i32
    };
    let most = 2f64.powi(DOUBLINGS);
    let thin = BLACK.mix(0.15).stroke_width(1);
    area.draw(&Text::new(workload.name(), (left + LEFT, top + 14), text(14, HPos::Left)))?;
    for live in &lives {
        let at = across(*live);
        area.draw(&PathElement::new([(at, up(1.0)), (at, up(most))], thin))?;
        area.draw(&Text::new(format!("{live} %"), (at, up(1.0) + 14), text(11, HPos::Center)))?;
    }
    for cost in (0..=DOUBLINGS).map(|n| 1u32 << n) {
        let at = up(f64::from(cost));
        area.draw(&PathElement::new([(across(first), at), (across(last), at)], thin))?;
        area.draw(&Text::new(cost.to_string(), (left + LEFT - 8, at), text(11, HPos::Right)))?;
    }
    for (policy, colour) in policies.iter().zip(COLOURS) {
        let places: Vec<(i32, i32)> = lives
            .iter()
            .filter_map(|live| Some((across(*live), up(find(cells, workload, *live, policy)?.all))))
            .collect();
        for place in &places {
            area.draw(&Circle::new(*place, 3, colour.filled()))?;
        }
        area.draw(&PathElement::new(places, colour.stroke_width(2)))?;
    }
    if workload == Workload::Uniform {
        for live in &lives {
            if let Some(cost) = find(cells, workload, *live, "cost-benefit") {
                let place = (across(*live), up(theory::of_logs(cost)));
                area.draw(&Cross::new(place, 5, BLACK.stroke_width(1)))?;
            }
            if let Some(cost) = find(cells, workload, *live, "oldest") {
                let place = (across(*live), up(theory::of_oldest_first(cost)));
                area.draw(&Circle::new(place, 6, BLACK.stroke_width(1)))?;
            }
        }
        for (n, words) in (0..).zip(["x: in theory", "o: oldest, in theory"]) {
            let at = (across(first) + 6, up(most) + 10 + 14 * n);
            area.draw(&Text::new(words, at, text(11, HPos::Left)))?;
        }
    }
    Ok(())
}
