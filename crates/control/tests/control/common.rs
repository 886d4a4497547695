//! A host over a volume in memory.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use silt_control::{
    Caller, Checkpoint, ControlError, Host, MomentMount, MountInfo, Request, Response, Result, UnmountWhat,
    execute,
};
use silt_device::{Device, MemoryDevice};
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Volume};

pub const ROOT: Caller = Caller { uid: 0, pid: 1 };
/// Who mounted.
pub const OWNER: Caller = Caller { uid: 1000, pid: 2 };
pub const OTHER: Caller = Caller { uid: 1001, pid: 3 };

pub struct MemoryHost {
    path: PathBuf,
    device: Arc<dyn Device>,
    pub volume: Mutex<Volume>,
    pub mount: Mutex<Option<MountInfo>>,
    pub clock: AtomicU64,
    pub syncs: AtomicU64,
    /// The checkpoint of the next sync is given up before that returns, as where others write and space is short.
    pub gives_up: AtomicBool,
    /// Somebody waits for space.
    pub wants_space: AtomicBool,
    /// What was asked to be mounted.
    pub mounted: Mutex<Vec<MomentMount>>,
}

impl MemoryHost {
    pub fn new() -> Self {
        let size = 256 << 20;
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(size));
        let plan = Plan::new(
            Parameters {
                block_size: 1024,
                blocks_per_segment: 256,
                label: b"memory".to_vec(),
                uuid: [7; 16],
                crc_seed: 1,
                now: 1_000,
                block_count: true,
                ..Parameters::default()
            },
            size,
        )
        .unwrap();
        plan.write(&*device, false).unwrap();
        let (mut volume, _) = Volume::open(device.clone(), &OpenOptions::default()).unwrap();
        volume.take_over(1_000).unwrap();
        MemoryHost {
            path: PathBuf::from("/memory"),
            device,
            volume: Mutex::new(volume),
            mount: Mutex::new(None),
            clock: AtomicU64::new(1_001),
            syncs: AtomicU64::new(0),
            gives_up: AtomicBool::new(false),
            wants_space: AtomicBool::new(false),
            mounted: Mutex::new(Vec::new()),
        }
    }

    /// As if a daemon of user 1000 had mounted it.
    pub fn mount(&self, allow_other: bool) {
        *self.mount.lock().unwrap() = Some(MountInfo {
            mounts: Vec::new(),
            since: 1_000,
            fs_type: "fuse.silt".to_owned(),
            sync_arrives: Some(false),
            uid: OWNER.uid,
            allow_other,
        });
    }

    /// Makes checkpoints until the newest has number `last`; checkpoint `n` is made at second
    /// `1000 + n`.
    pub fn make_checkpoints(&self, last: u64) {
        let mut v = self.volume.lock().unwrap();
        while v.last_log().cno < last {
            let next = v.last_log().cno + 1;
            // Any change will do.
            if next.is_multiple_of(2) {
                v.make_snapshot(silt_format::Cno(1)).unwrap();
            } else {
                v.unmake_snapshot(silt_format::Cno(1)).unwrap();
            }
            v.checkpoint(1_000 + next).unwrap();
            while v.due_super_write(1_000 + next).is_some() {}
        }
        self.clock.store(1_001 + last, Ordering::Relaxed);
    }

    pub fn ask(&self, caller: Caller, request: Request) -> Result<Vec<Response>> {
        let mut parts = Vec::new();
        execute(self, &caller, request, &mut |part| {
            parts.push(part);
            Ok(())
        })?;
        Ok(parts)
    }

    pub fn list(&self, query: silt_control::CheckpointQuery) -> Vec<Checkpoint> {
        let parts = self.ask(ROOT, Request::ListCheckpoints(query)).unwrap();
        checkpoints(parts)
    }
}

pub fn checkpoints(parts: Vec<Response>) -> Vec<Checkpoint> {
    parts
        .into_iter()
        .flat_map(|p| match p {
            Response::Checkpoints(batch) => {
                assert!(!batch.is_empty() && batch.len() <= 1000, "a batch of {}", batch.len());
                batch
            }
            other => panic!("{other:?}"),
        })
        .collect()
}

impl Host for MemoryHost {
    fn volume(&self) -> &Path {
        &self.path
    }

    fn with_volume(&self, f: &mut dyn FnMut(&mut Volume)) {
        f(&mut self.volume.lock().unwrap());
    }

    fn sync(&self) -> Result<u64> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        let mut v = self.volume.lock().unwrap();
        v.finish_construction(now).map_err(ControlError::from)?;
        let made = v.checkpoint(now).map_err(ControlError::from)?.0;
        drop(v);
        if self.gives_up.swap(false, Ordering::Relaxed) {
            self.make_checkpoints(made + 1);
            self.volume.lock().unwrap().delete_checkpoints(made..made + 1).unwrap();
        }
        Ok(made)
    }

    fn device(&self) -> Arc<dyn Device> {
        self.device.clone()
    }

    fn mounted(&self) -> Option<MountInfo> {
        self.mount.lock().unwrap().clone()
    }

    fn wants_space(&self, _: u64) -> bool {
        self.wants_space.load(Ordering::Relaxed)
    }

    fn mount_moment(&self, _: &Caller, mount: &MomentMount) -> Result<PathBuf> {
        mount.at.resolve(self, mount.snapshot_only)?;
        self.mounted.lock().unwrap().push(mount.clone());
        Ok(mount.dir.clone())
    }

    fn unmount(&self, _: &Caller, what: &UnmountWhat) -> Result<Vec<PathBuf>> {
        Ok(match what {
            UnmountWhat::Dir(dir) => vec![dir.clone()],
            UnmountWhat::Everything => vec!["/live".into()],
        })
    }
}
