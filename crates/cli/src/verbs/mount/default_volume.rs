//! The volume that is used when none is named.

use std::path::{Path, PathBuf};

use silt_control::ControlError;

use crate::failure::{Failure, Result};
use crate::size;
use crate::verbs::mkfs;

/// Bytes of the default volume. The image is sparse: it takes what is written to it.
const SIZE: u64 = 16 << 30;

/// Where it lies: `/var/lib/silt/default.img` for root, else in the user's data directory.
fn path() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() && std::env::var_os("XDG_DATA_HOME").is_none() {
        return Ok(PathBuf::from("/var/lib/silt/default.img"));
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let data = absolute("XDG_DATA_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/share")));
    match data {
        Some(data) => Ok(data.join("silt/default.img")),
        None => Err(Failure::usage("name a volume: without HOME there is no place for the default one")),
    }
}

/// The default volume, made if there is none.
pub fn find_or_make(verbose: bool) -> Result<PathBuf> {
    let path = path()?;
    if path.exists() {
        return Ok(path);
    }
    if let Some(dir) = path.parent() {
        make_dir(dir)?;
    }
    // Under another name until it is whole: half a volume would be taken for a damaged one.
    let new = path.with_extension("new");
    let fail = |e: std::io::Error| ControlError::io(new.display(), &e);
    match std::fs::remove_file(&new) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(fail(e).into()),
        _ => {}
    }
    mkfs::default_image(&new, SIZE)?;
    std::fs::rename(&new, &path).map_err(fail)?;
    if verbose {
        crate::target::eprintln_quiet(&format!("note: made {}, {}", path.display(), size::show(SIZE)));
    }
    Ok(path)
}

fn make_dir(dir: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|e| ControlError::io(dir.display(), &e).hint("name a volume: silt mount VOLUME DIR").into())
}
