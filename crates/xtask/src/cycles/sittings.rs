//! A volume that is crowded in several sittings: what its writers know goes to a directory with it.
//!
//! ```text
//! DIR/host/v.img      the volume at work
//! DIR/mnt             where it is mounted: always here, since what files hold depends on where they are
//! DIR/last/v.img      the volume as the last round left it
//! DIR/last/said.json  what is known of that
//! ```
//!
//! Both are written beside the old ones, which then go, so that an interrupted sitting costs the round it was in.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::crowd::{End, Tally};
use super::writer::Writer;
use crate::mounted::{run, wait_free};
use crate::scratch::detach_below;

/// What the last round left.
#[derive(Deserialize, Serialize)]
pub(super) struct Said {
    /// Which volume it is.
    pub seed: u64,
    /// How the round ended.
    pub end: End,
    /// Rounds so far.
    pub rounds: u64,
    /// Sittings before this one.
    pub sittings: u64,
    pub writers: Vec<Writer>,
    pub tally: Tally,
}

/// The directory.
pub(super) struct Sittings {
    dir: PathBuf,
}

impl Sittings {
    /// In a directory, which is made if need be; its path becomes an absolute one.
    pub fn in_dir(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self { dir: dir.canonicalize()? })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    fn last(&self) -> Option<PathBuf> {
        // The old one may be gone already, when the new one is whole.
        ["last", "next"].map(|name| self.dir.join(name)).into_iter().find(|dir| dir.exists())
    }

    /// What an earlier sitting left, with its volume put at `image`.
    ///
    /// A daemon that an interrupted sitting left behind ends first.
    ///
    /// # Errors
    /// It was of another volume, or of other writers; the daemon does not end.
    pub fn load(&self, image: &Path, seed: u64, writers: u64) -> Result<Option<Said>> {
        let Some(last) = self.last() else { return Ok(None) };
        let text = fs::read(last.join("said.json"))?;
        let said: Said = serde_json::from_slice(&text).with_context(|| format!("in {}", last.display()))?;
        if said.seed != seed || said.writers.len() as u64 != writers {
            bail!(
                "{} has volume {} with {} writers; go on with these, or name another directory",
                self.dir.display(),
                said.seed,
                said.writers.len()
            );
        }
        detach_below(&self.dir);
        if image.exists() {
            wait_free(image)?;
        }
        copy(&last.join("v.img"), image)?;
        Ok(Some(said))
    }

    /// Keeps what a round left.
    pub fn save(&self, image: &Path, said: &Said) -> Result<()> {
        let (next, last) = (self.dir.join("next"), self.dir.join("last"));
        if last.exists() && next.exists() {
            fs::remove_dir_all(&next)?;
        }
        // Whole before it has its name.
        let draft = self.dir.join("draft");
        if draft.exists() {
            fs::remove_dir_all(&draft)?;
        }
        fs::create_dir(&draft)?;
        copy(image, &draft.join("v.img"))?;
        fs::write(draft.join("said.json"), serde_json::to_vec(said)?)?;
        if next.exists() {
            fs::rename(&next, &last)?;
        }
        fs::rename(&draft, &next)?;
        if last.exists() {
            fs::remove_dir_all(&last)?;
        }
        fs::rename(&next, &last)?;
        Ok(())
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").arg("--sparse=always").arg(from).arg(to)).map(|_| ())
}
