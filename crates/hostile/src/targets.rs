//! The bodies of the fuzz targets. Each takes any bytes; what it must not do is panic, hang or take memory.

use std::sync::Arc;

use silt_control::Request;
use silt_control::wire::{Ask, MAX_REQUEST, Part, decode, receive, send};
use silt_format::inode::RawInode;
use silt_format::palloc::Layout;
use silt_format::summary::{self, Builder, Header};
use silt_format::super_block::{self, SuperBlock};
use silt_format::super_root::SuperRoot;
use silt_format::{
    BlockNr, Cno, Geometry, Ino, SegNr, btree, checkpoint, crc32, dat, dir, direct, segment_usage,
};
use zerocopy::FromBytes;

use crate::judge::limit;
use crate::mutate;
use crate::paths::{PATHS, Seen};
use crate::watched::{Budget, Watched};
use crate::{Base, fuse};

/// A target: its name and what it does with the bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All targets. `fuzz/fuzz_targets` has a file for each.
pub const TARGETS: [Target; 15] = [
    ("super_block", super_block),
    ("summary", log_summary),
    ("super_root", super_root),
    ("inode", inode),
    ("btree", btree_node),
    ("direct", direct_map),
    ("dat", dat_entry),
    ("checkpoint", checkpoints),
    ("usage", usage),
    ("directory", directory),
    ("palloc", allocator),
    ("volume", |data| volume("volume", data)),
    ("rescue", |data| volume("rescue", data)),
    ("repair", |data| volume("repair", data)),
    ("requests", requests),
];

/// Runs the target of this name. Panics where there is none.
pub fn run(name: &str, data: &[u8]) {
    let (_, body) = TARGETS.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no target {name}"));
    body(data);
}

/// Numbers of a volume as the first bytes choose them, all of them such as a super block may have; and the rest.
fn geometry(data: &[u8]) -> Option<(Geometry, &[u8])> {
    let (head, rest) = data.split_at_checked(4)?;
    let bits = 10 + u32::from(head[0] % 7);
    let block_size = 1u32 << bits;
    let grown = |size: u32, by: u8| (size + u32::from(by & 0x0f) * 8).min(block_size);
    let g = Geometry {
        block_size,
        block_bits: bits,
        blocks_per_segment: 16 << (head[3] % 8),
        nsegments: 40,
        first_data_block: u64::from(4096u32.div_ceil(block_size)),
        inode_size: grown(128, head[1]).min((block_size - 16) / 3),
        dat_entry_size: grown(32, head[1] >> 4),
        checkpoint_size: grown(192, head[2]),
        segment_usage_size: grown(16, head[2] >> 4),
        crc_seed: 0x5117_0001,
        first_ino: 11,
        reserved_percent: 5,
    };
    Some((g, rest))
}

/// The bytes as a whole block, and zeroes behind them.
fn block(g: &Geometry, data: &[u8]) -> Vec<u8> {
    let mut bytes = data[..data.len().min(g.bs())].to_vec();
    bytes.resize(g.bs(), 0);
    bytes
}

fn super_block(data: &[u8]) {
    let mut bytes = [0; super_block::SIZE];
    let n = data.len().min(bytes.len());
    bytes[..n].copy_from_slice(&data[..n]);
    let _ = SuperBlock::parse(data);
    let plain = SuperBlock::parse(&bytes);
    // The size of the device, and a checksum that is right.
    let mut size = [0; 8];
    let tail = data.get(super_block::SIZE..).unwrap_or_default();
    size[..tail.len().min(8)].copy_from_slice(&tail[..tail.len().min(8)]);
    let size = u64::from_le_bytes(size);
    let Ok(mut sb) = SuperBlock::read_from_bytes(&bytes) else { return };
    let sealed = sb.to_disk();
    let parsed = SuperBlock::parse(&sealed);
    let _ = super_block::secondary_offset(size);
    for device in [size, sb.dev_size.get(), 1 << 21] {
        let copies = super_block::choose(parsed.clone(), plain.clone(), device);
        if let Ok(copies) = copies
            && let Ok(g) = copies.first.1.geometry(device)
        {
            let end = g.end_block();
            assert!(
                end.checked_mul(u64::from(g.block_size)).is_some_and(|e| e <= device),
                "segments past the end"
            );
            for segment in [0, (g.nsegments - 1).min(1), g.nsegments - 1] {
                let (a, b) = (g.segment_start(SegNr(segment)), g.segment_end(SegNr(segment)));
                assert!(a < b && g.holds(a) && g.segment_of(a) == SegNr(segment), "segment {segment}");
            }
            let _ = (g.reserved_segments(), g.max_file_size(), g.max_key(), g.byte_of(BlockNr(end)));
            for layout in [Layout::ifile(&g), Layout::dat(&g)] {
                assert!(layout.entries_per_block() > 0 && layout.ngroups() > 0, "an allocator of nothing");
            }
            assert!(checkpoint::per_block(&g) > 0 && segment_usage::per_block(&g) > 0, "tables of nothing");
        }
        let _ = sb.secondary_is_bogus(device);
    }
    let _ = sb.label();
}

fn log_summary(data: &[u8]) {
    let Some((g, data)) = geometry(data) else { return };
    let head = block(&g, data);
    let Ok(h) = Header::parse(&g, &head) else { return };
    let blocks = h.summary_blocks(&g) as usize;
    // As the engine does: what is longer than a segment is not read.
    if blocks > 64 {
        return;
    }
    let mut all = data[..data.len().min(blocks * g.bs())].to_vec();
    all.resize(blocks * g.bs(), 0);
    let _ = summary::summary_sum_matches(g.crc_seed, &h, &all);
    let mut payloads = Vec::new();
    let mut last = None;
    let whole = summary::for_each_payload(&g, &h, &all, |p| {
        assert!(last.is_none_or(|l| p.index == l + 1), "payloads out of order");
        assert!(p.index < h.nblocks.get(), "more payloads than blocks");
        last = Some(p.index);
        if payloads.len() < 10_000 {
            payloads.push(p);
        }
    });
    if whole.is_err() {
        return;
    }
    // What was read is composed again, as far as the records go.
    let mut builder = Builder::new(g.bs());
    let mut open = None;
    for p in payloads.iter().take(200) {
        if open != Some((p.ino, p.cno)) {
            if open.is_some() {
                builder.end_file();
            }
            builder.begin_file(p.ino, p.cno);
            open = Some((p.ino, p.cno));
        }
        builder.add(&p.info);
    }
    let _ = builder.blocks();
    let _ = builder.finish(h);
}

fn super_root(data: &[u8]) {
    let Some((g, data)) = geometry(data) else { return };
    let mut bytes = block(&g, data);
    let _ = SuperRoot::parse(&g, data);
    let _ = SuperRoot::parse(&g, &bytes);
    let n = usize::from(u16::from_le_bytes([bytes[4], bytes[5]])).clamp(4, g.bs());
    let sum = crc32(g.crc_seed, &bytes[4..n]);
    bytes[..4].copy_from_slice(&sum.to_le_bytes());
    if let Ok(root) = SuperRoot::parse(&g, &bytes) {
        let mut again = vec![0; g.bs()];
        root.store(&g, &mut again);
        let read = SuperRoot::parse(&g, &again).expect("what was stored");
        assert_eq!(read.dat.bmap, root.dat.bmap);
    }
}

fn map(bmap: &[u8; btree::ROOT_BYTES]) {
    if btree::is_btree(bmap) {
        if btree::check_root(bmap).is_ok() {
            look_up(btree::Node::root(bmap));
        }
    } else if direct::check(bmap).is_ok() {
        for key in (0..direct::KEYS + 2).chain([1 << 61, u64::MAX]) {
            let _ = direct::get(bmap, key);
        }
    }
}

fn look_up(node: btree::Node<'_>) {
    assert!(node.len() <= node.capacity(), "more children than fit");
    for key in [0, 1, u64::MAX, 1 << 40] {
        let _ = node.search(key);
        let child = node.child_for(key);
        assert!(node.is_empty() || child < node.len(), "a child that is none");
    }
    for i in 0..node.len() {
        let _ = node.ptr(i);
        assert_eq!(node.search(node.key(i)), Ok(i), "keys in order");
    }
}

fn inode(data: &[u8]) {
    let _ = RawInode::read(data);
    let mut bytes = [0; 128];
    let n = data.len().min(128);
    bytes[..n].copy_from_slice(&data[..n]);
    let Ok(raw) = RawInode::read(&bytes) else { return };
    let _ = (raw.file_type(), raw.has_map(), raw.device());
    let _ = raw.check_metadata("DAT");
    if raw.check().is_ok() && raw.has_map() {
        map(&raw.bmap);
    }
    let mut again = bytes;
    raw.store(&mut again);
    assert_eq!(again, bytes, "what was read is stored again");
}

fn btree_node(data: &[u8]) {
    let Some((g, data)) = geometry(data) else { return };
    let mut bytes = block(&g, data);
    let level = bytes[1];
    if btree::check_node(&bytes, Some(level)).is_err() {
        let _ = btree::check_node(&bytes, None);
        return;
    }
    look_up(btree::Node::block(&bytes));
    let mut node = btree::NodeMut::block(&mut bytes);
    let n = node.as_ref().len();
    if n > 1 {
        let moved = node.split_off(n / 2);
        assert_eq!((node.as_ref().len(), moved.len()), (n / 2, n - n / 2));
        node.extend(&moved);
        let (key, ptr) = node.remove(n - 1);
        node.insert(n - 1, key, ptr);
    }
    btree::check_node(&bytes, Some(level)).expect("taken apart and put together");
}

fn direct_map(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<{ btree::ROOT_BYTES }>() else { return };
    map(bytes);
    let mut bytes = *bytes;
    if direct::check(&bytes).is_ok() {
        direct::set(&mut bytes, 5, 7);
        assert_eq!(direct::get(&bytes, 5), 7);
    }
}

fn dat_entry(data: &[u8]) {
    let Some((g, data)) = geometry(data) else { return };
    let bytes = block(&g, data);
    for at in [0, 32, g.bs() - 32, g.bs() - 31, usize::from(data.first().copied().unwrap_or(0)) * 8] {
        if let Ok(e) = dat::DatEntry::read(&bytes, at) {
            let _ = e.contains(e.start.get());
            let mut again = bytes.clone();
            assert!(e.store(&mut again, at));
            assert_eq!(again, bytes);
        }
    }
    let _ = dat::DatEntry::read(data, usize::MAX - 3);
}

fn number(data: &[u8]) -> u64 {
    let mut word = [0; 8];
    let n = data.len().min(8);
    word[..n].copy_from_slice(&data[..n]);
    u64::from_le_bytes(word)
}

fn checkpoints(data: &[u8]) {
    let Some((g, data)) = geometry(data) else { return };
    let bytes = block(&g, data);
    let _ = checkpoint::header(data);
    let _ = checkpoint::header(&bytes);
    for slot in 0..checkpoint::per_block(&g) {
        let at = (slot * u64::from(g.checkpoint_size)) as usize;
        if let Ok(e) = checkpoint::entry(&bytes, at) {
            let _ = (e.is_invalid(), e.is_minor(), e.is_snapshot());
            map(&e.ifile_inode.bmap);
        }
    }
    let _ = checkpoint::entry(data, data.len().saturating_sub(5));
    for n in [number(data), 0, 1, u64::MAX] {
        if let Ok((block, byte)) = checkpoint::place(&g, Cno(n)) {
            assert!(byte + checkpoint::SIZE <= g.bs(), "an entry across blocks");
            let slot = byte as u64 / u64::from(g.checkpoint_size);
            assert_eq!(checkpoint::cno_at(&g, block, slot), Some(Cno(n)));
        }
        let _ = checkpoint::cno_at(&g, n, n);
    }
}

fn usage(data: &[u8]) {
    let Some((g, data)) = geometry(data) else { return };
    let bytes = block(&g, data);
    let _ = segment_usage::header(data);
    let _ = segment_usage::header(&bytes);
    for n in 0..g.nsegments {
        let (_, byte) = segment_usage::place(&g, SegNr(n));
        let e = segment_usage::SuEntry::read(&bytes, byte).expect("an entry within its block");
        let _ = (e.is_clean(), e.is_dirty(), e.is_error());
    }
    let _ = segment_usage::SuEntry::read(data, data.len().saturating_sub(3));
}

fn directory(data: &[u8]) {
    let Some((g, data)) = geometry(data) else { return };
    let mut bytes = block(&g, data);
    let listed = dir::entries(&bytes).take_while(Result::is_ok).count();
    assert!(listed <= g.bs() / 12, "more entries than fit");
    let sound = dir::check(&bytes).is_ok();
    let _ = dir::entry_at(&bytes, number(data) as usize);
    let gap = dir::largest_gap(&bytes);
    // Changes of a damaged block are refused or leave it no worse.
    let placed = dir::insert(&mut bytes, b"a name", Ino(20), 1);
    if sound {
        assert!(placed.is_ok() && gap.is_ok() && dir::check(&bytes).is_ok(), "a sound block stays sound");
    }
    let first: Vec<usize> = dir::entries(&bytes).map_while(Result::ok).map(|e| e.offset).take(50).collect();
    for offset in first {
        let _ = dir::replace(&mut bytes, offset, Ino(30), 2);
        let _ = dir::remove(&mut bytes, offset);
    }
    if sound {
        dir::check(&bytes).expect("a sound block stays sound");
    }
}

fn allocator(data: &[u8]) {
    let Some((g, data)) = geometry(data) else { return };
    let numbers = [number(data), number(data.get(8..).unwrap_or_default()), u64::MAX, 0];
    for (size, layout) in [(g.inode_size, Layout::ifile(&g)), (g.dat_entry_size, Layout::dat(&g))] {
        for n in numbers {
            if layout.check("DAT", n).is_ok() {
                let place = layout.entry(n);
                assert!(place.byte + size as usize <= g.bs(), "an entry across blocks");
                assert!(layout.bit(n) < 8 * g.bs(), "a bit past the bitmap");
                let (_, byte) = layout.desc(layout.group(n));
                assert!(byte + 4 <= g.bs(), "a descriptor across blocks");
                match layout.kind(place.block) {
                    silt_format::palloc::Kind::Entries { first } => {
                        assert!(
                            first <= n && n - first < layout.entries_per_block(),
                            "entry {n} is elsewhere"
                        );
                    }
                    other => panic!("entry {n} lies in {other:?}"),
                }
            }
            let _ = layout.kind(n);
        }
    }
}

/// Bases of the targets that go through whole volumes: small ones, so that much is tried.
const BASES: [&str; 4] = ["small-1k", "cut-1k", "tail-4k", "small-4k"];

/// All paths of a target over an image that the bytes choose.
fn volume(target: &str, data: &[u8]) {
    let Some((which, data)) = data.split_first() else { return };
    let base = Base::get(BASES[usize::from(*which) % BASES.len()]);
    let image = mutate::decode(&base, data).apply(&base);
    let limit = limit(&base);
    for path in PATHS.iter().filter(|p| p.target == target) {
        let limit = limit.times(path.dear);
        let budget = Budget { requests: limit.requests, bytes: limit.bytes };
        let device = Arc::new(Watched::new(image.fork(), path.writes, budget));
        (path.run)(&device, &mut Seen::default());
        assert!(
            !device.is_exceeded(),
            "{}: read more than the size of the image allows: {:?}",
            path.name,
            (device.reads(), limit.requests, limit.bytes)
        );
        assert!(!device.is_touched(), "{}: wrote to a volume that was opened read-only", path.name);
    }
}

/// Requests of the kernel and of the control socket; the first byte says which.
fn requests(data: &[u8]) {
    let Some((which, data)) = data.split_first() else { return };
    if which & 1 == 0 {
        fuse::serve(data);
        return;
    }
    let mut from = data;
    while let Ok(Some(message)) = receive(&mut from, MAX_REQUEST) {
        let _ = decode::<Part>(&message);
        if let Ok(ask) = decode::<Ask>(&message) {
            ask_again(&ask.request);
        }
    }
    if let Ok(ask) = decode::<Ask>(data) {
        ask_again(&ask.request);
    }
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = silt_control::Moment::parse(text);
    }
}

/// A request that was understood is the same when it is sent on.
fn ask_again(request: &Request) {
    let ask = Ask { version: silt_control::wire::VERSION, request: request.clone() };
    let mut bytes = Vec::new();
    if send(&mut bytes, &ask, MAX_REQUEST).is_ok() {
        let back: Ask = decode(&bytes[4..]).expect("what was sent");
        assert_eq!(back.request, *request);
    }
    let _ = (request.only_looks(), request.writes());
}
