//! Which chunk has room: a tree of maxima over the chunks of a directory.
//!
//! ```text
//!            7               node i covers nodes 2i and 2i+1;
//!        7       3           leaves are the chunks in order
//!      2   7   3   0
//! ```
//!
//! Values are upper bounds of the largest entry a chunk can take, in units of 8 bytes, at most
//! 255 (a name needs at most 34). Finding the first chunk with enough takes a step a level.

/// Bounds of the room in each chunk, by position.
pub struct Gaps {
    len: usize,
    /// A power of two; the leaves begin here.
    width: usize,
    tree: Vec<u8>,
}

impl Gaps {
    pub fn new() -> Self {
        Gaps { len: 0, width: 1, tree: vec![0; 2] }
    }

    /// The class of a gap of `bytes`: whoever needs a class at most as great fits.
    pub fn class(bytes: usize) -> u8 {
        u8::try_from(bytes / 8).unwrap_or(u8::MAX)
    }

    /// Adds a chunk behind the last.
    pub fn push(&mut self, class: u8) {
        if self.len == self.width {
            let leaves = self.tree[self.width..].to_vec();
            self.width *= 2;
            self.tree = vec![0; self.width * 2];
            self.tree[self.width..self.width + leaves.len()].copy_from_slice(&leaves);
            for i in (1..self.width).rev() {
                self.tree[i] = self.tree[2 * i].max(self.tree[2 * i + 1]);
            }
        }
        self.len += 1;
        self.set(self.len - 1, class);
    }

    /// Takes the last chunk away.
    pub fn pop(&mut self) {
        if let Some(last) = self.len.checked_sub(1) {
            self.set(last, 0);
            self.len = last;
        }
    }

    /// The bound of a chunk; 0 for one that is not there.
    pub fn get(&self, chunk: usize) -> u8 {
        if chunk < self.len { self.tree[self.width + chunk] } else { 0 }
    }

    /// Sets the bound of a chunk that is there.
    pub fn set(&mut self, chunk: usize, class: u8) {
        if chunk >= self.len {
            return;
        }
        let mut i = self.width + chunk;
        self.tree[i] = class;
        while i > 1 {
            i /= 2;
            let max = self.tree[2 * i].max(self.tree[2 * i + 1]);
            if self.tree[i] == max {
                break;
            }
            self.tree[i] = max;
        }
    }

    /// The first chunk whose bound is at least `class`.
    pub fn first(&self, class: u8) -> Option<usize> {
        let class = class.max(1);
        if self.tree[1] < class {
            return None;
        }
        let mut i = 1;
        while i < self.width {
            i *= 2;
            if self.tree[i] < class {
                i += 1;
            }
        }
        Some(i - self.width)
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.tree.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_first_chunk_with_room() {
        let mut gaps = Gaps::new();
        let mut plain: Vec<u8> = Vec::new();
        let mut x = 1u64;
        for step in 0..3000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let value = (x >> 40) as u8 % 40;
            if step % 3 == 0 {
                gaps.push(value);
                plain.push(value);
            } else if step % 7 == 0 && plain.len() > 1 {
                gaps.pop();
                plain.pop();
            } else {
                let at = (x >> 20) as usize % plain.len();
                gaps.set(at, value);
                plain[at] = value;
            }
            for class in [1, 5, 20, 39, 40] {
                assert_eq!(gaps.first(class), plain.iter().position(|v| *v >= class), "step {step}");
            }
            assert_eq!(gaps.get(plain.len() - 1), plain[plain.len() - 1]);
        }
        assert_eq!(gaps.get(plain.len()), 0);
        gaps.set(plain.len(), 200);
        assert_eq!(gaps.first(41), None);
    }

    #[test]
    fn classes_never_promise_too_much() {
        assert_eq!(Gaps::class(0), 0);
        assert_eq!(Gaps::class(20), 2);
        assert_eq!(Gaps::class(272), 34);
        assert_eq!(Gaps::class(65536), 255);
    }
}
