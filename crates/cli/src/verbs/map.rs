//! `silt map`: a picture of the log.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use silt_control::{Control, ControlError, MapHead, MapSegment, Request, Response, connect};
use silt_verify::{Unwatched, Watch as _};

use crate::failure::{Failure, Result};
use crate::interrupt::Interruptible;
use crate::output::Output;
use crate::picture::{Picture, Style};
use crate::{overwrite, target};

/// Draw the segments: what lies in them, and who needs it
///
/// One cell is a segment, or as many in a row as it takes for all of them to fit. It shows what most of it is: needed
/// by the files as they are (L), by snapshots (S), by moments that are kept (P), by nobody (d), or free (.); where the
/// log is being written (W), and what is marked bad (!). On a terminal these are colours, darker for what is older.
#[derive(clap::Args)]
pub struct Args {
    /// Write the picture to this file as SVG; "-" for standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["watch", "json"])]
    svg: Option<PathBuf>,
    /// Draw again every so many seconds, until Ctrl-C
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = seconds)]
    watch: Option<u64>,
    /// Print the counts of each segment as JSON
    #[arg(long)]
    json: bool,
    /// Image, device or mounted directory
    volume: PathBuf,
}

fn seconds(text: &str) -> std::result::Result<u64, String> {
    let range = 1..=3600;
    text.parse()
        .ok()
        .filter(|n| range.contains(n))
        .ok_or_else(|| "that is no number of seconds from 1 to 3600".to_owned())
}

pub fn run(args: &Args) -> Result<()> {
    if let Some(path) = &args.svg {
        let to_stdout = path.as_os_str() == "-";
        if !to_stdout {
            overwrite::permit(path, &args.volume)?;
        }
        let (head, segments) = ask(&mut *connect(&args.volume)?)?;
        let text = Picture::new(&head, &segments).svg(&args.volume.display().to_string());
        if to_stdout {
            let mut out = Output::new();
            text.lines().try_for_each(|line| out.line(line))?;
            return out.finish();
        }
        let written = overwrite::open(path, false).and_then(|mut file| file.write_all(text.as_bytes()));
        return written.map_err(|e| overwrite::not_made(path, &e).into());
    }
    let Some(seconds) = args.watch else {
        let (head, segments) = ask(&mut *connect(&args.volume)?)?;
        let mut out = Output::new();
        draw(args, &head, &segments, &mut out)?;
        return out.finish();
    };
    let stop = Interruptible::new(Unwatched);
    let style = Style::of_stdout();
    while !stop.stop() {
        // Asked anew each time: it may have been unmounted since.
        let (head, segments) = ask(&mut *connect(&args.volume)?)?;
        let mut out = Output::new();
        if style.is_terminal() && !args.json {
            out.raw("\x1b[H\x1b[2J")?;
        }
        draw(args, &head, &segments, &mut out)?;
        if !style.is_terminal() && !args.json {
            out.line("")?;
        }
        out.finish()?;
        for _ in 0..seconds * 10 {
            if stop.stop() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}

fn draw(args: &Args, head: &MapHead, segments: &[MapSegment], out: &mut Output) -> Result<()> {
    if args.json {
        let all = serde_json::json!({ "volume": head, "segments": segments });
        return out.json(&all);
    }
    let style = Style::of_stdout();
    for line in Picture::new(head, segments).lines(&style) {
        // Its colours are ours.
        out.raw(&line)?;
        out.raw("\n")?;
    }
    Ok(())
}

fn ask(control: &mut dyn Control) -> Result<(MapHead, Vec<MapSegment>)> {
    let (mut head, mut all) = (None, Vec::new());
    target::call(control, Request::Map, |part| {
        match part {
            Response::Map(h) => head = Some(h),
            Response::MapSegments(batch) => all.extend(batch),
            _ => {}
        }
        Ok(())
    })?;
    let none = || ControlError::new(silt_control::Kind::Other, "the answer has no picture in it");
    Ok((head.ok_or_else(|| Failure::from(none()))?, all))
}
