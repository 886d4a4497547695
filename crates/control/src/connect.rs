//! From what a user named to the volume: opened here, or held by a daemon.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use silt_format::super_block::{self as sb, SuperBlock};

use crate::mounts::{self, Mount};
use crate::named::Named;
use crate::remote::PATIENCE;
use crate::{ControlError, Kind, LocalVolume, RemoteVolume, Request, Response, Result, socket};

/// What takes requests.
pub trait Control {
    /// Runs a request; the answer's parts go to `out` in order.
    fn call(&mut self, request: Request, out: &mut dyn FnMut(Response) -> Result<()>) -> Result<()>;

    /// From here on answers of a daemon must be complete within `time`, see
    /// [`RemoteVolume::answer_within`].
    fn answer_within(&mut self, _time: Option<Duration>) {}

    /// Whether a daemon holds the volume.
    fn is_mounted(&self) -> bool;

    /// The connection, where a daemon holds the volume.
    fn into_remote(self: Box<Self>) -> Option<RemoteVolume> {
        None
    }
}

/// Finds the volume that `path` names: an image file or a block device, or a directory that is a mount of ours or lies in one.
/// What is no directory is the image, however damaged, and not a file of the mount that it lies in: else what was meant for a
/// damaged image would be done to the volume that holds it.
pub fn connect(path: &Path) -> Result<Box<dyn Control>> {
    find(path, |path| std::fs::metadata(path).is_ok_and(|m| !m.is_dir()))
}

/// As [`connect`], for what concerns one path of a mounted volume: a file is one of the volume that it lies in, unless it holds a
/// super block.
pub fn connect_within(path: &Path) -> Result<Box<dyn Control>> {
    find(path, is_image)
}

/// Before a path is looked at that lies, as it is written, in a mount of ours: that the daemon gives a sign of life, since
/// the kernel would have us wait for it for ever. Errors: it gives none.
pub fn answers(path: &Path) -> Result<()> {
    let Ok(written) = std::path::absolute(path) else { return Ok(()) };
    let holding = mounts::table()?.into_iter().filter(|m| written.starts_with(&m.dir));
    let closest = holding.max_by_key(|m| m.dir.components().count());
    match closest.filter(Mount::is_ours) {
        // One that is gone is told of by whatever looks at the path.
        Some(mount) => of_mount(&mount).map_or(Ok(()), |mut daemon| daemon.is_there()),
        None => Ok(()),
    }
}

fn find(path: &Path, is_image: impl Fn(&Path) -> bool) -> Result<Box<dyn Control>> {
    if !mounts::is_mount_point(path)? {
        answers(path)?;
    }
    let mount = mounts::holding(path).map_err(|e| of_missing(path, e))?;
    let mount = mount.filter(|m| m.is_ours() || m.fs_type == "nilfs2");
    if let Some(mount) = &mount {
        // A file in a mount may be an image itself.
        let is_its_root = mount.dir == mounts::locate(path)?;
        if is_its_root || !is_image(path) {
            if mount.is_ours() {
                let name = if is_its_root { path } else { &mount.dir };
                return Ok(named(of_mount(mount)?, name));
            }
            return Err(mounts::kernels(mount));
        }
    }
    let meta = std::fs::metadata(path).map_err(|e| ControlError::io(path.display(), &e))?;
    if meta.is_dir() {
        return Err(ControlError::new(
            Kind::NotFound,
            format!("{} is a directory in which no silt volume is mounted", path.display()),
        )
        .hint(format!("name a volume, or mount one there: silt mount VOLUME {}", silt_names::quoted(path))));
    }
    let owner = std::os::unix::fs::MetadataExt::uid(&meta);
    if let Some(stream) = socket::find(path, Some(owner))? {
        return Ok(named(RemoteVolume::new(stream)?, path));
    }
    let volume = LocalVolume::new(path)?;
    Ok(match mount.filter(Mount::is_ours) {
        Some(mount) => named(volume.within(&mount.dir), path),
        None => named(volume, path),
    })
}

fn named(volume: impl Control + 'static, name: &Path) -> Box<dyn Control> {
    Box::new(Named { volume: Box::new(volume), name: name.to_owned() })
}

/// Says what to name instead of what is not there.
fn of_missing(path: &Path, e: ControlError) -> ControlError {
    if e.kind != Kind::NotFound {
        return e;
    }
    missing(path)
}

/// For errors: there is nothing of the name that a volume was given.
pub fn missing(path: &Path) -> ControlError {
    ControlError::new(Kind::NotFound, format!("there is no {}", path.display()))
        .hint("name an image file, a block device, or a mounted directory; silt mkfs makes a volume")
}

/// How long one of many daemons that are asked may take.
const EACH: Duration = Duration::from_secs(2);

/// The daemon that serves a mount. It is one of the user who mounted it: whoever mounts a file system of his own may give it any
/// source, as the volume of somebody else, whose daemon must not take what is meant for his.
pub fn of_mount(mount: &Mount) -> Result<RemoteVolume> {
    let is_theirs = |stream: &UnixStream| {
        mount.uid.is_none_or(|owner| socket::peer(stream).is_ok_and(|(uid, _)| uid == owner))
    };
    if mount.source.is_absolute()
        && let Ok(Some(stream)) = socket::find(&mount.source, mount.uid)
        && is_theirs(&stream)
    {
        let mut remote = RemoteVolume::new(stream)?.on(&mount.dir);
        // The image may have been renamed since, and another one have its name.
        match remote.serves(mount.connection) {
            Ok(Some(false)) => {}
            Ok(_) => return Ok(remote),
            // Whoever asks it something else may wait longer; this connection is of no more use.
            Err(error) => {
                if let Ok(Some(stream)) = socket::find(&mount.source, mount.uid).map(|s| s.filter(is_theirs))
                {
                    return Ok(RemoteVolume::silent(stream, error)?.on(&mount.dir));
                }
            }
        }
    }
    // The image was renamed, or its name cannot be that of a source: ask who is there.
    let until = Instant::now() + PATIENCE;
    for stream in socket::find_all(mount.uid, until).filter(is_theirs) {
        let mut remote = RemoteVolume::new(stream)?.on(&mount.dir);
        remote.answer_within(Some(EACH));
        if is_served_by(mount, &mut remote).is_ok_and(|is| is) {
            remote.answer_within(None);
            return Ok(remote);
        }
    }
    let uid = rustix::process::geteuid().as_raw();
    if uid != 0 && mount.uid.is_some_and(|owner| owner != uid) {
        return Err(socket::for_another());
    }
    Err(ControlError::new(
        Kind::Unavailable,
        format!("the daemon that serves {} does not answer", mount.dir.display()),
    )
    .hint(format!(
        "if it has gone: silt umount {}, and mount the volume again",
        silt_names::quoted(&mount.dir)
    )))
}

fn is_served_by(mount: &Mount, remote: &mut RemoteVolume) -> Result<bool> {
    if let Some(known) = remote.serves(mount.connection)? {
        return Ok(known);
    }
    let mut found = false;
    remote.call(Request::Status, &mut |part| {
        if let Response::Status(status) = part {
            found = status.mounts.iter().any(|m| m.dir == mount.dir);
        }
        Ok(())
    })?;
    Ok(found)
}

/// Mounts of an image or device that their daemon has left behind. One that is served is of another volume: its image had that
/// name before.
pub fn left_mounts_of(volume: &Path) -> Result<Vec<Mount>> {
    let name = socket::name_of(volume)?;
    let of_it = |mount: &Mount| socket::name_of(&mount.source).is_ok_and(|other| other == name);
    Ok(mounts::ours()?.into_iter().filter(|mount| of_it(mount) && of_mount(mount).is_err()).collect())
}

/// A mount of each volume of ours, the live tree's where there is one. What others mount under the same name is another one, and so
/// is what has the name since the image was renamed.
pub fn mounted_volumes() -> Result<Vec<Mount>> {
    let mut daemons: HashMap<u64, Option<RemoteVolume>> = HashMap::new();
    Ok(one_of_each(mounts::ours()?, |one, other| {
        let daemon = daemons.entry(one.connection).or_insert_with(|| of_mount(one).ok());
        let answer = daemon.as_mut().map(|d| d.serves(other.connection));
        if matches!(answer, Some(Err(_))) {
            // It is not asked again, and nobody else can tell them apart.
            *daemon = None;
        }
        !matches!(answer, Some(Ok(Some(false))))
    }))
}

/// `together`: whether two mounts under one name are of one volume.
fn one_of_each(mounts: Vec<Mount>, mut together: impl FnMut(&Mount, &Mount) -> bool) -> Vec<Mount> {
    let mut volumes: Vec<(String, Mount)> = Vec::new();
    for mount in mounts {
        // The live tree may be mounted on a loop device and its moments from the image behind it.
        let name = socket::name_of(&mount.source).unwrap_or_else(|_| mount.source.display().to_string());
        let mut same = volumes.iter().filter(|(known, other)| *known == name && other.uid == mount.uid);
        if !same.any(|(_, one)| together(one, &mount)) {
            volumes.push((name, mount));
        }
    }
    volumes.into_iter().map(|(_, mount)| mount).collect()
}

/// The one volume of ours that is mounted, for commands that are given none.
pub fn only_mount() -> Result<Mount> {
    let mut volumes = mounted_volumes()?;
    let uid = rustix::process::geteuid();
    if !uid.is_root() && volumes.iter().any(|m| m.uid == Some(uid.as_raw())) {
        // Those of others are theirs to name.
        volumes.retain(|m| m.uid == Some(uid.as_raw()));
    }
    match volumes.len() {
        1 => Ok(volumes.swap_remove(0)),
        0 => Err(ControlError::new(Kind::NotFound, "no volume is mounted")
            .hint("name an image or device, or mount one: silt mount VOLUME DIR")),
        _ => Err(several(&volumes)),
    }
}

/// For errors: more than one could be meant.
fn several(volumes: &[Mount]) -> ControlError {
    /// Directories that are named.
    const NAMED: usize = 5;
    let dirs: Vec<String> = volumes.iter().take(NAMED).map(|m| m.dir.display().to_string()).collect();
    let more = if volumes.len() > NAMED { " and elsewhere" } else { "" };
    let message = format!("{} volumes are mounted, on {}{more}", volumes.len(), dirs.join(", "));
    ControlError::new(Kind::Invalid, message)
        .hint("name the one that is meant, by its directory, image or device")
}

/// Whether this is a file with a super block, or no file at all but a device.
fn is_image(path: &Path) -> bool {
    let Ok(meta) = std::fs::metadata(path) else { return false };
    if meta.is_file() { holds_super_block(path) } else { !meta.is_dir() }
}

/// Whether a regular file holds a super block, one of the two.
pub fn holds_super_block(path: &Path) -> bool {
    use std::os::unix::fs::FileExt;
    let Some(meta) = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file) else { return false };
    let Ok(file) = std::fs::File::open(path) else { return false };
    [sb::PRIMARY_OFFSET, sb::secondary_offset(meta.len())].into_iter().any(|at| {
        let mut bytes = [0; sb::SIZE];
        file.read_exact_at(&mut bytes, at).is_ok() && SuperBlock::parse(&bytes).is_ok()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use silt_device::MemoryDevice;
    use silt_engine::mkfs::{Parameters, Plan};
    use silt_format::super_block as sb;

    use super::{is_image, one_of_each};
    use crate::mounts::Mount;

    #[test]
    fn who_mounts_under_the_name_of_a_volume_does_not_hide_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mount = |dir: &str, uid, connection| Mount {
            dir: dir.into(),
            fs_type: "fuse.silt".to_owned(),
            source: file.path().to_owned(),
            uid: Some(uid),
            connection,
        };
        let (theirs, live, moment) =
            (mount("/theirs", 4242, 1), mount("/live", 0, 2), mount("/moment", 0, 3));
        // Made under the name that the image of the others had.
        let (new, new_moment) = (mount("/new", 0, 4), mount("/new-moment", 0, 5));
        let all = [&theirs, &live, &moment, &new, &new_moment].map(Clone::clone).to_vec();
        let found = one_of_each(all, |a, b| (a.connection < 4) == (b.connection < 4));
        assert_eq!(found, [theirs, live, new]);
    }

    #[test]
    fn either_super_block_makes_an_image() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.img");
        let size = 32 << 20;
        let device = MemoryDevice::new(size);
        let parameters = Parameters { blocks_per_segment: 256, ..Parameters::default() };
        Plan::new(parameters, size).unwrap().write(&device, false).unwrap();
        let mut whole = vec![0; usize::try_from(size).unwrap()];
        silt_device::Device::read_at(&device, 0, &mut whole).unwrap();
        for (lost, is) in [
            (&[][..], true),
            (&[sb::PRIMARY_OFFSET][..], true),
            (&[sb::secondary_offset(size)][..], true),
            (&[sb::PRIMARY_OFFSET, sb::secondary_offset(size)][..], false),
        ] {
            let mut bytes = whole.clone();
            for at in lost {
                let at = usize::try_from(*at).unwrap();
                bytes[at..at + 512].fill(0xA5);
            }
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(is_image(&path), is, "{lost:?}");
        }
        std::fs::write(&path, b"a letter").unwrap();
        assert!(!is_image(&path) && !is_image(dir.path()) && !is_image(&dir.path().join("none")));
    }
}
