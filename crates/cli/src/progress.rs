//! Progress, on a terminal only.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use silt_verify::Watch;

/// A bar over `total` bytes; nothing is drawn where standard error is no terminal or `quiet`.
pub fn bytes(total: u64, what: &'static str, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(total).with_message(what);
    let template = "{msg} [{bar:40}] {bytes} of {total_bytes}, {eta} left";
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

/// A bar over a number of steps that is told later; nothing is drawn where standard error is no terminal or `quiet`.
pub fn steps(what: &'static str, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::no_length().with_message(what);
    match ProgressStyle::with_template("{msg} [{bar:40}] {pos} of {len}, {eta} left") {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

/// A bar for each stage of long work, with an estimate; nothing where standard error is no terminal or `quiet`.
pub struct Stages(ProgressBar);

impl Stages {
    /// Nothing is drawn before the first stage.
    pub fn new(quiet: bool) -> Self {
        let hidden = quiet || !std::io::stderr().is_terminal();
        Stages(if hidden { ProgressBar::hidden() } else { ProgressBar::no_length() })
    }

    /// Takes the bar away: what is said next has the line to itself.
    pub fn clear(&self) {
        self.0.finish_and_clear();
    }
}

impl Watch for Stages {
    fn stage(&self, what: &'static str, total: u64) {
        let template = match total {
            0 => "{msg} {spinner} {human_pos}",
            _ => "{msg} [{bar:40}] {percent}%, {eta} left",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.0.set_style(style.progress_chars("=> "));
        }
        // First: each of these draws.
        self.0.set_message(what);
        self.0.set_length(total);
        self.0.reset();
    }
    fn done(&self, units: u64) {
        self.0.inc(units);
    }
}

impl Drop for Stages {
    fn drop(&mut self) {
        self.clear();
    }
}
