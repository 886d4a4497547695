use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::caps::Capabilities;
use crate::errno::Errno;
use crate::run::plan;

fn verb(op: &Op) -> String {
    op.to_string().split(' ').next().unwrap().to_owned()
}

#[test]
fn a_seed_is_a_history() {
    let caps = Capabilities::silt(4096);
    let ops = |seed| {
        let mut model = Model::new(caps.clone()).with_nilfs_file();
        let mut generator = Generator::new(seed, Profile::of_seed(seed));
        let played = plan(&mut model, &mut generator, 500);
        (played.into_iter().map(|(op, _)| op.to_string()).collect::<Vec<_>>(), model.tree())
    };
    assert_eq!(ops(5), ops(5));
    assert_ne!(ops(5).0, ops(6).0);
}

#[test]
fn everything_comes_and_some_fails() {
    let caps = Capabilities::silt(1024);
    let mut verbs: BTreeMap<String, usize> = BTreeMap::new();
    let mut errors: BTreeMap<Errno, usize> = BTreeMap::new();
    let (mut total, mut failed) = (0, 0);
    for seed in 0..60 {
        let mut model = Model::new(caps.clone()).with_nilfs_file();
        let mut generator = Generator::new(seed, Profile { link_burst: seed == 3, ..Profile::of_seed(seed) });
        for (op, outcome) in plan(&mut model, &mut generator, 500) {
            let text = op.to_string();
            assert_eq!(Op::parse(&text), Some(op.clone()), "an operation is lost as text");
            assert!(!text.split(' ').any(|word| word == ".nilfs"), "{text}");
            *verbs.entry(verb(&op)).or_default() += 1;
            total += 1;
            if let Err(errno) = outcome {
                *errors.entry(errno).or_default() += 1;
                failed += 1;
            }
        }
        assert!(model.allocated() <= 32 << 20, "seed {seed} holds {} bytes", model.allocated());
        assert!(model.lookup(&TreePath::new(b".nilfs")).is_ok());
    }
    assert_eq!(verbs.len(), 33, "{verbs:?}");
    let expected = [
        Errno::EPERM,
        Errno::ENOENT,
        Errno::EBADF,
        Errno::EBUSY,
        Errno::EEXIST,
        Errno::ENOTDIR,
        Errno::EISDIR,
        Errno::EINVAL,
        Errno::EMLINK,
        Errno::ENAMETOOLONG,
        Errno::ENOTEMPTY,
        Errno::ELOOP,
    ];
    let seen: BTreeSet<Errno> = errors.keys().copied().collect();
    assert_eq!(seen, BTreeSet::from(expected), "{errors:?}");
    assert!(failed * 100 >= total * 2 && failed * 100 <= total * 15, "{failed} of {total} failed");
}

#[test]
fn only_what_the_target_has() {
    let caps = Capabilities {
        flags: 0,
        snapshots: false,
        checkpoints: false,
        remount: false,
        ..Capabilities::kernel(1024)
    };
    for seed in 0..20 {
        let mut model = Model::new(caps.clone());
        let mut generator = Generator::new(seed, Profile::of_seed(seed));
        for (op, _) in plan(&mut model, &mut generator, 400) {
            let refused = matches!(op, Op::Fallocate { .. } | Op::Tmpfile { .. } | Op::LinkSlot { .. });
            let missing = matches!(op, Op::Checkpoint | Op::Snapshot | Op::Remount | Op::SetFlags { .. });
            assert!(!refused && !missing, "{op}");
        }
    }
}
