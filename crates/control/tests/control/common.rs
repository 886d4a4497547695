//! A host over a volume in memory.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use silt_control::scrub::{ScrubAction, ScrubStatus};
use silt_control::{
    Caller, Checkpoint, ControlError, Damage, Host, MomentMount, MountInfo, Request, Response, Result,
    UnmountWhat, Wanted, execute,
};
use silt_device::{Device, MemoryDevice};
use silt_engine::mkfs::{Parameters, Plan};
use silt_engine::{OpenOptions, Volume};
use silt_verify::scrub::{Finding, Owner, Part, Spot, State};

pub const ROOT: Caller = Caller { uid: 0, pid: 1 };
/// Who mounted.
pub const OWNER: Caller = Caller { uid: 1000, pid: 2 };
pub const OTHER: Caller = Caller { uid: 1001, pid: 3 };

/// A file in a directory that is closed to others.
pub const SECRET: &str = "/closed/secret";

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
    pub is_pressing: AtomicBool,
    /// How long an unmount takes, in ms; whether one has begun, and ended.
    pub unmounting: AtomicU64,
    pub unmount_begun: AtomicBool,
    pub unmount_ended: AtomicBool,
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
            is_pressing: AtomicBool::new(false),
            unmounting: AtomicU64::new(0),
            unmount_begun: AtomicBool::new(false),
            unmount_ended: AtomicBool::new(false),
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

    fn lost(&self) -> Vec<String> {
        vec![format!("the newest data of {SECRET} (inode 12)")]
    }

    fn damage(&self) -> (Vec<Damage>, u64) {
        let damage = Damage {
            path: Some(SECRET.into()),
            inode: 12,
            checkpoint: None,
            start: None,
            end: None,
            what: "it cannot be read".to_owned(),
            first: 1_000,
            times: 1,
            block: None,
        };
        let log = Damage { path: None, inode: 0, block: Some(4711), ..damage.clone() };
        (vec![damage, log], 0)
    }

    fn scrub(&self, _: &ScrubAction) -> Result<ScrubStatus> {
        let owner = || Owner {
            inode: 12,
            path: Some(SECRET.into()),
            part: Part::Data,
            first: 0,
            blocks: 1,
            since: 1,
            until: None,
        };
        let spot = Spot {
            block: 2,
            byte: 0,
            bytes: 1,
            what: "content".to_owned(),
            flip: None,
            owner: Some(owner()),
            file_byte: None,
            entry_of: Some(12),
            entry_path: Some(SECRET.into()),
            unused: false,
        };
        let finding = Finding {
            kind: silt_verify::scrub::Kind::Checksum,
            segment: 0,
            log: 1,
            blocks: 2,
            spots: vec![spot],
            spots_left_out: 0,
            suspects: vec![owner()],
            suspects_left_out: 0,
            unknown: 0,
            records_lost: false,
            one_in: None,
        };
        let mut pass = State::new();
        pass.findings = vec![finding];
        Ok(ScrubStatus { pass: Some(pass), ..ScrubStatus::default() })
    }

    fn wants_space(&self, _: u64) -> Wanted {
        match (self.is_pressing.load(Ordering::Relaxed), self.wants_space.load(Ordering::Relaxed)) {
            (true, _) => Wanted::AtOnce,
            (false, true) => Wanted::Soon,
            (false, false) => Wanted::Not,
        }
    }

    fn mount_moment(&self, _: &Caller, mount: &MomentMount) -> Result<PathBuf> {
        mount.at.resolve(self, mount.snapshot_only)?;
        self.mounted.lock().unwrap().push(mount.clone());
        Ok(mount.dir.clone())
    }

    fn unmount(&self, _: &Caller, what: &UnmountWhat) -> Result<Vec<PathBuf>> {
        self.unmount_begun.store(true, Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_millis(self.unmounting.load(Ordering::Relaxed)));
        self.unmount_ended.store(true, Ordering::Relaxed);
        Ok(match what {
            UnmountWhat::Dir(dir) => vec![dir.clone()],
            UnmountWhat::Everything => vec!["/live".into()],
        })
    }
}
