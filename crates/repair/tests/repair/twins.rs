//! A segment that was written a second time, over another one.

use silt_device::Device;
use silt_engine::mend::{forget_twin, twins};
use silt_format::SegNr;
use silt_verify::surgeon::Surgeon;

#[test]
fn the_copy_is_told_from_the_right_one() {
    let mut told = 0;
    for name in ["basic-1k", "basic-4k", "btree-1k", "gc-4k"] {
        let s = Surgeon::golden(name);
        let g = s.g();
        assert_eq!(twins(&s.device, &g), [], "{name}: a sound volume");
        let used: Vec<u64> = (1..g.nsegments).filter(|n| !s.logs(*n).is_empty()).collect();
        for (from, over) in used.iter().zip(used.iter().skip(1)).take(20) {
            let torn = s.device.fork();
            let blocks = g.segment_blocks(SegNr(*from)).min(g.segment_blocks(SegNr(*over)));
            let mut bytes = vec![0; usize::try_from(blocks).unwrap() * g.bs()];
            torn.read_at(g.byte_of(g.segment_start(SegNr(*from))), &mut bytes).unwrap();
            torn.write_at(g.byte_of(g.segment_start(SegNr(*over))), &[&bytes]).unwrap();
            // Where the segment before it was given away since, nothing says which is right.
            for twin in twins(&torn, &g) {
                assert_eq!((twin.right, twin.wrong), (*from, *over), "{name}");
                forget_twin(&torn, &g, &twin).unwrap();
                told += 1;
            }
            assert_eq!(twins(&torn, &g), [], "{name}: {from} over {over}");
        }
    }
    assert!(told > 2, "{told}");
}
