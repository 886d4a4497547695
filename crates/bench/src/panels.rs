//! A plot of small panels side by side: a panel a workload, a line a policy, across how much is live.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const WIDTH: i32 = 330;
const HEIGHT: i32 = 300;
const HEAD: i32 = 60;
const LEFT: i32 = 46;
const RIGHT: i32 = 18;
const TOP: i32 = 34;
const BOTTOM: i32 = 40;
const COLUMNS: usize = 3;

const COLOURS: [RGBColor; 4] =
    [RGBColor(200, 30, 40), RGBColor(30, 110, 190), RGBColor(20, 140, 90), RGBColor(130, 70, 170)];

/// What goes upwards. What does not fit is drawn at the end.
#[derive(Clone, Copy)]
pub enum Axis {
    /// From 1 on, so many times twice as much.
    Doublings(i32),
    /// From 0 to so many tenths.
    Tenths(i32),
}

impl Axis {
    /// How far up a value is, of all of the axis.
    fn share(self, value: f64) -> f64 {
        match self {
            Axis::Doublings(n) => value.max(1.0).log2() / f64::from(n),
            Axis::Tenths(n) => value * 10.0 / f64::from(n),
        }
        .clamp(0.0, 1.0)
    }

    /// Values that are written beside it.
    fn ticks(self) -> Vec<f64> {
        match self {
            Axis::Doublings(n) => (0..=n).map(|n| 2f64.powi(n)).collect(),
            Axis::Tenths(n) => (0..=n / 2).map(|n| f64::from(n) / 5.0).collect(),
        }
    }
}

/// How a single figure is drawn.
#[derive(Clone, Copy)]
pub enum Mark {
    Cross,
    Ring,
}

/// One of them.
pub struct Panel {
    pub name: &'static str,
    /// For each of the names, by percent of live data.
    pub lines: Vec<Vec<(u64, f64)>>,
    pub marks: Vec<(u64, f64, Mark)>,
    /// What the marks are.
    pub notes: &'static [&'static str],
}

/// All of it.
pub struct Plot<'a> {
    pub title: &'a str,
    /// Of the lines; four at most.
    pub names: Vec<&'a str>,
    pub axis: Axis,
    pub panels: Vec<Panel>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Painted<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

impl Plot<'_> {
    /// Writes it as SVG.
    pub fn draw(&self, path: &Path) -> Result<()> {
        let rows = self.panels.len().div_ceil(COLUMNS);
        let size = (WIDTH * i32::try_from(COLUMNS)?, HEAD + HEIGHT * i32::try_from(rows)?);
        let area =
            SVGBackend::new(path, (u32::try_from(size.0)?, u32::try_from(size.1)?)).into_drawing_area();
        self.paint(&area).map_err(|error| anyhow!("{}: {error}", path.display()))
    }

    fn paint<'a>(&self, area: &Area<'a>) -> Painted<'a> {
        area.fill(&WHITE)?;
        area.draw(&Text::new(self.title.to_owned(), (16, 20), text(15, HPos::Left)))?;
        for (n, (name, colour)) in (0..).zip(self.names.iter().zip(COLOURS)) {
            let at = (16 + 150 * n, 44);
            area.draw(&PathElement::new([at, (at.0 + 20, at.1)], colour.stroke_width(2)))?;
            area.draw(&Text::new((*name).to_owned(), (at.0 + 26, at.1), text(13, HPos::Left)))?;
        }
        let mut lives: Vec<u64> =
            self.panels.iter().flat_map(|p| p.lines.iter().flatten()).map(|(live, _)| *live).collect();
        lives.sort_unstable();
        lives.dedup();
        for (n, panel) in self.panels.iter().enumerate() {
            let (column, row) = ((n % COLUMNS) as i32, (n / COLUMNS) as i32);
            panel.paint(area, self.axis, &lives, (WIDTH * column, HEAD + HEIGHT * row))?;
        }
        area.present()
    }
}

fn text(size: i32, horizontal: HPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(horizontal, VPos::Center))
}

impl Panel {
    fn paint<'a>(&self, area: &Area<'a>, axis: Axis, lives: &[u64], (left, top): (i32, i32)) -> Painted<'a> {
        let (first, last) = (lives.first().copied().unwrap_or(0), lives.last().copied().unwrap_or(100));
        let across = |live: u64| {
            let share = (live - first) as f64 / (last - first).max(1) as f64;
            left + LEFT + (share * f64::from(WIDTH - LEFT - RIGHT)).round() as i32
        };
        let (floor, height) = (top + HEIGHT - BOTTOM, f64::from(HEIGHT - TOP - BOTTOM));
        let up = |value: f64| floor - (axis.share(value) * height).round() as i32;
        let ceiling = up(f64::MAX);
        let thin = BLACK.mix(0.15).stroke_width(1);
        area.draw(&Text::new(self.name, (left + LEFT, top + 14), text(14, HPos::Left)))?;
        for live in lives {
            let at = across(*live);
            area.draw(&PathElement::new([(at, floor), (at, ceiling)], thin))?;
            area.draw(&Text::new(format!("{live} %"), (at, floor + 14), text(11, HPos::Center)))?;
        }
        for value in axis.ticks() {
            let at = up(value);
            area.draw(&PathElement::new([(across(first), at), (across(last), at)], thin))?;
            area.draw(&Text::new(value.to_string(), (left + LEFT - 8, at), text(11, HPos::Right)))?;
        }
        for (line, colour) in self.lines.iter().zip(COLOURS) {
            let places: Vec<(i32, i32)> =
                line.iter().map(|(live, value)| (across(*live), up(*value))).collect();
            for place in &places {
                area.draw(&Circle::new(*place, 3, colour.filled()))?;
            }
            area.draw(&PathElement::new(places, colour.stroke_width(2)))?;
        }
        for (live, value, mark) in &self.marks {
            let place = (across(*live), up(*value));
            match mark {
                Mark::Cross => area.draw(&Cross::new(place, 5, BLACK.stroke_width(1)))?,
                Mark::Ring => area.draw(&Circle::new(place, 6, BLACK.stroke_width(1)))?,
            }
        }
        for (n, words) in (0..).zip(self.notes) {
            let at = (across(first) + 6, ceiling + 10 + 14 * n);
            area.draw(&Text::new(*words, at, text(11, HPos::Left)))?;
        }
        Ok(())
    }
}
