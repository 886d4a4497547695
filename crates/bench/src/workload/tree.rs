//! A source tree: unpacked, copied, synchronised, removed.

use anyhow::Result;

use super::material::Material;
use super::{Family, Place, Work, Workload, allocated};
use crate::disk::Kind;
use crate::measure::Meter;

#[derive(Clone, Copy)]
enum What {
    Unpack,
    Copy,
    Rsync,
    RsyncAgain,
    Remove,
}

struct Tree(What);

fn unpack(place: &Place, to: &str) -> Result<()> {
    std::fs::create_dir(place.path(to))?;
    let archive = Material::Tree.archive(&place.scratch);
    place.run("tar", &["xf", &archive.to_string_lossy(), "-C", to])
}

fn rsync(place: &Place) -> Result<()> {
    let from = format!("{}/", Material::Tree.path(&place.scratch).display());
    place.run("rsync", &["-a", &from, "tree"])
}

impl Work for Tree {
    fn prepare(&self, place: &Place) -> Result<()> {
        match self.0 {
            What::Unpack | What::Rsync => return Ok(()),
            What::Copy | What::Remove => unpack(place, "tree")?,
            What::RsyncAgain => rsync(place)?,
        }
        place.sync()
    }

    fn run(&self, place: &Place, meter: &mut Meter) -> Result<()> {
        match self.0 {
            What::Unpack => Material::Tree.cache_archive(&place.scratch)?,
            What::Rsync => Material::Tree.cache(&place.scratch)?,
            What::RsyncAgain => Material::Tree.cache_attributes(&place.scratch)?,
            What::Copy | What::Remove => {}
        }
        meter.start()?;
        match self.0 {
            What::Unpack => unpack(place, "tree")?,
            What::Copy => place.run("cp", &["-a", "tree", "copy"])?,
            What::Rsync | What::RsyncAgain => rsync(place)?,
            What::Remove => place.run("rm", &["-rf", "tree"])?,
        }
        place.sync()?;
        meter.add(Material::Tree.files(&place.scratch)?);
        meter.stop()?;
        if matches!(self.0, What::Unpack) {
            meter.allocated(allocated(&place.dir)?);
        }
        Ok(())
    }
}

pub fn all() -> Vec<Workload> {
    let new = |name, about: &str, what| {
        let about =
            format!("{about} a source tree (linux-source-6.1; quick: 5,000 files of like sizes), and sync");
        Workload::new(name, Family::Tree, about, Tree(what)).operation("file").with(Material::Tree)
    };
    const BOTH: &[Kind] = &[Kind::Here, Kind::Spinning];
    vec![
        new("unpack", "unpack the archive of", What::Unpack).on(BOTH),
        new("cp", "after a mount, cp -a within the volume of", What::Copy).cold().on(BOTH),
        new("rsync", "rsync -a from elsewhere of", What::Rsync).on(BOTH),
        new("rsync-again", "after a mount, rsync -a once more, with nothing to do, of", What::RsyncAgain)
            .cold(),
        new("rm", "after a mount, rm -rf of", What::Remove).cold(),
    ]
}
