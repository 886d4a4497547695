//! The corpus of the fuzz targets as it is committed: one packed file a target, `fuzz/seeds/TARGET.zst`.
//!
//! Unpacked it is a sequence of inputs: four bytes of length, little endian, then that many bytes.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::targets::TARGETS;

/// Bytes that a corpus may have unpacked.
const LARGEST: u64 = 64 << 20;

/// The directory of the fuzz targets.
pub fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// Where the packed corpus of a target is committed.
pub fn packed(target: &str) -> PathBuf {
    fuzz().join("seeds").join(format!("{target}.zst"))
}

/// Inputs of the committed corpus of a target. Errors: there is none, or it is cut off.
pub fn inputs(target: &str) -> anyhow::Result<Vec<Vec<u8>>> {
    let path = packed(target);
    let file = std::fs::read(&path).with_context(|| path.display().to_string())?;
    let mut bytes = Vec::new();
    ruzstd::decoding::StreamingDecoder::new(&file[..])?.take(LARGEST).read_to_end(&mut bytes)?;
    split(&bytes).with_context(|| format!("{} is cut off", path.display()))
}

fn split(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let (n, rest) = bytes.split_first_chunk()?;
        let (input, rest) = rest.split_at_checked(u32::from_le_bytes(*n) as usize)?;
        out.push(input.to_vec());
        bytes = rest;
    }
    Some(out)
}

fn join(inputs: &[Vec<u8>]) -> anyhow::Result<Vec<u8>> {
    let mut out = Vec::new();
    for input in inputs {
        out.extend(u32::try_from(input.len())?.to_le_bytes());
        out.extend(input);
    }
    Ok(out)
}

/// Packs what lies below `from`, a directory for each target; targets without one are left as they are. Returns the
/// number of inputs of each.
pub fn pack(from: &Path) -> anyhow::Result<Vec<(&'static str, usize)>> {
    let mut out = Vec::new();
    for (target, _) in TARGETS {
        let Ok(entries) = std::fs::read_dir(from.join(target)) else { continue };
        let mut inputs = Vec::new();
        for entry in entries {
            inputs.push(std::fs::read(entry?.path())?);
        }
        // The same inputs are the same file, and like ones lie side by side.
        inputs.sort();
        inputs.dedup();
        let packed_bytes = ruzstd::encoding::compress_to_vec(
            &join(&inputs)?[..],
            ruzstd::encoding::CompressionLevel::Fastest,
        );
        std::fs::create_dir_all(fuzz().join("seeds"))?;
        std::fs::write(packed(target), packed_bytes)?;
        out.push((target, inputs.len()));
    }
    Ok(out)
}

/// Unpacks all below `to`, a directory for each target, as a fuzzer wants it. What is there stays. Returns the number
/// of inputs.
pub fn unpack(to: &Path) -> anyhow::Result<usize> {
    let mut all = 0;
    for (target, _) in TARGETS {
        let dir = to.join(target);
        std::fs::create_dir_all(&dir)?;
        for (i, input) in inputs(target)?.iter().enumerate() {
            std::fs::write(dir.join(format!("seed-{i:04}")), input)?;
            all += 1;
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_come_back() {
        let inputs = vec![vec![], vec![1, 2, 3], vec![0; 700]];
        let joined = join(&inputs).unwrap();
        assert_eq!(split(&joined).unwrap(), inputs);
        assert_eq!(split(&joined[..joined.len() - 1]), None, "the last one is cut off");
        assert_eq!(split(&joined[..2]), None);
    }
}
