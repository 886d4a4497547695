//! A repository that was made for the purpose: cloned, looked at, switched.

use anyhow::Result;

use super::material::{FIRST, Material};
use super::{Family, Place, Work, Workload};
use crate::disk::Kind;
use crate::measure::Meter;

#[derive(Clone, Copy)]
enum What {
    Clone,
    Status,
    Checkout,
}

struct Git(What);

fn clone(place: &Place) -> Result<()> {
    let from = format!("file://{}", Material::Repository.path(&place.scratch).display());
    place.run("git", &["clone", "-q", &from, "tree"])
}

impl Work for Git {
    fn prepare(&self, place: &Place) -> Result<()> {
        if matches!(self.0, What::Clone) {
            return Ok(());
        }
        clone(place)?;
        place.sync()
    }

    fn run(&self, place: &Place, meter: &mut Meter) -> Result<()> {
        if matches!(self.0, What::Clone) {
            Material::Repository.cache(&place.scratch)?;
        }
        meter.start()?;
        match self.0 {
            What::Clone => clone(place)?,
            What::Status => place.run("git", &["-C", "tree", "status", "--porcelain"])?,
            What::Checkout => place.run("git", &["-C", "tree", "checkout", "-q", FIRST])?,
        }
        if !matches!(self.0, What::Status) {
            place.sync()?;
        }
        meter.add(1);
        meter.stop()
    }
}

pub fn all() -> Vec<Workload> {
    let new = |name, about: &str, what| {
        let about = format!("{about}; 20,000 files (quick: 2,000), six commits that each change a fifth");
        Workload::new(name, Family::Tree, about, Git(what)).operation("run").with(Material::Repository)
    };
    vec![
        new("git-clone", "git clone of a packed repository, and sync", What::Clone)
            .on(&[Kind::Here, Kind::Spinning]),
        new("git-status", "git status after a mount", What::Status).cold(),
        new("git-checkout", "git checkout of the first commit after a mount, and sync", What::Checkout)
            .cold(),
    ]
}
