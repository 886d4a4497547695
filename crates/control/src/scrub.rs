//! Scrubbing: what can be asked of a daemon, what it answers, and the file in which a pass is kept.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use silt_verify::scrub::State;

use crate::{ControlError, Kind, Result, paths};

/// Longest file that is read as a pass, in bytes.
const LONGEST: u64 = 256 << 20;
/// Longest answer, in bytes: findings beyond are counted.
const ANSWER: usize = 2 << 20;

/// What a daemon is to do about scrubbing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubAction {
    /// Begins or goes on; where one runs already, nothing changes.
    Start {
        /// Bytes a second; none: the daemon's own.
        rate: Option<u64>,
        /// Leave out what only plain checkpoints need.
        live_only: bool,
        /// Begin anew also where an earlier pass was not finished.
        restart: bool,
        /// The file that keeps the pass; an absolute path.
        #[serde(with = "paths")]
        state: PathBuf,
    },
    /// Rests until it is resumed.
    Pause,
    /// Goes on.
    Resume,
    /// Ends the pass and forgets it.
    Cancel,
    /// Says how it stands.
    Status,
}

/// How scrubbing stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    pub running: bool,
    pub paused: bool,
    /// Bytes a second at most.
    pub rate: u64,
    /// When the pass was begun or gone on with, in seconds since 1970.
    pub since: u64,
    /// Why it ended before its end, or what it could not do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// How far it is; none: there was none since the volume was mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass: Option<State>,
}

impl ScrubStatus {
    /// The same without the names of files.
    #[must_use]
    pub fn without_names(mut self) -> Self {
        for finding in self.pass.iter_mut().flat_map(|pass| &mut pass.findings) {
            finding.suspects.iter_mut().for_each(|owner| owner.path = None);
            for spot in &mut finding.spots {
                spot.entry_path = None;
                spot.owner.iter_mut().for_each(|owner| owner.path = None);
            }
        }
        self
    }

    /// The same, with no more findings than an answer carries.
    #[must_use]
    pub fn within_an_answer(mut self) -> Self {
        while let Some(pass) = &mut self.pass
            && serde_json::to_vec(pass).is_ok_and(|bytes| bytes.len() > ANSWER)
            && !pass.findings.is_empty()
        {
            let kept = pass.findings.len() / 2;
            pass.findings_left_out += (pass.findings.len() - kept) as u64;
            pass.findings.truncate(kept);
        }
        self
    }
}

/// Reads a pass; none where there is no file. Errors: unreadable, or not what [`save_pass`] writes.
pub fn load_pass(path: &Path) -> Result<Option<State>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(ControlError::io(path.display(), &e)),
    };
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).map_err(|e| ControlError::io(path.display(), &e))?;
    match serde_json::from_slice::<State>(&bytes) {
        Ok(state) if state.is_known() => Ok(Some(state)),
        _ => Err(ControlError::new(
            Kind::Invalid,
            format!("{} does not hold a scrub that this version could go on with", path.display()),
        )
        .hint("begin anew with --restart, or name another file with --state")),
    }
}

/// The file in which a pass is written before it takes the name of the one before.
pub fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

/// Keeps a pass: the file holds either the one before or this one, whole.
pub fn save_pass(path: &Path, state: &State) -> Result<()> {
    let fail = |e: io::Error| ControlError::io(path.display(), &e);
    if let Some(dir) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(fail)?;
    }
    let new = beside(path);
    let bytes = serde_json::to_vec(state).map_err(|e| fail(e.into()))?;
    // Its findings name files.
    let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new);
    let written = file.and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_data()));
    written.and_then(|()| fs::rename(&new, path)).map_err(fail)
}

/// Forgets a pass.
pub fn forget_pass(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(ControlError::io(path.display(), &e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_pass_is_kept_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b.json");
        assert_eq!(load_pass(&path).unwrap(), None);
        let mut state = State::new();
        state.uuid = "x".into();
        save_pass(&path, &state).unwrap();
        assert_eq!(load_pass(&path).unwrap(), Some(state));
        let mode = std::os::unix::fs::MetadataExt::mode(&path.metadata().unwrap());
        assert_eq!(mode & 0o077, 0, "findings name files");
        for bad in ["", "{}", "[1", r#"{"version":77}"#] {
            fs::write(&path, bad).unwrap();
            assert_eq!(load_pass(&path).unwrap_err().kind, Kind::Invalid, "{bad}");
        }
        forget_pass(&path).unwrap();
        forget_pass(&path).unwrap();
        assert_eq!(load_pass(&path).unwrap(), None);
    }

    #[test]
    fn an_answer_has_an_end() {
        use silt_verify::scrub::{Finding, Kind};
        let finding = Finding {
            kind: Kind::Header,
            segment: 1,
            log: 2,
            blocks: 3,
            spots: Vec::new(),
            spots_left_out: 0,
            suspects: vec![
                silt_verify::scrub::Owner {
                    inode: 11,
                    path: Some("x".repeat(1000).as_str().into()),
                    part: silt_verify::scrub::Part::Data,
                    first: 0,
                    blocks: 1,
                    since: 1,
                    until: None,
                };
                50
            ],
            suspects_left_out: 0,
            unknown: 0,
            records_lost: false,
            one_in: None,
        };
        let mut pass = State::new();
        pass.findings = vec![finding; 500];
        let status = ScrubStatus { pass: Some(pass), ..ScrubStatus::default() }.within_an_answer();
        assert!(serde_json::to_vec(&status).unwrap().len() < crate::wire::MAX_PART);
        let pass = status.pass.unwrap();
        assert_eq!(pass.findings.len() as u64 + pass.findings_left_out, 500);
        assert!(pass.findings.len() > 10);
    }
}
