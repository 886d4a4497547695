//! What a rescue puts beside damaged files.

use silt_device::{Fault, Times};
use silt_format::{BlockNr, Ino};
use silt_verify::Unwatched;
use silt_verify::rescue::{Note, Rescue};
use silt_verify::surgeon::Surgeon;

use crate::making::Making;

/// A file of the volume with the name that a version of another would get keeps it, whichever of the two is met first.
#[test]
fn a_version_beside_takes_no_name_of_a_file() {
    for real in [true, false] {
        let mut m = Making::new();
        let file = m.make(Ino::ROOT, "file", 0);
        m.write(file, 4, 1);
        let c = m.sync();
        m.write(file, 4, 2);
        let name = format!("file.checkpoint-{c}");
        if real {
            let ino = m.make(Ino::ROOT, &name, 0);
            m.write(ino, 1, 3);
        }
        m.sync();
        let s = Surgeon { device: m.done() };
        let broken = Fault::new(s.device.fork());
        let at = s.g().byte_of(BlockNr(s.file(file.0)[&2]));
        broken.fail_reads(at..at + 512, Times::Always);
        let to = tempfile::tempdir().unwrap();
        let rescue = Rescue::open(&broken, &Unwatched).unwrap();
        let cno = rescue.moments()[0].cno;
        let tally = rescue.copy_out(cno, &to.path().join("out"), &Unwatched).unwrap();
        let length = std::fs::metadata(to.path().join("out").join(&name)).unwrap().len();
        assert_eq!(length, if real { 4096 } else { 4 * 4096 });
        let problem = tally.problems.iter().find(|p| p.ino == file.0).unwrap();
        let told = problem.notes.contains(&Note::WholeVersionBeside { cno: c });
        assert_eq!(told, !real, "{problem:?}");
        let refused =
            tally.problems.iter().any(|p| p.notes.iter().any(|n| matches!(n, Note::NotMade { .. })));
        assert!(!refused, "{:?}", tally.problems);
    }
}
