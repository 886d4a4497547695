//! `silt lssu`: lists the use of segments.

use std::path::PathBuf;

use serde::Serialize;
use silt_control::{Request, Response, Segment, SegmentQuery};

use crate::failure::Result;
use crate::output::{JsonList, Output};
use crate::{number, target, times};

/// List the use of segments
#[derive(clap::Args)]
pub struct Args {
    /// Do not hide clean segments
    #[arg(short, long)]
    all: bool,
    /// Begin at this segment
    #[arg(short, long, value_name = "NUMBER", default_value_t = 0, value_parser = number::whole::<u64>)]
    index: u64,
    /// Count the blocks still in use
    #[arg(short, long)]
    latest_usage: bool,
    /// Look at so many segments
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = number::whole::<u64>)]
    lines: Option<u64>,
    /// With -l: checkpoints younger than this are kept; s, m, h, d, w, M or Y may follow the number
    #[arg(short, long, value_name = "PERIOD", value_parser = times::period)]
    protection_period: Option<u64>,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Image, device or mounted directory; none: the only volume mounted
    volume: Option<PathBuf>,
}

/// Default protection period, in seconds.
const PROTECTION: u64 = 3600;

/// A segment with its time written out.
#[derive(Serialize)]
struct Item {
    #[serde(flatten)]
    segment: Segment,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
}

pub fn run(args: &Args) -> Result<()> {
    let mut control = target::open(args.volume.as_deref())?;
    let live = args.latest_usage.then(|| args.protection_period.unwrap_or(PROTECTION));
    let request = Request::ListSegments(SegmentQuery {
        from: args.index,
        count: args.lines.filter(|n| *n > 0),
        all: args.all,
        live,
    });
    if args.json {
        let mut list = JsonList::new(Output::new());
        target::call(&mut *control, request, |part| {
            let Response::Segments(batch) = part else { return Ok(()) };
            batch.into_iter().try_for_each(|segment| {
                let time = times::iso(segment.modified).filter(|_| segment.modified != 0);
                list.item(&Item { segment, time })
            })
        })?;
        return list.finish();
    }
    let header = if live.is_some() {
        "           SEGNUM        DATE     TIME STAT     NBLOCKS       NLIVEBLOCKS"
    } else {
        "              SEGNUM        DATE     TIME STAT     NBLOCKS"
    };
    let mut out = Output::with_header(header.to_owned());
    target::call(&mut *control, request, |part| {
        let Response::Segments(batch) = part else { return Ok(()) };
        batch.iter().try_for_each(|s| out.line(row(s)))
    })?;
    out.finish()
}

fn row(s: &Segment) -> String {
    let flag = |on: bool, c: char| if on { c } else { '-' };
    let stat: String = [flag(s.active, 'a'), flag(s.dirty, 'd'), flag(s.error, 'e')].iter().collect();
    let time = times::stamp(s.modified, true);
    let Some(live) = s.live_blocks else {
        return format!("{:>20}  {time}  {stat}{:>12}", s.number, s.blocks);
    };
    let percent = s.live_percent.unwrap_or(0);
    let protected = flag(s.protected.unwrap_or(false), 'p');
    format!("{:>17}  {time} {stat}{protected}{:>12}{live:>11} ({percent:>3}%)", s.number, s.blocks)
}

#[cfg(test)]
mod tests {
    use crate::times::period;

    #[test]
    fn periods() {
        assert_eq!(period("90"), Ok(90));
        assert_eq!(period("10m"), Ok(600));
        assert_eq!(period("2w"), Ok(14 * 86400));
        for bad in ["", "m", "1x", "99999999999999999999", "9999999999999999999Y"] {
            assert!(period(bad).is_err(), "{bad}");
        }
    }
}
