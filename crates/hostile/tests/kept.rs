//! Images that once broke a promise, and the corpus of the fuzz targets, without a fuzzer.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::path::{Path, PathBuf};

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

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
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
        let corpus = files(&fuzz().join("corpus").join(target));
        assert!(!corpus.is_empty(), "{target} has no corpus");
        for file in corpus.iter().chain(&files(&fuzz().join("regressions").join(target))) {
            let bytes = std::fs::read(file).unwrap();
            let result = std::panic::catch_unwind(|| run(target, &bytes));
            assert!(result.is_ok(), "{}", file.display());
        }
    }
}
