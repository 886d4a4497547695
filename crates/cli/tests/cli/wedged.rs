//! A volume on which another writer left no segment to write to.

use crate::common::{Bench, Mounted, can_mount};
use silt_verify::golden::{WEDGED, wedged_content};

#[test]
fn what_the_kernel_wedged_is_given_room_when_it_is_mounted() {
    if !can_mount() {
        return;
    }
    for name in WEDGED {
        let b = Bench::new();
        let v = b.golden(name);
        // Who wants no cleaner gets what there is: everything can be read and nothing written.
        let (m, _) = Mounted::new(&b, &["-o", "nogc", &v], "m");
        assert!(!b.ok(&["status", m.dir()]).contains("were emptied"));
        assert!(std::fs::remove_file(m.path("f5")).is_err());
        m.unmount();
        let (m, _) = Mounted::new(&b, &[&v], "m");
        let said = b.ok(&["status", m.dir()]);
        assert!(said.contains("hardly a segment was clean, so "), "{name}: {said}");
        for n in ["f0", "f77"] {
            assert_eq!(std::fs::read(m.path(n)).unwrap(), wedged_content(n));
        }
        // Each synced: every one of them is a checkpoint.
        for n in 5..15 {
            std::fs::remove_file(m.path(&format!("f{n}"))).unwrap();
            b.ok(&["sync", m.dir()]);
        }
        std::fs::write(m.path("new"), [7; 50_000]).unwrap();
        b.ok(&["sync", m.dir()]);
        assert_eq!(std::fs::read(m.path("new")).unwrap(), [7; 50_000]);
        m.unmount();
        assert!(b.ok(&["check", "--all", &v]).contains(": sound; "), "{name}");
    }
}

/// A single request of an unmounted volume makes room as well, and says so.
#[test]
fn what_the_kernel_wedged_can_be_changed_unmounted() {
    let b = Bench::new();
    let v = b.golden(WEDGED[0]);
    let run = b.run(&["mkcp", "-s", &v]);
    assert!(run.code == 0 && run.err.contains("hardly a segment was clean, so "), "{}", run.err);
    b.ok(&["clean", "-p", "0", &v]);
    assert!(b.ok(&["check", "--all", &v]).contains(": sound; "));
}
