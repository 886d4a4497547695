//! Blocks of the checkpoint file in the place of others of its own.

use silt_format::checkpoint as cp;
use silt_repair::errors;
use silt_verify::golden;
use silt_verify::surgeon::Surgeon;

use crate::common::{checked, mends, snapshots};

/// What tells that a block is not in its place, whoever wrote it: entries of no checkpoint have their number or none.
#[test]
fn entries_without_a_checkpoint_have_their_number_or_none() {
    let mut deleted = 0;
    for name in golden::NAMES.into_iter().chain(golden::WEDGED) {
        let s = Surgeon::golden(name);
        let g = s.g();
        for (offset, at) in s.file(4) {
            let block = s.read(at);
            for slot in 0..cp::per_block(&g) {
                let Some(cno) = cp::cno_at(&g, offset, slot) else { continue };
                let e = cp::entry(&block, slot as usize * g.checkpoint_size as usize).unwrap();
                let told = e.cno.get();
                assert!(told == cno.0 || (e.is_invalid() && told == 0), "{name}: {cno} says {told}");
                deleted += u64::from(e.is_invalid() && told != 0);
            }
        }
    }
    assert!(deleted > 10, "{deleted}");
}

#[test]
fn a_snapshot_is_not_lost_with_a_block_in_the_place_of_its_own() {
    let mut tried = 0;
    for name in golden::NAMES {
        let mut s = Surgeon::golden(name);
        let (g, sound, before) = (s.g(), s.device.fork(), snapshots(&s.device));
        let blocks = s.file(4);
        let place = |c: &u64| cp::place(&g, silt_format::Cno(*c)).unwrap().0;
        let Some(offset) = before.iter().map(place).find(|offset| *offset > 0) else { continue };
        let first = s.read(blocks[&0]);
        s.patch(blocks[&offset], |block| block.copy_from_slice(&first));
        assert!(errors(&checked(&s.device)) > 0, "{name}");
        let mended = mends(&sound, &s.device).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(snapshots(&mended.device), before, "{name}");
        tried += 1;
    }
    assert!(tried > 0);
}
