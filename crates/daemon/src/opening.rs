//! Opens what is to be mounted: the device, the volume on it, and what is to be said of either.

use std::sync::Arc;

use silt_device::{Access, Device, FileDevice, Masked};
use silt_engine::{OpenOptions, OpenReport, Volume};
use silt_format::{Cno, SegNr, super_block};
use silt_fs::Fs;

use crate::Error;
use crate::claim::Gated;
use crate::config::Config;
use crate::core::now_secs;

/// Opens the image or block device that is to be mounted.
pub fn open_device(config: &Config) -> Result<Arc<FileDevice>, Error> {
    let read_only = config.options.read_only || config.options.super_block.is_some();
    let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
    let options = silt_device::OpenOptions { direct: config.options.direct, ..Default::default() };
    Ok(Arc::new(silt_device::open(&config.volume, access, &options)?))
}

/// The device as the engine sees it.
pub fn masked(config: &Config, device: &Arc<FileDevice>, gate: Option<&Arc<Gated>>) -> Arc<dyn Device> {
    let Some(bytes) = &config.options.super_block else {
        return gate.map_or_else(|| device.clone() as Arc<dyn Device>, |gate| gate.clone());
    };
    let places = [super_block::PRIMARY_OFFSET, super_block::secondary_offset(device.len())];
    Arc::new(Masked::new(device.clone(), places.map(|at| (at, bytes.clone())).into()))
}

/// The volume, what opening found, and what was done to get room on it. `unreached` as in [`OpenOptions`].
pub fn open_volume(
    config: &Config,
    device: Arc<dyn Device>,
    unreached: Vec<SegNr>,
) -> Result<(Fs, OpenReport, Option<String>), Error> {
    let o = &config.options;
    let fail = |source| Error::Volume { volume: config.volume.clone(), source };
    let mut seed = [0u8; 8];
    // Without it the time alone tells one recovery from another.
    let _ = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
    // Half for metadata blocks, a quarter for inodes (700 bytes each at most), a quarter for indexes.
    let options = OpenOptions {
        read_only: o.read_only || o.moment.is_some() || o.super_block.is_some(),
        norecovery: o.norecovery,
        cache_bytes: o.cache / 2,
        cached_inodes: usize::try_from(o.cache / 4 / 700).unwrap_or(usize::MAX),
        now: now_secs(),
        running: Some(silt_control::running),
        seed: u64::from_ne_bytes(seed),
        backed: true,
        unreached,
        ..OpenOptions::default()
    };
    let options = if o.verify { verifying(&device, options) } else { options };
    // Why there is no room is to be said also where nothing comes of it.
    let mut cramped = None;
    let mut open = |options: &OpenOptions| {
        // Who wants no cleaner gets none.
        let (mut volume, report, room) = if o.gc {
            silt_control::open_with_room(&device, options, &o.retention, now_secs())?
        } else {
            Volume::open(device.clone(), options).map(|(volume, report)| (volume, report, None))?
        };
        if let Some(m) = o.moment {
            volume.open_view(Cno(m.0))?;
        }
        if !options.read_only {
            cramped.clone_from(&room);
            volume.take_over(now_secs())?;
        }
        Ok((volume, report, room))
    };
    let (volume, report, room) = match open(&options) {
        // The metadata that writing needs is damaged: what can be read still can.
        Err(
            e @ (silt_engine::Error::Format { .. }
            | silt_engine::Error::Device(_)
            | silt_engine::Error::NoSpace
            | silt_engine::Error::Older { .. }),
        ) if !options.read_only => {
            let (volume, mut report, room) =
                open(&OpenOptions { read_only: true, ..options.clone() }).map_err(fail)?;
            // That says itself that it can only be read.
            if report.older.is_none() {
                report.damage.push(format!(
                    "what writing needs is damaged or cannot be had, so it can only be read: {e}"
                ));
            }
            (volume, report, room.or(cramped))
        }
        opened => opened.map_err(fail)?,
    };
    let index_bytes = usize::try_from(o.cache / 4).unwrap_or(usize::MAX);
    let fs = Fs::new(volume, &silt_fs::Options { index_bytes, seed: options.seed, ..Default::default() });
    Ok((fs, report, room))
}

/// Largest log of file data where logs are verified, in bytes: what the first read from it reads.
const VERIFIED_LOG: u64 = 1 << 20;

/// Options for a mount that verifies what it reads.
fn verifying(device: &Arc<dyn Device>, options: OpenOptions) -> OpenOptions {
    let block_size = silt_engine::read_super_block(&**device)
        .map_or(4096, |sb| 1 << (sb.log_block_size.get().min(6) + 10));
    OpenOptions { verify: true, max_log_blocks: VERIFIED_LOG / block_size, ..options }
}

/// What opening found, in sentences.
pub fn notes(report: &OpenReport) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(which) = report.torn_super_block {
        notes.push(format!("the {which} super block is damaged; the other one was used"));
    }
    if report.was_unclean {
        notes.push("it was not cleanly unmounted the last time".to_owned());
    }
    if report.rolled_forward > 0 {
        notes.push(match report.rolled_forward {
            1 => "1 block of synced data was recovered from the log".to_owned(),
            n => format!("{n} blocks of synced data were recovered from the log"),
        });
    }
    notes.extend(report.older.iter().chain(&report.damage).cloned());
    if report.has_error_flag {
        notes.push("an earlier user met an error on it; check it".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_sentences_about_what_was_found() {
        assert!(notes(&OpenReport::default()).is_empty());
        let report = OpenReport {
            torn_super_block: Some("primary"),
            was_unclean: true,
            rolled_forward: 3,
            has_error_flag: true,
            ..OpenReport::default()
        };
        assert_eq!(notes(&report).len(), 4);
    }
}
