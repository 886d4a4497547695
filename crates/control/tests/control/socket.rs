//! A daemon's side and a command's side of the socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use silt_control::mounts::Mount;
use silt_control::socket::{self, Stopper};
use silt_control::{
    CheckpointQuery, Control, Kind, MountInfo, RemoteVolume, Request, Response, UnmountWhat, left_over,
    of_mount, serve,
};

use crate::common::MemoryHost;

struct Daemon {
    host: Arc<MemoryHost>,
    file: tempfile::NamedTempFile,
    socket: std::path::PathBuf,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    fn start(last: u64) -> Self {
        let host = Arc::new(MemoryHost::new());
        host.make_checkpoints(last);
        *host.mount.lock().unwrap() = Some(MountInfo {
            mounts: Vec::new(),
            since: 0,
            fs_type: "fuse.silt".to_owned(),
            sync_arrives: None,
            uid: rustix::process::geteuid().as_raw(),
            allow_other: false,
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        let listener = socket::listen(file.path(), false).unwrap();
        let (path, stopper) = (listener.path().to_owned(), listener.stopper());
        let served = host.clone();
        let thread = Some(std::thread::spawn(move || serve(listener, served)));
        Daemon { host, file, socket: path, stopper, thread }
    }

    fn connect(&self) -> RemoteVolume {
        RemoteVolume::new(socket::find(self.file.path(), None).unwrap().expect("it listens")).unwrap()
    }

    /// A connection that says what it likes.
    fn raw(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        assert!(!self.socket.exists(), "the socket's file is gone");
        assert!(socket::find(self.file.path(), None).unwrap().is_none());
    }
}

fn ask(remote: &mut RemoteVolume, request: Request) -> silt_control::Result<Vec<Response>> {
    let mut parts = Vec::new();
    remote.call(request, &mut |part| {
        parts.push(part);
        Ok(())
    })?;
    Ok(parts)
}

#[test]
fn requests_are_answered_one_after_the_other() {
    let daemon = Daemon::start(2300);
    let mut remote = daemon.connect();
    assert_eq!(remote.pid(), std::process::id());
    let query = CheckpointQuery { minor: true, ..CheckpointQuery::default() };
    let parts = ask(&mut remote, Request::ListCheckpoints(query)).unwrap();
    assert_eq!(parts.len(), 3, "in batches");
    assert_eq!(crate::common::checkpoints(parts).len(), 2300);
    let e = ask(&mut remote, Request::RemoveCheckpoints { start: 2, end: 1 }).unwrap_err();
    assert_eq!(e.kind, Kind::Invalid);
    // An error does not end the conversation.
    assert_eq!(ask(&mut remote, Request::Sync).unwrap(), [Response::Checkpoint(2300)]);
    let parts = ask(&mut remote, Request::Status).unwrap();
    let [Response::Status(s)] = &parts[..] else { panic!("{parts:?}") };
    assert_eq!(s.pid, Some(std::process::id()));
}

#[test]
fn commands_at_the_same_time_do_not_wait_for_one_that_does_not_read() {
    let daemon = Daemon::start(1500);
    // Asks for a lot and reads nothing.
    let mut lazy = daemon.raw();
    let request = br#"{"version":1,"request":{"dump-segments":{"segments":[0,1,2,3,4,5,6,7,8,9,10]}}}"#;
    for _ in 0..20 {
        lazy.write_all(&u32::try_from(request.len()).unwrap().to_le_bytes()).unwrap();
        lazy.write_all(request).unwrap();
    }
    let begin = Instant::now();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let mut remote = daemon.connect();
            std::thread::spawn(move || {
                for _ in 0..20 {
                    ask(&mut remote, Request::Status).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert!(begin.elapsed() < Duration::from_secs(20));
}

/// The process ends next.
#[test]
fn who_unmounts_is_answered_before_serving_ends() {
    let daemon = Daemon::start(1);
    let (host, mut remote) = (daemon.host.clone(), daemon.connect());
    host.unmounting.store(300, Ordering::Relaxed);
    let asked = std::thread::spawn(move || ask(&mut remote, Request::Unmount(UnmountWhat::Everything)));
    while !host.unmount_begun.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(daemon);
    assert!(host.unmount_ended.load(Ordering::Relaxed));
    assert_eq!(asked.join().unwrap().unwrap(), [Response::Unmounted("/live".into())]);
}

#[test]
fn nonsense_ends_a_connection_and_nothing_else() {
    let daemon = Daemon::start(3);
    let send = |bytes: &[u8]| -> String {
        let mut stream = daemon.raw();
        // A server that has hung up already is as good as one that answers nothing.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    let framed = |text: &str| {
        let mut bytes = u32::try_from(text.len()).unwrap().to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        bytes
    };
    assert_eq!(send(&[]), "");
    assert_eq!(send(&[1, 2]), "");
    assert_eq!(send(&u32::MAX.to_le_bytes()), "", "4 GiB are not stored");
    assert_eq!(send(&[9, 0, 0, 0, b'x']), "");
    for text in ["", "x", "{}", r#"{"version":2,"request":"status"}"#, r#"{"version":1,"request":"fly"}"#] {
        assert!(send(&framed(text)).contains("another version"), "{text}");
    }
    let deep = "[".repeat(100_000);
    assert!(send(&framed(&deep)).contains("another version"));
    let nul = r#"{"version":1,"request":{"unmount":{"dir":"/a\u0000b"}}}"#;
    assert!(send(&framed(nul)).contains("another version"));
    assert!(send(&framed(r#"{"version":1,"request":"status"}"#)).contains("newest_checkpoint"));
    assert_eq!(ask(&mut daemon.connect(), Request::Sync).unwrap(), [Response::Checkpoint(3)]);
}

#[test]
fn connections_have_an_end_and_places_become_free() {
    let daemon = Daemon::start(1);
    // Those of the daemon's own user have a high limit.
    let many: Vec<UnixStream> = (0..300).map(|_| daemon.raw()).collect();
    let mut refused = 0;
    for stream in &many {
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut answer = [0; 256];
        if let Ok(n) = (&mut &*stream).read(&mut answer) {
            assert!(String::from_utf8_lossy(&answer[..n]).contains("too many"));
            refused += 1;
        }
    }
    assert!(refused > 0 && refused < 100, "{refused}");
    drop(many);
    let begin = Instant::now();
    while ask(&mut daemon.connect(), Request::Sync).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(daemon.host.clone());
}

#[test]
fn a_socket_left_over_is_no_daemon_and_is_replaced() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let listener = socket::listen(file.path(), false).unwrap();
    let path = listener.path().to_owned();
    // As after a kill: the file stays and nobody listens.
    std::mem::forget(listener);
    assert!(path.exists());
    let again = socket::listen(file.path(), false).unwrap();
    assert!(socket::find(file.path(), None).unwrap().is_some());
    drop(again);
    assert!(!path.exists());
    assert!(socket::find(file.path(), None).unwrap().is_none());
}

/// The file of a socket on which nobody listens, as after a kill.
fn dead(file: &tempfile::NamedTempFile) -> std::path::PathBuf {
    let (listener, path) = stand_in(file);
    drop(listener);
    path
}

#[test]
fn a_dead_socket_goes_when_it_is_found() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = dead(&file);
    assert!(socket::find(file.path(), None).unwrap().is_none());
    assert!(!path.exists());
    let path = dead(&file);
    let other = tempfile::NamedTempFile::new().unwrap();
    let living = socket::listen(other.path(), false).unwrap();
    left_over::remove_all();
    assert!(!path.exists());
    assert!(living.path().exists() && socket::find(other.path(), None).unwrap().is_some());
}

/// Says so when it goes, also where a test fails.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn no_daemon_that_begins_loses_its_socket_to_who_removes_dead_ones() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    left_over::remove_all();
                    let _ = socket::find(file.path(), None);
                }
            });
        }
        // The others end however this does.
        let _ended = Ended(&stop);
        for _ in 0..300 {
            drop(stand_in(&file).0);
            let listener = socket::listen(file.path(), false).unwrap();
            std::thread::sleep(Duration::from_micros(500));
            assert!(listener.path().exists() && socket::find(file.path(), None).unwrap().is_some());
        }
    });
}

/// A program in the place of a daemon.
fn stand_in(file: &tempfile::NamedTempFile) -> (std::os::unix::net::UnixListener, std::path::PathBuf) {
    // Where a daemon would listen, but not one of ours.
    let path = socket::listen(file.path(), false).unwrap().path().to_owned();
    // Under another name, so that nobody takes it for dead before it listens.
    let new = path.with_extension("new");
    let listener = std::os::unix::net::UnixListener::bind(&new).unwrap();
    std::fs::rename(&new, &path).unwrap();
    (listener, path)
}

#[test]
fn a_daemon_that_does_not_answer_is_not_waited_for_for_ever() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (listener, path) = stand_in(&file);
    // One that says nothing, and one that never comes to an end.
    for endless in [false, true] {
        let stream = socket::find(file.path(), None).unwrap().unwrap();
        let (mut other, _) = listener.accept().unwrap();
        let talker = std::thread::spawn(move || {
            let part = br#"{"item":{"notice":"wait"}}"#;
            let mut message = u32::try_from(part.len()).unwrap().to_le_bytes().to_vec();
            message.extend_from_slice(part);
            while endless && other.write_all(&message).is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
            // Until the client has gone.
            let _ = std::io::copy(&mut other, &mut std::io::sink());
        });
        let mut remote = RemoteVolume::new(stream).unwrap();
        let begin = Instant::now();
        remote.answer_within(Some(Duration::from_millis(300)));
        let e = ask(&mut remote, Request::Status).unwrap_err();
        assert_eq!(e.kind, Kind::Unavailable);
        assert!(e.message.contains("does not answer"), "{e}");
        assert!(begin.elapsed() < Duration::from_secs(5));
        drop(remote);
        talker.join().unwrap();
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_daemon_that_takes_no_connections_is_not_waited_for_for_ever() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (_listener, path) = stand_in(&file);
    // As many as wait to be taken.
    let waiting: Vec<_> = std::iter::from_fn(|| {
        let stream = rustix::net::socket_with(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::NONBLOCK,
            None,
        )
        .unwrap();
        let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
        rustix::net::connect(&stream, &address).ok().map(|()| stream)
    })
    .collect();
    assert!(!waiting.is_empty());
    let begin = Instant::now();
    let e = socket::find(file.path(), None).unwrap_err();
    assert_eq!(e.kind, Kind::Unavailable, "{e}");
    assert!(begin.elapsed() < Duration::from_secs(30));
    std::fs::remove_file(path).unwrap();
}

/// Frees segments of the volume of a daemon; how many are held back.
fn free(daemon: &Daemon) -> u64 {
    let mut volume = daemon.host.volume.lock().unwrap();
    let volume = &mut *volume;
    // Something dies, so that there is something to gain.
    let now = 5_000 + volume.last_log().cno;
    for n in 0..40 {
        let done = if n % 2 == 0 {
            volume.make_snapshot(silt_format::Cno(1))
        } else {
            volume.unmake_snapshot(silt_format::Cno(1))
        };
        done.unwrap();
        volume.checkpoint(now).unwrap();
    }
    let options = silt_cleaner::Options { now, ..Default::default() };
    let outcome = silt_cleaner::run(&silt_cleaner::Whole::new(volume, now), &options, |_| true).unwrap();
    assert!(outcome.cleaned.segments > 0, "{outcome:?}");
    volume.freed_are_durable();
    volume.held_segments()
}

fn held(daemon: &Daemon) -> u64 {
    let mut volume = daemon.host.volume.lock().unwrap();
    volume.freed_are_durable();
    volume.held_segments()
}

fn until_nothing_is_held(daemon: &Daemon, why: &str) {
    let until = Instant::now() + Duration::from_secs(20);
    while held(daemon) > 0 {
        assert!(Instant::now() < until, "{why}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Who asks where the log is checks the volume by himself: what is freed then stays until he is gone, and no longer.
#[test]
fn what_is_freed_while_somebody_checks_is_held_back() {
    let daemon = Daemon::start(40);
    let mut other = daemon.connect();
    ask(&mut other, Request::Status).unwrap();
    assert_eq!(free(&daemon), 0, "nobody checks");
    let mut checking = daemon.connect();
    ask(&mut checking, Request::LatestLog).unwrap();
    assert!(free(&daemon) > 0, "somebody does");
    ask(&mut other, Request::Status).unwrap();
    assert!(held(&daemon) > 0, "and still does");
    drop(checking);
    until_nothing_is_held(&daemon, "he is gone");
}

/// A connection of somebody who is neither root nor has mounted the volume.
fn of_another(daemon: &Daemon) -> UnixStream {
    if !rustix::process::geteuid().is_root() {
        let mut mount = daemon.host.mount.lock().unwrap();
        mount.as_mut().unwrap().uid = rustix::process::geteuid().as_raw() + 1;
        return daemon.raw();
    }
    // Of this thread alone.
    let connect = || {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(1001)).unwrap();
        daemon.raw()
    };
    std::thread::scope(|scope| scope.spawn(connect).join().unwrap())
}

/// Nobody keeps what is freed from being written by a request that is refused.
#[test]
fn nothing_is_held_for_whom_nothing_is_answered() {
    for (shared, version) in [(false, 1), (true, 1), (true, 2)] {
        let daemon = Daemon::start(40);
        daemon.host.mount.lock().unwrap().as_mut().unwrap().allow_other = shared;
        // One of another version is refused whoever he is.
        let mut stream = if version == 1 { of_another(&daemon) } else { daemon.raw() };
        let request = format!(r#"{{"version":{version},"request":"latest-log"}}"#);
        stream.write_all(&u32::try_from(request.len()).unwrap().to_le_bytes()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = [0; 4096];
        let n = stream.read(&mut answer).unwrap();
        let said = String::from_utf8_lossy(&answer[..n]);
        assert!(said.contains("failed") && !said.contains("sequence"), "{said}");
        if (shared, version) == (true, 1) {
            assert!(said.contains("only root and who mounted the volume may check it"), "{said}");
        }
        assert_eq!(free(&daemon), 0, "{said}");
    }
}

/// Who was stopped in the midst of a check, or forgot it, does not keep others waiting for ever.
#[test]
fn a_check_is_let_go_where_others_wait_for_its_space() {
    let daemon = Daemon::start(40);
    let wanted = |wanted| daemon.host.wants_space.store(wanted, std::sync::atomic::Ordering::Relaxed);
    let mut checking = daemon.connect();
    ask(&mut checking, Request::LatestLog).unwrap();
    assert!(free(&daemon) > 0);
    // A short while changes nothing.
    for _ in 0..3 {
        wanted(true);
        std::thread::sleep(Duration::from_millis(700));
        wanted(false);
        std::thread::sleep(Duration::from_millis(1000));
    }
    assert!(held(&daemon) > 0);
    ask(&mut checking, Request::LatestLog).unwrap();
    wanted(true);
    let begin = Instant::now();
    until_nothing_is_held(&daemon, "others wait");
    assert!(begin.elapsed() > Duration::from_secs(1), "{:?}", begin.elapsed());
    let e = ask(&mut checking, Request::LatestLog).unwrap_err();
    assert_eq!(e.kind, Kind::Unavailable, "{e}");
    // Where nothing else helps, at once.
    wanted(false);
    let mut checking = daemon.connect();
    ask(&mut checking, Request::LatestLog).unwrap();
    assert!(free(&daemon) > 0);
    daemon.host.is_pressing.store(true, std::sync::atomic::Ordering::Relaxed);
    let begin = Instant::now();
    until_nothing_is_held(&daemon, "nothing else helps");
    assert!(begin.elapsed() < Duration::from_millis(1500), "{:?}", begin.elapsed());
    daemon.host.is_pressing.store(false, std::sync::atomic::Ordering::Relaxed);
    wanted(true);
    // One who asks all the time and reads nothing waits no less.
    let mut checking = daemon.raw();
    let request = br#"{"version":1,"request":"latest-log"}"#;
    let mut message = u32::try_from(request.len()).unwrap().to_le_bytes().to_vec();
    message.extend_from_slice(request);
    let begin = Instant::now();
    while checking.write_all(&message).is_ok() {
        assert!(begin.elapsed() < Duration::from_secs(20), "it is never let go");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_mount_under_anothers_source_does_not_lead_to_his_daemon() {
    let daemon = Daemon::start(1);
    let own = rustix::process::geteuid().as_raw();
    let of = |uid| Mount {
        dir: "/nonexistent/mount".into(),
        fs_type: "fuse.silt".to_owned(),
        source: daemon.file.path().to_owned(),
        uid: Some(uid),
        connection: 1,
    };
    assert!(of_mount(&of(own)).is_ok());
    assert!(of_mount(&of(own + 4242)).is_err());
}
