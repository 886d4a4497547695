//! The two super blocks: each by itself, and against one another (spec section 2).

use silt_device::Device;
use silt_format::super_block::{
    self, Copy, FEATURE_RO_BLOCK_COUNT, PRIMARY_OFFSET, STATE_ERROR, STATE_RESIZE, STATE_VALID, SuperBlock,
    secondary_offset,
};

use crate::invariants as inv;
use crate::reader::Reader;
use crate::report::{Place, Sink};
use crate::search::{self, Parsed};

fn name(copy: Copy) -> &'static str {
    match copy {
        Copy::Primary => "the primary super block",
        Copy::Secondary => "the secondary super block",
    }
}

/// What is missing of a volume that had `was` bytes where `is` are, in a sentence.
pub(crate) fn cut_short(was: u64, is: u64) -> Option<String> {
    let missing = was.checked_sub(is).filter(|n| *n > 0)?;
    let bytes = if missing == 1 {
        "1 byte of the volume is".to_owned()
    } else {
        format!("{missing} bytes of the volume are")
    };
    Some(format!("{bytes} not there: it had {was} and this has {is}; if it was cut short, copy it again"))
}

/// The same of a device, by the copies that can be read.
pub(crate) fn missing(parsed: &Parsed, device_size: u64) -> Option<String> {
    let sizes = [&parsed.0, &parsed.1].into_iter().flatten().map(|sb| sb.dev_size.get());
    cut_short(sizes.max()?, device_size)
}

/// How often copies that do not make sense are read again while somebody may be writing them.
const AGAIN: u32 = 10;

/// Reads both copies. Where somebody may be writing them, one that is half new and half old, or two that differ, are
/// read again.
pub(crate) fn read(device: &dyn Device, written: bool) -> Parsed {
    let mut parsed = search::super_blocks(device);
    for _ in 0..if written { AGAIN } else { 0 } {
        if let (Ok(a), Ok(b)) = &parsed
            && differences(a, b).next().is_none()
        {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        parsed = search::super_blocks(device);
    }
    parsed
}

/// Says of each copy whether it can be used at all. `usable` is false where the device has no
/// place for a secondary copy.
pub(crate) fn check_copies(out: &Sink, parsed: &Parsed, device_size: u64, usable: bool) {
    if let Err(e) = &parsed.0 {
        let message = format!("{} at byte {PRIMARY_OFFSET}: {e}", name(Copy::Primary));
        out.add(&inv::SUPER_COPY, Place::none(), message);
    }
    let at = secondary_offset(device_size);
    if !usable {
        let message = format!("the place of the secondary copy, byte {at}, lies inside the segments");
        out.add(&inv::SUPER_PLACE, Place::none(), message);
    } else if let Err(e) = &parsed.1 {
        out.add(&inv::SUPER_COPY, Place::none(), format!("{} at byte {at}: {e}", name(Copy::Secondary)));
    }
}

/// Fields of one copy that stop nobody from reading.
pub(crate) fn check_fields(out: &Sink, copy: Copy, sb: &SuperBlock, device_size: u64) {
    let who = name(copy);
    let state = sb.state.get();
    if state & STATE_ERROR != 0 {
        out.add(&inv::SUPER_STATE, Place::none(), format!("{who}: an error was recorded"));
    }
    if state & STATE_RESIZE != 0 {
        out.add(&inv::SUPER_STATE, Place::none(), format!("{who}: a resize was not finished"));
    }
    if state & !(STATE_VALID | STATE_ERROR | STATE_RESIZE) != 0 {
        out.add(&inv::SUPER_STATE, Place::none(), format!("{who}: unknown state {state:#x}"));
    }
    let unknown = sb.feature_compat_ro.get() & !FEATURE_RO_BLOCK_COUNT;
    if unknown != 0 {
        out.add(&inv::SUPER_FEATURES, Place::none(), format!("{who}: unknown features {unknown:#x}"));
    }
    if sb.dev_size.get() != device_size {
        let message = format!("{who}: {} bytes are recorded, the device has {device_size}", sb.dev_size);
        out.add(&inv::SUPER_SIZE, Place::none(), message);
    }
    if sb.flags.get() != 0 || sb.reserved.iter().any(|b| *b != 0) {
        out.add(&inv::SUPER_RESERVED, Place::none(), format!("{who}: unused bytes are not zero"));
    }
    if sb.last_cno.get() == 0 {
        out.add(&inv::SUPER_FIELDS, Place::none(), format!("{who}: its last checkpoint is 0"));
    }
}

/// What both copies must have in common. Their sizes may differ where a resize was cut off between the writes of the two
/// (section 15): the next mount makes them equal.
pub(crate) fn check_agreement(out: &Sink, a: &SuperBlock, b: &SuperBlock) {
    let resizing = (a.state.get() | b.state.get()) & STATE_RESIZE != 0;
    for field in differences(a, b) {
        let cut_off = resizing && [SEGMENTS, DEVICE_SIZE].contains(&field);
        let (invariant, why) = if cut_off {
            (&inv::SUPER_STATE, ", a resize was not finished")
        } else {
            (&inv::SUPER_AGREE, "")
        };
        out.add(invariant, Place::none(), format!("the copies differ in: {field}{why}"));
    }
}

const SEGMENTS: &str = "number of segments";
const DEVICE_SIZE: &str = "device size";

/// Fields that differ and must not.
fn differences(a: &SuperBlock, b: &SuperBlock) -> impl Iterator<Item = &'static str> {
    let same = [
        ("revision", a.rev_level == b.rev_level && a.minor_rev_level == b.minor_rev_level),
        ("checksummed bytes", a.bytes == b.bytes),
        ("checksum seed", a.crc_seed == b.crc_seed),
        ("block size", a.log_block_size == b.log_block_size),
        (SEGMENTS, a.nsegments == b.nsegments),
        (DEVICE_SIZE, a.dev_size == b.dev_size),
        ("first data block", a.first_data_block == b.first_data_block),
        ("segment size", a.blocks_per_segment == b.blocks_per_segment),
        ("reserved segments", a.r_segments_percentage == b.r_segments_percentage),
        ("time of creation", a.ctime == b.ctime),
        ("first inode", a.first_ino == b.first_ino),
        ("inode size", a.inode_size == b.inode_size),
        ("DAT entry size", a.dat_entry_size == b.dat_entry_size),
        ("checkpoint size", a.checkpoint_size == b.checkpoint_size),
        ("segment usage size", a.segment_usage_size == b.segment_usage_size),
        ("UUID", a.uuid == b.uuid),
        ("label", a.volume_name == b.volume_name),
        ("interval", a.c_interval == b.c_interval && a.c_block_max == b.c_block_max),
        (
            "features",
            a.feature_compat == b.feature_compat
                && a.feature_compat_ro == b.feature_compat_ro
                && a.feature_incompat == b.feature_incompat,
        ),
    ];
    same.into_iter().filter(|(_, equal)| !equal).map(|(field, _)| field)
}

/// The other copy's cursor must still lead somewhere: a mount falls back to it.
pub(crate) fn check_other_cursor(out: &Sink, r: &Reader<'_>, other: &(Copy, SuperBlock)) {
    let (copy, sb) = other;
    let place = Place::block(sb.last_pseg.get());
    match search::search(r, sb, false) {
        Err(e) => out.add(&inv::DEVICE_READ, place, e),
        Ok(None) => out.add(&inv::SUPER_OTHER, place, format!("{}: no super root there", name(*copy))),
        Ok(Some(f)) if !f.miscounted.is_empty() => {
            let message =
                format!("{}: says checkpoint {}, the log {}", name(*copy), f.cno, f.latest.header.cno);
            out.add(&inv::SUPER_OTHER, place, message);
        }
        Ok(Some(_)) => {}
    }
}

/// From the other copy's cursor too a mount must come to the latest super root.
pub(crate) fn check_other_chain(out: &Sink, r: &Reader<'_>, other: &(Copy, SuperBlock), cno: u64) {
    let (copy, sb) = other;
    let Ok(Some(found)) = search::search(r, sb, true) else { return };
    if found.cno < cno {
        let place = Place::block(found.latest.end());
        let message = format!("{}: its logs lead to checkpoint {}, not to {cno}", name(*copy), found.cno);
        out.add(&inv::SUPER_CHAIN, place, message);
    }
}

/// Whether the device has a place for the secondary copy, as this copy sees it.
pub(crate) fn secondary_usable(sb: &SuperBlock, device_size: u64) -> bool {
    !super_block::SuperBlock::secondary_is_bogus(sb, device_size)
}
