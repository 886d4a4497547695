//! Seeds of the fuzz targets: structures of the bases, random changes, requests of every kind.

use std::path::Path;

use silt_control::wire::{Ask, MAX_REQUEST, VERSION, send};
use silt_control::{CheckpointQuery, Request, Retain, SegmentQuery, Tune};
use silt_device::Device;
use silt_fuse::abi::opcode;

use crate::index::{self, Kind};
use crate::{Base, mutate};

/// Structures of each kind that become seeds.
const EACH: usize = 4;

/// Writes the seeds of all targets below `to`, a directory for each.
pub fn write(to: &Path) -> anyhow::Result<()> {
    let base = Base::get("small-1k");
    structures(to, &base)?;
    for i in 0..48u64 {
        let bytes = mutate::bytes_of(1_000_000 + i);
        put(to, "volume", &format!("random-{i}"), &[&[i as u8], &bytes[..40 + (i as usize * 2)]].concat())?;
    }
    kernel(to)?;
    control(to)
}

fn put(to: &Path, target: &str, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
    let dir = to.join(target);
    std::fs::create_dir_all(&dir)?;
    Ok(std::fs::write(dir.join(name), bytes)?)
}

fn structures(to: &Path, base: &Base) -> anyhow::Result<()> {
    let mut sb = vec![0; 1024];
    base.device.read_at(1024, &mut sb)?;
    put(to, "super_block", "sound", &[&sb[..], &base.device.len().to_le_bytes()].concat())?;
    let kinds = [
        (Kind::LogHeader, "summary"),
        (Kind::SuperRoot, "super_root"),
        (Kind::Node, "btree"),
        (Kind::DatNode, "btree"),
        (Kind::DatEntries, "dat"),
        (Kind::Checkpoints, "checkpoint"),
        (Kind::Usage, "usage"),
        (Kind::Directory, "directory"),
        (Kind::InodeDescriptors, "palloc"),
        (Kind::InodeBitmap, "palloc"),
    ];
    for (kind, target) in kinds {
        let all = base.index.all.get(&kind).map_or(&[][..], Vec::as_slice);
        let step = (all.len() / EACH).max(1);
        for t in all.iter().step_by(step).take(EACH) {
            // Block size 1024, sizes as mkfs makes them, 16 blocks a segment.
            let mut bytes = vec![0; 4];
            bytes.extend(index::block(&base.device, &base.index.g, t.block));
            while bytes.len() > 5 && bytes.last() == Some(&0) {
                bytes.pop();
            }
            put(to, target, &format!("{kind:?}-{}", t.block).to_lowercase(), &bytes)?;
        }
    }
    let all = base.index.hot.get(&Kind::Inodes).map_or(&[][..], Vec::as_slice);
    for t in all.iter().take(1) {
        for (i, inode) in index::block(&base.device, &base.index.g, t.block).chunks(128).enumerate() {
            if inode.iter().any(|b| *b != 0) {
                put(to, "inode", &format!("inode-{i}"), inode)?;
                put(to, "direct", &format!("map-{i}"), &inode[56..112])?;
            }
        }
    }
    Ok(())
}

/// A request of every operation, with the smallest arguments and a longer one.
fn kernel(to: &Path) -> anyhow::Result<()> {
    let known = (opcode::LOOKUP..=opcode::COPY_FILE_RANGE).chain([48, 49, 50, 51, 52]);
    for code in known {
        // Fixed arguments of all lengths are prefixes of zeroes; then two names.
        let body = [&[0u8; 88][..], b"name\0other\0"].concat();
        let names = b"name\0other\0".to_vec();
        for (what, body) in [("fixed", body), ("names", names)] {
            let mut bytes = Vec::new();
            bytes.extend(u32::try_from(40 + body.len())?.to_le_bytes());
            bytes.extend(code.to_le_bytes());
            bytes.extend(7u64.to_le_bytes());
            bytes.extend(201u64.to_le_bytes());
            bytes.extend([0; 16]);
            bytes.extend(body);
            put(to, "requests", &format!("kernel-{code}-{what}"), &[&[0], &bytes[..]].concat())?;
        }
    }
    Ok(())
}

fn control(to: &Path) -> anyhow::Result<()> {
    let asks = [
        Request::Status,
        Request::Serves(38),
        Request::ListCheckpoints(CheckpointQuery {
            from: Some(3),
            count: Some(9),
            ..CheckpointQuery::default()
        }),
        Request::MakeCheckpoint { snapshot: true },
        Request::ChangeMode { checkpoints: vec![1, 2, 3], snapshot: false },
        Request::RemoveCheckpoints { start: 1, end: u64::MAX },
        Request::ListSegments(SegmentQuery { live: Some(3600), ..SegmentQuery::default() }),
        Request::DumpSegments { segments: vec![0, 7] },
        Request::Tune(Tune { label: Some("label".into()), ..Tune::default() }),
        Request::Resize { size: Some(1 << 30) },
        Request::SetRetention(Retain { wish: Some("all for 1 day".into()), floor: Some("default".into()) }),
        Request::FindMoment { at: silt_control::Moment::Time(1_700_000_000), snapshot_only: true },
        Request::Unmount(silt_control::UnmountWhat::Everything),
    ];
    for (i, request) in asks.into_iter().enumerate() {
        let mut bytes = vec![1];
        send(&mut bytes, &Ask { version: VERSION, request }, MAX_REQUEST)?;
        put(to, "requests", &format!("control-{i}"), &bytes)?;
    }
    for (i, text) in ["1234", "2026-11-21T14:03:05Z", "2026-11-21 14:03", "2026-11-21"].iter().enumerate() {
        put(to, "requests", &format!("moment-{i}"), &[b"\x01", text.as_bytes()].concat())?;
    }
    Ok(())
}
