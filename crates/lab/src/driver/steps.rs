//! One step after the other, and what its answer promises.

use std::sync::atomic::Ordering;

use silt_daemon::Want;
use silt_device::{Device as _, Times};
use silt_engine::Tune;
use silt_format::Cno;
use silt_model::manifest::Columns;
use silt_model::op::{FileRef, Op};
use silt_model::target::Reply;

use super::Player;
use super::mounting::How;
use crate::history::{Done, Promise, Synced};
use crate::workload::{Fails, Step};
use crate::{During, Failure, Result, oracle};

/// What a step promises, and whether it was answered with success.
type Answer = (Promise, bool);

impl Player<'_> {
    /// Everything is made durable; an error promises nothing.
    pub(super) fn all(&mut self, step: usize, want: Want) -> Answer {
        match self.sync(step, &[want]) {
            Ok(()) => (Promise::All, true),
            Err(_) => (Promise::Nothing, false),
        }
    }

    pub(super) fn step(&mut self, number: usize, step: &Step) -> Result<Done> {
        let now = self.clock.fetch_add(self.pace, Ordering::Relaxed) + self.pace;
        self.struck = self.disk.inner().struck().reads;
        self.number = number;
        let (promise, answered) = match step {
            Step::Op(Op::Remount) if self.hurt || !self.mounts.is_empty() => {
                self.mount_again(number, How::Closed)?
            }
            Step::Restart => self.mount_again(number, How::Killed)?,
            Step::PowerCut => self.mount_again(number, How::Cut)?,
            Step::Op(op) => self.operation(number, op)?,
            Step::DataSyncs(paths) => {
                let files: Vec<_> = paths.iter().map(|p| FileRef::Path(p.clone())).collect();
                self.data_sync(number, &files)
            }
            Step::WriteBack => {
                self.swap();
                self.writer.write_back();
                self.swap();
                self.written(number);
                (Promise::Nothing, true)
            }
            Step::DeleteCheckpoints => self.delete_checkpoints(number)?,
            Step::Grow => {
                self.all(number, Want::All);
                let grown = self.target.fs.volume_mut().grow(None, now).map(|_| ());
                self.written(number);
                match self.set(grown, "growing")? {
                    true => (Promise::All, true),
                    false => (Promise::Nothing, false),
                }
            }
            Step::Label(n) => {
                let label = Some(format!("volume-{n}").into_bytes());
                let tuned = self.target.fs.volume_mut().tune(&Tune { label, ..Tune::default() }).map(|_| ());
                (Promise::Nothing, self.set(tuned, "tuning")?)
            }
            Step::FailWrites(n) => {
                self.disk.inner().fail_writes(0..self.disk.len(), Times::Next(*n));
                (Promise::Nothing, true)
            }
            Step::FailFlushes(n) => {
                self.disk.inner().fail_flushes(Times::Next(*n));
                (Promise::Nothing, true)
            }
            Step::Full(full) => {
                self.disk.inner().set_full(*full);
                (Promise::Nothing, true)
            }
            Step::Fails(how) => {
                self.fail(how);
                (Promise::Nothing, true)
            }
            Step::Works => self.works(number)?,
            Step::Clean | Step::CleanAll => {
                let cleaned = self.clean(now, matches!(step, Step::CleanAll))?;
                self.written(number);
                (Promise::Nothing, cleaned)
            }
            Step::CleanBeside => (Promise::Nothing, self.clean_beside(number, now)?),
            Step::Shrink(bytes) => {
                let done = self.shrink(*bytes, now)?;
                self.written(number);
                (Promise::Nothing, done)
            }
            Step::Discard => {
                let done = self.discard()?;
                (Promise::Nothing, done)
            }
        };
        if self.disk.inner().struck().reads > self.struck_before && !self.ended {
            self.look_for_losses(number, answered && !matches!(promise, Promise::Nothing))?;
        }
        Ok(Done { state: self.state.clone(), cno: self.known, promise, answered, half_set: self.half_set })
    }

    /// Breaks the device, as far as it is not.
    fn fail(&mut self, how: &Fails) {
        (self.broken, self.hurt) = (true, true);
        self.unreadable |= matches!(how, Fails::Reads { .. } | Fails::Dies { .. });
        let fault = self.disk.inner();
        let all = 0..self.disk.len();
        let segment = u64::from(self.workload.segment) * u64::from(self.workload.block_size);
        let later = |after: &u32, times: &u32| Times::Later { after: *after, times: *times };
        match how {
            Fails::Reads { after, times } => fault.fail_reads(all, later(after, times)),
            Fails::Writes { after, times } => fault.fail_writes(all, later(after, times)),
            Fails::Flushes { after, times } => fault.fail_flushes(later(after, times)),
            Fails::Place(n) => fault.fail_writes(n * segment..(n + 1) * segment, Times::Always),
            Fails::Dies { after, keep } => fault.cut_power_after((*after).into(), *keep),
        }
    }

    pub(super) fn heal(&mut self) {
        self.disk.inner().heal();
        (self.broken, self.unreadable) = (false, false);
    }

    /// The device works again: what could not be written is, or writing has ended.
    fn works(&mut self, number: usize) -> Result<Answer> {
        self.heal();
        let mut told = Ok(());
        // What could not be read when it was written is told once.
        for _ in 0..3 {
            told = self.sync(number, &[Want::All]);
            if told.is_ok() {
                return Ok((Promise::All, true));
            }
        }
        let volume = self.target.fs.volume();
        let no_room = volume.available_segments() < volume.segments_with_space(0);
        if volume.failure().is_none() && !no_room {
            return Err(told
                .err()
                .unwrap_or_else(|| Failure::new("?"))
                .at("the device works, and a sync does not"));
        }
        Ok((Promise::Nothing, false))
    }

    /// Whether a change of the super blocks was made; it may be refused only where the device fails.
    fn set(&mut self, done: silt_engine::Result<()>, what: &str) -> Result<bool> {
        match done {
            Err(_) if self.hurt => {
                self.half_set = true;
                self.unchanged(&format!("after {what} was refused"))?;
                Ok(false)
            }
            done => done.during(what).map(|()| true),
        }
    }

    fn delete_checkpoints(&mut self, number: usize) -> Result<Answer> {
        let volume = self.target.fs.volume_mut();
        if volume.is_constructing() {
            return Ok((Promise::Nothing, false));
        }
        let newest = volume.last_log().cno;
        match volume.delete_checkpoints(1..newest) {
            Err(silt_engine::Error::NoSpace) => Ok((Promise::Nothing, false)),
            Err(_) if self.hurt => {
                self.unchanged("after checkpoints could not be deleted")?;
                Ok((Promise::Nothing, false))
            }
            done => done.during("deleting checkpoints").map(|_| self.all(number, Want::All)),
        }
    }

    fn discard(&mut self) -> Result<bool> {
        if self.target.fs.volume().failure().is_some() {
            return Ok(true);
        }
        self.swap();
        let done = self.writer.discard(true);
        self.swap();
        match done {
            Err(_) if self.hurt => self.unchanged("after a discard failed").map(|()| false),
            done => done.during("discarding").map(|()| true),
        }
    }

    /// Has segments emptied, as the daemon does by itself, or as who asks for it has it: snapshots and the newest state
    /// alone are kept.
    fn clean(&mut self, now: u64, all: bool) -> Result<bool> {
        let volume = self.target.fs.volume();
        if volume.is_constructing() || volume.failure().is_some() {
            return Ok(true);
        }
        let options = cleaning(now);
        self.swap();
        let cleaned = match all {
            true => self.writer.clean_all(&options),
            false => self.writer.clean(&options, &mut |_| {}),
        };
        self.swap();
        self.cleaned(cleaned)
    }

    fn cleaned(&mut self, cleaned: silt_engine::Result<silt_cleaner::Outcome>) -> Result<bool> {
        use silt_engine::Error;
        match cleaned {
            // A log that could not be written is tried again by whoever comes next.
            Ok(_) | Err(Error::NoSpace | Error::Stale | Error::Failed(_)) => Ok(true),
            Err(_) if self.hurt => self.unchanged("after a cleaning failed").map(|()| false),
            Err(e) => Err(Failure(e.to_string())),
        }
    }

    /// The same, and somebody makes a snapshot of a checkpoint that is to go, after it was planned.
    fn clean_beside(&mut self, number: usize, now: u64) -> Result<bool> {
        // What is durable now is known; what comes is with the snapshot.
        if !self.all(number, Want::All).1 || self.target.fs.volume().failure().is_some() {
            return Ok(false);
        }
        let newest = self.known;
        let mut old = None;
        let mut before = newest;
        let mut meanwhile = |volume: &mut silt_engine::Volume| {
            let found =
                (1..newest).rev().find(|c| volume.checkpoint_info(Cno(*c)).is_ok_and(|i| !i.snapshot));
            if let (None, Some(cno)) = (old, found)
                && !volume.is_constructing()
                && volume.make_snapshot(Cno(cno)).is_ok()
            {
                (old, before) = (Some(cno), volume.last_log().cno);
            }
        };
        let options = cleaning(now);
        self.swap();
        let cleaned = self.writer.clean(&options, &mut meanwhile);
        self.swap();
        let with = old;
        let until = self.target.fs.volume().last_log().cno.min(before);
        for cno in self.known + 1..=until {
            let made = self.made_of(&[(number, self.state.clone())]);
            self.checkpoints.put(cno, made);
            self.known = cno;
        }
        self.snapshots.extend(with);
        let done = self.cleaned(cleaned)?;
        Ok(self.all(number, Want::All).1 && done)
    }

    /// Makes the volume smaller where it can be.
    fn shrink(&mut self, bytes: u64, now: u64) -> Result<bool> {
        use silt_engine::Error;
        let volume = self.target.fs.volume();
        if volume.is_constructing()
            || volume.failure().is_some()
            || bytes >= volume.super_block().dev_size.get()
        {
            return Ok(true);
        }
        self.swap();
        let done = self.writer.shrink(bytes, now);
        self.swap();
        match done {
            Ok(_) | Err(Error::NoSpace | Error::Stale | Error::Constructing) => Ok(true),
            done => self.set(done.map(|_| ()), "shrinking"),
        }
    }

    /// Where something could not be read, a checkpoint may have been made without it, which somebody hears of. What comes
    /// after that cannot be foretold.
    pub(super) fn look_for_losses(&mut self, number: usize, promised: bool) -> Result<()> {
        let options = silt_verify::Options::default();
        let leaks = || silt_verify::check(self.disk.inner().inner(), &options).errors().next().is_some();
        if self.writer.met_damage() || leaks() {
            self.ended = true;
            self.damaged = Some(number);
        }
        if self.disk.inner().struck().reads == self.struck {
            return Ok(());
        }
        if self.target.fs.volume().is_constructing() {
            // It is not there yet, and a cut may leave it.
            self.damaged.get_or_insert(number);
        }
        if self.target.fs.volume().failure().is_some() {
            return Ok(());
        }
        self.heal();
        // A directory is not read again at once.
        let Ok(tree) = self.target.tree(silt_fs::Tree::Live, Columns::ALL) else {
            self.ended = true;
            return Ok(());
        };
        let Err(lost) = oracle::same(&self.state.tree, &tree, Columns::MODEL) else { return Ok(()) };
        if promised {
            return Err(lost.at("content is lost, and success was told (remembered / found)"));
        }
        self.ended = true;
        let mut made = self.made_of(&[(number, self.state.clone())]);
        made.lossy = true;
        for cno in self.done.last().map_or(0, |d| d.cno) + 1..=self.known + 1 {
            self.checkpoints.put(cno, made.clone());
        }
        Ok(())
    }

    fn operation(&mut self, number: usize, op: &Op) -> Result<Answer> {
        let done = Ok(Reply::Done);
        match op {
            // What cannot be opened cannot be synced: the target says why not.
            Op::Fsync { file } | Op::Fdatasync { file } if self.model.clone().apply(op) == done => {
                if matches!(op, Op::Fdatasync { .. }) {
                    return Ok(self.data_sync(number, std::slice::from_ref(file)));
                }
                let want = self.inode(file).map_or(Want::All, Want::File);
                Ok(self.all(number, want))
            }
            Op::Sync | Op::Checkpoint => {
                self.model.apply(op).map_err(|e| Failure(format!("{e:?}")))?;
                Ok(self.all(number, Want::All))
            }
            Op::Snapshot => {
                // Only what is durable is made a snapshot.
                if !self.all(number, Want::All).1 {
                    return Ok((Promise::Nothing, false));
                }
                let cno = self.known;
                match self.target.fs.volume_mut().make_snapshot(Cno(cno)) {
                    Err(silt_engine::Error::NoSpace) => {
                        self.fewer_snapshots = true;
                        return Ok((Promise::Nothing, false));
                    }
                    Err(_) if self.hurt => {
                        self.unchanged("after a snapshot was refused")?;
                        return Ok((Promise::Nothing, false));
                    }
                    made => made.during("making a snapshot")?,
                };
                self.model.apply(op).map_err(|e| Failure(format!("{e:?}")))?;
                self.snapshots.insert(cno);
                self.numbers.insert(self.made, cno);
                self.all_numbers.insert(self.made, cno);
                self.made += 1;
                Ok(self.all(number, Want::All))
            }
            Op::RemoveSnapshot { id } => {
                if !self.all(number, Want::All).1 {
                    return Ok((Promise::Nothing, false));
                }
                // What a mount did not find has none.
                let known = self.model.apply(op).map_err(|e| Failure(format!("{e:?}")));
                if self.mounts.is_empty() && !self.hurt && !self.fewer_snapshots {
                    known?;
                }
                let Some(cno) = self.numbers.remove(id) else { return Ok((Promise::Nothing, true)) };
                // One checkpoint may serve several, and the newest one cannot be unmade.
                if self.numbers.values().any(|c| *c == cno) || cno >= self.known {
                    self.numbers.insert(u32::MAX - id, cno);
                    return Ok((Promise::Nothing, true));
                }
                match self.target.fs.volume_mut().unmake_snapshot(Cno(cno)) {
                    Err(silt_engine::Error::NoSpace) => {
                        self.numbers.insert(u32::MAX - id, cno);
                        return Ok((Promise::Nothing, false));
                    }
                    Err(_) if self.hurt => {
                        self.unchanged("after a snapshot was not unmade")?;
                        return Ok((Promise::Nothing, false));
                    }
                    unmade => unmade.during("unmaking a snapshot")?,
                };
                self.snapshots.remove(&cno);
                Ok(self.all(number, Want::All))
            }
            Op::Remount => {
                if !self.all(number, Want::All).1 {
                    return Ok((Promise::Nothing, false));
                }
                self.apply(op)?.map_err(|e| Failure(format!("mounting again: {e:?}")))?;
                self.written(number);
                Ok((Promise::All, true))
            }
            _ => {
                let outcome = self.apply(op)?;
                Ok((Promise::Nothing, outcome.is_ok()))
            }
        }
    }

    pub(super) fn data_sync(&mut self, number: usize, files: &[FileRef]) -> Answer {
        let (mut wants, mut synced) = (Vec::new(), Vec::new());
        for file in files {
            let (Some(ino), Some(object)) = (self.inode(file), self.object(file)) else { continue };
            wants.push((ino, Want::Data(ino)));
            let (body, size) = self.content(object);
            synced.push((ino, Synced { object, body, size, state: self.state.clone() }));
        }
        // In the order in which the log writer takes them.
        wants.sort_by_key(|(ino, _)| *ino);
        synced.sort_by_key(|(ino, _)| *ino);
        synced.dedup_by_key(|(ino, _)| *ino);
        if wants.is_empty() {
            // Nobody asked: nothing is promised of what earlier callers were refused.
            return (Promise::Nothing, true);
        }
        let wants: Vec<Want> = wants.into_iter().map(|(_, want)| want).collect();
        let answered = self.sync(number, &wants).is_ok();
        (Promise::Data(synced.into_iter().map(|(_, s)| s).collect()), answered)
    }

    fn content(&self, object: usize) -> (silt_model::manifest::Body, Option<u64>) {
        use silt_model::manifest::Body;
        match &self.model.node(object).kind {
            silt_model::model::Kind::File(data) => (Body::Data(data.digest()), Some(data.size())),
            _ => (Body::Nothing, None),
        }
    }
}

fn cleaning(now: u64) -> silt_cleaner::Options {
    let mut options = silt_cleaner::Options { now, ..Default::default() };
    // Several steps of some segments each.
    options.limits.segments = 4;
    options
}
