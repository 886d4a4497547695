//! Segments that lie in the place of others.

use std::collections::BTreeSet;

use silt_device::Device;
use silt_engine::mend::misplaced;
use silt_format::{Geometry, SegNr};
use silt_verify::golden;
use silt_verify::surgeon::Surgeon;

fn exchange(device: &dyn Device, g: &Geometry, a: u64, b: u64) {
    let len = usize::try_from(u64::from(g.blocks_per_segment) << g.block_bits).unwrap();
    let [a, b] = [a, b].map(|s| g.byte_of(g.segment_start(SegNr(s))));
    let [mut one, mut other] = [vec![0; len], vec![0; len]];
    device.read_at(a, &mut one).unwrap();
    device.read_at(b, &mut other).unwrap();
    device.write_at(a, &[&other]).unwrap();
    device.write_at(b, &[&one]).unwrap();
}

#[test]
fn exchanged_segments_are_found_and_no_others() {
    for name in golden::NAMES {
        let s = Surgeon::golden(name);
        assert_eq!(misplaced(&s.device, &s.g()), BTreeSet::new(), "{name}");
    }
    let s = Surgeon::golden("wrap-4k");
    let g = s.g();
    let used: Vec<u64> = (1..g.nsegments).filter(|segment| !s.logs(*segment).is_empty()).collect();
    assert!(used.len() > 4);
    for (a, b) in [(1, 3), (2, 4)] {
        let (a, b) = (used[a], used[b]);
        exchange(&s.device, &g, a, b);
        let found = misplaced(&s.device, &g);
        assert!(found.contains(&a) && found.contains(&b), "segments {a} and {b}: {found:?}");
        exchange(&s.device, &g, a, b);
    }
}
