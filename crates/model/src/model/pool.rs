//! A set of objects that gives a random member in constant time, in an order that depends on nothing but the
//! history.

use std::collections::HashMap;

use crate::model::Id;

/// A set of object numbers.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    items: Vec<Id>,
    places: HashMap<Id, usize>,
}

impl Pool {
    /// The members, in no useful but always the same order.
    pub fn items(&self) -> &[Id] {
        &self.items
    }

    /// Whether it is a member.
    pub fn contains(&self, id: Id) -> bool {
        self.places.contains_key(&id)
    }

    pub(super) fn add(&mut self, id: Id) {
        if !self.contains(id) {
            self.places.insert(id, self.items.len());
            self.items.push(id);
        }
    }

    pub(super) fn remove(&mut self, id: Id) {
        if let Some(place) = self.places.remove(&id) {
            self.items.swap_remove(place);
            if let Some(&moved) = self.items.get(place) {
                self.places.insert(moved, place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_and_go() {
        let mut pool = Pool::default();
        for id in [4, 9, 2, 9] {
            pool.add(id);
        }
        pool.remove(4);
        pool.remove(7);
        assert_eq!(pool.items(), [2, 9]);
        pool.remove(9);
        assert!(pool.contains(2) && !pool.contains(9));
        assert_eq!(pool.items(), [2]);
    }
}
