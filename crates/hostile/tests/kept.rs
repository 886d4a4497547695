//! Images that once broke a promise, and the corpus of the fuzz targets, without a fuzzer.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::path::{Path, PathBuf};

use silt_hostile::corpus::{fuzz, inputs};
use silt_hostile::memory::Meter;
use silt_hostile::targets::{TARGETS, run};
use silt_hostile::{Base, judge, story};

#[global_allocator]
static METER: Meter = Meter;

#[test]
fn kept_images_break_nothing_any_more() {
    let cases = story::cases().unwrap();
    for (name, case) in &cases {
        let base = Base::get(&case.base);
        let verdict = judge(&base, &case.changes.apply(&base));
        assert!(verdict.findings.is_empty(), "{name}: {}\n{}", verdict.findings[0], case.changes);
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut out: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    out.sort();
    out
}

#[test]
fn the_corpus_of_every_target_passes() {
    for (target, _) in TARGETS {
        assert!(fuzz().join("fuzz_targets").join(format!("{target}.rs")).exists(), "{target} has no program");
        let corpus = inputs(target).unwrap();
        assert!(!corpus.is_empty(), "{target} has no corpus");
        let number = corpus.into_iter().enumerate().map(|(i, bytes)| (format!("input {i}"), bytes));
        let found = files(&fuzz().join("regressions").join(target));
        let found = found.into_iter().map(|f| (f.display().to_string(), std::fs::read(f).unwrap()));
        for (what, bytes) in number.chain(found) {
            let result = std::panic::catch_unwind(|| run(target, &bytes));
            assert!(result.is_ok(), "{target}: {what}");
        }
    }
}
