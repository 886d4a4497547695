//! Playing histories on a model and a target side by side, and making failing ones small.

use std::collections::VecDeque;
use std::fmt;

use crate::generator::Generator;
use crate::manifest::{Columns, diff};
use crate::model::Model;
use crate::op::Op;
use crate::target::{Outcome, Target, Tree, outcome_text, outcomes_agree};

/// How many operations before a failure are told.
const RECENT: usize = 12;

/// Where model and target parted.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Number of the operation in this run, from 0; the number of operations if the trees differ in the end.
    pub index: usize,
    /// What differs, a sentence each.
    pub what: Vec<String>,
    /// The last operations, oldest first.
    pub recent: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "after {} operations:", self.index)?;
        for line in self.what.iter().take(40) {
            writeln!(f, "  {line}")?;
        }
        if self.what.len() > 40 {
            writeln!(f, "  and {} more", self.what.len() - 40)?;
        }
        writeln!(f, "the last operations:")?;
        for line in &self.recent {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// Two outcomes of one operation, as a sentence if they are not the same.
pub fn judge(op: &Op, expected: &Outcome, got: &Outcome) -> Option<String> {
    if outcomes_agree(expected, got) {
        return None;
    }
    let (expected, got) = (outcome_text(expected), outcome_text(got));
    Some(format!("{op}: expected {expected}, got {got}"))
}

/// Plays one turn: `count` operations of `generator`, and what must follow them. Returns all that was played.
pub fn run<T: Target + ?Sized>(
    model: &mut Model,
    target: &mut T,
    generator: &mut Generator,
    count: usize,
) -> Result<Vec<Op>, Failure> {
    let mut played = Vec::with_capacity(count);
    let mut recent = VecDeque::new();
    let mut one = |model: &mut Model, op: Op| {
        recent.push_back(op.to_string());
        if recent.len() > RECENT {
            recent.pop_front();
        }
        let expected = model.apply(&op);
        let got = target.apply(&op);
        played.push(op);
        let index = played.len() - 1;
        match judge(&played[index], &expected, &got) {
            None => Ok(()),
            Some(what) => Err(Failure { index, what: vec![what], recent: recent.iter().cloned().collect() }),
        }
    };
    for _ in 0..count {
        let op = generator.next(model);
        one(model, op)?;
    }
    for op in generator.rest().collect::<Vec<_>>() {
        one(model, op)?;
    }
    Ok(played)
}

/// The operations of one turn, played on the model alone, with what each must come to.
pub fn plan(model: &mut Model, generator: &mut Generator, count: usize) -> Vec<(Op, Outcome)> {
    let mut plan = Vec::with_capacity(count);
    for _ in 0..count {
        let op = generator.next(model);
        let outcome = model.apply(&op);
        plan.push((op, outcome));
    }
    for op in generator.rest() {
        let outcome = model.apply(&op);
        plan.push((op, outcome));
    }
    plan
}

/// An end after which the power may go: everything is synced, and then come `count` overwrites, each made durable by
/// itself with fdatasync. All of the model's tree must be found afterwards.
pub fn durable_end(model: &mut Model, generator: &mut Generator, count: usize) -> Vec<(Op, Outcome)> {
    let mut ops = vec![Op::Sync];
    for _ in 0..count {
        ops.extend(generator.overwrite_and_sync(model));
    }
    let apply = |op: Op| {
        let outcome = model.apply(&op);
        (op, outcome)
    };
    ops.into_iter().map(apply).collect()
}

/// Compares the live tree, all snapshots and all remembered checkpoints of the model with the target's.
pub fn compare<T: Target + ?Sized>(model: &Model, target: &mut T) -> Vec<String> {
    let mut found = Vec::new();
    let live = [(Tree::Live, model.tree())];
    let snapshots = model.snapshots().iter().map(|(&id, manifest)| (Tree::Snapshot(id), manifest.clone()));
    let past = model.checkpoints().iter().map(|(&id, manifest)| (Tree::Checkpoint(id), manifest.clone()));
    for (tree, expected) in live.into_iter().chain(snapshots).chain(past) {
        match target.manifest(tree, Columns::MODEL) {
            Err(error) => found.push(format!("{tree:?}: {error}")),
            Ok(got) => {
                let lines = diff(&expected, &got, Columns::MODEL);
                found.extend(lines.into_iter().map(|line| format!("{tree:?}: {line}")));
            }
        }
    }
    found
}

/// Leaves out operations as long as `fails` still holds for the rest; what remains fails with each single one
/// of them. `fails` is asked a few hundred times.
pub fn shrink(ops: &[Op], mut fails: impl FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut kept = ops.to_vec();
    let mut size = kept.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        let mut shrunk = false;
        while at < kept.len() {
            let end = (at + size).min(kept.len());
            let rest: Vec<Op> = kept[..at].iter().chain(&kept[end..]).cloned().collect();
            if fails(&rest) {
                kept = rest;
                shrunk = true;
            } else {
                at = end;
            }
        }
        if size > 1 || !shrunk {
            size /= 2;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caps::Capabilities;
    use crate::errno::Errno;
    use crate::generator::Profile;
    use crate::manifest::Manifest;

    /// A target that forgets one kind of operation.
    struct Forgetful(Model);

    impl Target for Forgetful {
        fn capabilities(&self) -> Capabilities {
            self.0.caps().clone()
        }

        fn apply(&mut self, op: &Op) -> Outcome {
            match op {
                Op::Truncate { size: 1.., .. } => Ok(crate::target::Reply::Done),
                Op::Mkdir { .. } if self.0.dirs().items().len() > 5 => Err(Errno::EIO),
                _ => self.0.apply(op),
            }
        }

        fn manifest(&mut self, tree: Tree, columns: Columns) -> Result<Manifest, String> {
            self.0.manifest(tree, columns)
        }
    }

    #[test]
    fn a_model_agrees_with_itself() {
        let caps = Capabilities::silt(4096);
        for seed in 0..20 {
            let mut model = Model::new(caps.clone());
            model.remember_checkpoints();
            let mut target = model.clone();
            let mut generator = Generator::new(seed, Profile::of_seed(seed));
            let played = run(&mut model, &mut target, &mut generator, 400).unwrap();
            assert!(played.len() >= 400);
            assert_eq!(compare(&model, &mut target), [""; 0]);
        }
    }

    #[test]
    fn a_fault_is_found_and_made_small() {
        let caps = Capabilities::silt(4096);
        let fails = |ops: &[Op]| {
            let mut model = Model::new(caps.clone());
            let mut target = Forgetful(Model::new(caps.clone()));
            ops.iter().any(|op| {
                let expected = model.apply(op);
                judge(op, &expected, &target.apply(op)).is_some()
            }) || !compare(&model, &mut target).is_empty()
        };
        let mut model = Model::new(caps.clone());
        let mut generator = Generator::new(1, Profile::of_seed(1));
        let ops: Vec<Op> = plan(&mut model, &mut generator, 300).into_iter().map(|(op, _)| op).collect();
        assert!(fails(&ops));
        let small = shrink(&ops, fails);
        assert!(fails(&small) && small.len() <= 8, "{small:?}");
    }
}
