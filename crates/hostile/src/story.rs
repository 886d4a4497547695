//! A failing image made simple, told, and kept as a test.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Base;
use crate::judge::{Finding, judge_by};
use crate::patch::Changes;

/// A kept case: `regressions/*.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Case {
    /// What was wrong, and where it was mended.
    pub about: String,
    pub base: String,
    pub changes: Changes,
}

/// Takes out every change without which the same promise is still broken.
pub fn minimise(base: &Base, changes: &Changes, finding: &Finding) -> Changes {
    let still = |c: &Changes| {
        judge_by(base, &c.apply(base), finding.path).findings.iter().any(|f| f.is_like(finding))
    };
    let mut best = changes.clone();
    let mut i = 0;
    while i < best.patches.len() && best.patches.len() > 1 {
        let mut fewer = best.clone();
        fewer.patches.remove(i);
        if still(&fewer) {
            best = fewer;
        } else {
            i += 1;
        }
    }
    best
}

/// Where cases are kept.
pub fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("regressions")
}

/// Keeps a case; returns where.
pub fn keep(to: &Path, name: &str, case: &Case) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(to)?;
    let path = to.join(format!("{name}.json"));
    std::fs::write(&path, serde_json::to_string_pretty(case)? + "\n")?;
    Ok(path)
}

/// All kept cases by name.
pub fn cases() -> anyhow::Result<Vec<(String, Case)>> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(directory())? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "json") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            out.push((name, serde_json::from_str(&std::fs::read_to_string(&path)?)?));
        }
    }
    out.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(out)
}
