//! How sessions end, and where requests lie.

use std::fs::File;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;

use super::*;
use crate::attr::NodeId;
use crate::ops::Context;
use crate::reply::ReplyAttr;

#[test]
fn write_data_is_page_aligned() {
    for _ in 0..4 {
        let mut buffer = Buffer::new();
        let space = buffer.space();
        assert_eq!((space.as_ptr().addr() + Buffer::HEAD) % Buffer::ALIGNMENT, 0);
        assert!(space.len() >= Buffer::LENGTH);
    }
}

/// Lets the first request wait.
struct Slow {
    came: Mutex<Sender<()>>,
    go: Mutex<Receiver<()>>,
    /// It was mounted when it was told of the end.
    ended: Mutex<Option<bool>>,
    place: Mutex<Option<Place>>,
}

impl Filesystem for Slow {
    fn getattr(&self, _: &Context, _: NodeId, _: Option<u64>, reply: ReplyAttr) {
        let _ = self.came.lock().send(());
        let _ = self.go.lock().recv();
        reply.error(Errno::ENOSPC);
    }

    fn destroy(&self, _: Destroy) {
        *self.ended.lock() = self.place.lock().as_ref().map(Place::is_mounted);
    }
}

#[test]
fn a_session_ends_where_its_connection_cannot_be_aborted() {
    if !rustix::process::geteuid().is_root() || File::open("/dev/fuse").is_err() {
        println!("skipped: mounting needs root and /dev/fuse");
        return;
    }
    let script = "mount -t tmpfs none /sys/fs/fuse/connections && exec \"$0\" --exact --ignored \"$1\"";
    let exe = std::env::current_exe().unwrap();
    let test = "session::tests::where_no_connection_can_be_aborted";
    let run = Command::new("unshare").args(["--mount", "sh", "-c", script]).arg(exe).arg(test).output();
    let Ok(output) = run else {
        println!("skipped: no unshare command");
        return;
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Where the last request of all is one that nobody has read.
#[test]
#[ignore = "run by a_session_ends_where_its_connection_cannot_be_aborted, with nothing where connections are aborted"]
fn where_no_connection_can_be_aborted() {
    const LONG: Duration = Duration::from_secs(20);
    let told = control::abort(0).unwrap_err();
    assert_eq!(told.kind(), std::io::ErrorKind::NotFound, "it tells nothing of the connection");
    for threads in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let session = Session::mount(&path, &MountOptions::default()).unwrap();
        let place = session.place().unwrap().clone();
        let is_connected = || crate::is_connected(place.connection.unwrap()).unwrap();
        assert!(is_connected(), "that can be told");
        let notifier = session.notifier();
        let stop = Arc::new(Stop::new());
        let (came, comes) = channel();
        let (go, wait) = channel();
        let fs = Arc::new(Slow {
            came: came.into(),
            go: wait.into(),
            ended: Mutex::default(),
            place: Mutex::new(session.place().cloned()),
        });
        let (tell, told) = channel();
        let run = {
            let (fs, stop, tell) = (fs.clone(), stop.clone(), tell.clone());
            move || tell.send(session.run_until(fs, threads, stop, true).map(Some).unwrap())
        };
        std::thread::spawn(run);
        // Each thread is kept, and one request is left.
        for n in 0..=threads {
            let (path, tell) = (path.clone(), tell.clone());
            std::thread::spawn(move || {
                std::fs::metadata(path).unwrap_err();
                tell.send(None)
            });
            if n < threads {
                // The others wait for the lock of `go`.
                comes.recv_timeout(LONG).unwrap();
            }
        }
        std::thread::sleep(Duration::from_millis(50));
        // As where a ring failed, and the abort came to nothing.
        stop.stop();
        drop(go);
        let mut all: Vec<_> = (0..threads + 2).map(|_| told.recv_timeout(LONG).unwrap()).collect();
        all.sort_by_key(Option::is_some);
        assert_eq!(all.pop(), Some(Some(Ended::Aborted)));
        assert_eq!((*fs.ended.lock(), place.is_mounted()), (Some(true), false));
        assert!(!notifier.inval_inode(1, -1, 0).unwrap(), "nobody has the device");
        assert!(!is_connected());
    }
}
