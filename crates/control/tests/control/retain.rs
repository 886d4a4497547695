//! Whose word counts on what is kept.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use silt_control::retention::{Known, Source};
use silt_control::{
    Clean, ControlError, Host, Kind, MountInfo, Request, Response, Result, Retain, Retention, execute,
};
use silt_device::{Device, MemoryDevice};
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Time, Tree, Volume};
use silt_format::{Cno, Ino};
use silt_fs::{Context, Fs, SetAttr, WriteFlags};

use crate::common::ROOT;

const SIZE: u64 = 64 << 20;
/// Who owns the root directory, and its group.
const OWNER: (u32, u32) = (1000, 100);

/// A file system in memory.
struct FsHost {
    device: Arc<dyn Device>,
    fs: Mutex<Fs>,
    fails: AtomicBool,
    known: Known,
    /// How often it was told that the file is another one.
    changed: Mutex<Vec<Ino>>,
}

impl FsHost {
    fn new() -> Self {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(SIZE));
        let parameters =
            Parameters { blocks_per_segment: 64, now: 1_000, owner: OWNER, ..Parameters::default() };
        Plan::new(parameters, SIZE).unwrap().write(&*device, false).unwrap();
        let (mut volume, _) = Volume::open(device.clone(), &OpenOptions::default()).unwrap();
        volume.take_over(2_000).unwrap();
        let fs = Mutex::new(Fs::new(volume, &silt_fs::Options::default()));
        FsHost {
            device,
            fs,
            fails: AtomicBool::new(false),
            known: Known::default(),
            changed: Mutex::default(),
        }
    }

    /// Makes the file as somebody would by hand: owner, group and mode of the directory and the file.
    fn by_hand(&self, dir: (u32, u32, u32), file: (u32, u32, u32)) {
        let ctx =
            |(uid, gid, _): (u32, u32, u32)| Context { uid, gid, privileged: true, ..Context::default() };
        let mut fs = self.fs.lock().unwrap();
        let d = fs.mkdir(&ctx(dir), Ino::ROOT, b".silt", dir.2).unwrap().ino;
        let f = fs.create(&ctx(file), d, b"retention", file.2).unwrap().ino;
        fs.write(&ctx(file), f, 0, b"nothing\n", WriteFlags::default()).unwrap();
        for (ino, (uid, gid, mode)) in [(d, dir), (f, file)] {
            let set = SetAttr { mode: Some(mode), uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
            fs.setattr(&ctx(file), ino, &set).unwrap();
        }
    }

    fn ask(&self, request: Request) -> Result<Retention> {
        let mut shown = None;
        execute(self, &ROOT, request, &mut |part| {
            if let Response::Retention(r) = part {
                shown = Some(*r);
            }
            Ok(())
        })?;
        Ok(shown.unwrap())
    }

    fn set(&self, wish: &str) -> Result<Retention> {
        self.ask(Request::SetRetention(Retain { wish: Some(wish.to_owned()), floor: None }))
    }
}

impl Host for FsHost {
    fn volume(&self) -> &Path {
        Path::new("/memory")
    }

    fn with_volume(&self, f: &mut dyn FnMut(&mut Volume)) {
        f(self.fs.lock().unwrap().volume_mut());
    }

    fn with_fs(&self, f: &mut dyn FnMut(&mut Fs)) {
        f(&mut self.fs.lock().unwrap());
    }

    fn sync(&self) -> Result<u64> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(ControlError::new(Kind::Io, "the device is gone"));
        }
        Ok(self.fs.lock().unwrap().volume_mut().checkpoint(3_000)?.0)
    }

    fn device(&self) -> Arc<dyn Device> {
        self.device.clone()
    }

    fn mounted(&self) -> Option<MountInfo> {
        None
    }

    fn retention_known(&self) -> Option<&Known> {
        Some(&self.known)
    }

    fn retention_changed(&self, dir: Ino) {
        self.changed.lock().unwrap().push(dir);
    }
}

#[test]
fn a_file_counts_only_if_it_is_of_root_or_the_owner() {
    let (root, owner, other) = ((0, 0), OWNER, (1001, 1001));
    let of = |(uid, gid): (u32, u32), mode| (uid, gid, mode);
    for (dir, file, counts) in [
        (of(owner, 0o755), of(owner, 0o644), true),
        (of(root, 0o755), of(owner, 0o600), true),
        (of(owner, 0o755), of(root, 0o644), true),
        // As with a umask of 002.
        (of(owner, 0o775), of(owner, 0o664), true),
        ((1000, 200, 0o775), of(owner, 0o644), false),
        (of(owner, 0o755), (1000, 200, 0o664), false),
        (of(owner, 0o777), of(owner, 0o644), false),
        (of(owner, 0o1777), of(owner, 0o644), false),
        (of(owner, 0o755), of(owner, 0o646), false),
        (of(other, 0o755), of(other, 0o644), false),
        (of(other, 0o755), of(root, 0o644), false),
        (of(owner, 0o755), of(other, 0o644), false),
    ] {
        let host = FsHost::new();
        host.by_hand(dir, file);
        let r = host.ask(Request::ShowRetention).unwrap();
        let said = format!("{dir:?} {file:?}: {r:?}");
        if counts {
            assert_eq!((r.wish.as_str(), r.problem), ("nothing", None), "{said}");
            host.set("all for 1 hour").unwrap();
            continue;
        }
        assert!(r.wish.starts_with("all for 1 day, one an hour"), "as if there were none: {said}");
        assert!(r.problem.is_some_and(|p| p.starts_with(".silt/retention does not count: ")), "{said}");
        // What is written into a directory of others would not count either.
        let dir_is_theirs = dir.0 != 1001 && dir.2 & 0o2 == 0 && dir.1 != 200;
        match host.set("all for 1 hour") {
            Ok(r) => assert!(dir_is_theirs && r.wish == "all for 1 hour" && r.problem.is_none(), "{said}"),
            Err(e) => {
                assert!(!dir_is_theirs && e.kind == Kind::NotPermitted && e.hint.is_some(), "{e}: {said}");
                assert!(e.message.starts_with(".silt "), "{e}");
            }
        }
    }
}

#[test]
fn a_directory_of_others_without_a_file_changes_nothing() {
    let host = FsHost::new();
    host.fs
        .lock()
        .unwrap()
        .mkdir(&Context { uid: 1001, gid: 1001, ..Context::default() }, Ino::ROOT, b".silt", 0o755)
        .unwrap();
    let r = host.ask(Request::ShowRetention).unwrap();
    assert!(r.problem.is_none(), "{r:?}");
    assert_eq!(host.set("nothing").unwrap_err().kind, Kind::NotPermitted);
    let fs = &mut *host.fs.lock().unwrap();
    let dir = fs.lookup(Tree::Live, Ino::ROOT, b".silt").unwrap();
    assert!(fs.lookup(Tree::Live, dir.ino, b"retention").is_err());
    assert_eq!((dir.uid, dir.mtime), (1001, Time::default()));
}

/// What was put in place counts at once, even if it cannot be made durable, and whoever remembers names has to know.
#[test]
fn a_change_is_told_even_if_it_cannot_be_written() {
    let host = FsHost::new();
    let told = || host.changed.lock().unwrap().len();
    host.set("all for 1 hour").unwrap();
    assert_eq!(told(), 1);
    host.fails.store(true, Ordering::Relaxed);
    assert_eq!(host.set("nothing").unwrap_err().message, "the device is gone");
    assert_eq!(host.ask(Request::ShowRetention).unwrap().wish, "nothing");
    let dir = host.fs.lock().unwrap().lookup(Tree::Live, Ino::ROOT, b".silt").unwrap().ino;
    assert_eq!(*host.changed.lock().unwrap(), [dir, dir]);
    // What makes no sense changes nothing.
    assert_eq!(host.set("an hour").unwrap_err().kind, Kind::Invalid);
    assert_eq!(told(), 2);
}

/// Nobody can tell what else is in it.
#[test]
fn half_of_a_file_that_makes_no_sense_is_set_only_where_the_other_half_is_known() {
    let mut host = FsHost::new();
    host.ask(Request::SetRetention(Retain {
        wish: Some("all for 2 days".to_owned()),
        floor: Some("all for 1 hour".to_owned()),
    }))
    .unwrap();
    let spoil = |host: &FsHost| {
        let mut fs = host.fs.lock().unwrap();
        let dir = fs.lookup(Tree::Live, Ino::ROOT, b".silt").unwrap().ino;
        let file = fs.lookup(Tree::Live, dir, b"retention").unwrap().ino;
        let ctx = Context { privileged: true, ..Context::default() };
        fs.write(&ctx, file, 0, b"kep", WriteFlags::default()).unwrap();
    };
    spoil(&host);
    let shown = host.ask(Request::ShowRetention).unwrap();
    assert_eq!((&shown.wish[..], &shown.floor[..]), ("all for 2 days", "all for 1 hour"));
    assert!(shown.problem.is_some_and(|p| p.ends_with("; what it said before holds")));
    let set = host.set("all for 3 days").unwrap();
    assert_eq!((&set.wish[..], &set.floor[..], set.problem), ("all for 3 days", "all for 1 hour", None));
    spoil(&host);
    host.known = Known::default();
    let shown = host.ask(Request::ShowRetention).unwrap();
    assert!(shown.floor.starts_with("all for ever, up to checkpoint "), "{}", shown.floor);
    assert_eq!(shown.floor_from, Source::Unknown);
    let refused = host.set("nothing").unwrap_err();
    assert!(refused.kind == Kind::Invalid && refused.hint.is_some(), "{refused}");
    let both = Retain { wish: Some("default".to_owned()), floor: Some("nothing".to_owned()) };
    let set = host.ask(Request::SetRetention(both)).unwrap();
    assert_eq!((&set.floor[..], set.floor_from, set.problem), ("nothing", Source::Volume, None));
}

/// A host with a past of some 40 MiB, of which nobody wishes anything.
fn with_a_past() -> FsHost {
    let host = FsHost::new();
    host.set("nothing").unwrap();
    let ctx = Context { privileged: true, ..Context::default() };
    let file = host.fs.lock().unwrap().create(&ctx, Ino::ROOT, b"f", 0o644).unwrap().ino;
    for round in 0..40 {
        let data = vec![round; 1 << 20];
        host.fs.lock().unwrap().write(&ctx, file, 0, &data, WriteFlags::default()).unwrap();
        host.sync().unwrap();
    }
    host
}

/// Has a floor set as soon as a request tells how far it is; how many checkpoints there were then, how many of those are
/// left, and what came of the request.
fn with_a_floor_set_meanwhile(request: Request) -> (usize, usize, Result<()>) {
    let host = with_a_past();
    let numbers = || {
        let (fs, mut all) = (host.fs.lock().unwrap(), BTreeSet::new());
        let listed = fs.volume().for_each_checkpoint(Cno(1), |c| {
            all.insert(c.cno);
            ControlFlow::Continue(())
        });
        listed.unwrap();
        all
    };
    let mut then = None;
    let done = execute(&host, &ROOT, request, &mut |part| {
        let tells = matches!(part, Response::CleanProgress(_) | Response::Progress(_));
        if tells && then.is_none() {
            let floor = Retain { wish: None, floor: Some("all for ever".to_owned()) };
            host.ask(Request::SetRetention(floor)).unwrap();
            then = Some(numbers());
        }
        Ok(())
    });
    let then = then.unwrap();
    (then.len(), then.intersection(&numbers()).count(), done)
}

#[test]
fn a_floor_that_is_set_during_a_cleaning_holds_for_the_rest_of_it() {
    let clean = Clean { at_once: Some(1), ..Clean::default() };
    let (then, left, done) = with_a_floor_set_meanwhile(Request::Clean(clean));
    done.unwrap();
    assert!(then > 20 && left == then, "{left} of {then}");
}

#[test]
fn a_floor_that_is_set_during_a_resize_holds_for_the_rest_of_it() {
    let (then, left, done) = with_a_floor_set_meanwhile(Request::Resize { size: Some(24 << 20) });
    assert_eq!(done.map_err(|e| e.kind), Err(Kind::NoSpace), "all of the past has no room in it");
    assert!(then > 20 && left == then, "{left} of {then}");
}

/// Who edits the file by hand cuts it off before the new words are there, for which there may be no space yet.
#[test]
fn a_file_that_says_nothing_for_a_moment_takes_no_floor_away() {
    let mut host = FsHost::new();
    let words = Retain { wish: Some("all for 2 days".to_owned()), floor: Some("all for 1 hour".to_owned()) };
    host.ask(Request::SetRetention(words)).unwrap();
    let ctx = Context { privileged: true, ..Context::default() };
    let dir = host.fs.lock().unwrap().lookup(Tree::Live, Ino::ROOT, b".silt").unwrap().ino;
    let holds = |host: &FsHost, why: &str| {
        let shown = host.ask(Request::ShowRetention).unwrap();
        assert_eq!((&shown.wish[..], &shown.floor[..]), ("all for 2 days", "all for 1 hour"), "{why}");
        let problem = shown.problem.unwrap();
        assert!(problem.contains(why) && problem.ends_with("; what it said before holds"), "{problem}");
    };
    {
        let mut fs = host.fs.lock().unwrap();
        let file = fs.lookup(Tree::Live, dir, b"retention").unwrap().ino;
        fs.setattr(&ctx, file, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    }
    holds(&host, "it is empty");
    host.fs.lock().unwrap().unlink(&ctx, dir, b"retention").unwrap();
    host.fs.lock().unwrap().symlink(&ctx, dir, b"retention", b"elsewhere").unwrap();
    holds(&host, "it is no plain file");
    host.fs.lock().unwrap().unlink(&ctx, dir, b"retention").unwrap();
    host.fs.lock().unwrap().rmdir(&ctx, Ino::ROOT, b".silt").unwrap();
    let plain = host.fs.lock().unwrap().create(&ctx, Ino::ROOT, b".silt", 0o644).unwrap().ino;
    holds(&host, ".silt is no directory");
    // One of somebody else is as none.
    let theirs = SetAttr { uid: Some(7), ..SetAttr::default() };
    host.fs.lock().unwrap().setattr(&ctx, plain, &theirs).unwrap();
    let shown = host.ask(Request::ShowRetention).unwrap();
    assert!(shown.floor_from == Source::Default && shown.problem.unwrap().contains("belongs to user 7"));
    host.fs.lock().unwrap().unlink(&ctx, Ino::ROOT, b".silt").unwrap();
    host.known = Known::default();
    let shown = host.ask(Request::ShowRetention).unwrap();
    assert_eq!((shown.floor_from, shown.problem), (Source::Default, None));
}

/// Editors put what they write beside it, and move the old one away first.
#[test]
fn a_file_that_is_away_for_a_moment_takes_no_floor_away() {
    let mut host = FsHost::new();
    let words = Retain { wish: Some("all for 2 days".to_owned()), floor: Some("all for 1 hour".to_owned()) };
    host.ask(Request::SetRetention(words)).unwrap();
    let ctx = Context { privileged: true, ..Context::default() };
    let dir = host.fs.lock().unwrap().lookup(Tree::Live, Ino::ROOT, b".silt").unwrap().ino;
    let rename = |host: &FsHost, from: &[u8], to: &[u8]| {
        host.fs.lock().unwrap().rename(&ctx, dir, from, dir, to, 0).unwrap();
    };
    rename(&host, b"retention", b"retention~");
    let shown = host.ask(Request::ShowRetention).unwrap();
    assert_eq!((&shown.wish[..], &shown.floor[..]), ("all for 2 days", "all for 1 hour"));
    assert!(shown.problem.is_some_and(|p| p.contains("is not there")), "it is said");
    rename(&host, b"retention~", b"retention");
    let shown = host.ask(Request::ShowRetention).unwrap();
    assert_eq!((&shown.floor[..], shown.problem), ("all for 1 hour", None));
    // Half of it set anew meanwhile keeps the other half.
    rename(&host, b"retention", b"retention~");
    let set = host.set("all for 3 days").unwrap();
    assert_eq!((&set.wish[..], &set.floor[..], set.problem), ("all for 3 days", "all for 1 hour", None));
    // Of one that was there never, nothing is remembered.
    rename(&host, b"retention", b"retention~");
    host.known = Known::default();
    let shown = host.ask(Request::ShowRetention).unwrap();
    assert_eq!((shown.floor_from, shown.problem), (Source::Default, None));
}
