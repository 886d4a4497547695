//! The workloads: what is prepared without counting, and what is measured. One file a family.

mod build;
mod durable;
mod git;
mod mail;
pub mod material;
mod pressure;
mod small;
#[cfg(feature = "sqlite")]
mod sqlite;
mod stream;
mod tree;

use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::disk::Kind;
use crate::measure::{Meter, Unit};
use crate::process::run;
use crate::system::{System, sync};

pub use material::Material;
pub use pressure::write_file;

/// What workloads have in common, for floors and the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Many small files
    Small,
    /// Large files
    Stream,
    /// Writes made durable one by one
    Durable,
    /// A database
    Database,
    /// Whole trees
    Tree,
    /// Mail
    Mail,
    /// A build
    Build,
    /// Requests beside much writing
    Pressure,
}

/// How much is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scale {
    /// Enough for results.
    Whole,
    /// Enough for a first look.
    Quick,
    /// Enough for tests of this program.
    Tiny,
}

impl Scale {
    fn of(self, whole: u64, quick: u64) -> u64 {
        match self {
            Scale::Whole => whole,
            Scale::Quick => quick,
            Scale::Tiny => quick.div_ceil(64),
        }
    }
}

/// Where a workload runs.
pub struct Place {
    /// Its directory on the file system.
    pub dir: PathBuf,
    /// How much is done.
    pub scale: Scale,
    /// Where the materials are.
    pub scratch: PathBuf,
    /// Differs from round to round, not between file systems.
    pub seed: u64,
    /// The file system.
    pub system: System,
    /// Its device.
    pub device: Option<PathBuf>,
}

impl Place {
    /// A path below the workload's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A size: for a whole run, and for a quick one.
    pub fn size(&self, whole: u64, quick: u64) -> u64 {
        self.scale.of(whole, quick)
    }

    /// Makes everything durable.
    pub fn sync(&self) -> Result<()> {
        sync(self.system, &self.dir, self.device.as_deref())
    }

    /// Runs a program in the workload's directory.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<()> {
        run(self.command(program).args(arguments)).map(|_| ())
    }

    /// A program that will run in the workload's directory, with nobody's settings.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.dir).env("HOME", &self.scratch).env("GIT_CONFIG_NOSYSTEM", "1");
        command
    }
}

/// What a workload does.
pub trait Work {
    /// What must be there before; not measured.
    fn prepare(&self, _place: &Place) -> Result<()> {
        Ok(())
    }

    /// The measured part lies between the meter's start and stop.
    fn run(&self, place: &Place, meter: &mut Meter) -> Result<()>;
}

/// A workload and what is to be said of it.
pub struct Workload {
    /// As it is typed.
    pub name: String,
    /// Of which kind.
    pub family: Family,
    /// One line for the report.
    pub about: String,
    /// What its rate counts.
    pub unit: Unit,
    /// What one operation is.
    pub operation: &'static str,
    /// Between preparing and running the file system is unmounted and caches are dropped.
    pub cold: bool,
    /// The disks that tell something.
    pub disks: &'static [Kind],
    /// Makes no sense without a disk.
    pub durable: bool,
    /// What is made once for all cells.
    pub material: Option<Material>,
    /// The doing.
    pub work: Box<dyn Work>,
}

impl Workload {
    fn new(
        name: impl Into<String>,
        family: Family,
        about: impl Into<String>,
        work: impl Work + 'static,
    ) -> Self {
        Workload {
            name: name.into(),
            family,
            about: about.into(),
            unit: Unit::Operations,
            operation: "op",
            cold: false,
            disks: &[Kind::Here],
            durable: false,
            material: None,
            work: Box::new(work),
        }
    }

    fn operation(mut self, operation: &'static str) -> Self {
        self.operation = operation;
        self
    }

    fn bytes(mut self) -> Self {
        self.unit = Unit::Bytes;
        self
    }

    fn cold(mut self) -> Self {
        self.cold = true;
        self
    }

    fn on(mut self, disks: &'static [Kind]) -> Self {
        self.disks = disks;
        self
    }

    fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    fn with(mut self, material: Material) -> Self {
        self.material = Some(material);
        self
    }
}

/// All of them, in the order of the report.
pub fn all() -> Vec<Workload> {
    let families = [
        small::all,
        stream::all,
        durable::all,
        #[cfg(feature = "sqlite")]
        sqlite::all,
        tree::all,
        git::all,
        mail::all,
        build::all,
        pressure::all,
    ];
    families.iter().flat_map(|family| family()).collect()
}

/// Calls `f` for all that is below a directory; a directory comes before what is in it.
fn walk(dir: &Path, f: &mut dyn FnMut(&DirEntry) -> Result<()>) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        f(&entry)?;
        if entry.file_type()?.is_dir() {
            walk(&entry.path(), f)?;
        }
    }
    Ok(())
}

/// Bytes of all files below a directory, each rounded up to 4 KiB.
fn allocated(dir: &Path) -> Result<u64> {
    let mut sum = 0;
    walk(dir, &mut |entry| {
        if entry.file_type()?.is_file() {
            sum += entry.metadata()?.len().next_multiple_of(4096);
        }
        Ok(())
    })?;
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_different_and_can_be_typed() {
        let mut names: Vec<String> = all().into_iter().map(|w| w.name).collect();
        assert!(
            names
                .iter()
                .all(|n| n.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'))
        );
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    /// Every workload does on the file system below the tests what it does on others.
    #[test]
    fn every_workload_measures_something() {
        let scratch = tempfile::tempdir().unwrap();
        // One starts the program itself, which this is not.
        for workload in all().into_iter().filter(|workload| workload.name != "fsync-beside-writer") {
            if let Some(material) = workload.material {
                material.make(scratch.path(), Scale::Tiny).unwrap();
            }
            let dir = scratch.path().join(&workload.name);
            std::fs::create_dir(&dir).unwrap();
            let place = Place {
                dir: dir.clone(),
                scale: Scale::Tiny,
                scratch: scratch.path().to_owned(),
                seed: 1,
                system: System::Ext4,
                device: None,
            };
            let mut meter = Meter::new(crate::disk::counters::Source::Nobody, None, workload.unit).unwrap();
            workload.work.prepare(&place).unwrap();
            workload.work.run(&place, &mut meter).unwrap();
            let measured = meter.finish().unwrap();
            assert!(measured.amount > 0 && measured.seconds > 0.0, "{}: {measured:?}", workload.name);
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }
}
