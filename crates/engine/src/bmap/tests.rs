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
    dirty: BTreeMap<u64, Block>,
    next: u64,
}

impl ReadNodes for Memory {
    fn read(&self, ptr: u64, level: u8) -> Result<Block> {
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

fn check_all(root: &Root, nodes: &Memory, model: &BTreeMap<u64, u64>) {
    let mut used = 0;
    if btree::is_btree(root) {
        btree::check_root(root).unwrap();
        check(Node::root(root), nodes, &mut used);
    }
    assert_eq!(used, nodes.clean.len() + nodes.dirty.len(), "no node leaks");
    let mut all = Vec::new();
    for_each(root, nodes, 0, |k, p| {
        all.push((k, p));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(all.iter().copied().eq(model.iter().map(|(k, v)| (*k, *v))));
    assert_eq!(last_key(root, nodes).unwrap(), model.keys().next_back().copied());
}

#[derive(Debug, Clone)]
enum Op {
    Set(u64),
    SetRun(u64, u64),
    Remove(u64),
    RemoveRun(u64, u64),
    Clean,
    Destroy,
}

fn op(range: u64) -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..range).prop_map(Op::Set),
        3 => (0..range, 1..400u64).prop_map(|(k, n)| Op::SetRun(k, n)),
        4 => (0..range).prop_map(Op::Remove),
        3 => (0..range, 1..600u64).prop_map(|(k, n)| Op::RemoveRun(k, n)),
        2 => Just(Op::Clean),
        1 => Just(Op::Destroy),
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
            Op::Destroy => {
                let mut gone = Vec::new();
                destroy(&mut root, &mut nodes, |_, p| {
                    gone.push(p);
                    Ok(())
                })
                .unwrap();
                gone.sort_unstable();
                let mut expected: Vec<_> = std::mem::take(&mut model).into_values().collect();
                expected.sort_unstable();
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
