//! A few crafted images in every test run, built with checks of arithmetic; `cargo xtask hostile` runs many.

use silt_hostile::campaign::{self, Campaign};
use silt_hostile::memory::Meter;
use silt_hostile::paths::PATHS;

#[global_allocator]
static METER: Meter = Meter;

/// Images to run; `SILT_HOSTILE_IMAGES` asks for more.
fn images() -> u64 {
    std::env::var("SILT_HOSTILE_IMAGES").ok().and_then(|n| n.parse().ok()).unwrap_or(600)
}

#[test]
fn no_image_breaks_a_promise() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let campaign = Campaign { images: images(), from: 0, threads, base: None, most_findings: 10 };
    let outcome = campaign::run(&campaign, |_| {});
    for f in &outcome.found {
        eprintln!("image {} of {}: {}\n{}", f.number, f.base, f.finding, f.changes);
    }
    assert!(outcome.found.is_empty(), "{} images broke a promise", outcome.failing);
    assert_eq!(outcome.images, campaign.images);
    assert!(
        outcome.mounted * 2 >= outcome.images,
        "only {} of {} were mounted",
        outcome.mounted,
        outcome.images
    );
    assert!(
        outcome.closed * 2 >= outcome.images,
        "only {} of {} were written",
        outcome.closed,
        outcome.images
    );
    let checks =
        PATHS.iter().zip(&outcome.paths).find(|(p, _)| p.name == "check").map_or(0, |(_, s)| s.images);
    assert!(checks * 4 > outcome.images, "only {checks} were checked");
    assert!(outcome.walked * 2 >= checks, "only {} of {checks} were walked", outcome.walked);
}
