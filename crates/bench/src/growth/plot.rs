//! The curves at a glance: a panel for each dimension, a line for each operation, both axes logarithmic. What is flat
//! does not grow; what rises as the dotted line does grows with the size.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::table::{at, axes};
use super::{Dimension, Growth};
use crate::report::time;

const PANELS: [Dimension; 4] = [Dimension::Files, Dimension::Size, Dimension::Volume, Dimension::Checkpoints];
const WIDTH: i32 = 1000;
const HEIGHT: i32 = 420;
const HEAD: i32 = 40;
const TOP: i32 = 44;
const BOTTOM: i32 = 50;
const LEFT: i32 = 70;
const RIGHT: i32 = 400;
/// Pixels between the names of two lines.
const LABEL: i32 = 17;

const COLOURS: [RGBColor; 12] = [
    RGBColor(200, 30, 40),
    RGBColor(30, 110, 190),
    RGBColor(20, 140, 90),
    RGBColor(190, 130, 20),
    RGBColor(130, 70, 170),
    RGBColor(90, 90, 90),
    RGBColor(220, 110, 160),
    RGBColor(0, 160, 170),
    RGBColor(120, 80, 40),
    RGBColor(110, 150, 20),
    RGBColor(60, 60, 140),
    RGBColor(230, 100, 40),
];

/// A logarithmic axis.
struct Scale {
    from: f64,
    to: f64,
    pixels: (i32, i32),
}

impl Scale {
    fn at(&self, value: f64) -> i32 {
        let share = (value / self.from).ln() / (self.to / self.from).ln();
        self.pixels.0 + (share.clamp(0.0, 1.0) * f64::from(self.pixels.1 - self.pixels.0)).round() as i32
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Painted<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

/// Writes the plot as SVG.
pub fn draw(growth: &Growth, path: &Path) -> Result<()> {
    let panels: Vec<Dimension> = PANELS.into_iter().filter(|d| axes(growth, *d).0.len() > 1).collect();
    let height = HEAD + HEIGHT * i32::try_from(panels.len())?;
    let area = SVGBackend::new(path, (u32::try_from(WIDTH)?, u32::try_from(height)?)).into_drawing_area();
    paint(&area, growth, &panels).map_err(|error| anyhow!("{}: {error}", path.display()))
}

fn paint<'a>(area: &Area<'a>, growth: &Growth, panels: &[Dimension]) -> Painted<'a> {
    area.fill(&WHITE)?;
    let machine = &growth.machine;
    let title = format!(
        "Time of one operation as things grow (dotted: in proportion to the size); Linux {}, {} processors{}",
        machine.kernel,
        machine.processors,
        if growth.quick { "; quick: a first look" } else { "" }
    );
    area.draw(&Text::new(title, (16, 20), text(16, HPos::Left)))?;
    for (number, dimension) in (0..).zip(panels) {
        panel(area, growth, *dimension, HEAD + HEIGHT * number)?;
    }
    area.present()
}

fn text(size: i32, horizontal: HPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(horizontal, VPos::Center))
}

fn panel<'a>(area: &Area<'a>, growth: &Growth, dimension: Dimension, top: i32) -> Painted<'a> {
    let (sizes, operations) = axes(growth, dimension);
    let (Some(first), Some(last)) = (sizes.first(), sizes.last()) else { return Ok(()) };
    let seconds = || growth.points.iter().filter(|p| p.dimension == dimension).map(|p| p.seconds);
    let decade = |value: f64, up: bool| {
        let exponent = value.max(1e-9).log10();
        10f64.powf(if up { exponent.ceil() } else { exponent.floor() })
    };
    let least = decade(seconds().fold(f64::MAX, f64::min), false);
    let most = decade(seconds().fold(0.0, f64::max), true).max(least * 10.0);
    let x = Scale { from: *first as f64, to: *last as f64, pixels: (LEFT, WIDTH - RIGHT) };
    let y = Scale { from: least, to: most, pixels: (top + HEIGHT - BOTTOM, top + TOP) };
    area.draw(&Text::new(dimension.title(), (LEFT, top + 22), text(15, HPos::Left)))?;
    for size in &sizes {
        let at = x.at(*size as f64);
        let line = BLACK.mix(0.15).stroke_width(1);
        area.draw(&PathElement::new([(at, y.pixels.0), (at, y.pixels.1)], line))?;
        area.draw(&Text::new(dimension.size(*size), (at, y.pixels.0 + 16), text(12, HPos::Center)))?;
    }
    let mut value = least;
    while value <= most * 1.01 {
        let at = y.at(value);
        area.draw(&PathElement::new([(x.pixels.0, at), (x.pixels.1, at)], BLACK.mix(0.15).stroke_width(1)))?;
        area.draw(&Text::new(label(value), (x.pixels.0 - 8, at), text(12, HPos::Right)))?;
        value *= 10.0;
    }
    proportional(area, &x, &y)?;
    lines(area, growth, dimension, &operations, &sizes, (&x, &y))
}

/// A power of ten of seconds.
fn label(value: f64) -> String {
    let text = time(value * 1.000_001);
    let (number, unit) = text.split_once(' ').unwrap_or((&text, ""));
    let number =
        if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    format!("{number} {unit}")
}

/// What grows with the size, from the lower left corner.
fn proportional<'a>(area: &Area<'a>, x: &Scale, y: &Scale) -> Painted<'a> {
    let factor = (x.to / x.from).min(y.to / y.from);
    let dots = (0..=60).map(|n| factor.powf(f64::from(n) / 60.0));
    for by in dots {
        let place = (x.at(x.from * by), y.at(y.from * by));
        area.draw(&Circle::new(place, 1, BLACK.mix(0.5).filled()))?;
    }
    Ok(())
}

fn lines<'a>(
    area: &Area<'a>,
    growth: &Growth,
    dimension: Dimension,
    operations: &[&str],
    sizes: &[u64],
    (x, y): (&Scale, &Scale),
) -> Painted<'a> {
    let mut ends = Vec::new();
    for (operation, colour) in operations.iter().zip(COLOURS.iter().cycle()) {
        let places: Vec<(i32, i32)> = sizes
            .iter()
            .filter_map(|size| Some((x.at(*size as f64), y.at(at(growth, dimension, operation, *size)?))))
            .collect();
        for place in &places {
            area.draw(&Circle::new(*place, 3, colour.filled()))?;
        }
        if let Some(end) = places.last() {
            ends.push((*end, *operation, *colour));
        }
        area.draw(&PathElement::new(places, colour.stroke_width(2)))?;
    }
    ends.sort_by_key(|(end, ..)| end.1);
    let wanted: Vec<i32> = ends.iter().map(|(end, ..)| end.1).collect();
    for ((end, operation, colour), at) in ends.iter().zip(spread(&wanted, y.pixels.0)) {
        let name = (x.pixels.1 + 26, at);
        area.draw(&PathElement::new([*end, (name.0 - 6, at)], colour.mix(0.5).stroke_width(1)))?;
        area.draw(&Text::new((*operation).to_owned(), name, text(12, HPos::Left).color(colour)))?;
    }
    Ok(())
}

/// Places near those wanted, which ascend, none above another and none below `floor`.
fn spread(wanted: &[i32], floor: i32) -> Vec<i32> {
    let mut places = wanted.to_vec();
    for n in 1..places.len() {
        places[n] = places[n].max(places[n - 1] + LABEL);
    }
    let mut limit = floor;
    for place in places.iter_mut().rev() {
        *place = (*place).min(limit);
        limit = *place - LABEL;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_cover_each_other() {
        assert_eq!(spread(&[10, 12, 90, 100], 100), [10, 27, 83, 100]);
        let tight = spread(&[100, 100, 100], 100);
        assert_eq!(tight, [100 - 2 * LABEL, 100 - LABEL, 100]);
    }

    #[test]
    fn both_axes_are_logarithmic() {
        let scale = Scale { from: 1.0, to: 100.0, pixels: (0, 200) };
        assert_eq!([scale.at(1.0), scale.at(10.0), scale.at(100.0), scale.at(1e9)], [0, 100, 200, 200]);
        assert_eq!([1e-7, 1e-6, 1e-4, 0.01, 1.0].map(label), ["0.1 us", "1 us", "100 us", "10 ms", "1 s"]);
    }
}
