//! The super block's settings, and growing.

use silt_device::Device;
use silt_format::super_block::{
    FEATURE_RO_BLOCK_COUNT, KNOWN_RO_FEATURES, STATE_ERROR, STATE_VALID, SuperBlock,
};
use uuid::Uuid;

use super::Out;
use crate::host::{Host, change, with};
use crate::response::{Response, Settings};
use crate::{ControlError, Kind, Resized, Result, Tune, size};

/// Shows the super block in use.
pub fn show(host: &dyn Host, out: Out<'_>) -> Result<()> {
    let settings = with(host, |v| settings(v.super_block()))?;
    out(Response::Settings(Box::new(settings)))
}

fn features(sb: &SuperBlock) -> Vec<String> {
    let mut names = Vec::new();
    let ro = sb.feature_compat_ro.get();
    if ro & FEATURE_RO_BLOCK_COUNT != 0 {
        names.push("block_count".to_owned());
    }
    let unknown = [
        ("compat", sb.feature_compat.get()),
        ("compat_ro", ro & !FEATURE_RO_BLOCK_COUNT),
        ("incompat", sb.feature_incompat.get()),
    ];
    names.extend(
        unknown.iter().filter(|(_, bits)| *bits != 0).map(|(kind, bits)| format!("{kind}:{bits:#x}")),
    );
    names
}

/// A super block for people and programs.
pub fn settings(sb: &SuperBlock) -> Settings {
    Settings {
        label: sb.label().into(),
        uuid: Uuid::from_bytes(sb.uuid).to_string(),
        magic: sb.magic.get(),
        revision: sb.rev_level.get(),
        minor_revision: sb.minor_rev_level.get(),
        features: features(sb),
        read_only_features: sb.feature_compat_ro.get() & !KNOWN_RO_FEATURES,
        valid: sb.state.get() & STATE_VALID != 0,
        error: sb.state.get() & STATE_ERROR != 0,
        creator_os: sb.creator_os.get(),
        block_size: 1u64.checked_shl(sb.log_block_size.get().saturating_add(10)).unwrap_or(0),
        created: sb.ctime.get(),
        mounted: sb.mtime.get(),
        written: sb.wtime.get(),
        mount_count: sb.mnt_count.get(),
        max_mount_count: sb.max_mnt_count.get(),
        reserved_uid: sb.def_resuid.get(),
        reserved_gid: sb.def_resgid.get(),
        first_inode: sb.first_ino.get(),
        inode_size: sb.inode_size.get(),
        dat_entry_size: sb.dat_entry_size.get(),
        checkpoint_size: sb.checkpoint_size.get(),
        segment_usage_size: sb.segment_usage_size.get(),
        segments: sb.nsegments.get(),
        device_size: sb.dev_size.get(),
        first_data_block: sb.first_data_block.get(),
        blocks_per_segment: sb.blocks_per_segment.get(),
        reserved_percent: sb.r_segments_percentage.get(),
        last_checkpoint: sb.last_cno.get(),
        last_block: sb.last_pseg.get(),
        last_sequence: sb.last_seq.get(),
        free_blocks: sb.free_blocks_count.get(),
        interval: sb.c_interval.get(),
        block_max: sb.c_block_max.get(),
        crc_seed: sb.crc_seed.get(),
        crc_sum: sb.sum.get(),
        crc_bytes: sb.bytes.get(),
    }
}

/// Settings of a request, checked.
pub fn checked(tune: &Tune) -> Result<silt_engine::Tune> {
    let uuid = match &tune.uuid {
        None => None,
        Some(text) => Some(
            Uuid::try_parse(text)
                .map_err(|_| {
                    ControlError::new(Kind::Invalid, format!("{text} is not a UUID"))
                        .hint("write it as c1b9d5a2-f162-11cf-9ece-0020afc76f16")
                })?
                .into_bytes(),
        ),
    };
    Ok(silt_engine::Tune {
        label: tune.label.as_ref().map(|l| l.as_bytes().to_vec()),
        uuid,
        interval: tune.interval,
        block_max: tune.block_max,
        block_count: tune.block_count,
    })
}

/// The super block of a volume that is not opened.
pub fn of_device(device: &dyn Device, out: Out<'_>) -> Result<()> {
    let sb = silt_engine::read_super_block(device)?;
    out(Response::Settings(Box::new(settings(&sb))))
}

/// Changes settings of a volume that is not opened, if it is of a kind we know.
pub fn tune_device(device: &dyn Device, tune: &Tune, out: Out<'_>) -> Result<()> {
    let wanted = checked(tune)?;
    silt_engine::read_super_block(device)?.geometry(device.len()).map_err(silt_engine::Error::Unusable)?;
    silt_engine::tune(device, &wanted)?;
    of_device(device, out)
}

/// Changes settings and shows them.
pub fn tune(host: &dyn Host, tune: &Tune, out: Out<'_>) -> Result<()> {
    let wanted = checked(tune)?;
    change(host, |v| v.tune(&wanted))?;
    show(host, out)
}

/// Grows the volume, the image below it first where that is needed; or makes it smaller, and the image after it.
pub fn resize(host: &dyn Host, size: Option<u64>, out: Out<'_>) -> Result<()> {
    let (before, present) = super::shrink::of(host)?;
    let device = host.device();
    let mut longer = None;
    if let Some(size) = size {
        if size < present {
            return super::shrink::resize(host, size, out);
        }
        let there = device.refresh_len()?;
        if size > there && !host.is_image() {
            let message = format!("the device has only {}", size::exact(there));
            return Err(ControlError::new(Kind::Invalid, message).about(host.volume().display()).hint(
                "make the partition or device longer first; without a size the volume takes all of it",
            ));
        }
        if size > there {
            // What can be refused is before the image is made longer.
            host.sync()?;
            change(host, |v| v.prove_super_blocks())?;
            host.grow_device(size)?;
            longer = Some(there);
        }
    }
    host.sync()?;
    if let Err(e) = change(host, |v| v.grow(size, host.now())) {
        // Its second super block lies where the end was.
        if let Some(there) = longer
            && with(host, |v| v.failure().is_none() && v.super_block().dev_size.get() <= there)?
            && let Err(e) = host.shrink_device(there)
        {
            tracing::warn!("the image stays as long as it was to be: {e}");
        }
        return Err(e);
    }
    host.resized();
    let (segments, size) = super::shrink::of(host)?;
    out(Response::Resized(Resized {
        segments_before: before,
        segments,
        size_before: present,
        size,
        moments_gone: 0,
    }))
}
