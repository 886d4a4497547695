//! Reading a log whole: its checksum, and what of it cannot be read.
//!
//! Memory: one buffer of 1 MiB, and the places that cannot be read, of which a bounded number is kept.

use silt_format::{BlockNr, Crc};

use crate::reader::Reader;
use crate::scrub::{Conduct, Stopped};

/// Bytes read at once.
const STEP: usize = 1 << 20;
/// Unreadable blocks of one log whose sectors are tried one by one.
const FINE: usize = 64;
/// Unreadable places kept for one log.
const KEPT: usize = 10_000;

/// What reading a log gave.
pub(crate) struct Whole {
    /// The stored checksum: the first four bytes.
    pub stored: u32,
    pub computed: u32,
    /// (First byte in the log, bytes) of what cannot be read, ascending.
    pub unreadable: Vec<(u64, u64)>,
    /// Places that were not kept.
    pub left_out: u64,
}

impl Whole {
    pub fn is_sound(&self) -> bool {
        self.stored == self.computed && self.unreadable.is_empty()
    }
}

/// Reads `nblocks` blocks from `pos` on. `flip` turns over a bit on the way: (byte in the log, bit).
pub(crate) fn read(
    r: &Reader<'_>,
    pos: u64,
    nblocks: u64,
    flip: Option<(u64, u8)>,
    conduct: &dyn Conduct,
) -> Result<Whole, Stopped> {
    let bs = r.g.bs();
    let step = (STEP / bs) as u64;
    let mut out = Whole { stored: 0, computed: 0, unreadable: Vec::new(), left_out: 0 };
    let mut crc = Crc::new(r.g.crc_seed);
    let mut buf = Vec::new();
    let (mut done, mut fine) = (0, FINE);
    while done < nblocks {
        if conduct.stop() {
            return Err(Stopped);
        }
        let n = step.min(nblocks - done);
        // At most STEP bytes.
        buf.resize(usize::try_from(n).unwrap_or(0) * bs, 0);
        conduct.pace(buf.len() as u64);
        let at = done * bs as u64;
        if r.read(BlockNr(pos + done), &mut buf).is_err() {
            for (i, block) in buf.chunks_mut(bs).enumerate() {
                if conduct.stop() {
                    return Err(Stopped);
                }
                let nr = BlockNr(pos + done + i as u64);
                if r.read(nr, block).is_err() {
                    fine = fine.saturating_sub(1);
                    sectors(r, nr, block, at + (i * bs) as u64, fine > 0, &mut out);
                }
            }
        }
        if let Some((byte, bit)) = flip
            && let Some(b) = byte.checked_sub(at).and_then(|i| buf.get_mut(usize::try_from(i).ok()?))
        {
            *b ^= 1 << bit;
        }
        if done == 0
            && let Some(first) = buf.first_chunk()
        {
            out.stored = u32::from_le_bytes(*first);
        }
        crc.update(if done == 0 { buf.get(4..).unwrap_or_default() } else { &buf });
        done += n;
    }
    out.computed = crc.finish();
    Ok(out)
}

/// Notes what of a block cannot be read; what can is filled in, the rest is zero.
fn sectors(r: &Reader<'_>, nr: BlockNr, block: &mut [u8], at: u64, fine: bool, out: &mut Whole) {
    let sector = match r.device.capabilities().logical_block as usize {
        s if fine && s.is_power_of_two() => s.clamp(512, block.len()),
        _ => block.len(),
    };
    for (i, part) in block.chunks_mut(sector).enumerate() {
        let offset = (i * sector) as u64;
        // One that makes up the block has been tried.
        let known = sector == r.g.bs();
        if known || r.device.read_at(r.g.byte_of(nr) + offset, part).is_err() {
            part.fill(0);
            note(out, at + offset, sector as u64);
        }
    }
}

fn note(out: &mut Whole, at: u64, bytes: u64) {
    let full = out.unreadable.len() >= KEPT;
    match out.unreadable.last_mut() {
        Some((first, n)) if *first + *n == at => *n += bytes,
        _ if !full => out.unreadable.push((at, bytes)),
        _ => out.left_out += 1,
    }
}
