//! A volume in memory that control requests are executed on, as a daemon or a command would.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use silt_control::past::PastQuery;
use silt_control::{
    Caller, CheckpointQuery, ControlError, Host, Kind, Moment, MountInfo, Request, Result, Retain,
    SegmentQuery, Tune, execute,
};
use silt_device::Device;
use silt_engine::{OpenOptions, Volume};
use silt_fs::Fs;

use crate::paths::{CACHE, NOW, Seen};
use crate::watched::Watched;

struct Held {
    fs: Mutex<Fs>,
    device: Arc<Watched>,
}

impl Host for Held {
    fn volume(&self) -> &Path {
        Path::new("/hostile")
    }

    fn with_volume(&self, f: &mut dyn FnMut(&mut Volume)) {
        f(self.fs.lock().volume_mut());
    }

    fn with_fs(&self, f: &mut dyn FnMut(&mut Fs)) {
        f(&mut self.fs.lock());
    }

    fn sync(&self) -> Result<u64> {
        Ok(self.fs.lock().volume_mut().checkpoint(NOW)?.0)
    }

    fn device(&self) -> Arc<dyn Device> {
        self.device.clone()
    }

    fn mounted(&self) -> Option<MountInfo> {
        None
    }

    fn now(&self) -> u64 {
        NOW
    }
}

fn ask(host: &Held, request: Request) {
    // Of endless lists the first parts will do.
    let mut parts = 0;
    let mut out = |_| {
        parts += 1;
        if parts < 200 { Ok(()) } else { Err(ControlError::new(Kind::Unavailable, "enough")) }
    };
    let _ = execute(host, &Caller { uid: 0, pid: 1 }, request, &mut out);
}

fn open(device: &Arc<Watched>, read_only: bool) -> Option<Held> {
    let options = OpenOptions { read_only, cache_bytes: CACHE, now: NOW, seed: 3, ..OpenOptions::default() };
    let (mut volume, _) = Volume::open(device.clone() as Arc<dyn Device>, &options).ok()?;
    if !read_only {
        volume.take_over(NOW).ok()?;
    }
    let fs = Fs::new(volume, &silt_fs::Options::default());
    Some(Held { fs: Mutex::new(fs), device: device.clone() })
}

/// Every request that only looks.
pub fn look(device: &Arc<Watched>, _: &mut Seen) {
    let Some(host) = open(device, true) else { return };
    ask(&host, Request::Status);
    ask(&host, Request::ShowSettings);
    for reverse in [false, true] {
        let query = CheckpointQuery { reverse, minor: true, ..CheckpointQuery::default() };
        ask(&host, Request::ListCheckpoints(query.clone()));
        ask(&host, Request::ListCheckpoints(CheckpointQuery { snapshots_only: true, ..query }));
    }
    ask(&host, Request::ListSegments(SegmentQuery { all: true, ..SegmentQuery::default() }));
    ask(&host, Request::ListSegments(SegmentQuery { live: Some(60), ..SegmentQuery::default() }));
    ask(&host, Request::Map);
    ask(&host, Request::ShowRetention);
    ask(&host, Request::PreviewRetention(Retain { wish: Some("one a day for ever".into()), floor: None }));
    ask(&host, Request::Account);
    for below in ["", "/dir"] {
        ask(&host, Request::ListPast(PastQuery { below: below.into(), top: Some(20) }));
    }
    ask(&host, Request::DumpSegments { segments: (0..20).chain([u64::MAX]).collect() });
    for at in
        [Moment::Time(NOW), Moment::Time(1_700_000_020), Moment::Checkpoint(2), Moment::Checkpoint(u64::MAX)]
    {
        ask(&host, Request::FindMoment { at, snapshot_only: false });
    }
}

/// Every request that changes the volume.
pub fn change(device: &Arc<Watched>, _: &mut Seen) {
    let Some(host) = open(device, false) else { return };
    ask(&host, Request::MakeCheckpoint { snapshot: true });
    ask(&host, Request::ChangeMode { checkpoints: (1..12).collect(), snapshot: true });
    ask(&host, Request::ChangeMode { checkpoints: (1..8).chain([u64::MAX]).collect(), snapshot: false });
    ask(&host, Request::RemoveCheckpoints { start: 2, end: 5 });
    ask(&host, Request::RemoveCheckpoints { start: 0, end: u64::MAX });
    let uuid = Some("01234567-89ab-cdef-0123-456789abcdef".into());
    ask(&host, Request::Tune(Tune { label: Some("x".repeat(90).as_str().into()), uuid, ..Tune::default() }));
    ask(&host, Request::SetRetention(Retain { wish: Some("one an hour for ever".into()), floor: None }));
    ask(&host, Request::Resize { size: None });
    ask(&host, Request::Resize { size: Some(device.len() / 4 * 3) });
    ask(&host, Request::Trim { minimum: 0 });
    ask(&host, Request::Sync);
    let _ = host.fs.lock().volume_mut().close(NOW + 1);
}
