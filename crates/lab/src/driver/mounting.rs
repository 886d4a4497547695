//! Mounting a volume again, whatever the mount before left, and knowing what must be there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use silt_daemon::{MountOptions, Stepped, Want};
use silt_device::{CrashOptions, CrashStates, Device, Event, Fault, Outcome, Recorder};
use silt_engine::{OpenOptions, Volume};
use silt_fs::{Fs, Tree};
use silt_fs_model::FsTarget;
use silt_model::manifest::Columns;
use silt_model::op::Op;

use super::{Disk, Player, nobody, state_of};
use crate::history::{History, Life, Made, Progress, Promise};
use crate::oracle::{self, Look};
use crate::workload::{BEGIN, Workload};
use crate::{During, Failure, Result};

/// Checkpoints that closing a volume makes at most.
const AT_THE_END: u64 = 3;

/// How the mount before ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// Unmounted, as far as the device lets it.
    Closed,
    /// At once.
    Killed,
    /// With the power.
    Cut,
}

/// Opens for writing. In some workloads files of a few blocks end in parts, as large ones do.
fn open(workload: &Workload, device: Arc<dyn Device>, now: u64) -> Result<Fs> {
    let options = OpenOptions { now, cache_bytes: 8 << 20, ..OpenOptions::default() };
    let (mut volume, _) = Volume::open(device, &options).during("opening the volume")?;
    volume.take_over(now).during("taking the volume over")?;
    let usual = silt_fs::Options::default();
    let ends = if workload.seed % 4 == 3 { 2 } else { usual.ends };
    Ok(Fs::new(volume, &silt_fs::Options { ends, ..usual }))
}

/// The file system of a device, and what makes it durable.
pub(super) fn mount(
    workload: &Workload,
    disk: &Arc<Disk>,
    clock: &Arc<AtomicU64>,
) -> Result<(FsTarget, Stepped)> {
    let device: Arc<dyn Device> = disk.clone();
    let fs = open(workload, device.clone(), clock.load(Ordering::Relaxed))?;
    let options =
        MountOptions { barrier: workload.barrier, order_strict: workload.strict, ..MountOptions::default() };
    let told = clock.clone();
    let mut writer = Stepped::new(fs, options, Box::new(move || told.load(Ordering::Relaxed)));
    // Segments are too small here for logs that a mount would write so.
    if workload.seed % 2 == 1 {
        writer = writer.with_overlap();
    }
    let fs = std::mem::replace(&mut *writer.fs(), nobody(workload)?);
    Ok((FsTarget::over(fs, device, silt_fs::Options::default(), BEGIN), writer))
}

impl Player<'_> {
    /// Ends the mount and makes another: all that was promised is there, and the steps to come go on from what is found.
    pub(super) fn mount_again(&mut self, number: usize, how: How) -> Result<(Promise, bool)> {
        let closed = how == How::Closed && self.close(number)?;
        if self.disk.inner().struck().reads > self.struck_before {
            self.look_for_losses(number, closed)?;
            if self.ended {
                return Ok((Promise::Nothing, false));
            }
        }
        // The other file system goes before the disk is looked at: nothing writes any more.
        let none = nobody(self.workload)?;
        self.target.fs = none;
        // What a host shows after something failed may not be there, which only losing it tells.
        if how == How::Cut || self.is_in_doubt() {
            self.cut(number)?;
        }
        let looked = oracle::disk(self.disk.inner().inner());
        let before = self.workload.barrier;
        // What both super blocks say is put right by the mount.
        let look = Look { before, settings: self.half_set, write: false, ..oracle::ALL };
        let seen = oracle::look(looked, look).map_err(|e| e.at("as the mount before left it"))?;
        let progress = Progress { begun: number, answered: number - 1 };
        let history = History {
            lives: Vec::new(),
            done: self.done.clone(),
            checkpoints: self.checkpoints.clone(),
            mounts: self.mounts.clone(),
            damaged: None,
            deep: Vec::new(),
            parts: 0,
        };
        let found = oracle::recognise(&history, progress, &seen, self.workload.barrier)
            .map_err(|e| e.at("as the mount before left it"))?;
        if found.made.lossy || seen.full {
            // What it holds is not known, or nothing can be written any more.
            self.ended = true;
            return Ok((Promise::Nothing, false));
        }
        if closed {
            oracle::same(&self.state.tree, &seen.live, Columns::MODEL)
                .map_err(|e| e.at("it was unmounted (remembered / found)"))?;
        }
        let mut model = (*found.state.model).clone();
        found.synced.iter().for_each(|s| model.take_content(s.object, &s.state.model));
        // Nobody holds anything open.
        let _ = model.apply(&Op::Remount);
        (self.model, self.state) = (model.clone(), state_of(&model));
        self.snapshots = seen.snapshots.clone();
        self.numbers = self.all_numbers.clone();
        self.numbers.retain(|_, cno| seen.snapshots.contains(cno));
        self.stuck.clear();
        self.checkpoints.end(seen.cno, number);
        let whole = found.made.whole;
        let exactly = Made { step: number, state: found.state, or: Vec::new(), whole, ..found.made };
        self.checkpoints.tell_apart(seen.cno, number, exactly);
        self.mounts.push(number);
        self.known = seen.cno;
        // What a mount that fails makes of it may be there as well.
        for cno in seen.cno + 1..=seen.cno + AT_THE_END {
            let made = self.made_of(&[(number, self.state.clone())]);
            self.checkpoints.put(cno, made);
        }
        if !self.mount_anyhow()? {
            return self.mount_again(number, How::Cut);
        }
        let newest = self.target.fs.volume().last_log().cno;
        self.known = newest;
        if !self.unreadable {
            let tree = self.target.tree(Tree::Live, Columns::ALL);
            oracle::same(&self.state.tree, &tree.during("reading the tree")?, Columns::MODEL)
                .map_err(|e| e.at("mounted again (remembered / found)"))?;
        }
        Ok((Promise::All, true))
    }

    /// Mounts, where the device does not let it once that works again; false where what it shows is in doubt by then.
    fn mount_anyhow(&mut self) -> Result<bool> {
        let mounted = mount(self.workload, &self.disk, &self.clock);
        let (target, writer) = match mounted {
            Err(_) if self.broken => {
                self.heal();
                if self.is_in_doubt() {
                    return Ok(false);
                }
                mount(self.workload, &self.disk, &self.clock).map_err(|e| e.at("the device works again"))?
            }
            mounted => mounted?,
        };
        (self.target, self.writer) = (target, writer);
        (self.hurt, self.half_set) = (self.broken, false);
        self.struck_before = self.struck;
        Ok(true)
    }

    /// Unmounts as the daemon does: nothing is closed that could not be written. Whether it could be.
    fn close(&mut self, number: usize) -> Result<bool> {
        let synced = self.sync(number, &[Want::All]);
        let now = self.now();
        let volume = self.target.fs.volume();
        if synced.is_err() || volume.failure().is_some() {
            return Ok(false);
        }
        // What is made of it may be there whether it is closed or not.
        let newest = volume.last_log().cno;
        for cno in newest + 1..=newest + AT_THE_END {
            let made = self.made_of(&[(number, self.state.clone())]);
            self.checkpoints.put(cno, made);
        }
        let closed = self.target.fs.forget_all().map_err(|e| Failure(e.to_string()));
        let closed = closed.and_then(|()| self.target.fs.volume_mut().close(now).during("unmounting"));
        match closed {
            Err(_) if self.hurt => Ok(false),
            closed => closed.map(|()| true),
        }
    }

    /// Whether what the device shows may not be what it keeps: something failed, whatever flush was good since. Whoever mounts what was
    /// not unmounted reads what it keeps ([`silt_device::Device::forget_cached`]).
    fn is_in_doubt(&self) -> bool {
        self.disk.record().events().iter().any(|e| match e {
            Event::FlushFailed { .. } => true,
            Event::Change(c) => matches!(c.outcome, Outcome::Failed(_)),
            _ => false,
        })
    }

    /// The power fails: what was not flushed is lost, and the device works again.
    fn cut(&mut self, number: usize) -> Result<()> {
        let events = self.disk.record().events();
        let options = CrashOptions { seed: self.workload.seed, max_states: usize::MAX, per_flush: 1 };
        let last = CrashStates::new(&self.base, events.clone(), options).last();
        let Some(state) = last else { return Ok(()) };
        let state = state.during("making a crash state")?;
        self.lives.push(Life { base: self.base.fork(), events });
        self.base = state.device.fork();
        self.disk = Arc::new(Recorder::new(Fault::new(state.device)));
        (self.broken, self.unreadable, self.struck, self.struck_before) = (false, false, 0, 0);
        // All that came before was answered.
        self.disk.mark(2 * number as u64 - 1);
        self.disk.mark(2 * number as u64);
        Ok(())
    }
}
