//! Super blocks that are put right in place: one is always whole (format 2.5, 2.7).

use silt_device::Device;
use silt_engine::mend;
use silt_format::super_block::{self as sb, Copy, STATE_ERROR, STATE_VALID, SuperBlock};
use silt_format::{Geometry, Ino};
use silt_verify::Unwatched;
use silt_verify::rescue::Rescue;

use crate::{Error, Result};

/// Whether a finding is about super blocks or the way from them to the newest super root.
pub(crate) fn is_about(id: &str) -> bool {
    matches!(
        id,
        "super-block-copy"
            | "super-block-fields"
            | "super-block-agreement"
            | "super-block-first-inode"
            | "super-block-other-cursor"
            | "super-root-found"
            | "super-root-newer"
            | "super-root-counted-cno"
            | "super-root-block"
            | "recovery-sequence"
            | "recovery-inode"
            | "recovery-reached"
    )
}

fn read(device: &dyn Device, at: u64) -> Option<SuperBlock> {
    let mut bytes = [0; sb::SIZE];
    device.read_at(at, &mut bytes).ok()?;
    SuperBlock::parse(&bytes).ok()
}

/// Bytes that the volume had, and bytes that are there, where the device is shorter than that.
pub(crate) fn cut_short(device: &dyn Device) -> Option<(u64, u64)> {
    let (was, is) = (read(device, sb::PRIMARY_OFFSET)?.dev_size.get(), device.len());
    (was > is).then_some((was, is))
}

fn place(device: &dyn Device, copy: Copy) -> u64 {
    match copy {
        Copy::Primary => sb::PRIMARY_OFFSET,
        Copy::Secondary => sb::secondary_offset(device.len()),
    }
}

fn name(copy: Copy) -> &'static str {
    match copy {
        Copy::Primary => "first",
        Copy::Secondary => "second",
    }
}

/// Whether a mount by this copy would find a super root.
fn leads(device: &dyn Device, block: &SuperBlock) -> bool {
    mend::leads(device, block)
}

/// A copy of which only what can be guessed is wrong, made right.
fn guessed(device: &dyn Device, block: &SuperBlock) -> Option<SuperBlock> {
    let mut b = block.clone();
    if !(1..=99).contains(&b.r_segments_percentage.get()) {
        b.r_segments_percentage = 5.into();
    }
    (b.geometry(device.len()).is_ok() && leads(device, &b)).then_some(b)
}

/// A super block that points at the newest super root there is, where no copy leads to one.
fn from_the_log(
    device: &dyn Device,
    copies: &[(Copy, Option<SuperBlock>)],
    said: &mut Vec<String>,
) -> Result<Option<(Copy, SuperBlock)>> {
    for (copy, block) in copies {
        let Some(mut block) = block.clone() else { continue };
        let Ok(g) = block.geometry(device.len()) else { continue };
        let mut found = None;
        for root in mend::roots(device, &g) {
            if let Some(doubtful) = mend::accept(device, &g, &root)? {
                found = Some((root, doubtful));
                break;
            }
        }
        let Some((last, doubtful)) = found else { continue };
        block.last_pseg = last.pseg.into();
        block.last_seq = last.seq.into();
        block.last_cno = last.cno.into();
        block.state = (block.state.get() & !STATE_VALID).into();
        // What was synced before sectors that cannot be read is taken in.
        if !mend::leads_in_part(device, &block) {
            block.state = (block.state.get() | STATE_VALID).into();
        }
        said.push(format!(
            "the super blocks lead to no log that can be used: the newest one is that of checkpoint {}; what came after it is lost, but for what silt rescue brings back: do that first",
            last.cno
        ));
        said.extend(doubtful);
        return Ok(Some((*copy, block)));
    }
    Ok(None)
}

/// Both copies are lost: the volume's numbers come from its logs, and its newest super root that can be mounted; with `torn`
/// also where only the checksum of its log is wrong.
fn from_nothing(device: &dyn Device, torn: bool, seed: u64) -> Result<Vec<String>> {
    let lost = |e: &dyn std::fmt::Display| Error::Hopeless(format!("both super blocks are lost, and {e}"));
    let rescue = Rescue::open(device, &Unwatched).map_err(|e| lost(&e))?;
    for root in rescue.roots() {
        let Some(log) = root.log.filter(|_| torn || root.whole) else { continue };
        let mut block = rescue.super_block_of(log, root);
        if block.uuid == [0; 16] {
            // The old one is nowhere else: another, of the random kind (RFC 9562, version 4).
            let mut uuid = [0; 16];
            uuid[..8].copy_from_slice(&seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
            uuid[8..]
                .copy_from_slice(&seed.rotate_left(32).wrapping_mul(0xD6E8_FEB8_6659_FD93).to_le_bytes());
            uuid[6] = uuid[6] & 0x0f | 0x40;
            uuid[8] = uuid[8] & 0x3f | 0x80;
            block.uuid = uuid;
        }
        let Ok(g) = block.geometry(device.len()) else { continue };
        let mut doubtful = Vec::new();
        if torn && !root.whole {
            doubtful = mend::accept(device, &g, &mend::cursor_of(&block))?.unwrap_or_default();
        }
        // As after a crash, so that what was synced behind it is taken in.
        block.state = (block.state.get() & !STATE_VALID).into();
        if !leads(device, &block) {
            block.state = (block.state.get() | STATE_VALID).into();
        }
        if !leads(device, &block) {
            continue;
        }
        let cno = block.last_cno;
        let bytes = block.clone().to_disk();
        for copy in [Copy::Primary, Copy::Secondary] {
            if copy == Copy::Primary || !block.secondary_is_bogus(device.len()) {
                device.write_durably(place(device, copy), &bytes)?;
            }
        }
        let newest = rescue.rootless().max(rescue.roots().first().map(|root| root.cno)).unwrap_or(0);
        let later = if newest > cno.get() {
            format!(
                "; what came after it up to checkpoint {newest} is lost, but for what silt rescue reads: do that first"
            )
        } else {
            String::new()
        };
        let which = if doubtful.is_empty() {
            "the newest of which the log is whole"
        } else {
            "of which the log is damaged and its super root is not: what is wrong in it is mended one by one"
        };
        let said = [
            "both super blocks are lost: new ones are written; the volume's name and UUID are lost"
                .to_owned(),
            format!("they lead to checkpoint {cno}, {which}{later}"),
        ];
        return Ok(said.into_iter().chain(doubtful).collect());
    }
    Err(lost(&"no log leads to a whole tree"))
}

/// Puts both copies right where one of them is whole and leads to a super root, or neither is whole; with `torn` also
/// where only the checksum of the log one leads to is wrong. `None`: nothing is to be done, or neither leads anywhere,
/// and the log has to be searched.
pub(crate) fn put_right(device: &dyn Device, torn: bool, seed: u64) -> Result<Option<Vec<String>>> {
    let copies = [Copy::Primary, Copy::Secondary].map(|c| (c, read(device, place(device, c))));
    if copies.iter().all(|(_, b)| b.is_none()) {
        return from_nothing(device, torn, seed).map(Some);
    }
    let good = |b: &Option<SuperBlock>| {
        b.as_ref().is_some_and(|b| b.geometry(device.len()).is_ok() && leads(device, b))
    };
    let mut best: Option<(Copy, SuperBlock)> = None;
    for (copy, block) in copies.iter().filter(|(_, b)| good(b)) {
        let Some(block) = block else { continue };
        if best.as_ref().is_none_or(|(_, b)| block.last_cno.get() > b.last_cno.get()) {
            best = Some((*copy, block.clone()));
        }
    }
    let mut said = Vec::new();
    if best.is_none() {
        let mut all = copies.iter().filter_map(|(c, b)| Some((*c, b.as_ref()?)));
        best = all
            .find_map(|(c, b)| Some((c, guessed(device, b).filter(|_| b.geometry(device.len()).is_err())?)));
        if best.is_some() {
            said.push(
                "the share of reserved segments, which cannot be, is set to the usual 5 percent".to_owned(),
            );
        }
    }
    // A newer state than what both lead to: only the checksum of its log is wrong.
    let leads_somewhere = best.is_some();
    for (copy, block) in copies.iter().filter(|_| torn || !leads_somewhere) {
        let Some(block) = block else { continue };
        let Ok(g) = block.geometry(device.len()) else { continue };
        let newer = best.as_ref().is_none_or(|(_, b)| block.last_cno.get() > b.last_cno.get());
        let cursor = mend::cursor_of(block);
        if !newer || leads(device, block) {
            continue;
        }
        if let Some(doubtful) = mend::accept(device, &g, &cursor)?
            && leads(device, block)
        {
            said.push(format!(
                "the log of checkpoint {} is damaged and its super root is not: it is used, and what is wrong in it is mended one by one",
                cursor.cno
            ));
            said.extend(doubtful);
            best = Some((*copy, block.clone()));
        }
    }
    if best.is_none() {
        best = from_the_log(device, &copies, &mut said)?;
    }
    let Some((from, mut block)) = best else { return Ok(None) };
    let reached = mend::reaches(device, &block).unwrap_or(0);
    let named = copies.iter().filter_map(|(_, b)| b.as_ref()).map(|b| b.last_cno.get()).max();
    if let Some(named) = named.filter(|named| *named > reached && reached > 0 && said.is_empty()) {
        said.push(format!(
            "a super block names checkpoint {named}, whose log is broken: the newest that is found is {reached}, and \
             what came after it is lost"
        ));
    }
    let newer = mend::newer_logs(device, &block);
    if newer && block.state.get() & STATE_VALID != 0 {
        block.state = (block.state.get() & !STATE_VALID).into();
        said.push("newer checkpoints follow the one the super blocks name: the mark of a clean unmount is taken away, so that they are found".to_owned());
    }
    let first = Ino::FIRST_USER.0;
    if u64::from(block.first_ino.get()) > first {
        said.push(format!(
            "files have inodes from {first} on, as on every volume, and not from {} on only",
            block.first_ino
        ));
        block.first_ino = u32::try_from(first).unwrap_or(u32::MAX).into();
    }
    let usable = !block.secondary_is_bogus(device.len());
    let to = if from == Copy::Primary { Copy::Secondary } else { Copy::Primary };
    // The bad one first: at every moment one is whole.
    for copy in [to, from] {
        if copy == Copy::Secondary && !usable {
            continue;
        }
        let bytes = block.clone().to_disk();
        let mut now = [0; sb::SIZE];
        let same = device.read_at(place(device, copy), &mut now).is_ok() && now == bytes;
        if !same {
            device.write_durably(place(device, copy), &bytes)?;
            said.push(if copy == to {
                format!("the {} super block is written anew from the {}", name(to), name(from))
            } else {
                format!("the {} super block is written anew", name(from))
            });
        }
    }
    // Nothing was wrong with them themselves.
    if said.is_empty() { Ok(None) } else { Ok(Some(said)) }
}

/// The newest copy that leads to a super root.
fn leading(device: &dyn Device) -> Option<(Copy, SuperBlock)> {
    let copies = [Copy::Primary, Copy::Secondary]
        .into_iter()
        .filter_map(|c| Some((c, read(device, place(device, c))?)));
    copies.filter(|(_, b)| leads(device, b)).max_by_key(|(_, b)| b.last_cno.get())
}

/// The checkpoint that a mount comes to.
pub(crate) fn reached(device: &dyn Device) -> Option<u64> {
    mend::reaches(device, &leading(device)?.1)
}

/// Points both copies at a super root that no mount comes to, since a log before it is damaged. Nothing is written, and
/// the answer is no, where no copy leads anywhere or the root does not serve.
pub(crate) fn go_on_at(device: &dyn Device, root: &mend::LastLog) -> Result<bool> {
    let Some((from, mut block)) = leading(device) else { return Ok(false) };
    block.last_pseg = root.pseg.into();
    block.last_seq = root.seq.into();
    block.last_cno = root.cno.into();
    // As after a crash, so that what was synced behind it is taken in.
    block.state = (block.state.get() & !STATE_VALID).into();
    if mend::reaches(device, &block).is_none_or(|cno| cno < root.cno) {
        return Ok(false);
    }
    let usable = !block.secondary_is_bogus(device.len());
    let to = if from == Copy::Primary { Copy::Secondary } else { Copy::Primary };
    let bytes = block.to_disk();
    // The one that led here last: it is as good as it was till then.
    for copy in [to, from].into_iter().filter(|c| *c == Copy::Primary || usable) {
        device.write_durably(place(device, copy), &bytes)?;
    }
    Ok(true)
}

/// Number of the newest checkpoint whose super root is whole, wherever it lies.
pub(crate) fn newest(device: &dyn Device) -> Option<u64> {
    mend::newest(device, &geometry(device)?).map(|last| last.cno)
}

/// Where the copies that can be read say that the newest log lies.
pub(crate) fn cursors(device: &dyn Device) -> Vec<mend::LastLog> {
    let copies = [Copy::Primary, Copy::Secondary].into_iter().filter_map(|c| read(device, place(device, c)));
    copies.filter(|b| b.last_cno.get() != 0).map(|b| mend::cursor_of(&b)).collect()
}

/// The volume's fixed numbers, from a copy that has them.
pub(crate) fn geometry(device: &dyn Device) -> Option<Geometry> {
    let copies = [Copy::Primary, Copy::Secondary].into_iter().filter_map(|c| read(device, place(device, c)));
    copies.filter_map(|b| b.geometry(device.len()).ok()).next()
}

/// The error of a volume with features that nobody knows, which must not be written.
pub(crate) fn unknown_features(device: &dyn Device) -> Option<silt_engine::Error> {
    let copies = [Copy::Primary, Copy::Secondary];
    let known: Vec<SuperBlock> = copies.iter().filter_map(|c| read(device, place(device, *c))).collect();
    // A copy that is whole and of the volume as it is: where the two differ, one is stale.
    known.iter().find_map(|b| {
        let unknown = b.feature_compat_ro.get() & !sb::KNOWN_RO_FEATURES;
        match b.geometry(device.len()) {
            Err(e @ silt_format::Error::Incompatible(_)) => Some(silt_engine::Error::Unusable(e)),
            _ if unknown != 0 => Some(silt_engine::Error::ReadOnlyFeatures(unknown)),
            _ => None,
        }
    })
}

/// Whether a copy says that an error was met.
pub(crate) fn error_flag(device: &dyn Device) -> bool {
    [Copy::Primary, Copy::Secondary]
        .iter()
        .filter_map(|c| read(device, place(device, *c)))
        .any(|b| b.state.get() & STATE_ERROR != 0)
}

/// Whether a copy says that the volume was cleanly unmounted.
pub(crate) fn is_clean(device: &dyn Device) -> bool {
    [Copy::Primary, Copy::Secondary]
        .iter()
        .filter_map(|c| read(device, place(device, *c)))
        .any(|b| b.state.get() & STATE_VALID != 0)
}

/// Whether neither copy can be read.
pub(crate) fn are_lost(device: &dyn Device) -> bool {
    [Copy::Primary, Copy::Secondary].iter().all(|c| read(device, place(device, *c)).is_none())
}

/// Takes the mark of an error away from both copies.
pub(crate) fn clear_error_flag(device: &dyn Device) -> Result<Vec<String>> {
    for copy in [Copy::Primary, Copy::Secondary] {
        if let Some(mut block) = read(device, place(device, copy))
            && block.state.get() & STATE_ERROR != 0
        {
            block.state = (block.state.get() & !STATE_ERROR).into();
            device.write_durably(place(device, copy), &block.to_disk())?;
        }
    }
    Ok(vec!["the mark that an error was met is taken away: nothing is wrong any more".into()])
}
