//! Requests that change something: where too much waits for a log they wait, too, and where the inodes
//! concerned ask for it (`chattr +S` and `+D`, the options `sync` and `dirsync`) they are answered when they
//! are durable. Callers that wait at the same time share one log.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use silt_engine::Tree;
use silt_format::Ino;
use silt_fs::{Fs, FsError};
use silt_fuse::{Errno, NodeId};

use crate::convert::{self, ino};
use crate::core::{Core, Want};
use crate::damage::Met;
use crate::notices::Notice;

thread_local! {
    /// What is done on this thread is answered, whatever comes of it.
    static IS_LAST: Cell<bool> = const { Cell::new(false) };
}

/// Has `f` answer what it does, if with an error, where it would be put back for want of space.
pub fn for_the_last_time<T>(f: impl FnOnce() -> T) -> T {
    let before = IS_LAST.replace(true);
    let result = f();
    IS_LAST.set(before);
    result
}

/// What a change takes.
#[derive(Debug, Clone, Copy)]
pub struct Takes {
    /// Bytes of data that it brings.
    pub bytes: usize,
    /// Blocks that it wants promised: there must be space for them, and they take no memory.
    pub reserves: u64,
    /// Whether it may take space at all. What deletes does not, nor what changes attributes.
    pub space: bool,
    /// All that it takes was promised to it by `fallocate`.
    pub promised: bool,
}

impl Takes {
    pub const NOTHING: Takes = Takes { bytes: 0, reserves: 0, space: false, promised: false };
    pub const NAMES: Takes = Takes { bytes: 0, reserves: 0, space: true, promised: false };

    pub fn data(bytes: usize) -> Self {
        Takes { bytes, ..Takes::NAMES }
    }

    pub fn reserving(blocks: u64) -> Self {
        Takes { reserves: blocks, ..Takes::NAMES }
    }

    /// Blocks for which there must be space, those included that are promised to others; where it wants some promised
    /// itself, whoever made it counted those.
    pub fn blocks(&self, fs: &Fs) -> u64 {
        if !self.space {
            return 0;
        }
        let block_size = u64::from(fs.volume().geometry().block_size);
        let others = if self.promised || self.reserves > 0 { 0 } else { fs.kept_for_promises() };
        (self.bytes as u64 / block_size + 2).saturating_add(self.reserves).saturating_add(others)
    }
}

/// What is not done yet.
#[derive(Debug)]
pub enum Undone<C> {
    /// It finds too little space, and may find it when the cleaner was there: [`Change::wait`].
    Refused(C),
    /// A part of it is done: [`Change::go_on`].
    InPart(C),
    /// It finds too little space as long as the end of the volume is kept from use: [`Change::go_on`], too.
    Confined(C),
}

impl<C> Undone<C> {
    /// What it is.
    pub fn into_change(self) -> C {
        match self {
            Undone::Refused(change) | Undone::InPart(change) | Undone::Confined(change) => change,
        }
    }
}

/// A request that changes something. `run` does it, or leaves all as it was and may be called again, and says which inode
/// its answer hands out to the kernel, if any.
pub struct Change<F, A> {
    /// Names it makes or takes away, each with its directory.
    pub names: Vec<(NodeId, Vec<u8>)>,
    /// The inode whose content or attributes it changes.
    pub node: Option<NodeId>,
    pub takes: Takes,
    pub run: F,
    pub answer: A,
    /// A part of it is done: should the rest be refused, the kernel does not know that.
    pub begun: bool,
}

impl<F, A, T> Change<F, A>
where
    F: FnMut(&mut Fs) -> Result<(T, Option<Ino>), FsError>,
    A: FnOnce(Result<T, Errno>) + Send + 'static,
    T: Send + 'static,
{
    /// Does it now, or when there is room.
    pub fn start(self, core: &Arc<Core>)
    where
        F: Send + 'static,
    {
        let fs = core.fs.lock();
        if must_wait(core, &fs, self.takes) {
            drop(fs);
            self.wait(core);
            return;
        }
        match self.attempt(core, fs) {
            None => {}
            Some(Undone::Refused(change)) => change.wait(core),
            Some(Undone::InPart(change)) => change.go_on_with_parts(core),
            Some(Undone::Confined(change)) => change.go_on(core, false),
        }
    }

    /// Does it when there is room.
    pub fn wait(self, core: &Arc<Core>)
    where
        F: Send + 'static,
    {
        core.pace(self.takes, Box::new(move |core| self.late(core)));
    }

    /// Goes on with it when the part that is done is written.
    pub fn go_on_with_parts(self, core: &Arc<Core>)
    where
        F: Send + 'static,
    {
        Change { begun: true, ..self }.go_on(core, true);
    }

    /// Answers it with an error.
    fn refuse(self, core: &Core, errno: Errno) {
        let told = self.node.filter(|_| self.begun).map(Notice::Content);
        (self.answer)(Err(errno));
        core.tell(told);
    }

    /// Goes on with it when something was written, which is begun with if it `is_due`.
    pub fn go_on(self, core: &Arc<Core>, is_due: bool)
    where
        F: Send + 'static,
    {
        core.go_on(is_due, Box::new(move |core| self.late(core)));
    }

    fn late(self, core: &Arc<Core>)
    where
        F: Send + 'static,
    {
        let fs = core.fs.lock();
        match core.stall() {
            Some(e) if core.is_full(&fs, 0) => {
                drop(fs);
                self.refuse(core, Errno::from_raw(e));
            }
            _ => match self.attempt(core, fs) {
                None => {}
                Some(Undone::Refused(change)) => {
                    core.put_back(change.takes, Box::new(move |core| change.late(core)));
                }
                Some(Undone::InPart(change)) => change.go_on_with_parts(core),
                Some(Undone::Confined(change)) => change.go_on(core, false),
            },
        }
    }

    /// Does it now. What cannot be done yet comes back.
    pub fn attempt(mut self, core: &Arc<Core>, mut fs: MutexGuard<'_, Fs>) -> Option<Undone<Self>> {
        let is_sync = wants_sync(core, &mut fs, &self.names, self.node);
        let before = if is_sync { self.named(&mut fs) } else { Vec::new() };
        let result = self.outcome(core, &mut fs);
        if matches!(result, Err(FsError::InParts)) {
            drop(fs);
            core.touched();
            return Some(Undone::InPart(self));
        }
        let blocks = self.takes.blocks(&fs);
        // While the device takes nothing no pass comes.
        let is_refused = core.stall().is_none() && matches!(result, Err(FsError::NoSpace));
        if is_refused
            && !IS_LAST.get()
            && core.space.may_help(fs.volume(), blocks)
            && core.space.may_come(fs.volume(), blocks)
        {
            return Some(Undone::Refused(self));
        }
        // Somebody else's wish for a smaller volume is no reason to refuse a deletion: it is done with some time, and when it makes
        // a step there may be room.
        let is_confined = fs.volume().is_confined() && fs.volume().failure().is_none();
        if is_refused && !self.takes.space && is_confined {
            return Some(Undone::Confined(self));
        }
        self.end(core, fs, result, before);
        None
    }

    /// What its names name now.
    fn named(&self, fs: &mut Fs) -> Vec<NodeId> {
        let found = self.names.iter().filter_map(|(dir, name)| fs.lookup(Tree::Live, ino(*dir), name).ok());
        found.map(|stat| convert::node(stat.ino)).collect()
    }

    fn outcome(&mut self, core: &Core, fs: &mut Fs) -> Result<(T, Option<Ino>), FsError> {
        // Where what waits finds no space, what frees some goes on.
        let frees = !self.takes.space && core.stall() == Some(libc::ENOSPC);
        if core.ending.load(Ordering::Relaxed) && !frees {
            return Err(FsError::ReadOnly);
        }
        if core.stall().is_none() {
            return (self.run)(fs);
        }
        // While the device takes nothing no part is written, and none goes on.
        fs.at_once(&mut self.run)
    }

    /// Answers it, when it is durable where that is asked for. `touched`: what its names named before.
    fn end(
        self,
        core: &Arc<Core>,
        mut fs: MutexGuard<'_, Fs>,
        result: Result<(T, Option<Ino>), FsError>,
        mut touched: Vec<NodeId>,
    ) {
        let durable = result.is_ok() && wants_sync(core, &mut fs, &self.names, self.node);
        if durable {
            touched.extend(self.named(&mut fs));
        }
        let unfrozen = fs.volume().unfrozen_blocks();
        if matches!(result, Err(FsError::NoSpace)) {
            let blocks = self.takes.blocks(&fs);
            core.space.refused(fs.volume_mut(), blocks);
        }
        drop(fs);
        let (value, handed_out) = match result {
            Ok(done) => done,
            Err(e) => {
                let name = self.names.first().map(|(dir, name)| (*dir, &name[..]));
                let errno = errno(core, Tree::Live, name, &e);
                return self.refuse(core, errno);
            }
        };
        let Change { names, node, takes, answer, .. } = self;
        core.touched();
        // Data is counted by its blocks.
        if takes.bytes == 0 {
            core.count_change();
        }
        core.maybe_write_back(unfrozen);
        if !durable {
            return answer(Ok(value));
        }
        let want = node.map_or(Want::Changes, |n| Want::File(ino(n)));
        let shared = core.clone();
        core.sync(
            want,
            Box::new(move |result| match result {
                Ok(()) => answer(Ok(value)),
                Err(e) => {
                    // It is done, but not durable. The kernel hears of an error and takes it for not done.
                    if let Some(ino) = handed_out
                        && let Err(e) = shared.fs.lock().forget(ino, 1)
                    {
                        tracing::warn!("{e}");
                    }
                    answer(Err(Errno::from_raw(e)));
                    // Links and change times of what is named have changed, too, and other names may lead to it.
                    let names = names.into_iter().map(|(dir, name)| Notice::Name(dir, name));
                    let touched = touched.into_iter().map(Notice::Attributes);
                    shared.tell(names.chain(touched).chain(node.map(Notice::Content)));
                }
            }),
        );
    }
}

/// Whether a change has to wait for room, or for those that came before it and wait.
pub fn must_wait(core: &Core, fs: &Fs, takes: Takes) -> bool {
    core.must_wait(fs, takes) || core.queue.lock().paced.is_ahead_of(takes)
}

fn wants_sync(core: &Core, fs: &mut Fs, names: &[(NodeId, Vec<u8>)], node: Option<NodeId>) -> bool {
    let o = &core.options;
    (o.sync && (node.is_some() || !names.is_empty()))
        || (o.dirsync && !names.is_empty())
        || names.iter().any(|(dir, _)| fs.is_sync(ino(*dir)))
        || node.is_some_and(|n| fs.is_sync(ino(n)))
}

/// The error number for the kernel; damage goes to the log and the super blocks. `name`: the directory and the name
/// that were asked for, if any were.
pub fn errno(core: &Core, tree: Tree, name: Option<(NodeId, &[u8])>, e: &FsError) -> Errno {
    if let FsError::Io { ino: of, what, .. } = e {
        let name = name.map(|(dir, name)| (ino(dir), name));
        core.met_damage(Met { name, ..Met::of(tree, Ino(*of), what.clone()) });
    }
    Errno::from_raw(e.errno())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use parking_lot::Mutex;
    use silt_fs::Context;

    use super::*;
    use crate::config::MountOptions;
    use crate::fault_tests::{mkfs_of, mkfs_with, open};

    /// What is promised is no space for others: they wait for the cleaner as where nothing is clean.
    #[test]
    fn who_was_promised_nothing_waits_for_the_cleaner() {
        let core = Core::new(open(Arc::new(mkfs_of(64 << 20, 64))), MountOptions::default());
        let ctx = Context { privileged: true, ..Context::default() };
        let whose = {
            let mut fs = core.fs.lock();
            let whose = fs.create(&ctx, Ino::ROOT, b"f", 0o644).unwrap().ino;
            fs.create(&ctx, Ino::ROOT, b"g", 0o644).unwrap();
            fs.sync_all(3000).unwrap();
            let mut mib = 64;
            while fs.fallocate(&ctx, whose, 0, 0, mib << 20).is_err() {
                mib -= 1;
            }
            whose
        };
        core.space.enable(true);
        let attempt = |ino: Ino, promised: bool| {
            let (tell, told) = std::sync::mpsc::channel();
            let run = move |fs: &mut Fs| {
                let flags = silt_fs::WriteFlags::default();
                fs.write(&Context { privileged: true, ..Context::default() }, ino, 0, &[1; 1 << 20], flags)
                    .map(|n| (n, None))
            };
            let takes = Takes { promised, ..Takes::data(1 << 20) };
            let answer = move |result: Result<usize, Errno>| tell.send(result.is_ok()).unwrap();
            let change = Change { names: Vec::new(), node: None, takes, run, answer, begun: false };
            let waits = change.attempt(&core, core.fs.lock()).is_some();
            (waits, told.try_recv().ok())
        };
        let other = core.fs.lock().lookup(silt_engine::Tree::Live, Ino::ROOT, b"g").unwrap().ino;
        assert!(core.fs.lock().is_promised(whose, 0, 1 << 20) && !core.fs.lock().is_promised(other, 0, 1));
        assert_eq!(attempt(other, false), (true, None));
        assert!(core.space.is_wanted());
        assert_eq!(attempt(whose, true), (false, Some(true)));
        // Where nothing more comes, who was promised space is not refused with the others.
        {
            let fs = core.fs.lock();
            let then = (fs.volume().given_up(), fs.volume().rewritten_blocks(), Duration::from_secs(3600));
            core.space.ran(None, Some(then));
        }
        assert_eq!(attempt(other, false), (false, Some(false)));
        assert_eq!(attempt(whose, true), (false, Some(true)));
    }

    /// Somebody may wait for space as long as a volume is being made smaller.
    #[test]
    fn who_deletes_does_not_wait_for_who_waits_for_space() {
        let core = Core::new(open(Arc::new(mkfs_of(64 << 20, 64))), MountOptions::default());
        let ctx = Context { privileged: true, ..Context::default() };
        {
            let mut fs = core.fs.lock();
            fs.create(&ctx, Ino::ROOT, b"f", 0o644).unwrap();
            fs.sync_all(3000).unwrap();
            let mut sizes = (2..40).rev();
            assert!(sizes.any(|n| {
                let v = fs.volume_mut();
                v.confine(Some(n)).is_ok() && v.check_space(2).is_err()
            }));
            assert!(!fs.volume().is_tight());
        }
        core.space.enable(true);
        let told = Arc::new(Mutex::new(Vec::new()));
        let start = |what: &'static str, takes: Takes| {
            let (told, ctx) = (told.clone(), ctx.clone());
            let run = move |fs: &mut Fs| match what {
                "create" => fs.create(&ctx, Ino::ROOT, b"g", 0o644).map(|_| ((), None)),
                _ => fs.unlink(&ctx, Ino::ROOT, b"f").map(|_| ((), None)),
            };
            let answer = move |result: Result<(), Errno>| told.lock().push((what, result.is_ok()));
            Change { names: Vec::new(), node: None, takes, run, answer, begun: false }.start(&core);
        };
        start("create", Takes::NAMES);
        assert!(told.lock().is_empty());
        start("unlink", Takes::NOTHING);
        assert_eq!(*told.lock(), [("unlink", true)]);
        // Neither does one that has to wait itself.
        let again = told.clone();
        core.pace(Takes::NOTHING, Box::new(move |_| again.lock().push(("chmod", true))));
        core.fs.lock().volume_mut().confine(None).unwrap();
        while let Some(paced) = core.queue.lock().paced.pop() {
            paced(&core);
        }
        assert_eq!(*told.lock(), [("unlink", true), ("chmod", true), ("create", true)]);
    }

    /// While the end is kept from use there may be too little room for a large deletion, and later there is.
    #[test]
    fn who_deletes_much_waits_until_the_volume_is_smaller() {
        let core = Core::new(open(Arc::new(mkfs_with(64 << 20, 32, 1024))), MountOptions::default());
        let ctx = Context { privileged: true, ..Context::default() };
        let file = {
            let mut fs = core.fs.lock();
            let file = fs.create(&ctx, Ino::ROOT, b"f", 0o644).unwrap().ino;
            for at in 0..15_000 {
                let data = [1; 1024];
                fs.write(&ctx, file, at * 2048, &data, silt_fs::WriteFlags::default()).unwrap();
            }
            fs.sync_all(3000).unwrap();
            let mut sizes = (2..2000).rev();
            assert!(sizes.any(|n| {
                let v = fs.volume_mut();
                v.confine(Some(n)).is_ok() && !v.is_tight() && v.check_change(true, 15_000).is_err()
            }));
            file
        };
        core.space.enable(true);
        let told = Arc::new(Mutex::new(Vec::new()));
        let (tell, set) = (told.clone(), silt_fs::SetAttr { size: Some(0), ..Default::default() });
        let run = move |fs: &mut Fs| fs.setattr(&ctx, file, &set).map(|stat| (stat.size, None));
        let answer = move |result: Result<u64, Errno>| tell.lock().push(result.map_err(|e| e.raw()));
        Change { names: Vec::new(), node: None, takes: Takes::NOTHING, run, answer, begun: false }
            .start(&core);
        let go_on = || {
            let parts = std::mem::take(&mut core.queue.lock().parts);
            assert_eq!(
                (parts.len(), core.queue.lock().write_back),
                (1, false),
                "nothing is written for it alone"
            );
            parts.into_iter().for_each(|part| part(&core));
        };
        go_on();
        assert!(told.lock().is_empty());
        core.fs.lock().volume_mut().confine(None).unwrap();
        go_on();
        assert_eq!(*told.lock(), [Ok(0)]);
    }

    /// Who takes space is refused for what the newest pass found, not for what is believed for a while.
    #[test]
    fn who_takes_space_is_refused_only_when_a_pass_found_nothing() {
        let core = Core::new(open(Arc::new(mkfs_of(64 << 20, 64))), MountOptions::default());
        let ctx = Context { privileged: true, ..Context::default() };
        {
            let mut fs = core.fs.lock();
            fs.create(&ctx, Ino::ROOT, b"f", 0o644).unwrap();
            fs.sync_all(3000).unwrap();
            // As much is kept from use as leaves no space.
            let mut sizes = (2..40).rev();
            assert!(sizes.any(|n| {
                let v = fs.volume_mut();
                v.confine(Some(n)).is_ok() && v.check_space(2).is_err()
            }));
        }
        core.space.enable(true);
        let told = Arc::new(Mutex::new(Vec::new()));
        let refused = || {
            let told = told.clone();
            let run = |fs: &mut Fs| Ok((fs.create(&ctx, Ino::ROOT, b"g", 0o644)?.ino, None));
            let answer = move |result: Result<Ino, Errno>| told.lock().push(result.map_err(|e| e.raw()));
            let change =
                Change { names: Vec::new(), node: None, takes: Takes::NAMES, run, answer, begun: false };
            change.attempt(&core, core.fs.lock()).is_some()
        };
        let found_nothing = || {
            let fs = core.fs.lock();
            let then = (fs.volume().given_up(), fs.volume().rewritten_blocks(), Duration::from_secs(3600));
            core.space.ran(None, Some(then));
        };
        assert!(refused() && told.lock().is_empty(), "no pass was made");
        found_nothing();
        core.fs.lock().unlink(&ctx, Ino::ROOT, b"f").unwrap();
        assert!(refused() && told.lock().is_empty(), "something was given up since");
        found_nothing();
        assert!(!refused());
        assert_eq!(*told.lock(), [Err(libc::ENOSPC)]);
    }
}
