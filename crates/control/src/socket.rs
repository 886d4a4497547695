//! Where daemons listen.
//!
//! | who | directory |
//! |---|---|
//! | root | `/run/silt` |
//! | others | `/run/user/UID/silt`, where the system keeps such directories, else `/tmp/silt-UID` |
//! | others, where other users are let in | `/tmp/silt-UID` |
//! | others, where somebody else made `/tmp/silt-UID` | `/tmp/silt-UID-RANDOM` |
//!
//! The environment has no say: a command finds the daemon from a cron job or as root, too.
//!
//! The file's name comes from the volume: `b8-1.sock` of a block device by its number, `f65024-12.sock` of
//! an image by its file system and inode. A loop device counts as the image behind it, so a volume has
//! one name however it is reached.
//!
//! A client only talks to a daemon of root, of its own user, or of the user that owns what it
//! asked about, and only through that one's directory; the kernel says whose the other side is.
//! So nobody can stand in for a daemon, nor have another one take what is meant for his own. What a killed one left is
//! removed by whoever finds it ([`left_over`]).

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{FileType, major, minor};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::remote::PATIENCE;
use crate::{ControlError, Kind, Result, left_over};

const OF_ROOT: &str = "/run/silt";
/// Where everybody makes directories, and nobody removes another one's.
const OF_ALL: &str = "/tmp";

/// Where a daemon listens; the socket's file goes when this does.
pub struct Listener {
    pub(crate) socket: UnixListener,
    path: PathBuf,
    /// Device and inode of the file, so that a successor's is not taken away.
    file: (u64, u64),
    pub(crate) wake: OwnedFd,
    stop: Arc<OwnedFd>,
}

/// Ends [`crate::serve()`] from another thread.
#[derive(Clone)]
pub struct Stopper(Arc<OwnedFd>);

impl Stopper {
    /// Makes [`crate::serve()`] return; requests under way are finished by their threads.
    pub fn stop(&self) {
        // The pipe is only ever written here; a full one has been written before.
        let _ = rustix::io::write(&self.0, b"x");
    }
}

impl Listener {
    /// Where.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A handle that ends serving.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stop.clone())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens for requests on `volume`, which the caller holds alone: a socket that is left over from
/// an earlier daemon is replaced. `shared`: other users may ask too.
pub fn listen(volume: &Path, shared: bool) -> Result<Listener> {
    let name = name_of(volume)?;
    let uid = rustix::process::geteuid().as_raw();
    let dir = match own_dir(uid, shared) {
        Some(dir) => make_dir(dir, uid, shared)?,
        None => make_among_others(Path::new(OF_ALL), uid, shared)?,
    };
    let path = dir.join(name);
    let fail = |e: io::Error| ControlError::io(format!("cannot listen on {}", path.display()), &e);
    // Until it listens it looks as dead as one that is left over.
    let alone = left_over::Alone::to_bind(&dir)?;
    match fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(fail(e)),
        _ => {}
    }
    let socket = UnixListener::bind(&path).map_err(fail)?;
    drop(alone);
    let mode = if uid == 0 || shared { 0o666 } else { 0o600 };
    fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(fail)?;
    let meta = fs::symlink_metadata(&path).map_err(fail)?;
    let flags = rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK;
    let (wake, stop) = rustix::pipe::pipe_with(flags).map_err(|e| fail(e.into()))?;
    socket.set_nonblocking(true).map_err(fail)?;
    Ok(Listener { socket, path, file: (meta.dev(), meta.ino()), wake, stop: Arc::new(stop) })
}

/// What `XDG_RUNTIME_DIR` is on systems that have it.
fn runtime_dir(uid: u32) -> PathBuf {
    PathBuf::from(format!("/run/user/{uid}"))
}

/// The directories of a user among those of all others. There may be several: the first name anybody can take, and what he made
/// stays; the others nobody knows beforehand.
fn among_others(all: &Path, uid: u32) -> Vec<PathBuf> {
    let first = format!("silt-{uid}");
    let more = format!("{first}-");
    let found = fs::read_dir(all).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let found = found.filter(|name| name.as_encoded_bytes().starts_with(more.as_bytes()));
    let dirs = std::iter::once(first.into()).chain(found).map(|name| all.join(name));
    let is_own = |dir: &PathBuf| {
        fs::symlink_metadata(dir).is_ok_and(|m| m.uid() == uid) && check_dir(dir, uid).is_ok()
    };
    dirs.filter(is_own).collect()
}

/// Where nobody but the user and root makes anything; none where there is no such place, or it would be closed to others.
fn own_dir(uid: u32, shared: bool) -> Option<PathBuf> {
    let runtime = runtime_dir(uid);
    match uid {
        0 => Some(PathBuf::from(OF_ROOT)),
        _ if !shared && fs::metadata(&runtime).is_ok_and(|m| m.is_dir() && m.uid() == uid) => {
            Some(runtime.join("silt"))
        }
        _ => None,
    }
}

/// Where the caller's own daemons listen.
pub(crate) fn own_dirs() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let own = own_dir(uid, false).filter(|dir| check_dir(dir, uid).is_ok());
    own.into_iter().chain(among_others(Path::new(OF_ALL), uid)).collect()
}

fn make_among_others(all: &Path, uid: u32, shared: bool) -> Result<PathBuf> {
    if let Some(dir) = among_others(all, uid).into_iter().next() {
        return make_dir(dir, uid, shared);
    }
    match make_dir(all.join(format!("silt-{uid}")), uid, shared) {
        // Somebody else was there before.
        Err(e) if e.kind == Kind::NotPermitted => {}
        made => return made,
    }
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|e| ControlError::io("random numbers", &io::Error::other(e)))?;
    make_dir(all.join(format!("silt-{uid}-{:016x}", u64::from_ne_bytes(random))), uid, shared)
}

/// Makes a directory if it is missing, and fit for such a mount if it is not.
fn make_dir(dir: PathBuf, uid: u32, shared: bool) -> Result<PathBuf> {
    let fail = |e: io::Error| ControlError::io(format!("cannot make {}", dir.display()), &e);
    let mode = match (uid, shared) {
        (0, _) => 0o755,
        (_, true) => 0o711,
        (_, false) => 0o700,
    };
    match DirBuilder::new().mode(mode).create(&dir) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(fail(e)),
    }
    check_dir(&dir, uid)?;
    // One made for another kind of mount, or under a strict umask.
    let meta = fs::symlink_metadata(&dir).map_err(fail)?;
    if meta.mode() & mode != mode {
        fs::set_permissions(&dir, Permissions::from_mode(mode)).map_err(fail)?;
    }
    Ok(dir)
}

/// A directory in which nobody but `uid` and root can put anything.
fn check_dir(dir: &Path, uid: u32) -> Result<()> {
    let meta = fs::symlink_metadata(dir).map_err(|e| ControlError::io(dir.display(), &e))?;
    let trusted = meta.is_dir() && (meta.uid() == uid || meta.uid() == 0) && meta.mode() & 0o022 == 0;
    if trusted {
        return Ok(());
    }
    Err(ControlError::new(
        Kind::NotPermitted,
        format!("{} is not a directory that only its owner writes to", dir.display()),
    )
    .hint("remove it, then try again"))
}

/// The name of a volume's socket.
pub fn name_of(volume: &Path) -> Result<String> {
    let fail = |e: rustix::io::Errno| ControlError::io(volume.display(), &e.into());
    let stat = rustix::fs::stat(volume).map_err(fail)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
        return Ok(format!("f{}-{}.sock", stat.st_dev, stat.st_ino));
    }
    let (major, minor) = (major(stat.st_rdev), minor(stat.st_rdev));
    let backing = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/loop/backing_file"));
    if let Ok(file) = backing
        && let Ok(of_image) = rustix::fs::stat(file.trim_end_matches('\n'))
        && FileType::from_raw_mode(of_image.st_mode) == FileType::RegularFile
    {
        return Ok(format!("f{}-{}.sock", of_image.st_dev, of_image.st_ino));
    }
    Ok(format!("b{major}-{minor}.sock"))
}

/// Directories to look in, with the user whose daemons may listen there. `owner`: who may hold the
/// volume besides root and the caller.
fn places(owner: Option<u32>) -> Vec<(PathBuf, u32)> {
    let uid = rustix::process::geteuid().as_raw();
    let mut places = vec![(PathBuf::from(OF_ROOT), 0)];
    for user in [Some(uid), owner].into_iter().flatten().filter(|u| *u != 0) {
        if !places.iter().any(|(_, known)| *known == user) {
            places.push((runtime_dir(user).join("silt"), user));
            places.extend(among_others(Path::new(OF_ALL), user).into_iter().map(|dir| (dir, user)));
        }
    }
    places
}

/// Connects to the daemon that holds `volume`; none where there is none. `owner`: see [`places`].
pub fn find(volume: &Path, owner: Option<u32>) -> Result<Option<UnixStream>> {
    let name = name_of(volume)?;
    for (dir, uid) in places(owner) {
        if let Some(stream) = try_connect(&dir, &dir.join(&name), uid)? {
            return Ok(Some(stream));
        }
    }
    Ok(None)
}

/// Connections to all daemons that listen where `owner`'s may, one after the other, until the moment
/// given: for a mount whose volume can no longer be found by its name.
pub fn find_all(owner: Option<u32>, until: Instant) -> impl Iterator<Item = UnixStream> {
    /// More than this nobody mounts at once; a directory full of rubbish is not searched for ever.
    const MOST: usize = 256;
    let entries = places(owner).into_iter().flat_map(|(dir, uid)| {
        let found = fs::read_dir(&dir).into_iter().flatten().flatten().take(MOST);
        found.map(move |entry| (dir.clone(), uid, entry)).collect::<Vec<_>>()
    });
    let in_time = entries.take_while(move |_| Instant::now() < until);
    in_time.filter_map(|(dir, uid, entry)| {
        let is_socket = entry.file_type().is_ok_and(|t| t.is_socket());
        if is_socket { try_connect(&dir, &entry.path(), uid).ok().flatten() } else { None }
    })
}

/// Connects, for [`PATIENCE`] at most: a program that listens and never accepts would hold us up.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(PATIENCE))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, None)?;
    Ok(UnixStream::from(socket))
}

fn try_connect(dir: &Path, path: &Path, uid: u32) -> Result<Option<UnixStream>> {
    use io::ErrorKind as E;
    if fs::symlink_metadata(path).is_err() || check_dir(dir, uid).is_err() {
        return Ok(None);
    }
    let stream = match connect(path) {
        Ok(stream) => stream,
        // Left over from a daemon that was killed, or not listening yet.
        Err(e) if e.kind() == E::ConnectionRefused => {
            left_over::remove(dir, path);
            return Ok(None);
        }
        // Gone this moment.
        Err(e) if e.kind() == E::NotFound => return Ok(None),
        Err(e) if e.kind() == E::PermissionDenied => {
            return Err(for_another());
        }
        Err(e) if e.kind() == E::WouldBlock => {
            let message = "the daemon that holds the volume takes no more connections";
            return Err(
                ControlError::new(Kind::Unavailable, message).hint(crate::remote::if_it_never_will(None))
            );
        }
        Err(e) => return Err(ControlError::io("cannot reach the daemon that holds the volume", &e)),
    };
    // Not even root's elsewhere than where root listens: a link there could lead to the daemon of another volume.
    let peer = peer(&stream)?;
    if peer.0 != uid {
        return Err(ControlError::new(
            Kind::NotPermitted,
            format!("{} belongs to a program of user {}, which is not trusted", path.display(), peer.0),
        ));
    }
    Ok(Some(stream))
}

/// For errors: whoever mounted the volume lets nobody else in.
pub(crate) fn for_another() -> ControlError {
    ControlError::new(Kind::NotPermitted, "the volume is mounted for another user only")
        .hint("ask who mounted it, or become root")
}

/// Uid and process on the other side of a connection, by the kernel's word.
pub fn peer(stream: &impl AsFd) -> Result<(u32, u32)> {
    let cred = rustix::net::sockopt::socket_peercred(stream)
        .map_err(|e| ControlError::io("cannot tell who is on the other side", &e.into()))?;
    Ok((cred.uid.as_raw(), u32::try_from(cred.pid.as_raw_nonzero().get()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_one_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let link = file.path().with_extension("link");
        std::os::unix::fs::symlink(file.path(), &link).unwrap();
        assert_eq!(name_of(file.path()).unwrap(), name_of(&link).unwrap());
        fs::remove_file(&link).unwrap();
        let other = tempfile::NamedTempFile::new().unwrap();
        assert_ne!(name_of(file.path()).unwrap(), name_of(other.path()).unwrap());
        assert!(name_of(Path::new("/nonexistent/x")).is_err());
    }

    #[test]
    fn a_directory_that_others_write_to_is_not_used() {
        let uid = rustix::process::geteuid().as_raw();
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        assert!(check_dir(dir.path(), uid).is_ok());
        fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
        assert_eq!(check_dir(dir.path(), uid).unwrap_err().kind, Kind::NotPermitted);
        fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(check_dir(&link, uid).is_err(), "a symbolic link");
        if uid == 0 {
            std::os::unix::fs::chown(dir.path(), Some(4242), None).unwrap();
            assert!(check_dir(dir.path(), 1000).is_err(), "somebody else's");
            assert!(check_dir(dir.path(), 4242).is_ok());
        }
    }

    /// In `/tmp` nobody can remove it.
    #[test]
    fn a_directory_that_somebody_else_made_first_keeps_nobody_from_listening() {
        let uid = rustix::process::geteuid().as_raw();
        let all = tempfile::tempdir().unwrap();
        let first = all.path().join(format!("silt-{uid}"));
        let taken = |what: &str| match what {
            "a file" => drop(fs::File::create(&first).unwrap()),
            "a link" => std::os::unix::fs::symlink(all.path(), &first).unwrap(),
            "open to others" => {
                fs::create_dir(&first).unwrap();
                fs::set_permissions(&first, Permissions::from_mode(0o777)).unwrap();
            }
            _ => {
                fs::create_dir(&first).unwrap();
                std::os::unix::fs::chown(&first, Some(4242), None).unwrap();
                // And one that looks like the next.
                let next = all.path().join(format!("silt-{uid}-0123456789abcdef"));
                fs::create_dir(&next).unwrap();
                std::os::unix::fs::chown(&next, Some(4242), None).unwrap();
            }
        };
        let mut made = Vec::new();
        for what in ["a file", "a link", "open to others", "another user's"] {
            if what == "another user's" && uid != 0 {
                continue;
            }
            taken(what);
            let dir = make_among_others(all.path(), uid, false).unwrap();
            assert!(dir != first && check_dir(&dir, uid).is_ok(), "{what}");
            assert_eq!(
                among_others(all.path(), uid),
                std::slice::from_ref(&dir),
                "both sides find it: {what}"
            );
            assert_eq!(make_among_others(all.path(), uid, false).unwrap(), dir, "one is enough: {what}");
            made.push(dir.clone());
            // What was in the way goes, and what listens there is still found.
            let aside = all.path().join("aside");
            fs::rename(&first, &aside).unwrap();
            assert_eq!(among_others(all.path(), uid), std::slice::from_ref(&dir));
            fs::remove_dir_all(&dir).unwrap();
            fs::remove_dir_all(&aside).or_else(|_| fs::remove_file(&aside)).unwrap();
        }
        made.dedup();
        assert!(made.len() >= 3, "nobody knows the name beforehand: {made:?}");
        assert_eq!(make_among_others(all.path(), uid, false).unwrap(), first);
    }

    #[test]
    fn a_link_in_a_users_directory_does_not_lead_to_roots_daemon() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (theirs, of_root) = (dir.path().join("theirs"), dir.path().join("root"));
        let _root = UnixListener::bind(&of_root).unwrap();
        fs::create_dir(&theirs).unwrap();
        std::os::unix::fs::chown(&theirs, Some(4242), None).unwrap();
        let link = theirs.join("f1-1.sock");
        std::os::unix::fs::symlink(&of_root, &link).unwrap();
        assert!(try_connect(dir.path(), &of_root, 0).unwrap().is_some());
        assert_eq!(try_connect(&theirs, &link, 4242).unwrap_err().kind, Kind::NotPermitted);
    }
}
