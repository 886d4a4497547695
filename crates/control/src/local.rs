//! A volume that nobody has mounted: opened for one request and closed after it.
//!
//! Looking takes a lock that other readers share and writes not one byte; changing takes the
//! volume alone, counts as a mount in the super block, and leaves the volume cleanly unmounted.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use silt_device::{Access, Device, FileDevice};
use silt_engine::{OpenOptions, OpenReport, Volume};
use silt_format::super_block::KNOWN_RO_FEATURES;
use silt_fs::Fs;
use silt_verify::Behind;

use crate::connect::Control;
use crate::error::plain;
use crate::execute::{execute, settings};
use crate::host::{Caller, Host, MountInfo};
use crate::open_with_room::open_with_room;
use crate::retention::{Given, Known};
use crate::{ControlError, Kind, Request, Response, Result, lost};

/// An unmounted volume.
pub struct LocalVolume {
    path: PathBuf,
    /// Where the volume is mounted that it lies in.
    within: Option<PathBuf>,
}

impl LocalVolume {
    /// Names the image file or block device; it is opened by each request.
    pub fn new(path: &Path) -> Result<Self> {
        let path = path.canonicalize().map_err(|e| no_such(path, &e))?;
        Ok(LocalVolume { path, within: None })
    }

    /// The same of a file that lies in a volume mounted there, which may be what is meant.
    pub(crate) fn within(self, mounted: &Path) -> Self {
        LocalVolume { within: Some(mounted.to_owned()), ..self }
    }

    fn run(&self, request: Request, out: &mut dyn FnMut(Response) -> Result<()>) -> Result<()> {
        let access = if request.writes() { Access::ReadWrite } else { Access::ReadOnly };
        let file = Arc::new(silt_device::open(&self.path, access, &silt_device::OpenOptions::default())?);
        match request {
            // The super block says it all, and may be all that is left of a volume.
            Request::ShowSettings => settings::of_device(&*file, out),
            Request::Tune(tune) => {
                check_features(&*file)?;
                settings::tune_device(&*file, &tune, out)
            }
            request => self.with_opened(file, access, request, out),
        }
    }

    fn with_opened(
        &self,
        file: Arc<FileDevice>,
        access: Access,
        request: Request,
        out: &mut dyn FnMut(Response) -> Result<()>,
    ) -> Result<()> {
        if access == Access::ReadWrite {
            check_features(&*file)?;
        }
        let now = now();
        let device: Arc<dyn Device> = file.clone();
        let behind = lost::look(&*file);
        let options = OpenOptions {
            read_only: access == Access::ReadOnly,
            now,
            running: Some(crate::running),
            seed: getrandom::u64().unwrap_or(now),
            backed: true,
            unreached: behind.as_ref().map_or_else(Vec::new, |behind| behind.segments.clone()),
            ..OpenOptions::default()
        };
        let (mut volume, report, room) = open_with_room(&device, &options, &Given::default(), now)?;
        if access == Access::ReadWrite
            && let Err(e) = volume.take_over(now)
        {
            // That may be why.
            room.map_or(Ok(()), |room| out(Response::Notice(room)))?;
            return Err(e.into());
        }
        let lost = behind.as_ref().is_some_and(Behind::is_lost);
        let mut notes = notes(&report, access, lost);
        notes.extend(room);
        notes.extend(volume.super_block_note());
        let mut fs = Fs::new(volume, &silt_fs::Options { seed: options.seed, ..Default::default() });
        let lost = behind.as_ref().map_or_else(Vec::new, |behind| lost::sentences(behind, &mut fs));
        // A status carries them itself, and what any power cut leaves.
        if request == Request::Status {
            notes.extend(behind.iter().flat_map(Behind::untold));
        } else {
            let mut told = notes.iter().chain(&lost);
            told.try_for_each(|note| out(Response::Notice(note.clone())))?;
        }
        let fs = Mutex::new(fs);
        let host = Opened { path: &self.path, file, fs, notes, lost, known: Known::default() };
        let result = execute(&host, &Caller::this_process(), request, out);
        // Also after an error: what was done before it must not look like a crash.
        let fs = host.fs.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut volume = fs.into_volume();
        let closed = volume.close(self::now()).map_err(ControlError::from);
        result.and(closed)
    }
}

impl Control for LocalVolume {
    fn call(&mut self, request: Request, out: &mut dyn FnMut(Response) -> Result<()>) -> Result<()> {
        let named = |e: ControlError| match &self.within {
            Some(dir) if e.kind == Kind::NotNilfs => {
                e.hint(format!("it lies in a mounted volume: name {} if that is meant", dir.display()))
            }
            _ => e,
        };
        self.run(request, out).map_err(|e| named(e).about(self.path.display()))
    }

    fn is_mounted(&self) -> bool {
        false
    }
}

fn no_such(path: &Path, e: &std::io::Error) -> ControlError {
    let error = ControlError::io(path.display(), e);
    match e.kind() {
        std::io::ErrorKind::NotFound => {
            ControlError::new(Kind::NotFound, format!("there is no {} ({})", path.display(), plain(e)))
                .hint("name an image file, a block device, or a mounted directory")
        }
        _ => error,
    }
}

/// Refuses to change a volume with features that only allow reading.
fn check_features(device: &dyn Device) -> Result<()> {
    let features = silt_engine::read_super_block(device)?.feature_compat_ro.get() & !KNOWN_RO_FEATURES;
    if features == 0 {
        return Ok(());
    }
    let message = format!("the volume has features that only allow reading ({features:#x})");
    Err(ControlError::new(Kind::Incompatible, message).hint("it can be looked at, and mounted with -o ro"))
}

fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// What opening found, in sentences.
fn notes(report: &OpenReport, access: Access, lost: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(copy) = report.torn_super_block {
        notes.push(format!("the {copy} super block is damaged; the other one is used"));
    }
    notes.extend(report.older.clone());
    if report.was_unclean && report.older.is_none() && access == Access::ReadOnly {
        let what = if lost { "what a mount comes to" } else { "what was synced" };
        notes.push(format!(
            "the volume was not cleanly unmounted; {what} is shown, and saved for good by the next mount"
        ));
    }
    if report.has_error_flag {
        notes.push("the volume is marked as having errors".to_owned());
    }
    if report.read_only_features != 0 {
        notes.push(format!(
            "the volume has features that only allow reading ({:#x})",
            report.read_only_features
        ));
    }
    notes
}

/// The volume while one request runs.
struct Opened<'a> {
    path: &'a Path,
    file: Arc<FileDevice>,
    fs: Mutex<Fs>,
    notes: Vec<String>,
    lost: Vec<String>,
    known: Known,
}

impl Host for Opened<'_> {
    fn volume(&self) -> &Path {
        self.path
    }

    fn with_volume(&self, f: &mut dyn FnMut(&mut Volume)) {
        f(self.fs.lock().unwrap_or_else(PoisonError::into_inner).volume_mut());
    }

    fn with_fs(&self, f: &mut dyn FnMut(&mut Fs)) {
        f(&mut self.fs.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn sync(&self) -> Result<u64> {
        let mut fs = self.fs.lock().unwrap_or_else(PoisonError::into_inner);
        let volume = fs.volume_mut();
        if volume.is_read_only() {
            return Ok(volume.last_log().cno);
        }
        Ok(volume.checkpoint(now())?.0)
    }

    fn device(&self) -> Arc<dyn Device> {
        self.file.clone()
    }

    fn grow_device(&self, size: u64) -> Result<()> {
        Ok(self.file.grow(size)?)
    }

    fn is_image(&self) -> bool {
        !self.file.is_block_device()
    }

    fn shrink_device(&self, size: u64) -> silt_device::Result<()> {
        self.file.shrink(size)
    }

    fn mounted(&self) -> Option<MountInfo> {
        None
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn lost(&self) -> Vec<String> {
        self.lost.clone()
    }

    fn retention_known(&self) -> Option<&Known> {
        Some(&self.known)
    }
}
