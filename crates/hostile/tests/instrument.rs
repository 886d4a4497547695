//! The instrument itself: what breaks a promise is found, and what does not is not.

use std::sync::Arc;

use silt_device::Device;
use silt_hostile::index::Kind;
use silt_hostile::judge::{Broken, Verdict, run};
use silt_hostile::memory::Meter;
use silt_hostile::patch::{Changes, Content, Patch, Place, Sums};
use silt_hostile::paths::{Path, Seen};
use silt_hostile::watched::Watched;
use silt_hostile::{Base, judge, mutate};

#[global_allocator]
static METER: Meter = Meter;

fn broken(writes: bool, f: fn(&Arc<Watched>, &mut Seen)) -> Vec<Broken> {
    let base = Base::get("small-1k");
    let mut verdict = Verdict::default();
    run(
        &Path { name: "planted", writes, every: 1, dear: 1, copies: 0, target: "", run: f },
        &base,
        &base.device,
        &mut verdict,
    );
    verdict.findings.into_iter().map(|f| f.what).collect()
}

#[test]
fn every_broken_promise_is_found() {
    let found = broken(false, |_, _| panic!("planted {}", 1));
    assert!(matches!(&found[..], [Broken::Panic(what)] if what.starts_with("planted 1 at ")), "{found:?}");
    let found = broken(false, |d, _| while d.read_at(0, &mut [0; 512]).is_ok() {});
    assert!(matches!(found[..], [Broken::Reads { .. }]), "{found:?}");
    let found = broken(false, |d, _| drop(d.write_at(0, &[&[1]])));
    assert_eq!(found, [Broken::Wrote]);
    assert_eq!(broken(true, |d, _| d.write_at(0, &[&[1]]).unwrap()), []);
    // Not touched: that would take time as well.
    let found = broken(false, |_, _| drop(std::hint::black_box(Vec::<u8>::with_capacity(200 << 20))));
    assert!(matches!(found[..], [Broken::Memory(bytes)] if bytes >= 200 << 20), "{found:?}");
    let found = broken(false, |_, _| {
        // More processor time than any image of this size may take.
        let clock = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_sec;
        let end = clock() + 3;
        while clock() < end {
            std::hint::spin_loop();
        }
    });
    assert!(matches!(found[..], [Broken::Time(_)]), "{found:?}");
}

#[test]
fn sound_bases_pass_and_their_structures_are_known() {
    for name in Base::names() {
        let base = Base::get(name);
        let verdict = judge(&base, &base.device.fork());
        assert!(verdict.findings.is_empty(), "{name}: {}", verdict.findings[0]);
        let Seen { mounted, taken_over, closed, reopened, walked, .. } = verdict.seen;
        let Seen { rescued, scrubbed, planned, .. } = verdict.seen;
        assert!(mounted && taken_over && closed && reopened && walked, "{name}: {:?}", verdict.seen);
        assert!(rescued && scrubbed && planned, "{name}: {:?}", verdict.seen);
        for kind in silt_hostile::index::KINDS {
            // A small volume's DAT needs no nodes where blocks are large; golden ones lack some things.
            let known = base.index.hot.get(&kind).is_some_and(|t| !t.is_empty());
            let needed = name.ends_with("-1k") && name != "dsync-1k" && name != "btree-1k";
            assert!(known || !needed, "{name} has no {kind:?}");
        }
    }
}

/// The check of a base that was changed and sealed complains of the change, not of checksums.
#[test]
fn checksums_are_made_right() {
    let base = Base::get("small-1k");
    for kind in [Kind::Usage, Kind::SuperRoot] {
        let target = base.index.hot[&kind].last().copied().unwrap();
        let at = if kind == Kind::Usage { 0 } else { 8 };
        let patch = Patch {
            place: Place::Block(target.block),
            at,
            content: Content::Number { width: 1, value: 0x77 },
            story: String::new(),
        };
        let of = |sums| {
            let image = Changes { sums, patches: vec![patch.clone()] }.apply(&base);
            silt_verify::check(&image, &silt_verify::Options::default())
        };
        let complains = |r: &silt_verify::Report| {
            let ids = ["log-checksum", "log-summary-checksum", "super-root-block", "super-root-found"];
            ids.iter().any(|id| r.has(id))
        };
        assert!(complains(&of(Sums::None)), "{kind:?}");
        assert!(!complains(&of(Sums::All)), "{kind:?}");
        assert_eq!(complains(&of(Sums::Log)), kind == Kind::SuperRoot, "its own checksum is left");
    }
}

#[test]
fn the_same_bytes_make_the_same_image() {
    let base = Base::get("small-4k");
    for seed in 0..50 {
        let bytes = mutate::bytes_of(seed);
        let (a, b) = (mutate::decode(&base, &bytes), mutate::decode(&base, &bytes));
        assert_eq!(a, b);
        let text = serde_json::to_string(&a).unwrap();
        assert_eq!(serde_json::from_str::<Changes>(&text).unwrap(), a, "a case can be kept");
    }
}
