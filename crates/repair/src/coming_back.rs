//! Inodes that are put back or put together, and how that is told.

use std::collections::{BTreeMap, BTreeSet};

use silt_engine::mend::{Attributes, Mender};
use silt_format::Ino;
use silt_format::dir::file_type;

use crate::words::CHANGES_LOST;
use crate::{Result, dirs};

/// Tells the mender how these inodes are named in some directories, or in all; of which type they are by that.
pub(crate) fn tell_names(
    mender: &mut Mender,
    directories: Option<&BTreeSet<u64>>,
    inodes: &BTreeSet<u64>,
) -> BTreeMap<u64, u8> {
    let mut names = BTreeMap::new();
    if !inodes.is_empty() {
        let v = mender.volume();
        let all;
        let directories = match directories {
            Some(directories) => directories,
            None => {
                all = dirs::all(v);
                &all
            }
        };
        names = dirs::names_in(v, directories, inodes);
    }
    let kinds = names.iter().map(|(ino, (kind, _))| (*ino, *kind)).collect();
    mender.know_names(names.into_iter().map(|(ino, (_, name))| (ino, name)).collect());
    kinds
}

/// The same of some directories, besides what was told before.
pub(crate) fn tell_more_names(
    mender: &mut Mender,
    directories: &BTreeSet<u64>,
    inodes: &BTreeSet<u64>,
) -> BTreeMap<u64, u8> {
    let names = dirs::names_in(mender.volume(), directories, inodes);
    let kinds = names.iter().map(|(ino, (kind, _))| (*ino, *kind)).collect();
    mender.know_more_names(names.into_iter().map(|(ino, (_, name))| (ino, name)).collect());
    kinds
}

/// Puts an inode back; where nothing is left but a name it becomes what that says it is, if that has no content.
pub(crate) fn come_back(
    mender: &mut Mender,
    ino: Ino,
    doubted: bool,
    kind: Option<&u8>,
    said: &mut Vec<String>,
) -> Result<bool> {
    if bring_back(mender, ino, doubted, None, said)? {
        return Ok(true);
    }
    match kind.filter(|_| doubted) {
        Some(kind) => assemble(mender, ino, Some(file_type::to_mode(*kind)), said),
        None => Ok(false),
    }
}

/// Puts an inode back to an older version, or together from the logs; whether it could be done. `kind`: bits of a mode,
/// where the type is known.
pub(crate) fn bring_back(
    mender: &mut Mender,
    ino: Ino,
    doubted: bool,
    kind: Option<u32>,
    said: &mut Vec<String>,
) -> Result<bool> {
    match mender.restore(ino, doubted, kind) {
        Some((c, false)) => {
            said.push(format!("inode {ino} is put back to its version of checkpoint {c}; {CHANGES_LOST}"))
        }
        Some((c, true)) => said.push(format!("inode {ino} is what it is in checkpoint {c}, made later")),
        None => return assemble(mender, ino, kind, said),
    }
    Ok(true)
}

/// Where no older version is whole: what is left of it, if anything is.
fn assemble(mender: &mut Mender, ino: Ino, kind: Option<u32>, said: &mut Vec<String>) -> Result<bool> {
    match mender.assemble(ino, kind) {
        Ok(Some(done)) => {
            let attributes = match done.attributes {
                Attributes::Of(c) => format!("its attributes are those of checkpoint {c}"),
                Attributes::Lost => "its owner, permissions and times are lost".into(),
            };
            let size = if done.size_guessed {
                ", and of zeroes at its end there may be too few or too many"
            } else {
                ""
            };
            said.push(format!("inode {ino} is put together from the logs; {attributes}{size}"));
        }
        Ok(None) | Err(silt_engine::Error::Format { .. } | silt_engine::Error::Device(_)) => {
            return Ok(false);
        }
        Err(e) => return Err(e.into()),
    }
    Ok(true)
}
