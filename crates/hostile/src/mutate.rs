//! From any bytes to changes of fields.
//!
//! Random images and coverage-guided fuzzers both go through [`decode`]: what the bytes choose is a structure, a
//! field, and a number that is likely to hurt: another one of the same class in this volume, one beside the old one,
//! a limit.

use arbitrary::Unstructured;

use crate::Base;
use crate::fields::{self, Class, Field};
use crate::index::{self, Kind, Target};
use crate::patch::{Changes, Content, Patch, Place, Sums};

/// How often each kind is chosen, in 128ths. Super blocks and headers of logs are where most images would end before
/// anything else is read.
const WEIGHTS: [(Kind, u8); 17] = [
    (Kind::SuperBlock, 4),
    (Kind::LogHeader, 6),
    (Kind::Records, 8),
    (Kind::SuperRoot, 6),
    (Kind::DatDescriptors, 3),
    (Kind::DatBitmap, 5),
    (Kind::DatEntries, 14),
    (Kind::DatNode, 6),
    (Kind::Node, 20),
    (Kind::Checkpoints, 11),
    (Kind::Usage, 8),
    (Kind::InodeDescriptors, 3),
    (Kind::InodeBitmap, 4),
    (Kind::Inodes, 16),
    (Kind::Directory, 10),
    (Kind::Symlink, 2),
    (Kind::Data, 2),
];

/// Numbers at the edges of types and structures.
const EDGES: [u64; 40] = [
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    12,
    13,
    14,
    15,
    16,
    31,
    32,
    63,
    64,
    127,
    128,
    255,
    256,
    1023,
    1024,
    4096,
    32_000,
    32_767,
    65_535,
    65_536,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 52,
    (1 << 54) - 1,
    1 << 60,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// Most changes of one image.
const MOST: usize = 6;

fn kind(u: &mut Unstructured<'_>) -> arbitrary::Result<Kind> {
    let mut left = u.arbitrary::<u8>()? % 128;
    for (kind, weight) in WEIGHTS {
        if left < weight {
            return Ok(kind);
        }
        left -= weight;
    }
    Ok(Kind::Inodes)
}

fn pick<'a, T>(u: &mut Unstructured<'_>, list: &'a [T]) -> arbitrary::Result<Option<&'a T>> {
    let i = usize::from(u.arbitrary::<u16>()?);
    Ok(if list.is_empty() { None } else { list.get(i % list.len()) })
}

fn target(base: &Base, u: &mut Unstructured<'_>, kind: Kind) -> arbitrary::Result<Option<Target>> {
    let from = if u.arbitrary::<u8>()? < 216 { &base.index.hot } else { &base.index.all };
    match from.get(&kind) {
        Some(list) => Ok(pick(u, list)?.copied()),
        None => Ok(None),
    }
}

fn mask(value: u64, width: usize) -> u64 {
    if width >= 8 { value } else { value & ((1 << (8 * width)) - 1) }
}

/// A number to put where `old` was.
fn number(
    base: &Base,
    u: &mut Unstructured<'_>,
    target: &Target,
    field: &Field,
    old: u64,
) -> arbitrary::Result<u64> {
    let choice = u.arbitrary::<u8>()?;
    let pool = |u: &mut Unstructured<'_>, class: Class| -> arbitrary::Result<u64> {
        let list = base.index.pools.get(&class).map_or(&[][..], Vec::as_slice);
        Ok(pick(u, list)?.copied().unwrap_or(0))
    };
    Ok(match choice {
        // A node that is the ancestor of itself, or belongs to somebody else.
        0..24 if field.class == Class::Vblock => target.vblock,
        24..56 if field.class == Class::Vblock => {
            let nodes = base.index.nodes.get(&target.ino).map_or(&[][..], Vec::as_slice);
            pick(u, nodes)?.copied().unwrap_or(target.vblock)
        }
        0..24 if field.class == Class::Block => target.block,
        0..110 => pool(u, field.class)?,
        110..150 => {
            let delta = u64::from(u.arbitrary::<u8>()?);
            if delta & 1 == 0 { old.wrapping_add(1 + delta / 32) } else { old.wrapping_sub(1 + delta / 32) }
        }
        150..190 => EDGES[usize::from(u.arbitrary::<u8>()?) % EDGES.len()],
        190..215 => old ^ (1 << (u32::from(u.arbitrary::<u8>()?) % (8 * field.width as u32))),
        215..230 => {
            let all = [Class::Vblock, Class::Block, Class::Cno, Class::Ino, Class::Key, Class::Segment];
            let class = all[usize::from(u.arbitrary::<u8>()?) % all.len()];
            pool(u, class)?
        }
        230..245 => u.arbitrary()?,
        // As if all of a file were reached from here.
        _ => u64::from(u.arbitrary::<u16>()?),
    })
}

fn place(u: &mut Unstructured<'_>, target: &Target) -> arbitrary::Result<Place> {
    if target.kind != Kind::SuperBlock {
        return Ok(Place::Block(target.block));
    }
    Ok(match u.arbitrary::<u8>()? {
        0..150 => Place::BothSupers,
        150..210 => Place::Primary,
        _ => Place::Secondary,
    })
}

fn name(target: &Target, place: Place) -> String {
    match place {
        Place::Block(nr) if target.ino != 0 => {
            format!("{:?} of inode {}, block {nr}", target.kind, target.ino)
        }
        Place::Block(nr) => format!("{:?}, block {nr}", target.kind),
        other => format!("{:?} ({other:?})", target.kind),
    }
}

fn one(base: &Base, u: &mut Unstructured<'_>, out: &mut Vec<Patch>) -> arbitrary::Result<()> {
    let kind = kind(u)?;
    let Some(target) = target(base, u, kind)? else { return Ok(()) };
    let place = place(u, &target)?;
    let g = &base.index.g;
    let bytes = if kind == Kind::SuperBlock {
        let mut bytes = vec![0; 1024];
        silt_device::Device::read_at(&base.device, 1024, &mut bytes).expect("a base has a super block");
        bytes
    } else {
        index::block(&base.device, g, target.block)
    };
    let who = name(&target, place);
    let mut push = |at, content, story| out.push(Patch { place, at, content, story });
    match u.arbitrary::<u8>()? {
        0..205 => {
            let fields = fields::of(kind, g, &bytes);
            let Some(field) = pick(u, &fields)? else { return Ok(()) };
            let old = field.read(&bytes);
            let value = mask(number(base, u, &target, field, old)?, field.width);
            let story = format!("{who}: {} at byte {}: {old:#x} -> {value:#x}", field.name, field.at);
            push(field.at, Content::Number { width: field.width, value }, story);
        }
        205..225 => {
            // Two fields of one class change places.
            let fields = fields::of(kind, g, &bytes);
            let Some(a) = pick(u, &fields)? else { return Ok(()) };
            let same: Vec<&Field> =
                fields.iter().filter(|f| f.class == a.class && f.width == a.width).collect();
            let Some(b) = pick(u, &same)? else { return Ok(()) };
            let (x, y) = (a.read(&bytes), b.read(&bytes));
            for (f, value, old) in [(a, y, x), (*b, x, y)] {
                let story = format!("{who}: {} at byte {}: {old:#x} -> {value:#x}", f.name, f.at);
                push(f.at, Content::Number { width: f.width, value }, story);
            }
        }
        225..240 if kind != Kind::SuperBlock => {
            let other = if u.arbitrary::<bool>()? { kind } else { self::kind(u)? };
            let Some(from) = self::target(base, u, other)? else { return Ok(()) };
            if from.kind != Kind::SuperBlock {
                let story = format!("{who}: replaced by {}", name(&from, Place::Block(from.block)));
                push(0, Content::CopyOf(from.block), story);
            }
        }
        240..252 => {
            let at = usize::from(u.arbitrary::<u16>()?) % bytes.len();
            let value = u64::from(u.arbitrary::<u8>()?);
            let story = format!("{who}: byte {at}: {:#x} -> {value:#x}", bytes[at]);
            push(at, Content::Number { width: 1, value }, story);
        }
        _ => {
            let seed = u.arbitrary::<u8>()? & !1;
            let at = usize::from(u.arbitrary::<u16>()?) % bytes.len();
            let what = if seed == 0 { "zeroes" } else { "noise" };
            push(at, Content::Noise(seed), format!("{who}: {what} from byte {at}"));
        }
    }
    Ok(())
}

/// Changes as `bytes` choose them; the same bytes choose the same.
pub fn decode(base: &Base, bytes: &[u8]) -> Changes {
    let mut u = Unstructured::new(bytes);
    let first = u.arbitrary::<u16>().unwrap_or(0);
    let wanted = match first & 0xff {
        0..110 => 1,
        110..180 => 2,
        180..225 => 3,
        _ => MOST,
    };
    let sums = match first >> 8 {
        0..236 => Sums::All,
        236..246 => Sums::Log,
        _ => Sums::None,
    };
    let mut patches = Vec::new();
    for _ in 0..wanted {
        if u.is_empty() || one(base, &mut u, &mut patches).is_err() {
            break;
        }
    }
    Changes { sums, patches }
}

/// So many bytes of a random case.
pub const BYTES: usize = 160;

/// The bytes of a random case (SplitMix64).
pub fn bytes_of(seed: u64) -> [u8; BYTES] {
    let mut state = seed;
    let mut out = [0; BYTES];
    for part in out.chunks_mut(8) {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        part.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..part.len()]);
    }
    out
}
