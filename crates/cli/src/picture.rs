//! The segments of a volume as a picture, for terminals, pipes and browsers.

use std::fmt::Write as _;
use std::io::IsTerminal;

use silt_control::{MapHead, MapSegment, SegmentState};

use crate::output::count;
use crate::size;

/// Cells of a picture without a terminal, in columns and rows at most.
const PLAIN: (usize, usize) = (64, 64);
/// Cells of an SVG in columns and rows at most, and the side of one.
const DRAWN: (usize, usize) = (64, 64);
const SIDE: usize = 14;

/// What a cell is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Live,
    Snapshots,
    Past,
    Dead,
    Free,
    Current,
    Bad,
}

/// In the order of the legend.
const CLASSES: [Class; 7] =
    [Class::Live, Class::Snapshots, Class::Past, Class::Dead, Class::Free, Class::Current, Class::Bad];
/// Ages are told apart in so many shades.
const SHADES: usize = 4;

impl Class {
    fn letter(self) -> char {
        match self {
            Class::Live => 'L',
            Class::Snapshots => 'S',
            Class::Past => 'P',
            Class::Dead => 'd',
            Class::Free => '.',
            Class::Current => 'W',
            Class::Bad => '!',
        }
    }

    fn words(self) -> &'static str {
        match self {
            Class::Live => "files as they are",
            Class::Snapshots => "only snapshots",
            Class::Past => "only moments that are kept",
            Class::Dead => "nobody",
            Class::Free => "free, reserve included",
            Class::Current => "being written",
            Class::Bad => "marked bad",
        }
    }

    /// Colours of the 256 of a terminal, from the newest to the oldest.
    fn ramp(self) -> [u8; SHADES] {
        match self {
            Class::Live => [46, 40, 34, 28],
            Class::Snapshots => [51, 45, 38, 31],
            Class::Past => [226, 220, 178, 136],
            Class::Dead => [203, 167, 131, 95],
            Class::Free => [238; SHADES],
            Class::Current => [231; SHADES],
            Class::Bad => [201; SHADES],
        }
    }

    fn colour(self) -> &'static str {
        match self {
            Class::Live => "#2a9d3f",
            Class::Snapshots => "#1f8fbf",
            Class::Past => "#d9a400",
            Class::Dead => "#b5483a",
            Class::Free => "#e4e4e4",
            Class::Current => "#222222",
            Class::Bad => "#c000c0",
        }
    }
}

/// How lines look.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    columns: usize,
    rows: usize,
    colours: bool,
    terminal: bool,
}

impl Style {
    /// For what standard output is.
    pub fn of_stdout() -> Self {
        let terminal = std::io::stdout().is_terminal();
        let (columns, rows) = PLAIN;
        let plain = Style { columns, rows, colours: false, terminal };
        if !terminal {
            return plain;
        }
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok().filter(|s| s.ws_col > 0);
        let (columns, rows) = size.map_or((80, 24), |s| (usize::from(s.ws_col), usize::from(s.ws_row)));
        let word = |name: &str| std::env::var(name).unwrap_or_default();
        let colours = word("NO_COLOR").is_empty() && !matches!(word("TERM").as_str(), "" | "dumb");
        // The legend takes lines, too.
        Style { columns: columns.clamp(16, 512), rows: rows.saturating_sub(12).max(4), colours, terminal }
    }

    pub fn is_terminal(&self) -> bool {
        self.terminal
    }
}

/// Some segments in a row; counts in blocks.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    first: u64,
    segments: u64,
    live: u64,
    snapshots: u64,
    past: u64,
    dead: u64,
    free: u64,
    current: bool,
    bad: bool,
    /// Of the segment written last.
    modified: u64,
}

impl Cell {
    fn parts(&self) -> [(Class, u64); 5] {
        [
            (Class::Live, self.live),
            (Class::Snapshots, self.snapshots),
            (Class::Past, self.past),
            (Class::Dead, self.dead),
            (Class::Free, self.free),
        ]
    }

    /// What most of it is.
    fn class(&self) -> Class {
        if self.current {
            return Class::Current;
        }
        if self.bad {
            return Class::Bad;
        }
        let mut most = (Class::Free, 0);
        for part in self.parts() {
            if part.1 > most.1 {
                most = part;
            }
        }
        most.0
    }
}

/// A picture of some volume.
pub struct Picture<'a> {
    head: &'a MapHead,
    segments: &'a [MapSegment],
    /// When the segments in use were written first and last.
    times: (u64, u64),
}

impl<'a> Picture<'a> {
    /// Of what was counted.
    pub fn new(head: &'a MapHead, segments: &'a [MapSegment]) -> Self {
        let times = segments.iter().map(|s| s.modified).filter(|t| *t > 0);
        let times = (times.clone().min().unwrap_or(0), times.max().unwrap_or(0));
        Picture { head, segments, times }
    }

    /// Segments of a cell, where so many cells fit.
    fn each(&self, (columns, rows): (usize, usize)) -> usize {
        self.segments.len().div_ceil((columns * rows).max(1)).max(1)
    }

    fn cells(&self, each: usize) -> Vec<Cell> {
        self.segments.chunks(each.max(1)).map(|chunk| self.cell(chunk)).collect()
    }

    fn cell(&self, chunk: &[MapSegment]) -> Cell {
        let mut cell = Cell { first: chunk.first().map_or(0, |s| s.number), ..Cell::default() };
        for s in chunk {
            let [live, snapshots, past, dead] = [s.live, s.snapshots, s.past, s.dead].map(u64::from);
            cell.segments += 1;
            cell.live += live;
            cell.snapshots += snapshots;
            cell.past += past;
            cell.dead += dead;
            let used = live + snapshots + past + dead;
            cell.free += u64::from(self.head.blocks_per_segment).saturating_sub(used);
            cell.current |= s.state == SegmentState::Current;
            cell.bad |= s.state == SegmentState::Bad;
            cell.modified = cell.modified.max(s.modified);
        }
        cell
    }

    /// 0 for the newest segment, and one less than [`SHADES`] for the oldest.
    fn shade(&self, cell: &Cell) -> usize {
        let (first, last) = self.times;
        let span = last.saturating_sub(first);
        if span == 0 || cell.modified == 0 {
            return 0;
        }
        let age = u128::from(last.saturating_sub(cell.modified)) * SHADES as u128 / (u128::from(span) + 1);
        usize::try_from(age).unwrap_or(0).min(SHADES - 1)
    }

    fn bytes(&self, blocks: u64) -> String {
        size::show(blocks.saturating_mul(u64::from(self.head.block_size)))
    }

    /// What each class comes to: words, and bytes where blocks are counted.
    fn legend(&self) -> Vec<(Class, String)> {
        let sum = self.cell(self.segments);
        let number = |state| self.segments.iter().filter(|s| s.state == state).count() as u64;
        let segments = |state| count(number(state), "segment");
        CLASSES
            .into_iter()
            .filter_map(|class| {
                let text = match class {
                    Class::Current => segments(SegmentState::Current),
                    Class::Bad if number(SegmentState::Bad) == 0 => return None,
                    Class::Bad => segments(SegmentState::Bad),
                    _ => {
                        let blocks = sum.parts().into_iter().find(|p| p.0 == class).map_or(0, |p| p.1);
                        self.bytes(blocks)
                    }
                };
                let by = if matches!(class, Class::Live | Class::Snapshots | Class::Past | Class::Dead) {
                    format!("needed by {}", class.words())
                } else {
                    class.words().to_owned()
                };
                Some((class, format!("{by}: {text}")))
            })
            .collect()
    }

    fn title(&self, each: usize) -> String {
        let segment = self.bytes(u64::from(self.head.blocks_per_segment));
        let cells = if each == 1 { "one a cell".to_owned() } else { format!("{each} a cell") };
        format!("{} of {segment}, {cells}", count(self.segments.len() as u64, "segment"))
    }

    /// Rows of cells, and a legend.
    pub fn lines(&self, style: &Style) -> Vec<String> {
        let each = self.each((style.columns, style.rows));
        let mut lines = vec![self.title(each)];
        for row in self.cells(each).chunks(style.columns) {
            let mut line = String::new();
            let mut before = None;
            for cell in row {
                let class = cell.class();
                if !style.colours {
                    line.push(class.letter());
                    continue;
                }
                let colour = class.ramp().get(self.shade(cell)).copied().unwrap_or(7);
                if before != Some(colour) {
                    let _ = write!(line, "\x1b[38;5;{colour}m");
                    before = Some(colour);
                }
                line.push(if class == Class::Free { '·' } else { '█' });
            }
            if style.colours {
                line.push_str("\x1b[0m");
            }
            lines.push(line);
        }
        for (class, text) in self.legend() {
            let sign = match style.colours {
                true if class == Class::Free => "·".to_owned(),
                true => {
                    class.ramp().iter().fold(String::new(), |s, c| s + &format!("\x1b[38;5;{c}m█"))
                        + "\x1b[0m"
                }
                false => class.letter().to_string(),
            };
            lines.push(format!("{sign} {text}"));
        }
        if style.colours {
            lines.push("brighter: newer".to_owned());
        }
        if self.head.uncounted > 0 {
            lines.push(format!(
                "{} of the DAT cannot be read: what they tell is not in it",
                count(self.head.uncounted, "block")
            ));
        }
        lines
    }

    /// A drawing of its own: each cell is divided as its blocks are, paler where it is older.
    pub fn svg(&self, name: &str) -> String {
        let each = self.each(DRAWN);
        let cells = self.cells(each);
        let columns = DRAWN.0.min(cells.len().max(1));
        let rows = cells.len().div_ceil(columns);
        let (width, top) = ((columns * (SIDE + 2) + 20).max(420), 40);
        let legend = self.legend();
        let height = top + rows * (SIDE + 2) + 20 + legend.len() * 20 + 30;
        let mut s = String::new();
        let _ = writeln!(
            s,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text x=\"10\" y=\"24\">{}: {}</text>",
            escaped(name),
            self.title(each)
        );
        for (n, cell) in cells.iter().enumerate() {
            let (x, y) = (10 + n % columns * (SIDE + 2), top + n / columns * (SIDE + 2));
            self.svg_cell(&mut s, cell, x, y);
        }
        let mut y = top + rows * (SIDE + 2) + 24;
        for (class, text) in legend {
            let _ = writeln!(
                s,
                "<rect x=\"10\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"28\" y=\"{y}\">{text}</text>",
                y - 11,
                class.colour()
            );
            y += 20;
        }
        let _ = writeln!(s, "<text x=\"10\" y=\"{y}\" fill=\"#666666\">paler: older</text>\n</svg>");
        s
    }

    fn svg_cell(&self, s: &mut String, cell: &Cell, x: usize, y: usize) {
        let last = cell.first + cell.segments.saturating_sub(1);
        let which =
            if cell.segments == 1 { format!("{}", cell.first) } else { format!("{} to {last}", cell.first) };
        let parts = cell.parts().map(|(class, blocks)| format!("{}: {}", class.words(), self.bytes(blocks)));
        let _ = write!(s, "<g><title>segment {which}\n{}</title>", parts.join("\n"));
        let total: u64 = cell.parts().iter().map(|p| p.1).sum();
        let opacity = 100 - 20 * self.shade(cell);
        let mut at = 0;
        let mut sum = 0u64;
        for (class, blocks) in cell.parts() {
            sum += blocks;
            let end = (u128::from(sum) * SIDE as u128).checked_div(u128::from(total)).unwrap_or(0);
            let end = usize::try_from(end).unwrap_or(SIDE).min(SIDE);
            if end > at {
                let opacity = if class == Class::Free { 100 } else { opacity };
                let _ = write!(
                    s,
                    "<rect x=\"{}\" y=\"{y}\" width=\"{}\" height=\"{SIDE}\" fill=\"{}\" fill-opacity=\"{}.{:02}\"/>",
                    x + at,
                    end - at,
                    class.colour(),
                    opacity / 100,
                    opacity % 100
                );
                at = end;
            }
        }
        for (is, class) in [(cell.current, Class::Current), (cell.bad, Class::Bad)] {
            if is {
                let _ = write!(
                    s,
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{SIDE}\" height=\"{SIDE}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>",
                    class.colour()
                );
            }
        }
        s.push_str("</g>\n");
    }
}

fn escaped(text: &str) -> String {
    let text = crate::output::printable(text);
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn head(segments: u64) -> MapHead {
        MapHead { segments, block_size: 4096, blocks_per_segment: 100, now: 1000, uncounted: 0 }
    }

    fn segment(number: u64, counts: [u32; 4], modified: u64) -> MapSegment {
        let [live, snapshots, past, dead] = counts;
        let state = if modified == 0 { SegmentState::Free } else { SegmentState::Used };
        MapSegment { number, state, modified, live, snapshots, past, dead }
    }

    fn some() -> Vec<MapSegment> {
        let mut all = vec![
            segment(0, [90, 5, 5, 0], 1000),
            segment(1, [10, 50, 20, 20], 100),
            segment(2, [10, 20, 50, 20], 500),
            segment(3, [10, 20, 20, 50], 200),
            segment(4, [0; 4], 0),
            segment(5, [1, 0, 0, 0], 1000),
            segment(6, [99, 0, 0, 1], 1000),
        ];
        all[5].state = SegmentState::Current;
        all[6].state = SegmentState::Bad;
        all
    }

    fn style(columns: usize, rows: usize, colours: bool) -> Style {
        Style { columns, rows, colours, terminal: colours }
    }

    #[test]
    fn a_cell_is_what_most_of_it_is() {
        let (head, all) = (head(7), some());
        let lines = Picture::new(&head, &all).lines(&style(10, 10, false));
        assert_eq!(lines[0], "7 segments of 400 KiB, one a cell");
        assert_eq!(lines[1], "LSPd.W!");
        assert_eq!(lines[2], "L needed by files as they are: 880 KiB");
        assert_eq!(lines[6], format!(". free, reserve included: {}", size::show((100 + 99) * 4096)));
        assert_eq!(lines[7], "W being written: 1 segment");
        assert!(lines.iter().all(|l| !l.contains('\x1b')));
    }

    #[test]
    fn it_fits_whatever_the_size() {
        let head = head(1000);
        let all: Vec<_> =
            (0..1000).map(|n| segment(n, [u32::from(n < 500) * 100, 0, 0, 0], u64::from(n < 500))).collect();
        let lines = Picture::new(&head, &all).lines(&style(16, 4, false));
        assert_eq!(lines[0], "1000 segments of 400 KiB, 16 a cell");
        let rows: Vec<_> = lines[1..].iter().take_while(|l| !l.contains("needed")).collect();
        assert_eq!(rows.iter().map(|r| r.len()).sum::<usize>(), 63);
        assert!(rows.len() == 4 && rows.iter().all(|r| r.len() <= 16));
        assert!(rows[0].chars().all(|c| c == 'L') && rows[3].chars().all(|c| c == '.'));
    }

    #[test]
    fn what_is_older_is_darker() {
        let (head, all) = (head(7), some());
        let line = Picture::new(&head, &all).lines(&style(10, 10, true))[1].clone();
        assert!(line.starts_with("\x1b[38;5;46m█\x1b[38;5;31m█\x1b[38;5;178m█"), "{line:?}");
    }

    #[test]
    fn the_drawing_has_a_cell_for_each_and_nothing_of_names_in_it() {
        let (head, all) = (head(7), some());
        let svg = Picture::new(&head, &all).svg("a<b>&\u{7}.img");
        assert_eq!(svg.matches("<title>").count(), 7);
        assert!(svg.contains("a&lt;b&gt;&amp;?.img") && svg.ends_with("</svg>\n"));
        let none = Picture::new(&head, &[]).svg("x");
        assert_eq!(none.matches("<title>").count(), 0);
    }
}
