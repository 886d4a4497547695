//! What is measured while a workload runs: time, latencies, processor time, memory, and what reached the disk.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::disk::counters::{Counters, Source};

/// What a workload's rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Operations of the kind that the workload says.
    Operations,
    /// Bytes of content.
    Bytes,
}

/// Seconds within which operations were done.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// How many were looked at.
    pub count: u64,
    /// Half were faster.
    pub p50: f64,
    /// One in a hundred was slower.
    pub p99: f64,
    /// One in a thousand was slower.
    pub p999: f64,
    /// The slowest.
    pub max: f64,
}

/// A run's result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// How long it took.
    pub seconds: f64,
    /// Operations or bytes done.
    pub amount: u64,
    /// Which of them.
    pub unit: Unit,
    /// Of single operations, where the workload makes them itself.
    pub latency: Option<Latency>,
    /// Seconds of all processors that were not idle (whoever used them).
    pub cpu_machine: f64,
    /// Seconds of processors that the daemon used.
    pub cpu_daemon: Option<f64>,
    /// Most bytes of memory that the daemon had resident.
    pub daemon_memory: Option<u64>,
    /// What reached the disk.
    pub disk: Counters,
    /// Whether `disk.writes` leaves out empty writes.
    pub exact: bool,
    /// Bytes of the files that were written, each rounded up to 4 KiB.
    pub allocated: Option<u64>,
}

impl Measured {
    /// Operations or bytes a second.
    pub fn rate(&self) -> f64 {
        self.amount as f64 / self.seconds.max(1e-9)
    }
}

struct Moment {
    at: Instant,
    machine: f64,
    daemon: Option<f64>,
    disk: Counters,
}

/// Takes the measurements of one run.
pub struct Meter {
    source: Source,
    daemon: Option<u32>,
    unit: Unit,
    histogram: Histogram<u64>,
    amount: u64,
    start: Option<Moment>,
    measured: Option<Measured>,
}

impl Meter {
    /// Nothing is measured yet.
    pub fn new(source: Source, daemon: Option<u32>, unit: Unit) -> Result<Self> {
        let histogram = Histogram::new_with_bounds(1, 3_600_000_000_000, 3)?;
        Ok(Meter { source, daemon, unit, histogram, amount: 0, start: None, measured: None })
    }

    fn moment(&self) -> Result<Moment> {
        let daemon = self.daemon.map(process_seconds).transpose()?;
        let (machine, disk) = (machine_seconds()?, self.source.read()?);
        Ok(Moment { at: Instant::now(), machine, daemon, disk })
    }

    /// The part that counts begins.
    pub fn start(&mut self) -> Result<()> {
        if let Some(pid) = self.daemon {
            // The peak begins anew.
            fs::write(format!("/proc/{pid}/clear_refs"), "5")?;
        }
        self.start = Some(self.moment()?);
        Ok(())
    }

    /// The part that counts is over.
    pub fn stop(&mut self) -> Result<()> {
        let at = Instant::now();
        let end = self.moment()?;
        let start = self.start.take().context("a workload stopped that had not started")?;
        self.measured = Some(Measured {
            seconds: (at - start.at).as_secs_f64(),
            amount: self.amount,
            unit: self.unit,
            latency: latency(&self.histogram),
            cpu_machine: end.machine - start.machine,
            cpu_daemon: end.daemon.zip(start.daemon).map(|(end, start)| end - start),
            daemon_memory: self.daemon.map(peak_memory).transpose()?,
            disk: end.disk - start.disk,
            exact: self.source.exact(),
            allocated: None,
        });
        Ok(())
    }

    /// So much was done.
    pub fn add(&mut self, amount: u64) {
        self.amount += amount;
    }

    /// So many bytes were allocated by what was done; told after the end, since finding out takes time.
    pub fn allocated(&mut self, bytes: u64) {
        if let Some(measured) = &mut self.measured {
            measured.allocated = Some(bytes);
        }
    }

    /// An operation took so long.
    pub fn latency(&mut self, time: Duration) {
        self.histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    /// Does an operation, counts it and takes its time.
    pub fn operation(&mut self, f: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        f()?;
        self.latency(start.elapsed());
        self.add(1);
        Ok(())
    }

    /// The latencies that threads took on their own.
    pub fn merge(&mut self, other: &Histogram<u64>) -> Result<()> {
        Ok(self.histogram.add(other)?)
    }

    /// An empty histogram like this one's.
    pub fn histogram(&self) -> Histogram<u64> {
        Histogram::new_from(&self.histogram)
    }

    /// The result.
    pub fn finish(self) -> Result<Measured> {
        self.measured.context("a workload measured nothing")
    }
}

fn latency(histogram: &Histogram<u64>) -> Option<Latency> {
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let at = |quantile| seconds(histogram.value_at_quantile(quantile));
    (!histogram.is_empty()).then(|| Latency {
        count: histogram.len(),
        p50: at(0.5),
        p99: at(0.99),
        p999: at(0.999),
        max: seconds(histogram.max()),
    })
}

fn ticks() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

/// Processor time of the machine but idle and waiting; see proc(5).
fn machine_seconds() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat")?;
    let fields: Vec<f64> = text
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    // user, nice, system, idle, iowait, irq, softirq
    Ok([0, 1, 2, 5, 6].iter().filter_map(|i| fields.get(*i)).sum::<f64>() / ticks())
}

/// Processor time of a process with all its threads; see proc(5).
fn process_seconds(pid: u32) -> Result<f64> {
    let path = PathBuf::from(format!("/proc/{pid}/stat"));
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let times = fields.split_whitespace().skip(11).take(2);
    Ok(times.filter_map(|word| word.parse::<f64>().ok()).sum::<f64>() / ticks())
}

/// `VmHWM` of a process in bytes.
pub fn peak_memory(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kib: u64 = line.split_whitespace().next().unwrap_or_default().parse()?;
    Ok(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_measures_what_lies_between_start_and_stop() {
        let mut meter = Meter::new(Source::Nobody, Some(std::process::id()), Unit::Operations).unwrap();
        meter.start().unwrap();
        for _ in 0..20 {
            let wait = || {
                std::thread::sleep(Duration::from_millis(2));
                Ok(())
            };
            meter.operation(wait).unwrap();
        }
        let before = Instant::now();
        let mut x = 1u64;
        while before.elapsed() < Duration::from_millis(100) {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        meter.stop().unwrap();
        let measured = meter.finish().unwrap();
        assert!(measured.seconds >= 0.14 && measured.amount == 20);
        let latency = measured.latency.unwrap();
        assert!(latency.count == 20 && latency.p50 >= 0.002 && latency.max >= latency.p99);
        assert!(measured.cpu_daemon.unwrap() >= 0.02, "{measured:?}");
        assert!(measured.daemon_memory.unwrap() > 1 << 20);
        assert!(measured.rate() < 20.0 / 0.14);
    }

    #[test]
    fn a_workload_that_forgets_to_measure_is_an_error() {
        assert!(Meter::new(Source::Nobody, None, Unit::Bytes).unwrap().finish().is_err());
    }
}
