//! `check IMAGE [--strict] [--all] [--cache=KIB]`: prints the findings, what was counted and the most memory it took;
//! exits with 1 if one is an error.

use std::process::ExitCode;

use silt_device::{Access, Device, OpenOptions, open};
use silt_verify::{Options, check};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flag = |name: &str| arguments.iter().any(|a| a == name);
    let Some(path) = arguments.iter().find(|a| !a.starts_with("--")) else {
        eprintln!("usage: check IMAGE [--strict] [--all] [--cache=KIB]");
        return Ok(ExitCode::from(2));
    };
    let mut options =
        Options { strict: flag("--strict"), all_checkpoints: flag("--all"), ..Options::default() };
    if let Some(kib) = arguments.iter().find_map(|a| a.strip_prefix("--cache=")) {
        options.cache_bytes = kib.parse::<usize>()? << 10;
    }
    let report = match path.strip_prefix("golden:") {
        #[cfg(feature = "test-support")]
        Some(name) => check(&silt_verify::golden::open(name), &options),
        _ => {
            let device: Box<dyn Device> = Box::new(open(path, Access::ReadOnly, &OpenOptions::default())?);
            check(&device, &options)
        }
    };
    for finding in &report.findings {
        println!("{finding}");
    }
    println!("{:#?}", report.stats);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("{}", status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or("VmHWM: not known"));
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
