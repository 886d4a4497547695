//! Maps against a `BTreeMap`, with every invariant of spec 5.2 checked after each change.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use proptest::prelude::*;
use silt_format::btree::{self, Node, NodeMut, ROOT_BYTES};

use super::*;
use crate::block::{self, Block};

const BS: usize = 1024;

#[derive(Default)]
struct Memory {
    clean: BTreeMap<u64, Block>,
    unreadable: Vec<u64>,
    dirty: BTreeMap<u64, Block>,
    next: u64,
    /// After so many nodes that were created or made writable, one cannot be.
    fails: Option<u32>,
}

impl Memory {
    fn may_fail(&mut self) -> Result<()> {
        match self.fails.as_mut() {
            Some(0) => {
                self.fails = None;
                Err(crate::Error::corrupt("here", "B-tree node", "device"))
            }
            Some(n) => {
                *n -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl ReadNodes for Memory {
    fn read(&self, ptr: u64, level: u8) -> Result<Block> {
        if self.unreadable.contains(&ptr) {
            return Err(crate::Error::corrupt("here", "B-tree node", "unreadable"));
        }
        let b = self.dirty.get(&ptr).or_else(|| self.clean.get(&ptr)).expect("pointer to nothing").clone();
        btree::check_node(&b, Some(level)).expect("sound node");
        Ok(b)
    }
}

impl Nodes for Memory {
    fn block_size(&self) -> usize {
        BS
    }
    fn make_writable(&mut self, ptr: u64, level: u8) -> Result<u64> {
        if self.dirty.contains_key(&ptr) {
            return Ok(ptr);
        }
        self.may_fail()?;
        let b = self.read(ptr, level)?;
        self.clean.remove(&ptr);
        self.next += 1;
        self.dirty.insert(1_000_000 + self.next, b);
        Ok(1_000_000 + self.next)
    }
    fn node_mut(&mut self, ptr: u64) -> Result<&mut [u8]> {
        Ok(block::writable(self.dirty.get_mut(&ptr).expect("writable")))
    }
    fn create(&mut self) -> Result<u64> {
        self.may_fail()?;
        self.next += 1;
        self.dirty.insert(1_000_000 + self.next, block::zeroed(BS));
        Ok(1_000_000 + self.next)
    }
    fn discard(&mut self, ptr: u64, _level: u8) -> Result<()> {
        assert!(self.dirty.remove(&ptr).is_some() || self.clean.remove(&ptr).is_some());
        Ok(())
    }
}

fn check(node: Node<'_>, nodes: &Memory, used: &mut usize) {
    for i in 0..node.len() {
        if node.level() > 2 && node.len() > 1 {
            let b = nodes.read(node.ptr(i), node.level() - 1).unwrap();
            assert!(Node::block(&b).len() > 1, "a node above the leaves has siblings, but one child only");
        }
        if i > 0 {
            assert!(node.key(i - 1) < node.key(i));
        }
        if node.level() > 1 {
            let b = nodes.read(node.ptr(i), node.level() - 1).unwrap();
            *used += 1;
            assert_eq!(Node::block(&b).key(0), node.key(i), "parent key equals first key of child");
            check(Node::block(&b), nodes, used);
        }
    }
}

/// Returns how many nodes there are.
fn check_tree(root: &Root, nodes: &Memory, model: &BTreeMap<u64, u64>) -> usize {
    let mut used = 0;
    if btree::is_btree(root) {
        btree::check_root(root).unwrap();
        check(Node::root(root), nodes, &mut used);
    }
    let mut all = Vec::new();
    for_each(root, nodes, 0, |k, p| {
        all.push((k, p));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(all.iter().copied().eq(model.iter().map(|(k, v)| (*k, *v))));
    assert_eq!(last_key(root, nodes).unwrap(), model.keys().next_back().copied());
    for key in model.keys().step_by(7).flat_map(|k| [k.saturating_sub(1), *k, k.saturating_add(1)]).chain([0])
    {
        let found = last_key_to(root, nodes, key).unwrap();
        assert_eq!(found, model.range(..=key).next_back().map(|(k, _)| *k), "up to {key}");
    }
    used
}

fn check_all(root: &Root, nodes: &Memory, model: &BTreeMap<u64, u64>) {
    let used = check_tree(root, nodes, model);
    assert_eq!(used, nodes.clean.len() + nodes.dirty.len(), "no node leaks");
}

#[derive(Debug, Clone)]
enum Op {
    Set(u64),
    SetRun(u64, u64),
    Remove(u64),
    RemoveRun(u64, u64),
    Clean,
    Sever(u64),
}

fn op(range: u64) -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..range).prop_map(Op::Set),
        3 => (0..range, 1..400u64).prop_map(|(k, n)| Op::SetRun(k, n)),
        4 => (0..range).prop_map(Op::Remove),
        3 => (0..range, 1..600u64).prop_map(|(k, n)| Op::RemoveRun(k, n)),
        2 => Just(Op::Clean),
        1 => Just(Op::Sever(0)),
        2 => (0..range).prop_map(Op::Sever),
    ]
}

fn run(ops: &[Op]) {
    let mut root: Root = [0; ROOT_BYTES];
    let mut nodes = Memory::default();
    let mut model = BTreeMap::new();
    let mut value = 0;
    for op in ops {
        let mut put = |root: &mut Root, nodes: &mut Memory, model: &mut BTreeMap<u64, u64>, k: u64| {
            value += 1;
            assert_eq!(set(root, nodes, k, value).unwrap(), model.insert(k, value));
        };
        match *op {
            Op::Set(k) => put(&mut root, &mut nodes, &mut model, k),
            Op::SetRun(k, n) => (k..k + n).for_each(|k| put(&mut root, &mut nodes, &mut model, k)),
            Op::Remove(k) => assert_eq!(remove(&mut root, &mut nodes, k).unwrap(), model.remove(&k)),
            Op::RemoveRun(k, n) => {
                for k in k..k + n {
                    assert_eq!(remove(&mut root, &mut nodes, k).unwrap(), model.remove(&k));
                }
            }
            Op::Clean => {
                let dirty = std::mem::take(&mut nodes.dirty);
                nodes.clean.extend(dirty);
            }
            Op::Sever(from) => {
                let mut severed = Vec::new();
                let mut damage = None;
                sever(&mut root, &mut nodes, from, &mut severed, &mut damage, false).unwrap();
                assert!(damage.is_none());
                let expected: Vec<_> = model.split_off(&from).into_values().collect();
                // The map is whole before what was severed is walked.
                check_tree(&root, &nodes, &model);
                let mut gone = Vec::new();
                while unravel(&mut nodes, &mut severed, |_, p| {
                    gone.push(p);
                    Ok(())
                })
                .unwrap()
                {
                    assert!(severed.len() <= 4 * 63 + 3, "{}", severed.len());
                }
                assert_eq!(gone, expected);
            }
        }
        check_all(&root, &nodes, &model);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn dense_maps_equal_a_map(ops in prop::collection::vec(op(3000), 1..60)) {
        run(&ops);
    }

    #[test]
    fn sparse_maps_equal_a_map(ops in prop::collection::vec(op(1 << 50), 1..60)) {
        run(&ops);
    }

    #[test]
    fn small_maps_equal_a_map(ops in prop::collection::vec(prop_oneof![(0..9u64).prop_map(Op::Set), (0..9u64).prop_map(Op::Remove)], 1..80)) {
        run(&ops);
    }
}

#[test]
fn appending_leaves_full_nodes() {
    let mut root: Root = [0; ROOT_BYTES];
    let mut nodes = Memory::default();
    let n = 63 * 40;
    for k in 0..n {
        set(&mut root, &mut nodes, k, k + 1).unwrap();
    }
    let leaves = nodes.dirty.values().filter(|b| Node::block(b).level() == 1).count();
    assert!(leaves as u64 <= n / 63 + 1, "{leaves} leaves");
    let top = NodeMut::root(&mut root).as_ref().level();
    assert!(top <= 3);
}

/// The kernel's driver cannot delete below a node that has siblings and one child (spec 5.2).
#[test]
fn appending_leaves_no_only_children() {
    let mut root: Root = [0; ROOT_BYTES];
    let mut nodes = Memory::default();
    let mut model = BTreeMap::new();
    let second = 63 * 63;
    for k in 0..second * 3 + 70 {
        set(&mut root, &mut nodes, k, k + 1).unwrap();
        model.insert(k, k + 1);
        if k % second < 70 || k % second > second - 70 {
            check_all(&root, &nodes, &model);
        }
    }
}

/// A map of `n` keys from 0 on, each pointing to itself and one, all of it written.
fn grown(n: u64) -> (Root, Memory) {
    let mut root: Root = [0; ROOT_BYTES];
    let mut nodes = Memory::default();
    (0..n).for_each(|k| assert!(set(&mut root, &mut nodes, k, k + 1).unwrap().is_none()));
    nodes.clean = std::mem::take(&mut nodes.dirty);
    (root, nodes)
}

#[test]
fn severing_anywhere_leaves_a_whole_map() {
    // Three levels of nodes of 63 entries below the root.
    let (first, last) = (63, 63 * 63);
    let n = last * 2 + first * 2 + 5;
    let near = |key: u64| key.saturating_sub(2)..key + 3;
    let keys = [0, 3, first, 2 * first, last - first, last, last + first, 2 * last, 2 * last + first, n];
    for from in keys.into_iter().flat_map(near) {
        let (mut root, mut nodes) = grown(n);
        let model: BTreeMap<u64, u64> = (0..n.min(from)).map(|k| (k, k + 1)).collect();
        let mut severed = Vec::new();
        let before = nodes.clean.len();
        sever(&mut root, &mut nodes, from, &mut severed, &mut None, false).unwrap();
        assert!(nodes.dirty.len() <= 6 && nodes.clean.len() + 6 >= before, "only the way there is changed");
        check_tree(&root, &nodes, &model);
        let mut gone = 0;
        while unravel(&mut nodes, &mut severed, |_, _| {
            gone += 1;
            Ok(())
        })
        .unwrap()
        {}
        assert_eq!(gone, n.saturating_sub(from));
        check_all(&root, &nodes, &model);
    }
}

#[test]
fn severing_finds_its_way_around_damage() {
    let n = 63 * 63 * 2;
    let leaf = |root: &Root, nodes: &Memory, key: u64| node_at(root, nodes, key, 1).unwrap().unwrap();
    // Behind the cut: all is ended but what cannot be read.
    let (mut root, mut nodes) = grown(n);
    let bad = [leaf(&root, &nodes, 2000), node_at(&root, &nodes, n - 1, 2).unwrap().unwrap()];
    let lost = 63 + keys_below(&nodes, bad[1]);
    nodes.unreadable.extend(bad);
    let (mut severed, mut damage) = (Vec::new(), None);
    sever(&mut root, &mut nodes, 100, &mut severed, &mut damage, false).unwrap();
    assert!(damage.is_none());
    check_tree(&root, &nodes, &(0..100).map(|k| (k, k + 1)).collect());
    let (mut gone, mut errors) = (0, 0);
    loop {
        match unravel(&mut nodes, &mut severed, |_, _| {
            gone += 1;
            Ok(())
        }) {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) => errors += 1,
        }
    }
    assert_eq!((gone, errors), (n - 100 - lost, 2));
    // On the way to the cut: what is right of it goes, the damaged node stays.
    let (mut root, mut nodes) = grown(n);
    nodes.unreadable.push(leaf(&root, &nodes, 100));
    let mut severed = Vec::new();
    sever(&mut root, &mut nodes, 100, &mut severed, &mut damage, false).unwrap();
    assert!(damage.is_some());
    let mut left = Vec::new();
    let mut met = 0;
    for_each_sound(&root, &nodes, 0, |seen| {
        match seen {
            Seen::Entry(key, _) => left.push(key),
            Seen::Damage { behind, .. } => {
                assert_eq!(behind, None);
                met += 1;
            }
        }
        ControlFlow::Continue(())
    });
    assert_eq!((left, met), ((0..63).collect(), 1));
}

/// Keys below a node of level 2.
fn keys_below(nodes: &Memory, ptr: u64) -> u64 {
    let block = nodes.read(ptr, 2).unwrap();
    let node = Node::block(&block);
    (0..node.len()).map(|i| Node::block(&nodes.read(node.ptr(i), 1).unwrap()).len() as u64).sum()
}

#[test]
fn the_part_below_a_key_is_told_well() {
    // In the fourth the last leaf has twice as much as the others.
    for n in [2u64, 6, 40, 31 * 9 + 62, 63 * 5, 63 * 63 + 70, 63 * 63 * 2 + 500] {
        let (root, nodes) = grown(n);
        for step in 0..=10 {
            let key = n * step / 10;
            let told = part_below(&root, &nodes, key).unwrap();
            let right = key as f64 / n as f64;
            assert!((told - right).abs() < 0.04, "{key} of {n}: {told}, not {right}");
            let back = key_at(&root, &nodes, told).unwrap();
            assert!(back.abs_diff(key) <= 1 + n / 25, "{key} of {n} comes back as {back}");
        }
        assert!([-1.0, 0.0].iter().all(|part| key_at(&root, &nodes, *part).unwrap() == 0));
        assert!(key_at(&root, &nodes, f64::NAN).is_ok() && key_at(&root, &nodes, 2.0).unwrap() == n - 1);
        assert_eq!(part_below(&root, &nodes, 0).unwrap(), 0.0);
        assert!(part_below(&root, &nodes, u64::MAX).unwrap() > 0.999);
    }
}

/// The keys of a map; none where it cannot be walked.
fn keys_of(root: &Root, nodes: &Memory) -> Option<Vec<u64>> {
    let mut keys = Vec::new();
    for_each(root, nodes, 0, |key, _| {
        keys.push(key);
        ControlFlow::Continue(())
    })
    .ok()
    .map(|()| keys)
}

/// Whatever cannot be had while a leaf, nodes above it, or the root are split: all that was mapped is.
#[test]
fn an_insertion_that_fails_leaves_the_map_as_it_was() {
    let mut failed = 0;
    for n in [63 * 3, 63 * 63 * 3, 63 * 20] {
        for at in [3, 2 * 63 + 40, n * 2 - 21] {
            for fails in 0..8 {
                let (mut root, mut nodes): (Root, _) = ([0; ROOT_BYTES], Memory::default());
                for k in 0..n {
                    assert!(set(&mut root, &mut nodes, 2 * k, k + 1).unwrap().is_none());
                }
                nodes.clean = std::mem::take(&mut nodes.dirty);
                nodes.fails = Some(fails);
                let key = at | 1;
                let done = set(&mut root, &mut nodes, key, 77);
                failed += u32::from(done.is_err());
                let mut expected: Vec<u64> = (0..n).map(|k| 2 * k).collect();
                if done.is_ok() {
                    expected.push(key);
                    expected.sort_unstable();
                }
                assert!(keys_of(&root, &nodes) == Some(expected), "{n} keys, {key}, call {fails}");
            }
        }
    }
    assert!(failed > 20, "{failed}");
}

/// Whatever cannot be had while nodes are merged: the key stays, with its pointer.
#[test]
fn a_removal_that_fails_leaves_the_map_as_it_was() {
    let mut failed = 0;
    for n in [63 * 3, 63 * 20] {
        for from in [63, 0] {
            for fails in 0..6 {
                let (mut root, mut nodes) = grown(n);
                let mut model: BTreeMap<u64, u64> = (0..n).map(|k| (k, k + 1)).collect();
                for key in (from..from + 63).rev() {
                    // Only the last ones meet the failure: the first made the leaf writable.
                    nodes.fails = (key != from + 62).then_some(fails);
                    match remove(&mut root, &mut nodes, key) {
                        Ok(old) => assert_eq!(old, model.remove(&key)),
                        Err(_) => {
                            failed += 1;
                            let whole = model.keys().copied().collect();
                            assert!(keys_of(&root, &nodes) == Some(whole), "{n} keys, {key}, call {fails}");
                            nodes.fails = None;
                            assert_eq!(remove(&mut root, &mut nodes, key).unwrap(), model.remove(&key));
                        }
                    }
                }
            }
        }
    }
    assert!(failed > 1, "{failed}");
}
